"""The states of a client's life, by the names that Apache's clients give them in their errors.

    CREATE_JUST -> RUNNING -> SHUTDOWN_ALREADY
    CREATE_JUST -> START_FAILED -> RUNNING          a failed start may be repeated, unlike Java's

Source: Apache RocketMQ 5.x ``ServiceState``.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["ServiceState"]


class ServiceState(Enum):
    """Where a client is in its life."""

    CREATE_JUST = "not started"
    RUNNING = "running"
    SHUTDOWN_ALREADY = "closed"
    START_FAILED = "its start has failed, and may be repeated"
