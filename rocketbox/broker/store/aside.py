"""What a store puts aside before it changes or removes it: copies, and whole files, in the directory ``torn``.

Nothing there is ever read or removed again by a broker. Names end with the time at which it was done.

When and why is left to those who do it: recovery (``log_end``), a start (``misfits``), a repair (``store_repair``).

Source: rocketbox' own; Apache RocketMQ 5.x keeps nothing of what it cuts off.
"""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import UTC, datetime

from rocketbox.broker.store.files import read_data
from rocketbox.storage.file_system import Storage

__all__ = ["Aside", "stamp_of"]


def stamp_of(time_ms: int) -> str:
    """A time (epoch ms) as it stands in names."""
    time = datetime.fromtimestamp(time_ms // 1000, UTC)
    return f"{time:%Y%m%dT%H%M%S}.{time_ms % 1000:03d}Z"


class Aside:
    """The directory of one store; ``stamp`` ends the names of what is put there. All methods block, and raise OSError.

    What they return is on the disk.
    """

    def __init__(self, storage: Storage, root: str, stamp: str) -> None:
        self.directory = f"{root}/torn"
        self._storage = storage
        self._root = root
        self._stamp = stamp

    def path_of(self, path: str) -> str:
        """Where a file of the store goes."""
        return f"{self.directory}/{os.path.relpath(path, self._root).replace('/', '-')}-{self._stamp}"

    def copy_bytes(self, path: str, position: int, length: int, offset: int) -> str:
        """Copy bytes of the log, which begin at an offset of it and a position in its file; returns where they are."""
        first = target = f"{self.directory}/{offset:020d}-{self._stamp}"
        number = 0
        while self._storage.exists(target):  # made within the same millisecond
            number += 1
            target = f"{first}-{number}"
        self.copy(path, target, position, position + length)
        return target

    def copy(self, path: str, target: str, start: int = 0, end: int | None = None) -> None:
        """Copy bytes of a file, sparse as it is. An older copy of that name stays."""
        if self._storage.exists(target):
            return
        self._storage.make_directories(self.directory)
        try:
            source, copy = self._storage.open(path), self._storage.open(target, create=True)
            try:
                size = source.size()
                end = size if end is None else min(end, size)
                copy.truncate(max(0, end - start))
                for position, data in read_data(source, start, end):
                    copy.write(position - start, [data])
                copy.sync()
            finally:
                source.close()
                copy.close()
            self._storage.sync_directory(self.directory)
        except OSError:
            with suppress(OSError):  # half a copy is worth nothing, and takes room
                self._storage.remove(target)
            raise

    def move(self, path: str) -> str:
        """Move a file there; returns its new path."""
        target = self.path_of(path)
        self._storage.make_directories(self.directory)
        self._storage.rename(path, target)
        self._storage.sync_directory(self.directory)
        self._storage.sync_directory(os.path.dirname(path))
        return target
