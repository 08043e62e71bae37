"""Whether queues and index say what the commit log says: one pass through the log, beside which both are read.

The comparison is a generator, so that its caller decides how fast it goes: it yields what differs, and in between the
offset of the log that it has come to, at least after each :data:`STEP` bytes. It changes nothing; a finding bears the
right bytes where they are known. ``rocketbox store check`` runs it through, the broker in slices (``upkeep``).

Left to others: finding files (``store_check``, or the store that runs), what to do about a finding.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence

from rocketbox.broker.store.derivation import is_indexed, key_hashes, unit_code
from rocketbox.broker.store.dispatch import is_queued
from rocketbox.broker.store.files import FileRun
from rocketbox.broker.store.finding import FindingKind, StoreFinding
from rocketbox.broker.store.index_comparison import IndexComparison
from rocketbox.broker.store.log_walk import Gap, walk_log
from rocketbox.broker.store.queue_comparison import QueueComparison
from rocketbox.broker.store.records import ParsedRecord, parse_record

__all__ = ["STEP", "LogComparison", "QueueName"]

STEP = 1 << 20  # bytes of the log between two places where the caller may rest
_FINDINGS_OF_A_QUEUE = 1000  # of one comparison; one that is wholly wrong has no need to say so of each entry
QueueName = tuple[str, int]  # topic and queue id


class LogComparison:
    """One comparison. Records below ``queued`` must have their queue entries, those below ``indexed`` their keys.

    ``queues`` are the files of all queues; ``find_queue`` is asked for those of one that is not among them.
    ``only``: no other queue is looked at. ``at_rest``: nobody writes to the files meanwhile, so that what lies behind
    the newest units can be looked at too. ``is_gone`` says which records (topic, offset) have no entries, because their
    topic was deleted. ``until``: the log is read up to there; None: up to its end. ``checksums_from``: as of
    ``walk_log``.
    """

    def __init__(
        self,
        log: FileRun,
        queues: Iterable[tuple[QueueName, FileRun]],
        find_queue: Callable[[str, int], FileRun],
        delays: Sequence[int],
        *,
        start: int | None = None,
        until: int | None = None,
        queued: int,
        indexed: int = 0,
        index: IndexComparison | None = None,
        only: QueueName | None = None,
        at_rest: bool,
        is_gone: Callable[[str, int], bool] = lambda topic, physical: False,
        checksums_from: int = -1,
    ) -> None:
        self.records = 0
        self.end = self._start = log.start if start is None else start
        """Behind the newest intact record."""
        self._log = log
        self._at_rest = at_rest
        self._delays = delays
        self._is_gone = is_gone
        self._checksums_from = checksums_from
        self._until = until
        self._queued = queued
        self._indexed = indexed
        self._index = index
        self._only = only
        self._find_queue = find_queue
        self._queues = {name: self._comparison(name, run) for name, run in queues}
        self._said: dict[QueueName, int] = {}

    def _comparison(self, name: QueueName, run: FileRun) -> QueueComparison:
        return QueueComparison(f"{name[0]}/{name[1]}", run, lambda: self._log.start)

    def __iter__(self) -> Iterator[StoreFinding | int]:
        """What differs, and in between how far it has come."""
        rested = self._start
        pending: Gap | None = None
        for step in walk_log(self._log, self._start, self._until, checksums_from=self._checksums_from):
            if isinstance(step, Gap):
                if self._index is not None:
                    self._index.gap(step.offset, step.end)
                if pending is not None:
                    yield self._gap(pending, followed=step.missing_file or pending.missing_file)
                pending = step
                continue
            offset, record = step
            if pending is not None:
                yield self._gap(pending, followed=True)
                pending = None
            self.records += 1
            self.end = offset + len(record)
            try:
                parsed = parse_record(record)
            except (ValueError, struct.error) as error:
                if self._index is not None:
                    self._index.gap(offset, self.end)
                yield self._finding(offset, self.end, f"the record is whole, but cannot be: {error}")
                continue
            yield from self._compare(offset, len(record), parsed)
            if self.end - rested >= STEP:
                rested = self.end
                yield rested
        if pending is not None:
            yield self._gap(pending, followed=False)
        for name, queue in list(self._queues.items()):
            if self._at_rest and self._only in (None, name):
                yield from self._bounded(name, queue.rest(self._queued))
                yield self.end
        if self._index is not None:
            yield from self._index.rest()

    def compared(self, name: QueueName) -> int:
        """Up to which offset a queue's entries were compared."""
        queue = self._queues.get(name)
        return (queue.next or 0) if queue is not None else 0

    def _compare(self, offset: int, size: int, parsed: ParsedRecord) -> Iterator[StoreFinding]:
        name = (parsed.topic, parsed.queue_id)
        if (
            offset < self._queued
            and is_queued(parsed.sys_flag)
            and self._only in (None, name)
            and not self._is_gone(parsed.topic, offset)
        ):
            queue = self._queues.get(name)
            if queue is None:
                queue = self._queues[name] = self._comparison(name, self._find_queue(*name))
            code = unit_code(parsed.topic, parsed.properties, parsed.stored, self._delays)
            yield from self._bounded(name, queue.record(parsed.queue_offset, offset, size, code))
        if self._index is not None and offset < self._indexed and is_indexed(parsed.sys_flag):
            hashes, tagged = key_hashes(parsed.topic, parsed.properties)
            yield from self._index.record(offset, parsed.stored, hashes, tagged)

    def _bounded(self, name: QueueName, findings: Iterator[StoreFinding]) -> Iterator[StoreFinding]:
        for finding in findings:
            said = self._said[name] = self._said.get(name, 0) + 1
            if said <= _FINDINGS_OF_A_QUEUE or self._only is not None:
                yield finding

    def _gap(self, gap: Gap, *, followed: bool) -> StoreFinding:
        what = f"{gap.reason}; no record can be read in {gap.end - gap.offset} bytes"
        if followed:
            return self._finding(gap.offset, gap.end, f"{what}, and intact ones follow")
        return self._finding(gap.offset, gap.end, what, last=True)

    def _finding(self, offset: int, end: int, what: str, *, last: bool = False) -> StoreFinding:
        start = offset - offset % self._log.file_size
        remedy = "rocketbox store repair keeps a copy of them and makes the log readable again"
        return StoreFinding(
            FindingKind.LOG, self._log.path(start), offset - start, what, remedy, end=end, harmless=last
        )
