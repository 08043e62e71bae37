"""A service in the harness: what it does with messages, retries, order and dead letters, and what the harness tells."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import pytest
from pydantic import BaseModel

from rocketbox.errors import ConfigurationError, HandlerError, NotStartedError, Reject
from rocketbox.message import DELAY_LEVEL_SECONDS
from rocketbox.template import PayloadError
from rocketbox.testing import Harness, HarnessError, Outcome, pace
from tests.support.framework.services import ServiceMaker

pytestmark = pytest.mark.anyio

SOURCE = """
from datetime import timedelta
from pydantic import BaseModel
from rocketbox import (
    ConsumeMode, MessageExt, Reject, RetryLater, RocketBox, RocketMQTemplate, bean, configuration_properties,
    rocketmq_listener, send_to,
)

app = RocketBox("payments", scan=[__name__])

class Payment(BaseModel):
    number: int
    amount: float = 1.0

class Receipt(BaseModel):
    number: int

class Bank:
    def __init__(self):
        self.failures = []
        self.charged = []
    async def charge(self, payment):
        if self.failures:
            raise self.failures.pop(0)
        self.charged.append(payment.number)

@configuration_properties("payments")
class PaymentProperties(BaseModel):
    limit: float = 100.0

@bean
def bank() -> Bank:
    return Bank()

@rocketmq_listener(topic="payments", consumer_group="payer")
@send_to("receipts:paid")
async def pay(payment: Payment, bank: Bank, properties: PaymentProperties) -> Receipt:
    if payment.amount > properties.limit:
        raise Reject(f"{payment.amount} is too much")
    await bank.charge(payment)
    return Receipt(number=payment.number)

filed = []

@rocketmq_listener(topic="receipts", consumer_group="archive", max_reconsume_times=1)
def file_receipt(receipt: Receipt, message: MessageExt) -> None:
    import threading
    filed.append((receipt.number, message.tag, threading.current_thread().name))

ordered = []

@rocketmq_listener(topic="steps", consumer_group="walker", consume_mode=ConsumeMode.ORDERLY)
async def step(text: str) -> None:
    number = int(text)
    ordered.append(number)
    if number == 2 and ordered.count(2) < 3:
        raise ConnectionError("stumbled")

batches = []

@rocketmq_listener(topic="rows", consumer_group="rows", consume_message_batch_max_size=10)
async def store(rows: list[str]) -> None:
    batches.append(rows)

started = []

@app.on_startup
async def begin(template: RocketMQTemplate) -> None:
    started.append("startup")
    await template.send("payments", Payment(number=0))

@app.every("10m")
async def tick() -> None:
    started.append("tick")
"""

SETTINGS = """
rocketmq:
  name-server: ns1.example:9876
  producer: {group: payments}
"""


class Receipt(BaseModel):
    number: int


@pytest.fixture
def payments(service: ServiceMaker) -> ModuleType:
    return service(SOURCE, SETTINGS)


@pytest.fixture
def harness_of(payments: ModuleType) -> Callable[..., Harness]:
    def make(**options: Any) -> Harness:
        return Harness(payments.app, **{"hooks": False, **options})

    return make


async def test_a_message_is_handled_and_what_it_returns_is_sent_on(
    payments: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    async with harness_of() as harness:
        await harness.send("payments", payments.Payment(number=7), keys="p7", tag="card", headers={"airport": "JFK"})
        await harness.drain()
        assert harness.sent("receipts").one(Receipt) == Receipt(number=7)
        (receipt,) = harness.sent("receipts")
        assert (receipt.tag, receipt.keys) == ("paid", ())
        (payment,) = harness.sent("payments")
        assert (payment.tag, payment.keys, payment.headers["airport"]) == ("card", ("p7",), "JFK")
        assert [(call.payload.number, call.attempt, call.outcome) for call in harness.calls(payments.pay)] == [
            (7, 1, Outcome.CONSUMED)
        ]
        assert [(number, tag) for number, tag, _ in payments.filed] == [(7, "paid")]
        assert payments.filed[0][2].startswith("archive-"), "a def handler has a thread, as it has in production"


async def test_drain_moves_no_time(harness_of: Callable[..., Harness], payments: ModuleType) -> None:
    async with harness_of(now=datetime(2026, 1, 2, 8, tzinfo=UTC)) as harness:
        for number in range(20):
            await harness.send("payments", payments.Payment(number=number))
        await harness.drain()
        assert harness.now == datetime(2026, 1, 2, 8, tzinfo=UTC)
        assert len(harness.sent("receipts")) == 20
        await harness.advance("90s")
        assert harness.now == datetime(2026, 1, 2, 8, 1, 30, tzinfo=UTC)


async def test_drain_has_all_handled_however_much_it_is(
    harness_of: Callable[..., Harness], payments: ModuleType
) -> None:
    """A broker lets pulls pause among sends, once its answers have 256 KiB."""
    as_it_is = {"rocketmq.producer.compress-message-body-threshold": "4MB"}
    async with harness_of(settings=as_it_is) as harness:
        began = harness.now
        async with anyio.create_task_group() as sends:
            for _ in range(40):
                sends.start_soon(harness.send, "rows", "x" * 10_000)
        await harness.drain()
        assert sum(len(batch) for batch in payments.batches) == 40
        assert harness.now == began


async def test_what_a_handler_raises_is_raised_by_drain_once(
    payments: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    bank = payments.Bank()
    bank.failures = [ConnectionError("the bank is closed")]
    async with harness_of(beans={payments.Bank: bank}) as harness:
        await harness.send("payments", payments.Payment(number=1))
        with pytest.raises(ConnectionError, match="the bank is closed"):
            await harness.drain()
        await harness.drain()
        bank.failures = [ConnectionError("one"), OSError("two")]
        await harness.send("payments", payments.Payment(number=2))
        await harness.send("payments", payments.Payment(number=3))
        with pytest.raises(ExceptionGroup) as failed:
            await harness.drain()
        assert {str(each) for each in failed.value.exceptions} == {"one", "two"}


@pytest.mark.parametrize(
    "error", [pytest.fail.Exception("nobody is to be paid"), SystemExit(3), asyncio.CancelledError(), GeneratorExit()]
)
async def test_a_handler_that_ends_itself_has_failed_as_in_production(
    error: BaseException, payments: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    bank = payments.Bank()
    bank.failures = [error]
    async with harness_of(beans={payments.Bank: bank}) as harness:
        await harness.send("payments", payments.Payment(number=1))
        with pytest.raises(HandlerError) as failed:
            await harness.drain()
        assert failed.value.__cause__ is error
        assert [call.outcome for call in harness.calls("pay")] == [Outcome.COMES_BACK]
        await harness.consumed("payer")


async def test_a_failed_message_comes_back_after_its_delay(
    payments: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    bank = payments.Bank()
    bank.failures = [ConnectionError("closed")] * 2
    async with harness_of(beans={payments.Bank: bank}, failures="keep") as harness:
        await harness.send("payments", payments.Payment(number=1))
        await harness.drain()
        assert [call.outcome for call in harness.calls("pay")] == [Outcome.COMES_BACK]
        await harness.advance("9s")
        assert len(harness.calls("pay")) == 1
        await harness.advance("1s")
        assert len(harness.calls("pay")) == 2
        await harness.advance("30s")
        assert [(call.attempt, call.outcome) for call in harness.calls("pay")] == [
            (1, Outcome.COMES_BACK), (2, Outcome.COMES_BACK), (3, Outcome.CONSUMED),
        ]  # fmt: skip
        assert [call.at for call in harness.calls("pay")] == pytest.approx([0, 10, 40], abs=0.01)
        assert bank.charged == [1]


async def test_messages_come_at_their_time_to_the_millisecond_and_recalled_ones_do_not(
    payments: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    async with harness_of() as harness:
        await harness.send("payments", payments.Payment(number=1), delay="7s")
        at = harness.now + timedelta(milliseconds=9500)
        await harness.send("payments", payments.Payment(number=2), deliver_at=at)
        recalled = await harness.send("payments", payments.Payment(number=3), deliver_at=at)
        await harness.template.recall(recalled.recall_handle)
        await harness.drain()
        await harness.advance("6999ms")
        assert harness.calls("pay") == []
        await harness.advance("2ms")
        assert len(harness.calls("pay")) == 1
        await harness.advance("1h")
        assert [call.at for call in harness.calls("pay")] == pytest.approx([7, 9.5], abs=0.01)


async def test_consumed_lets_time_pass_until_it_is(payments: ModuleType, harness_of: Callable[..., Harness]) -> None:
    bank = payments.Bank()
    bank.failures = [ConnectionError("closed")] * 3
    async with harness_of(beans={payments.Bank: bank}) as harness:
        began = harness.now
        await harness.send("payments", payments.Payment(number=1))
        (call,) = await harness.consumed("payer")
        assert call.attempt == 4
        assert harness.now - began == timedelta(seconds=10 + 30 + 60)
        for nothing in (0, -1, "1", True):  # it would be there at once, and show nothing
            with pytest.raises(HarnessError, match=f"count={nothing!r}: write how many"):
                await harness.consumed("payer", nothing)  # type: ignore[arg-type]  # what a test may say


async def test_a_rejected_message_is_a_dead_letter_that_says_why(
    payments: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    async with harness_of(settings={"payments.limit": 10}) as harness:
        await harness.send("payments", payments.Payment(number=1, amount=50), keys="p1")
        await harness.drain()  # a signal is no failure
        (letter,) = harness.dead_letters("payer")
        assert letter.payload(payments.Payment).number == 1
        assert isinstance(letter.why, Reject)
        assert str(letter.why) == "50.0 is too much"
        assert letter.message.keys == ("p1",)
        await harness.send("payments", payments.Payment(number=2, amount=50))
        with pytest.raises(AssertionError, match=r"has consumed 0 messages(?s:.*)50\.0 is too much"):
            await harness.consumed("payer")


async def test_used_up_retries_end_in_a_dead_letter(payments: ModuleType, harness_of: Callable[..., Harness]) -> None:
    async with harness_of(failures="keep") as harness:
        await harness.send("receipts:paid", {"number": "none"})
        await harness.drain()
        (letter,) = harness.dead_letters("archive")
        assert "cannot be read" in str(letter.why)
        assert harness.calls("file_receipt")[0].arguments is None
    bank = payments.Bank()
    bank.failures = [ConnectionError("closed")] * 3
    settings = {"rocketmq.consumer.listeners.payer.max-reconsume-times": 2}
    async with harness_of(beans={payments.Bank: bank}, settings=settings, failures="keep") as harness:
        await harness.send("payments", payments.Payment(number=1))
        await harness.advance("5m")
        (letter,) = harness.dead_letters("payer")
        assert (letter.attempts, str(letter.why)) == (3, "closed")
        assert harness.calls("pay")[-1].outcome is Outcome.DEAD_LETTER


async def test_what_fails_in_a_broadcasting_group_is_lost_and_no_dead_letter(service: ServiceMaker) -> None:
    source = """
    from rocketbox import MessageModel, Reject, RocketBox, rocketmq_listener

    app = RocketBox("news", scan=[__name__])

    @rocketmq_listener(topic="news", consumer_group="news", message_model=MessageModel.BROADCASTING)
    async def read(text: str) -> None:
        if text == "rejected":
            raise Reject(text)
        if text == "fails":
            raise OSError(text)
    """
    news = service(source, SETTINGS)
    async with Harness(news.app, failures="keep") as harness:
        for text in ("fails", "rejected", "read"):
            await harness.send("news", text)
        await harness.advance("1h")
        outcomes = {call.arguments: call.outcome for call in harness.calls(news.read)}
        assert outcomes == {("fails",): Outcome.LOST, ("rejected",): Outcome.LOST, ("read",): Outcome.CONSUMED}
        assert len(harness.calls(news.read)) == 3
        assert harness.dead_letters("news") == []
        await harness.send("news", "fails")
        before = harness.now
        with pytest.raises(AssertionError, match="group news has consumed 1 messages, and not 2") as raised:
            await harness.consumed("news", 2)
        assert str(raised.value).endswith("read, attempt 1: lost (OSError: fails)")
        assert harness.now == before


async def test_handlers_that_are_methods_are_found_by_their_class_their_bean_and_their_name(
    service: ServiceMaker,
) -> None:
    source = """
    from rocketbox import RocketBox, bean, rocketmq_listener

    app = RocketBox("payments", scan=[__name__])

    class Desk:
        @rocketmq_listener(topic="payments", consumer_group="payer")
        def pay(self, text: str) -> None: ...

        @classmethod
        @rocketmq_listener(topic="payments", consumer_group="writer")
        def write(cls, text: str) -> None: ...

        @staticmethod
        @rocketmq_listener(topic="payments", consumer_group="reader")
        def read(text: str) -> None: ...

    @bean
    class FrontDesk(Desk): ...
    """
    module = service(source, SETTINGS)
    async with Harness(module.app) as harness:
        bean = harness.app.get(module.FrontDesk)
        failing = harness.handler(bean.write).fails(1)
        await harness.send("payments", "one")
        await harness.drain()
        assert failing.left == 0
        for name in ("pay", "write", "read"):
            expected = [Outcome.COMES_BACK if name == "write" else Outcome.CONSUMED]
            for owner in (module.Desk, module.FrontDesk, bean):
                assert [call.outcome for call in harness.calls(getattr(owner, name))] == expected
            assert [call.outcome for call in harness.calls(f"Desk.{name}")] == expected


async def test_middleware_of_the_service_is_around_its_handlers_and_sends(service: ServiceMaker) -> None:
    source = """
    from rocketbox import RocketBox, bean, rocketmq_listener, send_to
    from rocketbox.client import ConsumeMiddleware, SendMiddleware

    app = RocketBox("payments", scan=[__name__])
    seen = []

    @bean
    def outer() -> ConsumeMiddleware:
        async def note(context, call_next):
            seen.append(f"before {context.consumer_group}")
            try:
                return await call_next(context)
            finally:
                seen.append("after")
        return note

    @bean
    def stamp() -> SendMiddleware:
        async def stamp(context, call_next):
            for message in context.messages:
                message.properties["stamp"] = "ours"
            return await call_next(context)
        return stamp

    @rocketmq_listener(topic="payments", consumer_group="payer")
    @send_to("receipts")
    async def pay(text: str) -> str:
        seen.append(text)
        return text
    """
    module = service(source, SETTINGS)
    async with Harness(module.app) as harness:
        await harness.send("payments", "one")
        await harness.drain()
        assert module.seen == ["before payer", "one", "after"]
        (receipt,) = harness.sent("receipts")
        assert receipt.headers["stamp"] == "ours"


async def test_an_orderly_queue_waits_for_what_failed(payments: ModuleType, harness_of: Callable[..., Harness]) -> None:
    async with harness_of(failures="keep") as harness:
        for number in (1, 2, 3):
            await harness.send("steps", str(number), hash_key="way")
        await harness.drain()
        assert payments.ordered == [1, 2]
        await harness.advance("1s")
        assert payments.ordered == [1, 2, 2]
        await harness.advance("1s")
        assert payments.ordered == [1, 2, 2, 2, 3]
        assert [call.attempt for call in harness.calls(payments.step)] == [1, 1, 2, 3, 1]


FOLLOWED = """
import asyncio
from rocketbox import RocketBox, RocketMQTemplate, rocketmq_listener, send_to

app = RocketBox("followed", scan=[__name__])

@rocketmq_listener(topic="orders", consumer_group="orders")
async def order(text: str, template: RocketMQTemplate) -> None:
    for number in range(10):
        order.task = asyncio.get_running_loop().create_task(template.send("rows", f"{text} {number}"))

@rocketmq_listener(topic="rows", consumer_group="rows")
@send_to("stored")
async def row(text: str) -> str:
    return text
"""


async def test_what_follows_at_once_is_done_when_a_group_has_consumed_however_slow_the_machine_is(
    service: ServiceMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "LONGEST_LOOK", 0.0)
    shop = service(FOLLOWED, "rocketmq: {name-server: embedded, producer: {group: shop}}")
    async with Harness(shop.app) as harness:
        await harness.send("orders", "cup")
        await harness.consumed("orders")
        assert sorted(harness.sent("stored").all(str)) == [f"cup {number}" for number in range(10)]


async def test_without_a_limit_of_its_own_a_message_is_tried_again_16_times_at_apaches_times(
    payments: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    others = {f"rocketmq.consumer.listeners.{group}.enabled": False for group in ("archive", "walker", "rows")}
    async with harness_of(settings=others) as harness:
        failing = harness.handler("pay").fails(17)
        await harness.send("payments", payments.Payment(number=1))
        await harness.advance("5h")
        calls = harness.calls("pay")
        pauses = [later.at - call.at for call, later in pairwise(calls)]
        assert pauses == pytest.approx(DELAY_LEVEL_SECONDS[2:], abs=1)
        assert [call.attempt for call in calls] == list(range(1, 18))
        assert [call.outcome for call in calls] == [Outcome.COMES_BACK] * 16 + [Outcome.DEAD_LETTER]
        (letter,) = harness.dead_letters("payer")
        assert (letter.attempts, failing.left) == (17, 0)


async def test_an_orderly_queue_goes_on_behind_what_is_rejected(
    payments: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    async with harness_of() as harness:
        harness.handler("step").fails(error=Reject("no step at all"))
        for number in (1, 4):
            await harness.send("steps", str(number), hash_key="way")
        await harness.drain()
        assert payments.ordered == [4]
        (letter,) = harness.dead_letters("walker")
        assert (letter.payload(str), str(letter.why)) == ("1", "no step at all")


async def test_a_batch_is_one_call(payments: ModuleType, harness_of: Callable[..., Harness]) -> None:
    async with harness_of() as harness:
        await harness.template.send_many("rows", "abcde", hash_key="one queue")
        await harness.drain()
        assert sorted(row for rows in payments.batches for row in rows) == ["a", "b", "c", "d", "e"]
        assert sum(len(call.messages) for call in harness.calls("store")) == 5
        assert [(each.topic, each.consumed, each.end, each.lag) for each in harness.offsets("rows")] == [
            ("rows", 5, 5, 0)
        ]


async def test_a_delayed_message_comes_when_it_is_due(payments: ModuleType, harness_of: Callable[..., Harness]) -> None:
    async with harness_of() as harness:
        await harness.send("payments", payments.Payment(number=1), delay="1m")
        await harness.drain()
        assert harness.calls("pay") == []
        await harness.advance("59s")
        assert harness.calls("pay") == []
        await harness.advance("1s")
        assert len(harness.calls("pay")) == 1


@pytest.mark.parametrize("ms", [2074, 3111, 4000])
async def test_a_message_is_due_at_the_same_time_whenever_the_test_begins(
    payments: ModuleType, harness_of: Callable[..., Harness], ms: int
) -> None:
    """The broker's timers count from the time of day."""
    async with harness_of(now=datetime(2026, 1, 2, 8, tzinfo=UTC) + timedelta(milliseconds=ms)) as harness:
        await harness.send("payments", payments.Payment(number=1), delay="25m")
        await harness.advance("26m")
        assert [call.at for call in harness.calls("pay")] == [1500]


async def test_hooks_and_schedules_run_unless_they_are_left_out(
    payments: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    async with harness_of() as harness:
        await harness.advance("11m")
    assert payments.started == []
    async with harness_of(hooks=True) as harness:
        await harness.advance("21m")
        assert len(harness.sent("payments")) == 1
    assert payments.started == ["startup", "tick", "tick"]


async def test_nothing_of_the_machine_is_used(
    payments: ModuleType, harness_of: Callable[..., Harness], tmp_path: Path
) -> None:
    before = set(threading.enumerate())
    async with harness_of() as harness:
        await harness.send("payments", payments.Payment(number=1))
        await harness.drain()
    assert {each for each in threading.enumerate() if each.is_alive()} <= before
    assert not (tmp_path / ".rocketbox").exists()


async def test_the_log_tells_what_happened_in_the_order_of_virtual_time(
    payments: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    bank = payments.Bank()
    bank.failures = [ConnectionError("closed")]
    async with harness_of(beans={payments.Bank: bank}, failures="keep") as harness:
        assert harness.log == "nothing has happened"
        await harness.send("payments", payments.Payment(number=1), keys="p1")
        await harness.advance("1m")
        lines = harness.log.splitlines()
    assert lines[0].startswith("+0.000 s  sent to payments keys p1")
    assert lines[1] == "+0.000 s  payer: pay, attempt 1, keys p1: comes back (ConnectionError: closed)"
    assert lines[2].startswith("+10.000 s  sent to receipts:paid")
    assert "+10.000 s  payer: pay, attempt 2, keys p1: consumed" in lines


async def test_a_start_that_fails_says_what_is_wrong(harness_of: Callable[..., Harness]) -> None:
    with pytest.raises(ConfigurationError, match=r"payments\.limit"):
        async with harness_of(settings={"payments.limit": "much"}):
            raise AssertionError("it started")


async def test_what_is_asked_for_and_not_there_is_told(
    payments: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    harness = harness_of()
    with pytest.raises(NotStartedError):
        await harness.drain()
    async with harness:
        with pytest.raises(HarnessError, match="'nobody' is no group of payments; its groups are: payer, archive"):
            harness.dead_letters("nobody")
        with pytest.raises(HarnessError, match="charge is no handler of payments; its handlers are: pay, file_receipt"):
            harness.calls(payments.Bank.charge)
        with pytest.raises(HarnessError, match="'5' has no unit"):
            await harness.advance("5")
        with pytest.raises(AssertionError, match="nothing was sent to receipts, and one was expected"):
            harness.sent("receipts").one(Receipt)
        await harness.send("receipts", "text")
        with pytest.raises(PayloadError):
            harness.sent("receipts").one(Receipt)
        await harness.drain()
    with pytest.raises(HarnessError, match="was started before"):
        async with harness:
            raise AssertionError("it started")


async def test_the_same_service_is_started_again_and_knows_nothing_of_before(
    payments: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    for _ in range(2):
        async with harness_of() as harness:
            await harness.send("payments", payments.Payment(number=1))
            await harness.drain()
            assert len(harness.calls("pay")) == len(harness.sent("receipts")) == 1


async def test_a_message_that_is_delivered_twice_is_the_same_one(
    payments: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    async with harness_of() as harness:
        await harness.send("payments", payments.Payment(number=1), keys="p1")
        await harness.drain()
        await harness.redeliver(harness.calls("pay")[0])
        await harness.drain()
        await harness.redeliver(harness.sent("payments")[0])
        await harness.drain()
        calls = harness.calls("pay")
        assert [(call.payload.number, call.attempt, call.messages[0].keys) for call in calls] == [(1, 1, ("p1",))] * 3
        assert len({call.messages[0].msg_id for call in calls}) == 1
        assert "delivered again: payments" in harness.log
        await harness.send("payments", payments.Payment(number=2), delay="1m")
        with pytest.raises(HarnessError, match="is not delivered yet"):
            await harness.redeliver(harness.sent("payments")[1])


async def test_each_message_of_a_batch_is_delivered_twice(
    payments: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    async with harness_of() as harness:
        with harness.freeze("rows"):
            await harness.template.send_batch("rows", ["a", "b", "c"])
            await harness.drain()
        await harness.drain()
        (call,) = harness.calls("store")
        await harness.redeliver(call)
        await harness.drain()
        assert sorted(row for rows in payments.batches for row in rows) == ["a", "a", "b", "b", "c", "c"]
        await harness.redeliver(call.messages[1])
        await harness.drain()
        assert payments.batches[-1] == ["b"]


async def test_a_bean_is_overridden_while_the_service_runs(
    payments: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    async with harness_of() as harness:
        closed = payments.Bank()
        closed.failures = [ConnectionError("closed")]
        with harness.override(payments.Bank, closed):
            await harness.send("payments", payments.Payment(number=1))
            await harness.drain(failures="keep")
        await harness.advance("10s")
        assert closed.charged == []
        assert harness.app.get(payments.Bank).charged == [1]
        with pytest.raises(HarnessError, match="no bean of payments would be overridden by Receipt"):
            harness.override(Receipt, closed)


async def test_overrides_end_one_by_one_in_whatever_order(
    payments: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    first, second, third = (payments.Bank() for _ in range(3))

    async with harness_of() as harness:

        async def pays() -> Any:
            """The bank that is charged by the next payment."""
            await harness.send("payments", payments.Payment(number=1))
            await harness.drain()
            banks = [first, second, third, harness.app.get(payments.Bank)]
            (charged,) = {id(bank): bank for bank in banks if bank.charged}.values()
            charged.charged.clear()
            return charged

        blocks = [harness.override(payments.Bank, bank) for bank in (first, second, third)]
        for block, holds in ((blocks[1], third), (blocks[2], first)):
            with block:
                pass
            assert await pays() is holds
        with blocks[0]:
            assert await pays() is first
        assert await pays() not in (first, second, third)


async def test_a_frozen_group_takes_nothing_until_it_is_let_go(
    payments: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    async with harness_of() as harness:
        with harness.freeze("payer"):
            await harness.send("payments", payments.Payment(number=1))
            await harness.drain()
            assert harness.calls("pay") == []
            assert [each.lag for each in harness.offsets("payer")] == [1]
        await harness.drain()
        assert [call.outcome for call in harness.calls("pay")] == [Outcome.CONSUMED]


async def test_a_group_that_is_frozen_twice_waits_for_both(
    payments: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    async with harness_of() as harness:
        with harness.freeze("payer"):
            await harness.send("payments", payments.Payment(number=1))
            with harness.freeze("payer"):
                await harness.drain()
            await harness.drain()
            assert harness.calls("pay") == []
        await harness.drain()
        assert len(harness.calls("pay")) == 1


@pytest.mark.parametrize("verb", ["drain", "fresh"])
async def test_what_a_handler_would_wait_for_its_own_end_by_is_refused(
    verb: str, payments: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    bank = payments.Bank()

    async def charge(payment: object) -> None:
        await getattr(harness, verb)()

    bank.charge = charge
    async with harness_of(beans={payments.Bank: bank}) as harness:
        before = harness.now
        await harness.send("payments", payments.Payment(number=1))
        with pytest.raises(HarnessError, match=rf"harness.{verb}\(\) is awaited inside of handler pay"):
            await harness.drain()
        assert harness.now == before


async def test_a_group_that_the_service_has_paused_stays_so_when_a_freeze_ends(
    payments: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    async with harness_of() as harness:
        container = harness.app.listeners["payer"]
        container.pause("closed for today")
        with harness.freeze("payer"), harness.freeze("payer"):
            pass
        harness.freeze("payer")
        await harness.fresh()
        with harness.freeze("payer"):
            await harness.send("payments", payments.Payment(number=1))
        await harness.drain()
        assert (harness.calls("pay"), container.state().reason) == ([], "closed for today")
        container.resume()
        with harness.freeze("payer"):
            container.pause("closed meanwhile")
        await harness.drain()
        assert container.state().reason == "closed meanwhile"
        container.resume()
        await harness.drain()
        with harness.freeze("payer"):
            assert container.state().reason == "frozen by a test"
        await harness.drain()
        assert len(harness.calls("pay")) == 1
