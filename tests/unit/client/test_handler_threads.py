"""Handlers that are plain functions: they run in threads, and their time is their own."""

from __future__ import annotations

import logging
import threading

import pytest

from rocketbox.errors import Reject
from rocketbox.message import ConsumeMode, MessageExt
from rocketbox.protocol.codes import RequestCode
from tests.support.client.def_handlers import Setting
from tests.support.clocks import settle

pytestmark = pytest.mark.anyio


@pytest.fixture
def setting() -> Setting:
    return Setting()


@pytest.mark.parametrize("mode", list(ConsumeMode))
async def test_a_def_handler_runs_in_a_thread_and_its_outcome_counts(
    setting: Setting, mode: ConsumeMode, anyio_backend: str
) -> None:
    broker, came = setting.broker, list[tuple[bytes, bool]]()

    def handle(batch: list[MessageExt]) -> None:
        came.append((batch[0].body, threading.current_thread() is threading.main_thread()))
        if batch[0].body == b"bad":
            raise Reject("no")
        if batch[0].body == b"exit" and len(came) == 2:
            raise SystemExit(3)

    async with broker, setting.consumer(consume_mode=mode, concurrency=1) as consumer:
        await consumer.subscribe("T", "*", handle)
        broker.store("T", b"a", b"exit", b"bad", b"b")
        await setting.until(lambda: (b"exit", False) in came)
        await setting.clock.advance(2)  # the pause of an orderly queue
        await setting.until(lambda: (b"b", False) in came)
        await settle(200)
        await setting.clock.advance(6)
        assert not any(in_main for _, in_main in came)
        assert broker.committed["T", 0] == 4
        sent_back = broker.fields(RequestCode.CONSUMER_SEND_MSG_BACK, "delayLevel")
        assert ("-1",) in sent_back
        assert len(sent_back) == (2 if mode is ConsumeMode.CONCURRENTLY else 1)


async def test_what_never_got_a_thread_was_not_tried_and_when_all_hang_pulling_pauses(
    setting: Setting, anyio_backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker, begun, release = setting.broker, list[bytes](), threading.Event()

    def handle(batch: list[MessageExt]) -> None:
        begun.append(batch[0].body)
        release.wait(30)

    options = {"concurrency": 2, "consume_timeout": 10.0}
    async with broker, setting.consumer(**options) as consumer:
        try:
            await consumer.subscribe("T", "*", handle)
            broker.store("T", *(b"%d" % number for number in range(12)))
            await setting.until(lambda: len(begun) == 2)
            assert consumer.state().hung_handlers == ()
            with caplog.at_level(logging.ERROR):
                await setting.clock.advance(40)
            assert begun == [b"0", b"1"]
            assert len(broker.asked(RequestCode.CONSUMER_SEND_MSG_BACK)) == 2, "only those that were begun"
            hung = consumer.state().hung_handlers
            assert len(hung) == 2
            assert all(line.endswith("in handle") and __file__ in line for line in hung)
            assert hung[0] in caplog.text
            broker.requests.clear()
            broker.store("T", b"later")
            await setting.clock.advance(40)
            pulls = [topic for (topic,) in broker.fields(RequestCode.PULL_MESSAGE, "topic") if topic == "T"]
            assert len(pulls) <= 1, "the one that was under way may come back once"
        finally:
            release.set()
        await setting.until(lambda: len(begun) == 12)
        await setting.clock.advance(2)
        await setting.until(lambda: len(begun) == 13)
        await settle(200)
        assert consumer.state().hung_handlers == ()
        assert len(broker.asked(RequestCode.CONSUMER_SEND_MSG_BACK)) == 0
