"""Short workloads of a store on a storage that may crash at any call, and what must be true after each crash.

:class:`Machine` runs the steps of a workload; :class:`CrashTester` opens what a crash leaves and checks it. Equal disks
are opened once, and disks that recovery makes equal are looked at once.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from rocketbox.broker.delay_levels import park
from rocketbox.broker.store.config_file import ConfigFile
from rocketbox.broker.store.message_store import MessageStore
from rocketbox.broker.store.options import FlushDiskType, StoreOptions
from rocketbox.broker.store.records import find_keys
from rocketbox.clock import Clock
from rocketbox.protocol.stored_message import StoredMessage
from tests.support.clocks import VirtualClock, idle
from tests.support.store.crash_checks import Ledger, Mark, Outcome, observe, verify
from tests.support.store.crashable_storage import CrashableStorage, Image
from tests.support.store.store_tools import ROOT, message

__all__ = ["ASYNC", "STEPS", "SYNC", "CrashTester", "Machine"]

SYNC = StoreOptions(
    mapped_file_size_commit_log=2048,
    mapped_file_size_consume_queue=60,
    max_hash_slot_num=4,
    max_index_num=8,
    allocate_ahead=512,
    delete_when=";".join(map(str, range(24))),
    delete_commit_log_files_interval=0,
)
ASYNC = dataclasses.replace(SYNC, flush_disk_type=FlushDiskType.ASYNC_FLUSH)
TABLES = tuple(f"{ROOT}/config/{name}.json" for name in ("topics", "consumerOffset"))


class Machine:
    """A store that runs on a storage, with a ledger of what it was given. ``on_point`` is called at each call."""

    def __init__(self, options: StoreOptions, storage: CrashableStorage | None = None) -> None:
        self.options = options
        self.clock = VirtualClock(settle=idle)
        self.storage = storage or CrashableStorage()
        self.ledger = Ledger()
        self.on_point: Callable[[], object] | None = None
        self.storage.before_call = self._before_call
        self.number = 0
        self.store: MessageStore
        self._stack = AsyncExitStack()

    def _before_call(self, name: str, path: str, offset: int, size: int) -> None:
        if self.on_point is not None and name not in {"open", "read", "list"}:
            self.on_point()
        self.ledger.on_call(name, path, offset, size)
        if name == "remove" and "/commitlog/" in path:
            self.ledger.on_removal(path, self.options, self.clock.time_ms())

    async def open(self) -> None:
        self.store = make_store(self.options, self.storage, self.clock)
        await self._stack.enter_async_context(self.store)
        self.ledger.watch(self.store)
        self.ledger.reopened(self.store.max_commit_log_offset)

    async def close(self) -> None:
        await self._stack.aclose()

    async def durable(self, end: int) -> None:
        await self.store.durable(end)
        await idle()

    # --- steps ---

    async def put(self) -> None:
        await self.durable(self.store.put(self._message()).end_offset)

    async def batch(self) -> None:
        await self.durable(self.store.put_batch([self._message(), self._message()]).end_offset)

    async def together(self) -> None:
        """Two at once, in two queues: one group commit."""
        self.store.put(self._message(topic="bills", queue_id=1))
        await self.durable(self.store.put(self._message()).end_offset)

    async def run(self) -> None:
        """Three in a run, into two queues; what a file of the log has no room for goes one by one."""
        messages = [self._message(topic=topic) for topic in ("orders", "bills", "orders")]
        waiting, end = list(messages), 0
        while waiting:
            lanes = [self.store.lane(dataclasses.replace(message, body=b"", properties=b"")) for message in waiting]
            taken = self.store.put_run(
                [
                    (lane, message.born_timestamp_ms, message.body, message.properties, find_keys(message.properties))
                    for lane, message in zip(lanes, waiting, strict=True)
                    if lane is not None
                ],
                waiting[0].born_host,
            )
            end = taken.end_offset
            del waiting[: len(taken.places)]
            if waiting and not taken.places:
                end = self.store.put(waiting.pop(0)).end_offset
        await self.durable(end)

    async def large(self) -> None:
        """Two of these, or one and a few small ones, need a new file."""
        await self.durable(self.store.put(self._message(size=900)).end_offset)

    async def delayed(self) -> None:
        own = self._message()
        topic, queue_id, properties = park(own.topic, own.queue_id, bytes(own.properties), 1)
        parked = dataclasses.replace(own, topic=topic, queue_id=queue_id, properties=properties)
        await self.durable(self.store.put(parked).end_offset)

    async def topic(self) -> None:
        """A topic is created, and the first message to it sent."""
        name = f"new{self.number}"
        self._persist(TABLES[0], f'{{"topicConfigTable": {{"{name}": {{}}}}}}')
        await self.durable(self.store.put(self._message(topic=name)).end_offset)

    async def offsets(self) -> None:
        self.number += 1
        self._persist(TABLES[1], f'{{"offsetTable": {{"orders@desk": {{"0": {self.number}}}}}}}')

    async def flush(self) -> None:
        """So much time that log, queues and index are written."""
        await self.clock.advance(12)

    async def expire(self) -> None:
        """All expires, and the files of the log that are full are removed."""
        self.clock.now += self.options.file_reserved_ms / 1000
        await self.clock.advance(12)

    async def stop(self) -> None:
        await self.close()
        await self.open()

    def _message(self, **changes: Any) -> StoredMessage:
        self.number += 1
        return message(self.number, **changes)

    def _persist(self, path: str, text: str) -> None:
        self.ledger.begin_table(path, text)
        ConfigFile(Path(path), self.storage).persist([text.encode()])
        self.ledger.end_table(path)


STEPS: Mapping[str, Callable[[Machine], Awaitable[None]]] = {
    name: getattr(Machine, name)
    for name in ("put", "batch", "together", "run", "large", "delayed", "topic", "offsets", "flush", "expire", "stop")
}


def make_store(options: StoreOptions, storage: CrashableStorage, clock: Clock) -> MessageStore:
    return MessageStore(ROOT, options, clock=clock, storage=storage)


class CrashTester:
    """Opens the disks that crashes leave. ``failures`` are texts, each with the workload that led there."""

    def __init__(self, options: StoreOptions) -> None:
        self.options = options
        self.synced_only = options.flush_disk_type is FlushDiskType.ASYNC_FLUSH
        self.failures: list[str] = []
        self.counts: Counter[str] = Counter()
        self._opened: dict[Any, tuple[Outcome | str, Image | None]] = {}
        self._gone_on: dict[Any, list[str]] = {}
        self._checked: set[Any] = set()
        self._known: dict[Any, tuple[str, ...]] = {}

    async def check(
        self, image: Image, ledger: Ledger, mark: Mark, name: str, *, again: random.Random | None = None
    ) -> None:
        """Open the image as a broker would after a crash at ``mark``, look at all, put one more and open it again.

        With ``again`` opening it crashes too, once at one of its calls, and is repeated.
        """
        key = image.key
        self.counts["states"] += 1
        if (key, mark) in self._checked:
            return
        self._checked.add((key, mark))
        if key not in self._opened:
            self.counts["disks"] += 1
            crashes: list[Image] = []
            self._opened[key] = await self._open(image, again, crashes)
            for crash in crashes:
                self.counts["crashes of recovery"] += 1
                await self.check(crash, ledger, mark, f"{name}, and another crash while that is recovered")
        outcome, after = self._opened[key]
        if isinstance(outcome, str) or after is None:
            wrong = [str(outcome)]
        else:
            wrong = verify(outcome, ledger, mark, synced_only=self.synced_only)
            wrong += _tables(image, ledger, mark)
            if after.key not in self._gone_on:
                self.counts["recovered"] += 1
                self._gone_on[after.key] = await self._go_on(after, outcome)
            wrong += self._gone_on[after.key]
        if wrong:
            self.failures.append(f"{name}: " + "\n    ".join(wrong))

    async def _open(
        self, image: Image, again: random.Random | None, crashes: list[Image]
    ) -> tuple[Outcome | str, Image | None]:
        storage = CrashableStorage(image)
        if again is not None:
            seen: set[Any] = set()

            def crash(call: str, path: str, offset: int, size: int) -> None:
                if call not in {"open", "read", "list"}:
                    left = storage.sample(again)
                    if left.key not in seen:
                        seen.add(left.key)
                        crashes.append(left)

            storage.before_call = crash
        try:
            async with self._store(storage) as store:
                storage.before_call = None
                return await observe(store, self._known), storage.image()
        except Exception as error:
            return f"it does not open: {type(error).__name__}: {error}", None

    async def _go_on(self, image: Image, before: Outcome) -> list[str]:
        """One more put, then a kill or a stop, and all is there as before with one more."""
        storage = CrashableStorage(image)
        try:
            async with self._store(storage) as store:
                if (again := await observe(store, self._known)) != before:
                    return [f"opened again it has {again} instead of {before}"]
                await store.durable(store.put(message(999_999)).end_offset)
                await idle()
                more = await observe(store, self._known)
                killed = storage.image()
            if len(more.records) != len(before.records) + 1 or more.wrong or more.trouble:
                return [f"one more put leaves {more}"]
            if [each for each in more.records if each.body[:6] != b"999999"] != list(before.records):
                return [f"with one more it has {more}, before {before}"]
            for how, left in (("killed", killed), ("stopped", storage.image())):
                async with self._store(CrashableStorage(left)) as store:
                    if (last := await observe(store, self._known)) != more:
                        return [f"{how} and opened again it has {last} instead of {more}"]
        except Exception as error:
            return [f"it does not go on: {type(error).__name__}: {error}"]
        return []

    def _store(self, storage: CrashableStorage) -> MessageStore:
        return make_store(self.options, storage, VirtualClock(settle=idle))


def _tables(image: Image, ledger: Ledger, mark: Mark) -> list[str]:
    """Each table is the last one written, or one begun since."""
    wrong = []
    storage = CrashableStorage(image)
    for path, written, begun in mark.tables:
        try:
            text = ConfigFile(Path(path), storage).load()
        except Exception as error:
            wrong.append(f"{path}: {type(error).__name__}: {error}")
            continue
        possible: list[str | None] = list(ledger.tables[path][max(written, 0) : begun + 1])
        if written < 0:
            possible.append(None)
        if text not in possible:
            wrong.append(f"{path} holds {text!r}, which is none of {possible}")
    return wrong
