"""MQClientInstance: what all producers and consumers of one client share. Tables and timers, nothing else.

Tables: routes of topics and addresses of brokers (``route_table``), groups. Timers: routes that somebody uses are asked
for every 30 s (every second while a subscribed topic has none), offsets are persisted every 5 s; those of heartbeats
are in ``heartbeats``. What a consumer does with a new route or with "the members of your group changed" is its own
affair (``rebalance``, ``push_consumer``); how a message is sent is ``sending``'s, what brokers
ask of members is in ``member_requests``.

Source: Apache RocketMQ 5.x ``MQClientInstance``, ``ClientRemotingProcessor``. Unlike there: several tasks that need one
route wait for one request.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from threading import get_ident
from types import TracebackType
from typing import Final, Self

import anyio

from rocketbox.calls_from_threads import CallsFromThreads
from rocketbox.client.api import groups as groups_api
from rocketbox.client.api import routes as routes_api
from rocketbox.client.cached_bytes import CachedBytes
from rocketbox.client.credentials import KeyKeeper
from rocketbox.client.heartbeats import Heartbeats
from rocketbox.client.identity import Identity, begin_alone, call_in_forks, caller, local_ip, make_identity
from rocketbox.client.member_requests import (
    CONSUMER_REQUESTS,
    REFUSED_REQUESTS,
    ConsumerMember,
    ProducerMember,
    refusal,
    serve_transaction_check,
)
from rocketbox.client.name_servers import NameServers
from rocketbox.client.namespace_header import NamespaceHeader
from rocketbox.client.options import ClientOptions
from rocketbox.client.refusals import Refusals
from rocketbox.client.route_table import RouteTable
from rocketbox.client.routes import TopicRoute
from rocketbox.client.service_state import ServiceState
from rocketbox.client.waiting_requests import WaitingRequests
from rocketbox.clock import Clock, RealClock
from rocketbox.errors import (
    ClientError,
    ClientStateError,
    ForkedError,
    InvalidGroupError,
    NoRouteError,
    NotStartedError,
    RemoteProtocolError,
    RemotingError,
    RocketBoxError,
)
from rocketbox.message import MessageQueue
from rocketbox.protocol.admin_bodies import ClusterInfo
from rocketbox.protocol.bodies import HeartbeatData, ProducerData, TopicRouteData
from rocketbox.protocol.codes import CLIENT_INNER_PRODUCER, MASTER_ID, RequestCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.ids import UniqIdGenerator
from rocketbox.protocol.namespaces import Namespace
from rocketbox.rare_log import RareLog
from rocketbox.remoting.acl import Credentials, RequestSigner
from rocketbox.remoting.client import RemotingClient, RpcHook
from rocketbox.remoting.connection import Connection
from rocketbox.remoting.network import Network, TcpNetwork
from rocketbox.remoting.tls import TlsOptions
from rocketbox.remoting.tls_advice import advice_to_clients
from rocketbox.remoting.tls_files import ClientTls
from rocketbox.safe_repr import also_when_unmade, safe_str, said_by_a_peer
from rocketbox.storage.file_system import RealStorage, Storage
from rocketbox.tasks import Supervisor, TaskState

__all__ = ["BrokerLink", "ClientState", "MQClientInstance", "own_or_shared"]

_log = logging.getLogger(__name__)

MACHINE: Final = RealStorage()
NAME_SERVERS_VARIABLE: Final = "NAMESRV_ADDR"
GREET_AGAIN_AFTER = 0.5  # seconds between two tries to reach a broker that is gone, while requests wait for replies
KNOWN_WITHIN = 1.0  # seconds at most that a send waits for brokers to have heard of this client
GOODBYE_TIMEOUT = 1.0  # seconds for each request at the end, so that one silent broker leaves time for the others


class _Lookup:
    """One request for a route, shared by all that wait for it."""

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.route: TopicRoute | None = None
        self.error: RocketBoxError | None = None


@dataclass(frozen=True)
class BrokerLink:
    """The connection to one broker, as health shows it. ``lost`` says why it is not there; None: it is, or may be."""

    address: str
    is_master: bool
    lost: str | None


@dataclass(frozen=True)
class ClientState:
    """What health shows of a client. ``brokers`` are those that it tells of itself, so none while it has no groups.

    ``restarting`` are its tasks that failed and wait to start again. ``keys_problem`` says why it has no new keys,
    ``keys_expired`` that those it signs with have come to their end.
    """

    name_servers: tuple[str, ...]
    brokers: tuple[BrokerLink, ...]
    restarting: tuple[str, ...]
    keys_problem: str | None = None
    keys_expired: bool = False


class MQClientInstance:
    """One client of a cluster. ``async with MQClientInstance("127.0.0.1:9876") as instance: ...``.

    ``name_server`` is ``host:port``, several separated by ``;``, or the URL of an address server, which is asked for
    them every two minutes (``http://host:port/path``). Raises ConfigurationError for anything else, and for TLS
    files that cannot be used. A ``network`` that is given
    is used as it is, whatever options say of TLS. Entering it raises CredentialsError when keys are to come
    from a file or provider and do not.
    """

    def __init__(
        self,
        name_server: str | Sequence[str],
        *,
        options: ClientOptions | None = None,
        clock: Clock | None = None,
        network: Network | None = None,
        storage: Storage | None = None,
        cached_bytes: CachedBytes | None = None,
    ) -> None:
        self.options = options or ClientOptions()
        self.clock: Clock = clock or RealClock()
        self._has_own_clock = clock is None
        hooks: tuple[RpcHook, ...] = self.options.hooks
        if self.options.namespace_v2 is not None:
            hooks = (*hooks, NamespaceHeader(self.options.namespace_v2))
        self.keys: KeyKeeper | None = None
        """Keeps the keys of its requests new, where somebody gives it some that change."""
        if (given := self.options.credentials) is not None:
            signer = RequestSigner(given if isinstance(given, Credentials) else None)
            hooks = (*hooks, signer)  # the last: what others add is signed as well
            if not isinstance(given, Credentials):
                self.keys = KeyKeeper(given, signer, self.clock)
        if network is None:
            prefix = self.options.settings_prefix
            tls = (
                ClientTls(self.options.tls or TlsOptions(), settings_prefix=prefix) if self.options.tls_enable else None
            )
            network = TcpNetwork(tls=tls, advice=advice_to_clients(prefix))
        self.network = network
        self.made_at = caller()
        """A line of its user's, for what is told of it."""
        self.namespace = Namespace(self.options.namespace or "")
        """How its names are written for servers; everything in the client itself has names as users know them."""
        self.remoting = RemotingClient(
            clock=self.clock, network=network, options=self.options.remoting, hooks=hooks, namespace=self.namespace
        )
        self._name_servers = NameServers(
            name_server, self.remoting, self.clock, in_namespace=self.options.is_in_namespace
        )
        self.tasks = Supervisor("client", self.clock)
        self.routes = RouteTable()
        self.cached_bytes = cached_bytes or CachedBytes(self.options.max_cached_bytes)
        """What consumers hold; one budget may be shared by several instances."""
        self.storage: Storage = storage or MACHINE
        """Where its consumers keep what they keep on this machine."""
        self.running = False
        """Between entering and leaving its ``async with``."""
        self.starting = False
        """While it is being entered."""
        self._identity: Identity | None = None
        self.unique_ids: UniqIdGenerator
        """Those of the identity, for who asks with each message; there from the start on."""
        self._forked = False
        self.waiting_requests = WaitingRequests(self.clock, self.tasks)
        """The requests of its producers that wait for their replies."""
        self.calls = CallsFromThreads(lambda: f"the client of {', '.join(self.name_servers)}", self.clock)
        """What threads have called in its loop: blocking templates."""
        self._stack = AsyncExitStack()
        self._started = self._start_failed = False
        self._suspected: set[str] = set()
        self._routes_wanted = anyio.Event()
        self._lookups: dict[str, _Lookup] = {}
        self._consumers: dict[str, ConsumerMember] = {}
        self._producers: dict[str, ProducerMember] = {}
        self._refusals: dict[str, Refusals] = {}
        self._unreadable = RareLog(_log)
        self._heartbeats = Heartbeats(
            self.remoting, self.clock, self.tasks, self.options,
            addresses=self._beaten, data=self._heartbeat, greeted=self._greeted, refusals=self.refusals,
        )  # fmt: skip
        if self.keys is not None:
            self.keys.on_renewed.append(self._keys_renewed)

    # --- life --------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._started:
            raise ClientStateError(f"{self!r} was started before; make a new MQClientInstance")
        self._started = True
        try:
            await self._start()
        except BaseException:
            self._started, self._start_failed = False, True
            raise
        finally:
            self.starting = False
        self._start_failed = False
        return self

    @property
    def service_state(self) -> ServiceState:
        """Where it is in its life. A start that has failed may be repeated."""
        if self.running:
            return ServiceState.RUNNING
        if self._start_failed:
            return ServiceState.START_FAILED
        return ServiceState.SHUTDOWN_ALREADY if self._started else ServiceState.CREATE_JUST

    async def _start(self) -> None:
        if self._has_own_clock:
            self.clock.random.seed()  # forks of the process that made it have the same random state until here
        self._identity = make_identity(self.options, self.clock)
        begin_alone(self)
        self.unique_ids = self._identity.unique_ids
        for code in CONSUMER_REQUESTS:
            self.remoting.register_handler(code, self._serve)
        self.remoting.register_handler(RequestCode.CHECK_TRANSACTION_STATE, self._check_transaction)
        for code in REFUSED_REQUESTS:
            self.remoting.register_handler(code, lambda _, request: refusal(RequestCode(request.code)))
        self.remoting.register_handler(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self.waiting_requests.receive)
        if self._on_connected not in self.remoting.on_connected:  # there from a start that failed
            self.remoting.on_connected.append(self._on_connected)
            self.remoting.on_disconnected.append(self._on_disconnected)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.remoting)
            await stack.enter_async_context(self.tasks)
            await stack.enter_async_context(self.calls)
            if self.keys is not None:
                await self.keys.begin()
                self.tasks.start("keys", self.keys.keep)
            self._stack = stack.pop_all()
        self.running = True
        call_in_forks(self)
        if (server := self._name_servers.address_server) is not None:
            self.tasks.start("address server", server.follow)
        self.tasks.start("routes", self._keep_routes)
        self.tasks.start("heartbeats", self._heartbeats.keep)
        self.tasks.start("silent links", self._heartbeats.ask_silent_links)
        self.tasks.start("offsets", self._keep_offsets)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self.remoting.check_end("the RocketMQ client")
        try:
            await self.calls.close()
            with anyio.CancelScope(shield=True), self.clock.move_on_after(self.options.shutdown_timeout):
                for group in sorted(self._consumers):
                    await self._say_goodbye(consumer_group=group)
                for group in (*sorted(self._producers), CLIENT_INNER_PRODUCER):
                    await self._say_goodbye(producer_group=group)
        finally:  # a task's own cancel(), as asyncio.timeout() calls it, comes through the shield
            self.running = False
            self.waiting_requests.end()
            handled = await self._stack.__aexit__(kind, error, trace)
        return handled

    @also_when_unmade
    def __repr__(self) -> str:
        state = "running" if self.running else "closed" if self._started else "not started"
        tables = f"{len(self.routes)} routes, {len(self.routes.brokers)} brokers"
        name = self._identity.client_id if self._identity else ", ".join(self.name_servers)
        return f"MQClientInstance({name}, {state}, {tables})"

    @property
    def client_id(self) -> str:
        """What servers call this client; made when it starts. Raises NotStartedError before."""
        return self.identity.client_id

    @property
    def ip(self) -> str:
        """This machine's address in what the client tells of itself."""
        return self.options.client_ip or local_ip()

    @property
    def identity(self) -> Identity:
        """Who this client is; made when it starts. Raises NotStartedError before."""
        if self._identity is None:
            raise NotStartedError(repr(self))
        return self._identity

    def check_running(self, user: str | None = None) -> None:
        """Raise NotStartedError, naming who wants it to run, unless it does; ForkedError in a fork of its process,
        OtherLoopError in another loop than its own."""
        if self._forked:
            raise ForkedError(user or "the RocketMQ client", self.identity.process)
        if not self.running:
            raise NotStartedError(user or repr(self))
        self.remoting.check_loop(user or "the RocketMQ client")

    def forked(self) -> None:
        """This process is a fork of the one that started the client: its tasks and connections are not here."""
        if self.running:
            self.running, self._forked = False, True
            self.remoting.forked(self.identity.process)

    def state(self) -> ClientState:
        """Its connections and tasks; cheap, nothing is asked."""
        told = self._beaten() if self._heartbeat() is not None else []
        masters = set(self.broker_addresses(masters_only=True))
        links = [BrokerLink(each, each in masters, self._heartbeats.why_lost(each)) for each in told]
        waiting = [task for task in self.tasks.health() if task.state is TaskState.WAITING]
        restarting = tuple(f"{task.name}: {task.error}" for task in waiting)
        if self.keys is None:
            return ClientState(self.name_servers, tuple(links), restarting)
        return ClientState(self.name_servers, tuple(links), restarting, self.keys.problem, self.keys.expired)

    # --- groups ------------------------------------------------------------------------------------------------------

    def register_consumer(self, group: str, member: ConsumerMember) -> None:
        """Make member known to the heartbeats and timers. Raises InvalidGroupError when the group is taken here."""
        self._routes_wanted.set()
        if group in self._consumers:
            raise InvalidGroupError(
                group, "consumer", "is in use by another consumer of this client; a group is one consumer in a client"
            )
        self._consumers[group] = member

    async def unregister_consumer(self, group: str) -> None:
        """Forget the group's consumer and tell all brokers so (code 35), within ``shutdown_timeout``."""
        if self._consumers.pop(group, None) is not None:
            with anyio.CancelScope(shield=True), self.clock.move_on_after(self.options.shutdown_timeout):
                await self._say_goodbye(consumer_group=group)

    def register_producer(self, group: str, member: ProducerMember) -> None:
        """Make member known to the heartbeats and timers. Raises InvalidGroupError when the group is taken here."""
        if group in self._producers or group == CLIENT_INNER_PRODUCER:
            raise InvalidGroupError(
                group, "producer", "is in use by another producer of this client; share that one, or choose a group"
            )
        self._producers[group] = member
        self.request_heartbeat()

    async def unregister_producer(self, group: str) -> None:
        """Forget the group's producer and tell all brokers so (code 35), within ``shutdown_timeout``."""
        if self._producers.pop(group, None) is not None:
            with anyio.CancelScope(shield=True), self.clock.move_on_after(self.options.shutdown_timeout):
                await self._say_goodbye(producer_group=group)

    async def _say_goodbye(self, *, producer_group: str | None = None, consumer_group: str | None = None) -> None:
        """Unregister a group at each broker in turn. One that is not connected has forgotten this client already.

        Callers shield this and bound it. No task of the supervisor: when everything is cancelled they end at once.
        """
        for address in self.routes.addresses():
            if not self.remoting.connected(address):
                continue
            try:
                await groups_api.unregister_client(
                    self.remoting,
                    address,
                    client_id=self.client_id,
                    producer_group=producer_group,
                    consumer_group=consumer_group,
                    timeout=min(GOODBYE_TIMEOUT, self.options.shutdown_timeout),
                )
            except RocketBoxError as error:
                _log.debug("unregister %s at %s: %s", producer_group or consumer_group, address, error)

    def told(self, error: BaseException) -> str:
        """The text of an exception as it may leave the process: without what ``ClientOptions.mask`` takes out."""
        text = safe_str(error)
        return text if self.options.mask is None else self.options.mask(text)

    def refusals(self, group: str) -> Refusals:
        """What servers refuse to a consumer group of this client."""
        found = self._refusals.get(group)
        if found is None:
            look = self.keys.look if self.keys is not None else lambda: None
            found = self._refusals[group] = Refusals(group, self.clock, look)
        return found

    def _keys_renewed(self, keys: Credentials) -> None:
        """New keys: what was refused may be allowed to them, and brokers are to know by whom this client signs now.

        The embedded broker drops with a user all members whose last heartbeat he has signed.
        """
        for each in self._refusals.values():
            each.forgive()
        self.request_heartbeat()

    def _serve(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return CONSUMER_REQUESTS[RequestCode(request.code)].serve(self._consumers, request, self.namespace)

    def _check_transaction(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        def unreadable(error: Exception) -> None:
            self._unreadable.tell(
                logging.WARNING, self.clock.monotonic(), "check",
                "the broker at %s asks what became of transaction %s, and its message cannot be read here: %s",
                connection.remote_address, said_by_a_peer(request.ext_fields.get("msgId", "")), error,
            )  # fmt: skip

        return serve_transaction_check(
            self._producers, connection, request, self.namespace, self.options.max_unpacked_bytes, unreadable
        )

    # --- routes ------------------------------------------------------------------------------------------------------

    async def cluster_info(self) -> ClusterInfo:
        """The brokers that the name server knows now."""
        return await routes_api.fetch_cluster(self._name_servers, timeout=self.options.api_timeout)

    async def topic_names(self) -> list[str]:
        """The topics that the name server knows now, those of the servers themselves among them."""
        return await routes_api.fetch_topic_names(self._name_servers, timeout=self.options.api_timeout)

    @property
    def name_servers(self) -> tuple[str, ...]:
        """Their addresses, the one that is asked first; of an address server that has not told any yet, its URL without
        what stands behind its ``?``.
        """
        return self._name_servers.shown

    @property
    def said_name_servers(self) -> tuple[str, ...]:
        """What to give to another client of the same cluster: addresses, or the URL of the address server."""
        return self._name_servers.said

    @property
    def name_servers_to_ask(self) -> tuple[str, ...]:
        """The addresses that are known now, else what is said: what another client asks that starts now."""
        return tuple(self._name_servers.addresses) or self._name_servers.said

    def replace_name_servers(self, name_server: str | Sequence[str]) -> None:
        """Ask other name servers from now on; connections to those that are left out are closed.

        What an address server tells later takes their place. Raises ConfigurationError for what is no list of
        addresses (Apache's ``updateNameServerAddress``).
        """
        self._name_servers.replace(name_server)

    def cached_route(self, topic: str) -> TopicRoute | None:
        """What is known of topic; nothing is asked."""
        return self.routes.get(topic)

    async def route(self, topic: str, *, refresh: bool = False) -> TopicRoute:
        """The route of topic, from the table or, when it is not there or refresh is said, from a name server.

        Raises NoRouteError when no name server knows one, RemotingError when none answers.
        """
        route = await self.find_route(topic, refresh=refresh)
        if route is None:
            raise NoRouteError(topic, self.name_servers, namespace=self.options.namespace)
        return route

    async def refresh_route(self, topic: str) -> TopicRoute | None:
        """What is known of topic does not hold: ask another name server for it now; see find_route."""
        self._name_servers.suspect()
        return await self.find_route(topic, refresh=True)

    async def find_route(self, topic: str, *, refresh: bool = False) -> TopicRoute | None:
        """The route of topic, None when there is none; a topic that lost its route keeps the last one.

        All that ask at the same time share one request. Raises RemotingError when no name server answers.
        """
        home = self.remoting.home
        if home.thread != get_ident() or not home.runs():
            self.check_running()
        self.routes.use(topic, self.clock.monotonic())
        if not refresh and (known := self.routes.get(topic)) is not None:
            return known
        return await self._ask_for_route(topic)

    def seek_route(self, topic: str) -> None:
        """Ask for the route of topic, so that its brokers are told of this client. Nobody waits for it: where no name
        server answers, it is asked for again with the routes that are in use.
        """
        self.routes.use(topic, self.clock.monotonic())
        if self.routes.get(topic) is None:
            self._lookup(topic)

    async def _ask_for_route(self, topic: str) -> TopicRoute | None:
        lookup = self._lookup(topic)
        await lookup.done.wait()
        if lookup.error is not None:
            raise lookup.error
        return lookup.route

    def _lookup(self, topic: str) -> _Lookup:
        """The one that is under way, or that begins now."""
        lookup = self._lookups.get(topic)
        if lookup is None:
            lookup = _Lookup()
            self.tasks.start(f"route of {topic}", self._look_up, topic, lookup, restart=False)
            self._lookups[topic] = lookup
        return lookup

    async def _look_up(self, topic: str, lookup: _Lookup) -> None:
        lookup.error = ClientStateError("the client was closed while it asked for a route")
        asked_at = self.clock.monotonic()
        try:
            data = await routes_api.fetch_route(self._name_servers, topic, timeout=self.options.api_timeout)
            if data is None:
                self.routes.unknown(topic, asked_at)
                self._routes_wanted.set()
            else:
                self._confirm_route(topic, data, asked_at)
            lookup.route = self.routes.get(topic)
            lookup.error = None
        except RocketBoxError as error:
            lookup.error = error
            self._routes_wanted.set()
        finally:
            del self._lookups[topic]
            lookup.done.set()

    def suspect_route(self, topic: str) -> None:
        """A broker of topic failed: ask another name server for the route within a second, instead of within 30."""
        self._suspected.add(topic)
        self._routes_wanted.set()

    def _confirm_route(self, topic: str, data: TopicRouteData, asked_at: float) -> None:
        before = set(self.routes.addresses())
        changed = self.routes.confirm(topic, data, asked_at)
        self._addresses_changed(before)
        if not changed:
            return
        route = self.routes.get(topic)
        assert route is not None
        _log.debug("route of %s: %d queues on %s", topic, len(route.subscribe_queues), ", ".join(route.broker_names))
        for member in list(self._consumers.values()):
            if topic in member.topics():
                member.on_route_changed(topic, route)

    def _addresses_changed(self, before: set[str]) -> None:
        now = set(self.routes.addresses())
        for address in before - now:
            _log.info("broker %s is in no route any more", address)
            self._heartbeats.forget(address)
            self.remoting.let_go(address)  # cut, a send that is under way would be stored by another broker as well
        if self.running:
            self._heartbeats.request(sorted(now - before))

    async def _keep_routes(self) -> None:
        interval = self.options.poll_name_server_interval
        refreshed = self.clock.monotonic()
        while True:
            pause = self.options.missing_route_interval
            with self.clock.move_on_after(refreshed + interval - pause - self.clock.monotonic()):
                await self._routes_wanted.wait()
            await self.clock.sleep(pause)
            self._routes_wanted = anyio.Event()
            subscribed = {topic for member in self._consumers.values() for topic in member.topics()}
            topics = (subscribed - self.routes.topics()) | self._suspected
            if self._suspected:
                self._name_servers.suspect()
            self._suspected = set()
            now = self.clock.monotonic()
            if now - refreshed >= interval:
                refreshed = now
                topics = self._routes_in_use(subscribed, now)
            for topic in sorted(topics):
                try:
                    await self._ask_for_route(topic)
                except RocketBoxError as error:
                    _log.debug("route of %s: %s", topic, error)
                    if isinstance(error, RemotingError) and not isinstance(error, RemoteProtocolError):
                        break  # no name server answers: the other topics would fare no better

    def _routes_in_use(self, subscribed: set[str], now: float) -> set[str]:
        """The topics to be asked for, without those that nobody has used for long, which are forgotten."""
        used = subscribed.union(*(member.topics_in_use() for member in self._producers.values()))
        before = set(self.routes.addresses())
        for topic in self.routes.forget_unused(used, now, keep_brokers=bool(self._producers or self._consumers)):
            _log.debug("route of %s is forgotten: nobody uses it", topic)
        self._addresses_changed(before)
        return used | self.routes.topics()

    # --- brokers -----------------------------------------------------------------------------------------------------

    def broker_address(self, broker_name: str, *, master: bool = True) -> str:
        """The address of a broker's master; without master, of any of its machines, the master first.

        Raises ClientError when no route names it.
        """
        machines = self.routes.brokers.get(broker_name, {})
        if MASTER_ID in machines:
            return machines[MASTER_ID]
        if machines and not master:
            return machines[min(machines)]
        kind = "master" if machines else "address"
        raise ClientError(f"no {kind} of broker {broker_name!r} is known (name server {', '.join(self.name_servers)})")

    async def pull_address(self, queue: MessageQueue, broker_id: int = MASTER_ID) -> str:
        """The address to pull queue from: of the machine that the broker suggested, else the next slave, else any.

        A broker that no known route names is asked for once. Raises ClientError when it is still unknown.
        """
        if queue.broker_name not in self.routes.brokers:
            await self.find_route(queue.topic, refresh=True)
        machines = self.routes.brokers.get(queue.broker_name, {})
        for candidate in (broker_id, broker_id + 1) if broker_id != MASTER_ID else (MASTER_ID,):
            if candidate in machines:
                return machines[candidate]
        return self.broker_address(queue.broker_name, master=False)

    @property
    def broker_names(self) -> list[str]:
        """The brokers that some route names."""
        return [name for name, machines in self.routes.brokers.items() if machines]

    def broker_addresses(self, *, masters_only: bool = False) -> list[str]:
        """All known addresses, without repeats."""
        return self.routes.addresses(masters_only=masters_only)

    # --- heartbeats --------------------------------------------------------------------------------------------------

    def request_heartbeat(self) -> None:
        """Send a heartbeat to all brokers soon; while one is under way, one more follows it."""
        if self.running:
            self._heartbeats.request(self._beaten())

    async def heartbeat_now(self, *, broker_name: str | None = None) -> None:
        """Send a heartbeat to all brokers, or to the machines of one, and return when each has answered or failed.

        Failures are logged only.
        """
        self.check_running()
        addresses = self._beaten() if broker_name is None else self.routes.brokers.get(broker_name, {}).values()
        await self._heartbeats.now(addresses)

    def strangers(self, addresses: Iterable[str] | None = None) -> list[str]:
        """The addresses of brokers' masters, or of these brokers, that may not know this client, as far as they can be
        reached.
        """
        is_known = self._heartbeats.is_known_to
        among = self.routes.addresses(masters_only=True) if addresses is None else addresses
        return [each for each in among if not is_known(each)]

    async def greet(self, addresses: Sequence[str]) -> None:
        """Send a heartbeat to these, and return when each has answered or failed, which is logged only."""
        if addresses:
            await self._heartbeats.now(addresses)

    @staticmethod
    def time_to_become_known(left: float) -> float:
        """The seconds that a send which has so many left waits for brokers to have heard of this client."""
        return max(0.0, min(KNOWN_WITHIN, left / 2))

    async def broker_version(self, address: str) -> int | None:
        """The version (an MQVersion ordinal) of the broker at an address, as it answered last over the connection that
        is there; a heartbeat asks for it where it has not answered yet. None when that was not answered either.
        """
        answer = self._heartbeats.answer(address)
        if answer is None:
            await self._heartbeats.now([address])
            answer = self._heartbeats.answer(address)
        return None if answer is None else answer.version

    def is_broker(self, address: str) -> bool:
        """Whether it is known that a broker is at an address, and no proxy before it."""
        answer = self._heartbeats.answer(address)
        return answer is not None and answer.is_broker

    def _beaten(self) -> list[str]:
        """The addresses that get heartbeats: slaves only need to know consumers."""
        return self.broker_addresses(masters_only=not self._consumers)

    def _on_connected(self, address: str) -> None:
        if self.running and address in self.broker_addresses():
            self._heartbeats.on_connected(address)

    def _on_disconnected(self, address: str) -> None:
        if len(self.waiting_requests) and self.running:
            self.tasks.start(f"greet {address} again", self._greet_again, address, restart=False)

    async def _greet_again(self, address: str) -> None:
        """A broker that is back has to know this client before the replies that are waited for come there."""
        while len(self.waiting_requests) and address in self._beaten() and not self.remoting.connected(address):
            await self._heartbeats.now([address])
            if not self.remoting.connected(address):
                await self.clock.sleep(GREET_AGAIN_AFTER)

    def _heartbeat(self) -> HeartbeatData | None:
        if not self.running or not (self._consumers or self._producers):
            return None
        return HeartbeatData(
            client_id=self.client_id,
            producer_data_set=tuple(map(ProducerData, (*sorted(self._producers), CLIENT_INNER_PRODUCER))),
            consumer_data_set=tuple(member.consumer_data() for member in self._consumers.values()),
        )

    def _greeted(self) -> None:
        for member in list(self._consumers.values()):
            member.on_ids_changed()

    # --- offsets -----------------------------------------------------------------------------------------------------

    async def _keep_offsets(self) -> None:
        while True:
            await self.clock.sleep(self.options.persist_consumer_offset_interval)
            for member in list(self._consumers.values()):  # side by side: each has brokers of its own to wait for
                if member.has_offsets_to_persist():
                    self.tasks.start(f"offsets of {member.group}", self._persist, member, restart=False)

    async def _persist(self, member: ConsumerMember) -> None:
        try:
            await member.persist_offsets()
        except RocketBoxError as error:
            _log.warning("offsets of group %s could not be persisted: %s", member.group, error)


def own_or_shared(
    user: str,
    name_server: str | Sequence[str] | None,
    instance: MQClientInstance | None,
    *,
    client_options: ClientOptions | None,
    clock: Clock | None,
    network: Network | None,
) -> tuple[MQClientInstance, bool]:
    """The instance that somebody sends or consumes over, and whether it is its own: made for ``name_server``.

    Without either it is the variable NAMESRV_ADDR of the environment, as with Apache's clients. Raises ClientStateError
    where that is not set, for both, and for an instance together with what only one of its own could be told.
    """
    if name_server is None and instance is None:
        name_server = os.environ.get(NAME_SERVERS_VARIABLE)
    if (name_server is None) == (instance is None):
        raise ClientStateError(
            f"{user} needs either name_server= or instance=" + ("" if instance else f", or {NAME_SERVERS_VARIABLE}")
        )
    if instance is None:
        assert name_server is not None
        return MQClientInstance(name_server, options=client_options, clock=clock, network=network), True
    for name, value in (("client_options", client_options), ("clock", clock), ("network", network)):
        if value is not None:
            raise ClientStateError(f"{user} shares an instance: give {name}= to that MQClientInstance instead")
    return instance, False
