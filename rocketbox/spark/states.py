"""The states of a Spark listener, and what each is to health.

    starting     its session or its query is being made, or its topic does not exist yet
    standing by  another driver reads the topic for the group (``lease``); ready: a replica that waits is well
    running      the query lives
    restarting   the query has ended by something that may pass; it begins again a little later each time
    failed       by what no restart mends: a wrong option, lost messages, a batch that has failed too often
    no Java      there is none for Spark
    finished     all was read, which is an end for the trigger ``available_now`` alone
    stopped      with the application

Who moves from one to the next is ``listener``; nothing leaves the last four.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from rocketbox.listeners import ContainerStatus

__all__ = ["ENDED", "SparkListenerState", "Situation"]


class SparkListenerState(Enum):
    STARTING = "starting"
    STANDING_BY = "standing by"
    RUNNING = "running"
    RESTARTING = "restarting"
    FAILED = "failed"
    UNAVAILABLE = "no Java"
    FINISHED = "finished"
    STOPPED = "stopped"


ENDED = frozenset(
    {
        SparkListenerState.FAILED,
        SparkListenerState.UNAVAILABLE,
        SparkListenerState.FINISHED,
        SparkListenerState.STOPPED,
    }
)

_TO_HEALTH = {
    SparkListenerState.STARTING: (ContainerStatus.STARTING, False),
    SparkListenerState.STANDING_BY: (ContainerStatus.STANDING_BY, True),
    SparkListenerState.RUNNING: (ContainerStatus.RUNNING, True),
    SparkListenerState.RESTARTING: (ContainerStatus.RESTARTING, False),
    SparkListenerState.FAILED: (ContainerStatus.FAILED, False),
    SparkListenerState.UNAVAILABLE: (ContainerStatus.FAILED, False),
    SparkListenerState.FINISHED: (ContainerStatus.FINISHED, True),
    SparkListenerState.STOPPED: (ContainerStatus.STOPPED, False),
}


@dataclass(frozen=True)
class Situation:
    """A state with what is known of it: ``why`` it is so, and when the query begins again, by the listener's clock."""

    state: SparkListenerState
    why: str | None = None
    next_start: float | None = None

    def health(self, trouble: str | None, now: float) -> tuple[ContainerStatus, bool, str | None]:
        """Status, whether it does its work, and why not. ``trouble`` is what keeps a query that lives from its work."""
        status, ready = _TO_HEALTH[self.state]
        if self.state is SparkListenerState.RUNNING:
            return status, trouble is None, trouble
        reason = self.why
        if self.next_start is not None:
            reason = f"{reason}; it starts again in {max(0.0, self.next_start - now):.0f} s"
        if not ready:
            reason = reason or trouble or self.state.value
        return status, ready, reason
