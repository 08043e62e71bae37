"""Limits of what peers can make a broker hold: the error that a limit is, and the budget of names made automatically.

Each limit stands with what it limits (topics, groups, offsets, clients, locks), its setting in ``BrokerOptions``. Those
that are the same for several (:class:`PeerShares`) stand here.
"""

from __future__ import annotations

from collections import OrderedDict

from rocketbox.clock import Clock
from rocketbox.errors import RocketBoxError
from rocketbox.protocol.codes import ResponseCode
from rocketbox.remoting.budgets import host_of

__all__ = ["LimitError", "NameBudget", "PeerShares", "too_many_large_requests"]

MOST_ADDRESSES = 20_000  # and connections, whose budgets are known; of more, the one not seen for longest begins anew
MINUTE = 60.0


class LimitError(RocketBoxError):
    """A broker holds no more of something; ``setting`` raises the limit. ``soon``: there will be room by itself."""

    def __init__(self, what: str, most: int, setting: str, *, soon: bool = False) -> None:
        self.what = what
        self.most = most
        self.setting = setting
        self.soon = soon
        super().__init__(f"{what}; {most} is the most ({setting})")

    @property
    def code(self) -> ResponseCode:
        """What a peer is answered: a busy broker may be asked again."""
        return ResponseCode.SYSTEM_BUSY if self.soon else ResponseCode.NO_PERMISSION


def too_many_large_requests(what: str, most: int) -> LimitError:
    """One more request waits for its turn than may, of all connections or of one, which may have an eighth of them."""
    return LimitError(what, most, "max-large-requests", soon=True)


class PeerShares:
    """How many there are of what peers make, and who has made them: so many in all, so many for each address.

    A connection gets no more than half of what the other connections of its address leave: however much one asks for,
    there is room for the next. One that was closed and made again is another. ``what`` and ``kept`` are words:
    "5 {what} are {kept}".
    """

    def __init__(
        self, most: int, most_for_each_address: int, setting: str, what: str, kept: str, *, soon: bool
    ) -> None:
        self.total = 0
        self.refused = 0
        """How many were not made."""
        self._most = most
        self._most_for_each_address = most_for_each_address
        self._setting = setting
        self._what = what
        self._kept = kept
        self._soon = soon
        self._hosts: dict[str, int] = {}
        self._connections: dict[str, int] = {}

    @property
    def addresses(self) -> int:
        """How many hosts have made some of those that there are."""
        return len(self._hosts)

    def check(self, by: str) -> None:
        """Raise LimitError if the connection of ``by`` (its address; empty: the broker itself) may make no further."""
        limit = None
        host = host_of(by)
        of_host, own = self._hosts.get(host, 0), self._connections.get(by, 0)
        share = (self._most_for_each_address - (of_host - own) + 1) // 2
        if self.total >= self._most:
            limit = LimitError(
                f"{self.total} {self._what} are {self._kept}", self._most, self._setting, soon=self._soon
            )
        elif by and of_host >= self._most_for_each_address:
            limit = LimitError(
                f"{of_host} of the {self._what} that are {self._kept} are those of clients at {host}",
                self._most_for_each_address, f"{self._setting}-per-address", soon=self._soon,
            )  # fmt: skip
        elif by and own >= share:
            limit = LimitError(
                f"{own} of the {self._what} that are {self._kept} are those of the connection of {by}, half of what "
                "others of its address leave",
                share, f"{self._setting}-per-address", soon=self._soon,
            )  # fmt: skip
        if limit is not None:
            self.refused += 1
            raise limit

    def add(self, by: str, count: int = 1) -> None:
        """So many were made, or with a negative count are gone."""
        self.total += count
        if by:
            for counts, name in ((self._hosts, host_of(by)), (self._connections, by)):
                counts[name] = counts.get(name, 0) + count
                if not counts[name]:
                    del counts[name]


class NameBudget:
    """How many topics and groups each address may still have made by merely naming them: so many a minute, and a burst.

    An address has a bucket of ``burst`` names that fills up again by ``per_minute``, and each connection one of half
    the size: so one does not use up what is left for others of its address.
    """

    def __init__(self, per_minute: int, burst: int, clock: Clock) -> None:
        self._per_minute = per_minute
        self._burst = burst
        self._clock = clock
        # names left, and when that was so; by host, and by connection
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self.refused = 0

    def __len__(self) -> int:
        """How many addresses and connections it knows."""
        return len(self._buckets)

    def take(self, address: str) -> None:
        """Count one name. ``address``: host and port, or empty for the broker itself. Raises LimitError."""
        if not address:
            return
        host = host_of(address)
        buckets = [(host, self._burst, self._per_minute)]
        if address != host:
            buckets.append((address, -(-self._burst // 2), -(-self._per_minute // 2)))
        now = self._clock.monotonic()
        left = {name: self._left(name, burst, per_minute, now) for name, burst, per_minute in buckets}
        for name, burst, per_minute in buckets:
            if left[name] < 1:
                self.refused += 1
                raise LimitError(
                    f"{name} had too many topics and groups made by naming them (a burst of {burst} is used up)",
                    per_minute, "auto-create-names-per-minute", soon=True,
                )  # fmt: skip
        for name, names in left.items():
            self._buckets[name] = (names - 1, now)
            self._buckets.move_to_end(name)
        while len(self._buckets) > MOST_ADDRESSES:
            self._buckets.popitem(last=False)

    def _left(self, name: str, burst: int, per_minute: int, now: float) -> float:
        left, then = self._buckets.get(name, (float(burst), now))
        return min(float(burst), left + (now - then) * per_minute / MINUTE)
