"""The messages of a store as JSON, one a line: every record of the log that is intact, whatever else is damaged.

A line's fields are named as those of ``MessageExt``. The body is text where it is UTF-8 (``"body_encoding": "text"``),
else base64; zlib bodies are unpacked, others stay as they are (``"compression"`` names how).

Left to others: finding files (``store_check``), writing the lines to a file (``cli.store``).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from rocketbox.broker.store.files import FileRun
from rocketbox.broker.store.filler import is_filler
from rocketbox.broker.store.log_walk import Gap, walk_log
from rocketbox.broker.store.records import store_timestamp_of
from rocketbox.errors import RemoteProtocolError
from rocketbox.message import MessageExt
from rocketbox.protocol.codes import MessageSysFlag
from rocketbox.protocol.stored_message import decode_message

__all__ = ["Export", "ExportFilter", "message_line"]

_COMPRESSIONS = {0x100: "LZ4", 0x200: "ZSTD", 0x300: "ZLIB", 0: "ZLIB"}


@dataclass(frozen=True)
class ExportFilter:
    """Which messages are wanted. Ends are not included; None: no bound."""

    topics: frozenset[str] = frozenset()
    """None of them named: all."""
    from_ms: int | None = None
    until_ms: int | None = None
    """Store times."""
    first_offset: int | None = None
    end_offset: int | None = None
    """Offsets in their queues."""

    def wants_time(self, stored: int) -> bool:
        return (self.from_ms is None or stored >= self.from_ms) and (self.until_ms is None or stored < self.until_ms)

    def wants(self, message: MessageExt) -> bool:
        offset = message.queue_offset
        return (
            (not self.topics or message.topic in self.topics)
            and (self.first_offset is None or offset >= self.first_offset)
            and (self.end_offset is None or offset < self.end_offset)
        )


@dataclass
class Export:
    """One export. ``until``: the log is read up to there; None: up to its end."""

    log: FileRun
    wanted: ExportFilter = field(default_factory=ExportFilter)
    until: int | None = None
    messages: int = 0
    """How many lines there were."""
    left_out: list[str] = field(default_factory=list)
    """What could not be read, and where."""

    def lines(self) -> Iterator[str | int]:
        """The lines, without their ends; in between the offset of the log that was come to."""
        tail: Gap | None = None
        for step in walk_log(self.log, self.log.start, self.until):
            if tail is not None:
                self._leave_out(tail)
                tail = None
            if isinstance(step, Gap):
                tail = step
                continue
            offset, record = step
            yield offset
            if not self.wanted.wants_time(store_timestamp_of(record)) or is_filler(record):
                continue
            try:
                message = decode_message(record, decompress=False)[0]
            except RemoteProtocolError as error:
                self.left_out.append(f"the record at {offset}: {error}")
                continue
            if self.wanted.wants(message):
                self.messages += 1
                yield message_line(message, record)
        if tail is not None:
            self._leave_out(tail)

    def _leave_out(self, gap: Gap) -> None:
        start = gap.offset - gap.offset % self.log.file_size
        self.left_out.append(
            f"{gap.end - gap.offset} bytes at {self.log.path(start)}:{gap.offset - start}: {gap.reason}"
        )


def message_line(message: MessageExt, record: bytes) -> str:
    """A message as a line of JSON; ``record`` is what it was decoded from, its body not unpacked."""
    compression = None
    if message.sys_flag & MessageSysFlag.COMPRESSED:
        try:
            message = decode_message(record)[0]
        except RemoteProtocolError:
            compression = _COMPRESSIONS.get(message.sys_flag & int(MessageSysFlag.COMPRESSION_MASK), "unknown")
    try:
        body, encoding = message.body.decode(), "text"
    except UnicodeDecodeError:
        body, encoding = base64.b64encode(message.body).decode(), "base64"
    line = {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "commit_log_offset": message.commit_log_offset,
        "msg_id": message.msg_id,
        "store_timestamp_ms": message.store_timestamp_ms,
        "born_timestamp_ms": message.born_timestamp_ms,
        "store_host": message.store_host,
        "born_host": message.born_host,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "reconsume_times": message.reconsume_times,
        "prepared_transaction_offset": message.prepared_transaction_offset,
        "properties": {name: value for name, value in message.properties.items() if name != "__CRC32#"},
        "body": body,
        "body_encoding": encoding,
    }
    if compression is not None:
        line["compression"] = compression
    return json.dumps(line, ensure_ascii=False)
