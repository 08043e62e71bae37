"""Which timer messages are not to come: recalls whose time has come, and those that a clock put back would make late.

A recall waits for the time of its message and comes just before it; from then on it is remembered here for a moment.
A message whose delay was begun by a clock that was ahead is *brought forward* when that clock is put right: it comes at
once. Its recall waits for the time that the wrong clock said, so it has to be brought forward with it.

Source: Apache RocketMQ 5.x ``TimerMessageStore`` (``deleteUniqKeys``). Unlike there: a clock that is put back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice

from rocketbox.broker.property_text import find_property
from rocketbox.broker.timer_messages import delete_key, is_brought_forward, recalled_key

__all__ = ["AT_ONCE", "REMEMBERED_MS", "BroughtForward", "Entry", "Recalls"]

REMEMBERED_MS = 5_000  # for which a recall is known behind its time: longer than any rounding
AT_ONCE = 0
"""The time of a recall that is brought forward: it is known then, and parked anew for its own time."""

Entry = tuple[int, int]
"""A time (epoch ms) and an offset of the queue."""


class Recalls:
    """The recalls whose time has come."""

    def __init__(self) -> None:
        self._until: dict[bytes, int] = {}  # keys of messages that are not to come, and until when to remember that
        self._remembered: deque[tuple[int, bytes, Entry]] = deque()  # the same in order, with where that stands

    def __len__(self) -> int:
        return len(self._remembered)

    def remember(self, key: bytes, entry: Entry, now_ms: int) -> None:
        """The message of that key is not to come; ``entry`` is the recall's."""
        until = self._until[key] = now_ms + REMEMBERED_MS
        self._remembered.append((until, key, entry))

    def forget_before(self, now_ms: int, most: int) -> None:
        """Nothing is late: what was recalled by what was remembered until then has come, and was dropped.

        ``most`` are forgotten at once; :meth:`next_ms` says whether there are more.
        """
        while most > 0 and self._remembered and self._remembered[0][0] < now_ms:
            until, key, _ = self._remembered.popleft()
            if self._until.get(key) == until:
                del self._until[key]
            most -= 1

    def next_ms(self) -> int | None:
        """When something is to be forgotten; None: nothing is remembered."""
        return self._remembered[0][0] + 1 if self._remembered else None

    def drop(self, properties: bytes) -> bool:
        """Whether a message is not to come."""
        return bool(self._until) and _key_of(properties) in self._until

    def pieces(self, most: int) -> Iterator[list[Entry]]:
        """Of the recalls that are remembered, since what they recall may not have come yet: so many at once.

        What changes between two pieces is not seen: all of it is set aside with the first one.
        """
        remembered = list(self._remembered)
        for begin in range(0, max(len(remembered), 1), most):
            yield [entry for _, _, entry in remembered[begin : begin + most]]

    def clear(self) -> None:
        self._until.clear()
        self._remembered.clear()


class BroughtForward:
    """While it is looked at what waits: the messages that come before their recalls would, and all recalls."""

    def __init__(self) -> None:
        self._messages: dict[bytes, None] = {}  # in the order in which they were seen
        self._recalls: list[tuple[bytes, Entry]] = []
        self._told = self._known = 0  # of the recalls, and of the messages as the first of those were told
        self._again: tuple[set[bytes], int, int] | None = None  # messages that came later: whose recalls are told again

    def __bool__(self) -> bool:
        """Whether there are such messages."""
        return bool(self._messages)

    def holds_back(self, properties: bytes, due_ms: int, offset: int) -> bool:
        """Whether a parked record is a recall, whose time :meth:`take` will tell."""
        recalled = delete_key(properties)
        if recalled is not None:
            self._recalls.append((recalled, (due_ms, offset)))
            return True
        if is_brought_forward(properties, due_ms):
            key = _key_of(properties)
            if key is not None:
                self._messages[key] = None
        return False

    def take(self, most: int) -> list[Entry] | None:
        """When each of the next recalls is due, and its offset; those of messages that were brought forward at once.

        None when all are taken. What is held back later counts too: a recall whose message is brought forward after it
        was taken comes once more, at once.
        """
        if self._again is None and self._told and self._known < len(self._messages):
            self._again = (set(islice(self._messages, self._known, None)), 0, self._told)
            self._known = len(self._messages)
        if self._again is not None:
            keys, begin, end = self._again
            part = self._recalls[begin : min(begin + most, end)]
            self._again = (keys, begin + most, end) if begin + most < end else None
            return [(AT_ONCE, offset) for key, (_, offset) in part if key in keys]
        if self._told == len(self._recalls):
            return None
        if not self._told:
            self._known = len(self._messages)
        part = self._recalls[self._told : self._told + most]
        self._told += len(part)
        return [(AT_ONCE if key in self._messages else due, offset) for key, (due, offset) in part]


def _key_of(properties: bytes) -> bytes | None:
    topic, uniq_key = find_property(properties, b"REAL_TOPIC"), find_property(properties, b"UNIQ_KEY")
    if topic is None or uniq_key is None:
        return None
    return recalled_key(topic.decode("utf-8", "replace"), uniq_key)
