"""One connection: who waits for which answer, which handler takes which request, and when either has to wait.

This is the core without I/O. A driver (``asyncio_driver``, ``stream_driver``) brings bytes in and takes bytes out; the
owner, ``client`` or ``server``, calls :meth:`Connection.sweep` about ten times a second. Cutting frames is
``protocol.framing``'s part, which connection a request takes ``client``'s.

Sending. A request takes an opaque, puts a waiter into the table under it, and adds its frame to the output; the driver
takes all of the output once for each turn of the loop. Whatever ends the wait - answer, timeout, cancellation, loss -
the waiter leaves the table, so a late answer finds nobody and is dropped. Deadlines stand in the table and are looked
at by the sweep: a timer for each request would cost more than the request itself. When too many requests are in
flight, or the peer does not take our bytes, further ones stand in line before they are written.

Receiving. A response goes to its waiter. A request goes to the handler of its code: a plain answer goes out at once,
an awaitable becomes a task, None means that somebody calls :meth:`Connection.reply` later. On an accepted connection
reading stops while too many handlers run or the peer does not read its answers; a client goes on reading, because its
own answers come the same way, and answers 'busy'.

Source: Apache RocketMQ 5.x ``NettyRemotingAbstract`` (response table, dispatch, codes 1, 2 and 3).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import anyio

from rocketbox.clock import Clock
from rocketbox.errors import (
    ConnectionClosedError,
    RemoteProtocolError,
    RemotingError,
    RequestTimeoutError,
    RocketBoxError,
    TooManyRequestsError,
)
from rocketbox.handoff import Waiter
from rocketbox.protocol.codes import RequestCode, ResponseCode, SerializeType
from rocketbox.protocol.command import ONEWAY_FLAG, RESPONSE_FLAG, RemotingCommand, encode_command, encode_response
from rocketbox.protocol.headers import HeaderError
from rocketbox.remoting.hooks import HookedRequests
from rocketbox.remoting.intake import Intake
from rocketbox.remoting.options import RemotingOptions
from rocketbox.remoting.role import Driver, RequestHandler, Role

__all__ = ["Connection", "Driver", "RemotingOptions", "RequestHandler", "Role", "close_all"]

_log = logging.getLogger(__name__)

TakenT = TypeVar("TakenT")

SEND_CODES: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
    }
)
MAX_OPAQUE: Final = 0x7FFF_FFFF  # Java's int, without its sign


class _Expired(Exception):  # noqa: N818 - the sweep's word to a request, which makes the real error of it
    pass


class _Place:
    """A request that stands in line."""

    __slots__ = ("admitted", "deadline", "waiter")

    def __init__(self, waiter: Waiter, deadline: float) -> None:
        self.waiter = waiter
        self.deadline = deadline
        self.admitted = False


class Connection:
    """One connection. ``attributes`` is for the owner's handlers: what they know of the peer."""

    def __init__(self, driver: Driver, role: Role, *, local_address: str, remote_address: str) -> None:
        options = role.options
        self.local_address = local_address
        self.remote_address = remote_address
        self.attributes: dict[str, Any] = {}
        self._driver = driver
        self._role = role
        self._monotonic = role.clock.monotonic
        self._new_waiter = driver.waiter
        self._close_reason: str | None = None
        self._closed_at = 0.0
        self._gone = anyio.Event()
        # requests of ours
        self._opaques = role.opaques
        self._waiters: dict[int, tuple[Waiter, float]] = {}  # opaque: waiter, deadline
        self._max_waiters = options.max_requests_in_flight
        # Who connected to us is asked in the serialization it used last, in JSON until it has spoken: there are clients
        # that read JSON only, and one notice in binary makes them close the connection.
        self._serialization = SerializeType.JSON if role.accepted else options.serialization
        self._line: deque[_Place] = deque()
        self._admitted = 0  # were called from the line and have not yet taken their place in the table
        # output
        self._output: list[bytes] = []
        self._output_bytes = 0
        self._max_output_bytes = options.max_unwritten_bytes
        self._driver_is_full = False
        self._congested = False
        # requests of the peer
        self._intake = Intake(self, role)
        self._inbox: deque[RemotingCommand] = deque()
        self._hooked = HookedRequests(role.hooks, self) if role.hooks else None
        self._running = 0
        self._dispatching = False
        self._serving = True
        self._reading = True
        # activity, as of the last sweep
        self._read_since_sweep = True
        self._wrote_since_sweep = True
        self._last_read = self._last_activity = self._monotonic()

    @property
    def closed(self) -> bool:
        return self._close_reason is not None

    @property
    def gone(self) -> bool:
        """Whether the driver has let go of its socket; follows ``closed``."""
        return self._gone.is_set()

    @property
    def congested(self) -> bool:
        """Whether the peer does not take our bytes: more than ``max_unwritten_bytes`` wait, or the socket is full."""
        return self._congested

    @property
    def awaits(self) -> bool:
        """Whether requests of ours are under way or stand in line: their deadlines are to be swept."""
        return bool(self._waiters or self._line)

    @property
    def requests_in_flight(self) -> int:
        """Requests of ours that were written and are not answered."""
        return len(self._waiters)

    def __repr__(self) -> str:
        state = "open" if self._close_reason is None else f"closed ({self._close_reason})"
        details = [f"{len(self._waiters)} requests in flight", f"{len(self._line)} in line"]
        details.append(f"{self._running} handlers running")
        if self._congested:
            details.append("peer takes no bytes")
        if not self._reading:
            details.append("not reading")
        return f"<Connection {self.local_address} - {self.remote_address} {state}: {', '.join(details)}>"

    # --- sending ---------------------------------------------------------------------------------------------------

    async def request(self, command: RemotingCommand, *, timeout: float) -> RemotingCommand:
        """Send command and return the response to it, within timeout seconds.

        Raises RequestTimeoutError, at most one sweep (0.1 s) late, and ConnectionClosedError: in both cases the peer
        may have acted on the command. TooManyRequestsError when it could not even be written in time.
        """
        options = self._role.options

        def encode(opaque: int) -> bytes:
            return encode_command(
                command,
                opaque,
                serialization=self._serialization,
                language=options.language,
                version=options.version,
            )

        return await self.request_frame(encode, timeout=timeout, what=command.code)

    async def request_frame(
        self, encode: Callable[[int], bytes], *, timeout: float, what: str | int = "a request"
    ) -> RemotingCommand:
        """As :meth:`request`, for a caller who makes the frame himself: encode is given the opaque."""
        if timeout <= 0:
            raise RequestTimeoutError(self.remote_address, _name(what), timeout)
        deadline = self._monotonic() + timeout
        waiters = self._waiters
        if self._congested or self._line or len(waiters) + self._admitted >= self._max_waiters:
            await self._stand_in_line(deadline)
        if self._close_reason is not None:
            raise ConnectionClosedError(self.remote_address, self._close_reason)
        opaque = next(self._opaques) & MAX_OPAQUE
        while opaque in waiters:
            opaque = next(self._opaques) & MAX_OPAQUE
        waiter = self._new_waiter()
        waiters[opaque] = (waiter, deadline)
        if self._role.accepted:
            self._role.awaiting.add(self)
        try:
            self._write(encode(opaque))
            response: RemotingCommand = await waiter
            return response
        except _Expired:
            raise RequestTimeoutError(self.remote_address, _name(what), timeout) from None
        finally:
            waiters.pop(opaque, None)  # a late response finds no waiter and is dropped
            if self._line:
                self._call_from_line()

    def send_oneway(self, command: RemotingCommand) -> None:
        """Send command, which is not answered. Raises ConnectionClosedError.

        Never waits; who sends many awaits :meth:`writable` before each.
        """
        if self._close_reason is not None:
            raise ConnectionClosedError(self.remote_address, self._close_reason)
        options = self._role.options
        self._write(
            encode_command(
                command,
                next(self._opaques) & MAX_OPAQUE,
                oneway=True,
                serialization=self._serialization,
                language=options.language,
                version=options.version,
            )
        )

    async def writable(self, *, timeout: float) -> None:
        """Return when there is room for one more frame. Raises TooManyRequestsError, ConnectionClosedError."""
        if self._congested or self._line:
            await self._stand_in_line(self._monotonic() + timeout)
            self._call_from_line()

    def reply(self, request: RemotingCommand, response: RemotingCommand) -> None:
        """Answer request, in the serialization it came in; at any time, in any order, once.

        One-way requests are not answered, and on a closed connection nobody is left to read it: both do nothing.
        """
        if request.flag & ONEWAY_FLAG or self._close_reason is not None:
            if self._hooked is not None:
                self._hooked.after(request, response.code, 0)
            return
        code = response.code
        options = self._role.options
        try:
            frame = encode_response(request, response, language=options.language, version=options.version)
            self._check_size(frame)
        except RemoteProtocolError as error:
            _log.error("the answer to request %d of %s cannot be sent: %s", request.code, self.remote_address, error)
            code = ResponseCode.SYSTEM_ERROR
            failure = RemotingCommand.response(code, str(error))
            frame = encode_response(request, failure, language=options.language, version=options.version)
        self._write(frame)
        if self._hooked is not None:
            self._hooked.after(request, code, len(frame))

    def reply_frame(self, request: RemotingCommand, frame: bytes, *, code: int = ResponseCode.SUCCESS) -> None:
        """As :meth:`reply`, for an answer that is written already: the whole frame, no larger than they may be.

        ``code`` is the one in the frame, for the hooks.
        """
        answered = not request.flag & ONEWAY_FLAG and self._close_reason is None
        if answered:
            self._write(frame)
        if self._hooked is not None:
            self._hooked.after(request, code, len(frame) if answered else 0)

    def _write(self, frame: bytes) -> None:
        size = len(frame)
        if size > self._role.options.max_frame_bytes:
            self._check_size(frame)
        if not self._output:
            self._driver.schedule_flush()
        self._output.append(frame)
        self._output_bytes += size
        if self._congested:
            self._count_unread()
        elif self._output_bytes >= self._max_output_bytes:
            self._update_congestion()

    def _count_unread(self) -> None:
        if self._role.unread is not None and self._close_reason is None:
            self._role.unread.set(self, self._output_bytes if self._congested else 0)

    def _check_size(self, frame: bytes) -> None:
        limit = self._role.options.max_frame_bytes
        if len(frame) > limit:
            raise RemoteProtocolError(f"a frame of {len(frame)} bytes is too large to be sent; {limit} is the most")

    async def _stand_in_line(self, deadline: float) -> None:
        if self._close_reason is not None:
            raise ConnectionClosedError(self.remote_address, self._close_reason)
        place = _Place(self._new_waiter(), deadline)
        self._line.append(place)
        self._role.awaiting.add(self)
        try:
            await place.waiter
        except BaseException:
            if not place.admitted:
                if not place.waiter.done():  # cancelled, on a backend whose waiters do not notice it
                    place.waiter.set_result(None)
                raise
            self._admitted -= 1
            self._call_from_line()
            raise
        self._admitted -= 1

    def _call_from_line(self) -> None:
        line = self._line
        while line and not self._congested and len(self._waiters) + self._admitted < self._max_waiters:
            place = line.popleft()
            if not place.waiter.done():
                place.admitted = True
                self._admitted += 1
                place.waiter.set_result(None)

    def _update_congestion(self) -> None:
        congested = self._driver_is_full or self._output_bytes >= self._max_output_bytes
        if congested == self._congested:
            return
        self._congested = congested
        self._count_unread()
        if not congested:
            self._call_from_line()
        self._dispatch_inbox()

    # --- receiving -------------------------------------------------------------------------------------------------

    def _receive(self, commands: list[RemotingCommand]) -> None:
        self._read_since_sweep = True
        if commands and self._role.accepted:
            self._serialization = commands[-1].serialization or SerializeType.JSON
        waiters = self._waiters
        for command in commands:
            if command.flag & RESPONSE_FLAG:
                entry = waiters.pop(command.opaque, None)
                if entry is not None and not entry[0].done():
                    entry[0].set_result(command)
            elif self._close_reason is None and self._serving:
                self._inbox.append(command)
        if self._inbox:
            self._dispatch_inbox()

    def _take(self, read: Callable[[TakenT], list[RemotingCommand]], taken: TakenT) -> None:
        intake = self._intake
        try:
            commands = read(taken)
        except RemoteProtocolError as garbage:
            self._refuse(garbage)
            return
        self._receive(commands)
        if intake.reader.refused:
            self._answer_refused()
        held = intake.reader.buffered_bytes
        if held or intake.counted_bytes:
            intake.count(held)

    def _answer_refused(self) -> None:
        for one in self._intake.take_refused():
            code = one.request.code
            self._role.counters.bodies_refused += 1
            self._role.log.tell(
                logging.WARNING, self._monotonic(), ("body", code),
                "request %d of %s is refused: its body has %d bytes, %d is the most",
                code, self.remote_address, one.size, one.limit,
            )  # fmt: skip
            self.reply(
                one.request,
                RemotingCommand.response(
                    ResponseCode.MESSAGE_ILLEGAL if code in SEND_CODES else ResponseCode.SYSTEM_ERROR,
                    f"the body of request {code} has {one.size} bytes; {one.limit} is the most here",
                ),
            )

    def _dispatch_inbox(self) -> None:
        """Hand requests to their handlers until one of the bounds is reached; read on or stop reading accordingly."""
        if self._dispatching:  # a handler's answer made the output full: the loop below sees it
            return
        self._dispatching = True
        try:
            while self._inbox and not self._is_busy():
                self._dispatch(self._inbox.popleft())
        finally:
            self._dispatching = False
        reading = not (self._inbox or self._is_busy())
        if reading != self._reading and self._close_reason is None:
            self._reading = reading
            if reading:
                self._driver.resume_reading()
            else:
                self._driver.pause_reading()

    def _is_busy(self) -> bool:
        return self._role.accepted and (self._congested or self._running >= self._role.options.max_running_handlers)

    def _dispatch(self, request: RemotingCommand) -> None:
        if self._hooked is not None:
            try:
                refusal = self._hooked.before(request)
            except Exception as error:
                self._handler_failed(request, error)
                return
            if refusal is not None:
                self.reply(request, refusal)
                return
            if self._close_reason is not None:  # by a hook
                return
        handler = self._role.handlers.get(request.code)
        if handler is None:
            remark = f" request type {request.code} not supported"
            self.reply(request, RemotingCommand.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark))
            return
        try:
            answer = handler(self, request)
        except Exception as error:
            self._handler_failed(request, error)
            return
        if answer is None:
            self._oneway_ended(request)
        elif isinstance(answer, RemotingCommand):
            self.reply(request, answer)
        elif self._running >= self._role.options.max_running_handlers:  # a client: it must not stop reading
            _close_unawaited(answer)
            _log.warning("request %d of %s is refused: too many handlers run", request.code, self.remote_address)
            self.reply(request, RemotingCommand.response(ResponseCode.SYSTEM_BUSY, "[OVERLOAD]too many handlers run"))
        else:
            self._running += 1
            name = f"request {request.code} of {self.remote_address}"
            self._role.handler_tasks.start(name, self._finish, request, answer, restart=False)

    async def _finish(self, request: RemotingCommand, answer: Awaitable[RemotingCommand | None]) -> None:
        try:
            response = await answer
        except Exception as error:
            self._handler_failed(request, error)
        else:
            if response is not None:
                self.reply(request, response)
            else:
                self._oneway_ended(request)
        finally:
            self._running -= 1
            self._dispatch_inbox()

    def _oneway_ended(self, request: RemotingCommand) -> None:
        """Of a request without an answer yet: if it will get none, its hooks hear that it is over."""
        if self._hooked is not None and request.flag & ONEWAY_FLAG:
            self._hooked.after(request, ResponseCode.SUCCESS, 0)

    def _handler_failed(self, request: RemotingCommand, error: Exception) -> None:
        if isinstance(error, RemoteProtocolError) and request.raw_header is not None:
            try:
                _ = request.ext_fields
            except RemoteProtocolError as garbage:  # not the handler's fault: headers are parsed when first looked at
                self._refuse(garbage)
                return
        role, code, now = self._role, request.code, self._monotonic()
        if isinstance(error, HeaderError | RemoteProtocolError):  # the peer's fault, which it may repeat many times
            role.counters.unreadable_requests += 1
            role.log.tell(
                logging.WARNING, now, ("unreadable", code), "request %d of %s cannot be read: %s",
                code, self.remote_address, error,
            )  # fmt: skip
        else:
            role.counters.failed_requests += 1
            role.log.tell(
                logging.ERROR, now, ("failed", code, type(error)), "the handler of request %d of %s failed",
                code, self.remote_address, error=error,
            )  # fmt: skip
        # Our own errors are written for who reads them; of others a peer sees neither text (paths, values of somebody
        # else) nor kind.
        own = isinstance(error, RocketBoxError)
        remark = str(error) if own else f"request {request.code} has failed here; the log of this process says why"
        self.reply(request, RemotingCommand.response(ResponseCode.SYSTEM_ERROR, remark))

    def _refuse(self, garbage: RemoteProtocolError) -> None:
        if self._close_reason is None:
            self._role.counters.garbage += 1
            self._role.log.tell(
                logging.WARNING, self._monotonic(), "garbage", "the connection with %s is closed: %s",
                self.remote_address, garbage,
            )  # fmt: skip
            self.close(f"protocol error: {garbage}")

    # --- for the driver --------------------------------------------------------------------------------------------

    def get_buffer(self, hint: int) -> memoryview:
        """Room to receive into; see FrameReader."""
        return self._intake.reader.get_buffer(hint)

    def buffer_updated(self, size: int) -> None:
        """Take size bytes that were received into get_buffer()."""
        if self._close_reason is None:
            self._take(self._intake.reader.buffer_updated, size)

    def received(self, data: bytes) -> None:
        """Take bytes that were received."""
        if self._close_reason is None:
            self._take(self._intake.reader.feed, data)

    def take_output(self) -> bytes:
        """All bytes to be written, maybe none; :meth:`flushed` is to be called when they are on their way."""
        output = self._output
        if not output:
            return b""
        self._output = []
        self._wrote_since_sweep = True
        return b"".join(output)

    def flushed(self, size: int) -> None:
        """Size bytes of take_output() have been handed on."""
        self._output_bytes -= size
        if self._congested:
            self._count_unread()
            self._update_congestion()

    def pause_writing(self) -> None:
        """The driver holds more than it can pass on."""
        self._driver_is_full = True
        self._update_congestion()

    def resume_writing(self) -> None:
        """The driver has passed on what it held."""
        self._driver_is_full = False
        self._wrote_since_sweep = True
        self._update_congestion()

    def lost(self, reason: str) -> None:
        """The driver has closed, or found closed, what it drives. Every pending request fails at once."""
        self._end(reason)
        self._gone.set()

    # --- for the owner ---------------------------------------------------------------------------------------------

    def close(self, reason: str = "closed by this side") -> None:
        """Fail all pending requests and close, after what is written already has left."""
        if self._close_reason is None:
            self._end(reason)
            self._driver.close()

    def abort(self, reason: str = "aborted") -> None:
        """Close at once."""
        self._end(reason)
        self._driver.abort()

    async def wait_closed(self) -> None:
        """Return when the driver has let go of its socket."""
        await self._gone.wait()

    def stop_serving(self) -> None:
        """Drop the peer's requests from now on; a stop comes next."""
        self._serving = False
        self._inbox.clear()

    def _end(self, reason: str) -> None:
        if self._close_reason is not None:
            return
        self._close_reason = reason
        self._closed_at = self._monotonic()
        self._inbox.clear()
        pending = [waiter for waiter, _ in self._waiters.values()] + [place.waiter for place in self._line]
        self._waiters.clear()
        self._line.clear()
        for waiter in pending:
            if not waiter.done():
                waiter.set_exception(ConnectionClosedError(self.remote_address, reason))
        if self._hooked is not None:
            self._hooked.lost()
        self._intake.forget()
        if self._role.unread is not None:
            self._role.unread.set(self, 0)
        self._role.awaiting.discard(self)
        self._role.closed(self)

    def sweep(self) -> None:
        """Fail what is past its deadline; close when idle or silent for too long."""
        now = self._monotonic()
        if self._read_since_sweep:
            self._last_read = self._last_activity = now
            self._read_since_sweep = False
        if self._wrote_since_sweep:
            self._last_activity = now
            self._wrote_since_sweep = False
        options = self._role.options
        if self._close_reason is not None:
            if now - self._closed_at >= options.close_timeout:
                self._driver.abort()  # the peer does not take what was still to be written
            return
        # Walking the table costs 0.03 us for each request in flight, and unlike a queue of deadlines it holds nothing
        # of those that were answered long ago.
        expired = [waiter for waiter, deadline in self._waiters.values() if deadline <= now and not waiter.done()]
        for waiter in expired:
            waiter.set_exception(_Expired())
        if self._line:
            self._sweep_line(now)
        if expired and now - self._last_read >= options.silence_timeout:
            self.close(f"nothing came in for {now - self._last_read:.0f} s")
        elif now - self._last_activity >= options.idle_timeout and not self._waiters and not self._running:
            self.close(f"idle for {options.idle_timeout:g} s")
        elif (late := self._intake.too_slow(now, reading=self._reading)) is not None:
            self._role.counters.frames_too_slow += 1
            self._role.log.tell(
                logging.WARNING, now, "slow", "the connection with %s is closed: %s", self.remote_address, late
            )
            self.abort(late)

    def _sweep_line(self, now: float) -> None:
        error: RemotingError
        for place in self._line:
            if place.deadline <= now and not place.waiter.done():
                if self._congested:
                    error = TooManyRequestsError(f"bytes on their way to {self.remote_address}", self._max_output_bytes)
                else:
                    error = TooManyRequestsError(f"requests in flight to {self.remote_address}", self._max_waiters)
                place.waiter.set_exception(error)
        self._line = deque(place for place in self._line if not place.waiter.done())


def _name(what: str | int) -> str:
    return f"request {what:d}" if isinstance(what, int) else what


def _close_unawaited(answer: Awaitable[Any]) -> None:
    close = getattr(answer, "close", None)  # a coroutine that is never awaited would warn
    if close is not None:
        close()


async def close_all(connections: set[Connection], clock: Clock, timeout: float) -> None:
    """Wait until closed connections are gone; abort those that still write after timeout seconds."""
    with clock.move_on_after(timeout) as scope:
        scope.shield = True
        for connection in list(connections):
            await connection.wait_closed()
    for connection in list(connections):
        if not connection.gone:
            connection.abort()
    with anyio.CancelScope(shield=True):
        for connection in list(connections):
            await connection.wait_closed()
    connections.clear()
