"""One connection: who waits for which answer, what is to be written, and when either has to wait.

This is the core without I/O. A driver (``asyncio_driver``, ``stream_driver``) brings bytes in and takes bytes out; the
owner, ``client`` or ``server``, calls :meth:`Connection.sweep` when ``sweep_times`` says, at most ten times a second.
Cutting frames is ``protocol.framing``'s part, which connection a request takes ``client``'s, what becomes of the peer's
requests ``peer_requests``'.

Sending. A request takes an opaque, puts a waiter into the table under it, and adds its frame to the output; the driver
takes all of the output once for each turn of the loop. Whatever ends the wait - answer, timeout, cancellation, loss -
the waiter leaves the table, so a late answer finds nobody and is dropped. Deadlines stand in the table and are looked
at by the sweep: a timer for each request would cost more than the request itself. When too many requests are in
flight, or the peer does not take our bytes, further ones stand in line (``waiting_line``) before they are written.

Source: Apache RocketMQ 5.x ``NettyRemotingAbstract`` (response table).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import anyio

from rocketbox.clock import Clock
from rocketbox.errors import (
    ConnectError,
    ConnectionClosedError,
    LocalProtocolError,
    RemoteProtocolError,
    RemotingError,
    RequestTimeoutError,
    TooManyRequestsError,
)
from rocketbox.protocol.codes import RequestCode, ResponseCode, SerializeType
from rocketbox.protocol.command import ONEWAY_FLAG, RESPONSE_FLAG, RemotingCommand, encode_command, encode_response
from rocketbox.protocol.framing import FrameReader
from rocketbox.remoting.intake import Intake
from rocketbox.remoting.options import RemotingOptions
from rocketbox.remoting.peer_requests import PeerRequests
from rocketbox.remoting.role import GONE, AnswerTaker, Driver, RequestGuard, RequestHandler, Role, RunHandler
from rocketbox.remoting.sweep_times import IDLE_SWEEP_INTERVAL
from rocketbox.remoting.waiting_line import WaitingLine
from rocketbox.safe_repr import also_when_unmade

__all__ = [
    "Connection",
    "Driver",
    "Opened",
    "RemotingOptions",
    "RequestGuard",
    "RequestHandler",
    "Role",
    "RunHandler",
    "close_all",
]

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


class Connection:
    """One connection. ``attributes`` is for the owner's handlers: what they know of the peer."""

    def __init__(self, driver: Driver, role: Role, *, local_address: str, remote_address: str) -> None:
        options = role.options
        self.local_address = local_address
        self.remote_address = remote_address
        self.attributes: dict[str, Any] = {}
        self.if_never_answered = ""
        """What the reason of its end says besides where the peer ends it in place of its very first answer."""
        self._driver = driver
        self._role = role
        self._monotonic = role.clock.monotonic
        self.new_waiter = driver.waiter
        """Makes a waiter for :meth:`start_request`."""
        self._close_reason: str | None = None
        self._closed_at = 0.0
        self._handshake_since: float | None = None
        self._gone = anyio.Event()
        # requests of ours
        self._opaques = role.opaques
        self._waiters: dict[int, tuple[AnswerTaker, float, float, str | int]] = {}  # taker, deadline, timeout, what
        self._max_waiters = options.max_requests_in_flight
        # Who connected to us is asked in the serialization it used last, in JSON until it has spoken: there are clients
        # that read JSON only, and one notice in binary makes them close the connection.
        self._serialization = SerializeType.JSON if role.accepted else options.serialization
        self._line = WaitingLine(driver.waiter, self._room)
        # output
        self._output: list[bytes] = []
        self._output_bytes = 0
        self._max_output_bytes = options.max_unwritten_bytes
        self._max_frame_bytes = options.max_frame_bytes
        self._driver_is_full = False
        self._congested = False
        # requests of the peer
        self._intake = Intake(role)
        self._requests = PeerRequests(self, driver, role)
        self._hooked = self._requests.hooked
        self._read_turns = role.read_turns
        self._last_read = self._last_written = self._awaited_since = self._monotonic()
        self._role.sweeps.by(self._last_read + options.idle_timeout)

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
    def may_buffer(self) -> int | None:
        """How many bytes a driver may keep before it says that it is full; None: as few as it likes.

        Few where a peer connected to us, for it is one of thousands. As many as we may have unwritten where we did:
        callers wait when that is reached, not when the driver's own limit is, which asyncio has at 64 KiB.
        """
        return None if self._role.accepted else self._max_output_bytes

    @property
    def makes_wait(self) -> bool:
        """Whether a frame more has to wait for room; see :meth:`writable`."""
        return self._congested or bool(self._line.places)

    @property
    def takes_requests(self) -> bool:
        """Whether a request may be written now, without standing in line."""
        line = self._line
        return (
            not (self._congested or line.places or len(self._waiters) + line.admitted >= self._max_waiters)
            and self._close_reason is None
        )

    @property
    def awaits(self) -> bool:
        """Whether requests of ours are under way or stand in line: their deadlines are to be swept."""
        return bool(self._waiters or self._line.places)

    @property
    def requests_in_flight(self) -> int:
        """Requests of ours that were written and are not answered."""
        return len(self._waiters)

    @property
    def silent_for(self) -> float:
        """Seconds in which an answer was awaited all the time and nothing at all came in."""
        return self._monotonic() - max(self._last_read, self._awaited_since) if self._waiters else 0.0

    @also_when_unmade
    def __repr__(self) -> str:
        state = "open" if self._close_reason is None else f"closed ({self._close_reason})"
        details = [f"{len(self._waiters)} requests in flight", f"{len(self._line)} in line"]
        details.append(f"{self._requests.running} handlers running")
        if self._congested:
            details.append("peer takes no bytes")
        if not self._requests.reading:
            details.append("not reading")
        return f"<Connection {self.local_address} - {self.remote_address} {state}: {', '.join(details)}>"

    # --- sending ---------------------------------------------------------------------------------------------------

    async def request(self, command: RemotingCommand, *, timeout: float) -> RemotingCommand:
        """Send command and return the response to it, within timeout seconds.

        Raises RequestTimeoutError, at most one sweep (0.1 s) late, and ConnectionClosedError: in both cases the peer
        may have acted on the command. TooManyRequestsError when it could not even be written in time.
        """
        return await self.request_frame(self._encoder(command), timeout=timeout, what=command.code)

    def start(self, command: RemotingCommand, taker: AnswerTaker, *, timeout: float) -> int:
        """As :meth:`start_request`, for a command in the serialization that the peer used last."""
        encode = self._encoder(command)
        return self.start_request(encode, taker, timeout=timeout, now=self._monotonic(), what=command.code)

    def _encoder(self, command: RemotingCommand) -> Callable[[int], bytes]:
        options = self._role.options

        def encode(opaque: int) -> bytes:
            return encode_command(
                command,
                opaque,
                serialization=self._serialization,
                language=options.language,
                version=options.version,
            )

        return encode

    async def request_frame(
        self, encode: Callable[[int], bytes], *, timeout: float, now: float | None = None, what: str | int = "a request"
    ) -> RemotingCommand:
        """As :meth:`request`, for a caller who makes the frame himself: encode is given the opaque.

        ``now`` is the caller's reading of the monotonic clock, if it has one.
        """
        if timeout <= 0:
            raise RequestTimeoutError(self.remote_address, _name(what), timeout)
        now = self._monotonic() if now is None else now
        waiters, line = self._waiters, self._line
        if self._congested or line.places or len(waiters) + line.admitted >= self._max_waiters:
            await self._stand_in_line(now + timeout)
        waiter = self.new_waiter()
        opaque = self.start_request(encode, waiter, timeout=timeout, now=now, what=what)
        try:
            response: RemotingCommand = await waiter
            return response
        except BaseException:
            self.forget_request(opaque)
            raise

    def start_request(
        self, encode: Callable[[int], bytes], taker: AnswerTaker, *, timeout: float, now: float, what: str | int
    ) -> int:
        """Write a request and return its opaque; taker is given the answer, or the error that :meth:`request` raises.

        For who has looked at :attr:`takes_requests`. Raises ConnectionClosedError, LocalProtocolError: nothing was
        written, and taker is told nothing.
        """
        if self._close_reason is not None:
            raise ConnectionClosedError(self.remote_address, self._close_reason)
        waiters = self._waiters
        opaque = next(self._opaques) & MAX_OPAQUE
        while opaque in waiters:
            opaque = next(self._opaques) & MAX_OPAQUE
        self._write(encode(opaque))  # raises before there is anything to take back
        deadline = now + timeout
        if not waiters:
            self._awaited_since = now
        waiters[opaque] = (taker, deadline, timeout, what)
        if deadline < self._role.sweeps.due:
            self._role.sweeps.by(deadline)
        if self._role.accepted:
            self._role.awaiting.add(self)
        return opaque

    def forget_request(self, opaque: int) -> None:
        """Nobody waits for the answer any more: a late one finds no taker and is dropped."""
        self._waiters.pop(opaque, None)
        if self._line.places:
            self._line.call()

    def forget_requests(self, given_up: Callable[[AnswerTaker], bool]) -> None:
        """Tell those takers nothing more; what comes for them is dropped."""
        for opaque in [opaque for opaque, (taker, *_) in self._waiters.items() if given_up(taker)]:
            del self._waiters[opaque]
        self._line.call()

    def send_oneway(self, command: RemotingCommand) -> None:
        """Send command, which is not answered. Raises ConnectionClosedError.

        Never waits; who sends many awaits :meth:`writable` before each.
        """
        options = self._role.options
        self.write_oneway(
            lambda opaque: encode_command(
                command,
                opaque,
                oneway=True,
                serialization=self._serialization,
                language=options.language,
                version=options.version,
            )
        )

    def write_at_once(self, encode: Callable[[int], bytes]) -> bool:
        """As :meth:`write_oneway`, unless a frame more has to wait; whether it was written."""
        if self._congested or self._line.places or self._close_reason is not None:
            return False
        self._write(encode(next(self._opaques) & MAX_OPAQUE))
        return True

    def write_oneway(self, encode: Callable[[int], bytes]) -> None:
        """As :meth:`send_oneway`, for a caller who makes the frame himself: encode is given the opaque."""
        if self._close_reason is not None:
            raise ConnectionClosedError(self.remote_address, self._close_reason)
        self._write(encode(next(self._opaques) & MAX_OPAQUE))

    async def writable(self, *, timeout: float) -> None:
        """Return when there is room for one more frame. Raises TooManyRequestsError, ConnectionClosedError."""
        if self._congested or self._line.places:
            await self._stand_in_line(self._monotonic() + timeout)
            self._line.call()

    def reply(self, request: RemotingCommand, response: RemotingCommand) -> None:
        """Answer request, in the serialization it came in; at any time, in any order, once.

        One-way requests are not answered, and on a closed connection nobody is left to read it: both do nothing.
        """
        if request.flag & ONEWAY_FLAG or self._close_reason is not None:
            if self._hooked is not None:
                self._hooked.after(self, request, response.code, 0)
            return
        code = response.code
        options = self._role.options
        try:
            frame = encode_response(request, response, language=options.language, version=options.version)
            self._check_size(frame)
        except LocalProtocolError as error:
            self._role.counters.too_large_answers += 1
            self._role.log.tell(
                logging.ERROR, self._monotonic(), ("answer", request.code),
                "the answer to request %d of %s cannot be sent: %s", request.code, self.remote_address, error,
            )  # fmt: skip
            code = ResponseCode.SYSTEM_ERROR
            failure = RemotingCommand.response(code, str(error))
            frame = encode_response(request, failure, language=options.language, version=options.version)
        self._write(frame)
        if self._hooked is not None:
            self._hooked.after(self, request, code, len(frame))

    def reply_frame(self, request: RemotingCommand, frame: bytes, *, code: int = ResponseCode.SUCCESS) -> None:
        """As :meth:`reply`, for an answer that is written already: the whole frame, no larger than they may be.

        ``code`` is the one in the frame, for the hooks.
        """
        answered = not request.flag & ONEWAY_FLAG and self._close_reason is None
        if answered:
            self._write(frame)
        if self._hooked is not None:
            self._hooked.after(self, request, code, len(frame) if answered else 0)

    def reply_frames(self, requests: Sequence[RemotingCommand], frames: Sequence[bytes]) -> None:
        """As :meth:`reply_frame` for many that succeeded."""
        if self._hooked is not None or self._close_reason is not None:
            for request, frame in zip(requests, frames, strict=True):
                self.reply_frame(request, frame)
        else:
            self._write_all(
                [frame for request, frame in zip(requests, frames, strict=True) if not request.flag & ONEWAY_FLAG]
            )

    def _write(self, frame: bytes) -> None:
        size = len(frame)
        if size > self._max_frame_bytes:
            self._check_size(frame)
        if not self._output:
            self._driver.schedule_flush()
        self._output.append(frame)
        self._output_bytes += size
        if self._output_bytes >= self._max_output_bytes or self._congested or self._read_turns is not None:
            self._wrote(size)

    def _write_all(self, frames: Sequence[bytes]) -> None:
        size = sum(map(len, frames))
        if size > self._max_frame_bytes:
            for frame in frames:
                self._check_size(frame)
        if not self._output and frames:
            self._driver.schedule_flush()
        self._output += frames
        self._output_bytes += size
        self._wrote(size)

    def _wrote(self, size: int) -> None:
        if self._read_turns is not None:
            self._read_turns.add(size)
        if self._congested:
            self._count_unread()
        elif self._output_bytes >= self._max_output_bytes:
            self._update_congestion()

    def _count_unread(self) -> None:
        if self._role.unread is not None and self._close_reason is None:
            self._role.unread.set(self, self._output_bytes if self._congested else 0)

    def _check_size(self, frame: bytes) -> None:
        limit = self._max_frame_bytes
        if len(frame) > limit:
            raise LocalProtocolError(f"a frame of {len(frame)} bytes is too large to be sent; {limit} is the most")

    async def _stand_in_line(self, deadline: float) -> None:
        if self._close_reason is not None:
            raise ConnectionClosedError(self.remote_address, self._close_reason)
        self._role.awaiting.add(self)
        self._role.sweeps.by(deadline)
        await self._line.stand(deadline)

    def _room(self) -> int:
        """How many requests may be in flight beside those that are; for the line."""
        return 0 if self._congested else self._max_waiters - len(self._waiters)

    def _update_congestion(self) -> None:
        congested = self._driver_is_full or self._output_bytes >= self._max_output_bytes
        if congested == self._congested:
            return
        self._congested = congested
        self._count_unread()
        if not congested:
            self._line.call()
        self._requests.dispatch()

    # --- receiving -------------------------------------------------------------------------------------------------

    def _receive(self, commands: list[RemotingCommand]) -> None:
        self._last_read = self._monotonic()
        if commands and self._role.accepted:
            self._serialization = commands[-1].serialization or SerializeType.JSON
        waiters, requests, guarded = self._waiters, self._requests, self._role.guard is not None
        for command in commands:
            if command.flag & RESPONSE_FLAG:
                entry = waiters.pop(command.opaque, None)
                if entry is not None and not (taker := entry[0]).done():
                    taker.set_result(command)
            elif self._close_reason is None and requests.serving and (not guarded or requests.admit(command)):
                requests.inbox.append(command)
        if requests.inbox:
            requests.dispatch()
        if self._line.places:
            self._line.call()

    def _take(self, read: Callable[[TakenT], list[RemotingCommand]], taken: TakenT) -> None:
        intake = self._intake
        try:
            commands = read(taken)
        except RemoteProtocolError as garbage:
            self.refuse(garbage)
            return
        reader = intake.reader
        self._requests.more = reader.has_more and self._requests.serving
        self._receive(commands)
        if self._requests.more:
            self._requests.dispatch()
        if reader.refused:
            self._answer_refused()
        held = reader.buffered_bytes
        if held or intake.counted_bytes:
            intake.count(self, held)
            self._role.sweeps.by(self._last_read + IDLE_SWEEP_INTERVAL)

    def read_on(self) -> None:
        """Take the next ones of the frames that have come already."""
        if self._close_reason is None:
            self._take(FrameReader.go_on, self._intake.reader)
            self._requests.dispatch()  # also when that was half a frame: reading goes on

    def _answer_refused(self) -> None:
        for one in self._intake.take_refused():
            code = one.request.code
            self._role.counters.bodies_refused += 1
            self._role.log.tell(
                logging.WARNING, self._monotonic(), ("body", code if code in self._role.handlers else None),
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

    def refuse(self, garbage: RemoteProtocolError) -> None:
        """Close, because what came is not RocketMQ's protocol."""
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

    def give_back_buffer(self) -> None:
        """Nothing is received into get_buffer() now."""
        self._intake.reader.release()

    @property
    def has_received(self) -> bool:
        """Whether a whole frame has ever come."""
        return self._intake.reader.frames > 0

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
        self._last_written = self._monotonic()
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
        self._last_written = self._monotonic()
        self._update_congestion()

    def handshake_begins(self) -> None:
        """No frames can come yet: the driver has to settle with the peer how first, and has not for ever to do so."""
        if self.closed:  # refused by the server before
            return
        self._handshake_since = self._monotonic()
        if self._role.handshakes is not None:
            self._role.handshakes.set(self, 1)  # may have another one closed
        self._role.sweeps.by(self._handshake_since + self._role.options.header_timeout)

    def handshake_ends(self) -> None:
        """It has succeeded, and frames may come."""
        self._handshake_since = None
        if self._role.handshakes is not None:
            self._role.handshakes.set(self, 0)

    def handshake_failed(self, kind: str, words: str) -> None:
        """It has not, for that reason, one of few kinds; the driver closes."""
        if self._close_reason is None:
            self._role.counters.handshakes_failed += 1
            self._role.log.tell(
                logging.WARNING, self._monotonic(), ("handshake", kind), "the connection with %s is closed: %s",
                self.remote_address, words,
            )  # fmt: skip
            self._end(words)

    def refused(self, reason: str) -> None:
        """The server does not take the connection, though it looked as if; of what was written it has read nothing."""
        self._end(reason, ConnectError)

    def lost(self, reason: str) -> None:
        """The driver has closed, or found closed, what it drives. Every pending request fails at once."""
        if self.if_never_answered and self._waiters and not self.has_received:
            reason = f"{reason}; {self.if_never_answered}"
        self._end(reason)
        self._output = []
        self._intake.reader.release()
        self._gone.set()
        if self._driver is not GONE:
            # No cycle is left, and nothing waits for a full collection of garbage, which is rare.
            self._driver = GONE
            self._requests.part()

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
        self._requests.stop()

    def _end(self, reason: str, error: type[ConnectionClosedError | ConnectError] = ConnectionClosedError) -> None:
        if self._close_reason is not None:
            return
        self._close_reason = reason
        if self._handshake_since is not None:
            self.handshake_ends()
        self._closed_at = self._monotonic()
        self._role.sweeps.by(self._closed_at + self._role.options.close_timeout)
        self._requests.stop()
        pending = [taker for taker, *_ in self._waiters.values()] + self._line.close()
        self._waiters.clear()
        for waiter in pending:
            if not waiter.done():
                waiter.set_exception(error(self.remote_address, reason))
        if self._hooked is not None:
            self._hooked.lost(self)
        self._intake.forget(self)
        if self._role.unread is not None:
            self._role.unread.set(self, 0)
        self._role.awaiting.discard(self)
        self._role.closed(self)

    def sweep(self) -> float:
        """Fail what is past its deadline; close when idle or silent for too long.

        Returns when there may be something to do again, if nothing comes up meanwhile.
        """
        now = self._monotonic()
        last_activity = max(self._last_read, self._last_written)
        options = self._role.options
        if self._close_reason is not None:
            if now - self._closed_at >= options.close_timeout:
                self._driver.abort()  # the peer does not take what was still to be written
            return self._closed_at + options.close_timeout
        # Walking the table costs 0.03 us for each request in flight, and unlike a queue of deadlines it holds nothing
        # of those that were answered long ago.
        expired = [opaque for opaque, entry in self._waiters.items() if entry[1] <= now and not entry[0].done()]
        for opaque in expired:
            taker, _, timeout, what = self._waiters.pop(opaque)
            taker.set_exception(RequestTimeoutError(self.remote_address, _name(what), timeout))
        unwritten = False
        if self._line.places:
            unwritten = self._line.expire(now, self._cannot_be_written)
            self._line.call()  # what has expired makes room
        if expired and now - self._last_read >= options.silence_timeout:
            self.close(f"nothing came in for {now - self._last_read:.0f} s")
        elif unwritten and self._congested and now - last_activity >= options.silence_timeout:
            # Its output full, a dead peer is asked nothing more: no answer would ever be missed.
            self.close(f"nothing was taken for {now - last_activity:.0f} s")
        elif now - last_activity >= options.idle_timeout and not self._waiters and not self._requests.running:
            self.close(f"idle for {options.idle_timeout:g} s")
        elif (since := self._handshake_since) is not None and now - since >= options.header_timeout:
            self.handshake_failed("slow", f"its TLS handshake was not over within {options.header_timeout:g} s")
            self._driver.abort()
        elif (late := self._intake.too_slow(now, reading=self._requests.reading)) is not None:
            self._role.counters.frames_too_slow += 1
            self._role.log.tell(
                logging.WARNING, now, "slow", "the connection with %s is closed: %s", self.remote_address, late
            )
            self.abort(late)
        deadlines = [deadline for _, deadline, *_ in self._waiters.values() if deadline > now]
        deadlines += [place.deadline for place in self._line.places]
        if self.closed:  # just now
            deadlines.append(self._closed_at + options.close_timeout)
        elif self._intake.is_watching or self._congested or self._handshake_since is not None:
            deadlines.append(now + IDLE_SWEEP_INTERVAL)
        # A handler that runs, or an answer that is awaited, keeps an idle connection open until it is over.
        deadlines.append(max(last_activity + options.idle_timeout, now + IDLE_SWEEP_INTERVAL))
        return min(deadlines)

    def _cannot_be_written(self) -> RemotingError:
        if self._congested:
            return TooManyRequestsError(f"bytes on their way to {self.remote_address}", self._max_output_bytes)
        return TooManyRequestsError(f"requests in flight to {self.remote_address}", self._max_waiters)


Opened = Callable[[Driver, Any, Any], Connection]
"""Makes the connection above a driver, given the names of both its sockets as ``socket.getsockname`` tells them."""


def _name(what: str | int) -> str:
    return f"request {what:d}" if isinstance(what, int) else what


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
