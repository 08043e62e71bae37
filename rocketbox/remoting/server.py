"""Accepts connections and hands their requests to handlers by code.

How a request is dispatched and answered is ``connection``'s part; what a request means is the handlers'.

Source: Apache RocketMQ 5.x ``NettyRemotingServer`` (idle close, channel events).
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self

from rocketbox.clock import Clock
from rocketbox.errors import NotStartedError, RemotingError
from rocketbox.remoting.connection import Connection, Driver, RemotingOptions, RequestHandler, Role, close_all
from rocketbox.remoting.hooks import RequestHook
from rocketbox.remoting.network import Listener, Network, TcpNetwork, format_address, reason_of
from rocketbox.tasks import Supervisor

__all__ = ["ListenError", "RemotingServer"]

_log = logging.getLogger(__name__)


class ListenError(RemotingError):
    """No server could be opened at ``address``."""

    def __init__(self, address: str, reason: str) -> None:
        self.address = address
        self.reason = reason
        super().__init__(f"cannot listen on {address}: {reason}; choose another port (0 takes a free one) or host")


class RemotingServer:
    """``async with RemotingServer(handlers, host="127.0.0.1", port=0, clock=clock) as server: server.address``.

    Entering raises ListenError. Leaving stops in this order: accept, handlers that run, connections. ``on_open`` and
    ``on_close`` are called in the loop with each connection, on_close exactly once for each on_open; ``hooks`` around
    the handler of each request.
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
        hooks: Sequence[RequestHook] = (),
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
        self._role = Role(
            accepted=True,
            clock=clock,
            options=self.options,
            opaques=itertools.count(),
            handlers=handlers,
            handler_tasks=Supervisor("remoting server's handlers", clock),
            closed=self._connection_closed,
            hooks=tuple(hooks),
        )

    @property
    def address(self) -> str:
        """ "host:port" as it is bound. Raises NotStartedError."""
        if self._listener is None:
            raise NotStartedError("remoting server")
        return format_address(self._listener.address)

    async def __aenter__(self) -> Self:
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
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    def __repr__(self) -> str:
        where = "not listening" if self._listener is None else self.address
        return f"<RemotingServer {where}, {len(self.connections)} connections>"

    def _opened(self, driver: Driver, local: Any, remote: Any) -> Connection:
        connection = Connection(
            driver, self._role, local_address=format_address(local), remote_address=format_address(remote)
        )
        self.connections.add(connection)
        self._call(self._on_open, connection)
        if self._stopping:  # was accepted while the listener closed
            connection.abort()
        return connection

    def _connection_closed(self, connection: Connection) -> None:
        if connection in self.connections:
            self.connections.discard(connection)
            self._closing.add(connection)
            self._call(self._on_close, connection)

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
        while True:
            await self._clock.sleep(self.options.sweep_interval)
            for connection in list(self.connections):
                connection.sweep()
            for connection in list(self._closing):
                connection.sweep()
                if connection.gone:
                    self._closing.discard(connection)

    async def _close_connections(self) -> None:
        for connection in list(self.connections):
            connection.close("the server was stopped")
        await close_all(self._closing, self._clock, self.options.close_timeout)
