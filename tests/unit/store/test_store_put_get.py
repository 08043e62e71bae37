"""Putting and getting: offsets, statuses, limits, file ends, times, keys."""

from __future__ import annotations

import dataclasses
import struct
from itertools import pairwise

import pytest

from rocketbox.broker.filters import TagFilter
from rocketbox.broker.store.reading import GetMessageStatus
from rocketbox.errors import InvalidMessageError, NotStartedError
from rocketbox.protocol.codes import SCHEDULE_TOPIC, MessageSysFlag
from rocketbox.protocol.stored_message import decode_message
from rocketbox.protocol.tags import tags_code
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.store.store_tools import (
    LOG,
    ROOT,
    SMALL,
    ManualClock,
    contents,
    found_by_key,
    message,
    number_of,
    numbers,
    opened,
    put_all,
    stopped,
)

pytestmark = pytest.mark.anyio


async def test_a_message_gets_its_place_and_comes_back_as_it_was() -> None:
    clock = ManualClock()
    async with opened(MemoryStorage(), clock=clock, store_host=("10.0.0.7", 10911)) as store:
        first = store.put(message(1))
        second = store.put(message(2))
        other = store.put(message(3, queue_id=1))
        await store.durable(other.end_offset)
        assert (first.queue_offset, second.queue_offset, other.queue_offset) == (0, 1, 0)
        assert first.commit_log_offset == 0
        assert second.commit_log_offset == first.end_offset
        (record,) = store.get("orders", 0, 1).records
        found, size = decode_message(record)
        assert size == len(record)
        assert found.body == message(2).body
        assert found.store_timestamp_ms == second.store_timestamp_ms == clock.now_ms
        assert found.store_host == "10.0.0.7:10911"
        assert found.offset_msg_id == second.msg_id
        assert found.properties["__CRC32#"]
        assert store.read(second.commit_log_offset) == record


async def test_without_the_checksum_the_properties_are_left_as_they_came() -> None:
    options = dataclasses.replace(SMALL, enabled_append_prop_crc=False)
    async with opened(MemoryStorage(), options) as store:
        await put_all(store, message(1))
        (record,) = store.get("orders", 0, 0).records
        assert decode_message(record)[0].raw_properties == message(1).properties


async def test_nothing_is_readable_before_it_is_durable() -> None:
    async with opened(MemoryStorage()) as store:
        arrived: list[tuple[str, int, int, int, bytes]] = []
        store.on_arrival.append(arrived.extend)
        result = store.put(message(4, queue_id=2))
        assert store.max_offset("orders", 2) == 0
        assert store.get("orders", 2, 0).status is GetMessageStatus.NO_MESSAGE_IN_QUEUE
        assert arrived == []
        await store.durable(result.end_offset)
        assert store.max_offset("orders", 2) == 1
        assert arrived == [("orders", 2, 1, tags_code("t1"), store.get("orders", 2, 0).records[0])]


async def test_the_status_says_why_nothing_was_found() -> None:
    async with opened(MemoryStorage()) as store:
        unknown = store.get("orders", 0, 5)
        assert (unknown.status, unknown.next_begin_offset) == (GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, 0)
        await put_all(store, message(0), message(1), message(2))
        at_end = store.get("orders", 0, 3)
        assert (at_end.status, at_end.next_begin_offset) == (GetMessageStatus.OFFSET_OVERFLOW_ONE, 3)
        beyond = store.get("orders", 0, 9)
        assert (beyond.status, beyond.next_begin_offset) == (GetMessageStatus.OFFSET_OVERFLOW_BADLY, 3)
        small = store.get("orders", 0, -1)
        assert (small.status, small.next_begin_offset) == (GetMessageStatus.OFFSET_TOO_SMALL, 0)
        nothing = store.get("orders", 0, 0, filter=TagFilter(()))
        assert (nothing.status, nothing.next_begin_offset) == (GetMessageStatus.NO_MATCHED_MESSAGE, 3)
        assert (nothing.min_offset, nothing.max_offset) == (0, 3)


async def test_a_filter_sees_the_tags_code_and_skips_what_does_not_match() -> None:
    async with opened(MemoryStorage()) as store:
        await put_all(store, *[message(number) for number in range(9)])
        found = store.get("orders", 0, 1, filter=TagFilter({tags_code("t2")}))
        assert [number_of(record) for record in found.records] == [2, 5, 8]
        assert found.next_begin_offset == 9


class OnlyRecord:
    """Passes every unit, and of the records those with this body."""

    def __init__(self, number: int) -> None:
        self._number = number

    def matches_unit(self, tags_code: int) -> bool:
        return True

    def matches_record(self, record: bytes) -> bool:
        return number_of(record) == self._number


async def test_a_filter_that_refuses_all_records_says_that_none_matched_not_that_they_were_removed() -> None:
    async with opened(MemoryStorage()) as store:
        await put_all(store, *[message(number) for number in range(9)])
        found = store.get("orders", 0, 0, filter=OnlyRecord(7))
        assert ([number_of(record) for record in found.records], found.next_begin_offset) == ([7], 9)
        nothing = store.get("orders", 0, 0, filter=OnlyRecord(70))
        assert (nothing.status, nothing.next_begin_offset) == (GetMessageStatus.NO_MATCHED_MESSAGE, 9)


async def test_a_get_takes_at_most_its_count_and_bytes_but_always_one() -> None:
    options = dataclasses.replace(
        SMALL, mapped_file_size_commit_log=1 << 20, max_transfer_bytes_on_message_in_memory=4000
    )
    async with opened(MemoryStorage(), options) as store:
        await put_all(store, *[message(number, size=800) for number in range(6)], message(6, size=9000))
        await put_all(store, *[message(number, queue_id=1) for number in range(40)])
        by_count = store.get("orders", 0, 0, 2)
        assert (len(by_count.records), by_count.next_begin_offset) == (2, 2)
        by_bytes = store.get("orders", 0, 0)
        assert len(by_bytes.records) == 4  # of 979 bytes each
        assert len(store.get("orders", 0, 0, max_bytes=1).records) == 1
        assert len(store.get("orders", 0, 6).records) == 1
        assert len(store.get("orders", 1, 0, 10).records) == 10
    fewer = dataclasses.replace(SMALL, max_transfer_count_on_message_in_memory=32)
    async with opened(MemoryStorage(), fewer) as store:
        await put_all(store, *[message(number) for number in range(15)])
        more = [store.put(message(number)) for number in range(15, 40)]
        await store.durable(more[-1].end_offset)
        assert len(store.get("orders", 0, 0, 100).records) == 32


async def test_what_lies_far_behind_the_logs_end_is_read_with_the_limits_for_disk() -> None:
    options = dataclasses.replace(SMALL, access_message_in_memory_max_ratio=0)
    async with opened(MemoryStorage(), options) as store:
        await put_all(store, *[message(number) for number in range(20)])
        assert len(store.get("orders", 0, 0).records) == 8


async def test_a_get_looks_through_a_bounded_part_of_the_queue_and_one_file() -> None:
    options = dataclasses.replace(SMALL, max_filter_message_size=100)
    async with opened(MemoryStorage(), options) as store:
        await put_all(store, *[message(number) for number in range(30)])
        assert store.get("orders", 0, 0, 1, filter=TagFilter(())).next_begin_offset == 5
    storage, _ = await stopped(*[message(number) for number in range(50)])
    async with opened(storage) as store:
        assert store.get("orders", 0, 15, 32).next_begin_offset == 20  # files of 20 entries


async def test_records_never_span_files_and_each_file_ends_with_a_blank() -> None:
    storage, places = await stopped(*[message(number, size=700) for number in range(12)])
    sizes = {after - before for before, after in pairwise(places)}
    assert len(sizes) > 1  # some record begins a file
    for start in range(0, places[-1] - places[-1] % 4096, 4096):
        data = contents(storage, f"{ROOT}/commitlog/{start:020d}")
        assert len(data) == 4096
        last = max(place for place in places if place < start + 4096) - start
        (size,) = struct.unpack_from(">i", data, last)
        assert struct.unpack_from(">iI", data, last + size) == (4096 - last - size, 0xCBD43194)
    async with opened(storage) as store:
        assert numbers(store) == list(range(12))


@pytest.mark.parametrize("spare", range(-2, 18))
async def test_a_file_is_filled_to_the_last_byte_that_leaves_room_for_a_blank(spare: int) -> None:
    """The second record leaves ``spare`` bytes in the first file; 8 are the least."""
    async with opened(MemoryStorage()) as store:
        overhead = store.put(message(0, size=100)).end_offset - 100
        result = store.put(message(1, size=4096 - 2 * overhead - 100 - spare))
        end = store.put(message(2)).end_offset
        await store.durable(end)
        assert result.commit_log_offset == (overhead + 100 if spare >= 8 else 4096)
        assert numbers(store) == [0, 1, 2]


async def test_a_batch_lies_in_one_file_and_its_ids_are_those_of_all() -> None:
    async with opened(MemoryStorage()) as store:
        await put_all(store, message(0, size=2500))
        result = store.put_batch([message(number, size=400) for number in range(1, 5)])
        await store.durable(result.end_offset)
        assert result.commit_log_offset == 4096
        assert result.queue_offset == 1
        assert len(result.offsets) == 4
        assert result.msg_id.split(",")[0] == decode_message(store.get("orders", 0, 1).records[0])[0].offset_msg_id
        assert numbers(store) == [0, 1, 2, 3, 4]
        with pytest.raises(InvalidMessageError, match="one queue"):
            store.put_batch([message(1), message(2, queue_id=1)])
        with pytest.raises(InvalidMessageError, match="at least one"):
            store.put_batch([])


async def test_what_does_not_fit_into_a_file_is_refused_and_leaves_nothing_behind() -> None:
    async with opened(MemoryStorage()) as store:
        with pytest.raises(InvalidMessageError, match=r"4096 bytes.*mapped-file-size-commit-log"):
            store.put(message(0, size=4000))
        with pytest.raises(InvalidMessageError, match="mapped-file-size-commit-log"):
            store.put_batch([message(number, size=1500) for number in range(3)])
        await put_all(store, message(1))
        assert numbers(store) == [1]
    small_bodies = dataclasses.replace(SMALL, max_message_size=100)
    async with opened(MemoryStorage(), small_bodies) as store:
        with pytest.raises(InvalidMessageError, match=r"101 bytes; max-message-size is 100"):
            store.put(message(0, size=101))


@pytest.mark.parametrize(
    "wrong", [message(1, topic="a/b"), message(1, topic=".."), message(1, topic=""), message(1, queue_id=-1),
              message(1, queue_id=1 << 31), dataclasses.replace(message(1), flag=1 << 31)]
)  # fmt: skip
async def test_a_message_that_cannot_be_stored_is_refused(wrong: object) -> None:
    async with opened(MemoryStorage()) as store:
        with pytest.raises(InvalidMessageError):
            store.put(wrong)  # type: ignore[arg-type]  # all are messages; the list's type is not asked
        await put_all(store, message(1))
        assert numbers(store) == [1]


async def test_store_times_never_go_back() -> None:
    clock = ManualClock()
    storage = MemoryStorage()
    async with opened(storage, clock=clock) as store:
        first = store.put(message(0))
        clock.now_ms -= 60_000
        assert store.put(message(1)).store_timestamp_ms == first.store_timestamp_ms
    earlier = ManualClock()
    earlier.now_ms -= 3_600_000
    async with opened(storage, clock=earlier) as store:
        assert store.put(message(2)).store_timestamp_ms == first.store_timestamp_ms


async def test_a_delayed_message_has_its_due_time_beside_it() -> None:
    async with opened(MemoryStorage()) as store:
        codes: list[int] = []
        store.on_arrival.append(lambda arrived: codes.extend([code for _, _, _, code, _ in arrived]))
        result = store.put(message(1, topic=SCHEDULE_TOPIC, queue_id=2, DELAY="3"))
        store.put(message(2, topic=SCHEDULE_TOPIC, queue_id=17, DELAY="99"))
        end = store.put(message(3, DELAY="3")).end_offset
        await store.durable(end)
        now = result.store_timestamp_ms
        assert codes == [now + 10_000, now + 7_200_000, tags_code("t0")]


async def test_half_and_rolled_back_messages_have_no_place_in_a_queue() -> None:
    async with opened(MemoryStorage()) as store:
        half = dataclasses.replace(message(1), sys_flag=int(MessageSysFlag.TRANSACTION_PREPARED))
        rollback = dataclasses.replace(message(2), sys_flag=int(MessageSysFlag.TRANSACTION_ROLLBACK))
        commit = dataclasses.replace(message(3), sys_flag=int(MessageSysFlag.TRANSACTION_COMMIT))
        places = await put_all(store, half, rollback, commit)
        assert numbers(store) == [3]
        record = store.read(places[0])
        assert record is not None
        assert number_of(record) == 1
        assert len(await found_by_key(store, "all", 10)) == 2  # the rolled back one is not indexed


async def test_messages_are_found_by_each_of_their_keys_in_a_time() -> None:
    clock = ManualClock()
    storage = MemoryStorage()
    async with opened(storage, clock=clock) as store:
        start = clock.now_ms
        for number in range(30):
            await put_all(store, message(number))
            clock.now_ms += 1000
        for _ in range(2):  # from memory, then from the files
            assert await found_by_key(store, "k7", 32) == [7]
            assert await found_by_key(store, f"{7:032X}", 32) == [7]
            assert await found_by_key(store, "all", 4) == [29, 28, 27, 26]
            tagged = await found_by_key(store, "T#t1", 32, "orders", start + 5000, start + 14_000)
            assert tagged == [13, 10, 7]
            assert await found_by_key(store, "none", 32) == []
            assert await found_by_key(store, "k7", 32, "others") == []
            await clock.advance(60)
    async with opened(storage, clock=clock) as store:
        assert await found_by_key(store, "k7", 32) == [7]


async def test_more_keys_than_a_file_holds_go_to_the_next_file() -> None:
    storage, _ = await stopped(*[message(number) for number in range(50)])  # 4 keys each, 63 entries in a file
    assert len(storage.list_directory(f"{ROOT}/index")) == 4
    async with opened(storage) as store:
        for number in range(50):
            assert await found_by_key(store, f"k{number}", 32) == [number]
        assert len(await found_by_key(store, "all", 100)) == 50


async def test_an_offset_is_found_by_time() -> None:
    clock = ManualClock()
    async with opened(MemoryStorage(), clock=clock) as store:
        assert await store.find_offset_by_time("orders", 0, clock.now_ms) == 0
        start = clock.now_ms
        for number in range(50):  # at 0, 10, 20 ...
            await put_all(store, message(number))
            clock.now_ms += 10
        assert await store.find_offset_by_time("orders", 0, start - 5) == 0
        assert await store.find_offset_by_time("orders", 0, start + 100) == 10
        assert await store.find_offset_by_time("orders", 0, start + 101) == 11
        assert await store.find_offset_by_time("orders", 0, start + 10_000) == 50
        assert await store.find_offset_by_time("orders", 0, start + 100, upper=True) == 10
        assert await store.find_offset_by_time("orders", 0, start + 109, upper=True) == 10
        assert await store.find_offset_by_time("orders", 0, start - 5, upper=True) == 0
        assert await store.find_offset_by_time("orders", 0, start + 10_000, upper=True) == 49


async def test_only_the_start_of_a_record_can_be_read_by_its_offset() -> None:
    storage, places = await stopped(message(0), message(1, size=3000), message(2, size=3000))
    async with opened(storage) as store:
        found = [offset for offset in range(-10, places[-1] + 200) if store.read(offset) is not None]
        assert found == places[:-1]


async def test_old_records_are_read_from_the_files_with_few_reads() -> None:
    options = dataclasses.replace(SMALL, mapped_file_size_commit_log=1 << 20)
    storage, _ = await stopped(*[message(number, queue_id=number % 4) for number in range(80)], options=options)
    async with opened(storage, options) as store:
        reads = storage.reads
        found = store.get("orders", 3, 0, 32)
        assert [number_of(record) for record in found.records] == list(range(3, 80, 4))
        assert storage.reads == reads + 2  # the queue's entries, and records with those of other queues between


async def test_new_records_are_not_read_from_the_files_at_all() -> None:
    storage = MemoryStorage()
    async with opened(storage) as store:
        await put_all(store, *[message(number) for number in range(20)])
        reads = storage.reads
        assert numbers(store) == list(range(20))
        assert storage.reads == reads


async def test_a_store_is_used_inside_its_block_and_can_be_entered_again() -> None:
    storage = MemoryStorage()
    async with opened(storage) as store:
        await put_all(store, message(0))
    with pytest.raises(NotStartedError):
        store.put(message(1))
    with pytest.raises(NotStartedError):
        await store.durable(1 << 40)
    async with store:
        await put_all(store, message(1))
        assert numbers(store) == [0, 1]
    assert not storage.exists(f"{ROOT}/abort")


async def test_unused_bytes_are_zero_and_files_have_their_full_length() -> None:
    storage, places = await stopped(message(0), message(1))
    assert contents(storage, LOG)[places[-1] :] == bytes(4096 - places[-1])
    assert len(contents(storage, f"{ROOT}/consumequeue/orders/0/{0:020d}")) == 400
    (index,) = storage.list_directory(f"{ROOT}/index")
    assert len(contents(storage, f"{ROOT}/index/{index}")) == SMALL.index_file_size
    assert len(contents(storage, f"{ROOT}/checkpoint")) == 4096
