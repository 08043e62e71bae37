"""Open stores in a child of ``fork``: it has the parent's memory and file handles, and none of its threads.

The store goes on in the parent. In the child it is taken out of use before anything else runs there: it refuses, its
file handles are closed, nothing is synced, unlocked or said to be clean. What is called for that is left to
``message_store``.

Source: rocketbox' own; a Java process cannot fork.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from weakref import WeakKeyDictionary

__all__ = ["forget_fork", "on_fork"]

_log = logging.getLogger(__name__)

_called: WeakKeyDictionary[object, Callable[[], None]] = WeakKeyDictionary()
_registering = threading.Lock()
_registered = False


def on_fork(owner: object, call: Callable[[], None]) -> None:
    """Have ``call`` called in a child, until :func:`forget_fork`; it must take no lock that a thread may hold."""
    global _registered
    with _registering:
        if not _registered:
            os.register_at_fork(after_in_child=_in_child)
            _registered = True
    _called[owner] = call


def forget_fork(owner: object) -> None:
    _called.pop(owner, None)


def _in_child() -> None:
    for owner, call in list(_called.items()):
        del _called[owner]
        try:
            call()
        except Exception:
            _log.exception("a store of the parent process could not be let go of")
