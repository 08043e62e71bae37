"""A program that shares no code with rocketbox sends to and pulls from the embedded broker, from another process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rocketbox.embedded import EmbeddedServers
from tests.integration.wire import small_options

SCRIPT = Path(__file__).with_name("bare_socket_client.py")


@pytest.mark.parametrize("serialization", ["json", "binary"])
def test_a_bare_socket_can_send_and_pull(tmp_path: Path, serialization: str) -> None:
    with EmbeddedServers.in_thread(small_options(tmp_path)) as servers:
        done = subprocess.run(
            [sys.executable, "-I", str(SCRIPT), servers.name_server_address, "bare", "10", serialization],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [message["code"] for message in told["sent"]] == [0] * 10
    pulled = sorted(told["pulled"], key=lambda message: int(message["keys"].removeprefix("key")))
    assert [message["body"] for message in pulled] == [f"message {number} é" for number in range(10)]
    assert [message["tag"] for message in pulled] == ["T0", "T1"] * 5
    assert [message["id"] for message in pulled] == [message["id"] for message in told["sent"]]
    assert [message["queueId"] for message in pulled] == [number % 4 for number in range(10)]
    assert [message["queueOffset"] for message in pulled] == [number // 4 for number in range(10)]
