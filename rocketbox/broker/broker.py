"""The broker: its parts put together, started and stopped in order.

What a request is answered stands in ``handlers``, what is kept on disk in ``store``. Not offered: slaves, controllers,
changing the configuration over the network, filter classes (Apache's own servers do that).

Source: Apache RocketMQ 5.x ``BrokerController``, ``ClientHousekeepingService``, ``DefaultConsumerIdsChangeListener``.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

import anyio
import anyio.to_thread

from rocketbox.broker.clients import ConsumerGroup, ConsumerTable, ProducerTable
from rocketbox.broker.delay import DelayedDelivery
from rocketbox.broker.groups import GroupTable
from rocketbox.broker.handlers.clients import ClientHandler
from rocketbox.broker.handlers.durable import DurableReplies
from rocketbox.broker.handlers.offsets import OffsetHandler
from rocketbox.broker.handlers.pull import PullHandler
from rocketbox.broker.handlers.query import QueryHandler
from rocketbox.broker.handlers.send import SendHandler
from rocketbox.broker.handlers.send_back import SendBackHandler
from rocketbox.broker.locks import QueueLocks
from rocketbox.broker.offsets import OffsetTable
from rocketbox.broker.options import BrokerOptions
from rocketbox.broker.registration import UNREGISTER_TIMEOUT, Registration
from rocketbox.broker.store.config_file import ConfigFile
from rocketbox.broker.store.message_store import MessageStore
from rocketbox.broker.store.options import FlushDiskType
from rocketbox.broker.store.storage import RealStorage, Storage
from rocketbox.broker.topics import TopicTable
from rocketbox.clock import Clock, RealClock
from rocketbox.errors import ConfigurationError, ConnectionClosedError, Finding, NotStartedError
from rocketbox.protocol.bodies import TopicConfig
from rocketbox.protocol.codes import RequestCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.remoting.client import RemotingClient
from rocketbox.remoting.connection import Connection, RequestHandler
from rocketbox.remoting.network import Network
from rocketbox.remoting.server import RemotingServer
from rocketbox.tasks import Supervisor

__all__ = ["Broker"]

_log = logging.getLogger(__name__)

CLIENT_SCAN_INTERVAL = 10.0  # seconds
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
    ) -> None:
        self.options = options
        self.name_servers = tuple(name_servers)
        self._clock = clock or RealClock()
        self._network = network
        self._storage = storage or RealStorage()
        self._stack = AsyncExitStack()
        self._address: str | None = None
        config = options.store_path_root_dir.absolute() / "config"
        files = {
            name: ConfigFile(config / f"{name}.json", self._storage)
            for name in ("topics", "subscriptionGroup", "consumerOffset", "delayOffset")
        }
        self._files: Mapping[str, ConfigFile] = files
        self.store = MessageStore(options.store_path_root_dir, options.store, clock=self._clock, storage=self._storage)
        self.topics = TopicTable(
            options,
            self._clock,
            files["topics"].persist,
            self._topic_changed,
            len(options.store.delay_level_ms),
        )
        self.groups = GroupTable(
            self._clock, files["subscriptionGroup"].persist, auto_create=options.auto_create_subscription_group
        )
        self.offsets = OffsetTable(self._clock)
        self.delayed = DelayedDelivery(
            self.store, options.store.delay_level_ms, files["delayOffset"].persist, self._clock
        )
        expiry = options.channel_expired_timeout / 1000
        self.consumers: ConsumerTable[Connection] = ConsumerTable(self._clock, self._ids_changed, expiry)
        self.producers: ProducerTable[Connection] = ProducerTable(self._clock, expiry)
        self.locks = QueueLocks(self._clock)
        self._client = RemotingClient(clock=self._clock, network=network)
        self._registration = Registration(options, self.topics, self._client, name_servers, clock=self._clock)
        self._replies = replies = DurableReplies(
            self.store, self._registration, options.send_thread_pool_queue_capacity
        )
        self._sends = SendHandler(
            options, self.topics, self.groups, self.locks, self._registration, self.store, replies, clock=self._clock
        )
        self._send_backs = SendBackHandler(
            options, self.topics, self.groups, self._registration, self.store, replies, clock=self._clock
        )
        self._pulls = PullHandler(
            options, self.topics, self.groups, self.consumers, self.offsets, self.store, clock=self._clock
        )
        self._clients = ClientHandler(
            self.topics, self.groups, self.consumers, self.producers, self.locks, self._registration, clock=self._clock
        )

    @property
    def address(self) -> str:
        """``host:port`` as clients are told it."""
        if self._address is None:
            raise NotStartedError("the broker")
        return self._address

    async def __aenter__(self) -> Self:
        _check_address(self.options)
        if self.options.store.flush_disk_type is FlushDiskType.ASYNC_FLUSH:
            _log.warning("flush-disk-type is ASYNC_FLUSH: what is acknowledged may be lost when the machine fails")
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.store)
            self._load()
            stack.callback(self._persist)
            await stack.enter_async_context(self._client)
            tasks = await stack.enter_async_context(Supervisor("broker", self._clock))
            ip = await self._resolve_host()
            server = await stack.enter_async_context(
                RemotingServer(
                    self._handlers(),
                    host=self.options.bind_address,
                    port=self.options.listen_port,
                    clock=self._clock,
                    network=self._network,
                    on_close=self._connection_closed,
                )
            )
            stack.push_async_callback(self._answer_the_last, server)
            self._publish(server.address, ip)  # no request is served before: nothing up to here gives way to others
            self.store.on_arrival += [self._pulls.hold.on_arrival, self.delayed.on_arrival]
            tasks.start("pulls on hold", self._pulls.hold.run)
            tasks.start("persist consumer offsets", self._persist_offsets)
            tasks.start("persist delay offsets", self._persist_delay_offsets)
            tasks.start("drop silent clients", self._drop_silent_clients)
            self.delayed.start(tasks)
            self._registration.start(tasks, self.address)
            stack.push_async_callback(self._unregister)
            await self._registration.registered()
            self._stack = stack.pop_all()
        _log.info("broker %s listens on %s, store in %s", self.options.broker_name, self._address,
                  self.options.store_path_root_dir)  # fmt: skip
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    def _handlers(self) -> dict[int, RequestHandler]:
        offsets = OffsetHandler(self.topics, self.groups, self.offsets, self.store)
        query = QueryHandler(self.store)
        return {
            RequestCode.SEND_MESSAGE: self._sends.handle,
            RequestCode.SEND_MESSAGE_V2: self._sends.handle,
            RequestCode.SEND_BATCH_MESSAGE: self._sends.handle,
            RequestCode.CONSUMER_SEND_MSG_BACK: self._send_backs.handle,
            RequestCode.PULL_MESSAGE: self._pulls.handle,
            RequestCode.QUERY_MESSAGE: query.by_key,
            RequestCode.VIEW_MESSAGE_BY_ID: query.view,
            RequestCode.QUERY_CONSUMER_OFFSET: offsets.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: offsets.update,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: offsets.search,
            RequestCode.GET_MAX_OFFSET: offsets.maximum,
            RequestCode.GET_MIN_OFFSET: offsets.minimum,
            RequestCode.HEART_BEAT: self._clients.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self._clients.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._clients.consumer_list,
            RequestCode.CHECK_CLIENT_CONFIG: self._clients.check_config,
            RequestCode.LOCK_BATCH_MQ: self._clients.lock,
            RequestCode.UNLOCK_BATCH_MQ: self._clients.unlock,
        }

    async def _resolve_host(self) -> bytes:
        """The IP that goes into message ids."""
        host = (self.options.broker_ip1 or self.options.bind_address).strip("[]")
        try:
            return ipaddress.ip_address(host).packed
        except ValueError:
            try:
                found = await anyio.getaddrinfo(host, None, family=socket.AF_INET, type=socket.SOCK_STREAM)
            except OSError as error:
                raise ConfigurationError(
                    Finding(
                        f"the address of {host}, where clients are to reach the broker, is not known: {error}",
                        fix="set broker-ip1 (brokerIP1) to the IP address clients reach this machine by",
                    )
                ) from error
            return ipaddress.ip_address(found[0][4][0]).packed

    def _publish(self, bound: str, ip: bytes) -> None:
        """Set what clients are told, and the store writes into message ids."""
        host, _, port = bound.rpartition(":")
        self._address = f"{self.options.broker_ip1 or host}:{port}"
        self.store.store_host = (ip, int(port))

    # --- the tables and their files ---

    def _load(self) -> None:
        for name, table in (
            ("topics", self.topics),
            ("subscriptionGroup", self.groups),
            ("consumerOffset", self.offsets),
            ("delayOffset", self.delayed),
        ):
            text = self._files[name].load()
            if text is not None:
                table.load(text, str(self._files[name].path))

    def _persist(self) -> None:
        """Write everything, at the stop."""
        for name, table in (
            ("topics", self.topics),
            ("subscriptionGroup", self.groups),
            ("consumerOffset", self.offsets),
        ):
            try:
                self._files[name].persist(table.encode())
            except OSError as error:  # the stop must go on: messages are in the store, which closes next
                _log.error("%s could not be written: %s", self._files[name].path, error)
        self.delayed.persist()

    async def _persist_offsets(self) -> None:
        while True:
            await self._clock.sleep(self.options.flush_consumer_offset_interval / 1000)
            if self.offsets.changed:
                try:
                    await anyio.to_thread.run_sync(self._files["consumerOffset"].persist, self.offsets.encode())
                except OSError as error:
                    self.offsets.changed = True
                    _log.error("committed offsets could not be written, trying again: %s", error)

    async def _persist_delay_offsets(self) -> None:
        while True:
            await self._clock.sleep(self.options.flush_delay_offset_interval / 1000)
            self.delayed.persist()

    # --- clients and name servers ---

    def _topic_changed(self, topic: TopicConfig) -> None:
        self._registration.topic_changed(topic)

    def _connection_closed(self, connection: Connection) -> None:
        self._pulls.hold.drop(connection)
        self.producers.on_close(connection)
        self.consumers.on_close(connection)

    def _ids_changed(self, group: ConsumerGroup[Connection]) -> None:
        """Have the members of a group share the queues anew."""
        config = self.groups.find(group.name)
        if config is not None and not config.notify_consumer_ids_changed_enable:
            return
        for connection in list(group.channels):
            notice = RemotingCommand.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group.name})
            try:
                connection.send_oneway(notice)
            except ConnectionClosedError:
                _log.debug("%s left group %s before it was told", connection.remote_address, group.name)

    async def _drop_silent_clients(self) -> None:
        while True:
            await self._clock.sleep(CLIENT_SCAN_INTERVAL)
            self.locks.expire()
            for connection in {*self.consumers.expire(), *self.producers.expire()}:
                _log.warning("the client at %s sent no heartbeat and is dropped", connection.remote_address)
                connection.close("no heartbeat")

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


def _check_address(options: BrokerOptions) -> None:
    if options.broker_ip1 is None and options.bind_address.strip("[]") in {"", "0.0.0.0", "::"}:
        raise ConfigurationError(
            Finding(
                f"the broker listens on {options.bind_address or 'all addresses'}, which no client can connect to",
                fix="set broker-ip1 (brokerIP1) to the address clients reach this machine by",
            )
        )
