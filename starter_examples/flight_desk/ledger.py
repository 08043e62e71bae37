"""The job's memory: what each listener has seen of one run. Listeners write it, the job checks it."""

from __future__ import annotations

import threading
from collections.abc import Iterable

__all__ = ["Ledger"]


class Ledger:
    """Counts by run, so that messages of an earlier run do not disturb. Safe to use from threads."""

    def __init__(self) -> None:
        self.run = ""
        self.sent = 0
        self.desk_rows: set[int] = set()
        self.desk_redelivered = 0
        self.audit_rows: set[int] = set()
        self.audit_redelivered = 0
        self.out_of_order: list[str] = []
        self.lake_rows = 0
        self._last_row: dict[str, int] = {}
        self._stumbled = False
        self._steps = 0
        self._lock = threading.Lock()

    @property
    def steps(self) -> int:
        """Grows with everything that happens; a number that stands still means that nothing moves."""
        return self._steps

    def saw_sent(self) -> None:
        with self._lock:
            self.sent += 1
            self._steps += 1

    def saw_at_desk(self, run: str, row: int, *, redelivered: bool) -> None:
        with self._lock:
            self._steps += 1
            if run == self.run:
                if redelivered or row in self.desk_rows:
                    self.desk_redelivered += 1
                self.desk_rows.add(row)

    def may_stumble(self, run: str) -> bool:
        """True for one alert of the run: that one fails at first, so that a redelivery is seen."""
        with self._lock:
            if run != self.run or self._stumbled:
                return False
            self._stumbled = True
            return True

    def saw_in_audit(self, rows: Iterable[tuple[str, str, int]]) -> None:
        """Rows as (run, key, row), in the order of their queue."""
        with self._lock:
            for run, key, row in rows:
                self._steps += 1
                if run != self.run:
                    continue
                if row in self.audit_rows:
                    self.audit_redelivered += 1
                    continue
                self.audit_rows.add(row)
                last = self._last_row.get(key, 0)
                if row < last:
                    self.out_of_order.append(f"{key}: row {row} came after row {last}")
                self._last_row[key] = max(row, last)

    def saw_in_lake(self, rows: int) -> None:
        with self._lock:
            self._steps += 1
            self.lake_rows += rows
