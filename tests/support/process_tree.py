"""The processes of this machine as a tree, for tests that end some of them."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

__all__ = ["command_of", "connections_to", "descendants_of", "end_at_once", "members_of", "parents"]

ESTABLISHED = "01"  # of a connection in the tables of Linux


def parents() -> dict[int, int]:
    """The parent of each process that there is now."""
    return {number: parent for number, (parent, _) in _parents_and_sessions().items()}


def members_of(session: int) -> list[int]:
    """The processes of a session (``start_new_session``), those among them whose parents have ended too."""
    return [number for number, (_, of) in _parents_and_sessions().items() if of == session]


def _parents_and_sessions() -> dict[int, tuple[int, int]]:
    found = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = status.read_text()
        except OSError:  # it has ended
            continue
        _, parent, _, session, *_ = text.rpartition(")")[2].split()
        found[int(status.parent.name)] = (int(parent), int(session))
    return found


def descendants_of(number: int) -> list[int]:
    """Its children, theirs, and so on."""
    tree, found = parents(), [number]
    for each in found:
        found += [child for child, parent in tree.items() if parent == each]
    return found[1:]


def command_of(number: int) -> str:
    """What it was started with, in one line; nothing when it has ended."""
    try:
        return Path(f"/proc/{number}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def connections_to(port: int) -> int:
    """How many connections clients of this machine have open to a port."""
    found = 0
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, _, remote, state, *_ = line.split()
            found += int(remote.rpartition(":")[2], 16) == port and state == ESTABLISHED
    return found


def end_at_once(number: int) -> bool:
    """kill -9; whether it was there."""
    with suppress(ProcessLookupError):
        os.kill(number, signal.SIGKILL)
        return True
    return False
