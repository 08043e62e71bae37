"""What a consumer logs of messages that fail."""

from __future__ import annotations

import logging

import pytest

from rocketbox.client import ClientOptions, ConsumerOptions, PushConsumer
from rocketbox.client.failure_log import describe_message
from rocketbox.message import ConsumeFromWhere, MessageExt
from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from tests.support.client.scripted_broker import ScriptedBroker
from tests.support.clocks import VirtualClock, settle

pytestmark = pytest.mark.anyio

TEN_TRIES = 9


class Setting:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.broker = ScriptedBroker(self.clock)
        self.broker.topics = {"T": 1, "%RETRY%g": 1}

    def consumer(self) -> PushConsumer:
        options = ConsumerOptions(consume_from_where=ConsumeFromWhere.FIRST_OFFSET, max_reconsume_times=TEN_TRIES)
        client = ClientOptions(client_ip="10.0.0.9", instance_name="c1")
        network = self.broker.network
        return PushConsumer("g", name_server=self.broker.address, options=options, client_options=client,
                            clock=self.clock, network=network)  # fmt: skip


async def fail(batch: list[MessageExt]) -> None:
    if batch[0].body.startswith(b"bad"):
        raise ValueError(batch[0].body)
    if batch[0].body.startswith(b"worse"):
        raise KeyError(batch[0].body)


def told(caplog: pytest.LogCaptureFixture, module: str = "failure_log") -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name.endswith(module) and record.levelno >= logging.WARNING]


@pytest.fixture
def setting() -> Setting:
    return Setting()


async def test_one_traceback_of_a_kind_and_then_its_number_a_minute(
    setting: Setting, anyio_backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with setting.broker, setting.consumer() as consumer:
        await consumer.subscribe("T", "*", fail)
        with caplog.at_level(logging.WARNING, "rocketbox.client.failure_log"):
            setting.broker.store("T", *[b"bad"] * 50, b"worse", b"bad", b"good")
            await setting.clock.advance(3)
            assert len([record for record in told(caplog) if record.exc_info]) == 2, "one for each kind"
            assert len(told(caplog)) == 2
            text = told(caplog)[0].getMessage()
            assert "message ID-T-0-0 of T (offset 0 of broker-a/0)" in text
            assert "attempt 1 of 10" in text
            assert "it comes back after 10 s" in text
            caplog.clear()
            await setting.clock.advance(60)
            (record,) = told(caplog)
            assert "50 more messages of T failed with ValueError within a minute" in record.getMessage()
            assert record.exc_info is None
            setting.broker.store("T", b"bad")
            await setting.clock.advance(1)
            assert told(caplog)[-1].exc_info, "a new minute has a traceback again"


async def test_the_end_of_the_retries_is_an_error_that_names_where_the_message_goes(
    setting: Setting, anyio_backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with setting.broker, setting.consumer() as consumer:
        await consumer.subscribe("T", "*", fail)
        with caplog.at_level(logging.WARNING, "rocketbox.client.failure_log"):
            setting.broker.store("T", b"bad", b"bad", reconsume_times=TEN_TRIES, keys="order-7")
            await setting.clock.advance(3)
        errors = [record.getMessage() for record in told(caplog) if record.levelno == logging.ERROR]
        assert len(errors) == 2, "of each message"
        assert all("attempt 10 of 10" in text and "%DLQ%g" in text and "KEYS order-7" in text for text in errors)
        assert [bool(record.exc_info) for record in told(caplog)] == [True, False]


async def test_a_commit_that_keeps_failing_is_told_once_a_minute(
    setting: Setting, anyio_backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response(ResponseCode.SYSTEM_BUSY, "ill")

    async with setting.broker, setting.consumer() as consumer:
        await consumer.subscribe("T", "*", fail)
        await settle(200)
        setting.broker.overrides[RequestCode.UPDATE_CONSUMER_OFFSET] = refuse
        setting.broker.store("T", b"good", b"good")
        with caplog.at_level(logging.WARNING, "rocketbox.client.offset_store"):
            await setting.clock.advance(90)
        assert len(told(caplog, "offset_store")) == 2


def test_nothing_that_a_sender_writes_begins_a_line_of_the_log() -> None:
    forged = "\n2026-11-23 00:00:00,000 ERROR rocketbox: forged"
    fields = (0, 0, 0, 0, 0, 7, 0, 0, 0, b"", 0, 0, b"", 0, 0, 0, 1)
    message = MessageExt(fields, b"x", "T", f"UNIQ_KEY\x01é{forged}\x02KEYS\x01k{forged}\x02".encode(), "broker-a")
    text = describe_message(message)
    assert text.splitlines() == [text]
    assert text.startswith("message é\\n2026-11-23 00:00:00,000 ERROR rocketbox: forged of T (offset 7 of broker-a/0, ")
