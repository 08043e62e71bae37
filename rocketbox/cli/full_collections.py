"""What a broker's process does about garbage collections: each full one looks at all objects, and nobody is served.

With 100,000 topics and groups that is 90 ms each time, though nothing of the tables is ever garbage. So what is there
when the broker is ready is taken out of all collections (``gc.freeze``), and again when the tables have grown by
ENTRIES; and full collections, which look at what has come since, are begun a tenth as often as by Python's own rule.
What they are for is little: a connection that has closed leaves a few kilobytes that only they find.

For a process of its own only, ``rocketbox broker``: a service's process is not ours to set.

Source: none; Apache RocketMQ sets the collector of its JVM in ``runserver.sh`` and ``runbroker.sh``.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rocketbox.clock import Clock

__all__ = ["ENTRIES", "FULL_COLLECTIONS", "TablesOutOfCollections", "tables_out_of_collections"]

ENTRIES: Final = 10_000  # of tables, each a few objects: about 5 ms of a full collection
FULL_COLLECTIONS: Final = 100  # one for so many of the middle generation; Python's own is 10
LOOK_INTERVAL: Final = 1.0  # seconds


class TablesOutOfCollections:
    """Takes what lives long out of collections; ``entries`` says how large the tables are."""

    def __init__(self, entries: Callable[[], int], clock: Clock) -> None:
        self._entries = entries
        self._clock = clock
        self._taken = 0

    def take(self) -> None:
        """What is there now is not looked at any more; what of it is garbage already goes before."""
        self._taken = self._entries()
        gc.collect()
        gc.freeze()

    async def run(self) -> None:
        """Look again and again whether the tables have grown, for ever."""
        while True:
            await self._clock.sleep(LOOK_INTERVAL)
            if self._entries() - self._taken >= ENTRIES:
                self.take()


@contextmanager
def tables_out_of_collections(entries: Callable[[], int], clock: Clock) -> Iterator[TablesOutOfCollections]:
    """Begin with it; afterwards everything is as it was. ``run`` of what is given is to be run."""
    thresholds = gc.get_threshold()
    gc.set_threshold(thresholds[0], thresholds[1], FULL_COLLECTIONS)
    tables = TablesOutOfCollections(entries, clock)
    tables.take()
    try:
        yield tables
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
