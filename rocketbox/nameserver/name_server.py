"""The name server: brokers register here (103, 104), clients ask for the route of a topic (105).

Other codes of Apache's name server are answered 3 (not supported).

Source: Apache RocketMQ 5.x ``NamesrvController``, ``DefaultRequestProcessor``, ``ClientRequestProcessor``,
``BrokerHousekeepingService``.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import logging
import zlib
from collections.abc import Awaitable, Hashable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rocketbox.access.addresses import AddressMatch, host_of
from rocketbox.access.control import AccessControl
from rocketbox.clock import Clock, RealClock
from rocketbox.errors import NotStartedError
from rocketbox.nameserver.route_info import RegistrationRefusedError, RouteInfoManager, RouteLimits
from rocketbox.protocol.admin_bodies import encode_cluster_info, topic_list_in_steps
from rocketbox.protocol.bodies import encode_topic_route
from rocketbox.protocol.codes import VERSION_4_9_4, RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.headers import (
    DeleteTopicRequestHeader,
    GetRouteInfoRequestHeader,
    RegisterBrokerRequestHeader,
    UnregisterBrokerRequestHeader,
)
from rocketbox.protocol.loose_json import Steps
from rocketbox.protocol.registration_bodies import registration_in_steps
from rocketbox.rare_log import RareLog
from rocketbox.remoting.connection import Connection, RequestHandler
from rocketbox.remoting.network import Network, parse_address
from rocketbox.remoting.options import RemotingOptions
from rocketbox.remoting.server import RemotingServer
from rocketbox.remoting.sweep_times import SweepTimes
from rocketbox.remoting.turns import Turns
from rocketbox.safe_repr import said_by_a_peer
from rocketbox.tasks import Supervisor

__all__ = ["NameServer", "NameServerOptions"]

_log = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 128 << 10  # of the bodies of other requests than registrations
MAX_LARGE_REGISTRATIONS = 64  # that wait for their turn
_REGISTRATIONS = frozenset({RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER})
_UNDER_WAY = "nameserver.registrations_under_way"  # attribute of a connection
SCAN_INTERVAL = 5.0  # seconds between two looks for silent brokers, at least


@dataclass(frozen=True, kw_only=True)
class NameServerOptions:
    """Where the name server listens (port 0 takes a free one), and what it takes from its peers."""

    host: str = "127.0.0.1"
    port: int = 9876
    remoting: RemotingOptions = field(default_factory=lambda: RemotingOptions(max_request_body=MAX_REQUEST_BYTES))
    """Limits of connections and what they may send."""
    max_registration_bytes: int = 4 << 20
    """The most bytes of a broker's registration, about 20,000 topics; brokers with more register in parts."""
    registration_sources: Sequence[AddressMatch] | None = None
    """From where brokers may register, beside this machine. None: without access control from nowhere else, with it
    from everywhere, because they sign."""
    routes: RouteLimits = field(default_factory=RouteLimits)
    """How many brokers, topics and queues may be registered."""


class NameServer:
    """``async with NameServer(options, clock=clock) as name_server: name_server.address``.

    Raises ListenError when the address cannot be taken.
    """

    def __init__(
        self,
        options: NameServerOptions | None = None,
        *,
        clock: Clock | None = None,
        network: Network | None = None,
        access: AccessControl | None = None,
    ) -> None:
        self.options = options or NameServerOptions()
        self._access = access
        self.routes = RouteInfoManager(clock or RealClock(), self.options.routes, _may_take_over)
        self._clock = clock or RealClock()
        self._network = network
        self._scans = SweepTimes(self._clock, SCAN_INTERVAL)
        self._rare_log = RareLog(_log)
        self._turns = Turns(MAX_LARGE_REGISTRATIONS, _too_many_registrations)
        self._server: RemotingServer | None = None
        self._stack = AsyncExitStack()

    @property
    def server(self) -> RemotingServer:
        """The server's counters and connections, for health and tests."""
        if self._server is None:
            raise NotStartedError("the name server")
        return self._server

    @property
    def address(self) -> str:
        """``host:port`` as bound."""
        return self.server.address

    async def __aenter__(self) -> Self:
        handlers: Mapping[int, RequestHandler] = {
            RequestCode.REGISTER_BROKER: self._register,
            RequestCode.UNREGISTER_BROKER: self._unregister,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._topics,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
        }
        async with AsyncExitStack() as stack:
            self._server = await stack.enter_async_context(
                RemotingServer(
                    handlers,
                    host=self.options.host,
                    port=self.options.port,
                    clock=self._clock,
                    network=self._network,
                    options=dataclasses.replace(
                        self.options.remoting,
                        max_request_bodies={RequestCode.REGISTER_BROKER: self.options.max_registration_bytes},
                    ),
                    on_close=self.routes.on_close,
                    guard=self._guard,
                    reads={RequestCode.GET_BROKER_CLUSTER_INFO, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER},
                )
            )
            tasks = await stack.enter_async_context(Supervisor("name server", self._clock))
            tasks.start("scan for silent brokers", self._scan)
            self._stack = stack.pop_all()
        _log.info("name server listens on %s", self.address)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    async def _scan(self) -> None:
        while True:
            await self._scans.next(self.routes.first_expiry())
            for connection in self.routes.expire():
                if isinstance(connection, Connection):
                    connection.close("the broker behind it is silent")

    def _guard(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        """The refusal of a request: of who may not, and of a broker from where none may be."""
        if self._access is not None:
            refusal = self._access.guard(connection, request)
            if refusal is not None:
                return refusal
        if request.code not in _REGISTRATIONS or self._may_register_from(connection):
            return None
        self._rare_log.tell(
            logging.WARNING, self._clock.monotonic(), "source", "a registration from %s is refused: brokers register "
            "from this machine, or from registration-addresses", connection.remote_address,
        )  # fmt: skip
        remark = "brokers may not register here from that address; see registration-addresses"
        return RemotingCommand.response(ResponseCode.NO_PERMISSION, remark)

    def _may_register_from(self, connection: Connection) -> bool:
        host = host_of(connection.remote_address)
        if host == host_of(connection.local_address) or _is_loopback(host):
            return True
        sources = self.options.registration_sources
        if sources is None:
            return self._access is not None
        return any(matches(host) for matches in sources)

    def _register(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None]:
        return self._in_turns(connection, self._register_in_steps(connection, request))

    def _unregister(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None]:
        return self._in_turns(connection, self._unregister_in_steps(connection, request))

    def _in_turns(
        self, connection: Connection, steps: Steps[RemotingCommand]
    ) -> RemotingCommand | Awaitable[RemotingCommand | None]:
        """The answer; of a large registration, and of what comes behind one on its connection, later."""
        try:
            return self._turns.run(_one_after_another(connection, steps), connection)
        except RegistrationRefusedError as error:
            return self._refuse(connection, error)

    def _register_in_steps(self, connection: Connection, request: RemotingCommand) -> Steps[RemotingCommand]:
        header = RegisterBrokerRequestHeader.decode(request.ext_fields)
        if header.body_crc32 and header.body_crc32 != zlib.crc32(request.body) & 0x7FFF_FFFF:
            return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        body = yield from registration_in_steps(request.body, compressed=header.compressed, version=request.version)
        try:
            queues = yield from self.routes.prepare(header, body)
            if connection.closed:  # it was forgotten, which must not come before what would be noted here
                raise RegistrationRefusedError("the connection was closed meanwhile")
            result = self.routes.register(header, body, connection, queues)
        except RegistrationRefusedError as error:
            return self._refuse(connection, error)
        if result is None:
            return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, "register broker failed")
        self._scans.by(self.routes.expiry_of(header))
        fields = {}
        if result.master_address:
            fields["masterAddr"] = result.master_address
        if result.ha_address:
            fields["haServerAddr"] = result.ha_address
        return RemotingCommand.response(ext_fields=fields)

    def _unregister_in_steps(self, connection: Connection, request: RemotingCommand) -> Steps[RemotingCommand]:
        yield from ()
        try:
            self.routes.unregister(UnregisterBrokerRequestHeader.decode(request.ext_fields), connection)
        except RegistrationRefusedError as error:
            return self._refuse(connection, error)
        return RemotingCommand.response()

    def _refuse(self, connection: Connection, error: RegistrationRefusedError) -> RemotingCommand:
        self._rare_log.tell(
            logging.WARNING, self._clock.monotonic(), "refused", "what %s asked for is refused: %s",
            connection.remote_address, said_by_a_peer(str(error)),
        )  # fmt: skip
        return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, str(error))

    def _route(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """The route of a topic; strict JSON for those who read it, Apache's own dialect for older clients."""
        header = GetRouteInfoRequestHeader.decode(request.ext_fields)
        route = self.routes.route(header.topic)
        if route is None:
            return RemotingCommand.response(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {header.topic}",
            )
        strict = request.version >= VERSION_4_9_4 or bool(header.accept_standard_json_only)
        return RemotingCommand.response(body=encode_topic_route(route, strict=strict))

    def _cluster(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """The clusters and brokers there are, in Apache's own dialect."""
        return RemotingCommand.response(body=encode_cluster_info(self.routes.cluster_info()))

    def _topics(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None]:
        """The names of all topics; many are written in steps, as large registrations are read."""
        return self._in_turns(connection, self._topics_in_steps())

    def _topics_in_steps(self) -> Steps[RemotingCommand]:
        return RemotingCommand.response(body=(yield from topic_list_in_steps(self.routes.topics())))

    def _delete_topic(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Forget a topic that its brokers have deleted; a broker that has it still brings it back when it registers."""
        header = DeleteTopicRequestHeader.decode(request.ext_fields)
        self.routes.delete_topic(header.topic, header.cluster_name)
        return RemotingCommand.response()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _one_after_another(connection: Connection, steps: Steps[RemotingCommand]) -> Steps[RemotingCommand]:
    """Steps that begin when those are done which came before them on the same connection.

    A broker that says goodbye behind a large registration must not be registered by it afterwards.
    """
    attributes = connection.attributes
    under_way = attributes.get(_UNDER_WAY, 0)
    attributes[_UNDER_WAY] = under_way + 1
    try:
        if under_way:
            yield  # large work of a connection is done in its order
        return (yield from steps)
    finally:
        attributes[_UNDER_WAY] -= 1


def _too_many_registrations(what: str, most: int) -> RegistrationRefusedError:
    return RegistrationRefusedError(f"{what}; {most} is the most")


def _may_take_over(holder: Hashable, newcomer: Hashable) -> bool:
    """Whether newcomer may stand in for the connection of a broker with the same name and address.

    Yes when that is closed, or may be so without our knowledge: the same machine was started again, and nothing told us
    of its end. From this machine we always hear of it.
    """
    if not isinstance(holder, Connection) or not isinstance(newcomer, Connection):
        return False
    if holder.closed:
        return True
    host = parse_address(newcomer.remote_address)[0]
    return host == parse_address(holder.remote_address)[0] and not ipaddress.ip_address(host).is_loopback
