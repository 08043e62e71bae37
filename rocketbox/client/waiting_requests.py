"""The requests of a client that wait for their replies: who takes a reply that a broker hands over (326).

The table is that of a client instance, for brokers hand replies to the client and not to a producer. Whatever ends a
wait - reply, time, cancellation, the end of its producer - takes it out of the table; a reply that finds nobody any
more is counted (``late``) and dropped. Times are looked at by one task, which sleeps while none is near. What a request
is, and what its reply means, is told in ``requests``.

Source: Apache RocketMQ 5.x ``RequestFutureHolder``, ``ClientRemotingProcessor.receiveReplyMessage``. Unlike there,
times are kept to a tenth of a second; Java looks at its table each second, from three seconds after the start on.
"""

from __future__ import annotations

import logging
from math import inf

from rocketbox.clock import Clock
from rocketbox.errors import ClientStateError, ReplyTimeoutError, RocketBoxError
from rocketbox.message import decode_properties
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.request_reply import CORRELATION_ID
from rocketbox.rare_log import RareLog
from rocketbox.remoting.connection import Connection
from rocketbox.remoting.sweep_times import SweepTimes
from rocketbox.safe_repr import said_by_a_peer
from rocketbox.tasks import Supervisor
from rocketbox.waiters import make_waiter

__all__ = ["WaitingRequest", "WaitingRequests"]

_log = logging.getLogger(__name__)

LOOK_EVERY = 0.1  # seconds, where some are due: how late a timeout may be reported
ID_CHARACTERS = 32  # 128 bits that nobody can guess: who knows an id could answer in another's place


class WaitingRequest:
    """One request. ``correlation_id`` goes with it; ``outcome`` is its reply as it came, or why there is none."""

    __slots__ = ("_told", "correlation_id", "deadline", "group", "msg_id", "outcome", "over", "timeout", "topic")

    def __init__(self, correlation_id: str, group: str, timeout: float, deadline: float) -> None:
        self.correlation_id = correlation_id
        self.group = group
        self.timeout = timeout
        self.deadline = deadline
        self.topic = self.msg_id = ""
        self.outcome: RemotingCommand | RocketBoxError | None = None
        self.over = False
        """Whether nobody waits for its reply any more, for one reason or another."""
        self._told = make_waiter()

    @property
    def answered(self) -> bool:
        """Whether its reply has come."""
        return isinstance(self.outcome, RemotingCommand)

    async def reply(self) -> RemotingCommand:
        """The reply as the broker handed it over. Raises ReplyTimeoutError, ClientStateError."""
        await self._told
        if isinstance(self.outcome, RemotingCommand):
            return self.outcome
        assert self.outcome is not None
        raise self.outcome

    def end(self, outcome: RemotingCommand | RocketBoxError) -> None:
        self.outcome = outcome
        self.over = True
        if not self._told.done():  # who waited was cancelled a moment ago
            self._told.set_result(None)


class WaitingRequests:
    """Those of one client; ``tasks`` are the client's."""

    def __init__(self, clock: Clock, tasks: Supervisor) -> None:
        self._clock = clock
        self._tasks = tasks
        self._waiting: dict[str, WaitingRequest] = {}
        self._sweeps = SweepTimes(clock, LOOK_EVERY)
        self._sweeping = False
        self._told = RareLog(_log)
        self.late = 0
        """Replies that came when nobody waited for them: too late, or a second time."""

    def __len__(self) -> int:
        return len(self._waiting)

    def expect(self, group: str, timeout: float, now: float) -> WaitingRequest:
        """A request that a producer of the group is about to send; :meth:`forget` it in the end."""
        waiting = WaitingRequest(self._clock.secret()[:ID_CHARACTERS], group, timeout, now + timeout)
        self._waiting[waiting.correlation_id] = waiting
        if not self._sweeping:
            self._sweeping = True
            self._tasks.start("times of requests", self._look_at_times)
        self._sweeps.by(waiting.deadline)
        return waiting

    def forget(self, waiting: WaitingRequest) -> None:
        """Nobody waits for its reply any more."""
        waiting.over = True
        self._waiting.pop(waiting.correlation_id, None)

    def receive(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Take a reply that a broker hands over; the broker is told that it was taken, also where nobody waits."""
        properties = decode_properties(request.ext_fields.get("properties", "").encode("utf-8", "replace"))
        waiting = self._waiting.pop(properties.get(CORRELATION_ID, ""), None)
        if waiting is not None:
            waiting.end(request)
        else:
            self.late += 1
            self._told.tell(
                logging.INFO, self._clock.monotonic(), "late",
                "a reply has come for which nobody waits (any more): it came by %s from %s",
                connection.remote_address, said_by_a_peer(request.ext_fields.get("bornHost", "somebody")),
            )  # fmt: skip
        return RemotingCommand.response()

    def end(self, group: str | None = None) -> None:
        """The producer of the group, or None: the client, is at its end."""
        for waiting in list(self._waiting.values()):
            if group is None or waiting.group == group:
                self.forget(waiting)
                waiting.end(
                    ClientStateError(
                        f"producer {waiting.group} was closed while request {waiting.msg_id} to {waiting.topic!r} "
                        "waited for its reply; it may have been carried out"
                    )
                )

    async def _look_at_times(self) -> None:
        due = inf
        while True:
            now = await self._sweeps.next(due)
            due = inf
            for waiting in list(self._waiting.values()):
                if waiting.deadline <= now:
                    self.forget(waiting)
                    waiting.end(ReplyTimeoutError(waiting.topic, waiting.msg_id, waiting.timeout))
                else:
                    due = min(due, waiting.deadline)
