"""The broker: its parts put together, started and stopped in order.

What a request is answered stands in ``handlers``, what is kept on disk in ``store``. Not offered: slaves, controllers,
changing the configuration over the network, filter classes (Apache's own servers do that).

Source: Apache RocketMQ 5.x ``BrokerController``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from rocketbox.broker.access import ServerAccess, inner_signers, server_access
from rocketbox.broker.address import check_address, resolve_ip
from rocketbox.broker.askers import Askers
from rocketbox.broker.client_housekeeping import ClientHousekeeping
from rocketbox.broker.client_requests import ClientRequests
from rocketbox.broker.clients import ConsumerGroup, ConsumerTable, ProducerTable
from rocketbox.broker.context import BrokerContext, Handlers, join_codes
from rocketbox.broker.delay import DelayedDelivery
from rocketbox.broker.delay_levels import DelayLevels
from rocketbox.broker.durable_replies import DurableReplies
from rocketbox.broker.extensions import BrokerExtensions
from rocketbox.broker.filters import filters_by_kind
from rocketbox.broker.groups import GroupTable
from rocketbox.broker.half_messages import HalfMessages
from rocketbox.broker.handlers.access import AccessHandler
from rocketbox.broker.handlers.clients import ClientHandler
from rocketbox.broker.handlers.groups import GroupHandler
from rocketbox.broker.handlers.offsets import OffsetHandler
from rocketbox.broker.handlers.pull import PullHandler
from rocketbox.broker.handlers.query import QueryHandler
from rocketbox.broker.handlers.recall import RecallHandler
from rocketbox.broker.handlers.reply import ReplyHandler
from rocketbox.broker.handlers.send import SendHandler
from rocketbox.broker.handlers.send_back import SendBackHandler
from rocketbox.broker.handlers.topics import TopicHandler
from rocketbox.broker.handlers.transactions import TransactionHandler
from rocketbox.broker.limits import NameBudget, too_many_large_requests
from rocketbox.broker.locks import QueueLocks
from rocketbox.broker.offsets import OffsetTable
from rocketbox.broker.options import BrokerOptions
from rocketbox.broker.parked_arrivals import ParkedArrivals
from rocketbox.broker.peer_limits import READS, remoting_options
from rocketbox.broker.persister import Persister
from rocketbox.broker.pull_hold import PullHold
from rocketbox.broker.put_stage import PutStage
from rocketbox.broker.registration import UNREGISTER_TIMEOUT, Registration
from rocketbox.broker.server_tls import server_network
from rocketbox.broker.store.message_store import MessageStore
from rocketbox.broker.store.options import FlushDiskType
from rocketbox.broker.store.timer_file import TimerFile
from rocketbox.broker.timer_messages import TimerParking
from rocketbox.broker.timers import TimerDelivery
from rocketbox.broker.topics import TopicTable
from rocketbox.broker.transaction_checks import TransactionChecks
from rocketbox.clock import Clock, RealClock
from rocketbox.errors import NotStartedError
from rocketbox.protocol.codes import SCHEDULE_TOPIC, TIMER_TOPIC, SerializeType
from rocketbox.protocol.registration_bodies import TopicConfig
from rocketbox.remoting.client import RemotingClient
from rocketbox.remoting.connection import Connection
from rocketbox.remoting.network import Network
from rocketbox.remoting.options import RemotingOptions
from rocketbox.remoting.server import RemotingServer
from rocketbox.remoting.turns import Turns
from rocketbox.storage.file_system import RealStorage, Storage
from rocketbox.tasks import Supervisor

__all__ = ["Broker"]

_log = logging.getLogger(__name__)

LAST_ANSWERS_TIMEOUT = 3.0  # how long a stop waits for the disk, for the answers to what it stored


class Broker:
    """``async with Broker(options, name_servers=["127.0.0.1:9876"]) as broker: broker.address``.

    Entering takes the store's directory, recovers it, listens, and returns when each name server that answers knows
    the broker. Raises StoreLockedError, StoreCorruptError, ListenError, ConfigurationError.
    """

    def __init__(
        self,
        options: BrokerOptions,
        *,
        name_servers: Sequence[str],
        clock: Clock | None = None,
        network: Network | None = None,
        storage: Storage | None = None,
        extensions: BrokerExtensions | None = None,
        access: ServerAccess | None = None,
    ) -> None:
        self.options = options
        self.name_servers = tuple(name_servers)
        self._clock = clock = clock or RealClock()
        self._network = network = network or server_network(options)
        storage = storage or RealStorage()
        extensions = extensions or BrokerExtensions()
        self._hooks = extensions.hooks
        self.access = access = access or server_access(options, clock)
        self._stack = AsyncExitStack()
        self._address: str | None = None
        self._server: RemotingServer | None = None
        self.store = MessageStore(options.store_path_root_dir, options.store, clock=clock, storage=storage)
        self.persister = files = Persister(
            options.store_path_root_dir.absolute() / "config",
            storage,
            clock,
            self.store.troubles,
            sync_log=self.store.sync,
            offsets_interval=options.flush_consumer_offset_interval / 1000,
            delay_interval=options.flush_delay_offset_interval / 1000,
        )
        self.names = NameBudget(options.auto_create_names_per_minute, options.auto_create_names_burst, clock)
        levels = options.store.delay_level_ms
        parking = TimerParking(options, clock)
        puts = PutStage(self.store, [*extensions.put_transforms, DelayLevels(len(levels), parking, self.store, clock)])
        self.topics = TopicTable(options, clock, files.topics, self._topic_changed, len(levels), self.names)
        self.groups = GroupTable(
            clock,
            files.groups,
            auto_create=options.auto_create_subscription_group,
            most=options.max_groups,
            names=self.names,
        )
        self.offsets = OffsetTable(clock, files.offsets, options.max_offsets, options.max_offsets_per_address)
        self.delayed = DelayedDelivery(self.store, puts, self.topics, levels, files.delays, clock)
        self.timers = TimerDelivery(
            self.store,
            puts,
            self.topics,
            parking,
            TimerFile(str(options.store_path_root_dir.absolute() / "config"), storage),
            clock,
            interval=options.flush_delay_offset_interval / 1000,
            kept_ms=options.store.file_reserved_ms,
            longest_ms=options.store.timer_max_delay_sec * 1000,
            precision_ms=options.store.timer_precision_ms,
        )
        self.halves = HalfMessages(self.store, puts, self.topics, self.offsets, options, clock)
        if access is not None and access.users is not None:
            access.users.keep_in(files.users)
        expiry = options.channel_expired_timeout / 1000
        self.consumers: ConsumerTable[Connection] = ConsumerTable(
            clock,
            self._members_changed,
            expiry,
            most_groups=options.max_groups_per_connection,
            most_subscriptions=options.max_subscriptions_per_group,
            most_subscription_bytes=options.max_subscription_bytes,
        )
        self.producers: ProducerTable[Connection] = ProducerTable(
            clock, expiry, most=options.max_groups, most_groups=options.max_groups_per_connection
        )
        self.transaction_checks = TransactionChecks(
            self.halves, self.store, self.producers, options, clock, None if access is None else access.control
        )
        self.client_requests = ClientRequests(self.groups, self.consumers, clock)
        self.locks = QueueLocks(
            clock, most=options.max_locked_queues, most_for_each_address=options.max_locked_queues_per_address
        )
        # In JSON, as Apache's brokers register: a binary header cannot say that there is no replication address.
        self._client = RemotingClient(
            clock=clock,
            network=network,
            options=RemotingOptions(serialization=SerializeType.JSON),
            hooks=inner_signers(options, access, name_servers),
        )
        self._registration = Registration(options, self.topics, self._client, name_servers, clock=clock)
        self._replies = DurableReplies(self.store, self._registration, options.send_thread_pool_queue_capacity)
        self._housekeeping = ClientHousekeeping(self.consumers, self.producers, self.locks, clock)
        self.held_pulls = PullHold(
            clock,
            most=options.max_held_pulls,
            most_for_each_connection=options.max_held_pulls_per_connection,
            most_bytes=options.max_held_pull_bytes,
            written=lambda: 0 if self._server is None else self._server.written_bytes,
        )
        self.askers = Askers(options.max_remembered_requests)
        self.askers.keep_in(files.askers)
        context = BrokerContext(
            options=options,
            clock=clock,
            store=self.store,
            puts=puts,
            halves=self.halves,
            replies=self._replies,
            topics=self.topics,
            groups=self.groups,
            offsets=self.offsets,
            consumers=self.consumers,
            producers=self.producers,
            locks=self.locks,
            held_pulls=self.held_pulls,
            timers=self.timers,
            registration=self._registration,
            filters=filters_by_kind(extensions.filters),
            requests=self.client_requests,
            persister=self.persister,
            turns=Turns(options.max_large_requests, too_many_large_requests),
            access=None if access is None else access.control,
            askers=self.askers,
        )
        sends = SendHandler(context)
        self._runs = sends.runs()
        families: list[Handlers] = []
        if access is not None and access.users is not None:
            families.append(AccessHandler(access.control, access.users))
        self._handlers = join_codes(
            [
                *families,
                sends,
                ReplyHandler(context),
                TransactionHandler(context),
                SendBackHandler(context),
                RecallHandler(context),
                PullHandler(context),
                QueryHandler(context),
                OffsetHandler(context),
                ClientHandler(context),
                TopicHandler(context),
                GroupHandler(context),
            ]
        )

    @property
    def address(self) -> str:
        """``host:port`` as clients are told it."""
        if self._address is None:
            raise NotStartedError("the broker")
        return self._address

    async def make_topics(self, topics: Iterable[TopicConfig]) -> None:
        """Have these topics, and return when the name servers that answer know them. Raises LimitError."""
        names = []
        for topic in topics:
            self.topics.put(topic)
            names.append(topic.topic_name)
        await self._registration.announced(*names)

    @property
    def table_entries(self) -> int:
        """How many topics, groups and committed offsets there are."""
        return len(self.topics.all()) + len(self.groups.all()) + len(self.offsets)

    @property
    def server(self) -> RemotingServer:
        """The server's counters and connections, for health and tests."""
        if self._server is None:
            raise NotStartedError("the broker")
        return self._server

    async def __aenter__(self) -> Self:
        check_address(self.options)
        if self.options.store.flush_disk_type is FlushDiskType.ASYNC_FLUSH:
            _log.warning("flush-disk-type is ASYNC_FLUSH: what is acknowledged may be lost when the machine fails")
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.store)
            access = self.access
            users = None if access is None else access.users
            self.persister.load(
                topics=self.topics,
                groups=self.groups,
                offsets=self.offsets,
                delays=self.delayed,
                users=users,
                askers=None if access is None else self.askers,
            )
            if access is not None:
                access.ready()
            if self.store.report is not None and not self.store.report.clean:
                await self._bring_back()
            stack.push_async_callback(self.persister.finish)
            stack.push_async_callback(self.timers.finish)
            await self.halves.load()  # before anything else is put: a mark may be missing at the end of the log
            stack.callback(self.halves.end)
            await stack.enter_async_context(self._client)
            tasks = await stack.enter_async_context(Supervisor("broker", self._clock))
            ip = await resolve_ip(self.options)
            self._server = server = await stack.enter_async_context(
                RemotingServer(
                    self._handlers,
                    host=self.options.bind_address,
                    port=self.options.listen_port,
                    clock=self._clock,
                    network=self._network,
                    options=remoting_options(self.options),
                    on_close=self._connection_closed,
                    guard=None if access is None else access.control.guard,
                    hooks=self._hooks,
                    reads=READS,
                    runs=self._runs,
                )
            )
            stack.push_async_callback(self._answer_the_last, server)
            self._publish(server.address, ip)  # no request is served before: nothing up to here gives way to others
            parked = ParkedArrivals({SCHEDULE_TOPIC: self.delayed.on_arrival, TIMER_TOPIC: self.timers.on_arrival})
            self.store.on_arrival += [self.held_pulls.on_arrival, parked]
            tasks.start("pulls on hold", self.held_pulls.run)
            tasks.start("tell large groups", self.client_requests.run)
            if access is not None and access.file is not None:
                tasks.start("read accounts again", access.file.watch)
            tasks.start("drop silent clients", self._housekeeping.run)
            if access is not None:
                on_change = access.control.accounts.on_change  # of the name server beside this broker too
                on_change.append(self._housekeeping.rights_changed)
                stack.callback(on_change.remove, self._housekeeping.rights_changed)
                tasks.start("drop who may not be members", self._housekeeping.follow_rights, access.control)
            tasks.start("check transactions", self.transaction_checks.run)
            self.persister.start(tasks)
            self.delayed.start(tasks)
            self.timers.start(tasks)
            stack.callback(self.delayed.end)
            self.store.on_state_change.append(self._store_changed)
            stack.callback(self.store.on_state_change.remove, self._store_changed)
            self._store_changed()  # its disk may be full from the beginning
            self._registration.start(tasks, self.address)
            stack.push_async_callback(self._unregister)
            await self._registration.registered()
            self._stack = stack.pop_all()
        _log.info("broker %s listens on %s, store in %s", self.options.broker_name, self._address,
                  self.options.store_path_root_dir)  # fmt: skip
        return self

    async def _bring_back(self) -> None:
        """Have the tables name no message that a crash, or a repair, has taken from the end of its queue.

        All of it is written before the queues grow again: the next start must see it too.
        """
        ends = self.store.max_offset
        brought = [self.offsets.bring_back(ends), self.delayed.bring_back(ends)]
        if any(brought):
            await self.persister.finish()
        await self.timers.bring_back()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    def _publish(self, bound: str, ip: bytes) -> None:
        """Set what clients are told, and the store writes into message ids."""
        host, _, port = bound.rpartition(":")
        self._address = f"{self.options.broker_ip1 or host}:{port}"
        self.store.store_host = (ip, int(port))

    def _topic_changed(self, topic: TopicConfig) -> None:
        self._registration.topic_changed(topic)

    def _store_changed(self) -> None:
        """Have producers choose other brokers while the store takes no messages; it says why itself."""
        self._registration.allow_writes(self.store.refusal is None)

    def _members_changed(self, group: ConsumerGroup[Connection]) -> None:
        self.client_requests.consumer_ids_changed(group)

    def _connection_closed(self, connection: Connection) -> None:
        self.held_pulls.drop(connection)
        self._housekeeping.connection_closed(connection)

    async def _answer_the_last(self, server: RemotingServer) -> None:
        """Answer what is stored already: whoever hears nothing sends it again."""
        server.stop_serving()
        with self._clock.move_on_after(LAST_ANSWERS_TIMEOUT) as scope:
            scope.shield = True
            await self._replies.all_answered()

    async def _unregister(self) -> None:
        with self._clock.move_on_after(UNREGISTER_TIMEOUT) as scope:
            scope.shield = True
            await self._registration.unregister()
