"""The broker's entry at name servers that come and go."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rocketbox.broker.options import BrokerOptions
from rocketbox.broker.registration import Registration
from rocketbox.broker.topics import TopicTable
from rocketbox.nameserver.name_server import NameServer, NameServerOptions
from rocketbox.protocol.codes import RequestCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.registration_bodies import TopicConfig, decode_register_broker
from rocketbox.remoting.client import RemotingClient
from rocketbox.remoting.connection import Connection
from rocketbox.remoting.network import MemoryNetwork
from rocketbox.remoting.server import RemotingServer
from rocketbox.tasks import Supervisor
from tests.support.broker.table_tools import table_file
from tests.support.clocks import VirtualClock, settle

pytestmark = pytest.mark.anyio


def told(_: TopicConfig) -> None:
    """Nor need anybody hear of them."""


async def test_a_name_server_that_closes_behind_its_answer_is_told_again_at_once() -> None:
    clock, network = VirtualClock(), MemoryNetwork()
    options = BrokerOptions(store_path_root_dir=Path("store"))
    topics = TopicTable(options, clock, table_file(clock), told)
    seen: list[int] = []

    def register(connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        body = decode_register_broker(request.body)
        seen.append(len(body.topic_config_serialize_wrapper.topic_config_table))
        connection.reply(request, RemotingCommand.response())
        if len(seen) == 1:
            connection.close()
        return None

    async with (
        RemotingServer(
            {RequestCode.REGISTER_BROKER: register}, host="names", port=0, clock=clock, network=network
        ) as server,
        RemotingClient(clock=clock, network=network) as client,
        Supervisor("test", clock) as tasks,
    ):
        registration = Registration(options, topics, client, [server.address], clock=clock)
        registration.start(tasks, "127.0.0.1:10911")
        await settle()
        await clock.advance(2)
        assert seen == [len(topics.all())] * 2


async def test_a_silent_name_server_delays_an_answer_once_and_not_for_each_topic() -> None:
    clock, network = VirtualClock(), MemoryNetwork()
    options = BrokerOptions(store_path_root_dir=Path("store"))
    topics = TopicTable(options, clock, table_file(clock), told)
    known: list[float] = []

    def say_nothing(connection: Connection, request: RemotingCommand) -> None:
        """Leave the broker waiting."""

    async with (
        RemotingServer(
            {RequestCode.REGISTER_BROKER: say_nothing}, host="names", port=0, clock=clock, network=network
        ) as server,
        RemotingClient(clock=clock, network=network) as client,
        Supervisor("test", clock) as tasks,
    ):
        registration = Registration(options, topics, client, [server.address], clock=clock)
        registration.start(tasks, "127.0.0.1:10911")
        names = ["%RETRY%a", "%RETRY%b", "%RETRY%c"]
        for name in names:
            registration.topic_changed(topics.create_for_group(name, 1))

        async def wait() -> None:
            await registration.announced(*names)
            known.append(clock.monotonic())

        tasks.start("wait", wait)
        await clock.advance(10)
        assert known == [3.0]


@asynccontextmanager
async def registering(
    clock: VirtualClock, network: MemoryNetwork, *name_servers: str
) -> AsyncIterator[tuple[Registration, TopicTable]]:
    """A broker's registration, begun."""
    options = BrokerOptions(store_path_root_dir=Path("store"))
    topics = TopicTable(options, clock, table_file(clock), told)
    async with RemotingClient(clock=clock, network=network) as client, Supervisor("test", clock) as tasks:
        registration = Registration(options, topics, client, name_servers, clock=clock)
        registration.start(tasks, "127.0.0.1:10911")
        yield registration, topics


async def test_a_mute_name_server_holds_a_start_for_three_seconds(caplog: pytest.LogCaptureFixture) -> None:
    clock, network = VirtualClock(), MemoryNetwork()
    started: list[float] = []

    def say_nothing(connection: Connection, request: RemotingCommand) -> None:
        """Leave the broker waiting."""

    async with (
        RemotingServer(
            {RequestCode.REGISTER_BROKER: say_nothing}, host="names", port=0, clock=clock, network=network
        ) as server,
        registering(clock, network, server.address) as (registration, _),
        Supervisor("test", clock) as tasks,
    ):

        async def start() -> None:
            await registration.registered()
            started.append(clock.monotonic())

        tasks.start("start", start)
        await clock.advance(60)
    assert started == [3.0]
    assert f"name server {server.address} has not answered within 3 s" in caplog.text


async def test_a_broker_that_takes_no_messages_says_so_at_once_and_takes_it_back() -> None:
    clock, network = VirtualClock(), MemoryNetwork()
    async with (
        NameServer(NameServerOptions(host="names", port=0), clock=clock, network=network) as names,
        registering(clock, network, names.address) as (registration, topics),
    ):

        def permissions() -> set[int]:
            found = [names.routes.route(topic) for topic in topics.all()]
            return {queues.perm for route in found if route is not None for queues in route.queue_datas}

        await settle()
        before = permissions()
        assert 6 in before
        registration.allow_writes(False)
        registration.allow_writes(False)
        await settle()
        assert permissions() == {perm & 4 for perm in before}
        registration.topic_changed(topics.create_for_group("%RETRY%late", 1))
        await settle()
        assert permissions() == {perm & 4 for perm in before}
        registration.allow_writes(True)
        await settle()
        assert permissions() == before
        assert {topic.perm for topic in topics.all().values()} == before, "the topics keep their permission"


async def in_parts() -> None:
    """Let a registration in parts come to its end."""
    for _ in range(10):
        await settle()


async def test_few_topics_are_told_in_one_turn_of_the_loop() -> None:
    clock, network = VirtualClock(), MemoryNetwork()
    parts: list[int] = []

    def register(_: Connection, request: RemotingCommand) -> RemotingCommand:
        parts.append(len(decode_register_broker(request.body).topic_config_serialize_wrapper.topic_config_table))
        return RemotingCommand.response()

    async with (
        RemotingServer(
            {RequestCode.REGISTER_BROKER: register}, host="names", port=0, clock=clock, network=network
        ) as server,
        registering(clock, network, server.address) as (_, topics),
    ):
        for number in range(1000):
            topics.put(TopicConfig(f"t{number}"))
        await in_parts()
        assert sum(parts) == len(topics.all())
        assert max(parts) <= 200


async def test_more_topics_than_a_registration_holds_are_told_in_parts() -> None:
    clock, network = VirtualClock(), MemoryNetwork()
    options = NameServerOptions(host="names", port=0, max_registration_bytes=256 << 10)
    async with (
        NameServer(options, clock=clock, network=network) as names,
        RemotingClient(clock=clock, network=network) as client,
        Supervisor("test", clock) as tasks,
    ):
        broker = BrokerOptions(store_path_root_dir=Path("store"))
        topics = TopicTable(broker, clock, table_file(clock), told)
        for number in range(3000):
            topics.put(TopicConfig(f"orders-of-customer-{number}", 1, 1))
        registration = Registration(broker, topics, client, [names.address], clock=clock)
        registration.start(tasks, "127.0.0.1:10911")
        await in_parts()
        assert set(names.routes.topics()) == set(topics.all())
        registration.allow_writes(False)
        await in_parts()
        permissions = {
            queues.perm
            for number in range(3000)
            if (route := names.routes.route(f"orders-of-customer-{number}")) is not None
            for queues in route.queue_datas
        }
        assert permissions == {4}


async def test_no_replication_address_is_registered_and_none_is_needed() -> None:
    clock, network = VirtualClock(), MemoryNetwork()
    fields: list[str] = []

    def register(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        fields.append(request.ext_fields.get("haServerAddr", ""))
        return RemotingCommand.response()

    async with (
        RemotingServer(
            {RequestCode.REGISTER_BROKER: register}, host="names", port=0, clock=clock, network=network
        ) as server,
        registering(clock, network, server.address),
    ):
        await settle()
    assert fields == [""]
