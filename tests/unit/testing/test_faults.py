"""Faults that a test lets a service meet: a silent broker, one that is started again, a full disk, failing handlers."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import anyio
import pytest

from rocketbox.errors import BrokerError, ClientError, ConfigurationError, RemotingError, RequestTimeoutError
from rocketbox.protocol.codes import ResponseCode
from rocketbox.testing import Harness, HarnessError, Outcome, SimulatedError
from tests.support.framework.services import ServiceMaker

pytestmark = pytest.mark.anyio

SOURCE = """
from pydantic import BaseModel
from rocketbox import ConsumeMode, RocketBox, RocketMQTemplate, rocketmq_listener, send_to

app = RocketBox("payments", scan=[__name__])
paid, filed, rows_seen = [], [], []

class Payment(BaseModel):
    number: int

@rocketmq_listener(topic="payments", consumer_group="payer")
@send_to("receipts")
async def pay(payment: Payment) -> str:
    paid.append(payment.number)
    return f"receipt {payment.number}"

@rocketmq_listener(topic="receipts", consumer_group="archive")
def file_receipt(receipt: str) -> None:
    filed.append(receipt)

@rocketmq_listener(topic="rows", consumer_group="rows", consume_message_batch_max_size=10)
async def store(rows: list[str]) -> None:
    rows_seen.append(rows)

class Steps:
    def __init__(self) -> None:
        self.seen = []

    @rocketmq_listener(topic="steps", consumer_group="walker", consume_mode=ConsumeMode.ORDERLY)
    async def step(self, text: str) -> None:
        self.seen.append(text)
"""

SETTINGS = """
rocketmq:
  name-server: ns1.example:9876
  producer: {group: payments}
"""


@pytest.fixture
def payments(service: ServiceMaker) -> ModuleType:
    source = SOURCE.replace("class Steps:", "from rocketbox import bean\n\n@bean\nclass Steps:")
    return service(source, SETTINGS)


@pytest.fixture
def harness_of(payments: ModuleType) -> Callable[..., Harness]:
    def make(**options: Any) -> Harness:
        return Harness(payments.app, **options)

    return make


async def pay(harness: Harness, payments: ModuleType, number: int) -> None:
    await harness.send("payments", payments.Payment(number=number), keys=f"p{number}")


# --- a silent broker -----------------------------------------------------------------------------------------------


async def test_a_send_to_a_silent_broker_times_out_on_virtual_time_and_is_stored_all_the_same(
    payments: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    async with harness_of() as harness:
        await pay(harness, payments, 1)
        await harness.drain()
        began = harness.now
        with harness.broker.silence():
            with pytest.raises(RequestTimeoutError):
                await pay(harness, payments, 2)
            assert (harness.now - began).total_seconds() == pytest.approx(3, abs=1.5)
            await harness.drain()
            assert payments.paid == [1], "nobody gets messages of a silent broker"
        await harness.advance("1m")
        assert payments.paid[0] == 1
        assert set(payments.paid[1:]) == {2}
        assert "the broker falls silent" in harness.log
        assert "the broker answers again" in harness.log


async def test_answers_that_were_kept_back_come_to_those_who_still_wait(
    payments: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    async with harness_of() as harness:
        await pay(harness, payments, 1)
        await harness.drain()
        began = harness.now
        harness.broker.silence()
        await harness.redeliver(harness.calls("pay")[0])  # the broker answers a pull, and is not heard
        await harness.drain()
        assert payments.paid == [1]
        harness.broker.resume()
        await harness.drain()
        assert (payments.paid, harness.now) == ([1, 1], began)


async def test_a_handler_whose_send_is_not_answered_fails_and_is_called_again(
    payments: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    async with harness_of(failures="keep") as harness:
        await pay(harness, payments, 1)
        with harness.handler("pay").fails():
            await harness.drain()  # it comes back in 10 s
        await harness.advance("9s")
        with harness.broker.silence():
            await harness.advance("5s")
        await harness.consumed("archive")
        assert payments.filed == ["receipt 1"]


# --- a broker that is started again --------------------------------------------------------------------------------


async def test_a_broker_that_is_started_again_has_lost_nothing_and_its_clients_find_it(
    payments: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    async with harness_of() as harness:
        await pay(harness, payments, 1)
        await harness.drain()
        with harness.freeze("payer"):
            await pay(harness, payments, 2)
            await harness.broker.restart()
        await harness.advance("1m")
        assert payments.paid == [1, 2]
        await pay(harness, payments, 3)
        await harness.drain()
        assert payments.paid == [1, 2, 3]
        assert payments.filed == ["receipt 1", "receipt 2", "receipt 3"]
        assert sum(each.consumed for each in harness.offsets("payer")) == 3


@pytest.mark.parametrize("then", ["start", "fresh"])
async def test_a_restart_that_was_cancelled_is_made_good(
    payments: ModuleType, harness_of: Callable[..., Harness], then: str
) -> None:
    async with harness_of() as harness:
        await pay(harness, payments, 1)
        await harness.drain()
        with anyio.move_on_after(0):
            await harness.broker.restart()
        await (harness.broker.start() if then == "start" else harness.fresh())
        await pay(harness, payments, 2)
        await harness.advance("1m")
        assert payments.paid == [1, 2]


async def test_a_message_that_waits_for_its_retry_outlives_the_broker(
    payments: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    async with harness_of() as harness:
        harness.handler(payments.pay).fails()
        await pay(harness, payments, 1)
        await harness.drain()
        await harness.broker.restart()
        (call,) = await harness.consumed("payer")
        assert (call.attempt, payments.paid) == (2, [1])


async def test_nobody_reaches_a_broker_that_is_stopped_until_it_is_started(
    payments: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    async with harness_of() as harness:
        await pay(harness, payments, 1)
        await harness.drain()
        async with harness.broker.stopped():
            with pytest.raises((RemotingError, ClientError)):
                await pay(harness, payments, 2)
            await harness.advance("1m")
            embedded = harness.app.health().components["embedded-servers"]
            assert embedded.reasons == ("the embedded broker takes no messages: its broker is stopped",)
            with pytest.raises(HarnessError, match="the broker is stopped already"):
                await harness.broker.stop()
            with pytest.raises(HarnessError, match="the broker is stopped; start it"):
                harness.offsets("payer")
        with pytest.raises(HarnessError, match="the broker runs; stop it before"):
            await harness.broker.start()
        await harness.advance("2m")
        await pay(harness, payments, 3)
        await harness.advance("1m")
        assert payments.paid == [1, 3]


async def test_a_dead_letter_is_seen_also_when_the_broker_was_started_again(
    payments: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    settings = {"rocketmq.consumer.listeners.payer.max-reconsume-times": 0}
    async with harness_of(settings=settings) as harness:
        await harness.broker.restart()
        await harness.advance("1m")
        harness.handler(payments.pay).fails(error=OSError("closed"))
        await pay(harness, payments, 1)
        await harness.drain()
        (letter,) = harness.dead_letters("payer")
        assert str(letter.why) == "closed"


# --- a full disk ---------------------------------------------------------------------------------------------------


async def test_a_full_disk_refuses_messages_and_lets_them_be_read(
    payments: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    async with harness_of(settings={"rocketmq.producer.retry-next-server": False}) as harness:
        with harness.freeze("payer"):
            await pay(harness, payments, 1)
            with harness.disk.full():
                with pytest.raises(BrokerError, match="disk-space-warning-level-ratio") as refused:
                    await pay(harness, payments, 2)
                assert refused.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
            await pay(harness, payments, 3)
        await harness.drain()
        assert sorted(payments.paid) == [1, 3]
        harness.disk.full()
        harness.disk.full()
        with pytest.raises((BrokerError, ClientError)):
            await pay(harness, payments, 4)
        await harness.advance("1h")
        harness.disk.free()
        harness.disk.free()
        await harness.advance("1m")
        await pay(harness, payments, 5)
        await harness.drain()
        assert sorted(payments.paid) == [1, 3, 5]
        assert harness.log.count("the disk is full") == harness.log.count("the disk has room again") == 2


async def test_what_is_consumed_on_a_full_disk_is_read_and_its_reply_comes_later(
    payments: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    async with harness_of(failures="keep") as harness:
        with harness.freeze("payer"):
            await pay(harness, payments, 1)
        with harness.disk.full():
            await harness.drain()
            assert payments.paid == [1], "reads are served"
            assert [call.outcome for call in harness.calls("pay")] == [Outcome.COMES_BACK]
        await harness.consumed("archive")
        assert payments.filed == ["receipt 1"]


async def test_a_disk_is_full_also_for_a_broker_that_is_started_on_it(
    payments: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    async with harness_of() as harness:
        harness.disk.full()
        await harness.broker.restart()
        with pytest.raises((BrokerError, ClientError)):
            await pay(harness, payments, 1)
        assert len(harness.calls("pay")) == 0


# --- handlers that fail --------------------------------------------------------------------------------------------


async def test_the_next_calls_of_a_handler_fail_and_then_it_runs(
    payments: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    async with harness_of() as harness:
        failing = harness.handler(payments.pay).fails(2)
        await pay(harness, payments, 1)
        await harness.advance("1m")  # the test has asked for it: nothing is raised here
        calls = harness.calls(payments.pay)
        assert [(call.payload.number, call.attempt, call.outcome) for call in calls] == [
            (1, 1, Outcome.COMES_BACK),
            (1, 2, Outcome.COMES_BACK),
            (1, 3, Outcome.CONSUMED),
        ]
        assert isinstance(calls[0].error, SimulatedError)
        assert str(calls[1].error) == "pay fails, 2 of 2, as the test said"
        assert [call.at for call in calls] == pytest.approx([0, 10, 40], abs=0.01)
        assert (payments.paid, failing.left) == ([1], 0)


@pytest.mark.parametrize(
    ("handler", "topic", "group", "seen"),
    [
        ("file_receipt", "receipts", "archive", "filed"),
        ("store", "rows", "rows", "rows_seen"),
        ("Steps.step", "steps", "walker", None),
    ],
)
async def test_handlers_of_any_kind_fail_as_if_they_had_raised_it(
    handler: str, topic: str, group: str, seen: str | None, payments: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    async with harness_of() as harness:
        harness.handler(handler).fails(1, error=ConnectionError("closed"))
        await harness.send(topic, "text")
        await harness.drain()
        (call,) = harness.calls(handler)
        assert (call.outcome, str(call.error)) == (Outcome.COMES_BACK, "closed")
        assert call.payload == (["text"] if handler == "store" else "text"), "its arguments were bound"
        handled = getattr(payments, seen) if seen else harness.app.get(payments.Steps).seen
        assert handled == []
        await harness.consumed(group)
        assert handled == ([["text"]] if handler == "store" else ["text"])


@pytest.mark.parametrize(
    "decorator", ["@dataclass", "@dataclass(unsafe_hash=True)"], ids=["without a hash", "with one"]
)
async def test_of_handlers_that_are_equal_objects_the_one_fails_that_is_asked(
    decorator: str, service: ServiceMaker
) -> None:
    source = f"""
    from dataclasses import dataclass

    from rocketbox import RocketBox, rocketmq_listener

    app = RocketBox("payments", scan=[__name__])

    {decorator}
    class Forward:
        to: str

        def __call__(self, text: str) -> None: ...

    first = rocketmq_listener(topic="one", consumer_group="first")(Forward("x"))
    second = rocketmq_listener(topic="two", consumer_group="second")(Forward("x"))
    """
    module = service(source, SETTINGS)
    async with Harness(module.app) as harness:
        failing = harness.handler(module.second).fails(1)
        await harness.send("one", "text")
        await harness.send("two", "text")
        await harness.drain()
        assert [call.outcome for call in harness.calls(module.first)] == [Outcome.CONSUMED]
        assert [call.outcome for call in harness.calls(module.second)] == [Outcome.COMES_BACK]
        assert failing.left == 0


async def test_with_ends_it_and_later_ones_stand_in_line(
    payments: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    async with harness_of() as harness:
        with harness.handler("pay").fails(5, ValueError) as failing:
            await pay(harness, payments, 1)
            await harness.drain()
            assert failing.left == 4
        harness.handler("pay").fails(1, OSError("one"))
        harness.handler("pay").fails(1, OSError("two"))
        await harness.advance("5m")
        assert [str(call.error) for call in harness.calls("pay")] == ["", "one", "two", "None"]
        assert payments.paid == [1]


async def test_what_the_handler_itself_raises_is_still_raised_by_drain(
    payments: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    async with harness_of() as harness:
        harness.handler("pay").fails()
        harness.app.get(payments.Steps).seen = None
        await harness.send("steps", "one", hash_key="way")
        await pay(harness, payments, 1)
        with pytest.raises(AttributeError):
            await harness.drain()


async def test_a_fault_that_cannot_be_is_refused_with_what_to_write(harness_of: Callable[..., Harness]) -> None:
    async with harness_of() as harness:
        with pytest.raises(HarnessError, match=r"fails\(0\): write how many"):
            harness.handler("pay").fails(0)
        with pytest.raises(HarnessError, match="error='closed' is no exception"):
            harness.handler("pay").fails(1, "closed")  # type: ignore[arg-type]
        with pytest.raises(HarnessError, match="charge is no handler of payments; its handlers are: pay"):
            harness.handler("charge")


# --- in plain functions --------------------------------------------------------------------------------------------


def test_faults_in_a_plain_function(payments: ModuleType, harness_of: Callable[..., Harness]) -> None:
    with harness_of(failures="keep") as harness:
        harness.handler("pay").fails()
        harness.blocking.send("payments", payments.Payment(number=1))
        harness.blocking.drain()
        with harness.broker.silence(), pytest.raises(RequestTimeoutError):
            harness.blocking.send("payments", payments.Payment(number=2))
        with harness.disk.full(), pytest.raises((BrokerError, ClientError)):
            harness.blocking.send("payments", payments.Payment(number=3))
        with harness.freeze("archive"):
            harness.blocking.call(harness.broker.restart)
        harness.blocking.advance("2m")
        assert set(payments.paid) == {1, 2}


async def test_the_log_of_a_harness_shows_no_secret_of_the_settings(payments: ModuleType) -> None:
    """It is in the report of a failing test, which is on a server for all to read."""
    harness = Harness(payments.app, failures="keep", settings={"bank.password": "hunter2-of-the-bank"})
    async with harness:
        harness.handler(payments.pay).fails(1, error=ValueError("no entry with hunter2-of-the-bank"))
        await pay(harness, payments, 1)
        await harness.drain()
        shown = [harness.log]
    shown.append(harness.log)
    for log in shown:
        assert "comes back (ValueError: no entry with ******)" in log
        assert "hunter2" not in log


FAILS_TO_START = """
from rocketbox import RocketBox, RocketMQTemplate

app = RocketBox("desk", scan=[__name__])
look = []

@app.on_startup
async def log_in(template: RocketMQTemplate) -> None:
    await template.send("logins", "desk logs in with hunter2-of-the-bank")
    look[0]()
    raise ConnectionError("the bank is closed")
"""


async def test_the_log_of_a_harness_shows_no_secret_while_it_starts_nor_when_its_start_fails(
    service: ServiceMaker,
) -> None:
    desk = service(FAILS_TO_START, SETTINGS)
    harness = Harness(desk.app, settings={"bank.password": "hunter2-of-the-bank"})
    shown: list[str] = []
    desk.look.append(lambda: shown.append(harness.log))
    with pytest.raises(ConfigurationError, match="the bank is closed"):
        await harness.__aenter__()
    for log in (*shown, harness.log):
        assert "desk logs in with ******" in log
    assert len(shown) == 1


# --- messages that come twice --------------------------------------------------------------------------------------


async def test_each_message_of_a_batch_is_delivered_again_as_itself(
    payments: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    async with harness_of() as harness:
        await harness.template.send_batch("receipts", ["one", "two", "three"])
        await harness.drain()
        payments.filed.clear()
        for sent in harness.sent("receipts")[1:]:
            await harness.redeliver(sent)
            await harness.drain()
        assert payments.filed == ["two", "three"]
        assert len({sent.result.msg_id for sent in harness.sent("receipts") if sent.result is not None}) == 3
