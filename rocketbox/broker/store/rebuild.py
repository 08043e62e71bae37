"""Writing a queue's entries anew from the log while the store runs: what differs is overwritten in place.

The units are compared with the records of the log (``verify``), and those that differ are written and synced where
they stand. Puts go on meanwhile: only units that are in the files already are touched, new ones are added behind. A
reader sees the old or the new unit, or half of each, and checks what it is led to in any case. A crash leaves some of
them mended; doing it again mends the rest.

When to do it is left to the store.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from rocketbox.broker.store.consume_queue import FILLER_UNIT, ConsumeQueue
from rocketbox.broker.store.deleted_topics import DeletedTopics
from rocketbox.broker.store.files import FileRun, OpenFiles
from rocketbox.broker.store.finding import FindingKind, StoreFinding
from rocketbox.broker.store.misfits import LARGEST_GAP
from rocketbox.broker.store.options import CONSUME_QUEUE_UNIT
from rocketbox.broker.store.verify import LogComparison
from rocketbox.storage.file_system import StorageFile

__all__ = ["Mending", "QueueRebuild", "lacks_file", "rebuild_queue"]


class Mending:
    """Writes the right bytes that findings bear; :meth:`sync` makes them safe."""

    def __init__(self, files: OpenFiles) -> None:
        self.count = 0
        self._files = files
        self._changed: dict[str, StorageFile] = {}

    def write(self, finding: StoreFinding, file_size: int) -> None:
        """Write them; a file that is missing or short is made ``file_size`` long. Blocks. Raises OSError."""
        assert finding.correct is not None
        storage = self._files.storage
        if not storage.exists(finding.path):
            storage.make_directories(os.path.dirname(finding.path))
            self._files.forget(finding.path)
        file = self._files.get(finding.path, create=True)
        if file.size() < file_size:
            file.truncate(file_size)
        file.write(finding.position, [finding.correct])
        self._changed[finding.path] = file
        self.count += 1

    def write_entry(self, finding: StoreFinding, queue: ConsumeQueue) -> bool:
        """Write a queue's; False when its file was removed meanwhile, by retention or with its topic, or does not fit.

        It would get that file again, before a gap, and the next start would miss those in between.
        """
        with queue.files_guard:
            if queue.is_deleted or queue.has_misfits or lacks_file(finding, queue):
                return False
            try:
                self.write(finding, queue.run.file_size)
            finally:
                queue.changes += 1
        return True

    def write_first_entry(self, finding: StoreFinding, queue: ConsumeQueue, log_start: Callable[[], int]) -> bool:
        """As :meth:`write_entry`, but files that are missing before the queue's first are made again.

        False when retention has removed them: the log does not have the entry's record any more; and when too many
        would have to be made.
        """
        missing = (queue.run.start - int(os.path.basename(finding.path))) // queue.run.file_size
        if missing > LARGEST_GAP:
            return False
        while lacks_file(finding, queue):
            with queue.files_guard:
                # Retention removes what is below in the log first. Asked under the guard: it removes no file meanwhile.
                if queue.is_deleted or queue.has_misfits or not queue.run.starts or _physical(finding) < log_start():
                    return False
                queue.run.add_before(FILLER_UNIT * (queue.run.file_size // CONSUME_QUEUE_UNIT))
                queue.changes += 1
        return self.write_entry(finding, queue)

    def sync(self) -> None:
        for path, file in self._changed.items():
            file.sync()
            self._files.storage.sync_directory(os.path.dirname(path))
        self._changed.clear()


def lacks_file(finding: StoreFinding, queue: ConsumeQueue) -> bool:
    """Whether an entry belongs into a file before the queue's first one."""
    return int(os.path.basename(finding.path)) < queue.run.start


def _physical(finding: StoreFinding) -> int:
    assert finding.correct is not None
    return int.from_bytes(finding.correct[:8], "big")


class QueueRebuild:
    """One rebuild: run through :meth:`steps` in a thread, then call :meth:`finish` in the loop of the store.

    No entry is made to stand for no message: what seems to lack its record may only lack it because the record is
    damaged, and readers would skip it without a word.

    ``until``: where the log ends for now. Only entries that are in the queue's files are looked at. Records of a
    ``deleted`` topic have none.
    """

    def __init__(
        self,
        files: OpenFiles,
        log: FileRun,
        queue: ConsumeQueue,
        deleted: DeletedTopics,
        delays: tuple[int, ...],
        until: int,
    ) -> None:
        self.queue = queue
        self.changed = 0
        """How many entries were wrong, and are right now."""
        self._files = files
        self._log = log
        self._log_start = log.start
        self._written = queue.written_offset
        self._min_offset = queue.min_offset
        name = (queue.topic, queue.queue_id)
        self._comparison = LogComparison(
            log,
            [(name, queue.run)],
            lambda *_: queue.run,
            delays,
            until=until,
            queued=until,
            only=name,
            at_rest=False,
            is_gone=deleted.is_gone,
        )
        self._name = name

    def steps(self) -> Iterator[int]:
        """Each step reads about a mebibyte of the log, and yields the offset it has come to. Blocks. Raises OSError."""
        mending = Mending(self._files)
        yield self._log_start
        for step in self._comparison:
            if isinstance(step, StoreFinding):
                offset = (int(os.path.basename(step.path)) + step.position) // CONSUME_QUEUE_UNIT
                is_entry = step.kind is FindingKind.QUEUE and offset < self._written
                if is_entry and step.correct not in (None, FILLER_UNIT):
                    mending.write_first_entry(step, self.queue, lambda: self._log.start)
                if self.queue.is_deleted:
                    break
                continue
            yield step
            if self._comparison.compared(self._name) >= self._written:
                break
        mending.sync()
        self.changed = mending.count
        self._min_offset = self.queue.offset_behind(self._log_start)

    def finish(self) -> None:
        """Let the queue begin where its first message is, as its entries say now."""
        if self._log.start == self._log_start:  # else retention has set it meanwhile
            self.queue.min_offset = self._min_offset


def rebuild_queue(
    files: OpenFiles, log: FileRun, queue: ConsumeQueue, deleted: DeletedTopics, delays: tuple[int, ...], until: int
) -> QueueRebuild:
    """All steps of a rebuild; blocks, and may run in a thread. Call ``finish`` of what is returned in the loop."""
    rebuild = QueueRebuild(files, log, queue, deleted, delays, until)
    for _ in rebuild.steps():
        pass
    return rebuild
