"""What the tests of tables share: files in memory, and a table's text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rocketbox.broker.persister import Table, TableFile
from rocketbox.broker.store.config_file import ConfigFile
from rocketbox.clock import Clock
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.clocks import VirtualClock

__all__ = ["saved", "table_file", "text_of"]


def table_file(clock: Clock | None = None) -> TableFile:
    """A file that nobody writes."""
    return TableFile(ConfigFile(Path("/config/table.json"), MemoryStorage()), clock or VirtualClock())


def text_of(table: Table) -> str:
    return b"".join(table.pieces()).decode()


def saved(table: Table) -> Any:
    """What its file would hold."""
    return json.loads(text_of(table))
