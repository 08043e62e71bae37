"""Index files of which not all is on the disk yet: slots that are mended there meanwhile, and entries that are cut."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from rocketbox.broker.store.index_file import HEADER_BYTES, SLOT_BYTES, MessageIndex
from rocketbox.storage.file_system import RealStorage
from rocketbox.storage.memory_storage import MemoryStorage

NOW = 1_700_000_000_000


def opened(storage: MemoryStorage) -> MessageIndex:
    index = MessageIndex(storage, "/index", 100, 1000)
    index.load()
    return index


def written(index: MessageIndex) -> None:
    taken = index.snapshots()
    index.write(taken)
    index.set_written(taken)


def found(index: MessageIndex, key_hash: int) -> list[int | None]:
    return list(index.search(key_hash, 0, 2 * NOW))


@pytest.mark.parametrize("fails", [False, True])
def test_slots_that_are_being_written_are_not_forgotten_for_what_the_file_has_yet(fails: bool) -> None:
    storage = MemoryStorage()
    index = opened(storage)
    index.put([([5], 100, NOW)])
    written(index)
    index.put([([5], 200, NOW)])
    taken = index.snapshots()
    index.forget_slots(index.files[0].path)
    if fails:
        index.restore(taken)
        written(index)
    else:
        index.write(taken)
        index.set_written(taken)
    assert found(index, 5) == [200, 100]
    index.put([([105], 300, NOW)])  # in the same slot
    written(index)
    assert found(index, 5) == found(opened(storage), 5) == [200, 100]


def test_a_slot_that_was_mended_stays_so_when_its_neighbours_are_written_as_they_were_before() -> None:
    storage = MemoryStorage()
    index = opened(storage)
    index.put([([5], 100, NOW), ([6], 200, NOW)])
    written(index)
    index.close()
    place = HEADER_BYTES + 6 * SLOT_BYTES
    storage.open(index.files[0].path).write(place, [struct.pack(">i", 0)])
    index = opened(storage)
    index.put([([5], 300, NOW)])
    taken = index.snapshots()
    storage.open(index.files[0].path).write(place, [struct.pack(">i", 2)])
    index.forget_slots(index.files[0].path)
    index.write(taken)
    index.set_written(taken)
    index.put([([7], 400, NOW)])
    written(index)
    assert found(index, 6) == found(opened(storage), 6) == [200]
    assert found(index, 5) == [300, 100]


def test_entries_that_were_never_written_are_cut_where_there_is_no_directory_yet(tmp_path: Path) -> None:
    index = MessageIndex(RealStorage(), str(tmp_path / "index"), 100, 1000)
    index.put([([5], 100, NOW)])
    index.cut(0)
    assert found(index, 5) == []
