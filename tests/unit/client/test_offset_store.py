"""Offsets at the brokers: who commits where, and whom a silent broker delays."""

from __future__ import annotations

import anyio
import pytest

from rocketbox.client.instance import MQClientInstance
from rocketbox.client.offset_store import RemoteOffsetStore
from rocketbox.client.options import ClientOptions
from rocketbox.client.process_queue import ProcessQueue
from rocketbox.message import MessageQueue
from rocketbox.protocol.codes import RequestCode
from rocketbox.protocol.command import RemotingCommand
from tests.support.client.scripted_cluster import ScriptedCluster
from tests.support.clocks import VirtualClock

QUEUE = MessageQueue("T555", "broker-a", 2)


def at(offset: int, queue: MessageQueue = QUEUE) -> ProcessQueue:
    return ProcessQueue(queue, offset, now=0.0)


@pytest.mark.anyio
async def test_a_silent_broker_does_not_keep_the_others_from_their_commits(anyio_backend: str) -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock, ["broker-a", "broker-b"]) as cluster:
        cluster.add_topic("T555")
        cluster.brokers["broker-a"].scripts[RequestCode.UPDATE_CONSUMER_OFFSET] = lambda connection, request: None
        cluster.brokers["broker-b"].scripts[RequestCode.UPDATE_CONSUMER_OFFSET] = lambda connection, request: (
            RemotingCommand.response()
        )
        for broker in cluster.brokers.values():
            await broker.stop()
            await cluster.restart(broker)  # with the new scripts
        options = ClientOptions(client_ip="192.0.2.7")
        name_server = cluster.name_server.address
        async with MQClientInstance(name_server, options=options, clock=clock, network=cluster.network) as instance:
            await instance.route("T555")
            store = RemoteOffsetStore("g", instance)
            other = MessageQueue("T555", "broker-b", 0)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(store.persist, [at(5), at(6, other)])
                await clock.advance(1)
                (commit,) = cluster.brokers["broker-b"].requested(RequestCode.UPDATE_CONSUMER_OFFSET)
                assert commit.ext_fields["commitOffset"] == "6"
                await clock.advance(5)
