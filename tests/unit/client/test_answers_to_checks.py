"""What a producer answers a broker that asks about a transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from rocketbox.broker.transaction_records import check_request
from rocketbox.client import ClientOptions, Producer, Transaction
from rocketbox.client.transaction_checks import TransactionChecker
from rocketbox.clock import RealClock
from rocketbox.errors import ClientStateError, SendTimeoutError
from rocketbox.message import LocalTransactionState, Message, MessageExt
from rocketbox.protocol.codes import TRANS_HALF_TOPIC, RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.stored_message import StoredMessage, decode_message, encode_stored_message
from tests.support.client.scripted_cluster import ScriptedCluster
from tests.support.clocks import VirtualClock, idle, settle
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


async def commit(message: MessageExt) -> LocalTransactionState:
    return LocalTransactionState.COMMIT


@pytest.mark.parametrize("namespace", [None, "team"])
async def test_an_answer_names_the_topic_of_the_message_as_servers_know_it(namespace: str | None) -> None:
    """Apache's brokers ask with the name of their own topic for halves, and let nobody write to that (ACL 2.0)."""
    stored = "team%orders" if namespace else "orders"

    clock = RealClock()
    cluster = ScriptedCluster(clock)
    cluster.add_topic(stored)
    cluster.broker.scripts[RequestCode.END_TRANSACTION] = lambda connection, request: RemotingCommand.response()
    async with cluster, Producer(
        "payers", name_server=cluster.name_server.address, transaction_checker=commit,
        client_options=ClientOptions(namespace=namespace, client_ip="192.0.2.7"), clock=clock,
        network=cluster.network,
    ) as producer:  # fmt: skip
        await producer.transaction(Message("orders", b"paid")).begin()
        (connection,) = cluster.broker.connections
        group = "team%payers" if namespace else "payers"
        half = StoredMessage(
            TRANS_HALF_TOPIC, 0, b"paid",
            f"PGROUP\x01{group}\x02REAL_TOPIC\x01{stored}\x02REAL_QID\x010\x02UNIQ_KEY\x01A\x02".encode(),
        )  # fmt: skip
        record = encode_stored_message(half, place=(0, 0, 1, (b"\x7f\0\0\1", 10911)))
        connection.send_oneway(check_request(decode_message(record)[0], 0, 0, 1, "broker-a"))
        await until(lambda: bool(cluster.broker.requested(RequestCode.END_TRANSACTION)))
    (answer,) = cluster.broker.requested(RequestCode.END_TRANSACTION)
    fields = answer.ext_fields
    assert (fields["topic"], fields["producerGroup"], fields["commitOrRollback"]) == (stored, group, "8")


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_broker_that_is_silent_delays_one_transaction_by_a_second_and_no_other(anyio_backend: str) -> None:
    """Each broker of the topic is told of the producer first, so that it can ask; one of them takes no heartbeat."""
    clock = VirtualClock(settle=idle)
    cluster = ScriptedCluster(clock, brokers=("broker-a", "broker-b", "broker-c"))
    cluster.add_topic("orders")
    cluster.add_topic("bills", brokers=("broker-c",))
    for name in ("broker-a", "broker-b"):
        cluster.brokers[name].scripts[RequestCode.HEART_BEAT] = lambda connection, request: None

    async def run() -> None:
        async with cluster, Producer(
            "payers", name_server=cluster.name_server.address, transaction_checker=commit,
            client_options=ClientOptions(client_ip="192.0.2.7"), clock=clock, network=cluster.network,
        ) as producer:  # fmt: skip
            took = []
            for number in range(9):
                began = clock.now
                await producer.transaction(Message("bills" if number % 2 else "orders", b"paid")).begin()
                took.append(clock.now - began)
            assert took == [1.0, *[0.0] * 8]
            assert cluster.brokers["broker-c"].requested(RequestCode.HEART_BEAT)
            await clock.sleep(5.0)  # the heartbeats have failed by then
            began = clock.now
            await producer.transaction(Message("orders", b"paid")).begin()
            assert clock.now == began

    await clock.run(run)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_time_of_a_transactions_send_holds_with_what_comes_before_it(anyio_backend: str) -> None:
    clock = VirtualClock(settle=idle)
    cluster = ScriptedCluster(clock)
    cluster.add_topic("orders")
    cluster.broker.scripts[RequestCode.HEART_BEAT] = lambda connection, request: None
    cluster.broker.on_send = lambda request: None

    async def run() -> None:
        async with cluster, Producer(
            "payers", name_server=cluster.name_server.address, transaction_checker=commit,
            client_options=ClientOptions(client_ip="192.0.2.7"), clock=clock, network=cluster.network,
        ) as producer:  # fmt: skip
            for timeout in (3.0, 0.5):
                began = clock.now
                with pytest.raises(SendTimeoutError):
                    await producer.transaction(Message("orders", b"paid"), timeout=timeout).begin()
                assert timeout <= clock.now - began <= timeout + 0.2
                assert len(cluster.broker.sends) == (1 if timeout == 3.0 else 2), "half of the time is left to send"

    await clock.run(run)


@pytest.mark.parametrize("looks_after_the_end", [False, True])
async def test_work_that_outlasts_a_check_ends_the_half_message_that_was_asked_about_and_is_answered_once(
    looks_after_the_end: bool,
) -> None:
    """Apache's brokers store a half message anew before they ask; who ends the first one leaves the new one open, and
    it is committed a second time by a later check. And two commits of one half message are stored as two."""
    clock = RealClock()
    cluster = ScriptedCluster(clock)
    cluster.add_topic("orders")
    cluster.broker.scripts[RequestCode.END_TRANSACTION] = lambda connection, request: RemotingCommand.response()
    asked, may_look, looked = anyio.Event(), anyio.Event(), anyio.Event()

    async def check(message: MessageExt) -> LocalTransactionState:
        asked.set()
        await may_look.wait()
        looked.set()
        return LocalTransactionState.COMMIT if looks_after_the_end else LocalTransactionState.UNKNOWN

    def ends() -> list[tuple[str, ...]]:
        names = ("tranStateTableOffset", "commitLogOffset", "commitOrRollback", "fromTransactionCheck")
        told = cluster.broker.requested(RequestCode.END_TRANSACTION)
        return [tuple(request.ext_fields[name] for name in names) for request in told]

    async with cluster, Producer(
        "payers", name_server=cluster.name_server.address, transaction_checker=check,
        client_options=ClientOptions(client_ip="192.0.2.7"), clock=clock, network=cluster.network,
    ) as producer:  # fmt: skip
        transaction = producer.transaction(Message("orders", b"paid"))
        async with transaction:
            ask_about(cluster, transaction)
            await asked.wait()
            if not looks_after_the_end:
                may_look.set()
                await until(lambda: bool(ends()))
        unknown, commit_ = ("7", "7000", "0", "true"), ("7", "7000", "8", "false")
        if looks_after_the_end:
            may_look.set()
            await looked.wait()
        await until(lambda: commit_ in ends())
        asked = anyio.Event()
        ask_about(cluster, transaction, queue_offset=9)  # the end was lost: this is answered
        await until(lambda: ("9", "9000", "8" if looks_after_the_end else "0", "true") in ends())
    assert ends()[:-1] == ([commit_] if looks_after_the_end else [unknown, commit_])


@asynccontextmanager
async def payers_at(
    checker: TransactionChecker, *, is_broker: bool = True, end_code: int = 0
) -> AsyncIterator[tuple[ScriptedCluster, VirtualClock, Producer]]:
    """A producer at a broker that says that it is one, or at a proxy, which does not. It answers ends with a code."""
    clock = VirtualClock()
    cluster = ScriptedCluster(clock)
    cluster.add_topic("orders")
    fields = {"IS_SUPPORT_HEART_BEAT_V2": "true"} if is_broker else {}
    cluster.broker.scripts[RequestCode.HEART_BEAT] = lambda connection, request: RemotingCommand.response(
        ext_fields=fields
    )
    cluster.broker.scripts[RequestCode.END_TRANSACTION] = lambda connection, request: RemotingCommand.response(end_code)
    async with cluster, Producer(
        "payers", name_server=cluster.name_server.address, transaction_checker=checker,
        client_options=ClientOptions(client_ip="192.0.2.7"), clock=clock, network=cluster.network,
    ) as producer:  # fmt: skip
        yield cluster, clock, producer


def ask_about(cluster: ScriptedCluster, transaction: Transaction, *, queue_offset: int = 7) -> None:
    """Have the broker ask about a half message as one of Apache's does: about a copy that lies further behind."""
    half = StoredMessage(
        TRANS_HALF_TOPIC, 0, b"paid",
        f"PGROUP\x01payers\x02REAL_TOPIC\x01orders\x02REAL_QID\x010\x02UNIQ_KEY\x01{transaction.transaction_id}"
        "\x02".encode(),
    )  # fmt: skip
    record = decode_message(encode_stored_message(half, place=(0, 0, 1, (b"\x7f\0\0\1", 10911))))[0]
    (connection,) = cluster.broker.connections
    connection.send_oneway(check_request(record, queue_offset, queue_offset * 1000, 1, "broker-a"))


def ends_of(cluster: ScriptedCluster) -> list[tuple[str, int, str]]:
    """What the broker was told: how, of the half message at which offset, and the end."""
    names = {"8": "commit", "12": "rollback", "0": "unknown"}
    return [
        (
            "one-way" if request.is_oneway else "request",
            int(request.ext_fields["tranStateTableOffset"]),
            names[request.ext_fields["commitOrRollback"]],
        )
        for request in cluster.broker.requested(RequestCode.END_TRANSACTION)
    ]


async def never(message: MessageExt) -> LocalTransactionState:
    raise AssertionError(f"{message} was checked")


async def test_the_copy_of_a_transaction_that_the_broker_has_ended_is_rolled_back_and_its_checker_not_asked() -> None:
    """Brokers from 5.0 on write up to 3 s later that a half message is done, and ask about a copy meanwhile."""
    async with payers_at(never) as (cluster, clock, producer):
        async with producer.transaction(Message("orders", b"paid")) as transaction:
            await clock.advance(5)
        first = transaction.result.queue_offset
        assert ends_of(cluster) == [("request", first, "commit")]
        for copy in (7, 8):
            ask_about(cluster, transaction, queue_offset=copy)
            await settle()
        assert ends_of(cluster)[1:] == [("one-way", 7, "rollback"), ("one-way", 8, "rollback")]
        assert transaction.state is LocalTransactionState.COMMIT
        assert not producer._transactions._ending


@pytest.mark.parametrize("why", ["a proxy", "quick work", "refused", "no answer", "another connection", "a minute"])
async def test_the_checker_decides_where_it_is_not_certain_that_the_broker_has_ended_a_transaction(why: str) -> None:
    """Apache's proxy answers before its broker has the end, and a broker that died since may have lost it."""
    code = ResponseCode.SYSTEM_ERROR if why == "refused" else 0
    async with payers_at(commit, is_broker=why != "a proxy", end_code=code) as (cluster, clock, producer):
        if why == "no answer":
            cluster.broker.scripts[RequestCode.END_TRANSACTION] = lambda connection, request: None
        transactions: list[Transaction] = []

        async def work() -> None:
            async with producer.transaction(Message("orders", b"paid")) as transaction:
                transactions.append(transaction)
                await clock.sleep(0.5 if why == "quick work" else 5)

        await clock.run(work)
        if why == "another connection":
            (connection,) = cluster.broker.connections
            connection.abort()
            cluster.broker.connections.clear()
            await clock.advance(0.2)
            await clock.run(lambda: send_one(producer))
        elif why == "a minute":
            await clock.advance(61)
        ask_about(cluster, transactions[0])
        await settle()
        way = "one-way" if why in ("a proxy", "quick work") else "request"
        first = transactions[0].result.queue_offset
        assert ends_of(cluster) == [(way, first, "commit"), ("one-way", 7, "commit")]


async def send_one(producer: Producer) -> None:
    await producer.send(Message("orders", b"another"))


@pytest.mark.parametrize("arrives", [True, False])
async def test_what_is_asked_while_the_end_is_on_its_way_is_answered_by_what_becomes_of_that(arrives: bool) -> None:
    may_look, may_end = anyio.Event(), anyio.Event()

    async def check(message: MessageExt) -> LocalTransactionState:
        await may_look.wait()
        return LocalTransactionState.COMMIT

    async def end(_: RemotingCommand) -> RemotingCommand:
        await may_end.wait()
        return RemotingCommand.response()

    async with payers_at(check) as (cluster, clock, producer):
        cluster.broker.scripts[RequestCode.END_TRANSACTION] = lambda connection, request: end(request)
        transaction = producer.transaction(Message("orders", b"paid"))
        await transaction.begin()
        await clock.advance(5)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(transaction.end, LocalTransactionState.COMMIT)
            await settle()
            ask_about(cluster, transaction)
            await settle()
            if arrives:
                may_end.set()
                await settle()
                may_look.set()
            else:  # not yet, when the checker has looked: it is left to be asked again
                may_look.set()
                await settle()
                may_end.set()
        await settle()
        first = ("request", transaction.result.queue_offset, "commit")
        assert ends_of(cluster) == ([first, ("one-way", 7, "rollback")] if arrives else [first])


@pytest.mark.parametrize("said", list(LocalTransactionState))
async def test_what_the_checker_has_said_while_the_work_went_on_is_not_told_again_at_its_end(
    said: LocalTransactionState, caplog: pytest.LogCaptureFixture
) -> None:
    """Apache's brokers store a half message that is committed twice as two. Where the work says another, it counts."""

    async def check(_: MessageExt) -> LocalTransactionState:
        return said

    async with payers_at(check) as (cluster, clock, producer):
        async with producer.transaction(Message("orders", b"paid")) as transaction:
            await clock.advance(7)
            ask_about(cluster, transaction)
            await settle()
            await clock.advance(7)
        await settle()
        told = [("one-way", 7, said.name.lower())]
        if said is not LocalTransactionState.COMMIT:
            told.append(("request", 7, "commit"))
        assert ends_of(cluster) == told
        assert transaction.state is LocalTransactionState.COMMIT
        assert transaction.from_check is (said is LocalTransactionState.COMMIT)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == (said is LocalTransactionState.ROLLBACK)
    assert all("its checker has said ROLLBACK while the work went on, which has ended it with COMMIT" in each
               for each in warnings)  # fmt: skip


async def test_a_transaction_ends_once() -> None:
    """Apache's brokers deliver what is committed behind a rollback, and twice what is committed twice."""
    async with payers_at(never) as (cluster, _, producer):
        async with producer.transaction(Message("orders", b"paid")) as transaction:
            await transaction.end(LocalTransactionState.ROLLBACK)
            with pytest.raises(ClientStateError, match="has ended, and the broker was told ROLLBACK"):
                await transaction.end(LocalTransactionState.COMMIT)
        committed = producer.transaction(Message("orders", b"paid"))

        async def fails_behind_its_end() -> None:
            async with committed:
                await committed.end(LocalTransactionState.COMMIT)
                raise KeyError

        with pytest.raises(KeyError):
            await fails_behind_its_end()

        async def work(worked: Transaction) -> LocalTransactionState:
            await worked.end(LocalTransactionState.ROLLBACK)
            return LocalTransactionState.COMMIT

        sent = await producer.send_in_transaction(Message("orders", b"paid"), work)
        await settle()
        assert [how for _, _, how in ends_of(cluster)] == ["rollback", "commit", "rollback"]
        states = (transaction.state, committed.state, sent.state)
        assert [state and state.name for state in states] == ["ROLLBACK", "COMMIT", "ROLLBACK"]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (None, "has not answered within 3 s that it has taken the COMMIT of transaction"),
        (ResponseCode.SYSTEM_ERROR, "has not taken the COMMIT of transaction"),
        (ResponseCode.SUCCESS, None),
    ],
)
async def test_an_end_that_the_broker_does_not_take_is_told_of(
    answer: ResponseCode | None, told: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    async with payers_at(never, end_code=answer or 0) as (cluster, clock, producer):
        if answer is None:
            cluster.broker.scripts[RequestCode.END_TRANSACTION] = lambda connection, request: None

        async def work() -> None:
            async with producer.transaction(Message("orders", b"paid")):
                await clock.sleep(5)

        await clock.run(work)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == (told is not None)
    assert told is None or told in warnings[0]


async def test_work_is_long_from_when_its_half_message_was_sent() -> None:
    """The broker counts from when it has stored that, which may be long before its answer."""
    async with payers_at(never) as (cluster, clock, producer):
        store = cluster.broker.on_send

        async def store_slowly(request: RemotingCommand) -> RemotingCommand:
            answer = store(request)
            assert isinstance(answer, RemotingCommand)
            await clock.sleep(2)
            return answer

        cluster.broker.on_send = store_slowly

        async def work() -> None:
            async with producer.transaction(Message("orders", b"paid")):
                pass

        await clock.run(work)
        await settle()
        assert ends_of(cluster) == [("request", 0, "commit")]
