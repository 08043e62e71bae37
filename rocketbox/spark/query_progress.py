"""How far queries are, as Spark tells it behind each batch, and what is left to read.

Spark has one listener of ours in each session, for all queries; it is called on threads of py4j's.

Source: Apache Spark 4.3.0 ``StreamingQueryListener``, ``StreamingQueryProgress``.
"""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped] # it has no types
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from rocketbox.message import MessageQueue
from rocketbox.spark.checkpoint import CheckpointError, decode_ends

__all__ = ["BatchProgress", "follow", "lag_of", "unfollow"]


@dataclass(frozen=True)
class BatchProgress:
    """A batch that is done: its rows, how long it took, and where it ends."""

    batch: int
    rows: int
    rows_per_second: float
    seconds: float
    end: Mapping[MessageQueue, int]


Taker = Callable[[BatchProgress], object]


class _Progress(StreamingQueryListener):
    """The one listener of a session. ``takers``: by the id of a query's run, who wants to hear of it."""

    def __init__(self) -> None:
        self.takers: dict[str, Taker] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        progress = event.progress
        if (taker := self.takers.get(str(progress.runId))) is not None:
            taker(_batch_progress(progress))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        pass


def _batch_progress(progress: Any) -> BatchProgress:
    (source,) = progress.sources
    try:
        end = decode_ends(json.loads(source.endOffset))
    except (ValueError, TypeError, CheckpointError):  # no offset yet
        end = {}
    rate = progress.processedRowsPerSecond
    return BatchProgress(
        progress.batchId,
        progress.numInputRows,
        round(rate, 1) if rate == rate else 0.0,  # Spark has NaN for a batch without rows
        progress.batchDuration / 1000,
        end,
    )


_of_sessions: weakref.WeakKeyDictionary[SparkSession, _Progress] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def follow(session: SparkSession, run_id: str, taker: Taker) -> None:
    """From now on ``taker`` is called with each batch that this run of a query has done. Blocks for a moment."""
    with _lock:
        listener = _of_sessions.get(session)
        if listener is None:
            listener = _Progress()
            session.streams.addListener(listener)
            _of_sessions[session] = listener
        listener.takers[run_id] = taker


def unfollow(session: SparkSession, run_id: str) -> None:
    """No longer; without a word when the session is dead."""
    with _lock:
        listener = _of_sessions.get(session)
        if listener is None or listener.takers.pop(run_id, None) is None or listener.takers:
            return
        del _of_sessions[session]
        with suppress(Py4JError, OSError):
            session.streams.removeListener(listener)


def lag_of(ends: Mapping[MessageQueue, int], read: Mapping[MessageQueue, int]) -> dict[str, int]:
    """How many offsets of each queue (``broker/number``) are not read yet; of one that is new, all of them."""
    return {
        f"{queue.broker_name}/{queue.queue_id}": max(0, end - read.get(queue, 0)) for queue, end in sorted(ends.items())
    }
