"""Telling the name servers what this broker holds: at the start, when a topic comes, and every 30 s.

One task for each name server, so that one that does not answer delays nobody but itself. A change is sent as that topic
alone when the server knows the rest; after a lost connection or a refusal, and when the broker's permission changes,
the whole table goes out again. A large table goes out in parts: a frame, and what a name server takes at once, are
bounded, and encoding it takes the loop's time. An address server may tell which name servers there are, and later
others.

Source: Apache RocketMQ 5.x ``BrokerOuterAPI``, ``BrokerController.registerBrokerAll``.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Sequence

import anyio

from rocketbox.broker.options import BrokerOptions
from rocketbox.broker.topics import TopicTable
from rocketbox.clock import Clock
from rocketbox.errors import BrokerError, ConnectError, RemotingError
from rocketbox.protocol.codes import MASTER_ID, PermName, RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.headers import RegisterBrokerRequestHeader, UnregisterBrokerRequestHeader
from rocketbox.protocol.registration_bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
    encode_register_broker,
)
from rocketbox.remoting.client import RemotingClient
from rocketbox.remoting.name_server_addresses import AddressServer, address_server_of, parse_name_servers
from rocketbox.tasks import SupervisedTask, Supervisor

__all__ = ["Registration"]

_log = logging.getLogger(__name__)

REGISTER_TIMEOUT = 24.0  # seconds; Apache's registerBrokerTimeoutMills
UNREGISTER_TIMEOUT = 3.0
ANNOUNCE_TIMEOUT = 3.0  # the longest an answer to a send waits for a name server to know the new topic
START_TIMEOUT = 3.0  # the longest a start waits for name servers that neither answer nor refuse
RETRY_PAUSE = 1.0
TOPICS_OF_A_PART = 200  # Apache's splitRegistrationSize is 800, which take the loop 3 ms here and the name server 8


class _NameServer:
    """What one name server has been told."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.told = 0  # the change it was last told, counted by Registration
        self.reachable = True  # until it has shown otherwise
        self.wants_all = True
        self.changed: set[str] = set()
        self.wake = anyio.Event()
        self.task: SupervisedTask | None = None


class Registration:
    """The broker's entry at its name servers: those that are given, and those of ``namesrv-addr``.

    Raises ConfigurationError when these are none.
    """

    def __init__(
        self,
        options: BrokerOptions,
        topics: TopicTable,
        client: RemotingClient,
        name_servers: Sequence[str],
        *,
        clock: Clock,
    ) -> None:
        self._options = options
        self._topics = topics
        self._client = client
        self._address = ""
        self._clock = clock
        self._changes = 1
        self._pending: dict[str, int] = {}  # topic -> the change that announces it
        self._address_server: AddressServer | None = None
        said, further = [*name_servers], options.namesrv_addr
        if further is not None and (url := address_server_of(further)) is not None:
            self._address_server = AddressServer(url, clock, take=self._also_at, fail=self._nobody_told)
        elif further is not None:
            said += [address for address in parse_name_servers(further) if address not in said]
        self._servers = [_NameServer(address) for address in said]
        self._said = frozenset(said)
        self._problem = ""
        self._tasks: Supervisor | None = None
        self._progress = anyio.Event()
        self._writable = True
        self._permission_changes = 0
        self._parts = 0  # beyond the first of each registration

    def start(self, tasks: Supervisor, broker_address: str) -> None:
        """Begin to tell the name servers where the broker is, and go on doing so."""
        self._address = broker_address
        self._tasks = tasks
        self._client.on_disconnected.append(self._on_disconnected)
        for server in self._servers:
            self._begin_with(server)
        if self._address_server is not None:
            tasks.start("address server", self._address_server.follow)

    def _nobody_told(self, error: ConnectError) -> None:
        if str(error) != self._problem:
            _log.warning("the name servers of namesrv-addr are not told, trying again: %s", error)
        self._problem = str(error)

    def _also_at(self, addresses: Sequence[str]) -> None:
        """Tell these name servers as well from now on, beside those it was made with, and no others."""
        assert self._tasks is not None
        self._problem = ""
        wanted = self._said.union(addresses)
        for server in [each for each in self._servers if each.address not in wanted]:
            self._servers.remove(server)
            if server.task is not None:
                server.task.cancel()
            self._tasks.start(f"leave {server.address}", self._unregister_at, server, restart=False)
        known = {server.address for server in self._servers}
        for address in addresses:
            if address not in known:
                server = _NameServer(address)
                self._servers.append(server)
                self._begin_with(server)
        self._made_progress()

    def _begin_with(self, server: _NameServer) -> None:
        assert self._tasks is not None
        server.task = self._tasks.start(f"register with {server.address}", self._keep_registered, server)

    def topic_changed(self, topic: TopicConfig) -> None:
        """Have the name servers told soon."""
        self._changes += 1
        self._pending[topic.topic_name] = self._changes
        for server in self._servers:
            server.changed.add(topic.topic_name)
            server.wake.set()

    def allow_writes(self, allowed: bool) -> None:
        """Take this broker's write permission away at the name servers, or give it back, soon; the topics keep theirs.

        Producers then choose other brokers, or hear at once that there is none; consumers read on.
        """
        if allowed == self._writable:
            return
        self._writable = allowed
        self._permission_changes += 1
        _log.warning("name servers are told that this broker takes %s", "messages again" if allowed else "no messages")
        for server in self._servers:
            server.wants_all = True
            server.wake.set()

    def is_pending(self, topic: str) -> bool:
        """Whether a name server that can be reached does not know the topic's last change yet."""
        change = self._pending.get(topic)
        if change is None:
            return False
        if all(server.told >= change or not server.reachable for server in self._servers):
            del self._pending[topic]
            return False
        return True

    async def announced(self, *topics: str) -> None:
        """Return when every name server that can be reached knows the topics, after 3 s at most."""
        with self._clock.move_on_after(ANNOUNCE_TIMEOUT):
            for topic in topics:
                while self.is_pending(topic):
                    await self._progress.wait()

    async def registered(self) -> None:
        """Return when every name server was told of this broker or has turned out not to answer, after 3 s at most."""
        with self._clock.move_on_after(START_TIMEOUT):
            while silent := [server.address for server in self._servers if not server.told and server.reachable]:
                await self._progress.wait()
        if silent:
            _log.warning(
                "name server %s has not answered within %g s; the start goes on without",
                ", ".join(silent),
                START_TIMEOUT,
            )

    async def unregister(self) -> None:
        """Tell the name servers that the broker stops; those that do not answer notice the closed connection."""
        for server in list(self._servers):
            await self._unregister_at(server)

    async def _unregister_at(self, server: _NameServer) -> None:
        if not server.told or not server.reachable:
            return
        header = UnregisterBrokerRequestHeader(
            broker_name=self._options.broker_name,
            broker_addr=self._address,
            cluster_name=self._options.broker_cluster_name,
            broker_id=MASTER_ID,
        )
        try:
            await self._client.request(
                server.address,
                RemotingCommand.request(RequestCode.UNREGISTER_BROKER, header.encode()),
                timeout=UNREGISTER_TIMEOUT,
            )
        except RemotingError as error:
            _log.info("name server %s was not told of the stop: %s", server.address, error)

    async def _keep_registered(self, server: _NameServer) -> None:
        while True:
            server.wake = anyio.Event()
            try:
                await self._register(server)
            except (RemotingError, BrokerError) as error:
                if server.reachable:
                    _log.warning("name server %s was not told of this broker, trying again: %s", server.address, error)
                server.reachable = False
                server.wants_all = True
                self._made_progress()
                await self._clock.sleep(RETRY_PAUSE)
                continue
            if not server.reachable:
                _log.info("name server %s knows this broker again", server.address)
            server.reachable = True
            self._made_progress()
            with self._clock.move_on_after(self._options.register_name_server_period / 1000) as period:
                await server.wake.wait()
            if period.cancelled_caught:
                server.wants_all = True

    async def _register(self, server: _NameServer) -> None:
        change, changed = self._changes, server.changed
        server.changed = set()
        known = self._topics.all()
        topics = known.values() if server.wants_all else [known[name] for name in changed if name in known]
        server.wants_all = False  # before the request: a connection that closes behind its answer says so meanwhile
        if not topics:
            return
        header = RegisterBrokerRequestHeader(
            broker_name=self._options.broker_name,
            broker_addr=self._address,
            cluster_name=self._options.broker_cluster_name,
            ha_server_addr="",  # no slave can follow: nothing listens for one
            broker_id=MASTER_ID,
            enable_acting_master=False,
            compressed=False,
            body_crc32=0,
        )
        rest = iter(list(topics))
        part = list(itertools.islice(rest, TOPICS_OF_A_PART))
        while part:
            wrapper = TopicConfigSerializeWrapper(
                topic_config_table={topic.topic_name: self._permitted(topic) for topic in part},
                data_version=self._version(),
            )
            body = encode_register_broker(RegisterBrokerBody(wrapper))
            request = RemotingCommand.request(RequestCode.REGISTER_BROKER, header.encode(), body)
            response = await self._client.request(server.address, request, timeout=REGISTER_TIMEOUT)
            if response.code != ResponseCode.SUCCESS:
                raise BrokerError(response.code, response.remark, server.address)
            part = list(itertools.islice(rest, TOPICS_OF_A_PART))
            if part:
                self._parts += 1
        server.told = change

    def _version(self) -> DataVersion:
        """That of the topics, made different by each part and each change of the permission.

        Name servers do not look at topics of a version that they know.
        """
        version = self._topics.version
        return dataclasses.replace(version, counter=version.counter + self._permission_changes + self._parts)

    def _permitted(self, topic: TopicConfig) -> TopicConfig:
        """A topic as clients may see it: never with more rights than the broker gives, and now can give."""
        allowed = self._options.broker_permission
        if not self._writable:
            allowed &= ~int(PermName.WRITE)
        readable_and_writable = int(PermName.READ | PermName.WRITE)
        if allowed & readable_and_writable == readable_and_writable:
            return topic
        return dataclasses.replace(topic, perm=topic.perm & allowed)

    def _on_disconnected(self, address: str) -> None:
        for server in self._servers:
            if server.address == address:
                server.wants_all = True  # a name server forgets a broker whose connection closes
                server.wake.set()

    def _made_progress(self) -> None:
        self._progress.set()
        self._progress = anyio.Event()
