"""The state of a listener container of whatever kind: what health shows of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

__all__ = ["ContainerState", "ContainerStatus"]


class ContainerStatus(Enum):
    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    RESTARTING = "restarting"
    STANDING_BY = "standing by"
    FAILED = "failed"
    FINISHED = "finished"
    STOPPED = "stopped"


@dataclass(frozen=True)
class ContainerState:
    """``ready`` turns false, with the ``reason``, when the container does not do its work.

    ``progress`` is data: how far it is, what waits, what it does now. Its names are those of the kind.
    """

    cluster: str | None
    group: str
    status: ContainerStatus
    ready: bool
    reason: str | None
    progress: Mapping[str, object] = field(default_factory=dict)
