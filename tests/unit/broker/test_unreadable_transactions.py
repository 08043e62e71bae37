"""Half messages, and marks that they are done with, which cannot be read when a broker starts."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace

import anyio
import pytest

from rocketbox.broker.store.commit_log import CommitLog
from rocketbox.errors import StoreError
from rocketbox.protocol.codes import TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC, TRANSACTION_GROUP
from rocketbox.protocol.stored_message import StoredMessage
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.broker.in_memory import broker_in_memory
from tests.support.broker.open_transactions import OpenTransactions, open_transactions
from tests.support.broker.transaction_requests import COMMIT, ROLL_BACK, bodies, end, half
from tests.support.clocks import VirtualClock, settle
from tests.support.store.store_tools import WAITING, FaultyStorage, flip, os_error
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio

SMALL = replace(WAITING, mapped_file_size_commit_log=1 << 16)
LOG = "/store/commitlog/00000000000000000000"
HALVES = f"/store/consumequeue/{TRANS_HALF_TOPIC}/0/00000000000000000000"
BODY = 91  # bytes behind the beginning of a record, where its body is: near enough
UNIT = 20


def damage(storage: MemoryStorage, run: OpenTransactions, topic: str, *offsets: int) -> None:
    """Turn one bit over in the record of each of these messages."""
    for offset in offsets:
        flip(storage, LOG, run.messages(topic)[offset].commit_log_offset + BODY)


async def three_open(storage: MemoryStorage, clock: VirtualClock, then: Callable[[OpenTransactions], None]) -> None:
    """Begin t0, t1 and t2, and stop; ``then`` is done just before."""
    async with open_transactions(storage, SMALL, clock=clock) as run:
        for name in ("t0", "t1", "t2"):
            await run.store.durable(run.begin(name))
        await settle()
        then(run)
    clock.now += 60


async def rounds_until(run: OpenTransactions, wanted: Callable[[], bool]) -> None:
    """Check again and again: threads of the store look after what could not be read."""
    with anyio.fail_after(PATIENCE):
        while not wanted():
            await run.checks.round()
            await settle()


@pytest.mark.parametrize("position", [BODY, 2], ids=["its body", "its head"])
async def test_a_damaged_half_message_keeps_no_broker_from_starting(
    position: int, caplog: pytest.LogCaptureFixture
) -> None:
    storage, clock = MemoryStorage(), VirtualClock()
    await three_open(
        storage, clock, lambda run: flip(storage, LOG, run.messages(TRANS_HALF_TOPIC)[1].commit_log_offset + position)
    )
    async with open_transactions(storage, SMALL, clock=clock) as run:
        assert run.open_names() == ["t0", "t2"]
        assert "1 half messages cannot be read, and their transactions wait; the first is message 1" in caplog.text
        await run.checks.round()
        assert run.asked(run.members.member) == ["t0", "t2"]
        await rounds_until(run, lambda: "half message 1 is damaged: if its transaction was open" in caplog.text)
        for name in ("t0", "t2"):
            await run.store.durable(run.end(name, commit=True))
        await settle()
        assert run.names() == ["t0", "t2"]
        await run.checks.round()
        assert run.offsets.get(TRANSACTION_GROUP, TRANS_HALF_TOPIC, 0) == run.store.max_offset(TRANS_HALF_TOPIC, 0)
    assert caplog.text.count("half message 1 is damaged") == 1


async def test_a_half_message_whose_entry_is_damaged_is_open_when_that_is_mended() -> None:
    storage, clock = MemoryStorage(), VirtualClock()
    await three_open(storage, clock, lambda run: None)
    flip(storage, HALVES, UNIT + 7, bit=3)
    async with open_transactions(storage, SMALL, clock=clock) as run:
        assert {"t0", "t2"} <= set(run.open_names()), "the third is mended soon, or was already"
        await rounds_until(run, lambda: "t1" in run.asked(run.members.member))
        await run.store.durable(run.end("t1", commit=True))
        assert run.names() == ["t1"]


async def test_a_bad_sector_makes_one_transaction_wait_until_it_can_be_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    storage, clock = MemoryStorage(), VirtualClock()
    bad: list[int] = []
    await three_open(storage, clock, lambda run: bad.append(run.messages(TRANS_HALF_TOPIC)[1].commit_log_offset))
    read = CommitLog.read

    def fails_there(log: CommitLog, offset: int, size: int) -> bytes:
        if any(offset <= each + BODY < offset + size for each in bad):
            raise OSError(errno.EIO, "Input/output error")
        return read(log, offset, size)

    monkeypatch.setattr(CommitLog, "read", fails_there)
    async with open_transactions(storage, SMALL, clock=clock) as run:
        for _ in range(3):
            await run.checks.round()
        assert run.asked(run.members.member) == ["t0", "t2"] * 3
        assert run.offsets.get(TRANSACTION_GROUP, TRANS_HALF_TOPIC, 0) in (None, 1), "the next start looks for it too"
        bad.clear()
        await run.checks.round()
        assert sorted(run.asked(run.members.member)[6:]) == ["t0", "t1", "t2"]
    assert caplog.text.count("half messages cannot be read") == 1


async def test_marks_that_are_damaged_have_nothing_committed_twice(caplog: pytest.LogCaptureFixture) -> None:
    """What was rolled back left nothing but its mark: it is checked again."""
    storage, clock = MemoryStorage(), VirtualClock()
    async with open_transactions(storage, SMALL, clock=clock) as run:
        for name in ("open", "committed", "rolled back", "checked"):
            await run.store.durable(run.begin(name, "CHECK_IMMUNITY_TIME_IN_SECONDS\x015\x02" * (name == "checked")))
        await settle()
        clock.now += 5
        await run.checks.round()
        await settle()
        assert run.asked(run.members.member) == ["checked"]
        for name in ("committed", "rolled back"):
            await run.store.durable(run.end(name, commit=name == "committed"))
        await settle()
        damage(storage, run, TRANS_OP_HALF_TOPIC, 0, 1, 2)
    clock.now += 60
    async with open_transactions(storage, SMALL, clock=clock) as run:
        assert "3 marks of transactions that are done with cannot be read" in caplog.text
        await run.checks.round()
        await settle()
        assert sorted(run.asked(run.members.member)) == ["checked", "open", "rolled back"]
        assert sorted(run.open_names()) == ["checked", "open", "rolled back"]
        assert run.names() == ["committed"]
    async with open_transactions(storage, SMALL, clock=clock) as run:
        assert sorted(run.open_names()) == ["checked", "open", "rolled back"], "they were marked once more"


async def test_an_end_that_comes_again_finds_what_it_has_committed_though_the_mark_is_damaged() -> None:
    storage = MemoryStorage()
    async with broker_in_memory(storage=storage) as wire:
        text = "UNIQ_KEY\x01t0\x02TRAN_MSG\x01true\x02PGROUP\x01payers\x02"
        sent = await wire.send("orders", b"paid", properties=text, a="payers", f=4)
        end = {
            "producerGroup": "payers", "tranStateTableOffset": sent.ext_fields["queueOffset"],
            "commitLogOffset": str(int(sent.ext_fields["msgId"][-16:], 16)), "commitOrRollback": 8,
        }  # fmt: skip
        assert (await wire.broker(37, end)).code == 0
        (mark,) = await wire.messages(TRANS_OP_HALF_TOPIC)
    flip(storage, LOG, mark.commit_log_offset + BODY)
    async with broker_in_memory(storage=storage) as wire:
        again = await wire.broker(37, end)
        assert again.code == 1
        assert (again.remark or "").startswith("the transaction has ended before")
        assert [message.body for message in await wire.messages("orders")] == [b"paid"]


async def test_a_transaction_that_was_checked_is_committed_though_the_mark_of_another_one_is_damaged() -> None:
    """Its copy has taken the place of its first half message, which the end names; nothing that of the copy."""
    storage, clock = MemoryStorage(), VirtualClock()
    async with broker_in_memory(storage=storage, clock=clock) as wire:
        paid, other = await half(wire, "paid"), await half(wire, "other")
        assert (await end(wire, other, ROLL_BACK)).code == 0
        clock.now += 60
        await wire.running.transaction_checks.round()
        marks = await wire.messages(TRANS_OP_HALF_TOPIC)
        assert [mark.body for mark in marks] == [b"1", b"0"]
    flip(storage, LOG, marks[0].commit_log_offset + BODY)
    async with broker_in_memory(storage=storage, clock=clock) as wire:
        assert (await end(wire, paid, COMMIT)).code == 0
        assert await bodies(wire) == [b"paid"]
        assert (await wire.messages(TRANS_OP_HALF_TOPIC))[-1].body == b"2"
    async with broker_in_memory(storage=storage, clock=clock) as wire:
        assert (await end(wire, paid, COMMIT)).code == 1
        assert await bodies(wire) == [b"paid"]


@pytest.mark.parametrize("fails", [False, True], ids=["", "behind a start that fails"])
async def test_a_start_after_a_crash_finds_what_it_has_cut_off(fails: bool) -> None:
    storage, clock = FaultyStorage(), VirtualClock()
    async with broker_in_memory(storage=storage, clock=clock) as wire:
        paid = await half(wire, "paid")
        await wire.running.persister.finish()
        killed = storage.kept_before_sync("/commitlog/")
        assert (await end(wire, paid, COMMIT)).code == 0
        (mark,) = await wire.messages(TRANS_OP_HALF_TOPIC)
    killed.wipe(LOG, mark.commit_log_offset)
    if fails:
        killed.fail(os_error(errno.EACCES), "open", where="topics.json")
        with pytest.raises(StoreError, match=r"topics\.json"):
            async with broker_in_memory(storage=killed, clock=clock):
                raise AssertionError("it has started")
        killed.heal()
    for _ in range(2):  # after a stop in order, too
        async with broker_in_memory(storage=killed, clock=clock) as wire:
            assert len(wire.running.halves) == 0
            assert (await end(wire, paid, COMMIT)).code == 1
            assert await bodies(wire) == [b"paid"]


async def cut_off(properties: str = "") -> tuple[FaultyStorage, VirtualClock, int]:
    """What a kill has left that came between the message of t, which is committed, and its mark; where its half is."""
    storage, clock = FaultyStorage(), VirtualClock()
    async with open_transactions(storage, SMALL, clock=clock) as run:
        await run.store.durable(run.begin("t", properties))
        await settle()
        (begun,) = run.messages(TRANS_HALF_TOPIC)
        killed = storage.kept_before_sync("/commitlog/")
        await run.store.durable(run.end("t", commit=True))
        (mark,) = run.messages(TRANS_OP_HALF_TOPIC)
    killed.wipe(LOG, mark.commit_log_offset)
    return killed, clock, begun.commit_log_offset


async def other(run: OpenTransactions) -> None:
    """Something lies behind what the kill has left."""
    await run.store.durable(run.begin("other"))
    await run.store.durable(run.end("other", commit=False))


@pytest.mark.parametrize("healed", [False, True], ids=["at the next start", "in this run"])
async def test_what_a_crash_has_cut_off_is_looked_up_before_a_stop_is_one_in_order(
    healed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A half message that could not be read, and is not to be checked for long, at every start that is short."""
    killed, clock, position = await cut_off("CHECK_IMMUNITY_TIME_IN_SECONDS\x01700\x02")
    bad = [position + BODY]
    read = CommitLog.read

    def fails_there(log: CommitLog, offset: int, size: int) -> bytes:
        if any(offset <= each < offset + size for each in bad):
            raise OSError(errno.EIO, "Input/output error")
        return read(log, offset, size)

    monkeypatch.setattr(CommitLog, "read", fails_there)
    async with open_transactions(killed, SMALL, clock=clock) as run:
        await other(run)
        if healed:
            bad.clear()
            await run.checks.round()
            await settle()
            assert run.open_names() == []
    bad.clear()
    for _ in range(2):
        async with open_transactions(killed, SMALL, clock=clock) as run:
            assert run.store.report is not None
            assert run.store.report.clean is healed
            assert [half.is_doubtful for half in run.halves.due(float("inf"))] == [True] * (not healed)
    async with open_transactions(killed, SMALL, clock=clock) as run:
        await run.checks.round()
        await settle()
        assert (run.open_names(), run.names()) == ([], ["t"])
    async with open_transactions(killed, SMALL, clock=clock) as run:
        assert run.store.report is not None
        assert run.store.report.clean
        clock.now += 800
        await run.checks.round()
        assert (run.asked(run.members.member), run.names()) == ([], ["t"])


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_half_message_that_was_sent_twice_is_no_copy_of_what_the_log_begins_with(is_first: bool) -> None:
    """Each that is no copy says 0 where a copy says which one it is of."""
    storage, clock = FaultyStorage(), VirtualClock()
    async with open_transactions(storage, SMALL, clock=clock) as run:
        if not is_first:
            await run.store.durable(run.store.put(StoredMessage("bills", 0, b"x")).end_offset)
        for body in (b"one", b"two"):
            await run.store.durable(run.begin("t", body=body))
        await settle()
        killed = FaultyStorage()
        killed.take(storage)
    async with open_transactions(killed, SMALL, clock=clock) as run:
        assert run.store.report is not None
        assert not run.store.report.clean
        assert run.open_names() == ["t", "t"]


async def test_an_end_finds_the_copy_of_a_half_whose_mark_is_damaged() -> None:
    """Both are open at the start, and the end names the first one."""
    storage, clock = MemoryStorage(), VirtualClock()
    async with broker_in_memory(storage=storage, clock=clock) as wire:
        paid = await half(wire, "paid")
        clock.now += 60
        await wire.running.transaction_checks.round()
        (mark,) = await wire.messages(TRANS_OP_HALF_TOPIC)
    for name in [name for name in storage.list_directory("/store/config") if name.startswith("consumerOffset")]:
        storage.remove(f"/store/config/{name}")
    flip(storage, LOG, mark.commit_log_offset + BODY)
    async with broker_in_memory(storage=storage, clock=clock) as wire:
        assert len(wire.running.halves) == 2
        assert (await end(wire, paid, COMMIT)).code == 0
        assert (await bodies(wire), len(wire.running.halves)) == ([b"paid"], 0)
