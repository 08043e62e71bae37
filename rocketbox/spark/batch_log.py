"""What a query's checkpoint says: the last batch that was planned, whether it is done, and how often it was tried.

Spark writes ``offsets/N`` before a batch and ``commits/N`` behind it, on any file system that Hadoop knows; beside them
stands here ``rocketbox/attempts.json``, which counts a batch that fails over the ends of processes. A first attempt
needs no note: a batch that is planned and not done when a query starts has been tried once. What an orderly stop cuts
short is noted as not tried.

Source: Apache Spark 4.3.0 ``OffsetSeqLog``, ``CommitLog`` (text: a line with the version, one of JSON for all, one for
each source). Everything here blocks, and asks the Java process.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

__all__ = ["BatchLog", "PlannedBatch"]

_log = logging.getLogger(__name__)

ATTEMPTS = "rocketbox/attempts.json"


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
        """The batch that was planned last; None before the first one."""
        planned = self._numbers("offsets")
        if not planned:
            return None
        last = max(planned)
        return PlannedBatch(last, self.end(last), last in self._numbers("commits"))

    def end(self, batch: int) -> Any:
        """Where a batch ends, as its source wrote it; None when that is not known (any more)."""
        text = self._read(f"offsets/{batch}")
        lines = [] if text is None else text.splitlines()
        return json.loads(lines[2]) if len(lines) > 2 and lines[2] != "-" else None

    def attempts(self, planned: PlannedBatch | None) -> int:
        """How often the function was given the batch that is not done yet, by this process and those before it."""
        if planned is None or planned.done:
            return 0
        text = self._read(ATTEMPTS)
        if text is None:
            return 1
        try:
            noted = json.loads(text)
            return int(noted["attempts"]) if noted["batch"] == planned.id else 1
        except (ValueError, KeyError, TypeError) as error:
            _log.warning("%s of checkpoint %s cannot be read, so batch %d counts as tried once: %s",
                         ATTEMPTS, self._root.toString(), planned.id, error)  # fmt: skip
            return 1

    def note(self, batch: int, attempts: int) -> None:
        """Keep that a batch was tried so often.

        Whole or not at all: Spark interrupts a thread that writes when it stops a query.
        """
        draft, path = self._path(f"{ATTEMPTS}.draft"), self._path(ATTEMPTS)
        output = self._files.create(draft, True)
        try:
            output.write(json.dumps({"batch": batch, "attempts": attempts}).encode())
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

    def _read(self, name: str) -> str | None:
        path = self._path(name)
        if not self._files.exists(path):
            return None
        stream = self._files.open(path)
        try:
            return str(self._java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()
