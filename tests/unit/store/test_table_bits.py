"""Every bit of a small table, and of the checkpoint: a flipped one is found by the check and the background pass."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from rocketbox.broker.store.checkpoint import CheckpointFile
from rocketbox.broker.store.config_file import ConfigFile
from rocketbox.broker.store.store_check import check_tables
from rocketbox.broker.store.timer_file import TimerFile
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.store.store_tools import (
    CHECKPOINT,
    HOURLY,
    ROOT,
    SMALL,
    ManualClock,
    contents,
    flip,
    message,
    opened,
    passed,
    put_all,
)

TABLES = {
    "topics": b'{"dataVersion":{"counter":3},"topicConfigTable":{"orders":{"perm":6,"readQueueNums":4}}}',
    "subscriptionGroup": b'{"dataVersion":{"counter":1},"subscriptionGroupTable":{"desk":{"retryMaxTimes":16}}}',
    "consumerOffset": b'{"offsetTable":{"orders@desk":{"0":17,"1":4}}}',
    "delayOffset": b'{"offsetTable":{"1":10,"2":0}}',
    "deletedTopics": b'{"deletedTopics":{"orders":4096}}',
    "retention": b'{"full":{"4096":10},"ran":1000}',
}


@pytest.mark.parametrize("name", TABLES)
def test_every_flipped_bit_of_a_table_or_the_one_before_is_found(name: str) -> None:
    storage = MemoryStorage()
    path = f"{ROOT}/config/{name}.json"
    table = ConfigFile(Path(path), storage)
    table.persist([TABLES[name]])
    table.persist([TABLES[name].replace(b"1", b"2")])
    assert list(check_tables(storage, ROOT)) == []
    for damaged in (path, f"{path}.bak", f"{path}.crc"):
        for position in range(len(contents(storage, damaged))):
            for bit in range(8):
                flip(storage, damaged, position, bit)
                findings = list(check_tables(storage, ROOT))
                assert [finding.path for finding in findings] == [damaged], (position, bit)
                flip(storage, damaged, position, bit)
    assert list(check_tables(storage, ROOT)) == []


def test_every_flipped_bit_of_the_timers_or_the_copy_before_is_found() -> None:
    storage = MemoryStorage()
    file = TimerFile(f"{ROOT}/config", storage)
    file.save(2, 1_700_000, 60_000, [array("q", [1_800_000, 0]).tobytes()])
    file.save(3, 1_710_000, 60_000, [array("q", [1_800_000, 0, 1_900_000, 2]).tobytes()])
    assert list(check_tables(storage, ROOT)) == []
    for damaged in (file.path, f"{file.path}.bak"):
        size = len(contents(storage, damaged))
        for position in range(size):
            for bit in range(8):
                flip(storage, damaged, position, bit)
                findings = list(check_tables(storage, ROOT))
                assert [finding.path for finding in findings] == [damaged], (position, bit)
                flip(storage, damaged, position, bit)
        storage.open(damaged).truncate(size - 16)
        assert [finding.what for finding in check_tables(storage, ROOT)] == ["it is cut short"]
        storage.remove(damaged)
        assert list(check_tables(storage, ROOT)) == []


def test_every_flipped_bit_of_the_checkpoint_is_found_and_mended() -> None:
    storage = MemoryStorage()
    storage.make_directories(ROOT)
    file = CheckpointFile(storage, CHECKPOINT)
    file.write(sync=True, run=5, synced_offset=4711, queued_offset=815, log_start=0, physic_msg_timestamp=1_700_000)
    sound = contents(storage, CHECKPOINT)
    assert not file.mend()
    for position in range(120):
        for bit in range(8):
            flip(storage, CHECKPOINT, position, bit)
            assert file.mend(), (position, bit)
            assert contents(storage, CHECKPOINT) == sound
    assert not file.mend()


@pytest.mark.anyio
async def test_a_damaged_checkpoint_is_mended_by_a_pass(caplog: pytest.LogCaptureFixture) -> None:
    storage, clock = MemoryStorage(), ManualClock()
    async with opened(storage, HOURLY, clock=clock) as store:
        await put_all(store, message(0))
        for _ in range(3):
            await clock.advance(11)
        sound = contents(storage, CHECKPOINT)
        flip(storage, CHECKPOINT, 70)
        await passed(store, clock)
        assert contents(storage, CHECKPOINT) == sound
        assert "the checkpoint differed from what was written to it" in caplog.text
        assert store.upkeep.mended == 1
    async with opened(storage, SMALL) as store:
        assert store.report is not None
        assert store.report.marked
