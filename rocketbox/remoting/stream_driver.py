"""The driver for any anyio byte stream: trio's sockets, and the in-memory network under every backend.

One supervised task reads, another writes: everything that was added to the output since its last write, at once. (A
write for each message costs 50 us under asyncio, joined with its neighbours 8 us.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import anyio
import anyio.lowlevel

from rocketbox.remoting.connection import Connection
from rocketbox.tasks import SupervisedTask, Supervisor
from rocketbox.waiters import Waiter, make_waiter

__all__ = ["ByteStream", "StreamDriver"]


class ByteStream(Protocol):
    """What the driver needs of a stream; anyio's byte streams and object streams of bytes both are one."""

    async def receive(self) -> bytes: ...

    async def send(self, item: bytes, /) -> None: ...

    async def aclose(self) -> None: ...


class StreamDriver:
    """One stream and the connection above it."""

    waiter: Callable[[], Waiter] = staticmethod(make_waiter)

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._connection: Connection
        self._output = anyio.Event()
        self._resumed = anyio.Event()
        self._paused = False
        self._closing = False
        self._reason = "closed by the other side"
        self._tasks: list[SupervisedTask] = []

    def start(self, connection: Connection, tasks: Supervisor) -> None:
        """Begin to move the connection's bytes, in two tasks of ``tasks``."""
        self._connection = connection
        peer = connection.remote_address
        self._tasks.append(tasks.start(f"read {peer}", self._read, restart=False))
        self._tasks.append(tasks.start(f"write {peer}", self._write, restart=False))

    # --- called by the connection ----------------------------------------------------------------------------------

    def schedule_flush(self) -> None:
        self._output.set()

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._resumed.set()

    def close(self) -> None:
        self._closing = True
        self._output.set()  # the writer ends when nothing is left to write, and takes the reader with it

    def abort(self) -> None:
        self._closing = True
        for task in self._tasks:
            task.cancel()

    # --- the two tasks ---------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        try:
            while True:
                data = await self._stream.receive()
                if not self._closing:
                    self._connection.received(data)
                while self._paused and not self._closing:
                    self._resumed = anyio.Event()
                    await self._resumed.wait()
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
            self._note(error)
        finally:
            await self._end()

    async def _write(self) -> None:
        connection = self._connection
        try:
            while True:
                data = connection.take_output()
                if data:
                    await self._stream.send(data)
                    connection.flushed(len(data))
                elif self._closing:
                    break
                else:
                    self._output = anyio.Event()
                    await self._output.wait()
                    await anyio.lowlevel.checkpoint()  # others of this turn may add to the same write
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
            self._note(error)
        finally:
            await self._end()  # half a frame may be out: nothing can follow it

    def _note(self, error: Exception) -> None:
        cause = error if isinstance(error, OSError) else error.__cause__
        if isinstance(cause, OSError):
            self._reason = cause.strerror or str(cause)

    async def _end(self) -> None:
        """Whichever of the two ends first closes the stream and ends the other."""
        self._closing = True
        with anyio.CancelScope(shield=True):
            await self._stream.aclose()
        for task in self._tasks:
            task.cancel()
        self._connection.lost(self._reason)
