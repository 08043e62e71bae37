"""Index files of which not all is on the disk yet: slots that are mended there meanwhile, and entries that are cut."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from rocketbox.broker.store.dispatch import Derived, IndexedRecord
from rocketbox.broker.store.files import OpenFiles
from rocketbox.broker.store.finding import StoreFinding
from rocketbox.broker.store.index_comparison import IndexComparison
from rocketbox.broker.store.index_file import HEADER_BYTES, SLOT_BYTES, MessageIndex
from rocketbox.broker.store.index_sizes import found_sizes
from rocketbox.broker.store.options import StoreOptions
from rocketbox.errors import StoreError
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


def test_a_search_finds_what_was_stored_in_its_first_and_its_last_millisecond_in_whichever_file_it_is() -> None:
    index = MessageIndex(MemoryStorage(), "/index", 100, 4)  # three entries a file
    stored = {100 * number: NOW + 700 * (number // 2) for number in range(10)}  # two in the same millisecond
    for physical, at in stored.items():
        index.put([([5], physical, at)])
    assert len(index.files) > 3
    times = sorted({*stored.values()})
    for begin in times:
        for end in times:
            newest_first = [place for place, at in reversed(stored.items()) if begin - 999 <= at <= end]
            inside = [place for place in newest_first if stored[place] >= begin]
            hits = list(index.search(5, begin, end))
            assert [place for place in hits if place in inside] == inside, "none is missed"
            assert set(hits) <= {place for place, at in stored.items() if begin - 1000 < at < end + 1000}


def test_entries_that_were_never_written_are_cut_where_there_is_no_directory_yet(tmp_path: Path) -> None:
    index = MessageIndex(RealStorage(), str(tmp_path / "index"), 100, 1000)
    index.put([([5], 100, NOW)])
    index.cut(0)
    assert found(index, 5) == []


def test_what_retention_removes_while_an_index_is_compared_is_passed_over() -> None:
    storage, log_start = MemoryStorage(), 0
    index = opened(storage)
    places = range(100, 1100, 100)
    index.put([([place % 7, place % 11], place, NOW) for place in places])
    written(index)
    paths = [file.path for file in index.files]
    comparison = IndexComparison(storage, paths, 100, 1000, lambda: log_start, complete=True)
    findings: list[StoreFinding] = []
    for place in places:
        log_start = {300: 500, 700: 900}.get(place, log_start)  # no record before it is read any more
        if place >= log_start:
            findings += comparison.record(place, NOW, [place % 7, place % 11], False)
    findings += comparison.rest()
    assert findings == []


@pytest.mark.parametrize(("slots", "entries"), [(1, 2), (7, 9), (100, 1000), (300, 2)])
def test_the_sizes_of_a_file_are_found_from_the_first_entry_on(slots: int, entries: int) -> None:
    storage = MemoryStorage()
    index = MessageIndex(storage, "/index", slots, entries)
    index.put([([7_654_321], 200, NOW)])
    written(index)
    (file,) = index.files
    assert found_sizes(storage.open(file.path), 11, 13) == (slots, entries)


def test_the_sizes_of_an_empty_file_are_not_guessed() -> None:
    storage = MemoryStorage()
    storage.make_directories("/index")
    storage.open("/index/empty", create=True).truncate(5000)
    with pytest.raises(StoreError, match="has 5000 bytes, but max-hash-slot-num 11 and max-index-num 13 make 344"):
        found_sizes(storage.open("/index/empty"), 11, 13)


def bytes_of(records: list[IndexedRecord], at_once: int) -> list[bytes]:
    """The index files of records that are indexed so many at once."""
    storage = MemoryStorage()
    derived = Derived(OpenFiles(storage), "/store", StoreOptions(max_hash_slot_num=50, max_index_num=400))
    for first in range(0, len(records), at_once):
        derived.index_records(records[first : first + at_once])
    written(derived.index)
    files = [storage.open(file.path) for file in derived.index.files]
    return [file.read(0, file.size()) for file in files]


@pytest.mark.parametrize("odd", ["nothing", "keys", "tags", "id", "topic", "words", "time", "rollback", "length", "é"])
def test_records_indexed_together_are_in_the_files_as_if_they_came_one_by_one(odd: str) -> None:
    chance = random.Random(odd)
    records: list[IndexedRecord] = []
    for number in range(300):
        is_odd = chance.random() < 0.1
        unique = f"{number if odd == 'length' else 7:020d}{number:08d}" + "x" * (is_odd and odd == "length")
        words = f"k{number + 9_950}" + " 2nd  é" * (is_odd and odd in ("words", "é"))
        if odd == "keys" and is_odd:
            words = ""
        tag = None if odd == "tags" and is_odd else b"T%d" % (number % 3)
        records.append(
            (
                "Other" if odd == "topic" and is_odd else "Orders",
                (tag, words.encode() or None, None if odd == "id" and is_odd else unique.encode()),
                12 if odd == "rollback" and is_odd else 0,
                1000 + 100 * number,
                NOW + (5000 * number if odd == "time" else number // 50),
            )
        )
    alone = bytes_of(records, 1)
    for at_once in (2, 7, 64, 300):
        assert bytes_of(records, at_once) == alone
    assert bytes_of(records[:64] + records[30:], 64) == alone  # those that are in the index are not added again


def test_a_slot_that_points_behind_the_last_entry_begins_anew() -> None:
    storage = MemoryStorage()
    index = opened(storage)
    index.put([([5], 100, NOW)])
    written(index)
    index.close()
    storage.open(index.files[0].path).write(HEADER_BYTES + 6 * SLOT_BYTES, [struct.pack(">2i", 900, -3)])
    index = opened(storage)
    index.put([([6, 7, 5], 200, NOW)])
    written(index)
    assert index.files[0].used_slots == 3
    assert [found(opened(storage), key) for key in (6, 7, 5)] == [[200], [200], [200, 100]]
