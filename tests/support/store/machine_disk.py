"""The disk of a machine: it outlives processes, and a power failure takes what was not synced."""

from __future__ import annotations

from typing import Self

from rocketbox.storage.memory_storage import MemoryStorage

__all__ = ["Disk"]


class Disk(MemoryStorage):
    """Of each file it keeps what was synced last. Names of files are on it at once: ``unit/store`` tries the rest."""

    def __init__(self) -> None:
        super().__init__()
        self._synced = self._files.copy()

    def record(self, name: str, path: str, offset: int = 0, size: int = 0) -> None:
        """Calls are not kept: there would be hundreds of thousands."""
        if name == "sync" and path in self._files:
            self._synced[path] = self._files[path].copy()

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        self._synced.pop(target, None)
        if source in self._synced:
            self._synced[target] = self._synced.pop(source)

    def remove(self, path: str) -> None:
        super().remove(path)
        self._synced.pop(path, None)

    def after_a_kill(self) -> Self:
        """What the next process finds."""
        other = type(self)()
        other.take(self)
        other._synced = {path: content.copy() for path, content in self._synced.items()}
        return other

    def after_a_power_failure(self) -> Self:
        """What the next process finds: files as they were synced last, or empty."""
        other = type(self)()
        other.take(self)
        for path, content in other._files.items():
            content.truncate(0)
            if path in self._synced:
                other._files[path] = self._synced[path].copy()
                other._synced[path] = self._synced[path].copy()
        return other
