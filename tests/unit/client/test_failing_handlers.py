"""What handlers raise fails the message, whatever it is, and never the consumer."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar

import anyio
import pytest

from rocketbox.errors import BatchFailed, Reject, RetryLater
from rocketbox.message import ConsumeMode, MessageExt
from rocketbox.protocol.codes import RequestCode
from tests.support.client.consumer_group import Group, queues_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # whose loop tells when all tasks wait


class UnwritableError(Exception):
    """As an error has it whose text needs what is closed by then."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class UnwritableReject(Reject):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class UnwritableEnd(BaseException):
    def __repr__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("error", [UnwritableError, UnwritableReject, UnwritableEnd])
@pytest.mark.parametrize("mode", list(ConsumeMode))
async def test_a_message_whose_error_cannot_be_written_out_fails_like_any_other(
    mode: ConsumeMode, error: type[BaseException], anyio_backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    group = Group()
    broker = group.broker

    def fail(body: bytes) -> float:
        if body == b"bad":
            raise error
        return 0.0

    async with broker, group.member(seconds=fail, consume_mode=mode, max_reconsume_times=1) as one:
        await group.until(lambda: len(queues_of(one)) == 1, 3)
        broker.store("T", b"bad", b"good")
        await group.until(lambda: broker.committed["T", 0] == 2, 4)
        assert len(broker.asked(RequestCode.CONSUMER_SEND_MSG_BACK)) == 1
        assert group.bodies.count(b"good") == 1
    assert error.__qualname__ in caplog.text
    assert "RuntimeError" in caplog.text, "why its text is missing"
    assert not [record for record in caplog.records if record.name == "rocketbox.tasks"], "no worker has failed"


@pytest.mark.parametrize("mode", list(ConsumeMode))
async def test_what_was_cancelled_at_the_end_is_not_committed_though_its_handler_swallowed_that(
    mode: ConsumeMode, anyio_backend: str
) -> None:
    group = Group()
    broker, swallowed = group.broker, list[bytes]()

    async def handle(batch: list[MessageExt]) -> None:
        try:
            await group.clock.sleep(1000)
        except BaseException:
            swallowed.append(batch[0].body)

    async with broker:
        async with group.member(consume_mode=mode, await_termination=1) as one, anyio.create_task_group() as tasks:
            await group.until(lambda: len(queues_of(one)) == 1, 3)
            tasks.start_soon(one.subscribe, "T", "*", handle)
            await group.clock.advance(1)
            broker.store("T", b"0", b"1")
            await group.clock.advance(1)
        assert b"0" in swallowed
        assert broker.committed["T", 0] == 0, "it comes again"


class ClosedRows(Sequence[None]):
    """As a library has it whose rows are read when they are asked for, and cannot be any more."""

    def __len__(self) -> int:
        raise RuntimeError("the session is closed")

    def __getitem__(self, index: object) -> None:  # type: ignore[override] # it is never called
        raise RuntimeError("the session is closed")


class OwnRetry(RetryLater):
    """As users write it who forget the base class."""

    def __init__(self) -> None:
        pass


class OwnBatchFailed(BatchFailed):
    def __init__(self) -> None:
        pass


class WrittenError(Exception):
    def __repr__(self) -> str:
        raise SystemExit(4)


@pytest.mark.parametrize("outcome", [ClosedRows, OwnRetry, OwnBatchFailed, WrittenError])
@pytest.mark.parametrize("mode", list(ConsumeMode))
async def test_an_outcome_whose_own_code_fails_sends_its_message_back_once(
    mode: ConsumeMode, outcome: type[object], anyio_backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    group = Group()
    broker = group.broker

    async def handle(batch: list[MessageExt]) -> object:
        group.came.append(("c1", batch[0].body))
        if batch[0].body != b"bad":
            return None
        made = outcome()
        if isinstance(made, Exception):
            raise made
        return made

    async with broker, group.member(consume_mode=mode, max_reconsume_times=0) as one:
        await group.until(lambda: len(queues_of(one)) == 1, 3)
        await one.subscribe("T", "*", handle)  # type: ignore[arg-type] # what it returns is what is tried
        broker.store("T", b"bad", b"good")
        await group.until(lambda: broker.committed["T", 0] == 2, 4)
        assert len(broker.asked(RequestCode.CONSUMER_SEND_MSG_BACK)) == 1
        assert group.bodies == [b"bad", b"good"]
    assert not [record for record in caplog.records if record.name == "rocketbox.tasks"], "no task has failed"


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("mode", list(ConsumeMode))
async def test_what_a_handler_sets_in_its_context_is_not_seen_with_the_next_message(
    mode: ConsumeMode, waits: bool, anyio_backend: str
) -> None:
    group, seen, kept = Group(), list[str](), list[bool]()
    whose = ContextVar("whose", default="nobody")

    async def handle(batch: list[MessageExt]) -> None:
        seen.append(whose.get())
        token = whose.set(batch[0].body.decode())
        if waits:
            await group.clock.sleep(0.001)
        kept.append(whose.get() == batch[0].body.decode())
        if batch[0].body == b"3":
            whose.reset(token)

    async with group.broker, group.member(consume_mode=mode, concurrency=1) as one:
        await group.until(lambda: len(queues_of(one)) == 1, 3)
        await one.subscribe("T", "*", handle)
        group.broker.store("T", *(b"%d" % number for number in range(40)))
        await group.until(lambda: len(kept) == 40, 5)
    assert all(kept), "within one handler it stays"
    assert set(seen) == {"nobody"}
