"""What is cut off the log's end at a start is copied first: no start destroys the only copy of anything."""

from __future__ import annotations

import errno
import random

import pytest

from rocketbox.broker.store.records import check_record
from rocketbox.errors import StoreError, StoreFullError
from rocketbox.protocol.stored_message import StoredMessage, encode_stored_message
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.store.store_tools import (
    LOG,
    ROOT,
    FailingStorage,
    ManualClock,
    contents,
    forget_sync,
    killed,
    message,
    numbers,
    opened,
    overwrite,
    put_all,
    states_of_a_start,
)

TORN = f"{ROOT}/torn"


async def torn() -> tuple[MemoryStorage, int, bytes]:
    """A killed store whose log ends with 700 bytes of noise behind its tenth record; where it begins, the noise."""
    storage, places = await killed(*[message(number) for number in range(12)])
    forget_sync(storage, places[10])
    noise = random.Random(3).randbytes(700) + b"!"
    overwrite(storage, LOG, places[10], noise)
    return storage, places[10], noise


@pytest.mark.anyio
async def test_the_torn_tail_is_kept_beside_the_log_and_the_log_line_says_where(
    caplog: pytest.LogCaptureFixture,
) -> None:
    storage, start, noise = await torn()
    async with opened(storage) as store:
        assert numbers(store) == list(range(10))
        (name,) = storage.list_directory(TORN)
        assert name == f"{start:020d}-20231114T221320.000Z"
        assert contents(storage, f"{TORN}/{name}") == noise
        assert store.report is not None
        assert store.report.torn_copies == (f"{TORN}/{name}",)
        line = next(line for line in caplog.messages if "torn" in line)
        assert f"cut {len(noise) - noise.count(0)} bytes of torn tail off at {LOG}:{start}" in line
        assert str(store.report.torn_reason) in line
        assert line.endswith(f"{TORN}/{name}")
        await put_all(store, message(10))
    async with opened(storage) as store:
        assert numbers(store) == list(range(11))
    assert storage.list_directory(TORN) == [name]


@pytest.mark.anyio
async def test_the_copy_is_on_the_disk_before_anything_is_cut() -> None:
    storage, start, _ = await torn()
    storage.calls.clear()
    async with opened(storage):
        calls = [(call.name, call.path) for call in storage.calls]
    cut = next(number for number, call in enumerate(storage.calls) if call.path == LOG and call.name == "write")
    copied = next(number for number, call in enumerate(calls) if call[0] == "sync" and call[1].startswith(TORN))
    assert copied < calls.index(("sync directory", TORN)) < cut
    assert storage.calls[cut].offset <= start


@pytest.mark.anyio
async def test_of_each_file_of_the_log_there_is_a_copy() -> None:
    storage, places = await killed(*[message(number, size=700) for number in range(9)])
    second = next(place for place in places if place >= 4096)
    forget_sync(storage, places[2])
    overwrite(storage, LOG, places[2], b"torn")
    first_file = contents(storage, LOG)[places[2] :].rstrip(b"\0")
    overwrite(storage, f"{ROOT}/commitlog/{4096:020d}", 0, b"torn too" + bytes(4088))
    last = f"{ROOT}/commitlog/{8192:020d}"
    overwrite(storage, last, 0, bytes(4096))
    async with opened(storage) as store:
        assert numbers(store) == [0, 1]
        assert store.report is not None
        assert [contents(storage, path) for path in store.report.torn_copies] == [first_file, b"torn too"]
    assert second == 4096


@pytest.mark.anyio
async def test_zeros_are_not_copied() -> None:
    storage, places = await killed(*[message(number) for number in range(12)])
    forget_sync(storage, places[10])
    overwrite(storage, LOG, places[10], bytes(places[12] - places[10]))
    async with opened(storage) as store:
        assert numbers(store) == list(range(10))
    assert not storage.exists(TORN)


COPYING = pytest.mark.parametrize("call", ["create", "write", "sync", "make directory", "sync directory"])


@COPYING
@pytest.mark.anyio
async def test_without_room_for_the_copy_the_store_opens_to_be_read_until_there_is_room(call: str) -> None:
    storage, _, noise = await torn()
    full = FailingStorage(OSError(errno.ENOSPC, "No space left on device"), calls={call}, where="torn")
    full.take(storage)
    full.failing = True
    before = contents(full, LOG)
    clock = ManualClock()
    for _ in range(2):  # as often as it is started
        async with opened(full, clock=clock) as store:
            assert numbers(store) == list(range(10))
            assert store.refusal is not None
            assert "No space left" in store.refusal
            assert f"{len(noise)} bytes" in store.refusal
            assert store.report is not None
            assert (store.report.truncated_bytes, store.report.torn_file) == (0, None), "it is all there"
            with pytest.raises(StoreFullError):
                store.put(message(10))
            await clock.advance(120)
            await clock.advance(120)
            assert store.refusal is not None
        assert contents(full, LOG) == before
        assert full.list_directory(TORN) == []
    async with opened(full, clock=clock) as store:
        full.failing = False
        for _ in range(4):
            await clock.advance(30)
        assert store.refusal is None
        (copy,) = full.list_directory(TORN)
        assert contents(full, f"{TORN}/{copy}") == noise
        await put_all(store, message(10))
        assert numbers(store) == list(range(11))
    assert not full.exists(f"{ROOT}/abort")
    async with opened(full) as store:
        assert numbers(store) == list(range(11))
    assert len(full.list_directory(TORN)) == 1


@COPYING
@pytest.mark.anyio
async def test_a_copy_that_cannot_be_made_for_another_reason_than_room_ends_the_start(call: str) -> None:
    storage, start, noise = await torn()
    bad = FailingStorage(OSError(errno.EIO, "Input/output error"), calls={call}, where="torn")
    bad.take(storage)
    bad.failing = True
    before = contents(bad, LOG)
    with pytest.raises(StoreError, match=rf"{len(noise)} bytes, from offset {start} on.*Input/output error"):
        async with opened(bad):
            raise AssertionError("it must not open")
    assert contents(bad, LOG) == before
    assert bad.list_directory(TORN) == []
    assert bad.locked == set()


@pytest.mark.anyio
async def test_a_start_that_breaks_off_anywhere_keeps_log_or_copy() -> None:
    storage, start, noise = await torn()
    for state in await states_of_a_start(storage):
        kept = [contents(state, f"{TORN}/{name}") for name in state.list_directory(TORN)]
        assert noise in (contents(state, LOG)[start : start + len(noise)], *kept)
        async with opened(state) as store:
            assert numbers(store) == list(range(10))
            await put_all(store, message(10))
        async with opened(state) as store:
            assert numbers(store) == list(range(11))


def test_a_record_without_checksum_is_whole_unless_a_sector_of_it_is_missing() -> None:
    """As Apache's brokers write them: zeros for a whole sector are what a torn write leaves."""
    text = "".join(f"p{number}\x01{'v' * 200}\x02" for number in range(10))
    for start in range(0, 512, 37):
        place = (0, start, 1, (b"\x7f\0\0\x01", 10911))
        whole = encode_stored_message(StoredMessage("orders", 0, b"body", text.encode()), place=place)
        assert check_record(whole, start) is None
        for sector in range(start // 512 * 512, start + len(whole), 512):
            first, end = max(0, sector - start), min(len(whole), sector + 512 - start)
            torn = whole[:first] + bytes(end - first) + whole[end:]
            if first > 8:  # else there is no record at all
                assert check_record(torn, start) is not None
    nul = encode_stored_message(
        StoredMessage("orders", 0, b"", b"a\x01x\0y\x02"), place=(0, 0, 1, (b"\x7f\0\0\x01", 10911))
    )
    assert check_record(nul, 0) is None
