"""A service ends whatever its code does: by a second signal at once, by the first one within its time."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.support.framework.services import Service, send_until_it_ends

HEAD = """
import ctypes, logging, threading, time
from collections.abc import AsyncIterator, Iterator
import anyio
from rocketbox import RocketBox, bean

app = RocketBox("desk", scan=[__name__])

def said(text):
    print(text, flush=True)

class Radio: ...
"""

ON_THE_LOOP = """
@bean
async def radio() -> AsyncIterator[Radio]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listen)
        yield Radio()

async def listen():
    await anyio.sleep(0.2)
"""

BLOCKED = {
    "a coroutine that blocks the loop": """
@app.on_startup
async def hook(): ...
"""
    + ON_THE_LOOP
    + """    said("BLOCKED")
    while True:
        time.sleep(0.1)
""",
    "a call into C that no signal interrupts": ON_THE_LOOP
    + """    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    said("BLOCKED")
    libc.pthread_mutex_lock(mutex)
""",
    "somebody who has the lock of logging": """
class Stuck(logging.Handler):
    def emit(self, record):
        said("BLOCKED")
        time.sleep(600)
"""
    + ON_THE_LOOP
    + """    logging.getLogger().addHandler(Stuck())
    logging.getLogger("desk").warning("something")
""",
}

CLOSES = {
    "a clean-up that blocks": """
@bean
def radio() -> Iterator[Radio]:
    yield Radio()
    said("BLOCKED")
    time.sleep(600)
""",
    "a clean-up that cannot be cancelled": """
@bean
async def radio() -> AsyncIterator[Radio]:
    yield Radio()
    said("BLOCKED")
    with anyio.CancelScope(shield=True):
        await anyio.sleep(600)
""",
    "a thread that is no daemon": """
@bean
def radio() -> Iterator[Radio]:
    yield Radio()
    threading.Thread(target=sleep).start()

def sleep():
    said("BLOCKED")
    time.sleep(600)
""",
}


WITHOUT_UVLOOP = "import rocketbox.application; rocketbox.application.loop_options = dict"


def service(folder: Path, source: str, *, timeout: str, loop: str = "uvloop") -> Service:
    (folder / "desk.py").write_text((WITHOUT_UVLOOP if loop == "asyncio" else "") + HEAD + source)
    (folder / "rocketbox.yaml").write_text(f"rocketbox: {{shutdown: {{timeout: {timeout}}}}}\n")
    return Service(folder, "run", "desk:app")


def test_a_signal_that_comes_to_the_process_and_to_its_group_is_one(tmp_path: Path) -> None:
    takes_its_time = """
@app.on_shutdown
async def last():
    await anyio.sleep(0.3)
"""
    desk = service(tmp_path, takes_its_time, timeout="5s")
    desk.wait_for("is ready")
    # As coreutils' timeout does, and wrappers that pass on what a terminal has sent already. Two of one number would be
    # one while it stands still, and how soon the second one came would be the machine's matter if it did not.
    desk.process.send_signal(signal.SIGSTOP)
    for number in (signal.SIGTERM, signal.SIGINT):
        desk.process.send_signal(number)
    desk.process.send_signal(signal.SIGCONT)
    assert desk.finish() == 0, desk.output
    assert "desk has stopped" in desk.output
    assert "again" not in desk.output


@pytest.mark.parametrize(
    ("why", "loop"),
    [
        ("a coroutine that blocks the loop", "uvloop"),
        ("a call into C that no signal interrupts", "uvloop"),
        ("a call into C that no signal interrupts", "asyncio"),
        ("somebody who has the lock of logging", "asyncio"),
    ],
)
def test_a_second_signal_ends_a_service_whose_loop_is_blocked(tmp_path: Path, why: str, loop: str) -> None:
    desk = service(tmp_path, BLOCKED[why], loop=loop, timeout="600s")
    desk.wait_for("BLOCKED")
    desk.process.send_signal(signal.SIGINT)
    desk.wait_for("SIGINT: desk stops; once more ends it at once")
    send_until_it_ends(desk.process, signal.SIGINT)
    assert desk.finish() == 128 + signal.SIGINT, desk.output
    assert "SIGINT again: desk ends at once" in desk.output


@pytest.mark.parametrize("why", CLOSES)
def test_a_second_signal_ends_a_service_that_hangs_in_its_stop(tmp_path: Path, why: str) -> None:
    desk = service(tmp_path, CLOSES[why], timeout="600s")
    desk.wait_for("is ready")
    desk.process.send_signal(signal.SIGTERM)
    desk.wait_for("BLOCKED")
    if why == "a thread that is no daemon":
        desk.wait_for("has stopped")
        time.sleep(0.3)  # Python's own end has begun
    send_until_it_ends(desk.process, signal.SIGTERM)
    assert desk.finish() in (128 + signal.SIGTERM, -signal.SIGTERM), desk.output


@pytest.mark.parametrize(
    ("why", "line"),
    [
        ("a coroutine that blocks the loop", "time.sleep(0.1)"),
        ("a call into C that no signal interrupts", "libc.pthread_mutex_lock(mutex)"),
        ("a clean-up that blocks", "time.sleep(600)"),
        ("a clean-up that cannot be cancelled", "await anyio.sleep(600)"),
        ("a thread that is no daemon", "time.sleep(600)"),
    ],
)
def test_a_stop_that_takes_too_long_ends_and_names_the_line_that_holds_it_up(
    tmp_path: Path, why: str, line: str
) -> None:
    source = {**BLOCKED, **CLOSES}[why]
    desk = service(tmp_path, source, timeout="500ms")
    desk.wait_for("BLOCKED" if why in BLOCKED else "is ready")
    since = time.monotonic()
    desk.process.send_signal(signal.SIGTERM)
    assert desk.finish() == 3, desk.output
    assert time.monotonic() - since < 10
    number = max(n for n, text in enumerate((tmp_path / "desk.py").read_text().splitlines(), 1) if line in text)
    assert "the stop has not ended within 0.5 s, and the process ends: " in desk.output
    assert f"desk.py:{number} in " in desk.output.partition("the process ends")[2]


def test_the_time_of_the_stop_runs_from_app_shutdown_too(tmp_path: Path) -> None:
    source = """
@app.on_startup
async def later():
    threading.Timer(0.5, app.shutdown).start()
"""
    source += BLOCKED["a coroutine that blocks the loop"]
    desk = service(tmp_path, source, timeout="500ms")
    assert desk.finish() == 3, desk.output
    assert "in listen holds it up" in desk.output


def test_what_a_loop_or_library_does_with_signals_goes_on(tmp_path: Path) -> None:
    source = """
import asyncio, os, signal

@app.on_startup
async def own():
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, said, "own signal")
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1)).start()
"""
    for loop in ("uvloop", "asyncio"):
        desk = service(tmp_path, source, timeout="5s", loop=loop)
        desk.wait_for("own signal")
        desk.wait_for("is ready")
        desk.process.send_signal(signal.SIGTERM)
        assert desk.finish() == 0, desk.output
        assert "SIGTERM: desk stops" in desk.output
