"""SIGTERM while clients write: the broker ends soon with status 0, all acknowledged is there, nothing is recovered.

Twenty stops with ``ROCKETBOX_TESTS=all``, else three.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path

import anyio
import pytest

from tests.chaos.cycles import SETTINGS
from tests.chaos.ledger import Ledger
from tests.chaos.traffic import Traffic
from tests.support.broker.broker_process import BrokerProcess

STOPS = 20 if os.environ.get("ROCKETBOX_TESTS") == "all" else 3
LONGEST = 20.0  # seconds that a stop may take on a slow machine; less than one is usual


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_broker_that_is_told_to_stop_while_it_writes_leaves_nothing_to_recover(tmp_path: Path, flush: str) -> None:
    ledger = Ledger()
    traffic = Traffic(ledger, random.Random(7))
    stops = (STOPS + (flush == "SYNC_FLUSH")) // 2
    for number in range(stops + 1):
        with BrokerProcess(tmp_path, *SETTINGS, f"--flush-disk-type={flush}") as broker:
            assert anyio.run(check, ledger, broker.name_server, number == stops) == []
            if number < stops:
                assert stopped_while_it_writes(broker, traffic) <= LONGEST
                assert not (tmp_path / "abort").exists()
        said = "".join(broker.errors)
        assert "recovered" not in said
        assert "torn tail" not in said
        assert "Traceback" not in said
    assert len(ledger.acknowledged) > 50 * stops


async def check(ledger: Ledger, name_server: str, thorough: bool) -> list[str]:
    return await ledger.check(name_server, thorough=thorough) if ledger.sent else []


def stopped_while_it_writes(broker: BrokerProcess, traffic: Traffic) -> float:
    """Let clients work and stop it; how long that took."""
    times: list[float] = []

    def stop() -> None:
        times.append(time.monotonic())
        broker.process.send_signal(signal.SIGTERM)

    def wait() -> None:
        broker.process.wait()
        times.append(time.monotonic())

    waiting = threading.Thread(target=wait)
    waiting.start()
    anyio.run(traffic.run, broker.name_server, stop)
    assert broker.wait() == 0, broker.errors
    waiting.join()
    return times[1] - times[0]
