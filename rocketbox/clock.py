"""Time, randomness and ids: the one place that asks the machine for them.

Every wait of the library goes through a :class:`Clock`, so that a whole system can run on a time of its own.
``time.time``, ``random``, ``uuid4``, ``anyio.sleep``, ``anyio.fail_after``, ``anyio.move_on_after`` and
``anyio.current_time`` occur in this module only; a test greps for them.
"""

from __future__ import annotations

import random as _random
import secrets
import time
import uuid
from contextlib import AbstractContextManager
from typing import Protocol

import anyio

__all__ = ["Clock", "RealClock", "chances_of"]

SECRET_BYTES = 32


class Clock(Protocol):
    """What the library knows of time and chance."""

    random: _random.Random

    def time_ms(self) -> int:
        """Milliseconds since the epoch, as RocketMQ stamps messages."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; only differences mean something."""

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds``."""

    def deadline(self, seconds: float) -> AbstractContextManager[anyio.CancelScope]:
        """Cancel the block and raise TimeoutError when it takes longer than ``seconds``."""

    def move_on_after(self, seconds: float) -> AbstractContextManager[anyio.CancelScope]:
        """Cancel the block when it takes longer than ``seconds``, and go on behind it."""

    def uuid(self) -> str:
        """A random UUID (RFC 9562, version 4) as text: no other is the same. It is no secret, as ``random`` is none:
        who sees enough of what that gives can compute the rest, also what came before.
        """

    def secret(self) -> str:
        """A key that nobody can guess, whatever else he has seen: 64 hexadecimal digits."""


def chances_of(seed: int) -> _random.Random:
    """Chances that are the same for the same seed, for clocks of tests."""
    return _random.Random(seed)


class RealClock:
    """The machine's own time and randomness."""

    def __init__(self, random: _random.Random | None = None) -> None:
        self.random = random or _random.Random()

    def time_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return self._monotonic()

    _monotonic = staticmethod(time.monotonic)  # by a name in here, where freezegun does not find it and let it stand

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)

    def deadline(self, seconds: float) -> AbstractContextManager[anyio.CancelScope]:
        return anyio.fail_after(seconds)

    def move_on_after(self, seconds: float) -> AbstractContextManager[anyio.CancelScope]:
        return anyio.move_on_after(seconds)

    def uuid(self) -> str:
        return str(uuid.UUID(int=self.random.getrandbits(128), version=4))

    def secret(self) -> str:
        return secrets.token_hex(SECRET_BYTES)
