"""What takes real time in the client, while virtual time stands still: its own threads, middleware around sends.

Time passes where one send waits for another that waits for time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from rocketbox.storage.file_system import LockHandle
from rocketbox.storage.memory_storage import MemoryStorage
from rocketbox.testing import Harness
from tests.support.framework.services import ServiceMaker

pytestmark = pytest.mark.anyio

SOURCE = """
from rocketbox import MessageModel, RocketBox, rocketmq_listener

app = RocketBox("news", scan=[__name__])
ticks = []

@rocketmq_listener(topic="news", consumer_group="news", message_model=MessageModel.BROADCASTING)
async def read(text: str) -> None: ...

@app.every("1s")
async def tick() -> None:
    ticks.append(1)
"""

SETTINGS = """
rocketmq:
  name-server: embedded
  producer: {group: news}
"""


class SlowStorage(MemoryStorage):
    """A disk that takes real time; ``about_to`` is told of it before and after."""

    about_to: Callable[[], object] = staticmethod(lambda: None)

    def lock(self, path: str) -> LockHandle:
        self._take_time()
        return super().lock(path)

    def sync_directory(self, path: str) -> None:
        self._take_time()
        super().sync_directory(path)

    def _take_time(self) -> None:
        self.about_to()
        time.sleep(0.02)
        self.about_to()


async def test_no_time_passes_under_the_offsets_that_a_broadcasting_group_keeps_itself(
    service: ServiceMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketbox.testing.memory_world.MemoryStorage", SlowStorage)
    news = service(SOURCE, SETTINGS)
    began = datetime(2026, 1, 2, 8, tzinfo=UTC)
    async with Harness(news.app, now=began) as harness:
        assert (harness.now, news.ticks) == (began, [])
        times: list[datetime] = []
        monkeypatch.setattr(SlowStorage, "about_to", staticmethod(lambda: times.append(harness.now)))
        await harness.send("news", "one")
        await harness.drain()
        assert harness.calls(news.read)[0].at == 0
        await harness.advance("2m")
    assert times
    assert times[::2] == times[1::2]


AROUND_SENDS = """
import asyncio, time
from rocketbox import RocketBox, RocketMQTemplate, bean, rocketmq_listener
from rocketbox.client import SendMiddleware

app = RocketBox("news", scan=[__name__])
ticks, waits = [], []

@bean
def signed() -> SendMiddleware:
    async def sign(context, call_next):
        await (asyncio.sleep(0.02) if waits[0] == "in the loop" else asyncio.to_thread(time.sleep, 0.02))
        return await call_next(context)
    return sign

@rocketmq_listener(topic="news", consumer_group="news")
async def read(text: str) -> None: ...

@app.on_startup
async def first(template: RocketMQTemplate) -> None:
    await template.send("news", "first")

@app.every("1s")
async def tick(template: RocketMQTemplate) -> None:
    ticks.append(1)
    await template.send("news", "tick")
"""


@pytest.mark.parametrize("where", ["in the loop", "in a thread"])
async def test_no_time_passes_under_the_middleware_of_a_send(service: ServiceMaker, where: str) -> None:
    news = service(AROUND_SENDS, SETTINGS)
    news.waits.append(where)
    async with Harness(news.app) as harness:
        await harness.send("news", "second")
        await harness.drain()
        assert [(call.arguments, call.at) for call in harness.calls(news.read)] == [(("first",), 0), (("second",), 0)]
        assert news.ticks == []
        await harness.advance("3s")
        assert [sent.at for sent in harness.sent("news")] == [0, 0, 1, 2, 3]


ONE_AT_A_TIME = """
import asyncio
from rocketbox import RocketBox, RocketMQTemplate, bean, rocketmq_listener
from rocketbox.client import SendMiddleware

app = RocketBox("news", scan=[__name__])

@bean
def one_at_a_time() -> SendMiddleware:
    turn = asyncio.Semaphore(1)
    async def send(context, call_next):
        async with turn:
            return await call_next(context)
    return send

@rocketmq_listener(topic="news", consumer_group="news")
async def read(text: str, template: RocketMQTemplate) -> None:
    await template.send("archive", text)

@app.every("1m")
async def first(template: RocketMQTemplate) -> None:
    await template.send("archive", "first")

@app.every("1m")
async def second(template: RocketMQTemplate) -> None:
    await template.send("archive", "second")
"""


async def test_time_passes_for_sends_that_wait_for_each_other(service: ServiceMaker) -> None:
    """Each waits a second for others to go with, and none comes, for each waits for the one before."""
    together = {"rocketmq.producer.auto-batch": True, "rocketmq.producer.batch-max-delay": "1s"}
    news = service(ONE_AT_A_TIME, SETTINGS)
    async with Harness(news.app, settings=together, patience=1) as harness:
        began = harness.now
        await asyncio.gather(*(harness.send("news", text) for text in ("a", "b")))
        await harness.drain()
        assert (harness.now - began).total_seconds() == 4
        assert sorted(harness.sent("archive").all(str)) == ["a", "b"]
        await harness.advance("1m")
        assert sorted(harness.sent("archive").all(str)) == ["a", "b", "first", "second"]
