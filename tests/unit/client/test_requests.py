"""Requests whose send fails though they were stored: the reply counts, and nothing is carried out twice for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rocketbox.client.middleware import SendContext, SendNext
from rocketbox.message import Message, SendResult, decode_properties, encode_properties
from rocketbox.protocol.codes import RequestCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.headers import ReplyMessageRequestHeader
from rocketbox.protocol.request_reply import CORRELATION_ID
from tests.support.client.producing import producer_of
from tests.support.client.scripted_cluster import ClusterBroker, ScriptedCluster
from tests.support.clocks import VirtualClock

pytestmark = pytest.mark.anyio


def reply_to(request: RemotingCommand) -> RemotingCommand:
    asked = decode_properties(request.ext_fields["i"].encode())
    header = ReplyMessageRequestHeader(
        producer_group="desk", topic="C_REPLY_TOPIC", default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
        sys_flag=0, born_timestamp=0, flag=0, reconsume_times=0, born_host="10.0.0.1:1", store_host="10.0.0.1:1",
        store_timestamp=0, properties=encode_properties({CORRELATION_ID: asked[CORRELATION_ID]}).decode(),
    )  # fmt: skip
    return RemotingCommand.request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, header.encode(), b"reply")


def silent(broker: ClusterBroker) -> Callable[[RemotingCommand], None]:
    """Stores, hands over the reply, and does not answer the send."""

    def take(request: RemotingCommand) -> None:
        next(iter(broker.connections)).send_oneway(reply_to(request))

    return take


async def passing(context: SendContext, call_next: SendNext) -> SendResult | None:
    return await call_next(context)


@pytest.mark.parametrize("brokers", [("broker-a",), ("broker-a", "broker-b")])
@pytest.mark.parametrize("client", [{}, {"send_middleware": (passing,)}], ids=["", "under a middleware"])
async def test_a_request_that_has_its_reply_is_not_sent_again(brokers: tuple[str, ...], client: dict[str, Any]) -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock, brokers) as cluster:
        cluster.add_topic("T")
        for broker in cluster.brokers.values():
            broker.on_send = silent(broker)
        async with producer_of(
            cluster, client=client, send_message_timeout=3, send_msg_max_timeout_per_request=1
        ) as producer:
            bodies: list[bytes] = []

            async def ask() -> None:
                bodies.append((await producer.request(Message("T", b"x"))).body)

            await clock.run(ask)
            assert bodies == [b"reply"]
            assert len(producer.instance.waiting_requests) == 0
        assert sum(len(broker.sends) for broker in cluster.brokers.values()) == 1
