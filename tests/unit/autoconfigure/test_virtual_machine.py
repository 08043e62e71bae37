"""A whole service on a machine of its own: virtual time, a network and a disk in memory, the real servers in its loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

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
from datetime import timedelta
from rocketbox import MessageExt, RetryLater, RocketBox, RocketMQTemplate, bean, rocketmq_listener, send_to

app = RocketBox("flight-desk", scan=[__name__])
handled = []

@rocketmq_listener(topic="departures", consumer_group="desk", consume_from_where="first-offset")
@send_to("alerts")
async def on_departure(text: str, message: MessageExt) -> str | None:
    handled.append((text, message.reconsume_times, app.now()))
    if message.reconsume_times == 0:
        raise RetryLater(timedelta(seconds=10))
    if message.reconsume_times == 1:
        raise RetryLater(timedelta(hours=2))
    return f"{text} is late"

@rocketmq_listener(topic="alerts", consumer_group="pager", consume_from_where="first-offset")
def on_alert(text: str) -> None:
    handled.append((text, None, app.now()))
    app.shutdown()
"""

SETTINGS = {
    "rocketmq.name-server": "embedded",
    "rocketmq.producer.group": "desk",
    "rocketbox.embedded": {name.replace("_", "-"): value for name, value in SMALL_FILES.items()},
}


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceMaker]:
    yield from service_maker(tmp_path, monkeypatch)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_retries_of_ten_seconds_and_of_two_hours_take_no_time(
    anyio_backend: str, service: ServiceMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app: RocketBox = (module := service(SOURCE, "")).app
    clock, disk = VirtualClock(settle=idle), MemoryStorage()
    monkeypatch.setattr(app, "now", clock.monotonic, raising=False)
    machine = Machine.in_one_loop(clock=clock, network=MemoryNetwork(), storage=disk)
    before = set(threading.enumerate())

    async def use() -> None:
        async with app.launched(Launch(settings=SETTINGS, machine=machine)):
            assert set(threading.enumerate()) == before
            await app.template.send("departures", "UA1")
            await app.wait_for_shutdown()

    since = time.monotonic()
    with blocking_in_loop(asyncio.get_running_loop().call_soon):
        await clock.run(use)
    took = time.monotonic() - since
    first, second, third, alert = module.handled
    print(module.handled, took)
    assert (first[:2], second[:2], third[:2], alert[0]) == (("UA1", 0), ("UA1", 1), ("UA1", 2), "UA1 is late")
    assert (round(second[2] - first[2]), round(third[2] - second[2])) == (10, 7200)
    assert list(tmp_path.glob("**/store")) == []
