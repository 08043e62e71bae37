"""The requests of one connection's peer: which handler takes them, when they have to wait, and what becomes of faults.

A request goes to the handler of its code: a plain answer goes out at once, an awaitable becomes a task, None means that
somebody calls :meth:`Connection.reply` later. On an accepted connection reading stops while too many handlers run, the
peer does not read its answers, or too many of its reads wait for their turn (``read_turns``); a client goes on reading,
because its own answers come the same way, and answers 'busy'. Of many requests that came at once a server hands over
some hundreds in one turn of the loop, then others have their turn.

How answers are written is ``connection``'s part.

Source: Apache RocketMQ 5.x ``NettyRemotingAbstract`` (``processRequestCommand``; codes 1, 2 and 3).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

import anyio.lowlevel

from rocketbox.errors import RemoteProtocolError, RocketBoxError
from rocketbox.protocol.codes import ResponseCode
from rocketbox.protocol.command import ONEWAY_FLAG, RemotingCommand
from rocketbox.protocol.headers import HeaderError
from rocketbox.remoting.hooks import HookedRequests
from rocketbox.remoting.read_turns import MAX_RUNNING_READS, MAX_WAITING_READS
from rocketbox.remoting.role import Driver, Role, RunHandler

if TYPE_CHECKING:
    from rocketbox.remoting.connection import Connection

__all__ = ["PeerRequests"]

_log = logging.getLogger(__name__)

MOST_IN_TURN = 512  # requests of one connection: sends take about 10 ms then


class PeerRequests:
    """Those that have come and have no answer yet."""

    __slots__ = (
        "_accepted",
        "_connection",
        "_dispatching",
        "_driver",
        "_going_on",
        "_max_running",
        "_parted",
        "_reads",
        "_role",
        "_running_reads",
        "_runs",
        "_turns",
        "hooked",
        "inbox",
        "more",
        "reading",
        "running",
        "serving",
    )  # fmt: skip

    def __init__(self, connection: Connection, driver: Driver, role: Role) -> None:
        self.inbox: deque[RemotingCommand] = deque()
        """What has come and was not handed to a handler; :meth:`dispatch` is to be called when something was added."""
        self.hooked = HookedRequests(role) if role.hooks else None
        self.running = 0
        """How many handlers are at work."""
        self.more = False
        """Whether more requests have come, which :meth:`Connection.read_on` brings."""
        self.serving = True
        self.reading = True
        self._connection = connection
        self._driver = driver
        self._role = role
        self._accepted = role.accepted
        self._max_running = role.options.max_running_handlers
        self._turns = role.read_turns
        self._runs = role.runs if self.hooked is None else {}
        self._reads: deque[RemotingCommand] = deque()  # that wait for their turn
        self._running_reads = 0
        self._dispatching = False
        self._going_on = False  # in the next turn of the loop
        self._parted = False

    def admit(self, request: RemotingCommand) -> bool:
        """Whether the guard lets a request through; else it is answered."""
        guard, role = self._role.guard, self._role
        if guard is None or not (request.code in role.handlers or request.code in role.runs):
            return True
        try:
            refusal = guard(self._connection, request)
        except Exception as error:
            self._handler_failed(request, error)
            return False
        if refusal is None:
            return True
        self._connection.reply(request, refusal)
        return False

    def dispatch(self) -> None:
        """Hand requests to their handlers until one of the bounds is reached; read on or stop reading accordingly."""
        if self._dispatching:  # a handler's answer made the output full: the loop below sees it
            return
        if self._going_on:
            self._read_on()
            return
        inbox, turns, runs = self.inbox, self._turns, self._runs
        least = len(inbox) - MOST_IN_TURN if self._accepted else 0  # what is left to the next turns
        self._dispatching = True
        try:
            while inbox and len(inbox) > least and not self._is_busy():
                run = runs.get(inbox[0].code)
                if run is not None and self._take_run(run):
                    continue
                request = inbox.popleft()
                if (
                    turns is not None
                    and (turns.spent or self._reads or self._running_reads >= MAX_RUNNING_READS)
                    and request.code in turns.codes
                ):
                    self._reads.append(request)
                else:
                    self._dispatch(request)
        finally:
            self._dispatching = False
        if self._parted:
            self.part()
            return
        if turns is not None and self._reads and self._may_read():
            turns.enter(self)
        if (inbox or self.more) and not self._is_busy():
            self._going_on = True
            name = f"the next requests of {self._connection.remote_address}"
            self._role.handler_tasks.start(name, self._go_on, restart=False)
        self._read_on()

    async def _go_on(self) -> None:
        await anyio.lowlevel.checkpoint()
        self._going_on = False
        if self.more and not self.inbox:
            self._connection.read_on()
        elif self.serving:
            self.dispatch()

    def _take_run(self, run: RunHandler) -> int:
        try:
            return run(self._connection, self.inbox)
        except Exception as error:
            self._handler_failed(self.inbox.popleft(), error)
            return 1

    def serve_reads(self) -> None:
        """It is this connection's turn: hand over the reads that wait, as far as the turn allows."""
        turns = self._turns
        if turns is None:
            return
        self._dispatching = True
        try:
            while self._reads and not turns.spent and self._may_read():
                self._dispatch(self._reads.popleft())
        finally:
            self._dispatching = False
        self.dispatch()

    def stop(self) -> None:
        """Drop what has come, and what comes from now on."""
        self.serving = self.more = False
        self.inbox.clear()
        self._reads.clear()
        if self._turns is not None:
            self._turns.leave(self)

    def part(self) -> None:
        """The connection is gone, and was stopped before: let go of it as soon as no handler runs any more."""
        self._parted = True
        if not self.running and not self._dispatching:
            del self._connection, self._driver
            self._dispatching = True  # nothing is dispatched any more

    def _may_read(self) -> bool:
        return (
            not self._connection.congested
            and self._running_reads < MAX_RUNNING_READS
            and self.running < self._max_running
        )

    def _is_busy(self) -> bool:
        return self._accepted and (
            self._connection.congested or self.running >= self._max_running or len(self._reads) >= MAX_WAITING_READS
        )

    def _read_on(self) -> None:
        reading = not (self.inbox or self.more or self._is_busy())
        if reading != self.reading and not self._connection.closed:
            self.reading = reading
            if reading:
                self._driver.resume_reading()
            else:
                self._driver.pause_reading()

    def _dispatch(self, request: RemotingCommand) -> None:
        connection = self._connection
        if self.hooked is not None:
            try:
                refusal = self.hooked.before(connection, request)
            except Exception as error:
                self._handler_failed(request, error)
                return
            if refusal is not None:
                connection.reply(request, refusal)
                return
            if connection.closed:  # by a hook
                return
        handler = self._role.handlers.get(request.code)
        if handler is None:
            remark = f" request type {request.code} not supported"
            connection.reply(request, RemotingCommand.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark))
            return
        try:
            answer = handler(connection, request)
        except Exception as error:
            self._handler_failed(request, error)
            return
        if answer is None:
            if self.hooked is not None:
                self._oneway_ended(self.hooked, request)
        elif isinstance(answer, RemotingCommand):
            connection.reply(request, answer)
        elif self.running >= self._max_running:  # a client: it must not stop reading
            _close_unawaited(answer)
            peer = connection.remote_address
            _log.warning("request %d of %s is refused: too many handlers run", request.code, peer)
            busy = RemotingCommand.response(ResponseCode.SYSTEM_BUSY, "[OVERLOAD]too many handlers run")
            connection.reply(request, busy)
        else:
            self.running += 1
            if self._turns is not None and request.code in self._turns.codes:
                self._running_reads += 1
            name = f"request {request.code} of {connection.remote_address}"
            self._role.handler_tasks.start(name, self._finish, request, answer, restart=False)

    async def _finish(self, request: RemotingCommand, answer: Awaitable[RemotingCommand | None]) -> None:
        try:
            response = await answer
        except Exception as error:
            self._handler_failed(request, error)
        else:
            if response is not None:
                self._connection.reply(request, response)
            elif self.hooked is not None:
                self._oneway_ended(self.hooked, request)
        finally:
            self.running -= 1
            if self._turns is not None and request.code in self._turns.codes:
                self._running_reads -= 1
            if self._parted:
                self.part()
            else:
                self.dispatch()

    def _oneway_ended(self, hooked: HookedRequests, request: RemotingCommand) -> None:
        """Of a request without an answer yet: if it will get none, its hooks hear that it is over."""
        if request.flag & ONEWAY_FLAG:
            hooked.after(self._connection, request, ResponseCode.SUCCESS, 0)

    def _handler_failed(self, request: RemotingCommand, error: Exception) -> None:
        connection, role, code = self._connection, self._role, request.code
        kind = code if code in role.handlers else None  # a hook may fail for codes that nobody knows
        if isinstance(error, RemoteProtocolError) and request.raw_header is not None:
            try:
                _ = request.ext_fields
            except RemoteProtocolError as garbage:  # not the handler's fault: headers are parsed when first looked at
                connection.refuse(garbage)
                return
        now = role.clock.monotonic()
        if isinstance(error, HeaderError | RemoteProtocolError):  # the peer's fault, which it may repeat many times
            role.counters.unreadable_requests += 1
            role.log.tell(
                logging.WARNING, now, ("unreadable", kind), "request %d of %s cannot be read: %s",
                code, connection.remote_address, error,
            )  # fmt: skip
        else:
            role.counters.failed_requests += 1
            role.log.tell(
                logging.ERROR, now, ("failed", kind, type(error)), "the handler of request %d of %s failed",
                code, connection.remote_address, error=error,
            )  # fmt: skip
        # Our own errors are written for who reads them; of others a peer sees neither text (paths, values of somebody
        # else) nor kind.
        own = isinstance(error, RocketBoxError)
        remark = str(error) if own else f"request {code} has failed here; the log of this process says why"
        connection.reply(request, RemotingCommand.response(ResponseCode.SYSTEM_ERROR, remark))


def _close_unawaited(answer: Awaitable[Any]) -> None:
    close = getattr(answer, "close", None)  # a coroutine that is never awaited would warn
    if close is not None:
        close()
