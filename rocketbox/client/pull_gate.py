"""What keeps a consumer from pulling for a while: its user's pause, or that nothing it pulls could be handled now.

Source: Apache RocketMQ 5.x ``DefaultMQPushConsumerImpl.pause`` (one flag there).
"""

from __future__ import annotations

import anyio

__all__ = ["PullGate"]


class PullGate:
    """Open while nobody has a reason to keep it closed."""

    def __init__(self) -> None:
        self._reasons: set[str] = set()
        self._opened = anyio.Event()

    @property
    def closed(self) -> bool:
        return bool(self._reasons)

    def closed_by(self, reason: str) -> bool:
        return reason in self._reasons

    def close(self, reason: str) -> None:
        """Keep it closed until :meth:`open` is called with the same reason."""
        if not self._reasons:
            self._opened = anyio.Event()
        self._reasons.add(reason)

    def open(self, reason: str) -> None:
        self._reasons.discard(reason)
        if not self._reasons:
            self._opened.set()

    async def passed(self) -> bool:
        """Return when it is open; whether that had to be waited for."""
        waited = self.closed
        while self.closed:
            await self._opened.wait()
        return waited
