"""The flight desk on Apache RocketMQ: nothing is changed but the name server's address (and the send timeout)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.apache import EACH_VERSION, apache_servers

pytestmark = pytest.mark.apache

EXPECTED = {
    "sent": 27_004,
    "audit: distinct rows": 27_004,
    "desk: distinct rows": 11_121,
    "desk: alerts": 639,
    "desk: rejected, in the dead-letter queue": 120,
    "lost": 0,
    "lake: rows": 27_004,
    "lake: rows with a delay": 26_483,
    "lake: messages left out": 0,
    "lake: messages kept twice": 0,
}


@pytest.mark.smoke
@pytest.mark.parametrize("version", EACH_VERSION)
def test_the_flight_desk_counts_the_same_on_apache(version: str, tmp_path: Path) -> None:
    with apache_servers(tmp_path, version) as servers:
        done = subprocess.run(
            [sys.executable, "-m", "starter_examples.flight_desk", "--rocketmq.producer.send-message-timeout=12s"],
            cwd=tmp_path,
            env={**os.environ, "NAMESRV": servers.name_server, "COLUMNS": "120"},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^│ (.+?) +│ +([\d,]+) │$", done.stdout, re.MULTILINE)
    counts = {name: int(count.replace(",", "")) for name, count in rows}
    assert counts.pop("redelivered (desk and audit)") >= 1
    assert counts == EXPECTED
