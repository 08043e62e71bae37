"""Apache's own Java clients on ``rocketbox broker``: the benchmark producer and consumer of the 5.5.0 examples."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from pathlib import Path

import anyio
import pytest

from rocketbox.client import Admin
from tests.broker_process import BrokerProcess
from tests.conformance.apache import class_path, java

pytestmark = pytest.mark.apache

MESSAGES = 20_000
SECONDS = 180


class JavaProgram:
    """A running program of Apache's example artefact; what it prints is read as it comes."""

    def __init__(self, folder: Path, name: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [
                *(java(), "-Xmx256m", "-XX:+UseSerialGC", f"-Duser.home={folder}", "-cp", class_path()),
                *(f"org.apache.rocketmq.example.benchmark.{name}", *arguments),
            ],
            cwd=folder,
            env={**os.environ, "ROCKETMQ_HOME": str(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.output = ""
        self._watchdog = threading.Timer(SECONDS, self.process.kill)
        self._watchdog.start()

    def wait_for(self, pattern: str, times: int = 1) -> None:
        """Return when the pattern has been printed so often."""
        assert self.process.stdout is not None
        while len(re.findall(pattern, self.output)) < times:
            line = self.process.stdout.readline()
            assert line, f"{pattern!r} was not printed:\n{self.output}"
            self.output += line

    def stop(self) -> None:
        self._watchdog.cancel()
        self.process.kill()
        self.process.communicate()


def test_the_java_benchmark_producer_and_consumer_run_on_the_embedded_broker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "store") as broker:
        consumer = JavaProgram(
            tmp_path, "Consumer", "-n", broker.name_server, "-t", "JavaBench", "-g", "java-bench", "-p", "false"
        )
        try:
            producer = JavaProgram(
                tmp_path, "Producer", "-n", broker.name_server, "-t", "JavaBench", "-s", "1024", "-w", "8",
                "-q", str(MESSAGES),
            )  # fmt: skip
            try:
                producer.wait_for(r"\[Complete\]")
                total = re.search(r"\[Complete\].*Send Total: (\d+).*Send Failed: (\d+)", producer.output)
                assert total, producer.output
                assert int(total[1]) == MESSAGES
                assert int(total[2]) == 0
            finally:
                producer.stop()
            consumer.wait_for(r"Consume TPS: [1-9]")
            assert anyio.run(all_committed, broker.name_server)
        finally:
            consumer.stop()


async def all_committed(name_server: str) -> bool:
    """Whether the group's committed offsets reach the number of messages; the Java client commits every 5 s."""
    async with Admin(name_server=name_server) as admin:
        queues = await admin.queues("JavaBench")
        with anyio.move_on_after(SECONDS):
            while True:
                committed = [await admin.committed("java-bench", queue) or 0 for queue in queues]
                if sum(committed) == MESSAGES:
                    assert committed == [await admin.max_offset(queue) for queue in queues]
                    return True
                await anyio.sleep(0.5)  # what another process does offers no event to wait for
    return False
