"""What must be true of a store after a crash: a ledger of what was sent and acknowledged, and the checks against it.

A :class:`Ledger` watches a running store; its :class:`Mark` is what it knows at one moment. :func:`observe` is all
that can be read from a store, :func:`verify` compares the two: bodies, properties, sizes, order, and what tags and keys
find.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest.mock import patch

import anyio.lowlevel

from rocketbox.blocking import WorkerPool
from rocketbox.broker.store.message_store import MessageStore
from rocketbox.broker.store.options import StoreOptions
from rocketbox.broker.store.putting import LaneMessage, PutResult, RunResult
from rocketbox.broker.store.waiting import Told
from rocketbox.protocol.stored_message import StoredMessage, decode_message
from rocketbox.protocol.tags import tags_code

__all__ = [
    "Found",
    "Ledger",
    "Mark",
    "Outcome",
    "decode_found",
    "inline_pools",
    "observe",
    "rare_collections",
    "verify",
]


@contextmanager
def inline_pools() -> Iterator[None]:
    """Have what would run in threads run at once: the same calls in the same order each time, no threads to start."""

    async def run(self: WorkerPool, function: Callable[..., Any], *args: Any) -> Any:
        await anyio.lowlevel.checkpoint()
        result = function(*args)
        await anyio.lowlevel.checkpoint()
        return result

    with patch.object(WorkerPool, "run", run):
        yield


@contextmanager
def rare_collections() -> Iterator[None]:
    """Have the garbage collector run each 200,000th object: it would walk over all crash states again and again."""
    before = gc.get_threshold()
    gc.set_threshold(200_000, 10, 1000)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class Sent(NamedTuple):
    """A record that the store was given, and where it put it."""

    place: int
    end: int
    topic: str
    queue_id: int
    queue_offset: int
    body: bytes
    properties: bytes
    stored_ms: int


class Found(NamedTuple):
    """A record that was read."""

    place: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    body: bytes
    properties: bytes


class Mark(NamedTuple):
    """What is known at one moment: how many were sent, up to where the log is acknowledged and certain, and tables."""

    sent: int
    acknowledged: int
    synced: int
    removed_below: int
    tables: tuple[tuple[str, int, int], ...]
    """Path, number of the version that was last written, and of the one that was last begun."""


@dataclass
class Ledger:
    """What was put and what was told durable. ``watch`` each store that is run, one after the other."""

    sent: list[Sent] = field(default_factory=list)
    acknowledged: int = 0
    synced: int = 0
    removed_below: int = 0
    tables: dict[str, list[str]] = field(default_factory=dict)
    _written: dict[str, int] = field(default_factory=dict)
    _end: int = 0
    _syncing: int = 0

    def mark(self) -> Mark:
        tables = tuple((path, self._written[path], len(texts) - 1) for path, texts in self.tables.items())
        return Mark(len(self.sent), self.acknowledged, self.synced, self.removed_below, tables)

    def at(self, mark: Mark) -> Ledger:
        """Another one that knows what was known then; without the tables."""
        return Ledger(self.sent[: mark.sent], mark.acknowledged, mark.synced, mark.removed_below)

    def reopened(self, end: int) -> None:
        """A store that refused something was opened again and its log ends there: what is behind it was not taken."""
        self.sent = [sent for sent in self.sent if sent.end <= max(end, self.acknowledged)]

    def watch(self, store: MessageStore) -> None:
        """Note what is put into the store, by whomever, and what it says is durable."""
        put, put_batch, put_run, tell = store.put, store.put_batch, store.put_run, store.tell_when_durable

        def watched_put(message: StoredMessage, accepted: bool = False) -> PutResult:
            result = put(message, accepted)
            self._note([message], result)
            return result

        def watched_batch(messages: Sequence[StoredMessage]) -> PutResult:
            result = put_batch(messages)
            self._note(messages, result)
            return result

        def watched_run(messages: Sequence[LaneMessage], born_host: tuple[bytes, int]) -> RunResult:
            result = put_run(messages, born_host)
            ends = [*[place for place, _ in result.places[1:]], result.end_offset]
            for (lane, _, body, properties, _), (place, offset), end in zip(
                messages, result.places, ends, strict=False
            ):
                message = StoredMessage(lane.topic, lane.queue.queue_id, body, properties)
                now = store._putter.last_timestamp
                self._note([message], PutResult(place, end, offset, now, (place,), result.store_host))
            return result

        def watched_tell(told: Told, end_offset: int, what: object) -> None:
            def noted(one: list[object], error: BaseException | None) -> None:
                if error is None:
                    self.acknowledged = max(self.acknowledged, end_offset)
                told(one, error)

            tell(noted, end_offset, what)

        replaced: Any = store
        replaced.put, replaced.put_batch, replaced.put_run = watched_put, watched_batch, watched_run
        # Whoever waits comes by this, in the call in which he is told: a turn later the disk may have what it had not.
        replaced.tell_when_durable = replaced._writer.tell_when_durable = watched_tell

    def _note(self, messages: Sequence[StoredMessage], result: PutResult) -> None:
        while self.sent and self.sent[-1].place >= result.commit_log_offset:
            taken_back = self.sent.pop()  # refused after all, for the disk is full
            assert taken_back.end > self.acknowledged, f"acknowledged, and its place given to another: {taken_back}"
        ends = [*result.offsets[1:], result.end_offset]
        for number, (message, place, end) in enumerate(zip(messages, result.offsets, ends, strict=True)):
            self.sent.append(
                Sent(place, end, message.topic, message.queue_id, result.queue_offset + number, bytes(message.body),
                     bytes(message.properties), result.store_timestamp_ms)
            )  # fmt: skip

    def on_call(self, name: str, path: str, offset: int, size: int) -> None:
        """To be called before each call of the storage: learns up to where the log is synced."""
        self.synced, self._syncing = max(self.synced, self._syncing), 0
        if "/commitlog/" in path:
            if name == "write":
                self._end = max(self._end, int(path.rpartition("/")[2]) + offset + size)
            elif name == "sync":
                self._syncing = self._end

    def on_removal(self, path: str, options: StoreOptions, now_ms: int) -> None:
        """A file of the log is about to be removed: what is in it may be missing from now on, if it has expired."""
        start = int(path.rpartition("/")[2])
        inside = [sent for sent in self.sent if start <= sent.place < start + options.mapped_file_size_commit_log]
        if inside and all(sent.stored_ms + options.file_reserved_ms <= now_ms for sent in inside):
            self.removed_below = max(self.removed_below, inside[-1].end)

    def begin_table(self, path: str, text: str) -> None:
        """A table's file is about to be written."""
        self.tables.setdefault(path, [])
        self._written.setdefault(path, -1)
        self.tables[path].append(text)

    def end_table(self, path: str) -> None:
        """It is written."""
        self._written[path] = len(self.tables[path]) - 1


@dataclass(frozen=True)
class Outcome:
    """All that a store says. ``records`` are by place in the log, ``trouble`` is what it says of itself."""

    records: tuple[Found, ...]
    queues: tuple[tuple[str, int, int, int], ...]
    wrong: tuple[str, ...]
    trouble: tuple[str, ...]
    end: int


async def observe(store: MessageStore, known: dict[Hashable, tuple[str, ...]] | None = None) -> Outcome:
    """Read everything: each queue from its first message on, the tags code of each of its units, and each key.

    ``known`` holds what keys do not find, by records and index: where both are the same they are not looked up again.
    """
    records: list[Found] = []
    queues = []
    wrong: list[str] = []
    for topic, queue_id in sorted(store.queues()):
        least, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        queues.append((topic, queue_id, least, end))
        offset = least
        while offset < end:
            units = _Units()
            result = store.get(topic, queue_id, offset, filter=units)
            for record, code in zip(result.records, units.codes, strict=False):
                found = decode_found(record)
                if found[2:5] != (topic, queue_id, offset):
                    wrong.append(f"at {topic}/{queue_id}:{offset} stands {found}")
                if code != _labels(found.properties)[0] and not topic.startswith("SCHEDULE"):
                    wrong.append(f"its tag does not find {found}, but the code {code}")
                records.append(found)
                offset += 1
            if not result.records or result.next_begin_offset != offset:
                wrong.append(
                    f"{topic}/{queue_id} goes on at {result.next_begin_offset} behind {offset}: {result.status}"
                )
                break
    records.sort()
    if known is None:
        wrong += await _not_found_by_key(store, records)
    else:
        key = tuple(records), await _index_state(store)
        if key not in known:
            known[key] = await _not_found_by_key(store, records)
        wrong += known[key]
    return Outcome(tuple(records), tuple(queues), tuple(wrong), _trouble(store), store.max_commit_log_offset)


async def _not_found_by_key(store: MessageStore, records: Sequence[Found]) -> tuple[str, ...]:
    wrong = []
    for found in records:
        key = _labels(found.properties)[1]
        if key and found.place not in [
            decode_found(record).place for record in (await store.query_keys(found.topic, key, 9, 0, 1 << 60)).records
        ]:
            wrong.append(f"key {key} does not find the record at {found.place}")
    return tuple(wrong)


async def _index_state(store: MessageStore) -> Hashable:
    """All that the index holds, in memory and on the disk."""
    await store._feed.build(store._pool)
    state = []
    for file in store._derived.index.files:
        memory = {**vars(file)}
        del memory["_storage"]
        disk = memory.pop("_file")
        state.append((disk and disk.read(0, file.size), *map(repr, memory.items())))
    return tuple(state)


def _trouble(store: MessageStore) -> tuple[str, ...]:
    """What the store says of itself that is not as it should be; what crashed is whole when it is open."""
    health = store.health()
    said = [health.failure, health.refusal, *[f"{trouble.what}: {trouble.error}" for trouble in health.troubles]]
    if not health.durable_offset == health.dispatched_offset == store.max_commit_log_offset or health.waiting_bytes:
        said.append(f"it is not at rest: {health}")
    return tuple([text for text in said if text])


@functools.lru_cache(1 << 16)
def _labels(properties: bytes) -> tuple[int, str]:
    """The tags code that a message has, and the first of its keys."""
    named = dict(text.split(b"\x01", 1) for text in properties.split(b"\x02") if text)
    return tags_code(named.get(b"TAGS", b"").decode()), named.get(b"KEYS", b"").decode().partition(" ")[0]


class _Units:
    """A filter that takes all and keeps the tags codes of the units, which is what selects messages by tag."""

    def __init__(self) -> None:
        self.codes: list[int] = []

    def matches_unit(self, tags_code: int) -> bool:
        self.codes.append(tags_code)
        return True

    def matches_record(self, record: bytes) -> bool:
        return True


@functools.lru_cache(1 << 16)
def decode_found(record: bytes) -> Found:
    """What a record says. Thousands of crash states hold the same ones."""
    message = decode_message(record)[0]
    properties = bytes(message.raw_properties).partition(b"__CRC32#")[0]
    return Found(message.commit_log_offset, len(record), message.topic, message.queue_id, message.queue_offset,
                 bytes(message.body), properties)  # fmt: skip


def verify(outcome: Outcome, ledger: Ledger, mark: Mark, *, synced_only: bool = False) -> list[str]:
    """What is wrong with a store that crashed at ``mark``; empty if nothing is.

    With ``synced_only`` (ASYNC_FLUSH) what was acknowledged but not synced may be missing, though never a part of it
    that has something behind it.
    """
    wrong = list(outcome.wrong)
    wrong += [f"it says: {text}" for text in outcome.trouble]
    sent = ledger.sent[: mark.sent]
    required = min(mark.acknowledged, mark.synced) if synced_only else mark.acknowledged
    kept = [each for each in sent if each.place >= mark.removed_below]
    found = [each for each in outcome.records if each.place >= mark.removed_below]
    for expected, actual in zip(kept, found, strict=False):
        if (expected.place, expected.end - expected.place, *expected[2:-1]) != tuple(actual):
            wrong.append(f"sent {expected}, found {actual}")
    for lost in kept[len(found) :]:
        if lost.end <= required:
            wrong.append(f"acknowledged and missing: {lost}")
    wrong += [f"never sent, and there: {more}" for more in found[len(kept) :]]
    for old in outcome.records:
        if old.place < mark.removed_below and old.place not in {each.place for each in sent}:
            wrong.append(f"never sent, and there: {old}")
    for topic, queue_id, least, end in outcome.queues:
        offsets = [each.queue_offset for each in outcome.records if (each.topic, each.queue_id) == (topic, queue_id)]
        if offsets != list(range(least, end)):
            wrong.append(f"{topic}/{queue_id} from {least} to {end} has {offsets}")
    return wrong
