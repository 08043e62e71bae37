"""Stored records to Arrow record batches: what pulls brought, decoded by columns, no Python object per message.

A pull's answer is records back to back (``rocketbox.protocol.stored_message`` has the layout). ``record_starts`` walks
over their sizes; all else is done for the records of many pulls at once: numbers of fixed places are gathered with
numpy, bodies, topics and property texts are copied by their places in one call each. Records that are compressed or
hold an inner batch are first replaced by the plain ones that the client's decoder makes of them.

Rows equal what ``decode_messages`` and :class:`~rocketbox.message.MessageExt` say of the same records, but for one that
cannot be read: it has a null body and the reason in ``_error``. Which pulls are made is ``reading``'s.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rocketbox.errors import RemoteProtocolError
from rocketbox.message import MessageExt, MessageQueue, Property, format_offset_msg_id
from rocketbox.protocol.codes import MessageSysFlag
from rocketbox.protocol.compression import MAX_BODY_BYTES
from rocketbox.protocol.namespaces import NO_NAMESPACE, Namespace
from rocketbox.protocol.stored_message import (
    COMPRESSED,
    INNER_BATCH,
    MAGIC_V1,
    MAGIC_V2,
    StoredMessage,
    decode_message,
    decode_some_messages,
    encode_stored_message,
)
from rocketbox.spark.body_formats import BodyFormat
from rocketbox.spark.columns import COLUMNS, ERROR
from rocketbox.spark.json_bodies import CONTENT_TYPE_COLUMN, in_json
from rocketbox.spark.property_columns import Places, Properties, slices

__all__ = [
    "BYTES_PER_RECORD_BATCH",
    "Pulled",
    "RecordDecoder",
    "arrow_schema",
    "plain_offsets",
    "queue_offsets",
    "record_starts",
    "unreadable_record",
]

BYTES_PER_RECORD_BATCH = 6 * 1024 * 1024

_TIMESTAMP = pa.timestamp("us", tz="UTC")
_TYPES: Final[Mapping[str, Any]] = {
    "binary": pa.binary(),
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": _TIMESTAMP,
    "array<string>": pa.list_(pa.string()),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}
_FROM_PROPERTIES = {"msg_id", "tag", "keys", "properties"}

_UNSIGNED_V1, _UNSIGNED_V2 = MAGIC_V1 & 0xFFFF_FFFF, MAGIC_V2 & 0xFFFF_FFFF
_BORN_V6, _STORED_V6 = int(MessageSysFlag.BORNHOST_V6), int(MessageSysFlag.STOREHOST_V6)
_FRAME = struct.Struct(">iI")  # size and magic
_PLACE = struct.Struct(">qqi")  # queue offset, log offset, system flag
PLACE_AT = 4 + 4 + 4 + 4 + 4  # size, magic, crc, queue id, flag
_HEAD = np.dtype(
    [
        ("size", ">i4"), ("magic", ">u4"), ("crc", ">u4"), ("queue_id", ">i4"), ("flag", ">i4"),
        ("queue_offset", ">i8"), ("log_offset", ">i8"), ("sys_flag", ">i4"), ("born", ">i8"),
    ]
)  # fmt: skip
_STORED = np.dtype(">i8")  # behind the born host; the store host follows
_TAIL = np.dtype([("reconsume_times", ">i4"), ("prepared", ">i8"), ("body_size", ">i4")])
_SHORT = np.dtype(">i2")
HOST_V4, HOST_V6 = 4 + 4, 16 + 4  # ip and port
LEAST_RECORD = _HEAD.itemsize + HOST_V4 + _STORED.itemsize + HOST_V4 + _TAIL.itemsize + 1 + 2
# What a timestamp of Spark holds and Python's datetime can show: the years 1 to 9999.
FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999


def arrow_schema(columns: Sequence[str]) -> Any:
    """The schema of these columns, exactly as Spark expects it from its DDL."""
    return pa.schema([(name, _TYPES[COLUMNS[name]]) for name in columns])


@dataclass(frozen=True, slots=True)
class Pulled:
    """The records that a pull brought, and where each begins; offsets from ``start`` to before ``end`` are wanted."""

    queue: MessageQueue
    start: int
    end: int
    data: bytes
    starts: Sequence[int]
    error: str | None = None
    """Why it is one of :func:`unreadable_record`."""
    next_begin_offset: int | None = None
    """What the pull has said to come next, behind all of its records; ``end`` may lie within an inner batch."""


def record_starts(data: bytes) -> list[int]:
    """Where each record in ``data`` begins. Raises RemoteProtocolError when they do not fill it."""
    starts: list[int] = []
    append, unpack = starts.append, _FRAME.unpack_from
    position, end = 0, len(data)
    last = end - LEAST_RECORD
    while position <= last:
        size, magic = unpack(data, position)
        if size < LEAST_RECORD or (magic != _UNSIGNED_V1 and magic != _UNSIGNED_V2):
            break
        append(position)
        position += size
    if position != end:
        raise RemoteProtocolError(f"no whole message at byte {starts[-1] if position > end else position} of {end}")
    return starts


def unreadable_record(queue_offset: int) -> bytes:
    """Stands for a message of which only the offset is known."""
    head = np.zeros(1, _HEAD)
    head["size"], head["magic"], head["queue_offset"] = LEAST_RECORD, _UNSIGNED_V1, queue_offset
    tail = np.zeros(1, _TAIL)
    tail["body_size"] = -1
    hosts = bytes(HOST_V4 + _STORED.itemsize + HOST_V4)
    return head.tobytes() + hosts + tail.tobytes() + bytes(LEAST_RECORD - 88)


def queue_offsets(data: bytes, starts: Sequence[int]) -> tuple[list[int], bool]:
    """The queue offsets of these records, and whether one of them is an inner batch, which stands for several.

    Fast path: with numpy it is six times as long for the 32 records of a pull.
    """
    unpack = _PLACE.unpack_from
    places = [unpack(data, start + PLACE_AT) for start in starts]
    return [offset for offset, _, _ in places], any(flag & INNER_BATCH == INNER_BATCH for _, _, flag in places)


def plain_offsets(data: bytes, starts: Sequence[int]) -> list[int] | None:
    """The queue offsets of these records; None when one of them is an inner batch."""
    offsets, has_inner_batch = queue_offsets(data, starts)
    return None if has_inner_batch else offsets


@dataclass(slots=True)
class _Records:
    """Records back to back: where each begins, which pull brought it, and what is wrong with some of them."""

    data: bytes
    starts: Places
    pulls: npt.NDArray[np.int64]
    errors: dict[int, str] = field(default_factory=dict)
    """By number of the record."""


class RecordDecoder:
    """Makes record batches of pulls: ``columns``, and only messages with one of ``tags`` where there are any.

    Topics are as their users know them who are in ``namespace``; properties stay as they are stored. Bodies of a
    ``body_format`` become JSON text; one that is none is null, and ``_error`` says why.
    """

    def __init__(
        self,
        columns: Sequence[str],
        tags: Collection[str] = (),
        namespace: Namespace = NO_NAMESPACE,
        body_format: BodyFormat | None = None,
    ) -> None:
        self._namespace = namespace
        self.schema = arrow_schema(columns)
        self._columns = tuple(columns)
        self._tags = pa.array(sorted(tags), pa.string()) if tags else None
        self._has_body = "body" in columns
        self._body_format = body_format if self._has_body else None
        self._decoded = self.schema if self._body_format is None else self.schema.append(CONTENT_TYPE_COLUMN)
        self._has_properties = bool(tags) or not _FROM_PROPERTIES.isdisjoint(columns)

    def record_batches(self, pulled: Sequence[Pulled]) -> Iterator[Any]:
        """The rows of these pulls in their order; several batches where bodies are much larger than they came."""
        records = _joined(pulled)
        pulled = [replace(pull, data=b"", starts=()) for pull in pulled]  # while Spark works, nothing is held twice
        odd = self._odd(records)
        pieces = _rewritten(records, pulled, odd) if odd.any() else iter([records])
        del records
        for piece in pieces:
            batch = self._record_batch(piece, pulled)
            del piece
            if batch.num_rows and self._body_format is not None:
                yield from in_json(batch, self._body_format, BYTES_PER_RECORD_BATCH)
            elif batch.num_rows:
                yield batch

    def _odd(self, records: _Records) -> Any:
        """Which records are more than they look: an inner batch, or compressed where that matters."""
        flags = _gather(records.data, _HEAD, records.starts)["sys_flag"]
        odd = flags & INNER_BATCH == INNER_BATCH
        return odd | (flags & COMPRESSED != 0) if self._has_body else odd

    def _record_batch(self, records: _Records, pulled: Sequence[Pulled]) -> Any:
        records, head = _wanted(records, pulled)
        places = _Layout(records, head)
        errors = records.errors
        queues = [pull.queue for pull in pulled]
        broken = np.flatnonzero(places.broken)
        for row in broken:
            pull = pulled[records.pulls[row]]
            errors[int(row)] = pull.error or places.reason(int(row))
        columns: dict[str, Any] = {
            "queue_id": pa.array(head["queue_id"].astype(np.int32)),
            "queue_offset": pa.array(head["queue_offset"].astype(np.int64)),
            "reconsume_times": pa.array(np.maximum(places.tail["reconsume_times"].astype(np.int32), 0)),
            "broker_name": pa.array([queue.broker_name for queue in queues], pa.string()).take(pa.array(records.pulls)),
            "born_timestamp": _times(head["born"], "born", errors, places.broken),
            "store_timestamp": _times(places.stored, "store", errors, places.broken),
        }
        if "topic" in self._columns:
            columns["topic"] = self._plain(places.topics(errors))
        if self._has_properties or self._body_format is not None:
            properties = Properties(places.property_texts())
            columns |= self._from_properties(properties, places, head)
        if self._has_body:
            bodies = places.bodies()
            if errors:
                bodies = pc.if_else(_mask(errors, len(bodies)), pa.scalar(None, pa.binary()), bodies)
            columns["body"] = bodies
        if ERROR in self._columns:
            length = len(records.starts)
            texts = [errors.get(row) for row in range(length)] if errors else None
            columns[ERROR] = pa.array(texts, pa.string()) if texts else pa.nulls(length, pa.string())
        tags = columns.get("tag")
        if self._body_format is not None:
            columns[CONTENT_TYPE_COLUMN.name] = properties.named(CONTENT_TYPE_COLUMN.name)
        batch = pa.RecordBatch.from_arrays([columns[name] for name in self._decoded.names], schema=self._decoded)
        if len(broken):
            batch = self._with_broken(batch, {int(row): queues[records.pulls[row]] for row in broken})
        if self._tags is None:
            return batch
        wanted = pc.is_in(tags, self._tags)  # brokers compare hashes of tags only
        if len(broken):
            wanted = pc.or_(wanted, pa.array(places.broken))  # its tag is not known
        return batch if pc.all(wanted).as_py() is not False else batch.filter(wanted)

    def _plain(self, topics: Any) -> Any:
        """Topics without the namespace; there are few of them among many rows."""
        if not self._namespace:
            return topics
        known = topics.dictionary_encode()
        names = pa.array([self._namespace.unwrap(name) for name in known.dictionary.to_pylist()], pa.string())
        return names.take(known.indices)

    def _from_properties(self, properties: Properties, places: _Layout, head: Any) -> dict[str, Any]:
        """The columns that are read from property texts."""
        columns: dict[str, Any] = {}
        if "msg_id" in self._columns:
            ids = properties.named(Property.UNIQ_KEY)
            columns["msg_id"] = pc.coalesce(ids, places.offset_msg_ids(ids, head)) if ids.null_count else ids
        if "tag" in self._columns or self._tags is not None:
            columns["tag"] = properties.named(Property.TAGS)
        if "keys" in self._columns:
            columns["keys"] = properties.keys(Property.KEYS)
        if "properties" in self._columns:
            columns["properties"] = properties.maps()
        return columns

    def _with_broken(self, batch: Any, queues: Mapping[int, MessageQueue]) -> Any:
        """The batch, in which rows of records that do not hold together have only what is surely known of them."""
        rows = batch.to_pylist()
        for row, queue in queues.items():
            known = {
                "topic": queue.topic, "broker_name": queue.broker_name, "queue_id": queue.queue_id,
                "queue_offset": rows[row].get("queue_offset"), ERROR: rows[row].get(ERROR),
            }  # fmt: skip
            rows[row] = {name: known.get(name) for name in self._columns}
        return pa.RecordBatch.from_pylist(rows, schema=self._decoded)


class _Layout:
    """Where the parts of records lie. ``broken``: which records have parts that do not fit into them."""

    def __init__(self, records: _Records, head: Any) -> None:
        self._data, self._starts = records.data, records.starts
        data, starts = records.data, records.starts
        ends = starts + head["size"]
        flags = head["sys_flag"]
        born_host, store_host = (
            np.where(flags & flag, HOST_V6, HOST_V4) if (flags & flag).any() else HOST_V4
            for flag in (_BORN_V6, _STORED_V6)
        )
        at_stored = starts + _HEAD.itemsize + born_host
        at_tail = np.minimum(at_stored + _STORED.itemsize + store_host, ends - _TAIL.itemsize)
        self.stored = _gather(data, _STORED, np.minimum(at_stored, ends - _STORED.itemsize))
        self._store_hosts, self._tails = at_stored + _STORED.itemsize, at_tail
        self.tail = _gather(data, _TAIL, at_tail)
        body_starts = at_tail + _TAIL.itemsize
        body_ends = body_starts + self.tail["body_size"]
        two_bytes = head["magic"] == _UNSIGNED_V2  # of the topic's length
        broken = (body_ends < body_starts) | (body_ends + 1 + two_bytes > ends)
        within = np.where(broken, starts, body_ends)
        topic_sizes = np.frombuffer(data, np.uint8)[within].astype(np.int64)
        if two_bytes.any():
            topic_sizes = np.where(two_bytes, _gather(data, _SHORT, within), topic_sizes)
        topic_starts = within + 1 + two_bytes
        topic_ends = topic_starts + topic_sizes
        broken |= (topic_sizes < 0) | (topic_ends + _SHORT.itemsize > ends)
        within = np.where(broken, starts, topic_ends)
        property_sizes = _gather(data, _SHORT, within)
        property_starts = within + _SHORT.itemsize
        broken |= (property_sizes < 0) | (property_starts + property_sizes != ends)
        self.broken = broken
        self._bodies = self._bounds(body_starts, body_ends)
        self._topics = self._bounds(topic_starts, topic_ends)
        self._properties = self._bounds(property_starts, ends)

    def _bounds(self, starts: Places, ends: Places) -> Places:
        """start, end, start, end ...; nothing of broken records."""
        bounds = np.empty(2 * len(starts), np.int64)
        bounds[0::2] = np.where(self.broken, self._starts, starts)
        bounds[1::2] = np.where(self.broken, self._starts, ends)
        return bounds

    def _slices(self, kind: Any, bounds: Places) -> Any:
        return slices(kind, pa.py_buffer(self._data), bounds, len(self._starts))

    def bodies(self) -> Any:
        return self._slices(pa.binary(), self._bodies)

    def property_texts(self) -> Any:
        return self._slices(pa.binary(), self._properties)

    def topics(self, errors: dict[int, str]) -> Any:
        """The topics; what is no UTF-8 is replaced, and noted in ``errors``."""
        topics = self._slices(pa.binary(), self._topics)
        try:
            return topics.cast(pa.string())
        except pa.ArrowInvalid:
            texts = []
            for row, topic in enumerate(topics.to_pylist()):
                texts.append(topic.decode("utf-8", "replace"))
                if "\ufffd" in texts[-1]:
                    errors.setdefault(row, self.reason(row))
            return pa.array(texts, pa.string())

    def reason(self, row: int) -> str:
        """What the client's decoder says of the record."""
        start = int(self._starts[row])
        (size,) = struct.unpack_from(">i", self._data, start)
        try:
            decode_message(self._data[start : start + size], decompress=False)
        except RemoteProtocolError as error:
            return str(error)
        return "its topic holds U+FFFD"

    def offset_msg_ids(self, ids: Any, head: Any) -> Any:
        """The offset ids of messages whose sender gave them no id; null for the others."""
        missing = ids.is_null().to_numpy(zero_copy_only=False)
        texts: list[str | None] = [None] * len(ids)
        for row in np.flatnonzero(missing):
            host = self._data[int(self._store_hosts[row]) : int(self._tails[row])]
            port = int.from_bytes(host[-4:], "big")
            texts[row] = format_offset_msg_id(host[:-4], port, int(head["log_offset"][row]))
        return pa.array(texts, pa.string())


def _gather(data: bytes, kind: Any, places: Places) -> Any:
    """The values of ``kind`` at these places, which need not be aligned."""
    if not len(places):
        return np.empty(0, kind)
    return np.ndarray((len(data) - kind.itemsize + 1,), kind, data, 0, (1,))[places]


def _mask(rows: Mapping[int, object], length: int) -> Any:
    mask = np.zeros(length, bool)
    mask[list(rows)] = True
    return pa.array(mask)


def _joined(pulled: Sequence[Pulled]) -> _Records:
    data = pulled[0].data if len(pulled) == 1 else b"".join([pull.data for pull in pulled])
    counts = [len(pull.starts) for pull in pulled]
    bases = np.cumsum([0, *(len(pull.data) for pull in pulled[:-1])])
    starts = np.fromiter(chain.from_iterable(pull.starts for pull in pulled), np.int64, sum(counts))
    return _Records(data, starts + np.repeat(bases, counts), np.repeat(np.arange(len(pulled)), counts))


def _wanted(records: _Records, pulled: Sequence[Pulled]) -> tuple[_Records, Any]:
    """The records whose offsets were asked for, and their heads."""
    head = _gather(records.data, _HEAD, records.starts)
    offsets = head["queue_offset"]
    firsts, ends = (np.array([getattr(pull, name) for pull in pulled])[records.pulls] for name in ("start", "end"))
    keep = (offsets >= firsts) & (offsets < ends)
    if keep.all():
        return records, head
    numbers = np.cumsum(keep) - 1
    errors = {int(numbers[row]): text for row, text in records.errors.items() if keep[row]}
    return _Records(records.data, records.starts[keep], records.pulls[keep], errors), head[keep]


def _times(values: Any, which: str, errors: dict[int, str], broken: Any) -> Any:
    """Milliseconds as timestamps; one that is no time is null, and noted in ``errors``."""
    values = values.astype(np.int64)
    odd = (values < FIRST_MS) | (values > LAST_MS)
    if not odd.any():
        return pa.array(values * 1000).view(_TIMESTAMP)
    for row in np.flatnonzero(odd & ~broken):
        errors.setdefault(
            int(row), f"the {which} timestamp {values[row]} (ms since 1970) is no time of the years 1 to 9999"
        )
    return pa.array(np.where(odd, 0, values) * 1000, mask=odd).view(_TIMESTAMP)


def _rewritten(records: _Records, pulled: Sequence[Pulled], odd: Any) -> Iterator[_Records]:
    """The records, odd ones replaced by what they hold, in pieces of about BYTES_PER_RECORD_BATCH."""
    data, starts = records.data, records.starts
    ends = np.append(starts[1:], len(data))
    written = _Written()
    run = 0
    for row in np.flatnonzero(odd).tolist():
        if row > run:
            written.run(data[starts[run] : ends[row - 1]], starts[run:row] - starts[run], records.pulls[run:row])
        run = row + 1
        raw = data[starts[row] : ends[row]]
        try:
            messages, _ = decode_some_messages(raw, max_body_bytes=MAX_BODY_BYTES, below=_behind(records, pulled, row))
            plain, error = [_plain_record(each) for each in messages], None
        except RemoteProtocolError as reason:
            plain, error = [raw], str(reason)
        for record in plain:
            if written.size and written.size + len(record) > BYTES_PER_RECORD_BATCH:
                yield written.records()
                written = _Written()
            written.run(record, np.zeros(1, np.int64), records.pulls[row : row + 1], error)
    if len(starts) > run:
        written.run(data[starts[run] :], starts[run:] - starts[run], records.pulls[run:])
    yield written.records()


def _behind(records: _Records, pulled: Sequence[Pulled], row: int) -> int | None:
    """The offset of the next record of the same pull; behind the last one what the pull has said, if it is known."""
    if row + 1 == len(records.starts) or records.pulls[row] != records.pulls[row + 1]:
        return pulled[int(records.pulls[row])].next_begin_offset
    (offset,) = queue_offsets(records.data, [int(records.starts[row + 1])])[0]
    return offset


class _Written:
    """Records that are put together anew."""

    def __init__(self) -> None:
        self.size = self._count = 0
        self._pieces: list[bytes] = []
        self._starts: list[Places] = [np.empty(0, np.int64)]
        self._pulls: list[Places] = [np.empty(0, np.int64)]
        self._errors: dict[int, str] = {}

    def run(self, data: bytes, starts: Places, pulls: Places, error: str | None = None) -> None:
        if error is not None:
            self._errors[self._count] = error
        self._pieces.append(data)
        self._starts.append(starts + self.size)
        self._pulls.append(pulls)
        self.size += len(data)
        self._count += len(starts)

    def records(self) -> _Records:
        starts, pulls = np.concatenate(self._starts), np.concatenate(self._pulls)
        return _Records(b"".join(self._pieces), starts, pulls, self._errors)


def _plain_record(message: MessageExt) -> bytes:
    """The record of a message whose body is as it stands, and a message of its own."""
    numbers = message.fields
    return encode_stored_message(
        StoredMessage(
            message.topic,
            message.queue_id,
            message.body,
            message.raw_properties,
            message.flag,
            message.sys_flag & ~(COMPRESSED | INNER_BATCH),
            message.born_timestamp_ms,
            (numbers[9], numbers[10]),
            message.reconsume_times,
            message.prepared_transaction_offset,
            message.queue_offset,
            message.commit_log_offset,
            message.store_timestamp_ms,
            (numbers[12], numbers[13]),
        )
    )
