"""What is known of one queue of a consumer. What its states mean, and what changes them, stands in ``assignment``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from rocketbox.client.process_queue import ProcessQueue
from rocketbox.message import MessageQueue
from rocketbox.tasks import SupervisedTask

__all__ = ["OwnedQueue", "Ownership"]


class Ownership(Enum):
    """The state of a queue; see the table in the head of ``assignment``."""

    WANTED = "wanted"
    LOCKED = "locked"
    PULLED = "pulled"
    DRAINING = "draining"
    DROPPED = "dropped"
    HANDED_ON = "handed on"


@dataclass(eq=False)
class OwnedQueue:
    """One queue in the table. ``not_before`` is when its former owner has had its time."""

    queue: MessageQueue
    not_before: float
    state: Ownership = Ownership.WANTED
    locked_at: float | None = None
    locked_by: str | None = None  # the address of its broker then
    messages: ProcessQueue | None = None
    before_reset: ProcessQueue | None = None  # its last batch may still be in hand
    pull: SupervisedTask | None = None
    reset_at: float | None = None  # when its broker had it go on at another offset

    @property
    def counts(self) -> bool:
        """Whether its messages count when they have been consumed."""
        return self.state in (Ownership.PULLED, Ownership.DRAINING)

    def confirm_lock(self, now: float, address: str | None) -> None:
        """The broker at address said at now, or later, that this member has the lock."""
        self.locked_at, self.locked_by = now, address
        if self.messages is not None:
            self.messages.locked_at = now
            self.messages.lock_doubted = False

    def must_confirm(self, since: float) -> bool:
        """Whether it has a lock that was not confirmed at ``since`` or later, or is doubted."""
        if self.locked_at is None or self.messages is None:
            return False
        return self.locked_at < since or self.messages.lock_doubted

    async def idle(self) -> None:
        """Return when nothing of it is in hand."""
        for messages in (self.before_reset, self.messages):
            if messages is not None:
                await messages.idle()
