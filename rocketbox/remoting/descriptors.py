"""How many connections this process can hold: its file descriptors, less what its files need.

Many systems give a process 1,024 descriptors at first and let it take more: that is done once, when the first server
starts. Where there is no such limit (Windows) only the server's own setting counts.

Source: none; Apache's start scripts leave this to ``ulimit``.
"""

from __future__ import annotations

import logging
import sys

if sys.platform != "win32":
    import resource

__all__ = ["connection_limit", "raise_descriptor_limit"]

_log = logging.getLogger(__name__)

RESERVED_FOR_FILES = 512  # the store's open files, logs, libraries; a quarter of the limit where that is less
SERVERS_IN_A_PROCESS = 2  # the embedded name server and broker share the descriptors
MOST_WANTED = 1_048_576  # some systems answer "unlimited" and then refuse it


def raise_descriptor_limit() -> int | None:
    """Let this process open as many files as the system allows it; return how many. None: there is no such limit."""
    if sys.platform == "win32":
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_WANTED if hard == resource.RLIM_INFINITY else min(hard, MOST_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:  # macOS refuses more than OPEN_MAX
            _log.debug("the limit of %d open files cannot be raised to %d: %s", soft, wanted, error)
            return soft
        _log.debug("the limit of open files is raised from %d to %d", soft, wanted)
        return wanted
    return MOST_WANTED if soft == resource.RLIM_INFINITY else soft


def connection_limit(wanted: int, descriptors: int | None) -> int:
    """How many connections one server takes: what is wanted, or what the descriptors allow."""
    if descriptors is None:
        return wanted
    reserve = min(RESERVED_FOR_FILES, descriptors // 4)
    return max(1, min(wanted, (descriptors - reserve) // SERVERS_IN_A_PROCESS))
