"""What a simulated cluster was sent and what its consumers got, and what of it must never be.

A violation is a sentence. Those that can be told at once are noted while the simulation runs, the others by
:meth:`History.check` at its end.

A message's body is ``stream-number``. What is sent to one queue on purpose, or with one key, is a stream of its own, of
which each number is sent when the one before was acknowledged.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable
from dataclasses import dataclass, field
from enum import Enum

from rocketbox.message import MessageExt

__all__ = [
    "AT_ONCE",
    "EVERYTHING",
    "NOTHING",
    "PATIENCE",
    "ROUTES_ASKED",
    "SOON",
    "Acknowledged",
    "Fault",
    "GroupKind",
    "History",
    "Place",
]

Place = tuple[str, str, int]  # topic, broker, queue id
AT_ONCE = 1.0  # seconds in which what no fault touches is handled
PATIENCE = 30.0  # seconds in which every consumer must have gone on, whatever the faults were
LOCKS_END = 60.0  # the same for an orderly group, of which a lock may not have been given back: brokers keep it so long
SOON = 5.0  # seconds in which it must have gone on after one that ends no connection and meets no other
UNSYNCED = 1.0  # seconds for which ASYNC_FLUSH may leave on a machine what it has acknowledged: an interval, and a sync
AFTERMATH = 45.0  # seconds after a fault in which it explains that something comes twice
LOCK_SLACK = 7.0  # seconds that locks are not confirmed for without any harm: the rest of their 30 s
ROUTES_ASKED = 30.0  # seconds after which clients ask for a route again
EVERYTHING = frozenset({"*"})
NOTHING: frozenset[str] = frozenset()


class GroupKind(Enum):
    """How a group consumes."""

    CONCURRENT = "concurrent"
    ORDERLY = "orderly"
    BROADCAST = "broadcast"


@dataclass(frozen=True)
class Acknowledged:
    """A message that a broker has answered for. ``tried_at`` is when its first send began."""

    topic: str
    broker: str
    offset: int
    at: float
    tried_at: float


@dataclass
class Fault:
    """Something that goes wrong, from ``begin`` to ``end``. Equal to nothing but itself.

    ``touches`` names brokers, groups and "*", which is everything: what may come late because of it. ``doubles`` are
    those of which something may come twice.
    """

    begin: float
    end: float
    text: str
    touches: frozenset[str]
    doubles: frozenset[str]
    aftermath: float
    """Seconds behind its end in which something may be handled that comes twice because of it."""
    patience: float
    """Seconds behind its end in which all that it kept must be handled."""

    def concerns(self, names: Iterable[str], *, twice: bool) -> bool:
        touched = self.doubles if twice else self.touches
        return "*" in touched or not touched.isdisjoint(names)

    def meets(self, other: Fault) -> bool:
        """Whether another one was there before this one was got over, or the other way round."""
        return other is not self and other.begin <= self.end + SOON and self.begin <= other.end + SOON


@dataclass
class History:
    """``now`` is the virtual time in seconds since the simulation's begin."""

    now: Callable[[], float]
    talk: Callable[[str], object] | None = None
    violations: list[str] = field(default_factory=list)
    acknowledged: dict[str, Acknowledged] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    groups: dict[str, GroupKind] = field(default_factory=dict)
    """Each consumer group, and how it consumes."""
    topics: dict[str, frozenset[str]] = field(default_factory=dict)
    """What each group consumes."""
    members: dict[str, list[tuple[str, float, float | None]]] = field(default_factory=lambda: defaultdict(list))
    """Of broadcasting groups: each member's name, and from when until when it was there."""
    kills: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """By broker: when it was killed, or lost its power."""
    losses: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """By broker: when its disk lost what it had acknowledged in the second before."""
    excused: set[tuple[str, str]] = field(default_factory=set)
    """(group, body) of what need not come: its topic was deleted, the group was set behind it, or its disk lost it."""
    _reused: set[tuple[str, Place, int]] = field(default_factory=set)
    """(group, place, offset) that it had read when a disk lost it: it has passed what is stored there now."""
    _lines: list[str] = field(default_factory=list)
    """All that happened, in its order."""
    _got: dict[tuple[str, str], tuple[float, str, Place, int]] = field(default_factory=dict)
    """(group, body): when, by whom and at which place it was handled first. Members of broadcasting groups are groups
    of their own here."""
    _unrouted: dict[str, Fault] = field(default_factory=dict)
    _tried: dict[str, float] = field(default_factory=dict)
    """Body: when its first send began."""
    _working: dict[tuple[str, Place], str] = field(default_factory=dict)
    _done: dict[tuple[str, Place], set[int]] = field(default_factory=lambda: defaultdict(set))
    _through: dict[tuple[str, Place], int] = field(default_factory=lambda: defaultdict(int))
    _highest: dict[tuple[str, Place, str], int] = field(default_factory=lambda: defaultdict(lambda: -1))

    @property
    def digest(self) -> str:
        """Of all that happened: equal for equal runs."""
        return hashlib.blake2b("\n".join(self._lines).encode(), digest_size=16).hexdigest()

    @property
    def handled(self) -> int:
        return len(self._got)

    def trace(self, text: str) -> None:
        line = f"{self.now():.6f} {text}"
        self._lines.append(line)
        if self.talk is not None:
            self.talk(line)

    def violate(self, text: str) -> None:
        self.trace(f"VIOLATION {text}")
        self.violations.append(f"at {self.now():.3f} s: {text}")

    def fault(
        self, text: str, seconds: float, *, touches: Collection[str] = EVERYTHING,
        doubles: Collection[str] | None = None, aftermath: float = AFTERMATH, patience: float = PATIENCE,
    ) -> Fault:  # fmt: skip
        """Something begins to go wrong, and will be over after so long. Without ``doubles``: what it touches."""
        touched = frozenset(touches)
        fault = Fault(
            self.now(),
            self.now() + seconds,
            text,
            touched,
            touched if doubles is None else frozenset(doubles),
            aftermath,
            patience,
        )
        self.faults.append(fault)
        self.trace(f"fault {text} for {seconds:.3f} s")
        return fault

    def unrouted(self, broker: str) -> None:
        """A name server does not name a broker now: who asks it for routes gives the broker's queues up until later."""
        fault = self._unrouted.get(broker)
        if fault is None or fault.end < self.now():
            text = f"a name server does not name {broker}"
            # Those members who know some of the brokers only share the queues of their group in another way: a queue,
            # also of another broker, is then nobody's or (not in an orderly group) two members'.
            shared = {group for group, kind in self.groups.items() if kind is not GroupKind.BROADCAST}
            doubles = {group for group in shared if self.groups[group] is GroupKind.CONCURRENT}
            self._unrouted[broker] = self.fault(text, ROUTES_ASKED, touches={broker, *shared}, doubles=doubles)
        else:
            fault.end = self.now() + ROUTES_ASKED

    def tries(self, body: str) -> None:
        """A producer begins to send it, maybe not for the first time."""
        self._tried.setdefault(body, self.now())

    def sent(self, body: str, place: Place, offset: int) -> None:
        """A broker has acknowledged it."""
        topic, broker, _ = place
        self.trace(f"acknowledged {body} {place} {offset}")
        self.acknowledged[body] = Acknowledged(topic, broker, offset, self.now(), self._tried[body])
        self.excused.update((group, body) for group in self.groups if (group, place, offset) in self._reused)

    def is_lost(self, broker: str, at: float) -> bool:
        """Whether what a broker acknowledged then is not promised to be there: it acknowledges before it syncs."""
        return any(failed - UNSYNCED <= at <= failed for failed in self.losses[broker])

    # --- told by handlers ------------------------------------------------------------------------------------------

    def begins(self, group: str, member: str, message: MessageExt) -> None:
        body, place = message.body.decode(), place_of(message)
        offset = message.fields[5]
        self.trace(f"{group} {member} begins {body} {place} {offset} {message.reconsume_times}")
        kind = self.groups[group]
        if kind is GroupKind.ORDERLY:
            other = self._working.setdefault((group, place), member)
            if other != member:
                self.violate(f"{group}: {other} and {member} both work on {place}")
            self._check_order(group, place, body)
        who = member if kind is GroupKind.BROADCAST else group
        first = self._got.get((who, body))
        if first is not None and message.reconsume_times == 0:
            self._check_explained(group, member, place, body, offset, first)

    def ends(self, group: str, member: str, message: MessageExt, *, well: bool) -> None:
        """The handler has returned or, not well, raised."""
        body, place, kind = message.body.decode(), place_of(message), self.groups[group]
        self.trace(f"{group} {member} ends {body} well={well}")
        orderly = kind is GroupKind.ORDERLY
        if orderly and self._working.get((group, place)) == member:
            del self._working[group, place]
        if well or kind is GroupKind.BROADCAST:  # a member of which has no second try
            who = member if kind is GroupKind.BROADCAST else group
            self._got.setdefault((who, body), (self.now(), member, place, message.fields[5]))
            if orderly:
                stream, number = split(body)
                key = group, place, stream
                self._highest[key] = max(self._highest[key], number)
        if well if orderly else message.reconsume_times == 0:  # a concurrent group sends it back, as another message
            self._done[group, place].add(message.fields[5])

    def killed(self, group: str, member: str) -> None:
        """Its handlers never end."""
        self.trace(f"{group} {member} is killed")
        for key in [key for key, working in self._working.items() if working == member]:
            del self._working[key]

    def _check_order(self, group: str, place: Place, body: str) -> None:
        """Of a stream to one queue none is passed over; of one with a key none comes that is older than expected."""
        stream, number = split(body)
        highest = self._highest[group, place, stream]
        is_skipped = number > highest + 1 and "/" in stream
        if is_skipped and not all((group, f"{stream}-{n}") in self.excused for n in range(highest + 1, number)):
            self.violate(f"{group}: {body} of {place} comes when {highest} was the last one")
        if number < highest and (group, body) not in self._got:
            self.violate(f"{group}: {body} of {place} comes first behind {highest}")

    def _check_explained(
        self, group: str, member: str, place: Place, body: str, offset: int, first: tuple[float, str, Place, int]
    ) -> None:
        """Whether a fault explains that a message comes twice: it is stored twice, or was not committed."""
        since, earlier, *first_place = first
        tried = self._tried.get(body, 0.0)
        names = {group, place[1], place[0], member, earlier}
        if [place, offset] != first_place and self._happened(tried, self.now(), names):
            return
        stays = self.groups[group] is GroupKind.ORDERLY and member == earlier
        if not self._happened(since, self.now(), names, twice=True, least=LOCK_SLACK if stays else 0.0):
            self.violate(
                f"{group}: {body} of {place} comes again to {member}, first at {since:.3f} s to {earlier}, and no "
                "fault explains it"
            )

    def _happened(
        self, since: float, until: float, names: Iterable[str], *, twice: bool = False, least: float = 0.0
    ) -> bool:
        return any(
            fault.end - fault.begin >= least
            and fault.begin <= until
            and fault.end + fault.aftermath >= since
            and fault.concerns(names, twice=twice)
            for fault in self.faults
        )

    def touched(self, since: float, names: Iterable[str]) -> bool:
        """Whether a fault that touches one of them, or everything, was there since then."""
        return any(fault.end >= since and fault.concerns(names, twice=False) for fault in self.faults)

    def is_calm(self, since: float, names: Iterable[str]) -> bool:
        """Whether no fault concerns one of them, and none was still to be got over then."""
        return not any(fault.end + PATIENCE >= since and fault.concerns(names, twice=False) for fault in self.faults)

    def kept_until(self, due: float, names: Iterable[str], longest: float = PATIENCE) -> tuple[float, str]:
        """Until when faults may keep what was due then, and which of them last, or "nothing".

        ``longest`` is how long it may take behind one that meets another.
        """
        why = "nothing"
        concern = [fault for fault in self.faults if fault.concerns(names, twice=False)]
        for fault in concern:  # in the order of their begins; each gives as much time again
            patience = fault.patience
            if any(fault.meets(other) for other in concern):
                patience = longest
            if fault.begin <= due and fault.end + patience > due:
                due, why = fault.end + patience, fault.text
        return due, why

    # --- told by faults ---------------------------------------------------------------------------------------------

    def forget_end(self, place: Place, end: int) -> None:
        """A queue ends there now; other messages will get the offsets behind it."""
        for group in self.groups:
            key = group, place
            read = max([self._through[key], *(offset + 1 for offset in self._done[key])])
            self._reused.update((group, place, offset) for offset in range(end, read))
            self._done[key] = {offset for offset in self._done[key] if offset < end}
            self._through[key] = min(self._through[key], end)

    def forget_topic(self, topic: str, brokers: Container[str]) -> None:
        """It was deleted: nothing of it need come any more, and at these brokers its offsets begin anew."""
        for body, sent in self.acknowledged.items():
            if sent.topic == topic:
                self.excused.update((group, body) for group in self.groups)
        for key in [
            key for key in self._done.keys() | self._through.keys() if key[1][0] == topic and key[1][1] in brokers
        ]:
            self._done.pop(key, None)
            self._through.pop(key, None)

    def begins_at(self, place: Place, offset: int) -> None:
        """A queue has no messages before that offset."""
        for group in self.groups:
            self._through[group, place] = max(self._through[group, place], offset)

    def moved(self, group: str, place: Place, offset: int) -> None:
        """A group was set to an offset of a queue: what is before it need not come."""
        key = group, place
        self._done[key].update(range(self._through[key], offset))

    # --- looked at now and then -------------------------------------------------------------------------------------

    def committed(self, group: str, place: Place, offset: int) -> None:
        """The broker says that all before offset are consumed.

        A member commits what it has handled also when a disk has just lost it: the answer to its next pull tells it,
        unless other messages have those offsets by then.
        """
        key = group, place
        done, through = self._done[key], self._through[key]
        while through in done or (through < offset and (group, place, through) in self._reused):
            done.discard(through)
            through += 1
        self._through[key] = through
        if offset > through:
            self.violate(f"{group}: {offset} is committed of {place}, and {through} was never handled")

    def check(self, *, at_rest: bool) -> None:
        """Whether all who should have got a message did so in time; in the end, when all is at rest, nobody waits."""
        for body, sent in self.acknowledged.items():
            for group, kind in self.groups.items():
                if sent.topic not in self.topics[group]:
                    continue
                if kind is GroupKind.BROADCAST:
                    for member, begin, end in self.members[group]:
                        if begin <= sent.tried_at and (end is None or end > sent.at + PATIENCE):
                            self._check_got(group, member, body, sent, at_rest=at_rest)
                else:
                    self._check_got(group, group, body, sent, at_rest=at_rest)

    def _check_got(self, group: str, who: str, body: str, sent: Acknowledged, *, at_rest: bool) -> None:
        if (group, body) in self.excused:
            return
        names = {group, sent.broker, sent.topic, who}
        longest = LOCKS_END if self.groups[group] is GroupKind.ORDERLY else PATIENCE
        due, why = self.kept_until(sent.at + AT_ONCE, names, longest)
        got = self._got.get((who, body))
        if got is None and (at_rest or self.now() > due + PATIENCE):
            got_it = "never got it"
        elif got is not None and got[0] > due:
            got_it = f"got it at {got[0]:.3f} s"
        else:
            return
        self.violate(
            f"{body} of {sent.topic} was acknowledged by {sent.broker} at {sent.at:.3f} s as {sent.offset}, and {who} "
            f"{got_it}: due at {due:.3f} s, and what may have kept it until then is: {why}"
        )


def place_of(message: MessageExt) -> Place:
    return message.topic, message.broker_name, message.fields[3]


def split(body: str) -> tuple[str, int]:
    """The stream and the number of a body."""
    stream, _, number = body.rpartition("-")
    return stream, int(number)
