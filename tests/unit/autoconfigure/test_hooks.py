"""Hooks and background work of applications that need no servers: when they run, with what, and what is refused."""

from __future__ import annotations

import functools
import logging
from datetime import timedelta

import anyio
import pytest

from rocketbox import RocketBox, on_profile
from rocketbox.errors import ConfigurationError
from tests.support.framework.flight_desk import FLIGHT_DESK
from tests.support.framework.services import ServiceMaker
from tests.support.waiting import until

SOURCE = FLIGHT_DESK


@pytest.mark.anyio
async def test_hooks_run_between_beans_and_what_they_start_ends_before_them(service: ServiceMaker) -> None:
    source = """
@app.on_startup
async def begin(desk: Desk) -> None:
    events.append("begin")

@app.background_task
async def count(desk: Desk) -> None:
    events.append("count")
    try:
        await anyio.sleep_forever()
    finally:
        events.append("count ends")

@app.on_shutdown
async def last(desk: Desk) -> None:
    events.append("last")

@app.on_shutdown
def first(desk: Desk) -> None:
    events.append(("first", threading.current_thread() is threading.main_thread()))
"""
    module = service(SOURCE + source, "")
    async with module.app:
        await until(lambda: "count" in module.events)
    assert module.events == [
        "desk opens", "begin", "count", "count ends", ("first", False), "last", "desk closes",
    ]  # fmt: skip


@pytest.mark.anyio
async def test_a_scheduled_function_runs_in_an_application_and_may_be_a_startup_hook_as_well(
    service: ServiceMaker,
) -> None:
    source = """
@app.on_startup
@app.every("${desk.refresh:5m}")
def refresh(desk: Desk, limit: int = 3, *, other: "Nowhere" = 0) -> None:
    events.append(limit)
"""
    module = service(SOURCE + source, "desk.refresh: 10ms\n")
    async with module.app:
        await until(lambda: module.events.count(3) >= 3)


@pytest.mark.anyio
async def test_callables_of_every_kind_are_awaited(service: ServiceMaker) -> None:
    source = """
async def note(text: str = "", desk: Desk | None = None) -> None:
    await anyio.lowlevel.checkpoint()
    events.append(text)

class Noting:
    async def __call__(self, desk: Desk) -> None:
        await note("object")

app.on_startup(Noting())
app.on_startup(functools.partial(note, "partial"))

@app.on_startup
def returns(desk: Desk):
    return note("returned")
"""
    module = service(SOURCE + source, "")
    async with module.app:
        assert module.events == ["desk opens", "object", "partial", "returned"]


@pytest.mark.anyio
async def test_a_hook_whose_condition_does_not_hold_is_off_and_said_to_be(
    service: ServiceMaker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rocketbox")
    source = """
@app.on_startup(when=on_profile("demo"))
async def demo(missing: threading.Thread) -> None: ...

@app.every("5m", when=on_property("desk.refresh"))
async def refresh() -> None: ...

@app.on_startup(when=on_bean(Desk))
async def begin() -> None:
    events.append("begin")
"""
    module = service(SOURCE + source, "")
    async with module.app:
        assert module.events == ["desk opens", "begin"]
    place = f"{module.__name__}.py"
    assert f"startup hook demo is off: profile demo is not active (active: default) ({place}:22)" in caplog.text
    assert f"scheduled function refresh is off: desk.refresh is not set ({place}:25)" in caplog.text


@pytest.mark.anyio
async def test_a_startup_hook_that_fails_is_told_with_its_name_and_the_line_that_raised(service: ServiceMaker) -> None:
    source = """
def warm():
    raise ValueError("the cache is cold")

@app.on_startup
def begin(desk: Desk) -> None:
    int("7")
    warm()

@app.on_shutdown
async def never() -> None:
    events.append("never")
"""
    module = service(SOURCE + source, "")
    with pytest.raises(ConfigurationError) as caught:
        await module.app.__aenter__()
    (finding,) = caught.value.findings
    assert finding.what == "startup hook begin failed: ValueError: the cache is cold"
    assert finding.where == f"{module.__name__}.py:25, raised at {module.__name__}.py:23"
    assert finding.fix == "--debug shows the traceback"
    assert module.events == ["desk opens", "desk closes"]


@pytest.mark.anyio
async def test_a_shutdown_hook_that_fails_keeps_no_other_from_running_and_one_that_hangs_is_cut_short(
    service: ServiceMaker, caplog: pytest.LogCaptureFixture
) -> None:
    source = """
@app.on_shutdown
async def hangs() -> None:
    events.append("hangs")
    await anyio.sleep_forever()

@app.on_shutdown
async def fails() -> None:
    raise ValueError("no disk")
"""
    module = service(SOURCE + source, "rocketbox.shutdown.timeout: 100ms\n")
    async with module.app:
        pass
    assert module.events == ["desk opens", "hangs", "desk closes"]
    assert f"shutdown hook fails ({module.__name__}.py:27) failed; the stop goes on" in caplog.text
    assert "ValueError: no disk" in caplog.text
    assert "the stop took longer than 0.1 s; phase startup was cut short" in caplog.text


@pytest.mark.anyio
async def test_a_shutdown_hook_that_fails_is_not_told_with_what_the_stop_came_from(
    service: ServiceMaker, caplog: pytest.LogCaptureFixture
) -> None:
    source = """
@app.on_shutdown
async def fails() -> None:
    try:
        raise LookupError("no folder")
    except LookupError:
        raise ValueError("no disk")
"""
    module = service(SOURCE + source, "")
    with anyio.CancelScope() as scope:
        async with module.app:
            scope.cancel()
            await anyio.sleep_forever()
    assert "ValueError: no disk" in caplog.text
    assert "LookupError: no folder" in caplog.text  # its own reason stays
    assert "Cancelled" not in caplog.text


def test_what_cannot_be_called_is_refused_before_the_start(service: ServiceMaker) -> None:
    source = """
@app.background_task
def blocks() -> None: ...

@app.every("5")
async def often() -> None: ...

@app.every("${desk.refresh}")
async def sometimes() -> None: ...

@app.every("0s")
async def always(desk) -> None: ...

@app.on_shutdown
async def ends(thread: threading.Thread) -> None: ...
"""
    module = service(SOURCE + source, "")
    told = [(finding.what, finding.where) for finding in module.app.look().findings]
    place = f"{module.__name__}.py"
    assert told == [
        ("background task blocks is a plain def, and a thread cannot be cancelled at the stop", f"{place}:22"),
        (
            "scheduled function often is to run every '5': 5 has no unit; write a time such as 15m, 30s, 500ms, 1m30s "
            "or PT3S",
            f"{place}:25",
        ),
        (
            "the interval of scheduled function sometimes needs ${desk.refresh}, and nothing has that name",
            f"{place}:28",
        ),
        ("parameter desk of scheduled function always has no type", f"{place}:31"),
        ("scheduled function always is to run every '0s': it must be longer than nothing", f"{place}:31"),
        (
            "parameter thread of shutdown hook ends needs a bean of type Thread, and there is none",
            f"{place}:34",
        ),
    ]


def test_a_condition_that_fails_is_told_with_its_hook(service: ServiceMaker) -> None:
    source = """
class Broken:
    def evaluate(self, context):
        raise ValueError("no idea")

@app.on_startup(when=Broken())
async def begin() -> None: ...
"""
    module = service(SOURCE + source, "")
    (finding,) = module.app.look().findings
    assert finding.what == "the condition of startup hook begin failed: ValueError: no idea"
    assert finding.where == f"{module.__name__}.py:26, raised at {module.__name__}.py:24"


@pytest.mark.anyio
async def test_a_def_that_never_returns_keeps_neither_the_stop_nor_the_process(
    service: ServiceMaker, caplog: pytest.LogCaptureFixture
) -> None:
    source = """
release = threading.Event()

@app.every("5ms")
def hangs() -> None:
    events.append(threading.current_thread())
    release.wait(60)
"""
    module = service(SOURCE + source, "rocketbox.shutdown.timeout: 100ms\n")
    try:
        async with module.app:
            await until(lambda: len(module.events) == 2)
        assert module.events[1].daemon
        assert "still running after 0.075 s, and cancelled: scheduled function hangs" in caplog.text
    finally:
        module.release.set()


def test_decorators_written_wrong_say_what_to_write() -> None:
    app = RocketBox("desk")
    with pytest.raises(TypeError, match=r"a condition is written @app\.on_startup\(when=\.\.\.\)"):
        app.on_startup(on_profile("demo"))  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"when= takes a condition such as on_profile"):
        app.background_task(when="demo")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r'write @app\.every\("5m"\)'):

        @app.every  # type: ignore[arg-type]
        def refresh() -> None: ...


def test_decorators_return_the_function_as_it_was() -> None:
    app = RocketBox("desk")

    async def work() -> None: ...

    def tick() -> None: ...

    assert app.on_startup(work) is work
    assert app.on_startup(when=on_profile("demo"))(work) is work
    assert app.on_shutdown(work) is work
    assert app.background_task(work) is work
    assert app.every(timedelta(minutes=5))(tick) is tick
    assert app.every("5m")(functools.partial(tick)) is not tick


@pytest.mark.anyio
async def test_an_error_that_cannot_be_written_out_is_told_with_its_hook(service: ServiceMaker) -> None:
    source = """
class Wordless(Exception):
    def __str__(self):
        raise ValueError("the session is closed")

@app.on_startup
async def load() -> None:
    raise Wordless
"""
    module = service(SOURCE + source, "")
    with pytest.raises(
        ConfigurationError, match="startup hook load failed: Wordless: <Wordless that cannot be"
    ) as told:
        async with module.app:
            pass
    assert told.value.findings[0].where is not None


def test_a_condition_that_returns_no_verdict_is_named(service: ServiceMaker) -> None:
    source = """
class Always:
    def evaluate(self, context):
        return True

@app.on_startup(when=Always())
def load() -> None: ...
"""
    (finding,) = service(SOURCE + source, "").app.look().findings
    assert finding.what == (
        "the condition of startup hook load failed: TypeError: its evaluate() returned bool, and must return a Verdict"
    )
