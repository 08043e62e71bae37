"""The tables of a broker on disk: ``config/*.json``, with the version before as ``.bak`` and checksums as ``.crc``.

Holds reading and replacing the texts; what they mean is left to the tables that own them.

``.crc`` is ours: a block of 256 bytes with the size and CRC-32 of the newest texts, so also of the one in ``.bak``. It
is written before the text that it adds. Texts of ours begin with ``{"``, those of Apache's brokers (and what they write
over ours) with ``{`` and a line's end: these have no checksum. A text of ours that has none of the sums in the file was
changed by something else, and is not used. A damaged ``.crc`` takes no table with it: texts are used unchecked then,
the log and a check of the store say so, and the next text that is written brings a sound one.

Source: Apache RocketMQ 5.x ``ConfigManager``, ``MixAll.string2File``.
"""

from __future__ import annotations

import errno
import logging
import threading
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from rocketbox.errors import StoreError
from rocketbox.protocol.loose_json import loads_loose
from rocketbox.storage.file_system import Storage

__all__ = ["ConfigFile"]

_log = logging.getLogger(__name__)

OURS = b'{"'  # how a text of ours begins
CHECKSUMS_BYTES = 256  # written in one piece, within one sector of any disk
CHECKSUMS_KEPT = 3  # of the file and its .bak, and one more: a start need not know which of them is which
WRITTEN_AT_ONCE = 256 << 10  # bytes

_Sum = tuple[int, int]
"""Size and CRC-32 of a text."""


class ConfigFile:
    """One such file. Any thread may persist; one at a time does. ``private``: only its owner may read it."""

    def __init__(self, path: Path, storage: Storage, *, private: bool = False) -> None:
        self.path = path
        self._private = private
        self._storage = storage
        self._guard = threading.Lock()
        self._sums: list[_Sum] | None = None  # newest first; None: not read yet
        self._damaged = False  # the file itself, while .bak is sound

    def exists(self) -> bool:
        return self._storage.exists(str(self.path))

    def load(self) -> str | None:
        """The text, which is JSON as Apache writes it; that of ``.bak`` if the file is missing or damaged.

        None when there is neither. Raises StoreError when what there is cannot be read: no table is emptied silently.
        """
        wrong: list[str] = []
        self._sums = self._read_sums()
        for path in (str(self.path), f"{self.path}.bak"):
            if not self._storage.exists(path):
                continue
            try:
                text, found = self._read(path)
            except (OSError, ValueError, RecursionError) as error:
                if isinstance(error, OSError) and error.errno == errno.ELOOP:  # no damage: the one before is no better
                    raise StoreError(f"cannot use {path}: {error.strerror}") from error
                wrong.append(f"{path} ({error})")
                continue
            if wrong:
                self._damaged = True
                _log.error(
                    "%s cannot be used and will be kept as %s.damaged; what the table held one version before is used, "
                    "from %s. If you have edited it by hand, stop, put it in place again and remove %s.crc",
                    wrong[0], self.path, path, self.path,
                )  # fmt: skip
            self._sums = [found, *(known for known in self._sums if known != found)]
            return text
        if wrong:
            raise StoreError(
                f"cannot use {' nor '.join(wrong)}; restore the file from a copy. If you have edited it by hand, "
                f"remove {self.path}.crc; to begin without what it held, remove the file and its .bak"
            )
        return None

    def problems(self) -> list[str]:
        """What is wrong with the file, its ``.bak`` and its ``.crc``, each with its path; changes nothing.

        For one that no other uses: what another one replaces meanwhile may be told here.
        """
        found = []
        try:
            self._sums = self._decode_sums()
        except (OSError, ValueError) as error:
            self._sums = []
            found.append(f"{self.path}.crc: {error}; the table is used unchecked")
        for path in (str(self.path), f"{self.path}.bak"):
            if self._storage.exists(path):
                try:
                    self._read(path)
                except (OSError, ValueError, RecursionError) as error:
                    found.append(f"{path}: {error}")
        return found

    def persist(self, pieces: Sequence[bytes]) -> None:
        """Replace the text; after a crash either the old or the new one is there, and known by its sum."""
        path, backup, fresh = str(self.path), f"{self.path}.bak", f"{self.path}.tmp"
        directory = str(self.path.parent)
        with self._guard:
            self._storage.make_directories(directory)
            known = self._known_sums()
            storage = self._storage
            file = storage.make_private_file(fresh) if self._private else storage.open(fresh, create=True)
            try:
                file.truncate(0)
                size = crc = 0
                for chunk in _chunks(pieces):
                    file.write(size, [chunk])
                    crc = zlib.crc32(chunk, crc)
                    size += len(chunk)
                file.sync()
            finally:
                file.close()
            self._write_sums([(size, crc), *known])
            self._sums = None  # until it is certain which texts there are
            if self._storage.exists(path):
                self._storage.rename(path, f"{path}.damaged" if self._damaged else backup)
            self._storage.rename(fresh, path)
            self._storage.sync_directory(directory)
            self._damaged = False
            self._sums = [(size, crc), *known][:CHECKSUMS_KEPT]

    def _read(self, path: str) -> tuple[str, _Sum]:
        """The text of a file, and its sum. Raises ValueError, which says what is wrong with it."""
        file = self._storage.open(path)
        try:
            data = file.read(0, file.size())
        finally:
            file.close()
        found = (len(data), zlib.crc32(data))
        if self._sums and found not in self._sums and data.startswith(OURS):
            raise ValueError("it does not match its checksum")
        try:
            text = data.decode()
            is_object = isinstance(loads_loose(text), dict)
        except (ValueError, RecursionError):
            if not self._private:
                raise
            raise ValueError("it is not JSON") from None  # what is wrong in it may be a password
        if not is_object:
            raise ValueError("it is not a JSON object")
        return text, found

    # --- checksums ---

    def _read_sums(self) -> list[_Sum]:
        """The sums in ``.crc``, newest first; none if it is missing or damaged itself, then nothing is checked."""
        try:
            return self._decode_sums()
        except (OSError, ValueError) as error:
            _log.warning("%s.crc cannot be read (%s): the table is used unchecked", self.path, error)
            return []

    def _decode_sums(self) -> list[_Sum]:
        """The sums in ``.crc``; none if it is missing. Raises OSError, and ValueError when it is damaged."""
        path = f"{self.path}.crc"
        if not self._storage.exists(path):
            return []
        file = self._storage.open(path)
        try:
            block = file.read(0, CHECKSUMS_BYTES)
        finally:
            file.close()
        if not block and not any(self._storage.exists(text) for text in (str(self.path), f"{self.path}.bak")):
            return []  # begun when the process ended
        text, mark, _ = block.decode("ascii", "replace").partition("#")
        if not mark or block != _block(text):
            raise ValueError("it does not match its own checksum")
        return [(int(size), int(crc, 16)) for size, crc in (entry.split(":") for entry in text.split())]

    def _known_sums(self) -> list[_Sum]:
        """Those of the file and its ``.bak``, and perhaps of texts before."""
        if self._sums is None:  # at the beginning, or an attempt failed, at a step that nobody knows
            sums = self._read_sums()
            there = [found for path in (str(self.path), f"{self.path}.bak") if (found := self._sum_of(path)) in sums]
            self._sums = there
        return self._sums

    def _sum_of(self, path: str) -> _Sum | None:
        if not self._storage.exists(path):
            return None
        file = self._storage.open(path)
        try:
            data = file.read(0, file.size())
        finally:
            file.close()
        return len(data), zlib.crc32(data)

    def _write_sums(self, sums: list[_Sum]) -> None:
        """Have the sum of a text on disk before the text; those of the texts there are stay, in case it never comes."""
        text = "".join(f"{size}:{crc:08x} " for size, crc in sums[: 1 + CHECKSUMS_KEPT])
        path, storage = f"{self.path}.crc", self._storage
        if self._private and not storage.exists(path):  # sums are enough to try passwords with
            file = storage.make_private_file(path)
        else:
            file = storage.open(path, create=True)
        try:
            file.write(0, [_block(text)])
            file.sync()
        finally:
            file.close()


def _block(text: str) -> bytes:
    """What ``.crc`` holds for these sums."""
    return (f"{text}#{zlib.crc32(text.encode()):08x}".ljust(CHECKSUMS_BYTES - 1) + "\n").encode()


def _chunks(pieces: Iterable[bytes]) -> Iterable[bytes]:
    """The pieces, joined to chunks that are worth a write and small enough not to hold the interpreter for long."""
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= WRITTEN_AT_ONCE:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)
