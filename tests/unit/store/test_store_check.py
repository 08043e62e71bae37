"""Comparing queues, index and log of a store that is not running: nothing is found in a sound one, every change is."""

from __future__ import annotations

import dataclasses
import errno

import pytest

from rocketbox.broker.store.checkpoint import Checkpoint
from rocketbox.broker.store.finding import FindingKind, StoreFinding
from rocketbox.broker.store.options import StoreOptions
from rocketbox.broker.store.store_check import check_store, find_files
from rocketbox.errors import StoreCorruptError, StoreFullError
from rocketbox.protocol.codes import SCHEDULE_TOPIC, MessageSysFlag
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.store.store_tools import (
    CHECKPOINT,
    LOG,
    ROOT,
    SMALL,
    FaultyStorage,
    ManualClock,
    SteppingStorage,
    contents,
    flip,
    killed,
    message,
    opened,
    os_error,
    overwrite,
    put_all,
    remove_tree,
    stopped,
)

pytestmark = pytest.mark.anyio

ANY_HOUR = ";".join(map(str, range(24)))
SECOND = f"{ROOT}/commitlog/{4096:020d}"
QUEUE = f"{ROOT}/consumequeue/orders/0/{0:020d}"
MIXED = [
    *[message(number, queue_id=number % 2, size=number * 7 % 300 + 20) for number in range(30)],
    message(30, topic=SCHEDULE_TOPIC, queue_id=2, DELAY="3"),
    message(31, topic="no keys", KEYS="", TAGS="", UNIQ_KEY=""),
    dataclasses.replace(message(32), sys_flag=int(MessageSysFlag.TRANSACTION_PREPARED)),
    dataclasses.replace(message(33), sys_flag=int(MessageSysFlag.TRANSACTION_ROLLBACK)),
    *[message(number, queue_id=number % 2) for number in range(34, 60)],
]


def found(storage: MemoryStorage, options: StoreOptions = SMALL, *, running: bool = False) -> list[StoreFinding]:
    before = len(storage.calls)
    store = find_files(storage, ROOT, options)
    findings = [step for step in check_store(store, options, running=running) if isinstance(step, StoreFinding)]
    assert storage.calls[before:] == []  # nothing is changed
    return findings


def wrong(storage: MemoryStorage, options: StoreOptions = SMALL) -> list[StoreFinding]:
    return [finding for finding in found(storage, options) if not finding.harmless]


async def test_nothing_is_found_in_a_sound_store() -> None:
    storage, _ = await stopped(*MIXED)
    assert found(storage) == []
    assert len(storage.list_directory(f"{ROOT}/index")) > 2  # more than one full file was compared


async def test_nothing_is_found_in_one_that_was_killed() -> None:
    storage, _ = await killed(*MIXED)
    assert found(storage) == []


async def test_an_index_ahead_of_the_log_is_no_finding_where_another_broker_was_killed() -> None:
    """Apache's writes it whenever its page cache likes to; a start cuts it to what the log has."""
    storage, clock = MemoryStorage(), ManualClock()
    async with opened(storage, clock=clock) as store:
        *_, last, _ = await put_all(store, *MIXED)
        await clock.advance(11)
        killed = storage.copy()
    killed.remove(CHECKPOINT)
    path = f"{ROOT}/commitlog/{last - last % 4096:020d}"
    overwrite(killed, path, last % 4096, bytes(4096 - last % 4096))
    assert {finding.kind for finding in found(killed)} <= {FindingKind.LOG}
    assert wrong(killed) == []


async def test_nothing_is_found_in_one_that_runs() -> None:
    storage, clock = MemoryStorage(), ManualClock()
    async with opened(storage, clock=clock) as store:
        await put_all(store, *MIXED[:40])
        await clock.advance(11)
        await put_all(store, *MIXED[40:])
        assert found(storage, running=True) == []


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
async def test_nothing_is_found_in_one_whose_disk_was_full_when_a_new_file_was_needed(clean: bool) -> None:
    storage, clock = FaultyStorage(), ManualClock()
    async with opened(storage, clock=clock) as store:
        await put_all(store, *[message(number, size=1000) for number in range(3)])
        await clock.advance(70)
        storage.fail(os_error(errno.ENOSPC), "create", where="commitlog")
        with pytest.raises(StoreFullError):
            await put_all(store, message(3, size=1000))  # its file is closed, the next one cannot be made
        assert storage.list_directory(f"{ROOT}/commitlog") == [LOG.rpartition("/")[2]]
        assert found(storage, running=True) == []
        left = storage.copy()
    if not clean:
        storage.take(left)
    assert wrong(storage) == []
    async with opened(storage):  # which notes that the log goes on behind that file
        pass
    assert wrong(storage) == []


async def test_an_empty_directory_is_sound() -> None:
    assert found(MemoryStorage()) == []


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_every_bit_of_a_unit_is_found_and_the_right_bytes_are_known() -> None:
    storage, _ = await stopped(*[message(number) for number in range(12)])
    sound = contents(storage, QUEUE)
    for position in range(5 * 20, 6 * 20):
        for bit in range(8):
            flip(storage, QUEUE, position, bit)
            (finding,) = wrong(storage)
            assert (finding.kind, finding.path, finding.position) == (FindingKind.QUEUE, QUEUE, 100)
            assert finding.correct == sound[100:120]
            flip(storage, QUEUE, position, bit)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_every_bit_of_an_index_file_is_found() -> None:
    options = dataclasses.replace(SMALL, max_hash_slot_num=5, max_index_num=20)
    storage, _ = await stopped(*[message(number) for number in range(11)], options=options)
    first, *_, last = [f"{ROOT}/index/{name}" for name in storage.list_directory(f"{ROOT}/index")]
    entries = 40 + 4 * options.max_hash_slot_num
    for path in (first, last):
        sound = contents(storage, path)
        used = entries + 20 * int.from_bytes(sound[36:40], "big")
        for position in range(used):
            if entries <= position < entries + 20:
                continue  # the entry with the number 0 is not used
            flip(storage, path, position, position % 8)
            findings = wrong(storage, options)
            assert findings, (path, position)
            assert all(finding.kind is FindingKind.INDEX for finding in findings)
            for finding in findings:
                if finding.correct is not None:
                    assert finding.path == path
                    assert sound[finding.position :].startswith(finding.correct)
            flip(storage, path, position, position % 8)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_every_byte_of_a_record_in_the_middle_is_found() -> None:
    storage, places = await stopped(*[message(number) for number in range(6)])
    path = LOG
    for position in range(places[2], places[3]):
        flip(storage, path, position, position % 8)
        findings = wrong(storage)
        assert (findings[0].kind, findings[0].position, findings[0].end) == (FindingKind.LOG, places[2], places[3])
        assert {finding.kind for finding in findings[1:]} <= {FindingKind.QUEUE, FindingKind.INDEX}
        flip(storage, path, position, position % 8)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("plain", [False, True], ids=["keys", "one key"])
async def test_a_damaged_record_makes_none_of_its_index_entries_wrong_and_all_others_are_compared(plain: bool) -> None:
    many = [message(number, KEYS="", TAGS="") if plain else message(number) for number in range(6)]
    storage, places = await stopped(*many)
    (path,) = [f"{ROOT}/index/{name}" for name in storage.list_directory(f"{ROOT}/index")]
    for damaged in (*[[number] for number in range(6)], [1, 2], [4, 5], list(range(6))):
        state = storage.copy()
        for number in damaged:
            flip(state, LOG, places[number] + 60)
        assert [each.path for each in wrong(state) if each.kind is FindingKind.INDEX] == [], damaged
        intact = [number for number in range(6) if number not in damaged]
        for number in intact:
            entry = 40 + 4 * SMALL.max_hash_slot_num + 20 * (number * (1 if plain else 4) + 1)
            flip(state, path, entry + 5)
            (finding,) = [each for each in wrong(state) if each.kind is FindingKind.INDEX]
            assert finding.position == entry
            flip(state, path, entry + 5)
            assert finding.correct == state.open(path).read(entry, 20)


class Vanishing(MemoryStorage):
    """Removes a file of a store between its being listed and its being opened."""

    victims: list[str]

    def begin_call(self, name: str, path: str) -> None:
        if name == "open" and path in self.victims:
            self.victims.remove(path)
            del self._files[path]


@pytest.mark.parametrize("which", ["commitlog", "consumequeue/orders/0", "index"])
async def test_files_that_retention_removes_while_they_are_listed_end_no_check(which: str) -> None:
    storage, _ = await stopped(*[message(number, size=300) for number in range(60)])
    state = Vanishing()
    state.take(storage)
    state.victims = [f"{ROOT}/{which}/{name}" for name in storage.list_directory(f"{ROOT}/{which}")[:2]]
    assert len(state.victims) == 2
    find_files(state, ROOT, SMALL)
    assert state.victims == []


async def test_the_newest_record_is_missed_if_it_was_synced() -> None:
    storage, places = await stopped(*[message(number) for number in range(6)])
    flip(storage, LOG, places[5] + 40)
    (finding, *_) = [each for each in wrong(storage) if each.kind is FindingKind.LOG]
    assert finding.position == places[5]
    assert f"synced up to {places[6]}" in finding.what


async def test_a_torn_tail_is_told_as_harmless() -> None:
    storage, places = await killed(*[message(number) for number in range(6)])
    value = Checkpoint.decode(contents(storage, f"{ROOT}/checkpoint"))
    value = dataclasses.replace(value, synced_offset=places[5])
    overwrite(storage, f"{ROOT}/checkpoint", 0, value.encode())
    flip(storage, LOG, places[5] + 40)
    (finding,) = found(storage)
    assert (finding.kind, finding.position, finding.harmless) == (FindingKind.LOG, places[5], True)


async def test_missing_files_are_found() -> None:
    sound, _ = await stopped(*MIXED)
    for path, kind in (
        (SECOND, FindingKind.LOG),
        (QUEUE, FindingKind.QUEUE),
        (f"{ROOT}/index/{sound.list_directory(f'{ROOT}/index')[1]}", FindingKind.INDEX),
    ):
        storage = sound.copy()
        storage.remove(path)
        assert kind in {finding.kind for finding in wrong(storage)}, path
    storage = sound.copy()
    remove_tree(storage, f"{ROOT}/consumequeue")
    assert {finding.kind for finding in wrong(storage)} == {FindingKind.QUEUE}


async def test_a_file_that_cannot_be_its_queues_is_told_with_what_is_wrong_with_its_name() -> None:
    storage, _ = await stopped(*MIXED)
    directory = QUEUE.rpartition("/")[0]
    far, odd = f"{directory}/{400 << 40:020d}", f"{directory}/{401:020d}"
    for path in (far, odd):
        storage.open(path, create=True).truncate(400)
    told = {finding.path: finding.what for finding in wrong(storage)}
    assert told == {far: "it lies far from the queue's other files", odd: "no multiple of 400"}


async def test_a_log_file_that_was_cut_short_is_found_and_read() -> None:
    storage, _ = await stopped(*MIXED)
    storage.open(SECOND).truncate(1000)
    findings = wrong(storage)
    assert "has 1000 bytes, the others 4096" in findings[0].what
    assert [finding.end for finding in findings if finding.kind is FindingKind.LOG][1] == 8192


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("marked", [True, False], ids=["ours", "another's"])
async def test_a_last_file_of_the_log_that_was_cut_anywhere_is_read_to_its_end(marked: bool) -> None:
    storage, _ = await stopped(*[message(number, size=100) for number in range(8)])
    if not marked:
        storage.remove(CHECKPOINT)
    sound = contents(storage, LOG)
    ends = [end for end in range(4096) if sound[end + 4 : end + 8] == sound[4:8]]
    reading = FaultyStorage()
    for cut in sorted({0, 1, 7, 8, *range(ends[2] - 9, ends[3] + 9)}):
        reading.take(storage)
        reading.heal()
        reading.open(LOG).truncate(cut)
        reading.fail(AssertionError("it reads for ever"), "read", where="commitlog", after=1000)
        assert wrong(reading), cut


async def test_entries_of_no_record_are_found() -> None:
    storage, _ = await stopped(*[message(number) for number in range(12)])
    unit = contents(storage, QUEUE)[100:120]
    overwrite(storage, QUEUE, 12 * 20, unit)
    (finding,) = wrong(storage)
    assert (finding.position, finding.correct) == (240, bytes(20))


async def test_other_file_sizes_than_the_settings_say_are_taken_as_they_are() -> None:
    storage, _ = await stopped(*MIXED)
    options = dataclasses.replace(SMALL, mapped_file_size_commit_log=1 << 30, mapped_file_size_consume_queue=6_000_000)
    assert found(storage, options) == []


@pytest.mark.parametrize("running", [True, False], ids=["running", "killed"])
async def test_entries_that_are_written_and_not_yet_synced_are_no_finding(running: bool) -> None:
    storage, clock = MemoryStorage(), ManualClock()
    options = dataclasses.replace(SMALL, flush_consume_queue_thorough_interval=60_000)
    async with opened(storage, options, clock=clock) as store:
        await put_all(store, *MIXED)
        await clock.advance(2)
        assert any("/consumequeue/" in call.path and call.name == "write" for call in storage.calls)
        assert store._checkpoint.value.queued_offset == 0
        assert found(storage.copy(), running=running) == []


@pytest.mark.parametrize("size", [277, 280, 420])
async def test_a_queue_file_of_another_size_than_those_of_other_queues_is_found(size: int) -> None:
    storage, _ = await stopped(*MIXED)
    storage.open(f"{ROOT}/consumequeue/orders/0/{0:020d}").truncate(size)
    assert any(f"has {size} bytes, the others 400" in finding.what for finding in wrong(storage))


@pytest.mark.parametrize("clean", [True, False])
async def test_a_first_file_of_the_log_that_retention_did_not_remove_is_missed(clean: bool) -> None:
    storage, _ = await (stopped if clean else killed)(*MIXED)
    storage.remove(LOG)
    assert next((finding.kind, finding.path) for finding in wrong(storage)) == (FindingKind.LOG, LOG)
    with pytest.raises(StoreCorruptError, match=f"{LOG} is damaged at byte 0: the file is missing"):
        async with opened(storage):
            pass


async def test_no_file_is_missed_that_retention_has_removed_nor_one_it_was_about_to() -> None:
    clock = ManualClock()
    options = dataclasses.replace(SMALL, file_reserved_time="3h", delete_when=ANY_HOUR, max_message_size=2048)
    storage = SteppingStorage()
    async with opened(storage, options, clock=clock) as store:
        await put_all(store, *MIXED)
        for _ in range(3):
            await clock.advance(61)
        storage.states.clear()
        await clock.advance(4 * 3600)
        for _ in range(20):
            await clock.advance(10)
        assert store.min_commit_log_offset > 0
    removing = [state for state in storage.states if state.list_directory(f"{ROOT}/commitlog")[0] == LOG[-20:]]
    assert len(removing) > 1
    for state in [*removing, *storage.states[len(removing) :: 5], storage]:
        assert [finding for finding in wrong(state) if finding.kind is FindingKind.LOG] == []
        async with opened(state, options, clock=clock):
            pass


async def test_where_the_log_began_is_not_known_of_a_checkpoint_of_before() -> None:
    storage, _ = await stopped(*MIXED)
    overwrite(storage, CHECKPOINT, 108, bytes(12))
    assert Checkpoint.decode(contents(storage, CHECKPOINT)).marked
    storage.remove(LOG)
    assert FindingKind.LOG not in {finding.kind for finding in found(storage)}
    async with opened(storage):  # as behind a run of an older build; from now on it is known again
        pass
    storage.remove(SECOND)
    assert SECOND in [finding.path for finding in wrong(storage) if finding.kind is FindingKind.LOG]
