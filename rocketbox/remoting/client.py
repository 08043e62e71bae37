"""Requests to servers by address: one connection for each, made when it is first needed.

Callers share a connection, and a connect that is under way. There is no reconnect loop: whoever needs a lost
connection next makes a new one. Retries and the choice of another server are for those who know what a request means.

Source: Apache RocketMQ 5.x ``NettyRemotingClient`` (connections on demand, shared connect, answer 1500), ``RPCHook``.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from math import inf
from threading import current_thread, get_ident
from types import TracebackType
from typing import Any, Final, Protocol, Self

import anyio

from rocketbox.clock import Clock
from rocketbox.errors import (
    ConnectError,
    ForkedError,
    HookFailedError,
    NotStartedError,
    OtherLoopError,
    RocketBoxError,
)
from rocketbox.loops import HomeLoop
from rocketbox.protocol.codes import ResponseCode, SerializeType
from rocketbox.protocol.command import RemotingCommand, decode_command, encode_command
from rocketbox.protocol.namespaces import NO_NAMESPACE, Namespace
from rocketbox.protocol.prepared_sends import SendRequest
from rocketbox.remoting.acl import Credentials, RequestSigner
from rocketbox.remoting.connection import Connection, Driver, RemotingOptions, RequestHandler, Role, close_all
from rocketbox.remoting.network import Network, TcpNetwork, format_address, parse_address, reason_of
from rocketbox.remoting.role import AnswerTaker
from rocketbox.remoting.sweep_times import IDLE_SWEEP_INTERVAL, SweepTimes
from rocketbox.safe_repr import also_when_unmade, said_by_a_peer
from rocketbox.tasks import SupervisedTask, Supervisor
from rocketbox.waiters import Waiter, make_waiter

__all__ = ["RemotingClient", "RpcHook"]

_log = logging.getLogger(__name__)

GO_AWAY: Final = int(ResponseCode.GO_AWAY)


class RpcHook(Protocol):
    """Sees every request with its answer; signs requests, changes names in commands. In the loop: it must not block."""

    def before_request(self, address: str, command: RemotingCommand) -> None:
        """May change the command, whose ext fields it replaces.

        What it raises is the request's failure: as it is when it is a RocketBoxError, else in a HookFailedError.
        """

    def before_prepared(self, address: str, request: SendRequest) -> bytes:
        """The same for a send, of which nothing is decoded or encoded again.

        What is the same in all sends to a queue is one object, ``request.template``: what follows from it can be kept.

        Returns further entries of its header (``encode_ext_fields``), b"" for none.
        """

    def after_response(self, address: str, code: int, response: RemotingCommand) -> None:
        """Called with the answer to a request of that code, not for one-way requests and failures.

        What it raises is logged and changes nothing: the server has acted.
        """


class _PendingConnect:
    """A connect that is under way, and those who wait for it: the waiter and the deadline of each."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Waiter, float]] = []
        self.task: SupervisedTask


class RemotingClient:
    """``async with RemotingClient(clock=clock) as client: await client.request(address, command, timeout=3)``.

    ``handlers`` take the requests servers send to us, by code. ``on_connected`` and ``on_disconnected`` are called
    with the address, in the loop.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        network: Network | None = None,
        options: RemotingOptions | None = None,
        handlers: Mapping[int, RequestHandler] | None = None,
        hooks: Sequence[RpcHook] = (),
        namespace: Namespace = NO_NAMESPACE,
    ) -> None:
        self.options = options or RemotingOptions()
        self.namespace = namespace
        """How names are written in what is asked of these servers; who makes a request or reads an answer looks."""
        self.hooks = tuple(hooks)
        self._signer = next((hook for hook in reversed(self.hooks) if isinstance(hook, RequestSigner)), None)
        self.on_connected: list[Callable[[str], None]] = []
        self.on_disconnected: list[Callable[[str], None]] = []
        self._clock = clock
        self._network = network or TcpNetwork()
        self._handlers: dict[int, RequestHandler] = dict(handlers or {})
        self._stack = AsyncExitStack()
        self._tasks = Supervisor("remoting client", clock)
        self._sweeps = SweepTimes(clock, self.options.sweep_interval)
        self._role = Role(
            accepted=False,
            clock=clock,
            options=self.options,
            opaques=itertools.count(),  # one sequence for all connections, as Java has it
            handlers=self._handlers,
            handler_tasks=Supervisor("remoting client's handlers", clock),
            sweeps=self._sweeps,
            closed=self._connection_closed,
        )
        self._connections: dict[str, Connection] = {}  # in use
        self._others: set[Connection] = set()  # used no more, or closed and not yet gone
        self._connecting: dict[str, _PendingConnect] = {}
        self._started = False
        self.home = HomeLoop()
        """The loop in which it runs; none while it does not."""
        self._forked_from: int | None = None
        self._writes_binary = self.options.serialization is SerializeType.ROCKETMQ

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._tasks)
            stack.push_async_callback(self._close_connections)
            await stack.enter_async_context(self._role.handler_tasks)
            self._stack = stack.pop_all()
        self._started = True
        self.home.begin()
        self._tasks.start("sweep", self._sweep)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._started = False
        self.home.end()
        for connection in (*self._connections.values(), *self._others):
            connection.stop_serving()
        return await self._stack.__aexit__(kind, error, trace)

    @property
    def credentials(self) -> Credentials | None:
        """What requests are signed with now; None: they are not."""
        return self._signer.credentials if self._signer is not None else None

    async def request(
        self, address: str, command: RemotingCommand, *, timeout: float, now: float | None = None
    ) -> RemotingCommand:
        """Send command to address ("host:port") and return the response to it, within timeout seconds.

        The connect, where one is needed, counts. ``now`` is the caller's reading of the monotonic clock, if it has one.
        Raises ConnectError (nothing was sent, or the server declined to act), RequestTimeoutError and
        ConnectionClosedError (the server may have acted), TooManyRequestsError and LocalProtocolError (nothing was
        sent). An error code in the response is the caller's to judge.
        """
        self.check_loop()
        if not self.hooks:
            return await self._exchange(address, self._encoder(command), command.code, timeout, now)
        self._show_to_hooks(address, command)
        response = await self._exchange(address, self._encoder(command), command.code, timeout, now)
        self._show_answer(address, command.code, response)
        return response

    def request_prepared(
        self, address: str, request: SendRequest, *, timeout: float, now: float | None = None
    ) -> Coroutine[Any, Any, RemotingCommand]:
        """As :meth:`request`, for a send. Where headers are JSON it is read back into a command and goes their way."""
        if self.hooks and self._writes_binary:
            return self._request_hooked(address, request, timeout, now)
        if self._writes_binary:  # no step of our own: a coroutine that only forwards costs 0.2 us a send
            return self._exchange(address, request.encode, request.code, timeout, now)
        return self.request(address, decode_command(request.encode(0)[4:]), timeout=timeout, now=now)

    async def _request_hooked(
        self, address: str, request: SendRequest, timeout: float, now: float | None
    ) -> RemotingCommand:
        self._ask_hooks(address, request)
        response = await self._exchange(address, request.encode, request.code, timeout, now)
        self._show_answer(address, request.code, response)
        return response

    async def send_oneway(
        self, address: str, command: RemotingCommand, *, timeout: float, now: float | None = None
    ) -> None:
        """Send command, which is not answered; waits at most timeout seconds until it can be written.

        Raises ConnectError, TooManyRequestsError, LocalProtocolError: nothing was sent. ConnectionClosedError.
        """
        self.check_loop()
        self._show_to_hooks(address, command)
        await self._write_oneway(address, self._encoder(command, oneway=True), timeout, now)

    async def send_prepared_oneway(
        self, address: str, request: SendRequest, *, timeout: float, now: float | None = None
    ) -> None:
        """The same for a prepared request, whose frame says that it is one-way."""
        if not self._writes_binary:
            await self.send_oneway(address, decode_command(request.encode(0)[4:]), timeout=timeout, now=now)
            return
        if self.hooks:
            self._ask_hooks(address, request)
        await self._write_oneway(address, request.encode, timeout, now)

    def start_prepared(
        self, address: str, request: SendRequest, taker: AnswerTaker, *, timeout: float, now: float
    ) -> Connection | None:
        """Write a send now and give taker its answer or error, as :meth:`request_prepared` would return or raise it.

        None: not now. There is no connection, or no room, or headers are JSON; the other way waits for all of them.
        An answer is taker's to show to :meth:`answered`, and one with GO_AWAY to :meth:`leave`.
        """
        connection = self._connections.get(address)
        if connection is None or not self._writes_binary or not connection.takes_requests or timeout <= 0:
            return None
        if self.hooks:
            self._ask_hooks(address, request)
        connection.start_request(request.encode, taker, timeout=timeout, now=now, what=request.code)
        return connection

    def write_prepared(self, address: str, request: SendRequest) -> bool:
        """Write a one-way send now; whether it could be, which is said as in :meth:`start_prepared`."""
        connection = self._connections.get(address)
        if connection is None or not self._writes_binary:
            return False
        if self.hooks:
            if connection.makes_wait:
                return False
            self._ask_hooks(address, request)
        return connection.write_at_once(request.encode)

    def answered(self, address: str, code: int, answer: RemotingCommand) -> None:
        """Show hooks an answer that a taker was given."""
        if self.hooks:
            self._show_answer(address, code, answer)

    def forget_requests(self, given_up: Callable[[AnswerTaker], bool]) -> None:
        """Tell those takers nothing more."""
        for connection in (*self._connections.values(), *self._others):
            connection.forget_requests(given_up)

    def connection_to(self, address: str) -> object | None:
        """What requests to an address go over now, for comparing: it is another one after each connect."""
        return self._connections.get(address)

    def let_go(self, address: str) -> None:
        """Use the connection to address no more, if there is one: it is closed as soon as it awaits no answer."""
        connection = self._connections.get(address)
        if connection is not None:
            self.leave(address, connection)

    def leave(self, address: str, old: Connection) -> None:
        """Use a connection no more that was told to go away; what it still awaits may still arrive there."""
        if self._connections.get(address) is old:
            del self._connections[address]
            self._others.add(old)
            self._sweeps.by(self._clock.monotonic())  # closed as soon as it awaits nothing
            self._call(self.on_disconnected, address)

    def forked(self, process: int) -> None:
        """This is a fork of that process, whose connections these are: nothing may be read or written here."""
        self._started, self._forked_from = False, process
        self.home.end()
        self._others.update(self._connections.values())  # held, so that no descriptor is closed with a warning
        self._connections = {}

    def check_loop(self, user: str = "the RocketMQ client") -> None:
        """Raise OtherLoopError, naming who uses it, in another loop than its own. For prepared sends, which are hot,
        who prepares them sees to it."""
        home = self.home
        if (home.thread != get_ident() or not home.runs()) and self._started and not home.is_here():
            raise OtherLoopError(user, home.name, current_thread().name)

    def check_end(self, user: str) -> None:
        """Raise OtherLoopError where its end is asked for in a loop in which none of its tasks can end."""
        if self._started and self.home.is_other():
            raise OtherLoopError(user, self.home.name, current_thread().name)

    def register_handler(self, code: int, handler: RequestHandler) -> None:
        """Let handler take requests of this code that servers send to us."""
        self._handlers[code] = handler

    def connected(self, address: str) -> bool:
        """Whether a connection to address is open."""
        return address in self._connections

    def silent_addresses(self, seconds: float) -> list[str]:
        """Where answers have been awaited for so long, and nothing at all has come in."""
        return [address for address, connection in self._connections.items() if connection.silent_for >= seconds]

    def silent_in(self, seconds: float) -> float:
        """After how many seconds :meth:`silent_addresses` may name one, at the earliest."""
        return seconds - max((connection.silent_for for connection in self._connections.values()), default=0.0)

    def close_connection(self, address: str) -> None:
        """Close the connection to address, if there is one; the next request makes a new one."""
        connection = self._connections.get(address)
        if connection is not None:
            connection.close()

    @also_when_unmade
    def __repr__(self) -> str:
        return f"<RemotingClient {list(self._connections.values())}>"

    # --- connections -----------------------------------------------------------------------------------------------

    def _encoder(self, command: RemotingCommand, *, oneway: bool = False) -> Callable[[int], bytes]:
        options = self.options
        return lambda opaque: encode_command(
            command,
            opaque,
            oneway=oneway,
            serialization=options.serialization,
            language=options.language,
            version=options.version,
        )

    def _ask_hooks(self, address: str, request: SendRequest) -> None:
        request.added = b""
        for hook in self.hooks:
            try:
                request.added += hook.before_prepared(address, request)
            except (RocketBoxError, KeyboardInterrupt):
                raise
            except BaseException as error:  # a hook waits for nothing: a cancellation, too, is one of its own
                raise HookFailedError(hook, error) from error

    def _show_to_hooks(self, address: str, command: RemotingCommand) -> None:
        for hook in self.hooks:
            try:
                hook.before_request(address, command)
            except (RocketBoxError, KeyboardInterrupt):
                raise
            except BaseException as error:  # a hook waits for nothing: a cancellation, too, is one of its own
                raise HookFailedError(hook, error) from error

    def _show_answer(self, address: str, code: int, response: RemotingCommand) -> None:
        for hook in self.hooks:
            try:
                hook.after_response(address, code, response)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # as above
                self._role.log.tell(
                    logging.ERROR, self._clock.monotonic(), ("hook", type(hook), type(error)),
                    "the hook %s failed behind the answer of %s to request %d",
                    type(hook).__name__, address, code, error=error,
                )  # fmt: skip

    async def _exchange(
        self, address: str, encode: Callable[[int], bytes], what: int, timeout: float, now: float | None
    ) -> RemotingCommand:
        if now is None:
            now = self._clock.monotonic()
        deadline = now + timeout
        connection = self._connections.get(address)
        if connection is not None and connection.takes_requests and timeout > 0:
            # Here and not by request_frame(): a coroutine less for each send (benchmark "send, 256 in flight").
            waiter = connection.new_waiter()
            opaque = connection.start_request(encode, waiter, timeout=timeout, now=now, what=what)
            try:
                response: RemotingCommand = await waiter
            except BaseException:
                connection.forget_request(opaque)
                raise
        else:
            if connection is None or timeout <= 0:
                connection, now = await self._reach(address, deadline)
            response = await connection.request_frame(encode, timeout=deadline - now, now=now, what=what)
        if response.code == GO_AWAY:
            self.leave(address, connection)
            connection, now = await self._reach(address, deadline)
            response = await connection.request_frame(encode, timeout=deadline - now, now=now, what=what)
            if response.code == GO_AWAY:
                reason = f"the server goes away and took no request ({said_by_a_peer(response.remark or 'code 1500')})"
                raise ConnectError(address, reason)
        return response

    async def _write_oneway(
        self, address: str, encode: Callable[[int], bytes], timeout: float, now: float | None
    ) -> None:
        connection = self._connections.get(address)
        if connection is None or connection.makes_wait or timeout <= 0:
            deadline = (self._clock.monotonic() if now is None else now) + timeout
            connection, now = await self._reach(address, deadline)
            await connection.writable(timeout=deadline - now)
        connection.write_oneway(encode)

    async def _reach(self, address: str, deadline: float) -> tuple[Connection, float]:
        """The connection to address, or a new one by deadline, and the time by then.

        Raises ConnectError: nothing was sent.
        """
        now = self._clock.monotonic()
        connection = self._connections.get(address)
        if connection is None and now < deadline:
            connection = await self._connect_or_share(address, deadline)
            now = self._clock.monotonic()
        if connection is None or now >= deadline:
            raise ConnectError(address, "no time was left for the request; nothing was sent")
        return connection, now

    async def _connect_or_share(self, address: str, deadline: float) -> Connection:
        if self._forked_from is not None:
            raise ForkedError("the RocketMQ client", self._forked_from)
        if not self._started:
            raise NotStartedError("remoting client")
        pending = self._connecting.get(address)
        if pending is None:
            try:
                host, port = parse_address(address)
            except ValueError as error:
                raise ConnectError(address, str(error)) from error
            pending = self._connecting[address] = _PendingConnect()
            # A task of its own: others who wait must not suffer when the caller who came first is cancelled.
            name = f"connect {address}"
            pending.task = self._tasks.start(name, self._connect, address, host, port, pending, restart=False)
        waiter = make_waiter()
        pending.waiting.append((waiter, deadline))
        self._sweeps.by(deadline)
        connection: Connection = await waiter
        return connection

    async def _connect(self, address: str, host: str, port: int, pending: _PendingConnect) -> None:
        connection: Connection | None = None
        reason = "the client was closed"
        try:
            with self._clock.move_on_after(self.options.connect_timeout) as scope:
                connection = await self._network.connect(host, port, partial(self._opened, address), self._tasks)
            if connection is not None and connection.closed:
                connection, reason = None, "closed by the other side at once"
            elif scope.cancelled_caught:
                reason = f"no answer within {self.options.connect_timeout:g} s"
        except OSError as error:
            reason = reason_of(error)
        except UnicodeError:  # from asyncio's look-up of a name with an empty or too long part
            reason = f"{host!r} is not a host name"
        finally:
            del self._connecting[address]
            if connection is not None:
                self._connections[address] = connection
                self._others.discard(connection)
                self._call(self.on_connected, address)
            for waiter, _ in pending.waiting:
                if waiter.done():
                    continue
                if connection is not None:
                    waiter.set_result(connection)
                else:
                    waiter.set_exception(ConnectError(address, reason))

    def _opened(self, address: str, driver: Driver, local: Any, _remote: Any) -> Connection:
        connection = Connection(driver, self._role, local_address=format_address(local), remote_address=address)
        self._others.add(connection)  # until the connect is over, which may be cancelled right now
        return connection

    def _connection_closed(self, connection: Connection) -> None:
        address = connection.remote_address
        self._others.add(connection)
        if self._connections.get(address) is connection:
            del self._connections[address]
            self._call(self.on_disconnected, address)

    def _call(self, callbacks: list[Callable[[str], None]], address: str) -> None:
        for callback in list(callbacks):
            try:
                callback(address)
            except Exception:
                _log.exception("a callback for the connection to %s failed", address)

    async def _sweep(self) -> None:
        due = inf
        while True:
            now = await self._sweeps.next(due)
            due = min([connection.sweep() for connection in list(self._connections.values())], default=inf)
            for connection in list(self._others):
                due = min(due, connection.sweep())
                if connection.gone:
                    self._others.discard(connection)
                elif not connection.closed and not connection.requests_in_flight and not self._connecting:
                    connection.close("it was not used any more")
            if self._others:
                due = min(due, now + IDLE_SWEEP_INTERVAL)
            for address, pending in self._connecting.items():
                for waiter, deadline in pending.waiting:
                    if waiter.done():
                        continue
                    if deadline > now:
                        due = min(due, deadline)
                    else:
                        waiter.set_exception(ConnectError(address, "not connected within the time of the request"))

    async def _close_connections(self) -> None:
        connects = [pending.task for pending in self._connecting.values()]
        with anyio.CancelScope(shield=True):
            for task in connects:
                task.cancel()
                await task.wait()
        for connection in [*self._connections.values(), *self._others]:
            connection.close("the client was closed")
        await close_all(self._others, self._clock, self.options.close_timeout)
