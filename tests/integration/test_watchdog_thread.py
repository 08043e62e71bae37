"""The watchdog at its work: handlers that block a running loop, under every kind of loop."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time

import anyio
import anyio.lowlevel
import pytest

from rocketbox.clock import RealClock
from rocketbox.watchdog import LoopWatchdog
from tests.support.framework.services import ServiceMaker
from tests.support.loops import anyio_backend as anyio_backend
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio


async def block(until: threading.Event) -> None:
    until.wait(PATIENCE)  # that is what is tested


async def heard(caplog: pytest.LogCaptureFixture, text: str) -> None:
    with anyio.fail_after(PATIENCE):
        while text not in caplog.text:
            await anyio.sleep(0.01)


class Told(logging.Handler):
    """Sets an event as soon as a record has the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.event = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self.text in record.getMessage():
            self.event.set()


async def test_a_task_that_blocks_is_named_by_its_line(caplog: pytest.LogCaptureFixture) -> None:
    told = Told("health is down")  # a busy machine takes its time: what the process did not get does not count
    logging.getLogger("rocketbox.watchdog").addHandler(told)
    try:
        async with LoopWatchdog(RealClock(), warn_after=0.5, down_after=1.0) as watchdog:
            await anyio.sleep(0.2)
            assert caplog.messages == []
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(block, told.event)
            await heard(caplog, "turns again")
            assert watchdog.healthy
    finally:
        logging.getLogger("rocketbox.watchdog").removeHandler(told)
    named, down, again = caplog.records
    line = block.__code__.co_firstlineno + 1
    assert f"{__file__}:{line} in block blocks it" in named.message
    assert "until.wait(PATIENCE)" in named.message
    assert (down.levelno, "health is down" in down.message) == (logging.ERROR, True)
    took = re.search(r"turns again, after (\d+\.\d) s", again.message)
    assert took is not None
    assert float(took[1]) >= 1.0


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # tests under trio have a thread more that wants the lock
async def test_a_call_into_c_that_holds_the_interpreter_lock_is_named(caplog: pytest.LogCaptureFixture) -> None:
    text, took = "a" * 18, 0.0
    while took < 0.3:  # each character doubles the time
        text, started = text + "a", time.monotonic()
        re.match(r"(a+)+$", text + "b")
        took = time.monotonic() - started

    async def search() -> None:
        re.match(r"(a+)+$", text + "b")

    async with LoopWatchdog(RealClock(), warn_after=0.1):
        named = f"{__file__}:{search.__code__.co_firstlineno + 1} in "
        with anyio.fail_after(PATIENCE):
            while (
                caplog.text.count(named) < 3
            ):  # a busy machine runs the loop's thread on before the watchdog's at times
                await anyio.sleep(0.1)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(search)
        await heard(caplog, "turns again")


async def test_a_def_function_in_a_thread_blocks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with LoopWatchdog(RealClock(), warn_after=0.5):
        await anyio.to_thread.run_sync(time.sleep, 1.0)
    assert caplog.messages == []


async def test_the_thread_ends_with_the_block() -> None:
    async with LoopWatchdog(RealClock()):
        assert "rocketbox-watchdog" in {thread.name for thread in threading.enumerate()}
        await anyio.lowlevel.checkpoint()
    assert "rocketbox-watchdog" not in {thread.name for thread in threading.enumerate()}


HANDLER = """
    import time
    from rocketbox import RocketBox, rocketmq_listener

    app = RocketBox("desk")

    @rocketmq_listener(topic="departures", consumer_group="desk")
    async def on_departure(departure: str) -> None:
        look_up(departure)

    def look_up(flight: str) -> None:
        time.sleep(2.5)  # on a busy machine the thread that watches comes late
"""


async def test_the_line_of_a_handler_that_blocks_the_service_is_named(
    service: ServiceMaker, caplog: pytest.LogCaptureFixture
) -> None:
    module = service(HANDLER)
    async with module.app as app:
        await app.template.send("departures", "UA1")
        await heard(caplog, "turns again")
        assert app.is_ready
    line = module.look_up.__code__.co_firstlineno + 1
    assert f"{module.__file__}:{line} in look_up blocks it" in caplog.text


STOPPED = """
import logging, anyio
from rocketbox.clock import RealClock
from rocketbox.watchdog import LoopWatchdog

async def main():
    async with LoopWatchdog(RealClock(), warn_after=0.5):
        print("watching", flush=True)
        await anyio.to_thread.run_sync(input)
        await anyio.sleep(0.3)

logging.basicConfig(level=logging.DEBUG)
anyio.run(main)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGSTOP")
def test_a_process_that_is_stopped_for_a_while_warns_of_nothing() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "watching\n"
    time.sleep(0.3)
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(1.5)
    os.kill(process.pid, signal.SIGCONT)
    _, errors = process.communicate("\n", timeout=PATIENCE)
    assert process.returncode == 0
    assert "event loop" not in errors
