"""The tries of one send: how much time each gets, whether another one follows, and what it all came to.

    the try ended with                          | and then
    SEND_OK, or a weak acknowledgement accepted | the result
    nothing sent (ConnectError, TooManyRequests)| on, until the time is over: it cannot be stored twice
    no answer, a garbled one, or no connection  | another try, while there are any; it may be stored twice then
    a refusal that may pass (RETRY_CODES)       | another try, while there are any; not when it is about who asked,
                                                | unless the keys have just become others
    a weak acknowledgement                      | NotDurableError; another try where that is wanted
    any other refusal                           | no other try: BrokerError, or what an earlier try came to, if it may
                                                | have stored the message

A try has its share of the time that is left: as many parts as there are tries and brokers to turn to, so that a silent
broker leaves time for another one. Where there is no other, it has all.

Before the same brokers are tried again there is a pause. Its bound grows from try to try, and chance draws it from the
upper half of that, so that senders who were refused together do not come back together. The chances are those of
the clock: one with a seed draws the same pauses again.

Source: Apache RocketMQ 5.x ``DefaultMQProducerImpl.sendDefaultImpl``. Unlike there: the shares (Java's first try may
take all the time), the pauses (there are none), no end of tries while nothing was sent, another try after
FLOW_CONTROL, and an error that tells of all of them.
"""

from __future__ import annotations

from rocketbox.client.lanes import Lane
from rocketbox.clock import Clock
from rocketbox.errors import (
    ConnectError,
    ConnectionClosedError,
    NotDurableError,
    RemoteProtocolError,
    RequestTimeoutError,
    RocketBoxError,
    SendTimeoutError,
    TooManyRequestsError,
)
from rocketbox.message import SendResult
from rocketbox.protocol.codes import ResponseCode

__all__ = ["RETRY_CODES", "Tries"]

RETRY_CODES = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
        ResponseCode.FLOW_CONTROL,  # which Apache's brokers do not answer to sends, and brokers of some vendors do
    }
)
"""Answers after which another try may fare better; all others are raised at once."""

FIRST_PAUSE = 0.05  # seconds at most before the same brokers are tried again, doubled each time
LONGEST_PAUSE = 0.25  # seconds; a broker that is back after a restart is found within that
SHORTEST_PART = 0.5  # of a pause is kept at least, the rest is by chance


class Tries:
    """One send's tries. ``left`` are those behind the one at hand; ``now`` is the last reading of the clock."""

    __slots__ = ("_pause", "_story", "_timeout", "deadline", "error", "left", "maybe_stored", "now", "tried", "weak")

    def __init__(self, now: float, timeout: float, retries: int) -> None:
        self.now = now
        self._timeout = timeout
        self.deadline = now + timeout
        self.left = retries
        self.error: RocketBoxError | None = None
        """Of the last try, or of the last one that may have stored the message."""

    @property
    def are_needless(self) -> bool:
        """Whether the message is known to be stored, though no answer has told it."""
        return False

    def share(self, places: int, limit: float | None) -> float:
        """The seconds of the try at hand, where so many brokers can be turned to and ``limit`` bounds one try."""
        remaining = self.deadline - self.now
        if self.left == 0:
            return remaining
        if limit is not None:
            return min(remaining, limit)
        return remaining / min(places, self.left + 1) if places > 1 else remaining

    def goes_on_after(self, lane: Lane, error: RocketBoxError, *, weak_is_final: bool) -> bool:
        """Note how a try ended; whether another one may follow, if there is time."""
        if self.error is None:
            self._story: dict[str, int] = {}
            self._pause = FIRST_PAUSE
            self.maybe_stored = False
            self.weak: SendResult | None = None
            self.tried: set[str] = set()
        told = f"{lane.broker_name} ({lane.address}): {error}"
        self._story[told] = self._story.get(told, 0) + 1
        self.tried.add(lane.broker_name)
        unsent = isinstance(error, ConnectError | TooManyRequestsError)
        maybe = isinstance(error, ConnectionClosedError | RequestTimeoutError | RemoteProtocolError)
        if maybe or not self.maybe_stored:
            self.error = error
        if unsent:
            return True
        if isinstance(error, NotDurableError):
            self.weak = error.result
            if weak_is_final:
                return False
        self.maybe_stored |= maybe
        self.left -= 1
        return self.left >= 0

    def pause(self, clock: Clock, *, others: bool) -> float:
        """Seconds to wait before the next try: none where ``others`` were not tried yet."""
        if others:
            return 0.0
        pause = self._pause * clock.random.uniform(SHORTEST_PART, 1)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self.tried.clear()
        return max(0.0, min(pause, self.deadline - self.now))

    def end(self, msg_id: str) -> RocketBoxError:
        """The error to raise: the last one that matters, telling of all tries."""
        error = self.error
        assert error is not None
        if self.weak is not None:
            return NotDurableError(self.weak)
        told = [text if times == 1 else f"{text} ({times} times)" for text, times in self._story.items()]
        count = sum(self._story.values())
        maybe = "; it may have been stored, and sending it again would then duplicate it" if self.maybe_stored else ""
        story = f"message {msg_id}, {count} tries: {'; '.join(told)}{maybe}"
        if isinstance(error, RequestTimeoutError):
            return SendTimeoutError(error.address, msg_id, self._timeout, told)
        if isinstance(error, ConnectionClosedError):
            return ConnectionClosedError(error.address, f"{error.reason} ({story})")
        if isinstance(error, ConnectError):
            return ConnectError(error.address, f"{error.reason} ({story})" if count > 1 else error.reason)
        error.add_note(story)
        return error
