"""The broker's entry at name servers that come and go."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketbox.broker.options import BrokerOptions
from rocketbox.broker.registration import Registration
from rocketbox.broker.topics import TopicTable
from rocketbox.protocol.bodies import TopicConfig, decode_register_broker
from rocketbox.protocol.codes import RequestCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.remoting.client import RemotingClient
from rocketbox.remoting.connection import Connection
from rocketbox.remoting.network import MemoryNetwork
from rocketbox.remoting.server import RemotingServer
from rocketbox.tasks import Supervisor
from tests.clocks import VirtualClock, settle

pytestmark = pytest.mark.anyio


def keep(_: str) -> None:
    """Topics need not be written down here."""


def told(_: TopicConfig) -> None:
    """Nor need anybody hear of them."""


async def test_a_name_server_that_closes_behind_its_answer_is_told_again_at_once() -> None:
    clock, network = VirtualClock(), MemoryNetwork()
    options = BrokerOptions(store_path_root_dir=Path("store"))
    topics = TopicTable(options, clock, keep, told)
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
    topics = TopicTable(options, clock, keep, told)
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
