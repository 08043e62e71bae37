"""Turns of requests whose answers may be large: so many bytes of answers in one turn of the loop, of all connections.

A hundred peers that ask for 256 KiB at once would otherwise have 25 MiB copied before anything else is looked at, also
when none of them ever reads it. Beyond the budget a read waits in line with its connection; connections are served one
after another, once the loop has been round: the answers before it are on their way then, or its peer is known not to
take them. All other requests go past those that wait. As long as such come, reads pause between their turns: a send
takes several turns of the loop until it is answered, and would meet a read in each of them. Benchmark "send among
hostile peers".

Source: none; Apache RocketMQ answers pulls in a thread pool beside that of sends (``pullMessageExecutor``).
"""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING, Final

import anyio
import anyio.lowlevel

from rocketbox.clock import Clock

if TYPE_CHECKING:
    from rocketbox.remoting.peer_requests import PeerRequests

__all__ = ["ANSWER_BYTES_PER_TURN", "LULL", "MAX_RUNNING_READS", "MAX_WAITING_READS", "PAUSE", "ReadTurns"]

ANSWER_BYTES_PER_TURN: Final = 256 << 10  # the largest answer to a pull: about 0.2 ms of reading, copying and writing
PAUSE: Final = 0.001  # seconds: then reads have about a quarter of the loop's time. 0: they only go round the loop
LULL: Final = 0.01  # seconds without an answer to others: then there are none
MAX_RUNNING_READS: Final = 16  # of one connection, in threads: their answers are not yet known to be taken by the peer
MAX_WAITING_READS: Final = 16  # of one connection; with more of them a server stops reading from it


class ReadTurns:
    """The budget of one server; ``codes`` are the requests that wait when it is spent. :meth:`run` is its task.

    ``pause`` is how many seconds reads pause between their turns as long as others are answered.
    """

    def __init__(self, codes: Set[int], clock: Clock, pause: float = PAUSE) -> None:
        self.codes = codes
        self.written = 0
        """The bytes of all answers so far."""
        self.spent = False
        """Whether reads have to wait for the next turn."""
        self._clock = clock
        self._pause = pause
        self._begun_at = 0  # what was written when the turn began
        self._line: dict[PeerRequests, None] = {}  # in order
        self._woken = anyio.Event()

    def __len__(self) -> int:
        return len(self._line)

    def add(self, size: int) -> None:
        """So many bytes of an answer were written."""
        self.written += size
        if self.written - self._begun_at >= ANSWER_BYTES_PER_TURN and not self.spent:
            self.spent = True
            self._woken.set()

    def enter(self, requests: PeerRequests) -> None:
        """Have :meth:`PeerRequests.serve_reads` called when it is the connection's turn; once, however often asked."""
        self._line[requests] = None
        self._woken.set()

    def leave(self, requests: PeerRequests) -> None:
        """Its connection is closed."""
        self._line.pop(requests, None)

    async def run(self) -> None:
        """Begin turns, for ever."""
        while True:
            await self._woken.wait()
            self._woken = anyio.Event()
            others_until = 0.0
            while self.spent or self._line:
                served = self.written
                await anyio.lowlevel.checkpoint()  # what was written leaves now, and what came meanwhile is taken
                now = self._clock.monotonic()
                if self.written != served:
                    others_until = now + LULL
                if now < others_until:
                    served = self.written
                    await self._clock.sleep(self._pause)
                    if self.written != served:
                        others_until = self._clock.monotonic() + LULL
                self.spent = False
                self._begun_at = self.written
                self._serve(len(self._line))

    def _serve(self, most: int) -> None:
        """Each of those in line once at most, until the budget is spent."""
        while most and self._line and not self.spent:
            most -= 1
            requests = next(iter(self._line))
            del self._line[requests]
            requests.serve_reads()
