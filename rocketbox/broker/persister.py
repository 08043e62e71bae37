"""The broker's tables and their files: read at the start, written in intervals and at the stop.

Source: Apache RocketMQ 5.x ``ConfigManager``, ``BrokerController.initializeBrokerScheduledTasks``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import anyio.to_thread

from rocketbox.broker.delay import DelayedDelivery
from rocketbox.broker.offsets import OffsetTable
from rocketbox.broker.store.config_file import ConfigFile
from rocketbox.broker.store.storage import Storage
from rocketbox.clock import Clock
from rocketbox.tasks import Supervisor

__all__ = ["Persister", "Table"]

_log = logging.getLogger(__name__)


class Table(Protocol):
    """What a file holds."""

    def load(self, text: str, file: str, /) -> None: ...

    def encode(self) -> str: ...


class Persister:
    """``topics``, ``subscriptionGroup``, ``consumerOffset`` and ``delayOffset`` under ``config/``."""

    def __init__(self, directory: Path, storage: Storage, clock: Clock) -> None:
        self.files: Mapping[str, ConfigFile] = {
            name: ConfigFile(directory / f"{name}.json", storage)
            for name in ("topics", "subscriptionGroup", "consumerOffset", "delayOffset")
        }
        self._clock = clock

    def load(self, tables: Mapping[str, Table]) -> None:
        """Read each table's file, if there is one. Raises StoreError, StoreCorruptError."""
        for name, table in tables.items():
            text = self.files[name].load()
            if text is not None:
                table.load(text, str(self.files[name].path))

    def write_all(self, tables: Mapping[str, Table]) -> None:
        """Write all tables, at the stop."""
        for name, table in tables.items():
            if isinstance(table, DelayedDelivery):
                table.persist()
                continue
            try:
                self.files[name].persist(table.encode())
            except OSError as error:  # the stop must go on: messages are in the store, which closes next
                _log.error("%s could not be written: %s", self.files[name].path, error)

    def start(
        self, tasks: Supervisor, offsets: OffsetTable, offsets_ms: int, delayed: DelayedDelivery, delayed_ms: int
    ) -> None:
        """Write what changes all the time in intervals."""
        tasks.start("persist consumer offsets", self._persist_offsets, offsets, offsets_ms / 1000)
        tasks.start("persist delay offsets", self._persist_delay_offsets, delayed, delayed_ms / 1000)

    async def _persist_offsets(self, offsets: OffsetTable, interval: float) -> None:
        while True:
            await self._clock.sleep(interval)
            if offsets.changed:
                try:
                    await anyio.to_thread.run_sync(self.files["consumerOffset"].persist, offsets.encode())
                except OSError as error:
                    offsets.changed = True
                    _log.error("committed offsets could not be written, trying again: %s", error)

    async def _persist_delay_offsets(self, delayed: DelayedDelivery, interval: float) -> None:
        while True:
            await self._clock.sleep(interval)
            delayed.persist()
