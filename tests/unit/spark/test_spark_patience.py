"""What Spark's workers ask again, and what they are told at once."""

from __future__ import annotations

import logging
from collections import Counter

import anyio
import anyio.lowlevel
import pytest

pytest.importorskip("pyarrow")

from rocketbox.errors import (
    AccessDeniedError,
    BrokerError,
    ClientError,
    ClientStateError,
    CodecMissingError,
    ConnectError,
    InvalidMessageError,
    NoRouteError,
    RemoteProtocolError,
    RequestTimeoutError,
    RocketBoxError,
    TooManyRequestsError,
)
from rocketbox.message import MessageQueue
from rocketbox.protocol.codes import ResponseCode
from rocketbox.spark.asking import ask_each
from rocketbox.spark.worker_client import AT_ONCE, gather, may_pass, patiently
from tests.support.spark.log_of_a_broker import StillClock

pytestmark = pytest.mark.anyio

BROKER = "127.0.0.1:10911"


class Asked:
    """Raises ``error`` so many times, then answers."""

    def __init__(self, error: RocketBoxError, failures: int) -> None:
        self.error = error
        self.failures = failures
        self.tries = 0

    async def __call__(self) -> str:
        self.tries += 1
        if self.tries <= self.failures:
            raise self.error
        return "answer"


@pytest.mark.parametrize(
    "error",
    [
        ConnectError(BROKER, "refused"),
        RequestTimeoutError(BROKER, "a pull", 3),
        TooManyRequestsError("requests", 5),
        NoRouteError("orders", [BROKER]),
        ClientError("no address of broker 'broker-a' is known"),
        BrokerError(ResponseCode.SYSTEM_BUSY, "busy", BROKER),
        BrokerError(ResponseCode.TOPIC_NOT_EXIST, "not yet", BROKER),
    ],
    ids=str,
)
async def test_what_passes_is_asked_for_again(error: RocketBoxError) -> None:
    asked = Asked(error, 5)
    assert may_pass(error)
    assert await patiently(StillClock(), "reading", asked) == "answer"
    assert asked.tries == 6


@pytest.mark.parametrize(
    "error",
    [
        RemoteProtocolError("no message at byte 0"),
        CodecMissingError("ZSTD", "install it"),
        AccessDeniedError(ResponseCode.NO_PERMISSION, "no user", BROKER),
        BrokerError(ResponseCode.NO_PERMISSION, "the topic[orders] pulling message is forbidden", BROKER),
        BrokerError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "no tags", BROKER),
        BrokerError(ResponseCode.INVALID_PARAMETER, "queueId[9] is illegal", BROKER),
        ClientStateError("closed"),
        InvalidMessageError("the selector names no tag"),
    ],
    ids=str,
)
async def test_what_stays_is_told_at_once(error: RocketBoxError) -> None:
    asked = Asked(error, 1)
    assert not may_pass(error)
    with pytest.raises(type(error)) as raised:
        await patiently(StillClock(), "reading", asked)
    assert raised.value is error
    assert asked.tries == 1


async def test_a_broker_that_stays_away_is_asked_for_a_minute() -> None:
    asked, clock = Asked(ConnectError(BROKER, "refused"), 1000), StillClock()
    with pytest.raises(ConnectError):
        await patiently(clock, "reading", asked)
    assert 55 <= clock.slept <= 60
    assert asked.tries < 25


@pytest.mark.parametrize(("level", "told"), [(logging.WARNING, 1), (logging.DEBUG, 0)])
async def test_that_a_broker_is_away_is_told_once_and_not_at_all_where_somebody_else_tells_it(
    level: int, told: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rocketbox")
    asked = Asked(ConnectError(BROKER, "refused"), 10)
    assert await patiently(StillClock(), "reading orders broker-a/0 at 5", asked, level=level) == "answer"
    line = f"reading orders broker-a/0 at 5: cannot connect to {BROKER}: refused; asked again and again, for 60 s"
    assert caplog.messages == [line] * told


class Counting:
    """Questions to brokers, of which it counts those that wait for an answer; ``silent`` brokers give none."""

    def __init__(self, *silent: str) -> None:
        self.silent = silent
        self.asked: Counter[str] = Counter()
        self.waiting: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def __call__(self, queue: MessageQueue) -> int:
        broker = queue.broker_name
        self.asked[broker] += 1
        self.waiting[broker] += 1
        self.most[broker] = max(self.most[broker], self.waiting[broker])
        await anyio.lowlevel.checkpoint()
        self.waiting[broker] -= 1
        if broker in self.silent:
            raise RequestTimeoutError(BROKER, "the end of a queue", 3)
        return queue.queue_id


QUEUES = [MessageQueue("orders", broker, number) for number in range(4000) for broker in ("a", "b")]


async def test_a_broker_is_not_asked_for_thousands_of_queues_at_once() -> None:
    asked = Counting()
    assert await gather(asked, QUEUES) == {queue: queue.queue_id for queue in QUEUES}
    assert asked.most == {"a": AT_ONCE, "b": AT_ONCE}


async def test_of_what_is_no_question_about_a_queue_so_many_are_asked_at_a_time() -> None:
    """Of name servers, about the topics of a pattern."""
    under_way = most = 0
    as_many_as_may_be = anyio.Event()

    async def work(number: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        if under_way == AT_ONCE:
            as_many_as_may_be.set()
        await as_many_as_may_be.wait()
        await anyio.lowlevel.checkpoint()
        under_way -= 1
        return 2 * number

    assert await gather(work, range(1000)) == {number: 2 * number for number in range(1000)}
    assert most == AT_ONCE


async def test_a_silent_broker_is_asked_for_a_few_of_its_queues_only() -> None:
    asked = Counting("b")
    answers, failed = await ask_each(asked, QUEUES)
    assert len(answers) == len(failed) == 4000
    assert asked.asked == {"a": 4000, "b": AT_ONCE}
