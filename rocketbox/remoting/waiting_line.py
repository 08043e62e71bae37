"""The line of requests that cannot be written yet: too many are in flight, or the peer takes no bytes.

Holds who stands in line, until when, and who has been called but has not gone on yet. How many may go is the
connection's word, and so is what they are told when their time is up.

Source: none; Apache RocketMQ has a semaphore for requests in flight (``NettyRemotingAbstract``) and no bound of bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from rocketbox.waiters import Waiter

__all__ = ["WaitingLine"]


class _Place:
    """A request that stands in line."""

    __slots__ = ("admitted", "deadline", "waiter")

    def __init__(self, waiter: Waiter, deadline: float) -> None:
        self.waiter = waiter
        self.deadline = deadline
        self.admitted = False


class WaitingLine:
    """First come, first served. ``room`` says how many requests may be in flight beside those that are.

    A request looks at ``places`` and ``admitted`` itself before it stands in line: when nobody does, the line costs it
    no call.
    """

    __slots__ = ("_new_waiter", "_room", "admitted", "places")

    def __init__(self, new_waiter: Callable[[], Waiter], room: Callable[[], int]) -> None:
        self._new_waiter = new_waiter
        self._room = room
        self.places: deque[_Place] = deque()
        self.admitted = 0
        """Were called, and have not yet taken their place among those in flight."""

    def __len__(self) -> int:
        return len(self.places)

    async def stand(self, deadline: float) -> None:
        """Return when it is this request's turn. Raises what :meth:`expire` or :meth:`close` say."""
        place = _Place(self._new_waiter(), deadline)
        self.places.append(place)
        try:
            await place.waiter
        except BaseException:
            if not place.admitted:
                if not place.waiter.done():  # cancelled, on a backend whose waiters do not notice it
                    place.waiter.set_result(None)
                raise
            self.admitted -= 1
            self.call()
            raise
        self.admitted -= 1

    def call(self) -> None:
        """Let as many go on as there is room for."""
        places = self.places
        while places and self.admitted < self._room():
            place = places.popleft()
            if not place.waiter.done():
                place.admitted = True
                self.admitted += 1
                place.waiter.set_result(None)

    def expire(self, now: float, late: Callable[[], Exception]) -> bool:
        """Those whose deadline has come get the error that ``late`` makes for each; whether there were any."""
        expired = [place.waiter for place in self.places if place.deadline <= now and not place.waiter.done()]
        for waiter in expired:
            waiter.set_exception(late())
        self.places = deque(place for place in self.places if not place.waiter.done())
        return bool(expired)

    def close(self) -> list[Waiter]:
        """The waiters of all who stand in line, for the error that they get; nobody does any more."""
        waiters = [place.waiter for place in self.places]
        self.places.clear()
        self._room = _none  # it holds the connection, which is part of no cycle any more when it is gone
        return waiters


def _none() -> int:
    return 0
