"""What the store's tests share: small files, messages, and copies of a store in another state."""

from __future__ import annotations

import dataclasses
import errno
import os
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import anyio

from rocketbox.broker.store.checkpoint import Checkpoint
from rocketbox.broker.store.dispatch import Derived
from rocketbox.broker.store.files import FileRun, OpenFiles
from rocketbox.broker.store.log_scan import LogScan
from rocketbox.broker.store.message_store import MessageStore
from rocketbox.broker.store.options import StoreOptions
from rocketbox.broker.store.records import parse_record
from rocketbox.clock import RealClock
from rocketbox.message import decode_properties
from rocketbox.protocol.stored_message import StoredMessage, decode_message
from rocketbox.protocol.tags import tags_code
from rocketbox.storage.file_system import Storage, StorageFile
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.clocks import idle

ROOT = "/store"
SMALL = StoreOptions(
    mapped_file_size_commit_log=4096,
    mapped_file_size_consume_queue=400,
    max_hash_slot_num=16,
    max_index_num=64,
    allocate_ahead=1024,
    flush_consume_queue_thorough_interval=1000,
)
HOURLY = dataclasses.replace(SMALL, verify_interval=3_600_000)
WAITING = StoreOptions(
    mapped_file_size_commit_log=1 << 20,
    mapped_file_size_consume_queue=20_000,
    max_hash_slot_num=100,
    max_index_num=1000,
    max_message_size=10_000,
    allocate_ahead=0,
)
"""For messages that wait: hundreds of them in a file, and none is allocated ahead."""
CHECKPOINT = f"{ROOT}/checkpoint"
MOST_SECONDS = 60  # that threads of a busy machine may take for what is quick
LOG = f"{ROOT}/commitlog/{0:020d}"


LONGEST_SETTLE = 0.5  # seconds of this process's own time: a busy machine lets all of its threads wait


class ManualClock(RealClock):
    """Time that stands still until :meth:`advance`: tasks that run in intervals run when a test says so.

    ``threads``: whether there are any; without (under ``inline_pools``) it is quick to see when all tasks wait.
    """

    def __init__(self, *, threads: bool = True) -> None:
        super().__init__(random.Random(1))
        self._threads = threads
        self.now_ms = 1_700_000_000_000
        self._sleepers: list[tuple[float, anyio.Event]] = []

    def time_ms(self) -> int:
        return self.now_ms

    def monotonic(self) -> float:
        return self.now_ms / 1000

    def hour(self) -> int:
        """The local hour of the day."""
        return datetime.fromtimestamp(self.now_ms / 1000, UTC).astimezone().hour

    async def sleep(self, seconds: float) -> None:
        due = anyio.Event()
        self._sleepers.append((self.monotonic() + seconds, due))
        await due.wait()

    async def advance(self, seconds: float) -> None:
        """Let that much time go by; returns when those whose time had come sleep again, or do not seem to."""
        self.now_ms += round(seconds * 1000)
        sleeping = len(self._sleepers)
        for sleeper in list(self._sleepers):
            if sleeper[0] <= self.monotonic():
                self._sleepers.remove(sleeper)
                sleeper[1].set()
        if not self._threads:
            await idle()
            return
        await settle()
        # They do their work in threads, which a busy machine may let wait; one that fails, or was a time limit, does
        # not sleep again.
        give_up = time.process_time() + LONGEST_SETTLE
        while len(self._sleepers) < sleeping and time.process_time() < give_up:
            await settle()


class JumpingClock(ManualClock):
    """Its wall clock is ``jump_ms`` ahead."""

    jump_ms = 0

    def time_ms(self) -> int:
        return self.now_ms + self.jump_ms


async def settle() -> None:
    """Let tasks that can go on do so, threads' work included."""
    for _ in range(20):
        await anyio.lowlevel.checkpoint()
    await anyio.to_thread.run_sync(lambda: None)
    for _ in range(20):
        await anyio.lowlevel.checkpoint()


async def until(condition: Callable[[], object], clock: ManualClock | None = None) -> None:
    """Let tasks and threads work, and with a clock time pass, until it has come about."""
    deadline = time.monotonic() + MOST_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        await settle()
        if clock is not None:
            await clock.advance(1)


def message(
    number: int, *, topic: str = "orders", queue_id: int = 0, size: int = 20, **properties: str
) -> StoredMessage:
    """Message ``number``: its body begins with it, UNIQ_KEY, KEYS and TAGS are made of it."""
    named = {"UNIQ_KEY": f"{number:032X}", "KEYS": f"k{number} all", "TAGS": f"t{number % 3}", **properties}
    text = "".join(f"{name}\x01{value}\x02" for name, value in named.items())
    return StoredMessage(topic, queue_id, (b"%d " % number).ljust(size, b"."), text.encode(), born_timestamp_ms=number)


def number_of(record: bytes) -> int:
    """The number of the message in a record."""
    return int(decode_message(record)[0].body.split()[0])


def numbers(store: MessageStore, topic: str = "orders", queue_id: int = 0) -> list[int]:
    """The numbers of all readable messages of a queue.

    Checks that each is what :func:`message` made of its number, that queue offsets have no gap, and that each unit of
    the queue has the offset, the size and the tags code of its record.
    """
    found = []
    offset = store.min_offset(topic, queue_id)
    while offset < store.max_offset(topic, queue_id):
        result = store.get(topic, queue_id, offset)
        assert result.records, f"nothing at {offset} of {topic}/{queue_id}: {result}"
        for record in result.records:
            decoded = decode_message(record)[0]
            assert (decoded.topic, decoded.queue_id, decoded.queue_offset) == (topic, queue_id, offset)
            number = number_of(record)
            assert decoded.body == (b"%d " % number).ljust(len(decoded.body), b".")
            assert decoded.born_timestamp_ms == number
            sent = decode_properties(message(number).properties)
            assert sent.items() <= decode_properties(decoded.raw_properties).items()
            queue = store._derived.find(topic, queue_id)
            assert queue is not None
            assert queue.unit(offset) == (decoded.commit_log_offset, len(record), tags_code(sent["TAGS"]))
            offset += 1
            found.append(number)
        assert offset == result.next_begin_offset
    return found


async def found_by_key(
    store: MessageStore, key: str, most: int = 9, topic: str = "orders", begin_ms: int = 0, end_ms: int = 1 << 60
) -> list[int]:
    """The numbers of the messages that a query by key finds."""
    return [number_of(each) for each in (await store.query_keys(topic, key, most, begin_ms, end_ms)).records]


async def check_index(store: MessageStore, *numbers: int, topic: str = "orders", complete: bool = True) -> None:
    """Check that the messages of these numbers, and when they are ``complete`` no others, are found by keys and tag."""
    for number in numbers:
        for key in (f"k{number}", f"{number:032X}"):
            assert await found_by_key(store, key, topic=topic) == [number]
    if not complete:
        return
    newest_first = sorted(numbers, reverse=True)
    most = store.options.max_msgs_num_batch
    assert await found_by_key(store, "all", most, topic) == newest_first[:most]
    for tag in range(3):
        tagged = [number for number in newest_first if number % 3 == tag]
        assert await found_by_key(store, f"T#t{tag}", most, topic) == tagged[:most]


@asynccontextmanager
async def opened(
    storage: Storage, options: StoreOptions = SMALL, *, clock: ManualClock | None = None, **arguments: Any
) -> AsyncIterator[MessageStore]:
    async with MessageStore(ROOT, options, clock=clock or ManualClock(), storage=storage, **arguments) as store:
        yield store


async def put_all(store: MessageStore, *messages: StoredMessage) -> list[int]:
    """Put each and wait until it is durable; returns where each record begins, and the end of the last."""
    places = []
    for each in messages:
        result = store.put(each)
        await store.durable(result.end_offset)
        places.append(result.commit_log_offset)
    return [*places, result.end_offset]


async def killed(*messages: StoredMessage, options: StoreOptions = SMALL) -> tuple[MemoryStorage, list[int]]:
    """The files of a store that took messages one by one and was killed, and where the records begin (and end)."""
    storage = MemoryStorage()
    async with opened(storage, options) as store:
        places = await put_all(store, *messages)
        return storage.copy(), places


async def stopped(*messages: StoredMessage, options: StoreOptions = SMALL) -> tuple[MemoryStorage, list[int]]:
    """The same after a clean stop."""
    storage = MemoryStorage()
    async with opened(storage, options) as store:
        places = await put_all(store, *messages)
    return storage.copy(), places


def contents(storage: MemoryStorage, path: str) -> bytes:
    file = storage.open(path)
    return file.read(0, file.size())


def overwrite(storage: MemoryStorage, path: str, offset: int, data: bytes) -> None:
    storage.open(path).write(offset, [data])


def flip(storage: MemoryStorage, path: str, offset: int, bit: int = 0) -> None:
    """Turn one bit of a file over."""
    (byte,) = storage.open(path).read(offset, 1)
    overwrite(storage, path, offset, bytes([byte ^ 1 << bit]))


def forget_sync(storage: MemoryStorage, offset: int, options: StoreOptions = SMALL) -> None:
    """Have the checkpoint say that the log is synced, and derived from, up to the record at ``offset`` only."""
    value = Checkpoint.decode(contents(storage, CHECKPOINT))
    assert value.marked
    derived = Derived(OpenFiles(storage), "/elsewhere", options)
    run = FileRun(OpenFiles(storage), f"{ROOT}/commitlog", options.mapped_file_size_commit_log, "")
    run.load()
    for place, record in LogScan(run, run.start):
        if place < min(offset, value.queued_offset):
            found = parse_record(record)
            derived.queue(found.topic, found.queue_id).append(place, len(record), 0)
    value = dataclasses.replace(
        value,
        synced_offset=min(value.synced_offset, offset),
        queued_offset=min(value.queued_offset, offset),
        indexed_offset=min(value.indexed_offset, offset),
        queue_ends=derived.queue_ends,
    )
    overwrite(storage, CHECKPOINT, 0, value.encode())


def expire_first_file(storage: MemoryStorage) -> None:
    """Remove the first file of the log as retention does, with the place where it begins now in the checkpoint."""
    value = Checkpoint.decode(contents(storage, CHECKPOINT))
    overwrite(storage, CHECKPOINT, 0, dataclasses.replace(value, log_start=4096).encode())
    storage.remove(LOG)


def remove_tree(storage: MemoryStorage, path: str) -> None:
    """Remove all files below a directory."""
    for name in storage.list_directory(path):
        child = f"{path}/{name}"
        if storage.is_directory(child):
            remove_tree(storage, child)
        else:
            storage.remove(child)


@dataclass
class _Fault:
    error: BaseException
    calls: tuple[str, ...]
    where: str
    times: int
    after: int


class FaultyStorage(MemoryStorage):
    """Calls of any kind fail as :meth:`fail` says; a disk that is full as :attr:`full` says."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        """Nothing can be made, and nothing written behind what is written or set aside."""
        self.failed = 0
        """How many calls failed."""
        self._faults: list[_Fault] = []
        self._used: dict[str, int] = {}
        self._kept: tuple[str, FaultyStorage] | None = None

    def fail(self, error: BaseException, *calls: str, where: str = "", times: int = 1 << 30, after: int = 0) -> None:
        """Let the next ``times`` calls of these names, of paths that hold ``where``, raise ``error``.

        ``after`` so many that go well.
        """
        self._faults.append(_Fault(error, calls, where, times, after))

    def take(self, other: MemoryStorage) -> None:
        super().take(other)
        for path, content in self._files.items():
            self._used[path] = (max(content.pages, default=-1) + 1) * content.PAGE

    def kept_before_sync(self, where: str) -> FaultyStorage:
        """A disk as this one will be just before the next sync of a path that holds ``where``: what a kill leaves."""
        self._kept = where, FaultyStorage()
        return self._kept[1]

    def wipe(self, path: str, offset: int) -> None:
        """Let a file hold zeros from there on, for which there is no room on a full disk."""
        content = self._files[path]
        content.write(offset, bytes(content.size - offset))
        self._used[path] = offset

    def heal(self) -> None:
        self._faults.clear()
        self.full = False

    def begin_call(self, name: str, path: str) -> None:
        if self._kept is not None and name == "sync" and self._kept[0] in path:
            self._kept[1].take(self)
            self._kept = None
        for fault in self._faults:
            if fault.times > 0 and name in fault.calls and fault.where in path:
                if fault.after:
                    fault.after -= 1
                    continue
                fault.times -= 1
                self.failed += 1
                raise fault.error
        if self.full and (name == "create" or (name == "make_directories" and path not in self._directories)):
            self._no_room()

    def record(self, name: str, path: str, offset: int = 0, size: int = 0) -> None:
        if name in {"write", "allocate"}:
            if self.full and offset + size > self._used.get(path, 0):
                self._no_room()
            self._used[path] = max(self._used.get(path, 0), offset + size)
        super().record(name, path, offset, size)

    def _no_room(self) -> None:
        self.failed += 1
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class SteppingStorage(FaultyStorage):
    """Keeps a copy of all files as they were before each change, in ``states``: where a process may be killed."""

    def __init__(self) -> None:
        super().__init__()
        self.states: list[MemoryStorage] = []

    def record(self, name: str, path: str, offset: int = 0, size: int = 0) -> None:
        if not name.startswith("sync"):
            self.states.append(self.copy())
        super().record(name, path, offset, size)


async def states_of_a_start(storage: MemoryStorage, options: StoreOptions = SMALL) -> list[MemoryStorage]:
    """All states in which a process that is killed while it opens this store, and just after, may leave it."""
    stepping = SteppingStorage()
    stepping.take(storage)
    async with opened(stepping, options):
        return [*stepping.states, stepping.copy()]


class FailingStorage(MemoryStorage):
    """Raises ``error`` from every write or sync of paths that hold ``where``, once ``failing`` is set."""

    def __init__(self, error: OSError, *, calls: set[str], where: str = "commitlog") -> None:
        super().__init__()
        self.error = error
        self.failing = False
        self._calls = calls
        self._where = where

    def record(self, name: str, path: str, offset: int = 0, size: int = 0) -> None:
        if self.failing and name in self._calls and self._where in path:
            raise self.error
        super().record(name, path, offset, size)


def os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


__all__ = [
    "CHECKPOINT",
    "LOG",
    "ROOT",
    "SMALL",
    "WAITING",
    "FailingStorage",
    "FaultyStorage",
    "JumpingClock",
    "ManualClock",
    "SteppingStorage",
    "StorageFile",
    "check_index",
    "contents",
    "expire_first_file",
    "flip",
    "forget_sync",
    "found_by_key",
    "killed",
    "message",
    "number_of",
    "numbers",
    "opened",
    "os_error",
    "overwrite",
    "put_all",
    "remove_tree",
    "settle",
    "states_of_a_start",
    "stopped",
    "until",
]


async def passed(store: MessageStore, clock: ManualClock) -> None:
    """Wait for the end of the next pass."""
    before = store.upkeep.passes
    await settle()
    for _ in range(50):
        await clock.advance(3600)
        if store.upkeep.passes > before:
            return
    raise AssertionError("no pass came to its end")
