"""Brokers without disk and sockets for tests of what a stream asks them, and an admin that counts its requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio

from rocketbox.broker.broker import Broker
from rocketbox.broker.options import read_broker_options
from rocketbox.client import Admin, ClientOptions, Producer, ProducerOptions
from rocketbox.embedded import EmbeddedOptions, EmbeddedServers
from rocketbox.errors import ConnectError
from rocketbox.message import Message, MessageQueue
from rocketbox.protocol.codes import PermName
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.prepared_sends import SendRequest
from rocketbox.remoting.network import MemoryNetwork
from rocketbox.storage.file_system import Storage
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.broker.wire import SMALL_FILES
from tests.support.waiting import PATIENCE

__all__ = ["Requests", "Store", "store", "until_closed"]


class Requests:
    """An RPC hook: how many requests of each code there were. Those to addresses in ``away`` reach nobody."""

    def __init__(self) -> None:
        self.by_code: Counter[int] = Counter()
        self.away: set[str] = set()

    def before_request(self, address: str, command: RemotingCommand) -> None:
        self.by_code[command.code] += 1
        if address in self.away:
            raise ConnectError(address, "Connection refused")

    def before_prepared(self, address: str, request: SendRequest) -> bytes:
        return b""

    def after_response(self, address: str, code: int, response: RemotingCommand) -> None:
        pass


async def until_known(admin: Admin, broker: str | None = None) -> None:
    """Return when a broker is registered, which takes longer where the machine has much to do."""
    with anyio.fail_after(PATIENCE):
        while not (masters := (await admin.cluster()).masters()) or broker not in (None, *masters):
            await anyio.sleep(0.01)


async def until_closed(here: Store, broker: str, topic: str = "orders") -> None:
    """Return when the name server knows that a topic may not be read there."""
    with anyio.fail_after(PATIENCE):
        while (await here.admin.queues_on_brokers(topic))[broker].perm & PermName.READ:
            await anyio.sleep(0.01)


class Store:
    """A name server and its broker, and a client of them."""

    def __init__(self, servers: EmbeddedServers, network: MemoryNetwork, admin: Admin, requests: Requests) -> None:
        self.servers = servers
        self.network = network
        self.admin = admin
        self.requests = requests
        self.name_server = servers.name_server_address

    async def send(self, queue: MessageQueue, bodies: Iterable[bytes], tag: str | None = None) -> None:
        """One message for each body, in their order."""
        options = ProducerOptions(send_message_timeout=PATIENCE)  # a slow machine is no fault of the store
        async with Producer(
            "spark-tests", name_server=self.name_server, network=self.network, options=options
        ) as producer:
            for body in bodies:
                await producer.send(Message(queue.topic, body, tag=tag), queue=queue)

    @asynccontextmanager
    async def another_broker(self, name: str, cluster: str = "DefaultCluster") -> AsyncIterator[Broker]:
        """A second broker, of the same cluster or another one."""
        settings = {**SMALL_FILES, "broker-name": name, "broker-cluster-name": cluster}
        options = read_broker_options(settings, store_path_root_dir=Path(f"/{name}"), listen_port=0)
        servers = [self.name_server]
        async with Broker(options, name_servers=servers, network=self.network, storage=MemoryStorage()) as broker:
            await until_known(self.admin, name)
            yield broker


@asynccontextmanager
async def store(
    *topics: str, queues: int = 2, storage: Storage | None = None, network: MemoryNetwork | None = None, port: int = 0
) -> AsyncIterator[Store]:
    """Servers with these topics; with the ``storage`` of others they have what those had."""
    network = network or MemoryNetwork()
    options = EmbeddedOptions(
        data_dir=Path("/store"), port=port and port + 1, name_server_port=port, broker=dict(SMALL_FILES)
    )
    async with AsyncExitStack() as stack:
        servers = EmbeddedServers(options, network=network, storage=storage or MemoryStorage())
        await stack.enter_async_context(servers)
        requests = Requests()
        admin = await stack.enter_async_context(
            Admin(servers.name_server_address, client_options=ClientOptions(hooks=(requests,)), network=network)
        )
        await until_known(admin)
        for topic in topics:
            await admin.create_topic(topic, queues=queues)
        yield Store(servers, network, admin, requests)
