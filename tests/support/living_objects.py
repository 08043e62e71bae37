"""What lives in this process, counted by the garbage collector's own lists."""

from __future__ import annotations

import gc

__all__ = ["living"]


def living(*types: type) -> list[object]:
    """All that the collector follows of exactly these types, of whichever test it is.

    ``isinstance`` would ask each object for its ``__class__``, and what any other test has left answers as it likes:
    a ``weakref.proxy`` whose object has gone raises ``ReferenceError``.
    """
    return [each for each in gc.get_objects() if type(each) in types]
