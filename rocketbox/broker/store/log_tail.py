"""When the newest record of a complete file of the log was stored, found from the file's end without reading it whole.

A file ends with a blank, and the newest record right before it. Looking back from the end, whatever looks like a record
(its magic number, its own offset, its checksum) is one, or bytes of a body that pretend to be: the latest time that any
of them has is never before the newest record's.
"""

from __future__ import annotations

import struct

from rocketbox.broker.store.files import FileRun
from rocketbox.broker.store.records import BLANK_MAGIC, MAGIC_V1, MAGIC_V2, MIN_RECORD_BYTES, check_record
from rocketbox.broker.store.records import store_timestamp_of as stored_at

__all__ = ["newest_store_time"]

_HEAD = struct.Struct(">II20xq")
_BLANK = struct.Struct(">II")
_SIGNS = tuple(struct.pack(">I", magic) for magic in (MAGIC_V1, MAGIC_V2))


def newest_store_time(run: FileRun, start: int, following: int | None, largest: int) -> int | None:
    """Store time (epoch ms) of the newest record in the file that begins at ``start``.

    ``following`` is that of the next file's first record, which no record here was stored after. Without one, or where
    the file's end cannot be understood, it is taken for the newest's: too late, but never too early. ``largest`` is how
    many bytes a record has at most.
    """
    if following is None:
        return None
    end = start + run.file_size
    window = largest
    while True:
        base = max(start, end - window)
        data = run.read(base, end - base)
        found = _records(data, base)
        if any(_is_blank(data, offset + size - base, end - offset - size) for offset, (size, _) in found.items()):
            times = [stored for _, stored in found.values() if stored <= following]
            return max(times) if times else following
        if base == start:
            return following
        window *= 8


def _records(data: bytes, base: int) -> dict[int, tuple[int, int]]:
    """Offset -> (size, store time) of what looks like records."""
    found = {}
    for sign in _SIGNS:
        at = data.find(sign, 4)
        while at >= 0:
            position = at - 4
            if position + MIN_RECORD_BYTES <= len(data):
                size, _, own = _HEAD.unpack_from(data, position)
                if own == base + position and MIN_RECORD_BYTES <= size <= len(data) - position:
                    record = data[position : position + size]
                    if check_record(record, own) is None:
                        found[own] = (size, stored_at(record))
            at = data.find(sign, at + 1)
    return found


def _is_blank(data: bytes, position: int, left: int) -> bool:
    if position + _BLANK.size > len(data):
        return False
    size, magic = _BLANK.unpack_from(data, position)
    return bool(magic == BLANK_MAGIC and size == left)
