"""What a producer answers a broker that asks about a transaction."""

from __future__ import annotations

import anyio
import pytest

from rocketbox.broker.transaction_records import check_request
from rocketbox.client import ClientOptions, Producer
from rocketbox.clock import RealClock
from rocketbox.errors import SendTimeoutError
from rocketbox.message import LocalTransactionState, Message, MessageExt
from rocketbox.protocol.codes import TRANS_HALF_TOPIC, RequestCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.stored_message import StoredMessage, decode_message, encode_stored_message
from tests.support.client.scripted_cluster import ScriptedCluster
from tests.support.clocks import VirtualClock, idle
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
            half = StoredMessage(
                TRANS_HALF_TOPIC, 0, b"paid",
                f"PGROUP\x01payers\x02REAL_TOPIC\x01orders\x02REAL_QID\x010\x02UNIQ_KEY\x01{transaction.transaction_id}"
                "\x02".encode(),
            )  # fmt: skip
            record = decode_message(encode_stored_message(half, place=(0, 0, 1, (b"\x7f\0\0\1", 10911))))[0]
            (connection,) = cluster.broker.connections
            connection.send_oneway(check_request(record, 7, 7000, 1, "broker-a"))
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
        connection.send_oneway(check_request(record, 9, 9000, 1, "broker-a"))  # the end was lost: this is answered
        await until(lambda: ("9", "9000", "8" if looks_after_the_end else "0", "true") in ends())
    assert ends()[:-1] == ([commit_] if looks_after_the_end else [unknown, commit_])
