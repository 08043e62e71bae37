"""A name server and brokers that do what a test says, over real remoting on a network in memory.

They speak the protocol's request codes with plain ext fields; nothing of rocketbox's broker is in them.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, Self

import anyio
from anyio.abc import TaskGroup, TaskStatus

from rocketbox.clock import Clock
from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.remoting.connection import Connection
from rocketbox.remoting.network import MemoryNetwork
from rocketbox.remoting.options import RemotingOptions
from rocketbox.remoting.server import RemotingServer

__all__ = ["Answer", "ClusterBroker", "ScriptedCluster", "ScriptedNameServer"]

Answer = RemotingCommand | Awaitable[RemotingCommand | None] | None
Script = Callable[[Connection, RemotingCommand], Answer]


class _ScriptedServer:
    """Keeps every request it got, by code, and answers by its scripts."""

    def __init__(self, clock: Clock, network: MemoryNetwork, host: str, port: int) -> None:
        self.address = f"{host}:{port}"
        self.requests: list[RemotingCommand] = []
        self.connections: set[Connection] = set()
        self.scripts: dict[int, Script] = {}
        self._clock, self._network = clock, network
        self._host, self._port = host, port
        self.options: RemotingOptions | None = None
        self._stop, self._stopped = anyio.Event(), anyio.Event()

    def requested(self, code: int) -> list[RemotingCommand]:
        """The requests of a code, in the order in which they came."""
        return [request for request in self.requests if request.code == code]

    async def start(self, tasks: TaskGroup) -> None:
        """Accept connections. In a task of its own: scopes must be left in the order in which they were entered."""
        await tasks.start(self._run)

    async def _run(self, *, task_status: TaskStatus[None]) -> None:
        self._stop, self._stopped = anyio.Event(), anyio.Event()
        handlers = dict.fromkeys(self.scripts, self._handle)
        server = RemotingServer(
            handlers, host=self._host, port=self._port, clock=self._clock, network=self._network, options=self.options
        )
        try:
            async with server:
                task_status.started()
                await self._stop.wait()
        finally:
            self.connections.clear()
            self._stopped.set()

    async def stop(self) -> None:
        """Refuse connections from now on, close those that are open. Started again, it remembers its requests."""
        self._stop.set()
        await self._stopped.wait()

    def _handle(self, connection: Connection, request: RemotingCommand) -> Answer:
        _ = request.ext_fields
        self.requests.append(request)
        self.connections.add(connection)
        return self.scripts[request.code](connection, request)


class ScriptedNameServer(_ScriptedServer):
    """Knows the routes in ``routes``: topic -> the JSON object of a TopicRouteData."""

    def __init__(self, clock: Clock, network: MemoryNetwork, host: str = "ns", port: int = 9876) -> None:
        super().__init__(clock, network, host, port)
        self.routes: dict[str, dict[str, Any]] = {}
        self.scripts[RequestCode.GET_ROUTEINFO_BY_TOPIC] = self._route

    def asked(self, topic: str) -> int:
        """How often the route of topic was asked for."""
        requests = self.requested(RequestCode.GET_ROUTEINFO_BY_TOPIC)
        return sum(request.ext_fields["topic"] == topic for request in requests)

    def _route(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        route = self.routes.get(request.ext_fields["topic"])
        if route is None:
            return RemotingCommand.response(ResponseCode.TOPIC_NOT_EXIST, "No topic route info")
        return RemotingCommand.response(body=json.dumps(route).encode())


class ClusterBroker(_ScriptedServer):
    """Answers sends with 0 and growing offsets, heartbeats and goodbyes with 0, until a script says otherwise."""

    def __init__(self, clock: Clock, network: MemoryNetwork, name: str, port: int = 10911) -> None:
        super().__init__(clock, network, name, port)
        self.name = name
        self.on_send: Callable[[RemotingCommand], Answer] = self.store
        self.offsets: dict[str, int] = {}
        self.scripts[RequestCode.SEND_MESSAGE_V2] = lambda _, request: self.on_send(request)
        self.scripts[RequestCode.SEND_BATCH_MESSAGE] = lambda _, request: self.on_send(request)
        for code in (RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT):
            self.scripts[code] = lambda _, request: RemotingCommand.response()

    def store(self, request: RemotingCommand, code: int = 0) -> RemotingCommand:
        """The answer of a broker that has stored what request sends."""
        queue = request.ext_fields["e"]
        offset = self.offsets[queue] = self.offsets.get(queue, -1) + 1
        fields = {
            "msgId": f"{offset:032X}",
            "queueId": queue,
            "queueOffset": str(offset),
            "MSG_REGION": "DefaultRegion",
        }
        return RemotingCommand.response(code, ext_fields=fields)

    @property
    def sends(self) -> list[RemotingCommand]:
        return [
            *self.requested(RequestCode.SEND_MESSAGE_V2),
            *self.requested(RequestCode.SEND_BATCH_MESSAGE),
        ]

    @property
    def queues(self) -> list[int]:
        """The queue of each message that was sent."""
        return [int(request.ext_fields["e"]) for request in self.sends]


class ScriptedCluster:
    """``async with ScriptedCluster(clock, brokers=("a", "b")) as cluster: cluster.add_topic("T", queues=4)``."""

    def __init__(self, clock: Clock, brokers: Iterable[str] = ("broker-a",)) -> None:
        self.clock = clock
        self.network = MemoryNetwork()
        self.name_server = ScriptedNameServer(clock, self.network)
        self.brokers = {name: ClusterBroker(clock, self.network, name) for name in brokers}
        self._tasks = anyio.create_task_group()

    @property
    def broker(self) -> ClusterBroker:
        """The only broker, or the first."""
        return next(iter(self.brokers.values()))

    def route(self, *, queues: int = 4, perm: int = 6, brokers: Iterable[str] | None = None) -> dict[str, Any]:
        """Route data of a topic with ``queues`` queues on each of the brokers."""
        names = list(self.brokers if brokers is None else brokers)
        return {
            "brokerDatas": [
                {"brokerAddrs": {"0": self.brokers[name].address}, "brokerName": name, "cluster": "DefaultCluster"}
                for name in names
            ],
            "filterServerTable": {},
            "queueDatas": [
                {
                    "brokerName": name,
                    "perm": perm,
                    "readQueueNums": queues,
                    "writeQueueNums": queues,
                    "topicSysFlag": 0,
                }
                for name in names
            ],
        }

    def add_topic(self, topic: str, *, queues: int = 4, perm: int = 6, brokers: Iterable[str] | None = None) -> None:
        self.name_server.routes[topic] = self.route(queues=queues, perm=perm, brokers=brokers)

    async def restart(self, server: _ScriptedServer) -> None:
        """Start a server again that was stopped."""
        await server.start(self._tasks)

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        for server in (self.name_server, *self.brokers.values()):
            await server.start(self._tasks)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._tasks.cancel_scope.cancel()
        return await self._tasks.__aexit__(kind, error, trace)
