"""A name server and broker in memory that does what a consumer needs, remembers every request, and fails on demand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from rocketbox.clock import Clock
from rocketbox.message import MessageQueue, Property, encode_properties
from rocketbox.protocol.bodies import (
    BrokerData,
    HeartbeatData,
    QueueData,
    TopicRouteData,
    decode_heartbeat,
    decode_lock_batch_request,
    encode_consumer_list,
    encode_lock_batch_response,
    encode_topic_route,
)
from rocketbox.protocol.codes import PermName, PullSysFlag, RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.headers import (
    NotifyConsumerIdsChangedRequestHeader,
    OffsetResponseHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
)
from rocketbox.protocol.stored_message import StoredMessage, encode_stored_message
from rocketbox.remoting.connection import Connection
from rocketbox.remoting.network import MemoryNetwork
from rocketbox.remoting.server import RemotingServer

__all__ = ["BROKER", "ScriptedBroker"]

BROKER = "broker-a"
Override = Callable[[RemotingCommand], RemotingCommand | None]


class ScriptedBroker:
    """``overrides[code]`` is asked first; what it returns is the answer, None leaves it to the broker.

    A broker that is made with the network of another one is its neighbour: the first one names it in its routes, as
    the machine ``broker_id`` of the broker ``name``.
    """

    def __init__(
        self,
        clock: Clock,
        first: ScriptedBroker | None = None,
        *,
        name: str = BROKER,
        host: str = "10.0.0.1",
        broker_id: int = 0,
    ) -> None:
        self.network: MemoryNetwork = MemoryNetwork() if first is None else first.network
        self.name = name
        self.broker_id = broker_id
        self.address = f"{host}:10911"
        self.brokers: list[ScriptedBroker] = [self]
        if first is not None:
            first.brokers.append(self)
        self.silent = False  # takes requests and answers none, as a machine that has died
        self.loses: Callable[[RemotingCommand], bool] = lambda request: False  # these requests never come here
        self.answers_later: set[RequestCode] = set()  # to these, with what is true now, when answer() is called
        self.handles_later: set[RequestCode] = set()  # these, when answer() is called
        self.announces = False  # tells members of others that come and go
        self.topics: dict[str, int] = {}  # topic: number of queues
        self.records: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        self.first_offset: dict[tuple[str, int], int] = defaultdict(int)
        self.committed: dict[tuple[str, int], int] = {}
        self.other_members: list[str] = []
        self.foreign_locks: set[MessageQueue] = set()
        self.locks: dict[MessageQueue, str] = {}  # client id; they never run out
        self.requests: list[RemotingCommand] = []
        self.heartbeats: list[HeartbeatData] = []
        self.overrides: dict[int, Override] = {}
        self._parked: list[tuple[Connection, RemotingCommand]] = []
        self._late: list[tuple[int, Callable[[], None]]] = []
        self._members: dict[Connection, str] = {}
        handlers = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.HEART_BEAT: self._heartbeat,
            RequestCode.UNREGISTER_CLIENT: self._unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._consumers,
            RequestCode.QUERY_CONSUMER_OFFSET: self._query_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._update_offset,
            RequestCode.GET_MAX_OFFSET: self._max_offset,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self._search_offset,
            RequestCode.PULL_MESSAGE: self._pull,
            RequestCode.CONSUMER_SEND_MSG_BACK: self._ok,
            RequestCode.SEND_MESSAGE_V2: self._ok,
            RequestCode.LOCK_BATCH_MQ: self._lock,
            RequestCode.UNLOCK_BATCH_MQ: self._unlock,
        }
        self._server = RemotingServer(
            {int(code): self._recording(handler) for code, handler in handlers.items()},
            host=host,
            port=10911,
            clock=clock,
            network=self.network,
        )

    async def __aenter__(self) -> Self:
        await self._server.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._server.__aexit__(kind, error, trace)

    # --- what tests do -----------------------------------------------------------------------------------------------

    def store(
        self,
        topic: str,
        *bodies: bytes,
        queue_id: int = 0,
        tag: str | None = None,
        retry_topic: str | None = None,
        sys_flag: int = 0,
        reconsume_times: int = 0,
        keys: str | None = None,
    ) -> None:
        """Put messages into a queue and answer the pulls that wait for them."""
        place = (topic, queue_id)
        for body in bodies:
            offset = self.first_offset[place] + len(self.records[place])
            properties = {Property.UNIQ_KEY: f"ID-{topic}-{queue_id}-{offset}"} | ({Property.TAGS: tag} if tag else {})
            if keys:
                properties[Property.KEYS] = keys
            if retry_topic:
                properties[Property.RETRY_TOPIC] = retry_topic
            self.records[place].append(
                encode_stored_message(
                    StoredMessage(
                        topic, queue_id, body, encode_properties(properties),
                        sys_flag=sys_flag, queue_offset=offset, commit_log_offset=1000 + offset,
                        reconsume_times=reconsume_times,
                    )
                )
            )  # fmt: skip
        parked, self._parked = self._parked, []
        for connection, request in parked:
            answer = self._answer_pull(connection, request)
            if answer is not None:
                connection.reply(request, answer)

    def notify(self, group: str) -> None:
        """Tell all members that the group has changed (code 40)."""
        header = NotifyConsumerIdsChangedRequestHeader(consumer_group=group)
        for connection in list(self._members):
            connection.send_oneway(RemotingCommand.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header.encode()))

    @property
    def connections(self) -> list[Connection]:
        """Those that are open."""
        return list(self._server.connections)

    def drop_connections(self) -> None:
        """Break all connections, as a broker does that dies; new ones are taken."""
        for connection in list(self._server.connections):
            connection.abort()
        self._members.clear()
        self._parked.clear()

    def answer(self, *codes: RequestCode) -> None:
        """Answer what was to be answered later; only requests of these codes, if some are given."""
        due = [(code, call) for code, call in self._late if code in codes or not codes]
        self._late = [late for late in self._late if late not in due]
        for _, call in due:
            call()

    def asked(self, *codes: RequestCode) -> list[RemotingCommand]:
        """The requests of these codes, in the order they came."""
        return [request for request in self.requests if request.code in codes]

    def fields(self, code: RequestCode, *names: str) -> list[tuple[str, ...]]:
        """Of each request of code, these header fields."""
        return [tuple(request.ext_fields[name] for name in names) for request in self.asked(code)]

    # --- what it answers ---------------------------------------------------------------------------------------------

    def _recording(
        self, handler: Callable[[Connection, RemotingCommand], RemotingCommand | None]
    ) -> Callable[[Connection, RemotingCommand], RemotingCommand | None]:
        def answer_of(connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
            override = self.overrides.get(request.code)
            answer = override(request) if override else None
            return answer if answer is not None else handler(connection, request)

        def reply(connection: Connection, request: RemotingCommand, answer: RemotingCommand | None) -> None:
            if answer is not None:
                connection.reply(request, answer)

        def handle(connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
            self.requests.append(request)
            if self.silent or self.loses(request):
                return None
            if request.code in self.handles_later:
                self._late.append((request.code, lambda: reply(connection, request, answer_of(connection, request))))
                return None
            answer = answer_of(connection, request)
            if request.code in self.answers_later:
                self._late.append((request.code, lambda: reply(connection, request, answer)))
                return None
            return answer

        return handle

    def _ok(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        fields = (
            {"msgId": "X", "queueId": "0", "queueOffset": "0"} if request.code == RequestCode.SEND_MESSAGE_V2 else {}
        )
        return RemotingCommand.response(ext_fields=fields)

    def _route(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        topic, perm = request.ext_fields["topic"], int(PermName.READ | PermName.WRITE)
        queues = {broker.name: broker.topics[topic] for broker in self.brokers if topic in broker.topics}
        if not queues:
            return RemotingCommand.response(ResponseCode.TOPIC_NOT_EXIST, "no route")
        machines: dict[str, dict[int, str]] = defaultdict(dict)
        for broker in self.brokers:
            if broker.name in queues:
                machines[broker.name][broker.broker_id] = broker.address
        data = TopicRouteData(
            queue_datas=tuple(QueueData(name, count, count, perm) for name, count in queues.items()),
            broker_datas=tuple(BrokerData("c", name, addresses) for name, addresses in machines.items()),
        )
        return RemotingCommand.response(body=encode_topic_route(data))

    def _heartbeat(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        data = decode_heartbeat(request.body)
        self.heartbeats.append(data)
        if data.consumer_data_set:
            comes = connection not in self._members
            self._members[connection] = data.client_id
            if comes and self.announces:
                self.notify(data.consumer_data_set[0].group_name)
        return RemotingCommand.response()

    def _unregister(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        group = request.ext_fields.get("consumerGroup")
        if self.announces and group is not None:
            self._members.pop(connection, None)
            self.notify(group)
        return RemotingCommand.response()

    def _consumers(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        members = {*self._members.values(), *self.other_members}
        if not members:
            return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, "no consumer for this group")
        return RemotingCommand.response(body=encode_consumer_list(sorted(members)))

    def _offset(self, offset: int) -> RemotingCommand:
        return RemotingCommand.response(ext_fields=OffsetResponseHeader(offset=offset).encode())

    def _query_offset(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        offset = self.committed.get(self._place(request))
        if offset is None:
            return RemotingCommand.response(ResponseCode.QUERY_NOT_FOUND, "not found")
        return self._offset(offset)

    def _update_offset(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        self.committed[self._place(request)] = int(request.ext_fields["commitOffset"])
        return RemotingCommand.response()

    def _max_offset(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return self._offset(self._end(self._place(request)))

    def _search_offset(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return self._offset(self.first_offset[self._place(request)])

    def _pull(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        if int(request.ext_fields["sysFlag"]) & PullSysFlag.COMMIT_OFFSET:
            self._update_offset(connection, request)
        return self._answer_pull(connection, request)

    def _answer_pull(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        header = PullMessageRequestHeader.decode(request.ext_fields)
        place = (header.topic, header.queue_id)
        first, end = self.first_offset[place], self._end(place)
        if not first <= header.queue_offset <= end:
            return self.pulled(ResponseCode.PULL_OFFSET_MOVED, min(max(header.queue_offset, first), end), place)
        taken = self.records[place][header.queue_offset - first :][: header.max_msg_nums]
        if not taken:
            self._parked.append((connection, request))
            return None
        return self.pulled(ResponseCode.SUCCESS, header.queue_offset + len(taken), place, taken)

    def pulled(
        self,
        code: ResponseCode,
        next_offset: int,
        place: tuple[str, int],
        records: Iterable[bytes] = (),
        *,
        suggest: int = 0,
    ) -> RemotingCommand:
        header = PullMessageResponseHeader(
            suggest_which_broker_id=suggest,
            next_begin_offset=next_offset,
            min_offset=self.first_offset[place],
            max_offset=self._end(place),
        )
        return RemotingCommand.response(code, ext_fields=header.encode(), body=b"".join(records))

    def _lock(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        body = decode_lock_batch_request(request.body)
        free = [queue for queue in body.mq_set if queue not in self.foreign_locks]
        given = [queue for queue in free if self.locks.setdefault(queue, body.client_id) == body.client_id]
        return RemotingCommand.response(body=encode_lock_batch_response(given))

    def _unlock(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        body = decode_lock_batch_request(request.body)
        for queue in body.mq_set:
            if self.locks.get(queue) == body.client_id:
                del self.locks[queue]
        return RemotingCommand.response()

    def _place(self, request: RemotingCommand) -> tuple[str, int]:
        return request.ext_fields["topic"], int(request.ext_fields["queueId"])

    def _end(self, place: tuple[str, int]) -> int:
        return self.first_offset[place] + len(self.records[place])
