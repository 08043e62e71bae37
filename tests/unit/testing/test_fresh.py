"""One harness around several tests: ``fresh()`` lets the next one begin as in a new one, while the service runs on."""

from __future__ import annotations

import time
from types import ModuleType

import pytest

from rocketbox.testing import Harness, HarnessError, Outcome
from tests.support.framework.services import ServiceMaker

pytestmark = pytest.mark.anyio

SOURCE = """
import anyio
from rocketbox import ConsumeMode, Reject, RocketBox, RocketMQTemplate, bean, rocketmq_listener, send_to

app = RocketBox("shop", scan=[__name__])

class Till:
    def __init__(self):
        self.sold = []
        self.fails = 0
    def sell(self, item):
        if self.fails:
            self.fails -= 1
            raise ConnectionError("the till is closed")
        self.sold.append(item)

@bean
def till() -> Till:
    return Till()

@rocketmq_listener(topic="orders", consumer_group="shop")
@send_to("receipts")
async def sell(item: str, till: Till) -> str:
    if item == "air":
        raise Reject("nobody sells air")
    till.sell(item)
    return f"sold {item}"

steps = []

@rocketmq_listener(topic="steps", consumer_group="walker", consume_mode=ConsumeMode.ORDERLY)
def step(text: str) -> None:
    steps.append(text)
    if text == "stumbles":
        raise ConnectionError("stumbled")

@rocketmq_listener(topic="all", consumer_group="news", message_model="BROADCASTING")
async def read(text: str, till: Till) -> None:
    till.sold.append(text)

@rocketmq_listener(topic="asks", consumer_group="asks")
async def ask(text: str, template: RocketMQTemplate) -> None:
    await app.release.wait()

@rocketmq_listener(topic="counts", consumer_group="counts", invalid_limit=3)
async def count(counted: dict) -> None: ...

@rocketmq_listener(topic="turns", consumer_group="turns", invalid_limit=3, consume_mode=ConsumeMode.ORDERLY)
async def turn(counted: dict) -> None: ...

@app.on_startup
async def begin(till: Till) -> None:
    till.sold.append("begun")
"""

SETTINGS = "rocketmq: {name-server: ns1:9876, producer: {group: shop}}"


@pytest.fixture
def shop(service: ServiceMaker) -> ModuleType:
    return service(SOURCE, SETTINGS)


async def use_up(harness: Harness, shop: ModuleType) -> None:
    """Leave something of every kind behind."""
    harness.override(shop.Till, closed := shop.Till())
    closed.fails = 100
    await harness.send("orders", "cup")  # waits for its retry
    await harness.send("orders", "air")
    await harness.send("orders", "late", delay="2h")
    await harness.send("steps", "stumbles", hash_key="way")
    await harness.send("steps", "behind", hash_key="way")
    await harness.drain(failures="keep")
    await harness.advance("30s", failures="keep")
    harness.freeze("news")
    await harness.send("all", "unread")
    await harness.send("orders", "last")
    await harness.send("receipts", "nobody takes it")


async def test_nothing_of_before_is_seen_or_comes(shop: ModuleType) -> None:
    async with Harness(shop.app, failures="keep") as harness:
        await use_up(harness, shop)
        now = harness.now
        await harness.fresh()
        assert harness.log == "nothing has happened"
        for topic in ("orders", "receipts", "steps", "all"):
            assert list(harness.sent(topic)) == []
        for handler in ("sell", "step", "read"):
            assert harness.calls(handler) == []
        for group in ("shop", "walker", "news"):
            assert harness.dead_letters(group) == []
            assert harness.offsets(group) == []
        shop.steps.clear()
        await harness.advance("150m")
        assert harness.log == "nothing has happened"
        assert shop.steps == []
        assert harness.app.get(shop.Till).sold == ["begun"]
        assert (harness.now - now).total_seconds() == 150 * 60


async def test_the_service_goes_on_as_a_new_one(shop: ModuleType) -> None:
    async with Harness(shop.app, failures="keep") as harness:
        for _ in range(3):
            await use_up(harness, shop)
            await harness.fresh()
            till = harness.app.get(shop.Till)
            till.sold.clear()
            till.fails = 1
            shop.steps.clear()
            await harness.send("orders", "lamp")
            for text in ("one", "two"):
                await harness.send("steps", text, hash_key="way")
            await harness.send("all", "read")
            await harness.drain(failures="keep")
            assert [sent.at for sent in harness.sent("orders")] == [0]
            assert shop.steps == ["one", "two"]
            assert till.sold == ["read"]
            await harness.advance("10s")
            assert till.sold == ["read", "lamp"]
            assert harness.sent("receipts").one(str) == "sold lamp"
            assert [(call.at, call.outcome) for call in harness.calls("sell")] == [
                (0, Outcome.COMES_BACK), (pytest.approx(10, abs=0.01), Outcome.CONSUMED),
            ]  # fmt: skip
            assert [(each.topic, each.consumed, each.end) for each in harness.offsets("walker")] == [("steps", 2, 2)]
            assert {each.lag for each in harness.offsets("shop")} == {0}
            await harness.send("orders", "air")
            await harness.drain()
            assert [str(letter.why) for letter in harness.dead_letters("shop")] == ["nobody sells air"]


async def test_what_was_changed_is_undone_once(shop: ModuleType) -> None:
    async with Harness(shop.app) as harness:
        first, second = shop.Till(), shop.Till()
        with harness.override(shop.Till, first), harness.freeze("shop"):
            harness.override(shop.Till, second)
            await harness.fresh()
            assert harness.app.get(shop.Till) not in (first, second)
            assert not harness.app.listeners["shop"].consumer.paused
            harness.override(shop.Till, second)
        assert harness.app.get(shop.Till) is second, "the block's own is gone, and takes no other with it"


async def test_a_handler_that_is_not_done_is_told(shop: ModuleType) -> None:
    async with Harness(shop.app) as harness:
        clock = harness.app.assembly.service.clock

        class Release:
            async def wait(self) -> None:
                await clock.sleep(5)

        shop.app.release = Release()
        await harness.send("asks", "one")
        with pytest.raises(HarnessError, match=r"ask \(service_\d+\.py:\d+\) has not ended.*drain\(\) first"):
            await harness.fresh()
        await harness.drain()
        await harness.fresh()
        assert harness.calls("ask") == []


async def test_it_takes_milliseconds(shop: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Harness(shop.app) as harness:
        took: list[float] = []
        for _ in range(10):
            await harness.send("orders", "lamp")
            await harness.drain()
            began = time.thread_time()
            await harness.fresh()
            took.append(time.thread_time() - began)
    assert min(took) < 0.005


def test_in_a_plain_function(shop: ModuleType) -> None:
    with Harness(shop.app, failures="keep") as harness:
        for _ in range(2):
            harness.blocking.send("orders", "air")
            harness.blocking.drain()
            assert len(harness.dead_letters("shop")) == 1
            harness.blocking.fresh()


async def test_faults_are_over_in_the_next_test(shop: ModuleType) -> None:
    async with Harness(shop.app, failures="keep") as harness:
        for fault in ("silent", "stopped", "full", "mended"):
            harness.handler("sell").fails(100)
            await harness.send("orders", "cup")
            await harness.drain()
            if fault == "stopped":
                await harness.broker.stop()
            elif fault == "full":
                harness.disk.full()
            else:
                harness.broker.silence()
            await harness.advance("30s")
            if fault == "mended":
                harness.broker.resume()
            await harness.fresh()
            assert harness.log == "nothing has happened"
            await harness.send("orders", "lamp")
            await harness.drain()
            assert [call.payload for call in harness.calls("sell")] == ["lamp"], fault
            assert harness.sent("receipts").one(str) == "sold lamp"


async def test_faults_that_a_kept_broker_or_disk_makes_are_over_in_the_next_test(shop: ModuleType) -> None:
    async with Harness(shop.app) as harness:
        broker, disk = harness.broker, harness.disk  # as a fixture around several tests keeps them
        for begin in (disk.full, broker.silence):
            await harness.fresh()
            begin()
            await harness.fresh()
            await harness.send("orders", "lamp")
            await harness.drain()
            assert harness.sent("receipts").one(str) == "sold lamp"
        async with broker.stopped():
            await harness.fresh()
        await harness.send("orders", "cup")
        await harness.drain()


TRANSACTIONS = """
from rocketbox import LocalTransactionState, RocketBox, rocketmq_listener, rocketmq_transaction_listener

app = RocketBox("shop", scan=[__name__])

@rocketmq_transaction_listener(topic="orders")
def find(item: str) -> LocalTransactionState:
    return LocalTransactionState.COMMIT

@rocketmq_listener(topic="orders", consumer_group="shop")
async def sell(item: str) -> None: ...
"""


async def test_a_transaction_that_is_open_is_never_asked_about(service: ServiceMaker) -> None:
    shop = service(TRANSACTIONS, SETTINGS)
    async with Harness(shop.app) as harness:
        async with harness.template.transaction("orders", "cup") as transaction:
            transaction.unknown()
        await harness.fresh()
        await harness.broker.restart()
        await harness.advance("5m")
        assert harness.calls("sell") == []
        async with harness.template.transaction("orders", "lamp") as transaction:
            transaction.unknown()
        (call,) = await harness.consumed("shop")
        assert call.payload == "lamp"


async def test_what_could_not_be_read_counts_from_0_and_a_group_that_it_has_paused_goes_on(shop: ModuleType) -> None:
    async with Harness(shop.app) as harness:
        for unreadable in (2, 2, 9):  # the group is paused at more than 3 a minute
            for _ in range(unreadable):
                await harness.send("counts", "no count")
            await harness.drain()
            assert ("group counts is paused" in harness.log) == (unreadable > 3)
            await harness.fresh()
        await harness.send("counts", {"n": 1})
        await harness.drain()
        assert [call.payload for call in harness.calls("count") if call.outcome is Outcome.CONSUMED] == [{"n": 1}]
        await harness.advance("1h")
        assert harness.dead_letters("counts") == [], "those that it had held are passed over"


PAUSED_BY_THE_LIMIT = pytest.mark.parametrize(("topic", "handler"), [("counts", "count"), ("turns", "turn")])


@PAUSED_BY_THE_LIMIT
async def test_what_the_limit_holds_is_not_waited_for(shop: ModuleType, topic: str, handler: str) -> None:
    async with Harness(shop.app) as harness:
        await harness.send("orders", "later", delay="10m")
        for _ in range(9):
            await harness.send(topic, "no count")
        before = harness.now
        await harness.drain()
        assert f"group {topic} is paused" in harness.log
        assert Outcome.RUNNING in [call.outcome for call in harness.calls(handler)]
        assert len(harness.dead_letters(topic)) == 3
        assert harness.calls("sell") == []
        assert harness.now == before
        harness.app.listeners[topic].resume()
        await harness.drain()
        assert len(harness.dead_letters(topic)) == 6, "and then it is paused again"
        assert harness.now == before


@PAUSED_BY_THE_LIMIT
@pytest.mark.parametrize("drained", [True, False])
async def test_what_the_limit_holds_is_settled_and_not_seen_by_the_next_test(
    shop: ModuleType, topic: str, handler: str, drained: bool
) -> None:
    async with Harness(shop.app) as harness:
        for _ in range(2):
            for number in range(30):
                await harness.send(topic, "no count", hash_key=str(number))
            if drained:
                await harness.drain()
            assert f"group {topic} is paused" in harness.log
            before = harness.now
            await harness.fresh()
            assert (harness.now, harness.log) == (before, "nothing has happened")
        assert harness._seen.under_way.running == []
        await harness.send(topic, {"n": 1}, hash_key="1")
        await harness.drain()
        assert harness.now == before
        await harness.advance("1h")
        assert [call.payload for call in harness.calls(handler)] == [{"n": 1}]
        assert harness.dead_letters(topic) == []


async def test_a_group_that_the_service_itself_has_paused_stays_so(shop: ModuleType) -> None:
    async with Harness(shop.app) as harness:
        container = harness.app.listeners["counts"]
        for _ in range(9):
            await harness.send("counts", "no count")
        await harness.drain()
        container.pause()
        await harness.fresh()
        assert container.state().reason == "paused by the application"
        container.resume()
        await harness.send("counts", {"n": 1})
        await harness.drain()
        assert [call.payload for call in harness.calls("count") if call.outcome is Outcome.CONSUMED] == [{"n": 1}]


async def test_the_log_says_that_a_group_is_paused_why_and_what_to_do(shop: ModuleType) -> None:
    async with Harness(shop.app) as harness:
        for _ in range(9):
            await harness.send("counts", "no count")
        await harness.drain()
        told = [line for line in harness.log.splitlines() if "paused" in line]
        assert len(told) == 1
        assert "group counts is paused: more than 3 payloads a minute could not be read (invalid-limit)" in told[0]
        assert "app.listeners['counts'].resume()" in told[0]
