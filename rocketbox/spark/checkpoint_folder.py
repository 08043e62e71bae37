"""A checkpoint that is a folder of this machine: who uses it, what is in it, and how it is set aside.

A listener holds a shared lock on ``rocketbox/in-use`` while it runs, which the system gives back when its process ends
in whatever way; setting a checkpoint aside needs the lock alone. Source: Apache Spark 4.3.0 ``OffsetSeqLog``,
``CommitLog``, ``StreamMetadata`` (files of numbered batches: a line with the version, one of JSON for the batch, one
for each source).
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocketbox.spark.checkpoint import CheckpointError, decode_offset

__all__ = ["CheckpointContent", "CheckpointInUseError", "begins_anew", "in_use", "read_checkpoint", "set_aside"]


_log = logging.getLogger(__name__)

RESET_WORD = "rocketbox/reset"


class CheckpointInUseError(CheckpointError):
    """A listener of a process on this machine uses it."""


@dataclass(frozen=True)
class CheckpointContent:
    """What a checkpoint says: its query, the batch planned last (None: none yet) and whether it is done, and where each
    queue is, in lines for people."""

    query_id: str
    batch: int | None
    done: bool
    places: tuple[str, ...]


@contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Hold it as a listener does, beside any others. Raises OSError when it cannot be written."""
    with _locked(folder, fcntl.LOCK_SH):
        yield


@contextmanager
def _locked(folder: Path, how: int) -> Iterator[None]:
    """Another folder may take this one's place until it is locked: then that is the one that is meant."""
    file = folder / "rocketbox" / "in-use"
    while True:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
            if _is_at(descriptor, file):
                yield
                return
        finally:
            os.close(descriptor)


def _is_at(descriptor: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except FileNotFoundError:
        return False


def read_checkpoint(folder: Path) -> CheckpointContent:
    """What is in it. Raises CheckpointError when it is none of Spark's."""
    try:
        query_id = json.loads((folder / "metadata").read_text("utf-8"))["id"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder} is no checkpoint of a query of Spark: its file metadata: {error}") from error
    planned, done = _numbers(folder / "offsets"), _numbers(folder / "commits")
    batch = max(planned, default=None)
    places = () if batch is None else tuple(_places(folder / "offsets" / str(batch)))
    return CheckpointContent(query_id, batch, batch in done, places)


def set_aside(folder: Path) -> Path:
    """Move it to a name beside it that is free, and return that. Raises CheckpointInUseError.

    An empty one takes its place, which :func:`begins_anew`, if it can be made as the listener needs it.
    """
    try:
        with _locked(folder, fcntl.LOCK_EX):
            number = next(number for number in range(1, 10**6) if not _beside(folder, number).exists())
            aside = folder.rename(_beside(folder, number))
            _leave_word(folder, aside)
            return aside
    except BlockingIOError as error:
        raise CheckpointInUseError(f"a Spark listener on this machine uses {folder}: stop it first") from error


def begins_anew(folder: Path) -> bool:
    """Whether :func:`set_aside` has left this in the place of another one, so that it is empty on purpose."""
    return (folder / RESET_WORD).exists()


def _leave_word(folder: Path, aside: Path) -> None:
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        inside = draft / "rocketbox"
        inside.mkdir()
        (draft / RESET_WORD).write_text(f"its place was taken from {aside.name}\n", "utf-8")
        with suppress(FileNotFoundError):  # a listener whose lock on it failed has none
            (inside / "driver").write_bytes((aside / "rocketbox" / "driver").read_bytes())
        owner, mode = aside.stat(), stat.S_IMODE(aside.stat().st_mode)
        for place in (*inside.iterdir(), inside, draft):  # whoever resets may be another user than the service
            os.chown(place, owner.st_uid, owner.st_gid)
            place.chmod(mode if place.is_dir() else mode & 0o666)
        draft.rename(folder)
    except OSError as error:  # or a listener has just begun in a folder of its own
        _log.info("nothing was put in the place of %s: %s", aside, error)
        shutil.rmtree(draft, ignore_errors=True)


def _beside(folder: Path, number: int) -> Path:
    return folder.with_name(f"{folder.name}.reset-{number}")


def _numbers(folder: Path) -> set[int]:
    return {int(file.name) for file in folder.glob("*") if file.name.isdecimal()}


def _places(file: Path) -> Iterator[str]:
    for line in file.read_text("utf-8").splitlines()[2:]:
        if line == "-":
            continue
        try:
            value: Any = json.loads(line)
            offset = decode_offset(value)
        except (ValueError, CheckpointError):
            yield f"offsets that this version cannot read: {line[:200]}"
            continue
        for queue, progress in offset.queues.items():
            where = f"{queue.topic}, {queue.broker_name}, queue {queue.queue_id}"
            yield f"{where}: from {progress.first} up to {progress.next}"
