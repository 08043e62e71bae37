"""What a producer answers a broker that asks about a transaction."""

from __future__ import annotations

import pytest

from rocketbox.broker.transaction_records import check_request
from rocketbox.client import ClientOptions, Producer
from rocketbox.clock import RealClock
from rocketbox.message import LocalTransactionState, Message, MessageExt
from rocketbox.protocol.codes import TRANS_HALF_TOPIC, RequestCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.stored_message import StoredMessage, decode_message, encode_stored_message
from tests.support.client.scripted_cluster import ScriptedCluster
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("namespace", [None, "team"])
async def test_an_answer_names_the_topic_of_the_message_as_servers_know_it(namespace: str | None) -> None:
    """Apache's brokers ask with the name of their own topic for halves, and let nobody write to that (ACL 2.0)."""
    stored = "team%orders" if namespace else "orders"

    async def check(message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.COMMIT

    clock = RealClock()
    cluster = ScriptedCluster(clock)
    cluster.add_topic(stored)
    cluster.broker.scripts[RequestCode.END_TRANSACTION] = lambda connection, request: RemotingCommand.response()
    async with cluster, Producer(
        "payers", name_server=cluster.name_server.address, transaction_checker=check,
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
