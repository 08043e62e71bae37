"""How many slots and entries an index file has, that was written with other settings than ours.

Nothing in the file says it: its length is 40 + 4 * slots + 20 * entries, and its header counts only those in use. But
the last entry in use ends where the file's data does, and begins at 40 + 4 * slots + 20 * number, which leaves one
number of slots for which the rest of the file is whole entries; the slots of the entries then prove it.

Source: Apache RocketMQ 5.5 ``IndexFile`` (its length, ``maxHashSlotNum``, ``maxIndexNum``).
"""

from __future__ import annotations

import struct

from rocketbox.broker.store.files import read_data
from rocketbox.errors import StoreError
from rocketbox.storage.file_system import StorageFile

__all__ = ["found_sizes", "other_size"]

HEADER_BYTES = 40
APACHES = (5_000_000, 20_000_000)
PROVED = 100  # so many of the newest entries are looked at
_COUNT = struct.Struct(">i")
_SLOT = struct.Struct(">i")
_ENTRY = struct.Struct(">iqii")


def found_sizes(file: StorageFile, slots: int, entries: int) -> tuple[int, int]:
    """The file's slots and entries: those given, or Apache's defaults, or what its content says.

    Raises StoreError when none of them fits.
    """
    size = file.size()
    for pair in ((slots, entries), APACHES):
        if size == length_of(*pair):
            return pair
    found = _from_content(file, size)
    if found is None:
        raise other_size(file.path, size, slots, entries)
    return found


def length_of(slots: int, entries: int) -> int:
    return HEADER_BYTES + _SLOT.size * slots + _ENTRY.size * entries


def other_size(path: str, size: int, slots: int, entries: int) -> StoreError:
    return StoreError(
        f"{path} has {size} bytes, but max-hash-slot-num {slots} and max-index-num {entries} make "
        f"{length_of(slots, entries)}; set them to what the store was written with (maxHashSlotNum and maxIndexNum of "
        "an Apache broker), or remove the directory index, which is then built again from the log"
    )


def _from_content(file: StorageFile, size: int) -> tuple[int, int] | None:
    header = file.read(0, HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        return None
    (count,) = _COUNT.unpack_from(header, 36)  # number of the next entry; the first is 1
    last = -1  # the last byte that is not zero
    for position, data in read_data(file, 0, size):
        if used := len(data.rstrip(b"\0")):
            last = position + used - 1
    if count <= 1 or last < HEADER_BYTES:
        return None
    highest = last - HEADER_BYTES - _ENTRY.size * (count - 1)  # the slots' bytes, if it is an entry's first
    for slots in range(max(1, (highest - _ENTRY.size) // _SLOT.size), highest // _SLOT.size + 1):
        rest = size - HEADER_BYTES - _SLOT.size * slots
        entries, odd = divmod(rest, _ENTRY.size)
        if odd == 0 and entries >= count and _fits(file, slots, count):
            return slots, entries
    return None


def _fits(file: StorageFile, slots: int, count: int) -> bool:
    """Whether the newest entries are where their slots say."""
    base = HEADER_BYTES + _SLOT.size * slots
    for number in range(count - 1, max(0, count - 1 - PROVED), -1):
        key_hash, _, _, previous = _ENTRY.unpack(file.read(base + _ENTRY.size * number, _ENTRY.size))
        if key_hash < 0 or not 0 <= previous < number:
            return False
        (newest,) = _SLOT.unpack(file.read(HEADER_BYTES + _SLOT.size * (key_hash % slots), _SLOT.size))
        if not number <= newest < count:
            return False
    return True
