"""Connections in memory under the client's and the servers' own asyncio driver: a pair of transports, and no tasks.

What one end writes the other is given in the next turn of the loop. Below anyio's streams a harness spent a third of
its start, and as much of each step of its time, on the tasks of connections.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context

from rocketbox.remoting.asyncio_driver import AsyncioDriver

__all__ = ["MemoryTransport", "connect_pair"]

Address = tuple[str, int]

HIGH_WATER = 64 << 10  # bytes that are written and not taken, before who writes is paused: as of asyncio's sockets


class MemoryTransport(asyncio.Transport):
    """One end of a connection, whose driver is called in ``context``.

    ``holds()`` tells whether what it writes is kept back for now; that pauses nobody.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        driver: AsyncioDriver,
        names: tuple[Address, Address],
        context: Context,
        holds: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__({"sockname": names[0], "peername": names[1]})
        self.names = names
        self.other: MemoryTransport
        self._loop = loop
        self._driver = driver
        self._context = context
        self._holds = holds
        self._kept: list[bytes] = []
        self._arrived: deque[bytes] = deque()
        self._untaken = 0  # bytes written by this end that the other has not taken
        self._high = HIGH_WATER
        self._is_full = False
        self._reads = True
        self._is_due = False
        self._is_closing = False
        self._has_ended = False

    # --- called by the driver ----------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing or self.other._has_ended:  # as to a socket whose other end is closed: that is told of
            return
        if self._kept or self._holds():
            self._kept.append(bytes(data))
            return
        self._put(bytes(data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_WATER if high is None else high

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        self._reads = not self._is_closing
        self._take_soon()

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """What is written is passed on first, but not what is kept back."""
        if self._is_closing:
            return
        self._is_closing, self._reads = True, False
        self._kept.clear()
        if not self._untaken or self.other._has_ended:
            self._loop.call_soon(self._end, None, context=self._context)

    def abort(self) -> None:
        self._fail(None)

    # --- for the network ---------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Make the connection above it."""
        self._context.run(self._driver.connection_made, self)

    def pass_on(self) -> None:
        """Write what was kept back, in its order."""
        kept, self._kept = self._kept, []
        for data in kept:
            self._put(data)

    # --- from end to end ---------------------------------------------------------------------------------------------

    def _put(self, data: bytes) -> None:
        self._untaken += len(data)
        if self._untaken > self._high and not self._is_full:
            self._is_full = True
            self._driver.pause_writing()
        self.other._arrived.append(data)
        self.other._take_soon()

    def _take_soon(self) -> None:
        if self._reads and not self._is_due and (self._arrived or self.other._has_ended):
            self._is_due = True
            self._loop.call_soon(self._take, context=self._context)

    def _take(self) -> None:
        """Give the driver what has arrived, as long as it reads; then the end of it."""
        self._is_due = False
        while self._arrived and self._reads:
            data = self._arrived.popleft()
            try:
                size = self._give(data)
            except Exception as error:  # as a loop does with a protocol that raises
                self._loop.call_exception_handler({"message": "a connection in memory cannot read", "exception": error})
                self._fail(error)
                return
            if size < len(data):
                self._arrived.appendleft(data[size:])
            self.other._taken(size)
        if self._reads and self.other._has_ended and not self._driver.eof_received():
            self.close()

    def _give(self, data: bytes) -> int:
        """As much of it as the driver reads before it pauses; how much that is."""
        given, driver = 0, self._driver
        while given < len(data) and self._reads:
            room = driver.get_buffer(len(data) - given)
            size = min(len(room), len(data) - given)
            room[:size] = data[given : given + size]
            driver.buffer_updated(size)
            given += size
        return given

    def _taken(self, size: int) -> None:
        self._untaken -= size
        if self._is_closing:
            if not self._untaken:
                self._loop.call_soon(self._end, None, context=self._context)
        elif self._is_full and self._untaken <= self._high // 4:
            self._is_full = False
            self._loop.call_soon(self._driver.resume_writing, context=self._context)

    def _fail(self, error: Exception | None) -> None:
        self._is_closing, self._reads = True, False
        self._kept.clear()
        self._loop.call_soon(self._end, error, context=self._context)

    def _end(self, error: Exception | None) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        self._arrived.clear()
        self._driver.connection_lost(error)
        if self.other._is_closing:  # it waits for what nobody takes any more
            self.other._fail(None)
        else:
            self.other._take_soon()


def connect_pair(here: MemoryTransport, there: MemoryTransport) -> None:
    """Make them the two ends of one connection; who has listened sees it first."""
    here.other, there.other = there, here
    there.begin()
    here.begin()
