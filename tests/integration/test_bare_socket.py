"""A program that shares no code with rocketbox sends to and pulls from the embedded broker, from another process."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from rocketbox.embedded import EmbeddedServers
from tests.support.broker.bare_socket_client import BINARY_TYPE, JSON_TYPE, connect, encode_header, receive_exactly
from tests.support.broker.wire import small_options

HEART_BEAT = 34
NOTIFY_CONSUMER_IDS_CHANGED = 40
SCRIPT = Path(__file__).parents[1] / "support" / "broker" / "bare_socket_client.py"


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


def test_a_client_that_reads_json_only_is_told_in_json_of_the_others(tmp_path: Path) -> None:
    def heartbeat(client: str) -> bytes:
        consumer = {
            "groupName": "json-only",
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": [],
            "unitMode": False,
        }
        return json.dumps({"clientID": client, "producerDataSet": [], "consumerDataSet": [consumer]}).encode()

    def read_json(connection: socket.socket) -> dict[str, object]:
        (length,) = struct.unpack(">I", receive_exactly(connection, 4))
        frame = receive_exactly(connection, length)
        assert frame[0] == JSON_TYPE, "the header is JSON"
        header: dict[str, object] = json.loads(frame[4 : 4 + struct.unpack_from(">I", frame)[0]])
        return header

    def beat(connection: socket.socket, client: str, kind: int) -> None:
        header, body = encode_header(kind, HEART_BEAT, 1, {}), heartbeat(client)
        size = 4 + len(header) + len(body)
        connection.sendall(struct.pack(">II", size, kind << 24 | len(header)) + header + body)

    with EmbeddedServers.in_thread(small_options(tmp_path)) as servers, connect(servers.broker_address) as first:
        beat(first, "first", JSON_TYPE)
        came = [read_json(first) for _ in range(2)]  # the answer, and that the group has a member
        assert sorted(int(str(header["code"])) for header in came) == [0, NOTIFY_CONSUMER_IDS_CHANGED]
        with connect(servers.broker_address) as second:
            beat(second, "second", BINARY_TYPE)
            assert read_json(first)["code"] == NOTIFY_CONSUMER_IDS_CHANGED
            receive_exactly(second, 4)
            assert receive_exactly(second, 1)[0] == BINARY_TYPE
