"""A query by key: through the chains of the index a slice at a time, and no further than it may.

The chain of a tag is as long as its topic. So a search looks at a bounded number of entries, and holds the interpreter,
and the index, for about a millisecond at once.

Source: Apache RocketMQ 5.x ``IndexService.queryOffset``, ``DefaultMessageStore.queryMessage``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from rocketbox.broker.store.index_file import REST

__all__ = ["KeySearch"]

MOST_BYTES = 15 << 20  # of records: a client of Java's closes a connection on which an answer of 16 MiB comes


class KeySearch:
    """One search. :meth:`step` goes on, in any thread, one after the other; :attr:`records` are found by then."""

    def __init__(
        self,
        found: Iterator[int | None],
        guard: threading.Lock,
        read: Callable[[int], bytes | None],
        most: int,
        most_steps: int,
    ) -> None:
        self.records: list[bytes] = []
        """Newest first."""
        self.looked_at = 0
        """How many entries of the index were looked at, at least."""
        self.is_complete = True
        """Whether it ended because there are no more, or enough, and not for its length."""
        self._bytes = 0
        self._found = found
        self._guard = guard
        self._read = read
        self._most = most
        self._most_steps = most_steps

    def step(self) -> bool:
        """Look at some more entries; True when the search has ended."""
        if len(self.records) >= self._most:
            return True
        with self._guard:
            try:
                physical = next(self._found)
            except StopIteration:
                return True
        if physical is not None:
            record = self._read(physical)
            if record is not None:
                self._bytes += len(record)
                if self.records and self._bytes > MOST_BYTES:
                    return True
                self.records.append(record)
                return False
        self.looked_at += REST if physical is None else 1
        if self.looked_at >= self._most_steps:
            self.is_complete = False
            return True
        return False
