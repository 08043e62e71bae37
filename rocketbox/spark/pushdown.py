"""Filters of a batch read that the source can do itself: on the place of a message, its store time, and its tag.

Topic, broker, queue and offset are done exactly: other rows are not read. Store time and tag only leave out what cannot
match, and Spark looks at the rows again: a broker selects tags by hash, and its clock may have gone back by a minute
(where it went back by more, rows that match may be left out). Keys are not pushed: a broker's index of keys
(``QUERY_MESSAGE``) is written behind the messages, may be switched off, ends with its files, and gives a bounded number
of messages: nobody can say that its answer is complete.

Source: Apache Spark 4.3.0, ``DataSourceReader.pushFilters``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from rocketbox.message import MessageQueue

__all__ = ["Pushed", "spark_pushes_filters"]

CLOCK_STEP_MS = 60_000
"""How far a broker's clock may have gone back and the search by store time still finds everything."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PUSHING_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"

_Test = Callable[[Any], bool]
_QUEUE_COLUMNS: dict[str, Callable[[MessageQueue], Any]] = {
    "topic": lambda queue: queue.topic,
    "broker_name": lambda queue: queue.broker_name,
    "queue_id": lambda queue: queue.queue_id,
}
_COMPARISONS: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: lambda found, value: bool(found == value),
    EqualNullSafe: lambda found, value: bool(found == value),
    GreaterThan: lambda found, value: bool(found > value),
    GreaterThanOrEqual: lambda found, value: bool(found >= value),
    LessThan: lambda found, value: bool(found < value),
    LessThanOrEqual: lambda found, value: bool(found <= value),
}


@dataclass
class Pushed:
    """What the filters of one read leave of it."""

    tests: list[tuple[str, _Test]] = field(default_factory=list)
    """Of a queue's columns: which one, and what its value has to be."""
    lowest: int = 0
    end: int | None = None
    earliest_ms: int | None = None
    latest_ms: int | None = None
    tags: frozenset[str] | None = None

    def push(self, filters: Sequence[Filter]) -> list[Filter]:
        """Take what can be done; those that come back are still to be evaluated by Spark."""
        return [each for each in filters if not self._take(each)]

    def has(self, queue: MessageQueue) -> bool:
        return all(test(_QUEUE_COLUMNS[column](queue)) for column, test in self.tests)

    def may_have(self, topic: str, broker: str | None = None) -> bool:
        """Whether a topic may have queues that are read, those at one broker or at any."""
        known = {"topic": topic} if broker is None else {"topic": topic, "broker_name": broker}
        return all(test(known[column]) for column, test in self.tests if column in known)

    def tag_expression(self, expression: str) -> str | None:
        """The expression of tags together with the filters; None when nothing can match."""
        if self.tags is None:
            return expression
        wanted = set(self.tags)
        if expression != "*":
            wanted &= {tag.strip() for tag in expression.split("||")}
        return " || ".join(sorted(wanted)) or None

    def _take(self, each: Filter) -> bool:
        column = ".".join(getattr(each, "attribute", ()))
        value = getattr(each, "value", None)
        if value is None:
            return False
        if column in _QUEUE_COLUMNS:
            return self._take_queue(column, each, value)
        if column == "queue_offset":
            return self._take_offset(each, value)
        if column == "store_timestamp" and isinstance(value, datetime):
            self._take_time(each, value)
        if column == "tag":
            self._take_tag(each, value)
        return False

    def _take_queue(self, column: str, each: Filter, value: Any) -> bool:
        if isinstance(each, In):
            self.tests.append((column, lambda found: found in value))
            return True
        if (compare := _COMPARISONS.get(type(each))) is None:
            return False
        self.tests.append((column, lambda found: compare(found, value)))
        return True

    def _take_offset(self, each: Filter, value: Any) -> bool:
        match each:
            case EqualTo() | EqualNullSafe():
                self._between(value, value + 1)
            case GreaterThan():
                self._between(value + 1, None)
            case GreaterThanOrEqual():
                self._between(value, None)
            case LessThan():
                self._between(0, value)
            case LessThanOrEqual():
                self._between(0, value + 1)
            case In() if found := [number for number in value if number is not None]:
                self._between(min(found), max(found) + 1)
                return False  # what lies between them is read as well
            case _:
                return False
        return True

    def _between(self, lowest: int, end: int | None) -> None:
        self.lowest = max(self.lowest, lowest)
        if end is not None:
            self.end = end if self.end is None else min(self.end, end)

    def _take_time(self, each: Filter, value: datetime) -> None:
        after = isinstance(each, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual)
        before = isinstance(each, EqualTo | EqualNullSafe | LessThan | LessThanOrEqual)
        if after:
            found = max(0, _milliseconds(value) - CLOCK_STEP_MS)
            self.earliest_ms = found if self.earliest_ms is None else max(self.earliest_ms, found)
        if before:
            found = max(0, _milliseconds(value) + CLOCK_STEP_MS) + 1
            self.latest_ms = found if self.latest_ms is None else min(self.latest_ms, found)

    def _take_tag(self, each: Filter, value: Any) -> None:
        match each:
            case EqualTo() | EqualNullSafe():
                tags = [value]
            case In():
                tags = [tag for tag in value if tag is not None]
            case _:
                return
        if all(isinstance(tag, str) and tag and tag != "*" and "|" not in tag and tag == tag.strip() for tag in tags):
            found = frozenset(tags)
            self.tags = found if self.tags is None else self.tags & found


def spark_pushes_filters() -> bool:
    """Whether this process of Spark's asks for filters.

    With ``spark.sql.python.filterPushdown.enabled`` it has one that does, and without it refuses a reader that has
    ``pushFilters``; nothing else tells a reader which of them it is in.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return PUSHING_WORKER in sys.modules or getattr(main, "name", None) == PUSHING_WORKER


def _milliseconds(time: datetime) -> int:
    return round((time - EPOCH) / timedelta(milliseconds=1))
