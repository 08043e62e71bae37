"""What a query's checkpoint says: the last batch that was planned, whether it is done, and how often it was tried.

Spark writes ``offsets/N`` before a batch and ``commits/N`` behind it, on any file system that Hadoop knows; beside them
stands here ``rocketbox/attempts.json``, which counts a batch that fails over the ends of processes. A first attempt
needs no note: a batch that is planned and not done when a query starts has been tried once. What an orderly stop cuts
short is noted as not tried. ``rocketbox/rows-of-a-task`` says how batches are divided: one that comes again is divided
as before, also where the cluster has more cores by now, or what it writes would have other keys. ``rocketbox/holder``
names the driver that reads on from it, and is empty once that has given its lease back: brokers may have forgotten who
has it.

Source: Apache Spark 4.3.0 ``OffsetSeqLog``, ``CommitLog`` (text: a line with the version, one of JSON for all, one for
each source). Everything here blocks, and asks the Java process.
"""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped] # it has no types
from pyspark.sql import SparkSession

from rocketbox.message import MessageQueue
from rocketbox.spark.checkpoint import RESET, CheckpointError, decode_offset

__all__ = ["BatchLog", "PlannedBatch"]

_log = logging.getLogger(__name__)

ATTEMPTS = "rocketbox/attempts.json"
HOLDER = "rocketbox/holder"
ROWS_OF_A_TASK = "rocketbox/rows-of-a-task"


@dataclass(frozen=True)
class PlannedBatch:
    """The last batch that a checkpoint knows: where it ends, as its source wrote it, and whether it is done."""

    id: int
    end: Any
    done: bool


class BatchLog:
    """Of one checkpoint, by ``location``, a URI or path as Spark takes it. Raises what py4j raises."""

    def __init__(self, session: SparkSession, location: str) -> None:
        java: Any = session.sparkContext._jvm
        self._java = java
        self._root = java.org.apache.hadoop.fs.Path(location)
        self._files = self._root.getFileSystem(session.sparkContext._jsc.hadoopConfiguration())

    def last_planned(self) -> PlannedBatch | None:
        """The batch that was planned last; None before the first one.

        Raises CheckpointError for a checkpoint that is damaged: Spark would not go on from it either. Nor from one of
        which a part was removed, with which Spark would: it gives it another query's id where ``metadata`` lacks, and
        plans batches anew under ids that were done where ``offsets`` do.
        """
        query = self.query_id()
        planned, done = self._numbers("offsets"), self._numbers("commits")
        if done:
            self._parsed(f"commits/{max(done)}", version=True)
        if query is None and (planned or done):
            raise self._damaged("metadata", "and there are batches", "is missing")
        last = max(planned, default=-1)
        if (last_done := max(done, default=-1)) > last:
            raise self._damaged(f"offsets/{last_done}", "and there is its file in commits", "is missing")
        return PlannedBatch(last, self.end(last), last == last_done) if planned else None

    def query_id(self) -> str | None:
        """That of its query; None where no query has begun. Raises CheckpointError."""
        found = self._parsed("metadata")
        if found is None:
            return None
        if not isinstance(found[0], dict) or not isinstance(found[0].get("id"), str):
            raise self._damaged("metadata", "it has no id")
        return str(found[0]["id"])

    def check_query(self, known: str) -> None:
        """Raise CheckpointError where it is not, or no longer, that of the query with this id."""
        if (found := self.query_id()) == known:
            return
        became = "it is empty" if found is None else f"it is that of query {found}"
        raise CheckpointError(
            f"the checkpoint {self._root.toString()} was that of query {known}, and now {became}: somebody has removed "
            "or replaced it while its listener ran. Another query would deliver anew what this one has read, or leave "
            "out what it has not. Put it back, or start the service again to begin anew: with starting_offsets=group "
            "that goes on where the group stands"
        )

    def is_planned(self, batch: int) -> bool:
        """Whether Spark has written down where a batch ends."""
        return bool(self._files.exists(self._path(f"offsets/{batch}")))

    def is_done(self, batch: int) -> bool:
        """Whether Spark has written down that a batch is."""
        return bool(self._files.exists(self._path(f"commits/{batch}")))

    def end(self, batch: int) -> Any:
        """Where a batch ends, as its source wrote it; None when that is not known (any more)."""
        found = self._parsed(f"offsets/{batch}", version=True)
        if found is not None and len(found) < 2:
            raise self._damaged(f"offsets/{batch}", "it has no offset")
        return None if found is None else found[1]

    def read_up_to(self, planned: PlannedBatch | None) -> dict[MessageQueue, int] | None:
        """Where the last batch ends that is done; None where nobody knows yet where a queue begins."""
        if planned is None or planned.end is None:
            return None
        end = decode_offset(planned.end)
        if planned.done:
            return {queue: progress.next for queue, progress in end.queues.items()}
        before = self.end(planned.id - 1) if planned.id else None
        begun = {} if before is None else decode_offset(before).queues
        return {queue: begun[queue].next if queue in begun else found.first for queue, found in end.queues.items()}

    def attempts(self, planned: PlannedBatch | None) -> int:
        """How often the function was given the batch that is not done yet, by this process and those before it."""
        if planned is None or planned.done:
            return 0
        try:
            text = self._read(ATTEMPTS)
            if text is None:
                return 1
            noted = json.loads(text)
            if noted["batch"] != planned.id:
                return 1
            if type(count := noted["attempts"]) is not int or count < 0:
                raise ValueError(f"attempts is {count!r}, no whole number from 0 on")
            return count
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            _log.warning("%s of checkpoint %s cannot be read, so batch %d counts as tried once: %s",
                         ATTEMPTS, self._root.toString(), planned.id, error)  # fmt: skip
            return 1

    def note(self, batch: int, attempts: int) -> None:
        """Keep that a batch was tried so often.

        Whole or not at all: Spark interrupts a thread that writes when it stops a query.
        """
        self._write(ATTEMPTS, json.dumps({"batch": batch, "attempts": attempts}))

    def rows_of_a_task(self, planned: PlannedBatch | None, wanted: int) -> int:
        """How many rows a task of the query is to read that begins now: as many as before while it owes a batch.

        It is noted before there is a batch of that query.
        """
        try:
            noted = int(self._read(ROWS_OF_A_TASK) or 0)
        except ValueError:  # torn; the key of a row may be another one then
            noted = 0
        if noted > 0 and planned is not None and not planned.done:
            return noted
        if noted != wanted:
            self._write(ROWS_OF_A_TASK, str(wanted))
        return wanted

    def holder(self) -> str | None:
        """The driver that has read from it last, and has not given its lease back; None where there is none."""
        try:
            return self._read(HOLDER) or None
        except ValueError as error:
            return f"somebody ({error})"

    def note_holder(self, name: str) -> None:
        """Keep who reads from it now; nobody, where the name is empty."""
        self._write(HOLDER, name)

    def _write(self, name: str, text: str) -> None:
        draft, path = self._path(f"{name}.draft"), self._path(name)
        output = self._files.create(draft, True)
        try:
            output.write(text.encode())
        finally:
            output.close()
        self._files.delete(path, False)  # not every file system renames to a name that is there
        if not self._files.rename(draft, path):
            raise OSError(f"{draft.toString()} could not be renamed to {path.toString()}")

    def _path(self, name: str) -> Any:
        return self._java.org.apache.hadoop.fs.Path(self._root, name)

    def _numbers(self, folder: str) -> set[int]:
        path = self._path(folder)
        if not self._files.exists(path):
            return set()
        names = (status.getPath().getName() for status in self._files.listStatus(path))
        return {int(name) for name in names if name.isdecimal()}

    def _parsed(self, name: str, *, version: bool = False) -> list[Any] | None:
        """The lines of JSON in a file of Spark's, behind the one with its ``version``; None: there is no such file."""
        try:
            text = self._read(name)
            if text is None:
                return None
            lines = text.splitlines()
            if version and not re.fullmatch(r"v\d+", lines.pop(0) if lines else ""):
                raise ValueError("it has no version")
            if not lines:
                raise ValueError("it ends too early")
            return [None if line == "-" else json.loads(line) for line in lines]
        except ValueError as error:
            raise self._damaged(name, str(error)) from error

    def _damaged(self, name: str, why: str, how: str = "is cut or was written over") -> CheckpointError:
        return CheckpointError(
            f"the checkpoint {self._root.toString()} is damaged, its file {name} {how} ({why}): "
            "restore it from a copy, or begin anew: with starting_offsets=group that goes on where the group stands "
            f"({RESET})"
        )

    def _read(self, name: str) -> str | None:
        """The text of a file; None: there is none. Raises ValueError for one whose checksum does not fit."""
        path = self._path(name)
        if not self._files.exists(path):
            return None
        stream = self._files.open(path)
        try:
            return str(self._java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        except Py4JJavaError as error:
            if "ChecksumException" not in str(error.java_exception):
                raise
            raise ValueError("its checksum does not fit") from error
        finally:
            stream.close()
