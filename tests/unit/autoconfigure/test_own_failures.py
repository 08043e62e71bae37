"""What code of the user's raises that is no Exception: it ends that code, and no more, and is told with its name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketbox.errors import ConfigurationError
from tests.services import ServiceMaker, service_maker
from tests.unit.autoconfigure.flight_desk import FLIGHT_DESK
from tests.waiting import until

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


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceMaker]:
    yield from service_maker(tmp_path, monkeypatch, runs=False)


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
