"""What a broker asks its clients: by group and id, with an answer, within its time, in the serialization they speak."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import anyio
import anyio.lowlevel
import pytest

from rocketbox.broker.client_requests import TOLD_AT_ONCE, ClientNotOnlineError, ClientRequests
from rocketbox.broker.clients import ClientChannel, ConsumerGroup, ConsumerTable
from rocketbox.broker.groups import GroupTable
from rocketbox.clock import RealClock
from rocketbox.errors import BrokerError, ConnectionClosedError, RemoteProtocolError, RequestTimeoutError
from rocketbox.message import MessageModel
from rocketbox.protocol.codes import RequestCode, SerializeType
from rocketbox.protocol.command import RemotingCommand
from rocketbox.remoting.client import RemotingClient
from rocketbox.remoting.connection import Connection, RemotingOptions, RequestHandler
from rocketbox.remoting.server import RemotingServer
from rocketbox.tasks import Supervisor
from tests.support.broker.in_memory import BrokerWire, broker_in_memory
from tests.support.broker.table_tools import table_file
from tests.support.clocks import VirtualClock, settle
from tests.support.remoting.by_hand import Peer
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio

HOW_MANY = 9001  # a code of this test's own


@dataclass(frozen=True)
class HowMany:
    """A toy request: how many messages of a topic a client has seen."""

    topic: str

    def encode(self) -> RemotingCommand:
        return RemotingCommand.request(HOW_MANY, {"topic": self.topic})

    def decode(self, response: RemotingCommand) -> int:
        try:
            return int(response.body)
        except ValueError as error:
            raise RemoteProtocolError(f"not a number: {response.body!r}") from error


Answer = Callable[[Connection, RemotingCommand], RemotingCommand | None]


def member(wire: BrokerWire, answer: Answer, serialization: SerializeType = SerializeType.ROCKETMQ) -> RemotingClient:
    """A client that answers the toy request in its way."""
    return RemotingClient(
        clock=RealClock(),
        network=wire.network,
        handlers={HOW_MANY: answer},
        options=RemotingOptions(serialization=serialization),
    )


def seven(connection: Connection, request: RemotingCommand) -> RemotingCommand:
    assert request.ext_fields == {"topic": "t"}
    return RemotingCommand.response(body=b"7")


@pytest.mark.parametrize("serialization", SerializeType)
async def test_a_member_is_asked_by_its_group_and_id_in_its_own_serialization(serialization: SerializeType) -> None:
    asked: list[SerializeType] = []

    def answer(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        assert request.serialization is not None
        asked.append(request.serialization)
        return seven(connection, request)

    async with broker_in_memory() as wire, member(wire, answer, serialization) as client:
        await wire.heartbeat("g", {"t": "*"}, client_id="one")
        await wire.heartbeat("g", {"t": "*"}, client_id="two", client=client)
        assert await wire.running.client_requests.ask("g", "two", HowMany("t")) == 7
    assert asked == [serialization]


async def test_a_client_that_is_not_there_is_named() -> None:
    async with broker_in_memory() as wire, member(wire, seven) as client:
        ask = wire.running.client_requests.ask
        with pytest.raises(ClientNotOnlineError, match="<g> <two> is not online"):
            await ask("g", "two", HowMany("t"))
        await wire.heartbeat("g", {"t": "*"}, client_id="two", client=client)
        with pytest.raises(ClientNotOnlineError, match="<g> <one>"):
            await ask("g", "one", HowMany("t"))


async def test_a_client_that_refuses_is_told_with_its_code() -> None:
    def refuse(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response(206, "no thanks")

    async with broker_in_memory() as wire, member(wire, refuse) as client:
        await wire.heartbeat("g", {"t": "*"}, client=client)
        with pytest.raises(BrokerError, match="no thanks") as caught:
            await wire.running.client_requests.ask("g", "client", HowMany("t"))
        assert caught.value.code == 206


async def test_an_answer_that_cannot_be_read_is_an_error() -> None:
    def mumble(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response(body=b"many")

    async with broker_in_memory() as wire, member(wire, mumble) as client:
        await wire.heartbeat("g", {"t": "*"}, client=client)
        with pytest.raises(RemoteProtocolError, match="not a number"):
            await wire.running.client_requests.ask("g", "client", HowMany("t"))


async def test_a_mute_client_ends_the_question_after_its_time() -> None:
    def say_nothing(connection: Connection, request: RemotingCommand) -> None:
        """Leave the broker waiting."""

    async with broker_in_memory() as wire, member(wire, say_nothing) as client:
        await wire.heartbeat("g", {"t": "*"}, client=client)
        with pytest.raises(RequestTimeoutError):
            await wire.running.client_requests.ask("g", "client", HowMany("t"), timeout=0.05)


async def test_a_client_that_leaves_ends_the_question_at_once() -> None:
    asked = anyio.Event()

    def say_nothing(connection: Connection, request: RemotingCommand) -> None:
        asked.set()

    async with broker_in_memory() as wire, anyio.create_task_group() as tasks, member(wire, say_nothing) as client:
        await wire.heartbeat("g", {"t": "*"}, client=client)

        async def ask() -> None:
            with pytest.raises(ConnectionClosedError):
                await wire.running.client_requests.ask("g", "client", HowMany("t"))

        tasks.start_soon(ask)
        with anyio.fail_after(PATIENCE):
            await asked.wait()


async def test_notices_do_not_gather_for_a_client_that_reads_nothing() -> None:
    heard = anyio.Event()

    def note(connection: Connection, request: RemotingCommand) -> None:
        heard.set()

    handlers: dict[int, RequestHandler] = {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: note}
    async with (
        broker_in_memory() as wire,
        RemotingClient(clock=RealClock(), network=wire.network, handlers=handlers) as client,
    ):
        await wire.heartbeat("g", {"t": "*"}, client=client)
        with anyio.fail_after(PATIENCE):
            await heard.wait()
        group = wire.running.consumers.group("g")
        assert group is not None
        (connection,) = group.channels
        connection.pause_writing()  # as its driver does when the socket is full
        wire.running.client_requests.consumer_ids_changed(group)
        assert wire.running.client_requests.dropped == 1
        connection.resume_writing()
        heard = anyio.Event()
        wire.running.client_requests.consumer_ids_changed(group)
        with anyio.fail_after(PATIENCE):
            await heard.wait()
        assert wire.running.client_requests.dropped == 1


async def test_members_of_a_large_group_are_told_of_many_changes_once_and_few_in_a_turn() -> None:
    clock = VirtualClock()
    groups = GroupTable(clock, table_file())
    told = most = 0

    def tell(group: ConsumerGroup[Connection]) -> None:
        requests.consumer_ids_changed(group)

    consumers: ConsumerTable[Connection] = ConsumerTable(clock, tell)
    requests = ClientRequests(groups, consumers, clock)
    server = RemotingServer({}, host="broker", port=0, clock=clock)
    peers = [Peer(server, port) for port in range(1, 401)]

    def beat(peer: Peer, client_id: str) -> None:
        consumers.register(
            "g", peer.connection, ClientChannel(client_id, 3, 479, clock.monotonic()), consume_type="",
            message_model=MessageModel.CLUSTERING, consume_from_where=None, subscriptions=None,
        )  # fmt: skip

    def heard() -> int:
        return sum(len(peer.read()) for peer in peers)

    async with Supervisor("test", clock) as tasks:
        tasks.start("notices", requests.run)
        await settle()
        for number, peer in enumerate(peers):
            beat(peer, f"client{number}")
        heard()
        for number in range(200):  # one client changes its id again and again
            beat(peers[0], f"other{number}")
            told += heard()
        assert told == 0
        clock.now += 1
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
            now = heard()
            most = max(most, now)
            told += now
        await clock.advance(1)
        told += heard()
        assert told == 400, "each once"
        assert most <= 2 * TOLD_AT_ONCE
        for peer in peers[TOLD_AT_ONCE - 1 :]:
            consumers.on_close(peer.connection)
        await clock.advance(1)
        heard()
        beat(peers[0], "of a small group")
        assert heard() == TOLD_AT_ONCE - 1, "a small one hears at once"
        for peer in peers:
            peer.connection.lost("the test is over")
