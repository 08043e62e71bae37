"""Cuts a stream of bytes into remoting frames.

Bytes in, commands out: the reader owns the bytes of a frame that is not complete yet, and the limits; a transport owns
the socket. What is in a frame is ``command``'s part. After an error the stream has no frame borders any more: close the
connection.

A reader without half a frame holds nothing: it receives into a buffer that it takes from a pool and gives back behind
each read. With ``most_frames``, how many it cuts at once, it gets a large one when it filled the one before and no
other reader of the pool came in during its last reads, which are counted, for what they bring takes time: so much is
there, and nobody else has to wait for it, also none who sends one message at a time. What a read costs once - a turn of
the loop, a write of the log, a write of answers - is shared by nearly twice as many messages (benchmark "java client:
send, 256 in flight").

Of a short frame what came is kept as it is; a longer one (above 32 KiB) is gathered, header and body each in
a buffer that grows with what came, never with what was announced, and that becomes the body without another copy.

Source: Apache RocketMQ 5.x ``NettyDecoder`` (length-prefixed frames, at most 16 MiB with the length field).
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO

from rocketbox.errors import RemoteProtocolError
from rocketbox.protocol.command import RESPONSE_FLAG, RemotingCommand, decode_parts

__all__ = ["MAX_FRAME_BYTES", "MAX_HEADER_BYTES", "BodyLimits", "BufferPool", "FrameReader", "RefusedBody"]

MAX_FRAME_BYTES = 16_777_216  # Java's com.rocketmq.remoting.frameMaxLength, the 4 length bytes included
MAX_HEADER_BYTES = 4_194_304  # the longest honest header is the list of ids that answers a large batch

BUFFER_BYTES = 65_536
LARGE_BUFFER_BYTES = 2 * BUFFER_BYTES
READS_ALONE = 32  # of one reader; 2 MiB if they are full: of sends, some tens of milliseconds
GATHERED_BYTES = BUFFER_BYTES // 2  # frames above it are gathered; below, a few copies cost less
POOLED_BUFFERS = 4  # one is in use at a time, unless a transport takes its buffer before there is something to read

TLS_RECORDS = frozenset(kind << 16 | 3 << 8 | minor for kind in (0x15, 0x16) for minor in range(5))  # alert, handshake

_HEAD = struct.Struct(">iI")  # length, serialization and header size
_LENGTH_BYTES = 4
_HEAD_BYTES = _LENGTH_BYTES + 4


class BufferPool:
    """Buffers to receive into, for all readers of a server or client."""

    def __init__(self) -> None:
        self.reads = 0
        """How many reads of all readers there were."""
        self._free: deque[memoryview] = deque(maxlen=POOLED_BUFFERS)
        self._large: memoryview | None = None  # one reader at a time needs it

    def take(self) -> memoryview:
        return self._free.pop() if self._free else memoryview(bytearray(BUFFER_BYTES))

    def take_large(self) -> memoryview:
        large, self._large = self._large, None
        return memoryview(bytearray(LARGE_BUFFER_BYTES)) if large is None else large

    def give_back(self, buffer: memoryview) -> None:
        if len(buffer) == BUFFER_BYTES:
            self._free.append(buffer)
        else:
            self._large = buffer


@dataclass(frozen=True)
class BodyLimits:
    """How many bytes the body of a request may have: by its code, or ``default``."""

    default: int
    by_code: Mapping[int, int] = field(default_factory=dict)

    @cached_property
    def least(self) -> int:
        """What a request of any code may have."""
        return min(self.default, *self.by_code.values()) if self.by_code else self.default

    def of(self, code: int) -> int:
        return self.by_code.get(code, self.default)


@dataclass(frozen=True)
class RefusedBody:
    """A request whose body is larger than its code may have; the body is skipped, ``request.body`` empty."""

    request: RemotingCommand
    size: int
    limit: int


class _Gathering:
    """A long frame on its way: header, then body, then nothing is missing."""

    __slots__ = ("body", "body_missing", "header", "header_missing", "request", "serialization", "skipped")

    def __init__(self, serialization: int, header_bytes: int, body_bytes: int) -> None:
        self.serialization = serialization
        self.header = BytesIO()
        self.header_missing = header_bytes
        self.body = BytesIO()
        self.body_missing = body_bytes
        self.request: RemotingCommand | None = None
        self.skipped = False

    @property
    def held_bytes(self) -> int:
        return self.header.tell() + self.body.tell()


def _wrong_length(length: int, most: int) -> str:
    if length >> 8 in TLS_RECORDS:
        return "it speaks TLS, and this side does not (tls.enable of the client's cluster, tls-server-mode of servers)"
    return f"a frame announces {length} bytes; 4 to {most} are allowed"


class FrameReader:
    """Collects received bytes and returns the commands that became complete.

    Either ``feed`` it what was read, or read straight into ``get_buffer`` and tell ``buffer_updated`` how much came
    (asyncio's BufferedProtocol). Both raise RemoteProtocolError for bytes that are not frames and for frames or headers
    above the limits, as soon as their first bytes show it.

    With ``body_limits``, which say how many bytes the body of a request with a code may have, larger ones are noted in
    ``refused`` as soon as their header is there, and their bodies pass without being kept.

    With ``most_frames`` no call returns more commands; of what came the rest waits while ``has_more`` is set, for
    ``go_on``. Whoever reads is to wait, too.
    """

    def __init__(
        self,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        max_header_bytes: int = MAX_HEADER_BYTES,
        *,
        body_limits: BodyLimits | None = None,
        pool: BufferPool | None = None,
        most_frames: int | None = None,
    ) -> None:
        self._max_length = max_frame_bytes - 4
        self._max_header_bytes = max_header_bytes
        self._body_limits = body_limits
        self._never_refused = max_frame_bytes if body_limits is None else body_limits.least
        self._pool = pool or BufferPool()
        self._buffer: memoryview | None = None
        self._rest = b""  # of a short frame that is not complete
        self._long: _Gathering | None = None
        self._most_frames = most_frames
        self._filled = False  # by the last read
        self._last_read = 0  # its number in the pool
        self._reads_alone = 0  # how many reads up to that one were this reader's, without another's in between
        self.has_more = False
        """Whether whole frames may be here that no call has returned yet."""
        self.frames = 0
        """How many frames have come to their end, those with refused bodies too."""
        self.refused: list[RefusedBody] = []
        """What was refused; whoever answers takes it out."""

    @property
    def buffered_bytes(self) -> int:
        """Bytes that are held of a frame that is not complete yet; none of those that are skipped."""
        return len(self._rest) + (0 if self._long is None else self._long.held_bytes)

    @property
    def in_frame(self) -> bool:
        """Whether a frame has begun and not ended."""
        return bool(self._rest) or self._long is not None

    @property
    def awaits_header(self) -> bool:
        """Whether it has begun and its header is not here yet."""
        if self._long is not None:
            return self._long.header_missing > 0
        rest = self._rest
        return bool(rest) and (len(rest) < _HEAD_BYTES or len(rest) < _HEAD_BYTES + int.from_bytes(rest[5:8], "big"))

    def feed(self, data: bytes | bytearray | memoryview) -> list[RemotingCommand]:
        """Take received bytes; return the commands they complete."""
        commands: list[RemotingCommand] = []
        long = self._long
        if long is not None:
            data = memoryview(data)[self._gather(long, memoryview(data), commands) :]
        if data:
            if self._rest:
                data = self._rest + bytes(data)
            elif type(data) is not bytes:
                data = bytes(data)
            self._rest = data[self._split(data, commands) :]
        self.frames += len(commands)
        return commands

    def go_on(self) -> list[RemotingCommand]:
        """The next commands of what is here already."""
        data, self._rest, self.has_more = self._rest, b"", False
        return self.feed(data)

    def get_buffer(self, hint: int = -1) -> memoryview:
        """Room to receive into, never empty; valid until the next call."""
        if self._buffer is None:
            pool = self._pool
            is_large = (
                self._filled
                and self._reads_alone > READS_ALONE
                and self._last_read == pool.reads
                and self._most_frames is not None
            )
            self._buffer = pool.take_large() if is_large else pool.take()
        return self._buffer

    def buffer_updated(self, size: int) -> list[RemotingCommand]:
        """Take size bytes that were received into get_buffer(); return the commands they complete."""
        buffer = self._buffer
        assert buffer is not None, "get_buffer comes first"
        self._buffer = None
        pool = self._pool
        self._reads_alone = self._reads_alone + 1 if self._last_read == pool.reads else 1
        pool.reads += 1
        self._last_read = pool.reads
        self._filled = size == len(buffer)
        try:
            return self.feed(buffer[:size])
        finally:
            pool.give_back(buffer)

    def drop(self) -> None:
        """Hold nothing any more of what has come: no more frames are wanted."""
        self._rest = b""
        self._long = None
        self.has_more = False
        self.refused = []

    def release(self) -> None:
        """Give the buffer back that :meth:`get_buffer` has handed out: nothing is received into it any more."""
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            self._pool.give_back(buffer)

    def _split(self, data: bytes, commands: list[RemotingCommand]) -> int:
        """Decode all whole frames at the start of data; return how many bytes need no longer be held here."""
        at, size, most = 0, len(data), self._most_frames
        while size - at >= _HEAD_BYTES:
            if len(commands) == most:
                self.has_more = True
                return at
            length, tagged = _HEAD.unpack_from(data, at)
            header = tagged & 0x00FF_FFFF
            if not 4 <= length <= self._max_length:
                raise RemoteProtocolError(_wrong_length(length, self._max_length))
            if header > length - 4:
                raise RemoteProtocolError(f"a header of {header} bytes does not fit its frame of {length}")
            if header > self._max_header_bytes:
                raise RemoteProtocolError(f"a header has {header} bytes; {self._max_header_bytes} is the most")
            if tagged >> 24 > 1:
                raise RemoteProtocolError(f"serialization {tagged >> 24} is neither JSON (0) nor ROCKETMQ (1)")
            end = at + 4 + length
            if end > size:
                if length <= GATHERED_BYTES:
                    return at
                self._long = long = _Gathering(tagged >> 24, header, length - 4 - header)
                self._gather(long, memoryview(data)[at + _HEAD_BYTES :], commands)
                return size
            body = at + _HEAD_BYTES + header
            command = decode_parts(tagged >> 24, data[at + _HEAD_BYTES : body], data[body:end])
            if end - body <= self._never_refused or not self._refuses(command, end - body):
                commands.append(command)
            else:
                self.frames += 1
            at = end
        if size - at >= _LENGTH_BYTES:  # a wrong length is refused before anything else arrives
            length = int.from_bytes(data[at : at + 4], "big", signed=True)
            if not 4 <= length <= self._max_length:
                raise RemoteProtocolError(_wrong_length(length, self._max_length))
        return at

    def _gather(self, long: _Gathering, data: memoryview, commands: list[RemotingCommand]) -> int:
        """Take what belongs to the long frame; return how many bytes that were."""
        taken = 0
        if long.header_missing:
            taken = min(long.header_missing, len(data))
            long.header.write(data[:taken])
            long.header_missing -= taken
        if not long.header_missing and long.request is None:
            long.request = decode_parts(long.serialization, long.header.getvalue(), b"")
            long.skipped = self._refuses(long.request, long.body_missing)
        size = min(long.body_missing, len(data) - taken)
        if size:
            if not long.skipped:
                long.body.write(data[taken : taken + size])
            long.body_missing -= size
            taken += size
        if not (long.header_missing or long.body_missing):
            self._long = None
            if long.skipped:
                self.frames += 1
            else:
                assert long.request is not None
                long.request.body = long.body.getvalue()
                commands.append(long.request)
        return taken

    def _refuses(self, command: RemotingCommand, size: int) -> bool:
        if command.flag & RESPONSE_FLAG or self._body_limits is None:
            return False
        limit = self._body_limits.of(command.code)
        if size <= limit:
            return False
        command.body = b""
        self.refused.append(RefusedBody(command, size, limit))
        return True
