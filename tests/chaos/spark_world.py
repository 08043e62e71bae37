"""Where faults of one kind happen: brokers, drivers, a sink, and the ledger of what must be in it.

A row is known by its broker, queue and offset. Everything lies in a folder whose name has a space and an umlaut.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from rocketbox.message import SendResult
from tests.chaos.spark_driver import PATIENCE, Driver
from tests.support.spark.standalone import rows_in
from tests.support.spark.topics import rows_of, send_rows

__all__ = ["FIRST_ROWS", "MORE_ROWS", "Place", "World"]

TOPIC = "ledger"
FOLDER = "my jürgen app"
BATCH_ROWS = 9_000  # two tasks of 4,500 rows, so of two record batches each
FIRST_ROWS, MORE_ROWS = 3 * BATCH_ROWS, 6_000
LOOK = 0.5  # seconds between two looks into the sink

Place = tuple[str, int, int]
"""Broker, queue, offset."""


class World:
    """Faults happen at moments of ``chance``; ``happened`` is called for each."""

    def __init__(
        self, folder: Path, chance: random.Random, *, happened: Callable[[], object], once: bool = True
    ) -> None:
        self.folder = folder / FOLDER
        self.folder.mkdir()
        self.chance = chance
        self.faults = 0
        self.seen: list[str] = []
        """What is worth telling beside the numbers."""
        self.wrong: list[str] = []
        self.expected: Counter[Place] = Counter()
        self.sent = 0
        self.drivers: list[Driver] = []
        self._happened = happened
        self._once = once

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for driver in self.drivers:
            driver.clear_away()

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    @property
    def hold(self) -> Path:
        """While this file is there, no batch goes on."""
        return self.folder / "hold"

    def fault(self) -> None:
        """One of the faults that were to happen has happened."""
        self.faults += 1
        self._happened()

    # --- what goes in, and what must come out -------------------------------------------------------------------------

    def send(self, name_server: str, count: int = MORE_ROWS) -> list[Place]:
        """Send so many messages; all are acknowledged, and must come out. Where they are."""
        results: Iterable[SendResult] = send_rows(name_server, TOPIC, rows_of(self.sent, self.sent + count))
        places = [(each.queue.broker_name, each.queue.queue_id, each.queue_offset) for each in results]
        self.expected.update(places)
        self.sent += count
        return places

    def found(self) -> Counter[Place] | None:
        """What is in the sink; None while it is being written."""
        try:
            return rows_in(self.lake)
        except (OSError, pa.ArrowInvalid):
            return None

    def wait_until_there(self, driver: Driver, places: Iterable[Place] | None = None, words: str = "all rows") -> None:
        """Return when these places are in the sink (without any: all that are expected)."""
        wanted = self.expected.keys() if places is None else set(places)
        next_look = 0.0

        def there() -> bool:
            nonlocal next_look
            if time.monotonic() < next_look:
                return False
            found = self.found()
            next_look = time.monotonic() + LOOK
            return found is not None and wanted <= found.keys()

        driver.wait_for(there, f"{words} are in the sink", 2 * PATIENCE)

    def compare(self) -> tuple[Counter[Place], Counter[Place]]:
        """Rows that are missing in the sink, and rows that are there too often, or should not be."""
        found = rows_in(self.lake)
        return self.expected - found, found - self.expected

    # --- drivers ------------------------------------------------------------------------------------------------------

    def start(self, name_server: str, *, fail_on_data_loss: bool = True, **plan: Any) -> Driver:
        """Start a driver, always on the same checkpoint and sink."""
        options = {
            "trigger": "100ms",
            "max-messages": BATCH_ROWS,
            "checkpoint": str(self.folder / "checkpoint"),
            "fail-on-data-loss": fail_on_data_loss,
        }
        plan = {"once": self._once, **plan}
        driver = Driver(
            self.folder, name_server, options, topic=TOPIC, lake=str(self.lake), hold=str(self.hold), **plan
        )
        self.drivers.append(driver)
        return driver

    def send_and_meet(self, driver: Driver, name_server: str, longest: float = 0.5) -> None:
        """Send, and return at some moment, up to ``longest`` seconds, behind the begin of a batch that comes of it."""
        begun = driver.count("begins")
        self.send(name_server)
        driver.wait_for_another("begins", than=begun)
        self.pause(longest)

    def pause(self, longest: float) -> None:
        time.sleep(self.chance.random() * longest)

    def finish(self, driver: Driver) -> None:
        """Let it read all there is, and stop in order."""
        self.wait_until_there(driver)
        driver.stop()
        with suppress(ValueError):
            self.drivers.remove(driver)
        if strange := [path.name for path in self.folder.parent.glob("*%*")] + [
            path.name for path in self.folder.rglob("*%*")
        ]:
            self.wrong.append(f"a path was written in another way: {strange[0]}")
