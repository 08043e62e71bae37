"""A bare client to compare with: binary headers from one template, writes joined per tick, and nothing else.

No routes, retries, timeouts, hooks or results: the floor of what pure Python needs on this machine today. It is kept
as it is, so that ratios to it can be compared over time.

Bytes wait here, not in the transport, while the socket is full: a transport of asyncio moves all that waits in it with
each piece that it can pass on, which costs a one-way send on a slow broker more than all else.
"""

from __future__ import annotations

import asyncio
import struct
import time

__all__ = ["ReferenceClient"]

HEAD = struct.Struct(">IIHBHIIII")  # size, type and header size, code, language, version, opaque, flag, remark, ext
SIZE = struct.Struct(">I")
SEND_MESSAGE_V2 = 310
BINARY = 1 << 24
PROPERTIES = b"KEYS\x01k%d\x02WAIT\x01true\x02TAGS\x01A\x02"
HIGH_WATER = 1 << 20  # bytes that one-way sends may leave unwritten


def _entry(name: bytes, value: bytes) -> bytes:
    return struct.pack(">H", len(name)) + name + struct.pack(">I", len(value)) + value


class ReferenceClient(asyncio.BufferedProtocol):
    """One connection to one broker, sending to one queue of one topic."""

    def __init__(self, topic: str) -> None:
        self._buffer = bytearray(1 << 20)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._full = False
        self._room: asyncio.Future[None] | None = None
        self._waiters: dict[int, asyncio.Future[None]] = {}
        self._opaque = 0
        self._loop = asyncio.get_running_loop()
        fields = {b"a": b"g", b"b": topic.encode(), b"c": b"TBW102", b"d": b"4", b"e": b"0", b"f": b"0", b"h": b"0"}
        fields |= {b"j": b"0", b"k": b"false", b"m": b"false"}
        self._template = b"".join(_entry(name, value) for name, value in fields.items()) + b"\x00\x01g\x00\x00\x00\x0d"
        self._ext_bytes = len(self._template) + 13 + 3 + 4  # the time, and the name and size of the properties

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        at = 0
        while self._filled - at >= 4:
            (size,) = struct.unpack_from(">I", self._buffer, at)
            if self._filled - at - 4 < size:
                break
            if self._buffer[at + 4] == 1:
                (opaque,) = struct.unpack_from(">I", self._buffer, at + 13)
            else:  # a JSON answer: the number behind "opaque":
                start = self._buffer.index(b'"opaque":', at) + 9
                end = start
                while 48 <= self._buffer[end] <= 57:
                    end += 1
                opaque = int(self._buffer[start:end])
            waiter = self._waiters.pop(opaque, None)
            if waiter is not None and not waiter.done():
                waiter.set_result(None)
            at += 4 + size
        if at:
            self._buffer[: self._filled - at] = self._buffer[at : self._filled]
            self._filled -= at

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._flush()

    def _flush(self) -> None:
        if self._full or not self._out:
            return
        out, self._out, self._out_bytes = self._out, [], 0
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self._transport.write(b"".join(out))

    def _write(self, body: bytes, properties: bytes, flag: int) -> None:
        self._opaque += 1
        ext = self._ext_bytes + len(properties)
        size = 25 + ext + len(body)
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out += (
            HEAD.pack(size, BINARY | 21 + ext, SEND_MESSAGE_V2, 3, 479, self._opaque, flag, 0, ext),
            self._template, b"%d" % (time.time() * 1000), b"\x00\x01i", SIZE.pack(len(properties)), properties, body,
        )  # fmt: skip
        self._out_bytes += size

    async def send(self, body: bytes, properties: bytes) -> None:
        self._write(body, properties, 0)
        waiter = self._waiters[self._opaque] = self._loop.create_future()
        await waiter

    async def send_one_way(self, body: bytes, properties: bytes) -> None:
        if self._out_bytes >= HIGH_WATER:
            self._room = self._loop.create_future()
            await self._room
        self._write(body, properties, 2)


async def run(broker: str, topic: str, messages: int, in_flight: int, body: bytes, *, oneway: bool) -> None:
    """Send ``messages`` messages with ``in_flight`` unanswered at once."""
    host, port = broker.rsplit(":", 1)
    transport, client = await asyncio.get_running_loop().create_connection(
        lambda: ReferenceClient(topic), host, int(port)
    )
    numbers = iter(range(messages))

    async def send() -> None:
        for number in numbers:
            await client.send(body, PROPERTIES % number)

    if oneway:
        for number in numbers:
            await client.send_one_way(body, PROPERTIES % number)
    else:
        async with asyncio.TaskGroup() as group:
            for _ in range(in_flight):
                group.create_task(send())
    # What was sent one-way is counted when the broker has read it: an answered send is behind all of them.
    await client.send(body, b"KEYS\x01last\x02")
    transport.close()
