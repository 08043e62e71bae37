"""What Spark's checkpoint keeps of a stream: for each queue how far it was read, and what says that it is that queue.

Pure: no client, no Spark. The text is the same for the same values, since Spark compares texts: the same numbers in
another order would make it run empty batches for ever. Form 1, keys sorted, in each line of the offset log::

    {"group": "etl", "queues": {"orders": {"broker-a": {"0": {
        "first": 0, "log": 5120, "next": 5, "stored": 1795000000000}}}}, "v": 1}

``next`` is the offset that comes next. ``first`` is where the query began in the queue: with it in the *end* of a batch
a repeated batch begins where it began before, although Spark asks for the first offsets anew then. ``log`` and
``stored`` belong to the last message before ``next``, its witness: its place in the broker's commit log and its store
time. Apache RocketMQ has no identity of a cluster, ``DefaultCluster`` and ``broker-a`` are everywhere; two stores do
not hold another message of that time at that place. A master, its replicas and whoever is made master have the same
log, so the same witness. It is left out where there is none: at offset 0, or when it was deleted already.
``stood`` is how far the group was when the query began in the queue, where that was further than ``first``: what lies
before it was read by others, and not from another checkpoint of this query's.
``since`` beside ``group`` is when a query began that reads from the latest on, in milliseconds: a queue that it finds
later, because its broker was away then, is read from there, and not what it had before. ``start`` is what
``startingOffsets`` said then, in one form; ``tags`` is the filter that the batch was planned with, and is read with
when it comes again.
``{"initial": true, "v": 1}`` is the place before the first batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rocketbox.errors import RocketBoxError
from rocketbox.message import MessageQueue
from rocketbox.spark.starting import PlaceKind, begun_at

__all__ = [
    "INITIAL",
    "CheckpointError",
    "QueueProgress",
    "StreamOffset",
    "Witness",
    "decode_ends",
    "decode_offset",
    "encode_ends",
    "encode_offset",
    "lag",
]

VERSION = 1
RESET = "rocketbox spark reset shows what is in a checkpoint and begins anew"


class CheckpointError(RocketBoxError):
    """A checkpoint cannot be gone on with; trying again changes nothing."""


@dataclass(frozen=True, slots=True)
class Witness:
    """The last message before an offset: when it was stored, and where in the broker's commit log."""

    stored_ms: int
    log_offset: int


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """A query began at ``first`` in a queue and goes on at ``next``; its group ``stood`` further then, if not None."""

    first: int
    next: int
    witness: Witness | None = None
    stood: int | None = None

    @property
    def known(self) -> int:
        """How far the group may be without anybody else having read on."""
        return max(self.next, self.stood or 0)


@dataclass(frozen=True)
class StreamOffset:
    """One offset of a stream, as Spark counts them. ``group`` is the one that the checkpoint belongs to, ``namespace``
    that of its names.
    """

    queues: Mapping[MessageQueue, QueueProgress] = field(default_factory=dict)
    group: str | None = None
    initial: bool = False
    since_ms: int | None = None
    """When a query began that reads from the latest on."""
    namespace: str | None = None
    start: str | None = None
    """Where the query began, as ``starting.text_of`` writes it; None: a version wrote it that did not keep that."""
    tags: str | None = None
    """The filter of the batch that ends here; None as with ``start``."""


INITIAL = StreamOffset(initial=True)
"""Before the first batch: where that one begins is written in its end."""


def encode_offset(offset: StreamOffset) -> dict[str, Any]:
    """The dictionary that goes into Spark's offset log, keys in one order."""
    if offset.initial:
        return {"initial": True, "v": VERSION}
    queues = _tree({queue: _encode_progress(progress) for queue, progress in offset.queues.items()})
    fields = {
        "group": offset.group, "namespace": offset.namespace, "queues": queues, "since": offset.since_ms,
        "start": offset.start, "tags": offset.tags, "v": VERSION,
    }  # fmt: skip
    return {name: value for name, value in fields.items() if value is not None}


def encode_ends(ends: Mapping[MessageQueue, int]) -> dict[str, Any]:
    """Ends of queues in the same form, for the progress that Spark reports; no offset to go on from."""
    return {"queues": _tree({queue: {"next": end} for queue, end in ends.items()}), "v": VERSION}


def decode_offset(value: Any) -> StreamOffset:
    """The offset in a dictionary out of Spark's offset log. Raises CheckpointError that says what to do."""
    _check_version(value)
    if value == encode_offset(INITIAL):
        return INITIAL
    try:
        group, namespace, start, tags = (_text(value, name) for name in ("group", "namespace", "start", "tags"))
        if start is not None and begun_at(start).has(PlaceKind.GROUP) and group is None:
            raise ValueError("start is group, and there is no group")
        since = _number(value, "since") if "since" in value else None
        queues = {queue: _decode_progress(found) for queue, found in _leaves(value["queues"])}
        return StreamOffset(queues, group, since_ms=since, namespace=namespace, start=start, tags=tags)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _unreadable(value, error) from error


def decode_ends(value: Any) -> dict[MessageQueue, int]:
    """How far each queue is in what :func:`encode_offset` or :func:`encode_ends` has made. Raises CheckpointError."""
    _check_version(value)
    try:
        return {queue: _number(found, "next") for queue, found in _leaves(value.get("queues", {}))}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(value, error) from error


def lag(processed: Any, latest: Any) -> dict[MessageQueue, int]:
    """How many messages of each queue are still to be read: two dictionaries of Spark's progress compared."""
    done = decode_ends(processed)
    return {queue: max(0, end - done.get(queue, end)) for queue, end in decode_ends(latest).items()}


def _tree(values: Mapping[MessageQueue, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    result: dict[str, dict[str, dict[str, Any]]] = {}
    for queue in sorted(values, key=lambda queue: (queue.topic, queue.broker_name, str(queue.queue_id))):
        result.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = values[queue]
    return result


def _leaves(tree: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Iterator[tuple[MessageQueue, Any]]:
    for topic, brokers in tree.items():
        for broker, queues in brokers.items():
            for queue_id, value in queues.items():
                yield MessageQueue(topic, broker, int(queue_id)), value


def _encode_progress(progress: QueueProgress) -> dict[str, int]:
    found = {"first": progress.first, "next": progress.next}
    if progress.witness is not None:
        found |= {"log": progress.witness.log_offset, "stored": progress.witness.stored_ms}
    if progress.stood is not None:
        found["stood"] = progress.stood
    return dict(sorted(found.items()))


def _decode_progress(found: Mapping[str, Any]) -> QueueProgress:
    first, following = _number(found, "first"), _number(found, "next")
    if first > following:
        raise ValueError(f"first {first} lies behind next {following}")
    stood = _number(found, "stood") if "stood" in found else None
    if "log" not in found and "stored" not in found:
        return QueueProgress(first, following, None, stood)
    return QueueProgress(first, following, Witness(_number(found, "stored"), _number(found, "log")), stood)


def _number(found: Mapping[str, Any], name: str) -> int:
    value = found[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name} is {value!r}, no whole number from 0 on")
    return value


def _text(found: Mapping[str, Any], name: str) -> str | None:
    value = found.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name} {value!r} is no text")
    return value


def _check_version(value: Any) -> None:
    if not isinstance(value, Mapping):
        raise _unreadable(value, "it is no JSON object")
    version = value.get("v")
    if version == VERSION and not isinstance(version, bool):
        return
    if isinstance(version, int) and version > VERSION:
        raise CheckpointError(
            f"the checkpoint was written by a newer rocketbox: its offsets have form {version}, and this version reads "
            f"form {VERSION}; upgrade rocketbox, or use another checkpoint"
        )
    if version is None and value and all(isinstance(each, Mapping) for each in value.values()):
        raise CheckpointError(
            "the checkpoint was written by an earlier rocketbox: its offsets do not say which store they are of, and "
            "in another one they would skip messages. Use another checkpoint: with startingOffsets=group it goes on "
            f"where the group stands, which the old one has mirrored ({RESET})"
        )
    raise _unreadable(value, f"its form v is {version!r}")


def _unreadable(value: Any, error: object) -> CheckpointError:
    text = str(value)
    text = text if len(text) <= 200 else f"{text[:200]}..."
    return CheckpointError(
        f"the checkpoint holds {text}, which are no offsets of the source rocketmq ({error}); use another checkpoint, "
        f"or mend this one ({RESET})"
    )
