"""Accepts connections and hands their requests to handlers by code.

How a request is dispatched and answered is ``connection``'s part; what a request means is the handlers'.

Source: Apache RocketMQ 5.x ``NettyRemotingServer`` (idle close, channel events).
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AsyncExitStack
from math import inf
from types import TracebackType
from typing import Any, Self

from rocketbox.clock import Clock
from rocketbox.errors import NotStartedError, RemotingError
from rocketbox.rare_log import RareLog
from rocketbox.remoting.budgets import AddressLimit, ServerCounters, SharedBytes, host_of
from rocketbox.remoting.connection import (
    Connection,
    Driver,
    RemotingOptions,
    RequestGuard,
    RequestHandler,
    Role,
    RunHandler,
    close_all,
)
from rocketbox.remoting.descriptors import connection_limit, raise_descriptor_limit
from rocketbox.remoting.hooks import RequestHook
from rocketbox.remoting.network import Listener, Network, TcpNetwork, format_address, reason_of
from rocketbox.remoting.read_turns import ReadTurns
from rocketbox.remoting.sweep_times import SweepTimes
from rocketbox.safe_repr import also_when_unmade
from rocketbox.tasks import Supervisor

__all__ = ["ListenError", "RemotingServer"]

_log = logging.getLogger(__name__)

ALL_SWEPT_INTERVAL = 0.9  # seconds; less than between two sweeps while no deadline is awaited: each of these is one


class ListenError(RemotingError):
    """No server could be opened at ``address``."""

    def __init__(self, address: str, reason: str) -> None:
        self.address = address
        self.reason = reason
        super().__init__(f"cannot listen on {address}: {reason}; choose another port (0 takes a free one) or host")


class RemotingServer:
    """``async with RemotingServer(handlers, host="127.0.0.1", port=0, clock=clock) as server: server.address``.

    Entering raises ListenError. Leaving stops in this order: accept, handlers that run, connections. ``on_open`` and
    ``on_close`` are called in the loop with each connection, on_close exactly once for each on_open; ``guard`` before
    all else with each request, ``hooks`` around the handler of each that it lets through. ``reads`` are the codes of
    requests whose answers may be large: connections take turns with them. ``runs`` take several requests at once.
    """

    def __init__(
        self,
        handlers: Mapping[int, RequestHandler],
        *,
        host: str,
        port: int,
        clock: Clock,
        network: Network | None = None,
        options: RemotingOptions | None = None,
        on_open: Callable[[Connection], None] | None = None,
        on_close: Callable[[Connection], None] | None = None,
        guard: RequestGuard | None = None,
        hooks: Sequence[RequestHook] = (),
        reads: Set[int] = frozenset(),
        runs: Mapping[int, RunHandler] | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.options = options or RemotingOptions()
        self.connections: set[Connection] = set()
        self._clock = clock
        self._network = network or TcpNetwork()
        self._on_open = on_open
        self._on_close = on_close
        self._closing: set[Connection] = set()  # closed, and not yet gone
        self._stack = AsyncExitStack()
        self._tasks = Supervisor("remoting server", clock)
        self._listener: Listener | None = None
        self._stopping = False
        self.counters = ServerCounters()
        self.connection_limit = self.options.max_connections
        self.address_limit = self._limit_of_an_address()
        self._addresses = AddressLimit()
        self._log = RareLog(_log)
        self._handshakes = SharedBytes(self.options.max_handshakes, self._give_up_handshake)
        self._half_frames = SharedBytes(self.options.max_half_frame_bytes, self._give_up_half_frame)
        self._unread = SharedBytes(self.options.max_unread_bytes, self._give_up_unread)
        self._read_turns = ReadTurns(reads, clock, self.options.read_pause)
        self._sweeps = SweepTimes(clock, self.options.sweep_interval)
        self._role = Role(
            accepted=True,
            clock=clock,
            options=self.options,
            opaques=itertools.count(),
            handlers=handlers,
            runs=runs or {},
            handler_tasks=Supervisor("remoting server's handlers", clock),
            sweeps=self._sweeps,
            closed=self._connection_closed,
            guard=guard,
            hooks=tuple(hooks),
            handshakes=self._handshakes,
            half_frames=self._half_frames,
            unread=self._unread,
            read_turns=self._read_turns,
            counters=self.counters,
            log=self._log,
        )

    @property
    def address(self) -> str:
        """ "host:port" as it is bound. Raises NotStartedError."""
        if self._listener is None:
            raise NotStartedError("remoting server")
        return format_address(self._listener.address)

    @property
    def handshakes(self) -> int:
        """How many connections are not there yet: they have not spoken, or are in their TLS handshakes."""
        return self._handshakes.total

    @property
    def half_frame_bytes(self) -> int:
        """What all connections hold of frames that are not complete."""
        return self._half_frames.total

    @property
    def written_bytes(self) -> int:
        """The bytes of all answers since the start."""
        return self._read_turns.written

    @property
    def unread_bytes(self) -> int:
        """What waits for peers that do not read."""
        return self._unread.total

    async def __aenter__(self) -> Self:
        self.connection_limit = connection_limit(self.options.max_connections, raise_descriptor_limit())
        self.address_limit = self._limit_of_an_address()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._tasks)
            stack.push_async_callback(self._close_connections)
            await stack.enter_async_context(self._role.handler_tasks)
            try:
                self._listener = await self._network.listen(self.host, self.port, self._opened, self._tasks)
            except OSError as error:
                raise ListenError(format_address((self.host, self.port)), reason_of(error)) from error
            stack.push_async_callback(self._listener.aclose)
            stack.callback(self.stop_serving)
            self._stack = stack.pop_all()
        self._tasks.start("sweep", self._sweep)
        self._tasks.start("turns of reads", self._read_turns.run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    @also_when_unmade
    def __repr__(self) -> str:
        where = "not listening" if self._listener is None else self.address
        return f"<RemotingServer {where}, {len(self.connections)} connections>"

    def _opened(self, driver: Driver, local: Any, remote: Any) -> Connection:
        connection = Connection(
            driver, self._role, local_address=format_address(local), remote_address=format_address(remote)
        )
        if self._is_full():
            self.counters.connections_refused += 1
            self._log.tell(
                logging.WARNING, self._clock.monotonic(), "connections",
                "the connection of %s is refused: %d are open, which is the most here (max-connections)",
                connection.remote_address, self.connection_limit,
            )  # fmt: skip
            connection.abort()
            return connection
        if self._has_its_share(connection):
            connection.abort()
            return connection
        self.connections.add(connection)
        self._addresses.add(connection)
        self._call(self._on_open, connection)
        if self._stopping:  # was accepted while the listener closed
            connection.abort()
        return connection

    def _limit_of_an_address(self) -> int:
        said = self.options.max_connections_per_address
        return max(1, self.connection_limit // 2) if said is None else min(said, self.connection_limit)

    def _is_full(self) -> bool:
        if len(self.connections) + len(self._closing) < self.connection_limit:
            return False
        self._forget_gone()
        return len(self.connections) + len(self._closing) >= self.connection_limit

    def _has_its_share(self, connection: Connection) -> bool:
        """Whether the address of a new connection has as many as one may have; the first one refused is told."""
        addresses = self._addresses
        if addresses.count(connection) < self.address_limit:
            return False
        self._forget_gone()
        if addresses.count(connection) < self.address_limit:
            return False
        self.counters.connections_refused_of_one_address += 1
        if not addresses.is_told(connection) and self._log.tell(
            logging.WARNING, self._clock.monotonic(), "address",
            "connections of %s are refused: %d of it are open, the most of one address "
            "(max-connections-per-address); told again when it had none meanwhile",
            host_of(connection.remote_address), self.address_limit,
        ):  # fmt: skip
            addresses.note_told(connection)
        return True

    def _forget_gone(self) -> None:
        """Count no more those that are closed and gone; the sweep would do it in a moment."""
        for connection in [connection for connection in self._closing if connection.gone]:
            self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        self._closing.discard(connection)
        self._addresses.remove(connection)

    def _connection_closed(self, connection: Connection) -> None:
        if connection in self.connections:
            self.connections.discard(connection)
            self._closing.add(connection)
            self._call(self._on_close, connection)

    def _give_up_handshake(self, connection: Connection, _: int) -> None:
        self.counters.handshakes_given_up += 1
        self._give_up(
            connection, "too many connections are in their handshakes",
            "more than %d are in their TLS handshakes (max-handshakes), and it is the oldest", self._handshakes.limit,
        )  # fmt: skip

    def _give_up_half_frame(self, connection: Connection, size: int) -> None:
        self.counters.half_frames_given_up += 1
        self._give_up(
            connection, "half frames of all connections are too many bytes",
            "half frames of all connections have more than %d bytes (max-half-frame-bytes), and its %d are the oldest",
            self._half_frames.limit, size,
        )  # fmt: skip

    def _give_up_unread(self, connection: Connection, size: int) -> None:
        self.counters.unread_given_up += 1
        self._give_up(
            connection, "the peer does not read",
            "more than %d bytes wait for peers that do not read (max-unread-bytes), its %d the longest",
            self._unread.limit, size,
        )  # fmt: skip

    def _give_up(self, connection: Connection, reason: str, why: str, *values: int) -> None:
        """Close it for what all of them hold together; each reason is logged now and then."""
        self._log.tell(
            logging.WARNING, self._clock.monotonic(), reason,
            f"the connection with %s is closed: {why}", connection.remote_address, *values,
        )  # fmt: skip
        connection.abort(reason)

    def _call(self, callback: Callable[[Connection], None] | None, connection: Connection) -> None:
        if callback is not None:
            try:
                callback(connection)
            except Exception:
                _log.exception("a callback for the connection of %s failed", connection.remote_address)

    def stop_serving(self) -> None:
        """Take no more requests and connections; answers may still be given. Leaving does this, if it was not done."""
        self._stopping = True
        for connection in self.connections:
            connection.stop_serving()

    async def _sweep(self) -> None:
        """Deadlines of requests of ours when they come, all else (idleness, slow frames) at most once a second."""
        swept, due = self._clock.monotonic(), inf
        while True:
            now = await self._sweeps.next(due)
            all_of_them = now - swept >= ALL_SWEPT_INTERVAL
            if all_of_them:
                swept = now
            due = self._sweep_once(all_of_them=all_of_them)
            if not all_of_them:  # what this sweep was for may be among the others
                due = min(due, swept + ALL_SWEPT_INTERVAL)

    def _sweep_once(self, *, all_of_them: bool) -> float:
        """When the next deadline is. No task's variables hold a connection until then."""
        awaiting = self._role.awaiting
        swept = self.connections if all_of_them else awaiting
        due = min([connection.sweep() for connection in list(swept)], default=inf)
        for connection in list(awaiting):
            if not connection.awaits:
                awaiting.discard(connection)
        for connection in list(self._closing):
            due = min(due, connection.sweep())
            if connection.gone:
                self._forget(connection)
        return due

    async def _close_connections(self) -> None:
        for connection in list(self.connections):
            connection.close("the server was stopped")
        await close_all(self._closing, self._clock, self.options.close_timeout)
