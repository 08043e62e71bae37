"""The names of index files: the local time at which each was begun, and always behind the one before."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from rocketbox.broker.store.index_file import MessageIndex
from rocketbox.storage.memory_storage import MemoryStorage


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Local time is that of Berlin; what the process had is set again behind."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def names(index: MessageIndex) -> list[str]:
    return [file.path.rpartition("/")[2] for file in index.files]


def milliseconds(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def index_with(*times: int, storage: MemoryStorage | None = None) -> MessageIndex:
    """An index in which each of these moments (epoch ms) begins a file."""
    index = MessageIndex(storage or MemoryStorage(), "/index", 16, 2)
    for number, moment in enumerate(times):
        index.put([([number], number, moment)])
    return index


def test_a_file_is_named_by_local_time(zone: None) -> None:
    assert names(index_with(milliseconds("2026-07-01T12:00:00.123"))) == ["20260701140000123"]


def test_two_files_of_one_millisecond_have_two_names(zone: None) -> None:
    moment = milliseconds("2026-12-31T22:59:59.998")
    assert names(index_with(moment, moment, moment, moment)) == [
        "20261231235959998", "20261231235959999", "20270101000000000", "20270101000000001",
    ]  # fmt: skip


def test_the_next_name_is_found_at_once_when_local_time_has_gone_back(zone: None) -> None:
    """At the end of summer time, where counting milliseconds up to the name before takes minutes."""
    before, after = milliseconds("2026-10-25T00:59:59.999"), milliseconds("2026-10-25T01:00:00.000")
    begun = time.process_time()
    assert names(index_with(before, after)) == ["20261025025959999", "20261025030000000"]
    assert time.process_time() - begun < 0.5


def test_the_next_name_is_found_at_once_in_another_zone(zone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    moment = milliseconds("2026-07-01T12:00:00.000")
    storage = MemoryStorage()
    index = index_with(moment, storage=storage)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    index.put([([1], 1, moment + 1000)])
    assert names(index) == ["20260701140000000", "20260701140000001"]


def test_a_name_that_is_no_time_is_gone_on_from(zone: None) -> None:
    storage = MemoryStorage()
    storage.make_directories("/index")
    index = index_with(1, storage=storage)
    index.write(index.snapshots())
    (name,) = names(index)
    storage.rename(f"/index/{name}", "/index/" + "20269999999999999")
    again = MessageIndex(storage, "/index", 16, 2)
    again.load()
    again.put([([1], 1, milliseconds("2026-07-01T12:00:00.000"))])
    assert names(again) == ["20269999999999999", "20270000000000000"]
