"""Which messages the brokers of a harness have stored, of sends whose answer does not tell: what nobody answers, what
has failed for its sender, and transactions, whose end a broker is told without an answer.

A message is known by the id that its client gives it, in each of its copies at the broker. It is stored when it lies in
its topic, for consumers to get, or where it waits for its time. Brokers in memory tell of all that comes into their
stores; those of a real cluster tell of nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rocketbox.broker.property_text import find_property
from rocketbox.broker.store.dispatcher import Arrival
from rocketbox.broker.store.records import parse_record
from rocketbox.broker.timer_messages import is_rolled
from rocketbox.protocol.codes import SCHEDULE_TOPIC, TIMER_TOPIC

__all__ = ["StoredSends"]

Id = tuple[str | None, str]
"""The first name of a message's cluster, and the id that its client has given it."""


@dataclass(eq=False)
class _Awaited:
    """A message that may be stored yet: once, several times or never. ``stored()`` is called for each time."""

    topic: str
    stored: Callable[[], object]
    waiting: int = 0
    """How many of it wait for their time: those that were told of, and have not come into their topic yet."""


class StoredSends:
    """Those of one harness. ``plain(cluster, topic)`` is a topic of a cluster's broker as the service knows it."""

    def __init__(self, plain: Callable[[str | None, str], str]) -> None:
        self.sees_stores = False
        """Whether a broker tells what it has stored."""
        self._plain = plain
        self._going = 0
        self._arrived: dict[Id, list[tuple[str, bytes]]] = {}
        """While sends go on, what has come with each id that nobody awaits: its topic and its properties."""
        self._awaited: dict[Id, _Awaited] = {}

    def send_begins(self) -> None:
        """A send begins, whose messages get their ids in it."""
        self._going += 1

    def send_has_ended(self) -> None:
        """It is known of what it has sent whether it is awaited."""
        self._going -= 1
        if not self._going:
            self._arrived.clear()

    def times(self, cluster: str | None, msg_id: str, topic: str) -> int:
        """How often a message of a send that goes on was stored by now: more than once if it was tried again."""
        found = self._arrived.pop((cluster, msg_id), ())
        if len(found) < 2:
            return len(found)
        count: list[None] = []
        awaited = _Awaited(self._plain(cluster, topic), lambda: count.append(None))
        for arrival in found:
            self._look(awaited, cluster, *arrival)
        return len(count)

    def expect(self, cluster: str | None, msg_id: str, topic: str, stored: Callable[[], object]) -> None:
        """Have ``stored()`` called for each time that a message of a send that goes on is stored, or was already."""
        place = cluster, msg_id
        awaited = self._awaited[place] = _Awaited(self._plain(cluster, topic), stored)
        for arrival in self._arrived.pop(place, ()):
            self._look(awaited, cluster, *arrival)

    def forget(self) -> None:
        """Await nothing any more."""
        self._awaited.clear()

    def arrived(self, cluster: str | None, arrivals: Sequence[Arrival]) -> None:
        """These have come into the store of a cluster's broker."""
        if not self._going and not self._awaited:
            return
        for topic, _, _, _, record in arrivals:
            properties = parse_record(record)[-1]
            msg_id = find_property(properties, b"UNIQ_KEY")
            if msg_id is None:
                continue
            place = cluster, msg_id.decode(errors="replace")
            if (awaited := self._awaited.get(place)) is not None:
                self._look(awaited, cluster, topic, properties)
            elif self._going:
                self._arrived.setdefault(place, []).append((topic, properties))

    def _look(self, awaited: _Awaited, cluster: str | None, topic: str, properties: bytes) -> None:
        """Whether a copy of a message lies in its topic now; others of the same id wait or come back to a group."""
        waits = topic in (SCHEDULE_TOPIC, TIMER_TOPIC)
        if waits:
            if is_rolled(properties):
                return  # it waits longer, and was told of before
            topic = (find_property(properties, b"REAL_TOPIC") or b"").decode(errors="replace")
        if self._plain(cluster, topic) != awaited.topic:
            return
        if waits:
            awaited.waiting += 1
        elif awaited.waiting:
            awaited.waiting -= 1
            return
        awaited.stored()
