"""What Spark's workers ask again, and what they are told at once."""

from __future__ import annotations

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
from rocketbox.protocol.codes import ResponseCode
from rocketbox.spark.worker_client import may_pass, patiently
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
        CodecMissingError("ZSTD"),
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
