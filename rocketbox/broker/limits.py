"""Limits of what peers can make a broker hold: the error that a limit is, and the budget of names made automatically.

Each limit stands with what it limits (topics, groups, offsets, clients, locks), its setting in ``BrokerOptions``.
"""

from __future__ import annotations

from collections import OrderedDict

from rocketbox.clock import Clock
from rocketbox.errors import RocketBoxError
from rocketbox.protocol.codes import ResponseCode

__all__ = ["LimitError", "NameBudget", "host_of", "too_many_large_requests"]

MOST_ADDRESSES = 10_000  # whose budgets are known; of more, the one not seen for the longest begins anew
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


def host_of(address: str) -> str:
    """The host of ``host:port``."""
    return address.rpartition(":")[0] or address


class NameBudget:
    """How many topics and groups each address may still have made by merely naming them: so many a minute, and a burst.

    An address has a bucket of ``burst`` names that fills up again by ``per_minute``.
    """

    def __init__(self, per_minute: int, burst: int, clock: Clock) -> None:
        self._per_minute = per_minute
        self._burst = burst
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # names left, and when that was so
        self.refused = 0

    def __len__(self) -> int:
        """How many addresses it knows."""
        return len(self._buckets)

    def take(self, address: str) -> None:
        """Count one name. ``address``: host and port, or empty for the broker itself. Raises LimitError."""
        if not address:
            return
        host = host_of(address)
        now = self._clock.monotonic()
        left, then = self._buckets.get(host, (float(self._burst), now))
        left = min(float(self._burst), left + (now - then) * self._per_minute / MINUTE)
        if left < 1:
            self.refused += 1
            raise LimitError(
                f"{host} had too many topics and groups made by naming them (a burst of {self._burst} is used up)",
                self._per_minute, "auto-create-names-per-minute", soon=True,
            )  # fmt: skip
        self._buckets[host] = (left - 1, now)
        self._buckets.move_to_end(host)
        if len(self._buckets) > MOST_ADDRESSES:
            self._buckets.popitem(last=False)
