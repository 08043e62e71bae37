"""Cuts a stream of bytes into remoting frames.

Bytes in, commands out: the reader owns the buffer and the limits, a transport owns the socket. What is in a frame is
``command``'s part. After an error the stream has no frame borders any more: close the connection.

Source: Apache RocketMQ 5.x ``NettyDecoder`` (length-prefixed frames, at most 16 MiB with the length field).
"""

from __future__ import annotations

import struct

from rocketbox.errors import RemoteProtocolError
from rocketbox.protocol.command import RemotingCommand, decode_parts

__all__ = ["MAX_FRAME_BYTES", "MAX_HEADER_BYTES", "FrameReader"]

MAX_FRAME_BYTES = 16_777_216  # Java's com.rocketmq.remoting.frameMaxLength, the 4 length bytes included
MAX_HEADER_BYTES = 4_194_304  # the longest honest header is the list of ids that answers a large batch

BUFFER_BYTES = 65_536
_MIN_ROOM_BYTES = 4_096  # a smaller rest of the buffer is not worth a read of its own

_HEAD = struct.Struct(">iI")  # length, serialization and header size
_LENGTH_BYTES = 4
_HEAD_BYTES = _LENGTH_BYTES + 4


class FrameReader:
    """Collects received bytes and returns the commands that became complete.

    Either ``feed`` it what was read, or read straight into ``get_buffer`` and tell ``buffer_updated`` how much came
    (asyncio's BufferedProtocol). Both raise RemoteProtocolError for bytes that are not frames and for frames or headers
    above the limits, as soon as their first bytes show it.
    """

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES, max_header_bytes: int = MAX_HEADER_BYTES) -> None:
        self._max_length = max_frame_bytes - 4
        self._max_header_bytes = max_header_bytes
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = 0  # first byte not yet consumed
        self._end = 0  # behind the last received byte
        self._needed = _LENGTH_BYTES  # bytes from start without which nothing new can be said of them

    @property
    def buffered_bytes(self) -> int:
        """Bytes of a frame that is not complete yet."""
        return self._end - self._start

    def feed(self, data: bytes | bytearray | memoryview) -> list[RemotingCommand]:
        """Take received bytes; return the commands they complete."""
        if self._start == self._end and type(data) is bytes:
            commands: list[RemotingCommand] = []
            consumed = self._split(data, commands)
            rest = memoryview(data)[consumed:]
        else:
            commands = []
            rest = memoryview(data)
        while rest:
            room = self.get_buffer(len(rest))
            size = min(len(room), len(rest))
            room[:size] = rest[:size]
            rest = rest[size:]
            commands += self.buffer_updated(size)
        return commands

    def get_buffer(self, hint: int = -1) -> memoryview:
        """Room to receive into, never empty; valid until the next call."""
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > BUFFER_BYTES and self._needed <= BUFFER_BYTES:
                self._replace(BUFFER_BYTES)  # a large frame has passed
        elif len(self._buffer) - self._end < _MIN_ROOM_BYTES:
            held = self._end - self._start
            # Grown with what really came, not with what the length field announces.
            wanted = max(2 * held, BUFFER_BYTES) if held + _MIN_ROOM_BYTES > len(self._buffer) else len(self._buffer)
            self._replace(wanted)
        return self._view[self._end :]

    def buffer_updated(self, size: int) -> list[RemotingCommand]:
        """Take size bytes that were received into get_buffer(); return the commands they complete."""
        self._end += size
        commands: list[RemotingCommand] = []
        if self._end - self._start >= self._needed:
            # One copy of all that came, then cheap slices of it: many small frames arrive together.
            self._start += self._split(self._view[self._start : self._end].tobytes(), commands)
        return commands

    def _split(self, data: bytes, commands: list[RemotingCommand]) -> int:
        """Decode all whole frames at the start of data; return how many bytes they take."""
        at, size = 0, len(data)
        while size - at >= _HEAD_BYTES:
            length, tagged = _HEAD.unpack_from(data, at)
            header = tagged & 0x00FF_FFFF
            if not 4 <= length <= self._max_length:
                raise RemoteProtocolError(f"a frame announces {length} bytes; 4 to {self._max_length} are allowed")
            if header > length - 4:
                raise RemoteProtocolError(f"a header of {header} bytes does not fit its frame of {length}")
            if header > self._max_header_bytes:
                raise RemoteProtocolError(f"a header has {header} bytes; {self._max_header_bytes} is the most")
            if tagged >> 24 > 1:
                raise RemoteProtocolError(f"serialization {tagged >> 24} is neither JSON (0) nor ROCKETMQ (1)")
            end = at + 4 + length
            if end > size:
                self._needed = end - at
                return at
            body = at + _HEAD_BYTES + header
            commands.append(decode_parts(tagged >> 24, data[at + _HEAD_BYTES : body], data[body:end]))
            at = end
        self._needed = _LENGTH_BYTES
        if size - at >= _LENGTH_BYTES:  # a wrong length is refused before anything else arrives
            length = int.from_bytes(data[at : at + 4], "big", signed=True)
            if not 4 <= length <= self._max_length:
                raise RemoteProtocolError(f"a frame announces {length} bytes; 4 to {self._max_length} are allowed")
            self._needed = _HEAD_BYTES
        return at

    def _replace(self, capacity: int) -> None:
        """Move what is held to the start of a new buffer (the old one may still be exported as a view)."""
        held = self._view[self._start : self._end]
        buffer = bytearray(capacity)
        buffer[: len(held)] = held
        self._start, self._end = 0, len(held)
        self._buffer, self._view = buffer, memoryview(buffer)
