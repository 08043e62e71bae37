"""What a connection is given: the driver below it, and the part that its client or server plays.

Types and shared state only; what is done with them is ``connection``'s and ``intake``'s part.

Source: Apache RocketMQ 5.x ``NettyRemotingAbstract`` (processor table, response table).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from rocketbox.clock import Clock
from rocketbox.errors import RemotingError
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.framing import BufferPool
from rocketbox.rare_log import RareLog
from rocketbox.remoting.budgets import ServerCounters, SharedBytes
from rocketbox.remoting.hooks import RequestHook
from rocketbox.remoting.options import RemotingOptions
from rocketbox.remoting.read_turns import ReadTurns
from rocketbox.remoting.sweep_times import SweepTimes
from rocketbox.tasks import Supervisor
from rocketbox.waiters import Waiter, make_waiter

if TYPE_CHECKING:
    from rocketbox.remoting.connection import Connection

__all__ = ["GONE", "AnswerTaker", "Driver", "RequestGuard", "RequestHandler", "Role", "RunHandler"]

_log = logging.getLogger(__name__)

RequestHandler = Callable[["Connection", RemotingCommand], RemotingCommand | Awaitable[RemotingCommand | None] | None]
"""Takes a request. Returns the answer, an awaitable of it, or None: then ``connection.reply`` is called later."""

RunHandler = Callable[["Connection", deque[RemotingCommand]], int]
"""Takes requests from the front of those that wait, as many as it can answer together; returns how many that were.

It answers them later by ``connection.reply``. 0: the first is for its :data:`RequestHandler`, as each is when there are
hooks.
"""


RequestGuard = Callable[["Connection", RemotingCommand], RemotingCommand | None]
"""Looks at a request for which there is a handler as soon as it has come, before hooks and runs; in the loop.

What it returns is the answer, and nobody else sees the request; None lets it through. What it raises is answered as
what a handler raises.
"""


class AnswerTaker(Protocol):
    """What is given the answer to a request, or its error, once: a waiter, or something for which no task waits.

    It is called in the midst of a connection's work and must not use the connection.
    """

    def done(self) -> bool:
        """Whether it wants nothing any more."""

    def set_result(self, answer: RemotingCommand, /) -> None: ...

    def set_exception(self, error: RemotingError, /) -> None: ...


class Driver(Protocol):
    """What moves a connection's bytes."""

    waiter: Callable[[], Waiter]

    def schedule_flush(self) -> None:
        """Call :meth:`Connection.take_output` soon, once for all that is added meanwhile."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        """Stop reading, write what is still to be written, then close; :meth:`Connection.lost` follows."""

    def abort(self) -> None:
        """Close at once; :meth:`Connection.lost` follows."""


class _Gone:
    """In place of the driver of a connection that is gone."""

    waiter: Callable[[], Waiter] = staticmethod(make_waiter)

    def schedule_flush(self) -> None:
        """There is nothing to write to."""

    pause_reading = resume_reading = close = abort = schedule_flush


GONE = _Gone()


@dataclass(frozen=True, kw_only=True)
class Role:
    """What a connection gets from the client or server that owns it."""

    accepted: bool
    """Whether the peer connected to us."""
    clock: Clock
    options: RemotingOptions
    opaques: Iterator[int]
    handlers: Mapping[int, RequestHandler]
    handler_tasks: Supervisor
    sweeps: SweepTimes
    """Is told of deadlines that may come before the next sweep."""
    runs: Mapping[int, RunHandler] = field(default_factory=dict)
    """By the code of the first request; asked before ``handlers``."""
    guard: RequestGuard | None = None
    """Says which requests are taken at all; None: all of them."""
    closed: Callable[[Connection], None]
    """Called once, as soon as the connection can no longer be used."""
    hooks: Sequence[RequestHook] = ()
    """Called around the handlers, in this order before and in reverse after."""
    handshakes: SharedBytes | None = None
    """Counts accepted connections that are not there yet: their driver has something to settle with the peer first."""
    half_frames: SharedBytes | None = None
    """Counts what accepted connections hold of frames that are not complete."""
    unread: SharedBytes | None = None
    """Counts what their peers do not read."""
    read_turns: ReadTurns | None = None
    """Says when requests with large answers have to wait for those of other connections."""
    awaiting: set[Connection] = field(default_factory=set)
    """Connections with requests of ours under way: their deadlines are looked at more often than all else."""
    counters: ServerCounters = field(default_factory=ServerCounters)
    log: RareLog = field(default_factory=lambda: RareLog(_log))
    buffers: BufferPool = field(default_factory=BufferPool)
