"""Transactions: our producer on Apache's brokers, and Apache's on ours, with every way to end and a check for each."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from rocketbox.client import Admin, Producer, ProducerOptions
from rocketbox.message import LocalTransactionState, Message, MessageExt
from tests.conformance.apache import EACH_BUT_NEWEST_BETWEEN, EACH_VERSION
from tests.conformance.java_exchange import SMALL_AND_QUICK
from tests.conformance.java_program import JavaProgram
from tests.conformance.servers import OURS
from tests.support.broker.broker_process import BrokerProcess

pytestmark = [pytest.mark.apache, pytest.mark.smoke]

SECONDS = 90.0
SEND = ProducerOptions(send_message_timeout=12.0)
COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK, LocalTransactionState.UNKNOWN


class Book:
    """What the work of transactions has written, by their ids."""

    def __init__(self) -> None:
        self.states: dict[str, LocalTransactionState] = {}
        self.asked: list[MessageExt] = []

    async def check(self, message: MessageExt) -> LocalTransactionState:
        self.asked.append(message)
        assert message.transaction_id is not None
        return self.states.get(message.transaction_id, UNKNOWN)


async def bodies(admin: Admin, topic: str) -> list[bytes]:
    """All messages of a topic that consumers may get, in no order."""
    found = []
    for queue in await admin.queues(topic):
        end = await admin.max_offset(queue)
        offset = await admin.min_offset(queue)
        while offset < end:
            pulled = await admin.pull(queue, offset)
            found += [message.body for message in pulled.messages]
            offset = pulled.next_begin_offset
    return sorted(found)


async def until_read(admin: Admin, topic: str, *expected: bytes) -> None:
    with anyio.fail_after(SECONDS):
        while await bodies(admin, topic) != sorted(expected):
            await anyio.sleep(0.2)


@pytest.mark.anyio
async def test_every_end_of_a_transaction(name_server: str, topic: str) -> None:
    book = Book()

    async def says_nothing(transaction: object) -> LocalTransactionState:
        return UNKNOWN

    async with (
        Admin(name_server=name_server) as admin,
        Producer(f"p-{topic}", name_server=name_server, options=SEND, transaction_checker=book.check) as producer,
    ):
        async with producer.transaction(Message(topic, b"committed", tag="A", keys=["k"])) as first:
            book.states[first.transaction_id] = COMMIT
        async with producer.transaction(Message(topic, b"rolled back")) as second:
            book.states[second.transaction_id] = ROLLBACK
            second.rollback()
        for body, state in ((b"checked, committed", COMMIT), (b"checked, rolled back", ROLLBACK)):
            transaction = producer.transaction(Message(topic, body))
            await transaction.begin()
            book.states[transaction.transaction_id] = state
        large = producer.transaction(Message(topic, b"z" * 20_000))
        await large.begin()
        book.states[large.transaction_id] = COMMIT
        sent = await producer.send_in_transaction(Message(topic, b"nobody knows"), says_nothing)
        assert sent.state is UNKNOWN
        await until_read(admin, topic, b"committed", b"checked, committed", b"z" * 20_000)
        asked = {message.body: message for message in book.asked}
        assert {b"checked, committed", b"z" * 20_000} <= asked.keys()
        assert {message.topic for message in book.asked} == {topic}
        viewed = await admin.view(first.result.offset_msg_id)
        assert viewed.transaction_id == first.transaction_id


@pytest.mark.anyio
@pytest.mark.parametrize("name_server", EACH_BUT_NEWEST_BETWEEN, indirect=True)  # it takes 10 s and more
async def test_work_that_ends_shortly_before_a_check_is_delivered_once(name_server: str, topic: str) -> None:
    """Brokers from 5.0 on learn from themselves only up to 3 s later that a half message is done. A check in between
    asks about a copy of it, and a commit of that would be a second message."""
    book, names = Book(), [b"%d" % number for number in range(40)]
    async with (
        Admin(name_server=name_server) as admin,
        Producer(f"p-{topic}", name_server=name_server, options=SEND, transaction_checker=book.check) as producer,
    ):
        await admin.create_topic(topic, queues=1)

        async def work(body: bytes, seconds: float) -> None:
            async with producer.transaction(Message(topic, body)) as transaction:
                await anyio.sleep(seconds)
                book.states[transaction.transaction_id] = COMMIT

        async with anyio.create_task_group() as tasks:
            for number, body in enumerate(names):
                tasks.start_soon(work, body, 3 + number / 10)
        with anyio.fail_after(SECONDS):
            while not set(names) <= set(await bodies(admin, topic)):
                await anyio.sleep(0.2)
        await anyio.sleep(4)  # a check and what follows from it
        assert await bodies(admin, topic) == sorted(names)


@pytest.mark.anyio
@pytest.mark.parametrize("name_server", EACH_BUT_NEWEST_BETWEEN, indirect=True)  # the same
async def test_a_transaction_whose_process_is_killed_is_asked_about_at_the_next_producer_and_ends_once(
    name_server: str, topic: str
) -> None:
    group = f"p-{topic}"
    asked: list[tuple[str | None, bytes, str | None, tuple[str, ...]]] = []
    states = {b"committed": COMMIT, b"rolled back": ROLLBACK}

    async def check(message: MessageExt) -> LocalTransactionState:
        asked.append((message.transaction_id, message.body, message.tag, message.keys))
        return states[message.body]

    ids = []
    for body in states:
        command = [sys.executable, "-m", "tests.support.client.half_message_process", name_server, group, topic]
        async with await anyio.open_process([*command, body.decode()], stderr=None) as killed:
            assert killed.stdout is not None
            with anyio.fail_after(SECONDS):
                ids.append((await BufferedByteReceiveStream(killed.stdout).receive_until(b"\n", 200)).decode())
            killed.kill()
    async with (
        Admin(name_server=name_server) as admin,
        Producer(group, name_server=name_server, options=SEND, transaction_checker=check) as producer,
    ):
        await until_read(admin, topic, b"committed")
        with anyio.fail_after(SECONDS):
            while len(asked) < 2:
                await anyio.sleep(0.05)
        # One more that is asked about: by then brokers have looked at those before once more.
        states[b"last"] = COMMIT
        await producer.transaction(Message(topic, b"last")).begin()
        await until_read(admin, topic, b"committed", b"last")
    wanted = list(zip(ids, (b"committed", b"rolled back"), ("A", "A"), (("k",), ("k",)), strict=True))
    assert [each for each in asked if each[1] != b"last"] == wanted


@pytest.mark.anyio
@pytest.mark.parametrize("name_server", EACH_BUT_NEWEST_BETWEEN, indirect=True)  # the same
async def test_what_is_committed_by_a_check_is_not_committed_again_at_the_end_of_its_work(
    name_server: str, topic: str
) -> None:
    """Apache's brokers store a half message that is committed twice as two."""
    book = Book()
    async with (
        Admin(name_server=name_server) as admin,
        Producer(f"p-{topic}", name_server=name_server, options=SEND, transaction_checker=book.check) as producer,
    ):
        await admin.create_topic(topic, queues=1)
        async with producer.transaction(Message(topic, b"paid")) as transaction:
            book.states[transaction.transaction_id] = COMMIT
            await until_read(admin, topic, b"paid")
        async with producer.transaction(Message(topic, b"last")):
            pass
        await until_read(admin, topic, b"paid", b"last")


@pytest.mark.parametrize("version", EACH_VERSION)
def test_apaches_producer_on_the_embedded_broker(version: str, topic: str, tmp_path: Path) -> None:
    settings = [f"--{name}={value}" for name, value in OURS.items()]
    with (
        BrokerProcess(tmp_path / "store", *settings) as broker,
        JavaProgram(
            "rocketbox.Transactions", broker.name_server, f"p-{topic}", topic, options=SMALL_AND_QUICK, version=version
        ) as java,
    ):
        assert java.told.readline().strip() == "started"
        states = {"commit": "COMMIT_MESSAGE", "rollback": "ROLLBACK_MESSAGE", "unknown": "UNKNOW"}
        checked = []
        for line in ("commit commit one", "rollback rollback two", "unknown commit three", "unknown rollback four"):
            java.tell(line)
            while not (answer := java.told.readline().strip()).startswith("sent "):
                checked.append(answer)
            assert answer.endswith(states[line.split()[0]])

        async def read() -> None:
            async with Admin(name_server=broker.name_server) as admin:
                await until_read(admin, topic, b"one", b"three")

        anyio.run(read)
        while len(checked) < 2:
            checked.append(java.told.readline().strip())
        assert {tuple(each.split()[2:]) for each in checked} == {(topic, "three"), (topic, "four")}
