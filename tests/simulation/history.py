"""What a simulated cluster was sent and what its consumers got, and what of it must never be.

A violation is a sentence. Those that can be told at once are noted while the simulation runs, the others by
:meth:`History.check` at its end.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from rocketbox.message import MessageExt

__all__ = ["Acknowledged", "History", "Place"]

Place = tuple[str, int]  # broker, queue id
PATIENCE = 30.0  # seconds after the last fault in which every consumer must have gone on
AFTERMATH = 45.0  # seconds after a fault in which it explains that something comes twice


@dataclass(frozen=True)
class Acknowledged:
    """A message that a broker has answered for."""

    place: Place
    offset: int
    at: float


@dataclass
class History:
    """``now`` is the virtual time in seconds since the simulation's begin."""

    now: Callable[[], float]
    talk: Callable[[str], object] | None = None
    violations: list[str] = field(default_factory=list)
    acknowledged: dict[str, Acknowledged] = field(default_factory=dict)
    faults: list[tuple[float, float, str]] = field(default_factory=list)
    """When each began and ended."""
    groups: dict[str, bool] = field(default_factory=dict)
    """Each consumer group, and whether it is an orderly one."""
    _digest: hashlib.blake2b = field(default_factory=lambda: hashlib.blake2b(digest_size=16))
    _got: dict[tuple[str, str], float] = field(default_factory=dict)
    """(group, body): when it was handled first."""
    _working: dict[tuple[str, Place], str] = field(default_factory=dict)
    _done: dict[tuple[str, Place], set[int]] = field(default_factory=lambda: defaultdict(set))
    _through: dict[tuple[str, Place], int] = field(default_factory=lambda: defaultdict(int))
    _highest: dict[tuple[str, Place], int] = field(default_factory=lambda: defaultdict(lambda: -1))

    @property
    def digest(self) -> str:
        """Of all that happened: equal for equal runs."""
        return self._digest.hexdigest()

    @property
    def handled(self) -> int:
        return len(self._got)

    def trace(self, text: str) -> None:
        line = f"{self.now():.6f} {text}"
        self._digest.update(line.encode())
        if self.talk is not None:
            self.talk(line)

    def violate(self, text: str) -> None:
        self.trace(f"VIOLATION {text}")
        self.violations.append(f"at {self.now():.3f} s: {text}")

    def fault(self, text: str, seconds: float) -> None:
        """Something begins to go wrong, and will be over after so long."""
        self.faults.append((self.now(), self.now() + seconds, text))
        self.trace(f"fault {text} for {seconds:.3f} s")

    def sent(self, body: str, place: Place, offset: int) -> None:
        """A broker has acknowledged it."""
        self.trace(f"acknowledged {body} {place} {offset}")
        self.acknowledged[body] = Acknowledged(place, offset, self.now())

    # --- told by handlers ------------------------------------------------------------------------------------------

    def begins(self, group: str, member: str, message: MessageExt) -> None:
        body, place = message.body.decode(), (message.broker_name, message.fields[3])
        self.trace(f"{group} {member} begins {body} {place} {message.fields[5]} {message.reconsume_times}")
        if self.groups[group]:
            other = self._working.setdefault((group, place), member)
            if other != member:
                self.violate(f"{group}: {other} and {member} both work on {place}")
            self._check_order(group, place, body)
        first = self._got.get((group, body))
        if first is not None and message.reconsume_times == 0 and not self._explained(first):
            self.violate(f"{group}: {body} comes again, first at {first:.3f} s, and no fault explains it")

    def ends(self, group: str, member: str, message: MessageExt, *, well: bool) -> None:
        """The handler has returned or, not well, raised."""
        body, place = message.body.decode(), (message.broker_name, message.fields[3])
        self.trace(f"{group} {member} ends {body} well={well}")
        orderly = self.groups[group]
        if orderly and self._working.get((group, place)) == member:
            del self._working[group, place]
        if well:
            self._got.setdefault((group, body), self.now())
            self._highest[group, place] = max(self._highest[group, place], _number(body)) if orderly else -1
        if well if orderly else message.reconsume_times == 0:  # a concurrent group sends it back, as another message
            self._done[group, place].add(message.fields[5])

    def _check_order(self, group: str, place: Place, body: str) -> None:
        highest = self._highest[group, place]
        if _number(body) > highest + 1:
            self.violate(f"{group}: {body} of {place} comes when {highest} was the last one")

    def _explained(self, since: float) -> bool:
        now = self.now()
        return any(begin <= now and end + AFTERMATH >= since for begin, end, _ in self.faults)

    # --- looked at now and then -------------------------------------------------------------------------------------

    def committed(self, group: str, place: Place, offset: int) -> None:
        """The broker says that all before offset are consumed."""
        key = group, place
        done, through = self._done[key], self._through[key]
        while through in done:
            done.remove(through)
            through += 1
        self._through[key] = through
        if offset > through:
            self.violate(f"{group}: {offset} is committed of {place}, and {through} was never handled")

    def check(self) -> None:
        """At the end, when all has come to rest."""
        last = max((end for _, end, _ in self.faults), default=0.0)
        for body, sent in self.acknowledged.items():
            for group in self.groups:
                got = self._got.get((group, body))
                if got is None:
                    self.violate(f"{group} never got {body}, acknowledged at {sent.at:.3f} s as {sent.place} "
                                 f"{sent.offset}")  # fmt: skip
                elif got > max(last, sent.at) + PATIENCE:
                    self.violate(f"{group} got {body} at {got:.3f} s, acknowledged at {sent.at:.3f} s; the last fault "
                                 f"ended at {last:.3f} s")  # fmt: skip


def _number(body: str) -> int:
    return int(body.rpartition("-")[2])
