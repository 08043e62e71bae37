"""What timer messages wait, on disk: ``config/timers.bin``, a copy of the wheel that is written now and then.

The messages themselves are in the log. The copy says which of those before ``next_offset`` of their queue still wait;
those behind are found by reading the queue. It is replaced as a whole, so after a crash it is the last one or the one
before: then what was delivered since is delivered again. With the one before it is kept as ``.bak``. What a bad sector
lies in is damaged; what cannot be opened is not, and is waited for where there is no other.

    8 bytes "RBXTIMR1", then little-endian int64: next_offset, time of writing (epoch ms), window (ms), entries; uint32
    CRC-32 of these 40 bytes, uint32 CRC-32 of the rest; then two int64 for each entry, its time (epoch ms) and offset

Source: none; Apache RocketMQ 5.x has ``timerwheel``, ``timerlog`` and ``config/timercheck`` instead, which its brokers
build anew.
"""

from __future__ import annotations

import errno
import struct
import sys
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from rocketbox.storage.file_system import Storage

__all__ = ["TimerFile", "TimerState"]

MAGIC = b"RBXTIMR1"
_HEAD = struct.Struct("<8sqqqq")
_SUMS = struct.Struct("<II")
ENTRY_BYTES = 16
READ_AT_ONCE = 4 << 20
WRITTEN_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class TimerState:
    """What a copy says; ``entries`` is time, offset, time, offset, ... ``written_ms`` is when it was made."""

    next_offset: int
    written_ms: int
    window_ms: int
    entries: array[int]


class TimerFile:
    """The file of one store. Its methods block."""

    def __init__(self, directory: str, storage: Storage) -> None:
        self.path = f"{directory}/timers.bin"
        self._directory = directory
        self._storage = storage

    def load(self) -> tuple[TimerState | None, list[str]]:
        """The newest copy that is whole, None without any; and what is wrong with those before it.

        Raises OSError where there is one that is not damaged, as far as that is known, and cannot be read now.
        """
        wrong: list[str] = []
        failure: OSError | None = None
        for path in (self.path, f"{self.path}.bak"):
            if self._storage.exists(path):
                try:
                    return self._read(path), wrong
                except ValueError as error:
                    wrong.append(f"{path}: {error}")
                except OSError as error:
                    if error.errno == errno.ELOOP:  # no damage: the one before is no better
                        raise
                    wrong.append(f"{path}: {error}")
                    if error.errno != errno.EIO:
                        failure = error
        if failure is not None:
            raise failure
        return None, wrong

    def problems(self) -> list[str]:
        """What is wrong with the copy and with the one before it, each ``path: what``."""
        wrong: list[str] = []
        for path in (self.path, f"{self.path}.bak"):
            try:
                if self._storage.exists(path):
                    self._read(path)
            except FileNotFoundError:  # a broker that runs puts the next one in its place just now
                continue
            except (OSError, ValueError) as error:
                wrong.append(f"{path}: {error}")
        return wrong

    def _read(self, path: str) -> TimerState:
        file = self._storage.open(path)
        try:
            head = file.read(0, _HEAD.size + _SUMS.size)
            if len(head) < _HEAD.size + _SUMS.size or not head.startswith(MAGIC):
                raise ValueError("it is not such a file")
            magic_and_numbers = head[: _HEAD.size]
            _, next_offset, written, window, count = _HEAD.unpack(magic_and_numbers)
            of_head, of_rest = _SUMS.unpack_from(head, _HEAD.size)
            if zlib.crc32(magic_and_numbers) != of_head:
                raise ValueError("its head does not match its checksum")
            entries, crc, at, end = array("q"), 0, len(head), len(head) + count * ENTRY_BYTES
            while at < end:
                piece = file.read(at, min(READ_AT_ONCE, end - at))
                if not piece or len(piece) % 8:
                    raise ValueError("it is cut short")
                crc = zlib.crc32(piece, crc)
                entries.frombytes(piece)
                at += len(piece)
        finally:
            file.close()
        if crc != of_rest:
            raise ValueError("it does not match its checksum")
        if sys.byteorder == "big":
            entries.byteswap()
        return TimerState(next_offset, written, window, entries)

    def bring_back(self, end: int) -> None:
        """Have the copy know no message at ``end`` of the queue or behind. Raises OSError."""
        state, _ = self.load()
        if state is None or state.next_offset <= end:
            return
        kept = array("q")
        for at in range(0, len(state.entries), 2):
            if state.entries[at + 1] < end:
                kept.extend(state.entries[at : at + 2])
        for _ in range(2):  # the one before, which is used when this one is damaged, names them as well
            self.save(end, state.written_ms, state.window_ms, [kept.tobytes()])

    def save(self, next_offset: int, written_ms: int, window_ms: int, pieces: Sequence[bytes]) -> None:
        """Replace the copy; ``pieces`` are entries in the machine's order. Raises OSError."""
        fresh, size, crc = f"{self.path}.tmp", 0, 0
        self._storage.make_directories(self._directory)
        file = self._storage.open(fresh, create=True)
        try:
            file.truncate(0)
            at = _HEAD.size + _SUMS.size
            for piece in _joined(pieces):
                file.write(at + size, [piece])
                crc = zlib.crc32(piece, crc)
                size += len(piece)
            head = _HEAD.pack(MAGIC, next_offset, written_ms, window_ms, size // ENTRY_BYTES)
            file.write(0, [head + _SUMS.pack(zlib.crc32(head), crc)])
            file.sync()
        finally:
            file.close()
        if self._storage.exists(self.path):
            self._storage.rename(self.path, f"{self.path}.bak")
        self._storage.rename(fresh, self.path)
        self._storage.sync_directory(self._directory)


def _joined(pieces: Sequence[bytes]) -> list[bytes]:
    """Pieces worth a write, in the order of bytes of the file."""
    joined: list[bytes] = []
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        if sys.byteorder == "big":
            swapped = array("q", piece)
            swapped.byteswap()
            piece = bytes(swapped)
        held.append(piece)
        size += len(piece)
        if size >= WRITTEN_AT_ONCE:
            joined.append(b"".join(held))
            held, size = [], 0
    return [*joined, b"".join(held)] if held else joined
