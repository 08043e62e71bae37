"""What is derived from the commit log: an entry in the message's queue, and its keys in the index.

All of it can be built again from the log. It is held in memory first; ``derived_writer`` writes it, only when the log
is synced up to the records spoken of. When a record is durable ``dispatcher`` calls; the keys go by ``index_feed``.

Source: Apache RocketMQ 5.x ``DefaultMessageStore`` (``ReputMessageService``, ``CommitLogDispatcherBuildConsumeQueue``,
``CommitLogDispatcherBuildIndex``), ``ConsumeQueueStore``, ``IndexService.buildIndex``, and
``CommitLog.checkMessageAndReturnSize`` (tags code).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from rocketbox.broker.store.aside import Aside
from rocketbox.broker.store.consume_queue import ConsumeQueue, find_queues
from rocketbox.broker.store.deleted_topics import DeletedTopics
from rocketbox.broker.store.derivation import due_time
from rocketbox.broker.store.files import NO_ROOM, OpenFiles
from rocketbox.broker.store.index_file import MessageIndex, RecordHashes
from rocketbox.broker.store.index_hashes import hash_alike, hash_key, hash_keys, hash_prefix
from rocketbox.broker.store.misfits import (
    entries_in,
    mend_queue_files,
    queue_end,
    queue_file_size,
    set_index_aside,
)
from rocketbox.broker.store.options import CONSUME_QUEUE_UNIT, StoreOptions
from rocketbox.broker.store.records import ParsedRecord, RecordKeys, find_keys
from rocketbox.errors import InvalidMessageError, StoreError
from rocketbox.protocol.codes import SCHEDULE_TOPIC, MessageSysFlag
from rocketbox.protocol.tags import tags_code

__all__ = ["TRANSACTION", "Appended", "Derived", "IndexedRecord", "Misfits", "is_queued"]

_log = logging.getLogger(__name__)

TRANSACTION = MessageSysFlag.TRANSACTION_ROLLBACK.value  # both bits of a message's transaction state
_PREPARED = MessageSysFlag.TRANSACTION_PREPARED.value
_ROLLBACK = MessageSysFlag.TRANSACTION_ROLLBACK.value
CACHED_HASHES = 10_000  # of tags; of those for each topic

Appended = tuple[ConsumeQueue | None, int, int, str, int, bytes, bytes, RecordKeys]
"""A record that is not dispatched: its queue (None: it has no place in one), physical offset, store time (epoch ms),
topic, sysFlag, properties, the record, the keys that stand in its properties."""

IndexedRecord = tuple[str, RecordKeys, int, int, int]
"""Topic, keys, sysFlag, physical offset and store time (epoch ms) of a record that is indexed."""


def is_queued(sys_flag: int) -> bool:
    """Whether a message of that sysFlag gets a place in its queue: halves and rollbacks do not."""
    return sys_flag & TRANSACTION not in (_PREPARED, _ROLLBACK)


@dataclass
class Misfits:
    """What of queues and index does not fit together, in words; None: they do."""

    queues: str | None = None
    index: str | None = None


class Derived:
    """All consume queues of a store, and its index."""

    def __init__(self, files: OpenFiles, root: str, options: StoreOptions) -> None:
        self.index = MessageIndex(files.storage, f"{root}/index", options.max_hash_slot_num, options.max_index_num)
        self.deleted = DeletedTopics(files.storage, root)
        """Which records have no place in a queue any more."""
        self._files = files
        self._storage = files.storage
        self._directory = f"{root}/consumequeue"
        self._options = options
        self.indexes = options.message_index_enable
        self.queue_file_size = options.mapped_file_size_consume_queue
        """Of all files of consume queues: what those that are there have, else what the settings say."""
        self._delays = options.delay_level_ms
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self.left_out: Misfits | None = None
        """What does not fit and could not be put aside: :meth:`take_in` when there is room."""
        self.unwritten = 0
        """How many entries of queues are in memory only."""
        self._changed: dict[ConsumeQueue, None] = {}  # queues with entries that are not written; a set in order
        self._codes: dict[bytes, int] = {}
        self._hashes: dict[str, tuple[int, dict[bytes, int]]] = {}  # by topic: its own, and those of its tags

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(self._queues.values())

    def load(self) -> Misfits:
        """Open all files; their sizes are taken from them. What they end with is for a recovery to find out.

        Queues of a topic that a killed store was about to delete are removed. Returns which files do not fit together:
        :meth:`mend` them, before anything is done with queues or index. Raises StoreError, OSError.
        """
        self.deleted.load()
        misfits = Misfits(queues=self._load_queues())
        if self._options.message_index_enable:
            try:
                self.index.load()
            except StoreError as error:
                misfits.index = str(error)
        return misfits

    def mend(self, misfits: Misfits, aside: Aside) -> None:
        """Put aside what does not fit, make the rest fit, and load it again; blocks. Raises StoreError, OSError."""
        if misfits.queues is not None:
            _log.warning("%s: the consume queues are built again from the log", misfits.queues)
            directories, size = self._sized_directories()
            for directory in directories:
                mend_queue_files(self._storage, directory, size, aside)
            self._queues.clear()
            self._files.forget_all()
            if (still := self._load_queues()) is not None:
                raise StoreError(still)
        if misfits.index is not None:
            self.index.close()
            self.index.files = []
            set_index_aside(self._storage, self.index.directory, aside)

    def leave_out(self, misfits: Misfits) -> None:
        """Go on without what does not fit, none of which is changed: there is no room to put it aside.

        Queues without their files begin as new ones; a recovery adds all that the log has. Until :meth:`take_in` what
        is added to them stays in memory, and there is no index.
        """
        self.left_out = misfits
        if misfits.queues is not None:
            _, size = self._sized_directories()
            self.queue_file_size = size
            self._queues.clear()
            self._files.forget_all()
            for topic, queue_id in self._named():
                queue = self._open_queue(topic, queue_id)
                try:
                    queue.load()
                except StoreError:
                    fits = False
                else:
                    fits = not queue.run.starts or queue.run.file_size == size
                if not fits:
                    queue.leave_files(size, queue_end(self._storage, queue.run.directory, size))
                elif queue.begins_below(self.deleted.end_of(topic)):
                    del self._queues[topic, queue_id]
                    queue.remove_files()
                queue.run.file_size = size
            for queue in self:
                self._begin(queue)
        if misfits.index is not None:
            self.index.close()
            self.index.files = []
            self.indexes = False

    def take_in(self, aside: Aside) -> None:
        """There may be room now: put aside what was left out, and have queues go on in their files. Blocks.

        The index is empty then. Raises StoreError, OSError; may be called again.
        """
        for queue in self:
            if queue.has_misfits:
                mend_queue_files(self._storage, queue.run.directory, queue.run.file_size, aside)
                self._files.forget_all()
                queue.take_files(keep=not self.deleted.end_of(queue.topic))
        if self.left_out is not None and self.left_out.index is not None:
            set_index_aside(self._storage, self.index.directory, aside)
        self.left_out = None

    def _sized_directories(self) -> tuple[list[str], int]:
        """Those of the queues, and how large their files should be."""
        directories = [f"{self._directory}/{topic}/{number}" for topic, number in self._named()]
        size = queue_file_size(self._storage, directories, self._options.mapped_file_size_consume_queue)
        return directories, size

    def _named(self) -> list[tuple[str, int]]:
        return list(find_queues(self._storage, self._directory))

    def _load_queues(self) -> str | None:
        """Load all; what does not fit together, if anything."""
        first: ConsumeQueue | None = None
        misfit: str | None = None
        for topic, queue_id in self._named():
            queue = self._open_queue(topic, queue_id)
            try:
                queue.load()
            except StoreError as error:
                misfit = misfit or str(error)
                continue
            if queue.begins_below(self.deleted.end_of(topic)):
                del self._queues[topic, queue.queue_id]
                queue.remove_files()
                continue
            if not queue.run.starts:
                continue
            if first is not None and queue.run.file_size != first.run.file_size:
                misfit = misfit or (
                    f"{queue.run.path(queue.run.start)} has {queue.run.file_size} bytes, "
                    f"{first.run.path(first.run.start)} has {first.run.file_size}, though the files of all consume "
                    "queues have one size"
                )
            first = first or queue
        if first is not None:
            self.queue_file_size = first.run.file_size
            for queue in self:
                queue.run.file_size = self.queue_file_size
        for queue in self:
            self._begin(queue)
        return misfit

    @property
    def queue_ends(self) -> int:
        """A number below 2**64 that is most likely another one when any queue has another end, or is not there.

        A queue that has had no message is not there for the next start, wherever it would begin.
        """
        return sum([queue.max_offset * queue.weight for queue in self if not queue.is_new]) % (1 << 64)

    def rewind(self, physical_end: int) -> None:
        """Let the queues go on behind the units of records below ``physical_end``, which are known to be whole."""
        self._changed.clear()
        for queue in self:
            queue.rewind(physical_end)

    def entries_from(self, physical: int) -> Iterator[tuple[int, int]]:
        """(offset, size) of the records at or behind ``physical`` that have an entry."""
        for queue in self:
            if queue.has_misfits:
                yield from entries_in(self._storage, queue.run.directory, physical)
            else:
                yield from queue.entries_from(physical)

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._queues.get((topic, queue_id))

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, which begins if there is none. Raises InvalidMessageError if it cannot be a directory."""
        queue = self._queues.get((topic, queue_id))
        return queue if queue is not None else self._open_queue(topic, queue_id)

    def _open_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        if not topic or topic in {".", ".."} or "/" in topic or "\0" in topic or len(topic.encode()) > 255:
            raise InvalidMessageError(f"{topic!r} cannot be a topic: it cannot be a directory's name")
        if queue_id < 0:
            raise InvalidMessageError(f"{queue_id} cannot be a queue's id: it is negative")
        directory = f"{self._directory}/{topic}/{queue_id}"
        queue = ConsumeQueue(self._files, directory, self.queue_file_size, topic, queue_id)
        self._begin(queue)
        self._queues[topic, queue_id] = queue
        return queue

    def _begin(self, queue: ConsumeQueue) -> None:
        """Let a queue that has had no message begin behind those of a deleted topic of the same name."""
        begin = self.deleted.begin_of(queue.topic, queue.queue_id)
        if begin > queue.next_offset and queue.is_new:
            queue.begin_at(begin)

    def begins_after(self, topic: str) -> dict[int, int]:
        """Where the queues of a topic would go on if it were deleted now, and made again.

        That is at the begin of a file, which then needs no entries that stand for no message.
        """
        per_file = self.queue_file_size // CONSUME_QUEUE_UNIT
        return {
            queue.queue_id: -(-queue.next_offset // per_file) * per_file
            for queue in self
            if queue.topic == topic and queue.next_offset > self.deleted.begin_of(topic, queue.queue_id)
        }

    def detach(self, topic: str) -> list[ConsumeQueue]:
        """Take the queues of a topic out: nothing is read from them or added to them any more; their files stay."""
        queues = [queue for queue in self if queue.topic == topic]
        for queue in queues:
            del self._queues[queue.topic, queue.queue_id]
            queue.is_deleted = True
            if queue in self._changed:
                del self._changed[queue]
                self.unwritten -= queue.max_offset - queue.written_offset
        return queues

    # --- adding ---

    def add_to_queue(
        self,
        queue: ConsumeQueue,
        topic: str,
        properties: bytes,
        tags: bytes | None,
        physical: int,
        size: int,
        stored: int,
    ) -> int:
        """Add a record, stored at ``stored`` (epoch ms), to its queue; ``tags`` is one of its properties.

        Returns what stands there beside it: its tag's hash, or when a delayed one is due (epoch ms).
        """
        code = due_time(properties, stored, self._delays) if topic == SCHEDULE_TOPIC else None
        if code is None:
            code = 0 if tags is None else self._code_of(tags)
        if queue.is_deleted:
            return code
        queue.append(physical, size, code)
        self._changed[queue] = None
        self.unwritten += 1
        return code

    def index_records(self, records: Sequence[IndexedRecord]) -> None:
        """Add the keys of records to the index, unless it has them."""
        if not self.indexes or not records:
            return
        end = self.index.end_physical
        if len(records) > 1 and self._index_alike(records, end):
            return
        indexed: list[RecordHashes] = []
        for topic, (tags, words, unique), sys_flag, physical, stored in records:
            if physical <= end or sys_flag & TRANSACTION == _ROLLBACK:
                continue
            prefix, of_tags = self._hashes.get(topic) or self._begin_hashes(topic)
            keys = [] if unique is None else [(prefix, unique)]
            if words is not None:
                if b" " in words:
                    keys += [(prefix, word) for word in words.split(b" ") if word]
                else:
                    keys.append((prefix, words))
            hashes = hash_keys(keys)
            if tags is not None:
                hashes.append(self._hash_of_tags(prefix, of_tags, tags))
            if hashes:
                indexed.append((hashes, physical, stored))
        self.index.put(indexed)

    def _index_alike(self, records: Sequence[IndexedRecord], end: int) -> bool:
        """Index records of one topic with keys of the same kinds, kind by kind; False when they are not so.

        Fast path: 1.3 us a record with tag, key and id, one by one 2.4 (benchmark "java client: send, 256 in flight").
        """
        topics, keys, sys_flags, physicals, stored = zip(*records, strict=True)
        count, topic = len(records), topics[0]
        if physicals[0] <= end or topics.count(topic) != count or any(sys_flags):
            return False
        tags, words, ids = zip(*keys, strict=True)
        missing = [column.count(None) for column in (ids, words, tags)]
        if any(0 < number < count for number in missing) or (not missing[1] and b" " in b"".join(words)):
            return False
        prefix, of_tags = self._hashes.get(topic) or self._begin_hashes(topic)
        hashes = [hash_alike(prefix, column) for column in (ids, words) if column[0] is not None]
        if tags[0] is not None:
            hashes.append([of_tags.get(each) or self._hash_of_tags(prefix, of_tags, each) for each in tags])
        if hashes:
            self.index.put_alike(hashes, physicals, stored)
        return True

    def _hash_of_tags(self, prefix: int, of_tags: dict[bytes, int], tags: bytes) -> int:
        known = of_tags.get(tags)
        if known is None:
            if len(of_tags) >= CACHED_HASHES:
                of_tags.clear()
            known = of_tags[tags] = hash_key(prefix, b"T#" + tags)
        return known

    def _begin_hashes(self, topic: str) -> tuple[int, dict[bytes, int]]:
        if len(self._hashes) >= CACHED_HASHES:
            self._hashes.clear()
        known = self._hashes[topic] = (hash_prefix(f"{topic}#"), {})
        return known

    def add(
        self,
        queue: ConsumeQueue | None,
        topic: str,
        properties: bytes,
        sys_flag: int,
        physical: int,
        size: int,
        stored: int,
        *,
        index: bool = True,
    ) -> None:
        """Add a record to its queue, if that is given, and to the index."""
        keys = find_keys(properties)
        if index:
            self.index_records([(topic, keys, sys_flag, physical, stored)])
        if queue is not None:
            self.add_to_queue(queue, topic, properties, keys[0], physical, size, stored)

    def code(self, record: ParsedRecord) -> int:
        """What stands in the queue beside a record."""
        if record.topic == SCHEDULE_TOPIC:
            due = due_time(record.properties, record.stored, self._delays)
            if due is not None:
                return due
        tags = find_keys(record.properties)[0]
        return 0 if tags is None else self._code_of(tags)

    def fill_queue(self, queue: ConsumeQueue, offset: int) -> None:
        """Let the queue go on at ``offset``; the messages before are gone."""
        queue.fill(offset)
        self._changed[queue] = None

    def _code_of(self, tags: bytes) -> int:
        code = self._codes.get(tags)
        if code is None:
            if len(self._codes) >= CACHED_HASHES:
                self._codes.clear()
            code = self._codes[tags] = tags_code(tags.decode("utf-8", "replace"))
        return code

    def find_key(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        """Physical offsets of records that may have the key, newest first; None in between, where one may rest."""
        return self.index.search(hash_key(hash_prefix(f"{topic}#"), key.encode("utf-8", "replace")), begin_ms, end_ms)

    # --- writing ---

    def take_changed(self) -> list[tuple[ConsumeQueue, int, bytes]]:
        """The queues with entries that are not written: the number of the first, and their bytes."""
        changed, self._changed = self._changed, {}
        return [(queue, *queue.unwritten()) for queue in changed]

    def set_written(self, taken: list[tuple[ConsumeQueue, int, bytes]], failed: Collection[ConsumeQueue] = ()) -> None:
        """What was taken is in the files now, but for the queues that ``failed``, whose entries are kept."""
        for queue, offset, data in taken:
            if queue in failed:
                self._changed[queue] = None
            else:
                count = len(data) // CONSUME_QUEUE_UNIT
                queue.set_written(offset + count)
                self.unwritten -= count

    def flush(self) -> bool:
        """Write all that is not written, and sync it; blocks. For those who have the store to themselves.

        False when the disk has no room: it stays in memory, and is written when there is. After another error (OSError)
        nothing counts as written either.
        """
        taken, keys = self.take_changed(), self.index.snapshots()
        try:
            for queue, offset, data in taken:
                queue.write(offset, data)
                queue.sync()
            self.index.write(keys)
        except BaseException as error:
            self.set_written(taken, {queue for queue, _, _ in taken})
            self.index.restore(keys)
            if isinstance(error, OSError) and error.errno in NO_ROOM:
                return False
            raise
        self.set_written(taken)
        self.index.set_written(keys)
        return True

    def close(self) -> None:
        self.index.close()
