"""A service on a machine of its own: virtual time, a network and a disk in memory, the real servers in its own loop."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from rocketbox.application import RocketBox
from rocketbox.autoconfigure.loading import Launch
from rocketbox.autoconfigure.machine import Machine
from rocketbox.blocking import blocking_in_loop
from rocketbox.remoting.network import MemoryNetwork
from rocketbox.storage.memory_storage import MemoryStorage
from tests.clocks import VirtualClock, idle
from tests.integration.wire import SMALL_FILES
from tests.services import ServiceMaker, service_maker

SOURCE = """
from rocketbox import MessageExt, RetryLater, RocketBox, rocketmq_listener, send_to

app = RocketBox("flight-desk", scan=[__name__])
tries, alerts = [], []
delay = now = None

@rocketmq_listener(topic="departures", consumer_group="desk", consume_from_where="first-offset")
@send_to("alerts")
async def on_departure(text: str, message: MessageExt) -> str | None:
    tries.append(now())
    if message.reconsume_times == 0:
        raise RetryLater(delay)
    return f"{text} is late"

@rocketmq_listener(topic="alerts", consumer_group="pager", consume_from_where="first-offset")
def on_alert(text: str) -> None:
    alerts.append(text)
    if len(alerts) == 2:
        app.shutdown()
"""

SETTINGS = {
    "rocketmq.name-server": "embedded",
    "rocketmq.producer.group": "desk",
    "rocketbox.embedded": {name.replace("_", "-"): value for name, value in SMALL_FILES.items()},
}


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceMaker]:
    yield from service_maker(tmp_path, monkeypatch, runs=False)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("anyio_backend", "delay"),
    [("asyncio", timedelta(seconds=10)), ("asyncio", timedelta(hours=2)), ("trio", timedelta(seconds=10))],
)
async def test_a_retry_comes_after_its_delay_on_virtual_time(
    anyio_backend: str, delay: timedelta, service: ServiceMaker, tmp_path: Path
) -> None:
    module = service(SOURCE, "")
    app: RocketBox = module.app
    clock = VirtualClock(settle=idle if anyio_backend == "asyncio" else anyio.wait_all_tasks_blocked)
    vars(module).update(delay=delay, now=clock.monotonic)
    before = set(threading.enumerate())

    async def use() -> None:
        assert set(threading.enumerate()) == before
        await app.template.send("alerts", "none")  # the topic is there: nobody asks for it until then
        await app.template.send("departures", "UA1545")
        await app.wait_for_shutdown()

    await run_on(clock, app, use)
    assert module.alerts == ["none", "UA1545 is late"]
    first, second = module.tries
    assert second - first == pytest.approx(delay.total_seconds(), abs=1.0)
    assert not await anyio.Path(tmp_path, ".rocketbox").exists()


OVERRIDDEN = """
from rocketbox import RocketBox, bean, rocketmq_listener, send_to

app = RocketBox("flight-desk", scan=[__name__])
handled = []

class Pager:
    name = "own"

class Desk:
    def __init__(self, name="own"):
        self.name = name

    @rocketmq_listener(topic="departures", consumer_group="desk", consume_from_where="first-offset")
    @send_to("alerts")
    async def on_departure(self, text: str, pager: Pager) -> str:
        handled.append((text, self.name, pager.name))
        return text

@bean
def pager() -> Pager:
    return Pager()

@bean
def desk() -> Desk:
    return Desk()
"""


class RecordingTemplate:
    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []

    async def send(self, destination: str, payload: Any) -> None:
        self.sent.append((destination, payload))


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_override_while_it_runs_reaches_handlers_their_owners_and_what_they_send_on(
    anyio_backend: str, service: ServiceMaker
) -> None:
    module = service(OVERRIDDEN, "")
    app: RocketBox = module.app
    clock = VirtualClock(settle=idle)
    template = RecordingTemplate()
    pager = module.Pager()
    pager.name = "of all starts"

    async def handled(times: int) -> None:
        while len(module.handled) < times:
            await clock.sleep(1)

    async def use() -> None:
        own = app.template
        await own.send("departures", "first")
        await handled(1)
        with app.container.desk.override(module.Desk("fake")), app.container.rocketmq_template.override(template):
            await own.send("departures", "second")
            await handled(2)
        await own.send("departures", "third")
        await handled(3)

    with app.container.pager.override(pager):
        await run_on(clock, app, use)
    assert module.handled == [
        ("first", "own", "of all starts"),
        ("second", "fake", "of all starts"),
        ("third", "own", "of all starts"),
    ]
    assert template.sent == [("alerts", "second")]


async def run_on(clock: VirtualClock, app: RocketBox, use: Callable[[], Awaitable[None]]) -> None:
    """Start the application on virtual time, all in this loop; what blocks in it, too."""
    machine = Machine.in_one_loop(clock=clock, network=MemoryNetwork(), storage=MemoryStorage())

    async def run() -> None:
        async with app.launched(Launch(settings=SETTINGS, machine=machine)):
            await use()

    async with anyio.create_task_group() as tasks:

        async def call(function: Callable[[], object]) -> None:
            function()

        def later(function: Callable[[], object]) -> None:
            tasks.start_soon(call, function)

        with blocking_in_loop(later):
            await clock.run(run)
