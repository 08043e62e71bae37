"""What code of the user's raises that is no Exception: it ends that code, and no more, and is told with its name."""

from __future__ import annotations

import asyncio

import pytest

from rocketbox.errors import ConfigurationError
from tests.support.framework.flight_desk import FLIGHT_DESK
from tests.support.framework.services import ServiceMaker
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

SOURCE = f"""{FLIGHT_DESK}
async def stop_polling() -> None:
    task = asyncio.ensure_future(asyncio.sleep(1e9))
    await asyncio.sleep(0)
    task.cancel()
    await task

class Gone(BaseException): ...
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # whose tasks can be cancelled one by one


async def test_a_startup_hook_that_awaits_a_task_of_its_own_that_it_cancelled_fails_by_name(
    service: ServiceMaker,
) -> None:
    module = service(SOURCE + "app.on_startup(stop_polling)\n", "")
    with pytest.raises(ConfigurationError, match="startup hook stop_polling failed: RuntimeError: it was cancelled"):
        async with module.app:
            pass
    assert module.events == ["desk opens", "desk closes"]


async def test_a_task_of_the_host_that_is_cancelled_at_the_start_is_no_failure_of_a_hook(service: ServiceMaker) -> None:
    source = """
@app.on_startup
async def wait() -> None:
    events.append("waits")
    await anyio.sleep_forever()
"""
    module = service(SOURCE + source, "")

    async def host() -> None:
        async with module.app:
            pass

    task = asyncio.ensure_future(host())
    await until(lambda: "waits" in module.events)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert module.events[-1] == "desk closes"


@pytest.mark.parametrize("last", ["await stop_polling()", "raise SystemExit(7)", "raise Gone('away')"])
async def test_a_shutdown_hook_keeps_no_other_one_from_running_whatever_it_raises(
    service: ServiceMaker, last: str, caplog: pytest.LogCaptureFixture
) -> None:
    source = f"""
@app.on_shutdown
async def first() -> None:
    events.append("first")

@app.on_shutdown
async def last() -> None:
    {last}
"""
    module = service(SOURCE + source, "")
    async with module.app:
        pass
    assert module.events == ["desk opens", "first", "desk closes"]
    assert "shutdown hook last" in caplog.text


async def test_what_is_no_exception_ends_no_application_from_a_background_task(service: ServiceMaker) -> None:
    source = """
@app.background_task
async def poll() -> None:
    raise Gone("away")
"""
    module = service(SOURCE + source, "")
    async with module.app:
        await until(lambda: module.app.not_ready_because)
        (reason,) = module.app.not_ready_because
    assert reason.startswith("background task poll")
    assert "it raised Gone('away'), which is no Exception" in reason


async def test_a_bean_that_awaits_a_task_that_it_cancelled_fails_by_name(service: ServiceMaker) -> None:
    source = """
class Feed:
    async def aclose(self) -> None:
        await stop_polling()

@bean(on_profile("closes"))
def feed(desk: Desk) -> Feed:
    return Feed()

@bean(on_profile("starts"))
async def early(desk: Desk) -> Feed:
    await stop_polling()
    return Feed()
"""
    module = service(SOURCE + source, "")
    with pytest.raises(ConfigurationError, match="bean early failed to start: RuntimeError: it was cancelled"):
        async with module.app.started(profiles=["starts"]):
            pass
    with pytest.raises(RuntimeError, match="it was cancelled from within"):
        async with module.app.started(profiles=["closes"]):
            pass
    assert module.events == ["desk opens", "desk closes"] * 2


@pytest.mark.parametrize("level", ["INFO", "DEBUG"])
def test_a_stop_of_the_background_that_fails_is_told_with_bean_place_and_what_to_do(
    service: ServiceMaker, caplog: pytest.LogCaptureFixture, level: str
) -> None:
    source = """
class Feed:
    def close(self) -> None:
        raise ValueError("cannot reach u:hunter2hunter2")

@bean
def feed() -> Feed:
    return Feed()
"""
    module = service(SOURCE + source, "desk.password: hunter2hunter2\n")
    caplog.set_level(level)
    background = module.app.background().start()
    with pytest.raises(ValueError, match="cannot reach"):
        background.stop()
    (told,) = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert told == (
        "the background of flight-desk has failed, and runs no more\n\n"
        "APPLICATION STOPPED BECAUSE\n\n"
        "1. bean feed failed when it was closed: ValueError: cannot reach u:******\n"
        f"   where: {module.__name__}.py:34, raised at {module.__name__}.py:32\n"
        "   fix:   logger rocketbox.background shows the traceback at level debug\n"
    )
    assert ("Traceback" in caplog.text) is (level == "DEBUG")
    assert "hunter2" not in caplog.text
