"""What lies in the topics that nobody consumes in a simulation: what of it became readable, where and when.

A broker tells of each message that can be read. One that is killed may not have told of its last ones; so at the end,
and before a topic is judged, its queues are read as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rocketbox.broker.store.dispatcher import Arrival
from rocketbox.protocol.stored_message import decode_message
from tests.simulation.cluster import SimulatedBroker
from tests.simulation.history import History

__all__ = ["ASKED", "COMMITTED", "Arrived", "Arrivals", "TIMED"]

COMMITTED = "X"  # where transactions send to
TIMED = "W"  # the topic of messages with a time of their own
ASKED = "R"  # the topic of requests, which has consumers: its arrivals are not noted
READ_AT_ONCE = 32


@dataclass(frozen=True)
class Arrived:
    """A message that can be read: since when (seconds), on which broker, at which offset of which queue."""

    at: float
    broker: str
    queue: int
    offset: int


class Arrivals:
    """By body; ``told`` hears of each when it arrives."""

    def __init__(self, history: History, brokers: Sequence[SimulatedBroker]) -> None:
        self._history = history
        self._brokers = {broker.name: broker for broker in brokers}
        self._known: dict[tuple[str, str, int, int], str] = {}  # (topic, broker, queue, offset): body
        self._of: dict[str, list[Arrived]] = defaultdict(list)
        self.told: dict[str, Callable[[str, SimulatedBroker], object]] = {}
        """By topic."""
        for broker in brokers:
            broker.arrived = self.arrived

    def of(self, body: str) -> list[Arrived]:
        """Where it lies, and where it lay before a disk has lost it."""
        return self._of.get(body, [])

    def arrived(self, broker: SimulatedBroker, some: Sequence[Arrival]) -> None:
        for topic, queue, next_offset, _, record in some:
            if topic in self.told:
                self._note(topic, broker, queue, next_offset - 1, bytes(record))

    def _note(self, topic: str, broker: SimulatedBroker, queue: int, offset: int, record: bytes) -> None:
        key = topic, broker.name, queue, offset
        body = decode_message(record)[0].body.decode()
        if self._known.get(key) == body:
            return
        self._known[key] = body
        self._of[body].append(Arrived(self._history.now(), broker.name, queue, offset))
        self._history.trace(f"arrived {body} {topic} {broker.name} {queue} {offset}")
        self.told[topic](body, broker)

    def forget_lost(self, broker: SimulatedBroker) -> None:
        """What the disk of a broker that runs again has lost, it may get once more."""
        assert broker.running is not None
        store = broker.running.store
        for key in [key for key in self._known if key[1] == broker.name and key[3] >= store.max_offset(key[0], key[2])]:
            body = self._known.pop(key)
            self._of[body] = [each for each in self._of[body] if (each.broker, each.queue, each.offset) != key[1:]]

    def read_all(self) -> None:
        """Read the queues of all brokers that run."""
        for broker in self._brokers.values():
            if broker.running is None:
                continue
            store = broker.running.store
            for topic, queue in sorted(store.queues()):
                offset, end = store.min_offset(topic, queue), store.max_offset(topic, queue)
                while topic in self.told and offset < end:
                    found = store.get(topic, queue, offset, READ_AT_ONCE)
                    for number, record in enumerate(found.records):
                        self._note(topic, broker, queue, offset + number, record)
                    offset = found.next_begin_offset
