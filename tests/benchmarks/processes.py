"""Processes that are measured: which processor they run on, and what time they have used."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cpu_seconds", "pinned"]


def cpu_seconds(pid: int) -> float:
    """User and system time of another process, all of its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pinned(cpu: int) -> list[str]:
    """The words before a command that keep it, and all of its threads, on one processor; none if there is only one."""
    return ["taskset", "-c", str(cpu)] if (os.cpu_count() or 1) > 1 else []
