"""Timer messages that are due, or may be, and cannot be read now: a bad sector, or an entry that is mended meanwhile.

They are set aside, so that the others come in time, and read again each second. So many may be aside; where more cannot
be read it is the disk that does not work, and all wait for it. Health shows them as a trouble of the store.

When to read them again is on the monotonic clock: one that is put back must not keep them aside.

Source: own; Apache RocketMQ 5.x ``TimerMessageStore`` stops at what it cannot read.
"""

from __future__ import annotations

from collections.abc import Mapping

from rocketbox.broker.store.troubles import Troubles
from rocketbox.broker.timer_recalls import Entry

__all__ = ["MOST_ASIDE", "UnreadTimers"]

MOST_ASIDE = 1024
READ_AGAIN_AFTER = 1.0  # seconds
WHAT = "reading timer messages"  # the name of the trouble


class UnreadTimers:
    """Those of one queue."""

    def __init__(self, troubles: Troubles) -> None:
        self._troubles = troubles
        self._times: dict[int, int] = {}  # by their offset: what the wheel said
        self.again = 0.0
        """When to read them again (monotonic seconds)."""

    def __len__(self) -> int:
        return len(self._times)

    def entries(self) -> list[Entry]:
        """All of them, as the wheel had them."""
        return [(time_ms, offset) for offset, time_ms in self._times.items()]

    def clear(self) -> None:
        """Read none of them again."""
        self._times.clear()
        self._troubles.end(WHAT)

    def set_aside(self, entries: list[Entry], unread: Mapping[int, Exception], now: float) -> list[Entry]:
        """Set aside those ``unread``; the others. Raises the first one's error when they are too many."""
        if not unread:
            return entries
        offset, error = next(iter(unread.items()))
        self._troubles.begin(WHAT, f"message {offset}, and {len(unread) - 1} more: {error}")
        if len(self._times) + len(unread) > MOST_ASIDE:
            raise error
        if not self._times:
            self.again = now + READ_AGAIN_AFTER
        self._times.update((offset, time_ms) for time_ms, offset in entries if offset in unread)
        return [entry for entry in entries if entry[1] not in unread]

    def read_again(self, unread: Mapping[int, Exception], now: float) -> list[Entry]:
        """All were read once more; those that can be read now, and are aside no more."""
        self.again = now + READ_AGAIN_AFTER
        found = [(time_ms, offset) for offset, time_ms in self._times.items() if offset not in unread]
        for _, offset in found:
            del self._times[offset]
        if not self._times:
            self._troubles.end(WHAT)
        return found
