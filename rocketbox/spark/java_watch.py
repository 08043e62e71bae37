"""Whether a query's Java process still answers: one that hangs (stopped, out of memory) raises nothing.

A listener asks it all the time whether its query lives. An answer that does not come is in the log and in readiness
within half a minute, once, and once when it is over.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from rocketbox.blocking import WorkerPool
from rocketbox.clock import Clock

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["JavaWatch"]

_log = logging.getLogger(__name__)

INTERVAL = 5.0  # seconds between two looks
PATIENCE = 20.0  # seconds that an answer may take; one takes milliseconds


class JavaWatch:
    """Asks for the listener of ``group``; ``trouble`` is None while answers come."""

    def __init__(self, group: str, clock: Clock) -> None:
        self.trouble: str | None = None
        self._group = group
        self._clock = clock
        self._asked: float | None = None  # by the clock; None: no answer is waited for

    async def is_active(self, query: StreamingQuery, threads: WorkerPool) -> bool:
        """What Java says, asked in one of ``threads``, however long that takes. Raises what py4j does without it."""
        self._asked = self._clock.monotonic()
        try:
            return await threads.run(lambda: query.isActive)
        finally:
            self._asked = None

    async def watch(self) -> None:
        """Look for ever whether an answer is late."""
        while True:
            await self._clock.sleep(INTERVAL)
            since = self._asked
            is_late = since is not None and self._clock.monotonic() - since > PATIENCE
            if is_late and self.trouble is None:
                self.trouble = (
                    f"its Java process has not answered for {PATIENCE:.0f} s: it hangs, or its memory is used up; "
                    "nothing is read until it answers or ends"
                )
                _log.warning("Spark listener %s: %s", self._group, self.trouble)
            elif not is_late and self.trouble is not None:
                self.trouble = None
                _log.warning("Spark listener %s: its Java process answers again, or was replaced", self._group)
