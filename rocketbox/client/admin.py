"""Admin: looking at queues, messages and offsets without being a member of any group, and keeping topics and groups.

Topics and groups are made, changed and deleted on every master of a cluster; the name servers hear of it from the
brokers, and of a topic that is deleted from here.

Source: Apache RocketMQ 5.x ``MQAdminImpl``, ``DefaultMQAdminExt`` (the part that ordinary programs use).
"""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rocketbox.client.api import admin as admin_api
from rocketbox.client.api import group_configs as group_configs_api
from rocketbox.client.api import groups as groups_api
from rocketbox.client.api import offsets as offsets_api
from rocketbox.client.api import topics as topics_api
from rocketbox.client.api.pull import PulledRecords, PullResult, pull_message, pull_records
from rocketbox.client.instance import MQClientInstance, own_or_shared
from rocketbox.client.options import ClientOptions
from rocketbox.clock import Clock
from rocketbox.errors import BrokerError, ClientError, NoRouteError, UnknownClusterError
from rocketbox.message import MessageExt, MessageQueue, SelectorType
from rocketbox.protocol.admin_bodies import ClusterInfo
from rocketbox.protocol.bodies import QueueData
from rocketbox.protocol.codes import MASTER_ID, TOOLS_GROUP, PermName, PullSysFlag, ResponseCode
from rocketbox.protocol.group_config import SubscriptionGroupConfig
from rocketbox.protocol.headers import PullMessageRequestHeader
from rocketbox.protocol.ids import parse_offset_msg_id
from rocketbox.protocol.namespaces import Namespace
from rocketbox.protocol.registration_bodies import TopicConfig
from rocketbox.protocol.tags import SubscriptionData, parse_subscription
from rocketbox.remoting.host_names import addresses_of
from rocketbox.remoting.network import Network, format_address, parse_address

__all__ = ["Admin", "GroupDescription", "TopicDescription"]

MAX_PULL_BYTES = 0x7FFF_FFFF
READ_WRITE = PermName.READ | PermName.WRITE


@dataclass(frozen=True)
class TopicDescription:
    """A topic, as each broker that has it keeps it."""

    name: str
    brokers: Mapping[str, TopicConfig]
    """By broker name."""

    @property
    def write_queues(self) -> int:
        """The queues on all brokers that messages are sent to."""
        return sum(config.write_queue_nums for config in self.brokers.values())

    @property
    def message_type(self) -> str:
        """What sort of messages the topic is for, by Apache's words: NORMAL, FIFO, DELAY, TRANSACTION, MIXED and so on.

        UNSPECIFIED where no broker says one (4.9 knows none). Apache's proxies refuse other messages, brokers do not.
        """
        said = {config.attributes.get("message.type") for config in self.brokers.values()}
        return " or ".join(sorted(filter(None, said))) or "UNSPECIFIED"


@dataclass(frozen=True)
class GroupDescription:
    """A consumer group's settings, on each broker that has them."""

    name: str
    brokers: Mapping[str, SubscriptionGroupConfig]
    """By broker name."""


class Admin:
    """``async with Admin(name_server="127.0.0.1:9876") as admin: await admin.queues("departures")``.

    With ``name_server`` it has a client instance of its own, with ``instance`` it uses one that is started already.
    Everything raises RemotingError when a server does not answer, BrokerError when it refuses, NoRouteError for a topic
    without a route. Requests take at most ``ClientOptions.api_timeout``.
    """

    def __init__(
        self,
        name_server: str | Sequence[str] | None = None,
        *,
        instance: MQClientInstance | None = None,
        client_options: ClientOptions | None = None,
        clock: Clock | None = None,
        network: Network | None = None,
    ) -> None:
        self._instance, self._owns_instance = own_or_shared(
            "Admin", name_server, instance, client_options=client_options, clock=clock, network=network
        )
        self.timeout = self._instance.options.api_timeout

    async def __aenter__(self) -> Self:
        if self._owns_instance:
            await self._instance.__aenter__()
        self._instance.check_running("the client instance of Admin")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if self._owns_instance:
            return await self._instance.__aexit__(kind, error, trace)
        return None

    @property
    def namespace(self) -> Namespace:
        """That in which it asks; names are given to it and come back without it."""
        return self._instance.namespace

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of topic that can be read, as the name server knows them now, sorted by broker and number."""
        return list((await self._instance.route(topic, refresh=True)).subscribe_queues)

    def connection_to(self, queue: MessageQueue) -> object | None:
        """What requests for queue go over now, to compare by ``is``; None while there is no connection.

        While it is the same one, it was one process of a broker that has answered them.
        """
        try:
            address = self._instance.broker_address(queue.broker_name, master=False)
        except ClientError:
            return None
        return self._instance.remoting.connection_to(address)

    async def min_offset(self, queue: MessageQueue) -> int:
        """The offset of the queue's oldest message."""
        address = await self._address(queue)
        return await offsets_api.min_offset(self._instance.remoting, address, queue, timeout=self.timeout)

    async def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the queue's next message will get."""
        address = await self._address(queue)
        return await offsets_api.max_offset(self._instance.remoting, address, queue, timeout=self.timeout)

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the first message stored at that time or later."""
        address = await self._address(queue)
        return await offsets_api.search_offset(
            self._instance.remoting, address, queue, timestamp_ms, timeout=self.timeout
        )

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_messages: int = 32,
        expression: str = "*",
        *,
        broker_id: int = MASTER_ID,
        decompress: bool = True,
        group: str = TOOLS_GROUP,
    ) -> PullResult:
        """What is stored in the queue from offset on, at most max_messages and as much as a broker gives at once.

        Returns at once, with nothing found when there is nothing. ``expression`` selects tags (``"UA || AA"``).
        ``broker_id`` is the machine to ask: the ``suggest_which_broker_id`` of the last answer; a replica is asked as
        well where no master is known. Bodies stay as they are stored unless they are to be decompressed. ``group`` is
        in whose name it is asked, which changes nothing of the group, but that a broker may make it by that.
        """
        subscription = parse_subscription(queue.topic, expression, SelectorType.TAG)
        await self._instance.route(queue.topic)
        result = await pull_message(
            self._instance.remoting,
            await self._instance.pull_address(queue, broker_id),
            dataclasses.replace(_pull_header(queue, offset, max_messages, subscription), consumer_group=group),
            timeout=self.timeout,
            decompress=decompress,
            max_body_bytes=self._instance.options.max_unpacked_bytes,
        )
        if not subscription.tags_set:
            return result
        wanted = [message for message in result.messages if message.tag in subscription.tags_set]
        return PullResult(
            result.status, result.next_begin_offset, result.min_offset, result.max_offset, wanted,
            result.suggest_which_broker_id,
        )  # fmt: skip

    async def pull_records(
        self,
        queue: MessageQueue,
        offset: int,
        max_messages: int = 32,
        expression: str = "*",
        *,
        broker_id: int = MASTER_ID,
    ) -> PulledRecords:
        """As :meth:`pull`, with the records as they came; ``decode_messages`` reads them.

        Among them may be messages with other tags of the same hash. ``broker_id`` is the machine to ask, the
        ``suggest_which_broker_id`` of the last answer; one that is not known is none: the master is asked, else any.
        """
        subscription = parse_subscription(queue.topic, expression, SelectorType.TAG)
        await self._instance.route(queue.topic)
        return await pull_records(
            self._instance.remoting,
            await self._instance.pull_address(queue, broker_id),
            _pull_header(queue, offset, max_messages, subscription),
            timeout=self.timeout,
        )

    async def view(self, offset_msg_id: str) -> MessageExt:
        """The message of an offset id (``SendResult.offset_msg_id``), asked from the broker that is named in it.

        Raises BrokerError when it is not there (any more), InvalidMessageError for a text that is no offset id. With
        credentials ClientError for an id whose broker no name server knows: anybody may have written it, and could
        use what he is sent signed.
        """
        ip, port, commit_log_offset = parse_offset_msg_id(offset_msg_id)
        host = socket.inet_ntop(socket.AF_INET if len(ip) == 4 else socket.AF_INET6, ip)
        return await admin_api.view_message(
            self._instance.remoting,
            await self._broker_at(host, port),
            commit_log_offset,
            timeout=self.timeout,
            max_body_bytes=self._instance.options.max_unpacked_bytes,
        )

    async def _broker_at(self, host: str, port: int) -> str:
        """The address of a broker that somebody has told; where requests are signed, as name servers know it."""
        told = format_address((host, port))
        if self._instance.options.credentials is None or told in self._instance.broker_addresses():
            return told
        brokers = (await self.cluster()).brokers.values()
        known = [address for broker in brokers for address in broker.broker_addrs.values()]
        if told in known:
            return told
        for address in known:
            with suppress(ValueError):  # what name servers tell may be no address
                name, its_port = parse_address(address)
                if its_port == port and host in await _addresses_of(name):
                    return address
        raise ClientError(
            f"the name server knows no broker at {told}, which the message id names, and signed requests go to no "
            "other; ask with an id of this cluster, of a broker that is there"
        )

    async def committed(self, group: str, queue: MessageQueue) -> int | None:
        """The offset at which group goes on in the queue; None when it has not committed any."""
        address = await self._address(queue)
        return await offsets_api.query_consumer_offset(
            self._instance.remoting, address, group, queue, timeout=self.timeout
        )

    async def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Let group go on at offset in the queue. Members that run have their own idea and commit over it."""
        address = await self._address(queue)
        await offsets_api.update_consumer_offset(
            self._instance.remoting, address, group, queue, offset, timeout=self.timeout
        )

    # --- topics and groups ---

    async def cluster(self) -> ClusterInfo:
        """The clusters and brokers that the name server knows now."""
        return await self._instance.cluster_info()

    async def create_topic(
        self,
        name: str,
        *,
        queues: int = 8,
        perm: PermName = READ_WRITE,
        order: bool = False,
        attributes: Mapping[str, str | None] | None = None,
        cluster: str | None = None,
        brokers: Collection[str] | None = None,
    ) -> None:
        """Make a topic with so many queues on every master, or change it to that.

        ``attributes`` are set, or removed where they are None; others stay as they are (Apache's:
        ``{"message.type": "FIFO"}``). ``cluster`` may be left out where there is one alone; ``brokers`` are the names
        of the only ones that are asked. Raises BrokerError when a broker refuses; the brokers asked before it have the
        topic then.
        """
        changes = {
            f"-{attribute}" if value is None else f"+{attribute}": value or ""
            for attribute, value in (attributes or {}).items()
        }
        topic = TopicConfig(
            topic_name=name,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=int(perm),
            order=order,
            attributes=changes,
        )
        for broker, address in (await self.masters(cluster)).items():
            if brokers is not None and broker not in brokers:
                continue
            await topics_api.put_topic(self._instance.remoting, address, topic, timeout=self.timeout)

    async def delete_topic(self, name: str, *, cluster: str | None = None) -> None:
        """Delete a topic with its messages' places and all groups' offsets in it; one that is not there is no error.

        First on every master, then at every name server. Producers that still send to it may make it again.
        """
        for address in (await self.masters(cluster)).values():
            await topics_api.delete_topic(self._instance.remoting, address, name, timeout=self.timeout)
        for address in self._instance.name_servers:
            await topics_api.forget_topic(self._instance.remoting, address, name, cluster, timeout=self.timeout)

    async def topic_names(self) -> list[str]:
        """The names of all topics of all clusters, as the name server knows them now, sorted; no broker is asked."""
        return sorted(set(await self._instance.topic_names()))

    async def queues_on_brokers(self, topic: str) -> Mapping[str, QueueData]:
        """How many queues of topic each broker has, and what may be done with them, as the name server knows it now.

        By broker name; empty when the topic has no route. Order and attributes are known to :meth:`topics` alone.
        """
        route = await self._instance.find_route(topic, refresh=True)
        return {} if route is None else {queues.broker_name: queues for queues in route.data.queue_datas}

    async def topics(self, *, cluster: str | None = None) -> list[TopicDescription]:
        """All topics of the masters, their own ones among them, sorted by name."""
        found: dict[str, dict[str, TopicConfig]] = {}
        for broker, address in (await self.masters(cluster)).items():
            configs = await topics_api.all_topics(self._instance.remoting, address, timeout=self.timeout)
            for name, config in configs.items():
                found.setdefault(name, {})[broker] = config
        return [TopicDescription(name, brokers) for name, brokers in sorted(found.items())]

    async def topic(self, name: str, *, cluster: str | None = None) -> TopicDescription:
        """A topic as each master keeps it, with its attributes. Raises NoRouteError when none of them has it."""
        for found in await self.topics(cluster=cluster):
            if found.name == name:
                return found
        detail = "no master has it"
        raise NoRouteError(name, self._instance.name_servers, detail, namespace=self._instance.options.namespace)

    async def create_group(self, group: SubscriptionGroupConfig | str, *, cluster: str | None = None) -> None:
        """Make a consumer group on every master, with Apache's settings or those given, or change it to them.

        Raises as :meth:`create_topic` does.
        """
        config = SubscriptionGroupConfig(group) if isinstance(group, str) else group
        for address in (await self.masters(cluster)).values():
            await group_configs_api.put_group(self._instance.remoting, address, config, timeout=self.timeout)

    async def delete_group(self, name: str, *, clean_offsets: bool = True, cluster: str | None = None) -> None:
        """Delete a group's settings on every master, and how far it is unless that is to be kept.

        Its retry and dead-letter topics stay, with the messages in them: they are deleted as topics.
        """
        for address in (await self.masters(cluster)).values():
            await group_configs_api.delete_group(
                self._instance.remoting, address, name, clean_offsets=clean_offsets, timeout=self.timeout
            )

    async def groups(self, *, cluster: str | None = None) -> list[GroupDescription]:
        """All groups of the masters, sorted by name."""
        found: dict[str, dict[str, SubscriptionGroupConfig]] = {}
        for broker, address in (await self.masters(cluster)).items():
            configs = await group_configs_api.all_groups(self._instance.remoting, address, timeout=self.timeout)
            for name, config in configs.items():
                found.setdefault(name, {})[broker] = config
        return [GroupDescription(name, brokers) for name, brokers in sorted(found.items())]

    async def members(self, group: str, *, cluster: str | None = None) -> list[str]:
        """The client ids of those who are in a group now, as the masters know it; sorted."""
        found: set[str] = set()
        for address in (await self.masters(cluster)).values():
            try:
                found.update(
                    await groups_api.consumer_ids(self._instance.remoting, address, group, timeout=self.timeout)
                )
            except BrokerError as error:
                if error.code != ResponseCode.SYSTEM_ERROR:  # which says that there are none
                    raise
        return sorted(found)

    async def masters(self, cluster: str | None = None) -> dict[str, str]:
        """The addresses of a cluster's masters, by broker name.

        Raises ClientError when none runs, or when several clusters are known and none was named.
        """
        info = await self.cluster()
        names = ", ".join(sorted(info.clusters))
        if cluster is None and len(info.clusters) > 1:
            raise ClientError(f"there are several clusters ({names}): say which with cluster=")
        if cluster is not None and cluster not in info.clusters:
            raise UnknownClusterError(cluster, sorted(info.clusters))
        masters = info.masters(cluster)
        if not masters:
            raise ClientError(f"no master is known to name server {', '.join(self._instance.name_servers)}")
        return masters

    async def _address(self, queue: MessageQueue) -> str:
        await self._instance.route(queue.topic)
        return self._instance.broker_address(queue.broker_name)


def _pull_header(
    queue: MessageQueue, offset: int, max_messages: int, subscription: SubscriptionData
) -> PullMessageRequestHeader:
    """A pull that is answered at once, of nobody's group. Raises ClientError for numbers that are none."""
    if offset < 0 or max_messages < 1:
        raise ClientError(f"pull(offset={offset}, max_messages={max_messages}): they must be 0 and 1, or more")
    return PullMessageRequestHeader(
        consumer_group=TOOLS_GROUP,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=max_messages,
        sys_flag=int(PullSysFlag.SUBSCRIPTION),
        commit_offset=0,
        suspend_timeout_millis=0,
        subscription=subscription.sub_string,
        sub_version=0,
        expression_type=subscription.expression_type,
        max_msg_bytes=MAX_PULL_BYTES,
        bname=queue.broker_name,
    )


async def _addresses_of(name: str) -> set[str]:
    """The IP addresses of a host; none when its name leads nowhere."""
    try:
        return {str(host) for _, (host, *_) in await addresses_of(name)}
    except (OSError, UnicodeError):
        return set()
