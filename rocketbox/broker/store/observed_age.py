"""How long files of the log have been full, counted in time that the store has run: whatever the clock said meanwhile.

A message that is stored while the clock is far ahead gives all later ones its store time, as store times never go back.
By store times none of them would expire before that time comes. So of files whose newest record bears a time that is
still to come it is noted how long the store had run, over all its starts, when they were first seen full. What has run
since is never more than their age.

    config/retention.json    {"ran": milliseconds, "full": {where a file begins: milliseconds}}

Written when files are added, every ten minutes, and when files are removed: a crash makes ages less, never more.

Source: rocketbox' own; Apache RocketMQ 5.x goes by the time at which a file was changed
(``MappedFileQueue.deleteExpiredFileByTime``), which a clock that was wrong, or a copy, makes wrong too.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rocketbox.broker.store.config_file import ConfigFile
from rocketbox.clock import Clock
from rocketbox.errors import StoreCorruptError
from rocketbox.protocol.json_values import dumps
from rocketbox.protocol.loose_json import loads_loose
from rocketbox.storage.file_system import Storage

__all__ = ["ObservedAges"]

WRITE_EVERY_MS = 600_000


class ObservedAges:
    """The table, and its file. Methods block, and are called one at a time."""

    def __init__(self, storage: Storage, root: str, clock: Clock) -> None:
        self._file = ConfigFile(Path(root) / "config" / "retention.json", storage)
        self._clock = clock
        self._ran = 0
        self._full: dict[int, int] = {}
        self._loaded = False
        self._seen = clock.monotonic()
        self._written = 0  # what had run when the file was written

    def __contains__(self, start: int) -> bool:
        return start in self._full

    def __bool__(self) -> bool:
        return bool(self._full)

    def tick(self) -> None:
        """Count what has run since the last call. Raises StoreError, OSError when the file cannot be read."""
        if not self._loaded:
            self._load()
        now = self._clock.monotonic()
        self._ran += round((now - self._seen) * 1000)
        self._seen = now
        if self._full and self._ran - self._written >= WRITE_EVERY_MS:
            self._write()

    def note(self, starts: Iterable[int]) -> None:
        """These files are full now. Raises OSError."""
        if added := {start: self._ran for start in starts if start not in self._full}:
            self._full |= added
            self._write()

    def age_ms(self, start: int) -> int:
        """For how long a file has been full, at least; 0 of one that nothing is noted of."""
        since = self._full.get(start)
        return 0 if since is None else self._ran - since

    def forget_below(self, start: int) -> None:
        """The log begins there now. Raises OSError."""
        if any(each < start for each in self._full):
            self._full = {each: since for each, since in self._full.items() if each >= start}
            self._write()

    def _load(self) -> None:
        text = self._file.load()
        if text is not None:
            try:
                table = loads_loose(text)
                self._ran = self._written = int(table["ran"])
                self._full = {int(start): int(since) for start, since in table["full"].items()}
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise StoreCorruptError(str(self._file.path), 0, f"not a table of ages ({error})") from error
        self._loaded = True

    def _write(self) -> None:
        full = {str(start): since for start, since in self._full.items()}
        self._file.persist([dumps({"ran": self._ran, "full": full})])
        self._written = self._ran
