"""Transactions from the producer to the consumer, on a whole embedded broker: commits, rollbacks, checks, kills."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from rocketbox.client import (
    ClientOptions,
    Producer,
    SendContext,
    SendNext,
    Transaction,
    TransactionCheckOptions,
)
from rocketbox.errors import ClientError, ClientStateError, InvalidMessageError, NotDurableError, NotStartedError
from rocketbox.message import Compression, LocalTransactionState, Message, MessageExt, SendResult
from rocketbox.protocol.codes import TRANS_HALF_TOPIC
from tests.support.broker.wire import Wire, embedded
from tests.support.process_lines import running_module
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK, LocalTransactionState.UNKNOWN
QUICK: dict[str, object] = {"transaction_time_out": 0, "transaction_check_interval": 100}
PATIENT = QUICK | {"transaction_check_max": 10_000}  # a check counts while nobody is there to be asked


async def never(message: MessageExt) -> LocalTransactionState:
    raise AssertionError(f"{message} was checked")


class Book:
    """What a service's work has written, which its checker looks into."""

    def __init__(self) -> None:
        self.states: dict[str, LocalTransactionState] = {}
        self.asked: list[MessageExt] = []

    async def check(self, message: MessageExt) -> LocalTransactionState:
        self.asked.append(message)
        return self.states.get(message.msg_id, UNKNOWN)


@asynccontextmanager
async def broker(tmp_path: Path, **settings: Any) -> AsyncIterator[Wire]:
    async with embedded(tmp_path, default_topic_queue_nums=1, **settings) as wire:
        yield wire


def payers(wire: Wire, **arguments: object) -> Producer:
    return Producer("payers", name_server=wire.servers.name_server_address, **arguments)  # type: ignore[arg-type]


async def bodies(wire: Wire, topic: str = "orders") -> list[bytes]:
    return [message.body for message in await wire.messages(topic)]


async def until_read(wire: Wire, *expected: bytes) -> None:
    with anyio.fail_after(PATIENCE):
        while await bodies(wire) != [*expected]:
            await anyio.sleep(0.02)


async def until_ended(wire: Wire) -> None:
    with anyio.fail_after(PATIENCE):
        while len(wire.servers.broker.halves):
            await anyio.sleep(0.02)


async def test_a_block_commits_at_its_end(tmp_path: Path) -> None:
    async with broker(tmp_path) as wire, payers(wire, transaction_checker=never) as producer:
        async with producer.transaction(Message("orders", b"paid", tag="UA", keys=["1"])) as transaction:
            assert await bodies(wire) == []
            before = transaction.state
            (half,) = await wire.messages(TRANS_HALF_TOPIC)
            assert half.msg_id == transaction.transaction_id == transaction.result.msg_id
        assert (before, transaction.state) == (None, COMMIT)
        await until_read(wire, b"paid")
        (message,) = await wire.messages("orders")
        assert (message.tag, message.keys, message.msg_id) == ("UA", ("1",), transaction.transaction_id)
        assert message.transaction_id == transaction.transaction_id


async def test_a_block_that_raises_rolls_back(tmp_path: Path) -> None:
    async with broker(tmp_path) as wire, payers(wire, transaction_checker=never) as producer:
        with pytest.raises(ValueError, match="no money"):
            async with producer.transaction(Message("orders", b"paid")) as transaction:
                raise ValueError("no money")
        assert transaction.state is ROLLBACK
        await until_ended(wire)
        assert await bodies(wire) == []


async def test_a_block_may_say_otherwise(tmp_path: Path) -> None:
    book = Book()
    async with broker(tmp_path, **QUICK) as wire, payers(wire, transaction_checker=book.check) as producer:
        async with producer.transaction(Message("orders", b"one")) as transaction:
            transaction.rollback()
        assert transaction.state is ROLLBACK

        async def work() -> None:
            nonlocal transaction
            async with producer.transaction(Message("orders", b"two")) as transaction:
                transaction.unknown()  # the database was told to commit, and its answer is awaited
                book.states[transaction.transaction_id] = COMMIT
                raise ConnectionError

        with pytest.raises(ConnectionError):
            await work()
        assert transaction.state is UNKNOWN
        await until_read(wire, b"two")


async def test_a_cancelled_block_is_left_to_the_checker(tmp_path: Path) -> None:
    book = Book()
    async with broker(tmp_path, **QUICK) as wire, payers(wire, transaction_checker=book.check) as producer:
        with anyio.CancelScope() as scope:
            async with producer.transaction(Message("orders", b"paid")) as transaction:
                book.states[transaction.transaction_id] = COMMIT
                scope.cancel()
                await anyio.sleep(PATIENCE)
        assert scope.cancelled_caught
        assert transaction.state is UNKNOWN
        await until_read(wire, b"paid")
        assert {message.msg_id for message in book.asked} == {transaction.transaction_id}
        assert book.asked[0].topic == "orders"


@pytest.mark.parametrize("state", [COMMIT, ROLLBACK])
async def test_work_says_how_the_transaction_ends(tmp_path: Path, state: LocalTransactionState) -> None:
    async def work(transaction: Transaction) -> LocalTransactionState:
        assert transaction.message.body == b"paid"
        return state

    def work_in_thread(transaction: Transaction) -> LocalTransactionState:
        assert threading.current_thread() is not threading.main_thread()
        return state

    async with broker(tmp_path) as wire, payers(wire, transaction_checker=never) as producer:
        for each in (work, work_in_thread):
            sent = await producer.send_in_transaction(Message("orders", b"paid"), each)
            assert sent.state is state
            assert sent.transaction_id == sent.result.msg_id
        await until_ended(wire)
        assert await bodies(wire) == ([b"paid"] * 2 if state is COMMIT else [])


async def test_work_that_raises_or_returns_nothing_is_left_to_the_checker(tmp_path: Path) -> None:
    book = Book()

    async def raises(transaction: Transaction) -> LocalTransactionState:
        book.states[transaction.transaction_id] = COMMIT
        raise OSError("the answer of the database was lost")

    async def forgets(transaction: Transaction) -> None:
        book.states[transaction.transaction_id] = ROLLBACK

    async with broker(tmp_path, **QUICK) as wire, payers(wire, transaction_checker=book.check) as producer:
        with pytest.raises(OSError, match="was lost"):
            await producer.send_in_transaction(Message("orders", b"one"), raises)
        with pytest.raises(ClientError, match=r"forgets, returned None; it must return a LocalTransactionState"):
            await producer.send_in_transaction(Message("orders", b"two"), forgets)  # type: ignore[arg-type]
        await until_ended(wire)
        assert await bodies(wire) == [b"one"]


async def test_the_end_that_is_lost_is_asked_for(tmp_path: Path) -> None:
    """The connection is gone when the block ends: the message arrives all the same."""
    book = Book()
    async with broker(tmp_path, **QUICK) as wire, payers(wire, transaction_checker=book.check) as producer:
        async with producer.transaction(Message("orders", b"paid")) as transaction:
            book.states[transaction.transaction_id] = COMMIT
            producer.instance.routes.brokers.clear()  # nobody knows where the broker is
        await until_read(wire, b"paid")


async def test_another_producer_of_the_group_is_asked_when_the_first_one_is_gone(tmp_path: Path) -> None:
    book = Book()
    async with broker(tmp_path, **PATIENT) as wire:
        async with payers(wire, transaction_checker=book.check) as producer:
            transaction = producer.transaction(Message("orders", b"paid"))
            await transaction.begin()
            book.states[transaction.transaction_id] = COMMIT
        async with payers(wire, transaction_checker=book.check):  # it sends nothing
            await until_read(wire, b"paid")


async def test_what_a_killed_process_had_begun_the_next_producer_decides_by_what_its_work_has_written(
    tmp_path: Path,
) -> None:
    """Row C45: SIGKILL between half and end, without a goodbye to the broker. Three works were done, two were not."""
    book, asked = tmp_path / "book", set[bytes]()

    async def look(message: MessageExt) -> LocalTransactionState:
        asked.add(message.body)
        return COMMIT if message.transaction_id in book.read_text().split() else ROLLBACK

    async with broker(tmp_path / "store", **PATIENT) as wire:
        address = wire.servers.name_server_address
        arguments = (address, "payers", "orders", str(book), *(f"order {number}" for number in range(5)))
        with running_module("tests.support.client.producer_process", *arguments) as process:
            with anyio.fail_after(PATIENCE):
                await process.until("begun")
            process.kill()
        assert len(wire.servers.broker.halves) == 5
        async with payers(wire, transaction_checker=look):  # it sends nothing
            await until_ended(wire)
            assert sorted(await bodies(wire)) == [b"order 0", b"order 2", b"order 4"]
            assert asked == {b"order %d" % number for number in range(5)}
        assert await wire.messages("TRANS_CHECK_MAX_TIME_TOPIC") == []


async def test_a_checker_that_raises_commits_nothing_and_is_asked_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Row C45 of the catalogue of failures."""
    asked = 0

    def check(message: MessageExt) -> LocalTransactionState:
        nonlocal asked
        asked += 1
        if asked < 3:
            raise ConnectionError("no database\n2026-01-01 ERROR of a message's own")
        return ROLLBACK

    async with broker(tmp_path, **QUICK) as wire, payers(wire, transaction_checker=check) as producer:
        await producer.transaction(Message("orders", b"paid")).begin()
        await until_ended(wire)
        assert asked == 3
        assert await bodies(wire) == []
    told = [record.getMessage() for record in caplog.records if "the checker could not tell" in record.getMessage()]
    assert told
    assert not any("\n" in line for line in told)


@pytest.mark.parametrize("ended_by", [asyncio.CancelledError, SystemExit])
@pytest.mark.parametrize("kind", ["async def", "def", "its task"])
async def test_a_checker_that_ends_itself_ends_nothing_else(
    tmp_path: Path, ended_by: type[BaseException], kind: str, anyio_backend: str
) -> None:
    """As one that awaits a task which it has cancelled: no client ended with it, and no question that waited."""

    def ends_itself(message: MessageExt) -> LocalTransactionState:
        if message.body == b"one":
            raise ended_by
        return COMMIT

    async def ends_itself_in_the_loop(message: MessageExt) -> LocalTransactionState:
        if kind == "its task" and message.body == b"one" and (task := asyncio.current_task()) is not None:
            task.cancel()
            await anyio.lowlevel.checkpoint()
        return ends_itself(message)

    if kind == "its task" and anyio_backend != "asyncio":
        pytest.skip("only there a task can be cancelled")
    checker = ends_itself if kind == "def" else ends_itself_in_the_loop
    settings = {**QUICK, "transaction_check_max": 1_000}
    async with broker(tmp_path, **settings) as wire, payers(wire, transaction_checker=checker) as producer:
        for body in (b"one", b"two", b"three"):
            async with producer.transaction(Message("orders", body)) as transaction:
                transaction.unknown()
        await until_read(wire, b"two", b"three")
        with anyio.fail_after(PATIENCE):
            while producer._transactions.unanswered < 2:
                await anyio.sleep(0.02)
        await producer.send(Message("orders", b"four"))


async def test_a_checker_that_is_slower_than_the_questions_is_asked_once_and_answers_the_last(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker takes no answer that names a place which the half message has left long ago, Apache's none at all."""
    monkeypatch.setattr("rocketbox.client.transactions.SLOW_CHECK", 0.3)
    monkeypatch.setattr("rocketbox.broker.open_halves.PLACES_KEPT", 2)
    asked: list[bytes] = []
    go_on = anyio.Event()

    async def check(message: MessageExt) -> LocalTransactionState:
        asked.append(message.body)
        if asked.count(message.body) > 1:  # a question that was on its way when the first one was answered
            return UNKNOWN
        await go_on.wait()
        return COMMIT

    settings = {**QUICK, "transaction_check_max": 1_000}
    async with broker(tmp_path, **settings) as wire, payers(wire, transaction_checker=check) as producer:
        for body in (b"one", b"two"):
            async with producer.transaction(Message("orders", body)) as transaction:
                transaction.unknown()
        checks = wire.servers.broker.transaction_checks
        with anyio.fail_after(PATIENCE):
            while checks.asked < 12 or "questions wait behind it" not in caplog.text:
                await anyio.sleep(0.02)
        assert asked == [b"one"]  # and the other one waits behind it
        go_on.set()
        await until_read(wire, b"one", b"two")
        await until_ended(wire)
    assert "has looked into transaction" in caplog.text


async def test_a_checker_whose_thread_hangs_keeps_no_producer_from_its_end(tmp_path: Path) -> None:
    began, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def check(message: MessageExt) -> LocalTransactionState:
        began.set()
        go_on.wait(PATIENCE)
        ended.set()
        return COMMIT

    try:
        async with broker(tmp_path, **QUICK) as wire:
            async with payers(wire, transaction_checker=check) as producer:
                async with producer.transaction(Message("orders", b"paid")) as transaction:
                    transaction.unknown()
                with anyio.fail_after(PATIENCE):
                    while not began.is_set():
                        await anyio.sleep(0.02)
            assert not ended.is_set()
    finally:
        go_on.set()


async def test_a_question_whose_message_cannot_be_read_is_told_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Brokers ask one-way: what is answered reaches nobody, and the transaction is given up in the end."""
    options = ClientOptions(max_unpacked_bytes=1_000)
    async with (
        broker(tmp_path, **QUICK) as wire,
        payers(wire, transaction_checker=never, client_options=options) as producer,
    ):
        message = Message("orders", b"x" * 1_001, compression=Compression.ZLIB)
        await producer.transaction(message).begin()
        with anyio.fail_after(PATIENCE):
            while "its message cannot be read here" not in caplog.text:
                await anyio.sleep(0.02)
        assert producer._transactions.unanswered == 0


@pytest.mark.parametrize("seconds", ["soon", "-1", "1.5", "\u0663"])
async def test_a_time_of_immunity_that_is_no_number_of_seconds_is_refused(tmp_path: Path, seconds: str) -> None:
    async with broker(tmp_path) as wire, payers(wire, transaction_checker=never) as producer:
        message = Message("orders", b"x", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": seconds})
        with pytest.raises(InvalidMessageError, match="a whole number of seconds"):
            await producer.transaction(message).begin()


async def test_what_is_said_after_the_end_is_refused(tmp_path: Path) -> None:
    async with broker(tmp_path) as wire, payers(wire, transaction_checker=never) as producer:
        async with producer.transaction(Message("orders", b"paid")) as transaction:
            pass
        with pytest.raises(ClientStateError, match="has ended, and the broker was told COMMIT"):
            transaction.rollback()
        with pytest.raises(ClientStateError, match="has ended"):
            transaction.unknown()


async def test_work_that_has_said_rollback_is_rolled_back_whatever_it_returns(tmp_path: Path) -> None:
    async def work(transaction: Transaction) -> LocalTransactionState:
        transaction.rollback()
        return COMMIT

    async with broker(tmp_path) as wire, payers(wire, transaction_checker=never) as producer:
        result = await producer.send_in_transaction(Message("orders", b"paid"), work)
        assert result.state is ROLLBACK
        await until_ended(wire)
        assert await bodies(wire) == []


async def test_a_transaction_that_two_begin_is_sent_once(tmp_path: Path) -> None:
    async with broker(tmp_path) as wire, payers(wire, transaction_checker=never) as producer:
        transaction = producer.transaction(Message("orders", b"paid"))
        with pytest.raises(ClientStateError, match="has not begun"):
            await transaction.end(COMMIT)
        assert transaction.state is None
        refused: list[ClientStateError] = []

        async def begin() -> None:
            try:
                await transaction.begin()
            except ClientStateError as error:
                refused.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(begin)
            tasks.start_soon(begin)
        assert len(refused) == 1
        assert len(wire.servers.broker.halves) == 1
        await transaction.end(COMMIT)
        await until_read(wire, b"paid")


async def test_who_is_told_of_the_end_changes_nothing_by_raising(tmp_path: Path) -> None:
    async def listens(context: SendContext, send: SendNext) -> SendResult | None:
        def told(state: LocalTransactionState) -> None:
            raise RuntimeError("no trace")

        assert context.transaction is not None
        context.transaction.on_end(told)
        return await send(context)

    client = ClientOptions(send_middleware=(listens,))
    async with (
        broker(tmp_path) as wire,
        payers(wire, transaction_checker=never, client_options=client) as producer,
    ):
        async with producer.transaction(Message("orders", b"paid")):
            pass
        await until_read(wire, b"paid")


async def test_properties_without_room_for_what_the_broker_adds_are_refused(tmp_path: Path) -> None:
    async with broker(tmp_path) as wire, payers(wire, transaction_checker=never) as producer:
        with pytest.raises(InvalidMessageError, match="at most 32255 are allowed in a transaction"):
            await producer.transaction(Message("orders", b"paid", properties={"pad": "x" * 32_200})).begin()
        assert len(wire.servers.broker.halves) == 0


async def test_checkers_are_for_topics_and_tags(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []

    def checker(name: str):  # type: ignore[no-untyped-def]
        async def check(message: MessageExt) -> LocalTransactionState:
            seen.append((name, message.body.decode()))
            return ROLLBACK

        return check

    async with broker(tmp_path, **QUICK) as wire, payers(wire) as producer:
        producer.add_transaction_checker(checker("paid"), topic="orders", tags=["paid", "prepaid"])
        others = producer.add_transaction_checker(checker("sent"), topic="orders", tags=["sent"])
        producer.add_transaction_checker(checker("rest"))
        with pytest.raises(ClientStateError, match="for orders with tag prepaid"):
            producer.add_transaction_checker(checker("x"), topic="orders", tags=["prepaid"])
        with pytest.raises(ClientStateError, match="for all topics"):
            producer.add_transaction_checker(checker("x"))
        for topic, tag in (("orders", "prepaid"), ("orders", "sent"), ("orders", None), ("bills", "paid")):
            await producer.transaction(Message(topic, f"{topic} {tag}".encode(), tag=tag)).begin()
        await until_ended(wire)
        assert sorted(seen) == [
            ("paid", "orders prepaid"), ("rest", "bills paid"), ("rest", "orders None"), ("sent", "orders sent"),
        ]  # fmt: skip
        others.remove()
        producer.add_transaction_checker(checker("sent again"), topic="orders", tags=["sent"])


async def test_what_nobody_could_check_is_not_sent(tmp_path: Path) -> None:
    async with broker(tmp_path) as wire, payers(wire) as producer:
        with pytest.raises(InvalidMessageError, match="producer payers has no transaction checker"):
            async with producer.transaction(Message("orders", b"x")):
                raise AssertionError("it begins")
        producer.add_transaction_checker(never, topic="orders", tags=["paid"])
        with pytest.raises(InvalidMessageError, match=r"tag 'sent': the checkers of .* are for orders:paid"):
            await producer.transaction(Message("orders", b"x", tag="sent")).begin()
        with pytest.raises(InvalidMessageError, match="has a delay"):
            await producer.transaction(Message("orders", b"x", tag="paid", delay_level=3)).begin()
        assert len(wire.servers.broker.halves) == 0
    with pytest.raises(NotStartedError):
        await producer.transaction(Message("orders", b"x", tag="paid")).begin()


async def test_a_check_that_is_not_anybodys_is_left_open(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It was begun by another version of the service, which had a checker for it."""
    async with broker(tmp_path, **QUICK) as wire, payers(wire) as producer:
        route = producer.add_transaction_checker(never, topic="orders")
        await producer.transaction(Message("orders", b"x")).begin()
        route.remove()
        with anyio.fail_after(PATIENCE):
            while "has no checker for that" not in caplog.text:
                await anyio.sleep(0.02)
        assert len(wire.servers.broker.halves) == 1


async def test_checks_run_as_many_at_once_as_the_pool_says(tmp_path: Path) -> None:
    running = most = done = 0
    go_on = anyio.Event()

    async def check(message: MessageExt) -> LocalTransactionState:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        await go_on.wait()
        running -= 1
        done += 1
        return COMMIT

    options = TransactionCheckOptions(core_pool_size=2, maximum_pool_size=3, blocking_queue_size=1)
    settings = {"transaction_time_out": 0, "transaction_check_interval": 500}
    async with (
        broker(tmp_path, **settings) as wire,
        payers(wire, transaction_checker=check, check_options=options) as producer,
    ):
        for number in range(6):
            await producer.transaction(Message("orders", b"%d" % number)).begin()
        with anyio.fail_after(PATIENCE):
            while running < 3:
                await anyio.sleep(0.02)
        await anyio.sleep(0.1)
        assert most == 3, "two, one that waits, and a third worker for the fourth"
        go_on.set()
        await until_ended(wire)
        assert sorted(await bodies(wire)) == [b"%d" % number for number in range(6)]


async def test_a_half_message_that_is_not_safe_is_rolled_back(tmp_path: Path) -> None:
    """Row C36: the middleware tells of a weak acknowledgement, as a broker with a slow disk does."""

    async def weak(context: SendContext, call_next: SendNext) -> SendResult | None:
        result = await call_next(context)
        assert isinstance(result, SendResult)
        raise NotDurableError(result)

    options = ClientOptions(send_middleware=(weak,))
    async with (
        broker(tmp_path) as wire,
        payers(wire, transaction_checker=never, client_options=options) as producer,
    ):
        with pytest.raises(NotDurableError):
            async with producer.transaction(Message("orders", b"x")):
                raise AssertionError("it begins")
        await until_ended(wire)
        assert await bodies(wire) == []


async def test_middlewares_see_half_messages(tmp_path: Path) -> None:
    seen: list[tuple[bool, bytes]] = []

    async def look(context: SendContext, call_next: SendNext) -> SendResult | None:
        seen.append((context.transaction is not None, context.messages[0].body))
        return await call_next(context)

    options = ClientOptions(send_middleware=(look,))
    async with (
        broker(tmp_path) as wire,
        payers(wire, transaction_checker=never, client_options=options) as producer,
    ):
        async with producer.transaction(Message("orders", b"x")):
            pass
        await producer.send(Message("orders", b"y"))
        await until_read(wire, b"x", b"y")
    assert seen == [(True, b"x"), (False, b"y")]


async def test_a_transaction_in_a_namespace(tmp_path: Path) -> None:
    book = Book()
    options = ClientOptions(namespace="team")
    async with (
        broker(tmp_path, **QUICK) as wire,
        payers(wire, transaction_checker=book.check, client_options=options) as producer,
    ):
        async with producer.transaction(Message("orders", b"one")):
            pass
        transaction = producer.transaction(Message("orders", b"two"))
        await transaction.begin()
        book.states[transaction.transaction_id] = COMMIT
        await until_ended(wire)
        assert await bodies(wire, "team%orders") == [b"one", b"two"]
        assert {message.topic for message in book.asked} == {"orders"}


async def test_a_large_message_in_a_transaction_is_compressed_and_read_by_its_checker(tmp_path: Path) -> None:
    book = Book()
    body = b"z" * 50_000
    async with broker(tmp_path, **QUICK) as wire, payers(wire, transaction_checker=book.check) as producer:
        transaction = producer.transaction(Message("orders", body))
        await transaction.begin()
        book.states[transaction.transaction_id] = COMMIT
        await until_read(wire, body)
        assert book.asked[0].body == body


async def test_what_was_open_is_asked_about_after_the_broker_was_started_again(tmp_path: Path) -> None:
    book = Book()
    async with broker(tmp_path) as wire, payers(wire, transaction_checker=book.check) as producer:
        transaction = producer.transaction(Message("orders", b"paid"))
        await transaction.begin()
        book.states[transaction.transaction_id] = COMMIT
    async with broker(tmp_path, **PATIENT) as wire, payers(wire, transaction_checker=book.check):
        await until_read(wire, b"paid")


async def test_a_checker_of_a_topic_is_asked_where_brokers_make_no_topics(tmp_path: Path) -> None:
    book = Book()
    async with broker(tmp_path) as wire, payers(wire, transaction_checker=book.check) as producer:
        transaction = producer.transaction(Message("orders", b"paid"))
        await transaction.begin()
        book.states[transaction.transaction_id] = COMMIT
    async with broker(tmp_path, auto_create_topic_enable=False, **PATIENT) as wire, payers(wire) as producer:
        producer.add_transaction_checker(book.check, topic="orders")
        await until_read(wire, b"paid")
