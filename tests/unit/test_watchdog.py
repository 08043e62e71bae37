"""The watchdog's judgement, looked at step by step on a clock of the test's own; and the line that it names."""

from __future__ import annotations

import logging
import sys
import sysconfig
import textwrap
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest

from rocketbox.clock import RealClock
from rocketbox.frames import inside, users_frame
from rocketbox.watchdog import LoopWatchdog
from tests.support.clocks import VirtualClock


class Watched:
    """A watchdog that looks when it is told to, at a loop that turns when it is told to."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.cpu = 0.0
        self.asked: list[Callable[[], object]] = []
        self.watchdog = LoopWatchdog(self.clock, cpu_time=lambda: self.cpu)
        self.watchdog.watch(threading.get_ident(), self.asked.append)

    def look(self, times: int = 1) -> None:
        for _ in range(times):
            self.pass_time(self.watchdog.interval)
            self.watchdog.look()

    def turn(self) -> None:
        for callback in self.asked:
            loop = threading.Thread(target=callback)  # at the outer end of a stack, as loops call back
            loop.start()
            loop.join()
        self.asked.clear()

    def pass_time(self, seconds: float, *, cpu: float = 0.0) -> None:
        self.clock.now += seconds
        self.cpu += cpu


@pytest.fixture
def watched(caplog: pytest.LogCaptureFixture) -> Watched:
    caplog.set_level(logging.DEBUG, "rocketbox.watchdog")
    return Watched()


def is_down(watched: Watched) -> bool:
    return not watched.watchdog.healthy


def test_a_loop_that_turns_is_told_nothing_of(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(100):
        watched.look()
        watched.turn()
    assert watched.watchdog.healthy
    assert watched.watchdog.blocked_for == 0
    assert caplog.messages == []


def test_a_slow_loop_is_no_blocked_one(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(20):
        watched.look(4)
        watched.turn()  # each turn takes just less than a second
    assert caplog.messages == []


def test_the_blocking_line_is_named_once_and_the_end_has_its_duration(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.look(4)
    assert caplog.messages == []
    watched.look()
    (message,) = caplog.messages
    line = Watched.look.__code__.co_firstlineno + 3
    assert message.startswith(f"the event loop has not turned for 1.0 s: {__file__}:{line} in Watched.look blocks it")
    assert "self.watchdog.look()" in message  # the stack shows the line's text
    assert watched.watchdog.blocked_for == 1.0
    watched.look(8)
    assert len(caplog.messages) == 1
    watched.turn()
    assert watched.watchdog.blocked_for == 0
    watched.look()
    assert caplog.messages[1:] == ["the event loop turns again, after 3.0 s"]


def test_a_process_that_was_stopped_behind_a_block_takes_nothing_from_its_duration(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.look(9)
    watched.turn()
    watched.pass_time(5)
    watched.look()
    assert caplog.messages[1:] == ["the event loop turns again, after 2.0 s"]
    assert watched.watchdog.blocked_for == 0


def test_each_block_is_told_of(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        watched.look(6)
        watched.turn()
    watched.look()
    assert [message.partition(",")[0].partition(":")[0] for message in caplog.messages] == [
        "the event loop has not turned for 1.0 s",
        "the event loop turns again",
    ] * 3


def test_health_is_down_above_20_seconds_until_the_loop_turns(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.look(1 + 79)
    assert watched.watchdog.blocked_for == 19.75
    assert watched.watchdog.healthy
    watched.look(3)
    assert is_down(watched)
    assert [record.message for record in caplog.records if record.levelno == logging.ERROR] == [
        "the event loop has not turned for 20.0 s: health is down until it does"
    ]
    watched.turn()
    assert watched.watchdog.healthy


def test_a_process_that_was_stopped_has_blocked_nothing(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    watched.look()
    watched.pass_time(3600)  # SIGSTOP, a laptop that sleeps: both threads stand still, no processor time is used
    watched.look()
    watched.look(2)
    assert caplog.messages == []
    assert watched.watchdog.healthy
    watched.look()
    assert len(caplog.messages) == 1  # what it blocks after that counts, as what it blocked before: 1.0 s in all
    assert "has not turned for 1.0 s" in caplog.messages[0]


def test_a_process_that_was_stopped_and_whose_loop_wakes_first_has_blocked_nothing(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.look()
    watched.pass_time(3600)
    watched.turn()
    watched.look()
    assert caplog.messages == []


def test_a_call_that_holds_the_interpreter_lock_is_named_although_the_watchdog_could_not_run(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.look()
    watched.turn()
    watched.pass_time(3, cpu=3)  # one call into C: a regular expression, a sort
    watched.look()
    (message,) = caplog.messages
    assert message.startswith(f"the event loop has not turned for 3.0 s: {__file__}")
    watched.turn()
    watched.look()
    assert caplog.messages[1:] == ["the event loop turns again, after 3.0 s"]


def test_a_block_that_the_loop_has_left_before_the_watchdog_came_is_told_of_once_without_its_place(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.look()
    watched.pass_time(3, cpu=3)
    watched.turn()
    watched.look()
    watched.turn()
    watched.look()
    assert caplog.messages == ["the event loop did not turn for 3.0 s; it was over before its place was seen"]


def test_a_debugger_that_stops_the_loop_blocks_nothing(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    look: Any = made_function("look", "def look(step):\n    step()", module="pdb")
    for _ in range(100):
        look(watched.look)
    assert caplog.messages == []
    assert watched.watchdog.healthy


def test_the_loop_that_has_ended_ends_the_watch() -> None:
    def refuse(callback: Callable[[], object]) -> None:
        raise RuntimeError("Event loop is closed")

    watchdog = LoopWatchdog(RealClock(), warn_after=0.01)
    watchdog.watch(threading.get_ident(), refuse)
    thread = threading.Thread(target=watchdog._run)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()


def test_a_loop_without_code_of_the_applications_is_said_to_be_so(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(6):
        watched.watchdog._outside = len(iter_frames(sys._getframe()))  # all but the watchdog's own
        watched.pass_time(watched.watchdog.interval)
        watched.watchdog.look()
    assert "now it runs no code of the application's: a call, perhaps in another thread" in caplog.text


@pytest.mark.anyio
async def test_nothing_is_watched_on_a_clock_that_a_test_drives(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    before = threading.active_count()
    async with LoopWatchdog(clock) as watchdog:
        assert threading.active_count() == before
        await clock.advance(100)
        assert watchdog.healthy
    assert caplog.messages == []


# --- whose line it is ------------------------------------------------------------------------------------------------

SITE = "/srv/venv/lib/python3.11/site-packages"


def made_function(name: str, source: str, *, module: str, file: str = "") -> Callable[..., Any]:
    """A function of a module that is not there."""
    namespace: dict[str, Any] = {"__name__": module, "sys": sys}
    exec(compile(textwrap.dedent(source), file or f"/srv/{module.replace('.', '/')}.py", "exec"), namespace)
    function: Callable[..., Any] = namespace[name]
    return function


def stack_of(*modules: tuple[str, str]) -> FrameType:
    """The innermost frame of calls through these modules, (name, file), outermost first."""
    source = "def call(next=sys._getframe):\n    return next()"
    call: Callable[..., FrameType] = sys._getframe
    for module, file in reversed(modules):
        call = partial(made_function("call", source, module=module, file=file), call)
    return call()


def iter_frames(frame: FrameType | None) -> list[FrameType]:
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


ROCKETBOX = ("rocketbox.listeners.dispatch", f"{SITE}/rocketbox/listeners/dispatch.py")
SOCKET = ("socket", f"{sysconfig.get_path('stdlib')}/socket.py")
REQUESTS = ("requests.api", f"{SITE}/requests/api.py")


@pytest.mark.parametrize(
    ("modules", "named"),
    [
        ([ROCKETBOX, ("desk.app", "/srv/desk/app.py"), ("desk.mail", "/srv/desk/mail.py"), SOCKET], "desk.mail"),
        ([ROCKETBOX, ("desk.app", "/srv/desk/app.py"), REQUESTS, SOCKET], "desk.app"),
        ([ROCKETBOX, ("desk.app", "/srv/desk/app.py"), REQUESTS, ("flights", "/srv/flights.py")], "flights"),
        ([ROCKETBOX, ("desk.app", f"{SITE}/desk/app.py"), ("desk.x", f"{SITE}/desk/x.py"), REQUESTS], "desk.x"),
        ([ROCKETBOX, ("middle.ware", "/srv/middle.py"), ROCKETBOX, ("desk", "/srv/desk.py"), SOCKET], "desk"),
        ([ROCKETBOX, ("desk", "/srv/desk.py"), ROCKETBOX, SOCKET], "desk"),
    ],
    ids=[
        "the innermost line of the handler's package, not Python's",
        "the handler's line, not that of a library it calls",
        "code that a library calls back",
        "an installed service",
        "the handler behind a middleware",
        "the line that calls what rocketbox blocks in",
    ],
)
def test_the_users_own_line_is_named(modules: list[tuple[str, str]], named: str) -> None:
    found = users_frame(inside(stack_of(*modules), 0))
    assert found is not None
    assert found.f_globals["__name__"] == named


def test_what_runs_the_loop_is_not_named() -> None:
    stack = stack_of(("__main__", "/srv/desk.py"), ROCKETBOX, ("selectors", f"{sysconfig.get_path('stdlib')}/x.py"))
    frames = iter_frames(stack)
    of_main = next(index for index, frame in enumerate(frames) if frame.f_globals["__name__"] == "__main__")
    assert users_frame(inside(stack, len(frames) - of_main)) is None
