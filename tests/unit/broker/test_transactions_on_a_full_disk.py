"""A disk that is full at any moment of transactions: each is open, or ended in one way and once."""

from __future__ import annotations

import errno
import os
import random

import anyio
import pytest

from rocketbox.broker.store.options import StoreOptions
from rocketbox.errors import StoreFullError, StoreStalledError
from rocketbox.protocol.codes import TRANS_OP_HALF_TOPIC
from rocketbox.protocol.stored_message import StoredMessage
from tests.support.broker.open_transactions import OpenTransactions, offsets_text, open_transactions
from tests.support.broker.transaction_ledger import Ledger, verify
from tests.support.clocks import VirtualClock, idle
from tests.support.store.crash_checks import inline_pools
from tests.support.store.store_tools import FaultyStorage, os_error

OPTIONS = StoreOptions(
    mapped_file_size_commit_log=4096,
    mapped_file_size_consume_queue=400,
    max_hash_slot_num=16,
    max_index_num=64,
    allocate_ahead=512,
)
SEEDS = 300 if os.environ.get("ROCKETBOX_TESTS") == "all" else 8
LIVES = 3  # of a broker, for each seed
STEPS = 30
MOST_CHECKS = 3

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


async def begin(run: OpenTransactions, ledger: Ledger, name: str, size: int) -> None:
    ledger.asked.add(name)
    try:
        await run.store.durable(run.begin(name, body=b"x" * size))
        ledger.begun.add(name)
    except StoreFullError:
        ledger.refused.add(name)
    except StoreStalledError:
        pass  # it may be stored when there is room


async def end(run: OpenTransactions, ledger: Ledger, name: str, how: str) -> None:
    """End one; who is told that the disk is full may end it in the other way then."""
    before = ledger.end_asked.get(name)
    ledger.end_asked[name] = how
    try:
        await run.store.durable(run.end(name, commit=how == "commit"))
        ledger.ended[name] = how
    except StoreFullError:
        if before is None:
            del ledger.end_asked[name]
        else:
            ledger.end_asked[name] = before
        assert run.open_names().count(name) == 1, "what was taken back is open"
    except StoreStalledError:
        pass


def fill_up(storage: FaultyStorage, chance: random.Random) -> None:
    if chance.random() < 0.5:
        storage.full = True
    else:  # in the middle of what is written together
        storage.fail(os_error(errno.ENOSPC), "write", "create", where="commitlog", after=chance.randrange(4))


async def there_is_room(storage: FaultyStorage, run: OpenTransactions) -> None:
    storage.heal()
    for _ in range(100):
        if run.store.refusal is None:
            return
        await run.clock.advance(1)
        await idle()
    raise AssertionError(f"it takes no messages, though there is room: {run.store.refusal}")


async def check_round(storage: FaultyStorage, run: OpenTransactions) -> None:
    """A round of checks; there is room before its end if what it has put waits for that."""

    async def ask() -> None:
        try:
            await run.checks.round()
        except StoreFullError:
            assert run.store.refusal is not None
        ended.set()

    ended = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await idle()
        if not ended.is_set():
            await there_is_room(storage, run)


async def live(
    seed: int, number: int, storage: FaultyStorage, offsets: str | None, ledger: Ledger
) -> tuple[FaultyStorage, str | None]:
    """One life of a broker, which ends in a stop or a kill while the disk is full or has room; what is left then."""
    chance = random.Random(f"{seed} {number}")
    clock = VirtualClock(settle=idle)
    clock.now = number * 10_000.0
    written, killed = offsets, None
    async with open_transactions(
        storage, OPTIONS, clock=clock, offsets=offsets, transaction_check_max=MOST_CHECKS
    ) as run:
        assert not (wrong := verify(run, ledger)), f"seed {seed}, life {number}: {wrong}"
        kill_at = chance.randrange(STEPS) if chance.random() < 0.5 else STEPS
        for step in range(STEPS):
            if step == kill_at:
                killed = storage.copy()
                break
            action = chance.choice(
                ["begin", "begin", "end", "end", "round", "plain", "full", "room", "room", "write offsets"]
            )
            if action == "begin":
                await begin(run, ledger, f"{number}-{step}", chance.choice([10, 300, 1200]))
            elif action == "end" and (names := run.open_names()):
                await end(run, ledger, chance.choice(names), chance.choice(["commit", "roll back"]))
            elif action == "round":
                await clock.advance(chance.choice([5.0, 31.0]))
                await check_round(storage, run)
            elif action == "plain":
                try:
                    put = run.store.put(StoredMessage("bills", 0, b"x" * chance.randrange(900)))
                    await run.store.durable(put.end_offset)
                except (StoreFullError, StoreStalledError):
                    pass
            elif action == "full":
                fill_up(storage, chance)
            elif action == "room":
                await there_is_room(storage, run)
            elif action == "write offsets":
                written = offsets_text(run)
            await idle()
            if run.store.refusal is None:  # else some that were told so may be stored still
                assert not (wrong := verify(run, ledger)), f"seed {seed}, life {number}, step {step}, {action}: {wrong}"
        if killed is None and chance.random() < 0.5:
            await there_is_room(storage, run)
            await begin(run, ledger, f"{number}-last", 10)
            assert f"{number}-last" in ledger.begun
            written = offsets_text(run)
    left = FaultyStorage()
    left.take(killed or storage)
    ledger.refused.clear()  # bytes that were taken back may be on the disk still
    return left, written


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_a_transaction_ends_in_one_way_though_the_disk_is_full(seed: int) -> None:
    with inline_pools():
        storage, offsets, ledger = FaultyStorage(), None, Ledger()
        for number in range(LIVES):
            storage, offsets = await live(seed, number, storage, offsets, ledger)


@pytest.mark.parametrize("how", ["commit", "roll back"])
@pytest.mark.parametrize("call", ["write", "create"])
async def test_an_end_for_which_there_is_no_room_happens_whole_when_there_is_some(how: str, call: str) -> None:
    """One that cannot be written is refused, and nothing of it is left; one that is begun to be written waits."""
    storage = FaultyStorage()
    with inline_pools():
        async with open_transactions(storage, OPTIONS, clock=VirtualClock(settle=idle)) as run:
            await run.store.durable(run.begin("t"))
            if call == "create":  # the end needs a new file
                room = OPTIONS.mapped_file_size_commit_log - run.store.max_commit_log_offset - 200
                await run.store.durable(run.store.put(StoredMessage("bills", 0, b"x" * room)).end_offset)
            storage.fail(os_error(errno.ENOSPC), call, where="commitlog")
            with pytest.raises(StoreFullError if call == "create" else StoreStalledError):
                await run.store.durable(run.end("t", commit=how == "commit"))
            assert (run.names(), run.messages(TRANS_OP_HALF_TOPIC)) == ([], [])
            await there_is_room(storage, run)
            if call == "create":
                assert run.open_names() == ["t"]
                await run.store.durable(run.end("t", commit=how == "commit"))
            assert (run.open_names(), run.names()) == ([], ["t"] if how == "commit" else [])
            assert len(run.messages(TRANS_OP_HALF_TOPIC)) == 1
