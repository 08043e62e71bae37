"""Records behind a damaged one, which prove that it was synced: none is missed, wherever a piece that is read ends.

What looks like a record in the body of the damaged one is none: its sender has foreseen where it would lie.
"""

from __future__ import annotations

import pytest

from rocketbox.broker.store import log_scan
from rocketbox.broker.store.files import FileRun, OpenFiles
from rocketbox.broker.store.log_scan import body_at, intact_behind
from rocketbox.broker.store.log_walk import Gap, walk_log
from rocketbox.protocol.stored_message import StoredMessage, encode_stored_message
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.clocks import START_MS
from tests.support.store.store_tools import (
    LOG,
    ROOT,
    contents,
    flip,
    forget_sync,
    killed,
    message,
    numbers,
    opened,
    overwrite,
    put_all,
)

HOST = (b"\x7f\0\0\1", 10911)
BODY_AT = 88  # of a record with IPv4 hosts

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


async def test_intact_records_are_found_wherever_the_border_of_a_piece_cuts_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage, places = await killed(*[message(number, size=20 + number) for number in range(12)])
    overwrite(storage, LOG, places[2] + 30, b"damaged")
    run = FileRun(OpenFiles(storage), f"{ROOT}/commitlog", 4096, "")
    run.load()
    behind = places[3:-1]
    for size in range(100, 400):
        monkeypatch.setattr(log_scan, "WINDOW", size)
        assert sorted({offset for offset, _ in intact_behind(run, places[2])}) == behind, size
    overwrite(storage, LOG, places[-2] + 30, b"damaged")
    assert sorted({offset for offset, _ in intact_behind(run, places[2])}) == behind[:-1]


def pretending(at: int) -> StoredMessage:
    """A message for the log's offset ``at``, in whose body lies a whole record of another topic, of long ago."""
    within = StoredMessage("others", 0, b"not by its owner", b"KEYS\x01k\x02")
    record = encode_stored_message(within, property_crc=True, place=(0, at + BODY_AT, 1, HOST))
    return StoredMessage("orders", 0, record + b"y" * 200, b"KEYS\x01k\x02", born_host=HOST)


def log_of(storage: MemoryStorage) -> FileRun:
    run = FileRun(OpenFiles(storage), f"{ROOT}/commitlog", 4096, "")
    run.load()
    return run


async def test_a_message_that_a_kill_has_cut_short_proves_nothing_by_a_record_in_its_body() -> None:
    """Else whoever may send could have the next start refused."""
    storage, places = await killed(*[message(number) for number in range(12)])
    at = places[10]
    forget_sync(storage, at)
    record = encode_stored_message(pretending(at), property_crc=True, place=(10, at, START_MS, HOST))
    overwrite(storage, LOG, at, record[:-40].ljust(places[-1] - at, b"\0"))
    async with opened(storage) as store:
        assert numbers(store) == list(range(10))
        await put_all(store, message(10))


async def test_a_record_in_the_body_of_a_damaged_message_is_no_message_for_a_repair_or_an_export() -> None:
    """Else whoever may send to one topic would have sent to any, as soon as a bit of his own message flips."""
    storage, places = await killed(message(0), message(1))
    at = places[-1]
    async with opened(storage) as store:
        await put_all(store, pretending(at), message(2))
        storage = storage.copy()
    body = body_at(log_of(storage), at)
    assert body.start == at + BODY_AT
    end = body.stop + len(b"\x06orders") + 2 + int.from_bytes(contents(storage, LOG)[body.stop + 7 : body.stop + 9])
    flip(storage, LOG, body.stop - 1)
    steps = list(walk_log(log_of(storage), 0))
    assert [step if isinstance(step, Gap) else step[0] for step in steps[:2]] == places[:2]
    gap = steps[2]
    assert isinstance(gap, Gap)
    assert (gap.offset, gap.end) == (at, end)
    assert [each for each in steps[3:] if isinstance(each, Gap)] == []


async def test_whatever_bit_of_its_head_is_wrong_a_body_does_not_reach_behind_its_record() -> None:
    storage, places = await killed(*[message(number, size=30) for number in range(4)])
    whole = log_of(storage)
    assert body_at(whole, places[1]) == range(places[1] + BODY_AT, places[1] + BODY_AT + 30)
    for place in range(places[1], places[1] + 112):
        for bit in range(8):
            flip(storage, LOG, place, bit)
            body = body_at(log_of(storage), places[1])
            assert body.stop <= places[2], (place - places[1], bit)
            flip(storage, LOG, place, bit)
    assert body_at(whole, places[1] + 1) == range(0)
    assert body_at(whole, places[-1]) == range(0)
