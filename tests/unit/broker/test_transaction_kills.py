"""Kills and power failures at every moment of transactions: each is open, or ended in one way, and once."""

from __future__ import annotations

import copy
import errno
import os
import random
from dataclasses import dataclass

import pytest

from rocketbox.broker.store.commit_log import CommitLog
from rocketbox.broker.store.options import StoreOptions
from rocketbox.protocol.codes import TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from rocketbox.protocol.stored_message import StoredMessage
from tests.support.broker.open_transactions import offsets_text, open_transactions
from tests.support.broker.transaction_ledger import Ledger, verify
from tests.support.clocks import VirtualClock, idle
from tests.support.store.crash_checks import inline_pools
from tests.support.store.crashable_storage import CrashableStorage, Image
from tests.support.store.store_tools import LOG, FaultyStorage

OPTIONS = StoreOptions(
    mapped_file_size_commit_log=4096,
    mapped_file_size_consume_queue=400,
    max_hash_slot_num=16,
    max_index_num=64,
    allocate_ahead=1024,
)
SEEDS = 300 if os.environ.get("ROCKETBOX_TESTS") == "all" else 5
LIVES = 6  # of a broker, for each seed
STEPS = 14
MOST_CHECKS = 3


@dataclass
class Crash:
    """What a crash leaves: the disk, the offsets as they were written last, and what was known until then."""

    image: Image
    offsets: str | None
    ledger: Ledger


async def live(seed: int, number: int, image: Image | None, offsets: str | None, ledger: Ledger) -> Crash:
    """One life of a broker: it finds what the last one left, works, and is killed at some call of its storage."""
    chance = random.Random(f"{seed} {number}")
    clock = VirtualClock(settle=idle)
    clock.now = number * 10_000.0
    storage = CrashableStorage(image)
    left: Crash | None = None
    calls = 0
    crash_at = chance.randrange(1, 110)
    fails_power = chance.random() < 0.5
    written = offsets

    def before_call(name: str, path: str, offset: int, size: int) -> None:
        nonlocal calls, left
        if name in {"open", "read", "list"}:
            return
        calls += 1
        if calls == crash_at:
            left_image = storage.sample(chance) if fails_power else storage.image()
            left = Crash(left_image, written, copy.deepcopy(ledger))

    storage.before_call = before_call
    async with open_transactions(
        storage, OPTIONS, clock=clock, offsets=offsets, transaction_check_max=MOST_CHECKS
    ) as run:
        assert not (wrong := verify(run, ledger)), f"seed {seed}, life {number}: {wrong}"
        for step in range(STEPS):
            action = chance.choice(["begin", "begin", "commit", "roll back", "round", "both", "plain", "write offsets"])
            if action == "begin":
                name = f"{number}-{step}"
                ledger.asked.add(name)
                await run.store.durable(run.begin(name, "CHECK_IMMUNITY_TIME_IN_SECONDS\x01700\x02" * (step % 3 == 0)))
                ledger.begun.add(name)
            elif action in {"commit", "roll back", "both"}:
                names = run.open_names()
                chosen = chance.sample(names, min(len(names), 2 if action == "both" else 1))
                ends = []
                for name in chosen:
                    how = action if action != "both" else chance.choice(["commit", "roll back"])
                    if ledger.end_asked.setdefault(name, how) != how:
                        continue
                    ends.append((name, how, run.end(name, commit=how == "commit")))
                for name, how, end in ends:
                    await run.store.durable(end)
                    ledger.ended[name] = how
            elif action == "round":
                await clock.advance(chance.choice([5.0, 31.0, 700.0]))
                await run.checks.round()
            elif action == "plain":
                await run.store.durable(
                    run.store.put(StoredMessage("bills", 0, b"x" * chance.randrange(900))).end_offset
                )
            else:
                written = offsets_text(run)
            await idle()
        assert not (wrong := verify(run, ledger)), f"seed {seed}, life {number}, at its end: {wrong}"
        if left is None:
            left = Crash(storage.image(), written, copy.deepcopy(ledger))
    return left


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_a_transaction_ends_in_one_way_whenever_the_broker_is_killed(seed: int) -> None:
    with inline_pools():
        image, offsets, ledger = None, None, Ledger()
        for number in range(LIVES):
            crash = await live(seed, number, image, offsets, ledger)
            image, offsets, ledger = crash.image, crash.offsets, crash.ledger


@pytest.mark.parametrize("first_in_log", [True, False])
@pytest.mark.parametrize("how", ["commit", "roll back", "check", "give up"])
async def test_an_end_that_is_cut_off_in_the_log_happened_whole_or_not_at_all(how: str, first_in_log: bool) -> None:
    """A kill within the write: of the message and the mark behind it, any number of bytes is in the log."""
    storage = CrashableStorage()
    images: list[Image] = []

    def before_call(name: str, path: str, offset: int, size: int) -> None:
        if name == "sync" and "/commitlog/" in path:
            images.append(storage.image())

    with inline_pools():
        async with open_transactions(storage, OPTIONS, transaction_check_max=1) as run:
            if not first_in_log:
                await run.store.durable(run.store.put(StoredMessage("bills", 0, b"x")).end_offset)
            begin = end = run.begin("t")
            await run.store.durable(end)
            await idle()
            if how == "give up":
                await run.clock.advance(31)
                await run.checks.round()
                begin = run.store.max_commit_log_offset
            storage.before_call = before_call
            if how in {"commit", "roll back"}:
                await run.store.durable(run.end("t", commit=how == "commit"))
            else:
                await run.clock.advance(31)
                await run.checks.round()
            end = run.store.max_commit_log_offset
            storage.before_call = None
        (image, *_) = images
        path = next(path for path in image.files if "/commitlog/" in path)
        seen = set()
        every = 1 if os.environ.get("ROCKETBOX_TESTS") == "all" else 83
        for cut in sorted({*range(begin, end, every), end}):
            content = image.files[path]
            left = Image({**image.files, path: content[:cut] + bytes(len(content) - cut)}, image.directories)
            for _ in range(2):  # and again, after a clean stop and without one
                storage = CrashableStorage(left)
                async with open_transactions(storage, OPTIONS) as run:
                    places = (run.open_names().count("t"), run.names().count("t"), run.given_up().count("t"))
                    assert sum(places) == 1 or (how == "roll back" and places == (0, 0, 0)), (cut, places)
                    seen.add(places)
                    left = storage.image()
    whole = {"commit": (0, 1, 0), "roll back": (0, 0, 0), "check": (1, 0, 0), "give up": (0, 0, 1)}
    assert seen == {(1, 0, 0), whole[how]}, "the crash came before it, and after it"


@pytest.mark.parametrize("stops", [False, True], ids=["", "and it is stopped in order before"])
@pytest.mark.parametrize("how", ["commit", "check"])
async def test_an_end_whose_mark_is_cut_off_happens_once_though_its_half_message_can_be_read_only_later(
    how: str, stops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start cannot write the mark that is missing: it does not know which transaction it is of."""
    storage = CrashableStorage()
    images: list[Image] = []

    def before_call(name: str, path: str, offset: int, size: int) -> None:
        if name == "sync" and "/commitlog/" in path:
            images.append(storage.image())

    with inline_pools():
        async with open_transactions(storage, OPTIONS) as run:
            await run.store.durable(run.begin("t"))
            await idle()
            body = run.messages(TRANS_HALF_TOPIC)[0].commit_log_offset + 91
            storage.before_call = before_call
            if how == "commit":
                await run.store.durable(run.end("t", commit=True))
            else:
                await run.clock.advance(31)
                await run.checks.round()
            await idle()
            mark = run.messages(TRANS_OP_HALF_TOPIC)[0].commit_log_offset
            storage.before_call = None
        path = next(path for path in images[0].files if "/commitlog/" in path)
        content = images[0].files[path]
        left = Image({**images[0].files, path: content[:mark] + bytes(len(content) - mark)}, images[0].directories)
        read, bad = CommitLog.read, [body]

        def fails_there(log: CommitLog, offset: int, size: int) -> bytes:
            if any(offset <= place < offset + size for place in bad):
                raise OSError(errno.EIO, "Input/output error")
            return read(log, offset, size)

        monkeypatch.setattr(CommitLog, "read", fails_there)
        storage, offsets = CrashableStorage(left), None
        open_then = [] if how == "commit" else ["t"]
        if stops:
            async with open_transactions(storage, OPTIONS) as run:
                assert run.open_names() == open_then
                await run.store.durable(run.begin("other"))
                await run.store.durable(run.end("other", commit=False))
                offsets = offsets_text(run)
            bad.clear()
        async with open_transactions(storage, OPTIONS, offsets=offsets) as run:
            if not stops:
                assert run.open_names() == open_then
                bad.clear()
            await run.clock.advance(31)
            await run.checks.round()
            assert (run.open_names(), run.names().count("t")) == (open_then, how == "commit")


@pytest.mark.parametrize("has_room", [False, True], ids=["stopped without room", "room is made just before the stop"])
async def test_a_mark_for_which_there_was_no_room_is_written_by_a_later_start(has_room: bool) -> None:
    storage = FaultyStorage()
    with inline_pools():
        async with open_transactions(storage, OPTIONS) as run:
            await run.store.durable(run.begin("t"))
            await idle()
            left = storage.kept_before_sync("/commitlog/")
            await run.store.durable(run.end("t", commit=True))
            await idle()
            left.wipe(LOG, run.messages(TRANS_OP_HALF_TOPIC)[0].commit_log_offset)
            offsets = offsets_text(run)
        left.full = True
        clock = VirtualClock(settle=idle)
        async with open_transactions(left, OPTIONS, clock=clock, offsets=offsets) as run:
            await idle()
            assert (run.open_names(), run.names()) == ([], ["t"])
            assert run.store.refusal is not None
            offsets = offsets_text(run)
            if has_room:
                left.heal()
        left.heal()
        for _ in range(2):  # and the one behind it, which finds the mark
            async with open_transactions(left, OPTIONS, clock=clock, offsets=offsets) as run:
                await clock.advance(31)
                await run.checks.round()
                assert (run.open_names(), run.asked(run.members.member), run.names()) == ([], [], ["t"])
                assert [each.body for each in run.messages(TRANS_OP_HALF_TOPIC)] == [b"0"]
                offsets = offsets_text(run)


pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]
