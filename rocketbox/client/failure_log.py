"""What is logged of failures that may come in thousands: one of a kind in full, then how many more there were.

Source: own design; Apache RocketMQ 5.x logs each failed batch with its stack trace.
"""

from __future__ import annotations

import logging

from rocketbox.clock import Clock
from rocketbox.errors import Reject, RetryLater
from rocketbox.frames import users_traceback
from rocketbox.message import MessageExt
from rocketbox.safe_repr import one_line, safe_repr, safe_str, said_by_a_peer
from rocketbox.tasks import Supervisor

__all__ = ["PERIOD", "FailureLog", "describe_message"]

_log = logging.getLogger(__name__)

MOST_KINDS = 100  # at once; a service has some listeners, and a broker may write any topic into a record
ELSEWHERE = "other topics"
PERIOD = 60.0  # seconds in which failures of one kind are one line, and one with their number


def describe_message(message: MessageExt) -> str:
    """Which message it is, as a log names it: id, topic, keys, and where it is stored."""
    keys = f", KEYS {said_by_a_peer(' '.join(message.keys))}" if message.keys else ""
    place = f"offset {message.queue_offset} of {message.broker_name}/{message.queue_id}"
    return f"message {said_by_a_peer(message.msg_id)} of {said_by_a_peer(message.topic)} ({place}{keys})"


class _Kind:
    """The failures of one receiver with one type of error, in the minute that runs."""

    def __init__(self) -> None:
        self.more = 0
        self.last = ""


class FailureLog:
    """Logs the messages whose handlers failed, for one group."""

    def __init__(self, group: str, clock: Clock, tasks: Supervisor) -> None:
        self._group = group
        self._clock = clock
        self._tasks = tasks
        self._kinds: dict[tuple[str, str, type[Exception]], _Kind] = {}  # by topic, its receiver, and type of error

    def tell(
        self,
        message: MessageExt,
        error: Exception,
        attempts: int | None,
        what_now: str,
        *,
        end: bool,
        receiver: str = "",
    ) -> None:
        """message has failed with error; ``attempts`` is how many it has in all (None: no limit).

        ``receiver`` names who handles it, where its topic has several: the failures of each are a kind of their own.
        ``end``: they are used up. That is told of each message, whatever was told of others, and once: one that no
        broker takes back is handled again and again. The traceback has the lines of the handler's own code only; at
        level debug it has all.
        """
        expected = isinstance(error, Reject | RetryLater)
        of = "" if attempts is None else f" of {attempts}"
        if end and attempts != 1:
            what_now = f"its retries are used up, {what_now}"
        text = (
            f"group {self._group}: {describe_message(message)} failed, attempt {message.reconsume_times + 1}{of}: "
            f"{one_line(safe_str(error)) if expected else safe_repr(error)}; {what_now}"
        )
        key = (message.topic, receiver, type(error))
        if key not in self._kinds and len(self._kinds) >= MOST_KINDS:
            key = (ELSEWHERE, "", type(error))
        kind = self._kinds.get(key)
        if kind is None:
            self._kinds[key] = kind = _Kind()
            self._tasks.start(f"failures of {key[0]}", self._count, key, kind, restart=False)
            trace = error.__traceback__ if _log.isEnabledFor(logging.DEBUG) else users_traceback(error)
            exc_info = None if expected else (type(error), error, trace)
            _log.log(logging.ERROR if end else logging.WARNING, "%s", text, exc_info=exc_info)
        elif end and (attempts is None or message.reconsume_times < attempts):
            _log.error("%s", text)
        else:
            kind.more += 1
            kind.last = text

    async def _count(self, key: tuple[str, str, type[Exception]], kind: _Kind) -> None:
        topic, receiver, error = key
        try:
            await self._clock.sleep(PERIOD)
        finally:
            del self._kinds[key]
            if kind.more:
                _log.warning(
                    "group %s: %d more messages of %s failed with %s within a minute; the last one: %s",
                    self._group, kind.more, one_line(f"{topic} for {receiver}" if receiver else topic),
                    error.__qualname__, kind.last,
                )  # fmt: skip
