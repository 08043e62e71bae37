"""Numbers that JSON has not: NaN and the infinities, which pydantic and msgspec write as ``null`` and say nothing.

Who reads would get another value than was sent, or could not read the message at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import isfinite
from typing import Any

from pydantic_core import from_json

__all__ = ["where_written_as_null"]

PLAIN = frozenset({str, int, bool, bytes, type(None)})
LISTS = (list, tuple, set, frozenset, deque)  # that a serializer leaves as they are; classes, since ABCs take longer


def where_written_as_null(data: Any, body: bytes) -> str | None:
    """Where ``data`` has a number that is ``null`` in its JSON, as in ``legs.0.delay``; None: nowhere.

    ``data`` are dicts, lists and plain values, in the order in which the same serializer has written them to ``body``.
    ``""`` is the value itself.
    """
    if not _has_any(data):
        return None
    left = [("", data, from_json(body))]
    while left:
        where, value, text = left.pop()
        if isinstance(value, float):
            if text is None and not isfinite(value):
                return where
        else:
            left += [(f"{where}.{name}" if where else name, *pair) for name, *pair in _members(value, text)]
    return None


def _has_any(data: Any) -> bool:
    """Whether there is any such number, however it is written: mostly there is none, and this is quicker to see."""
    left = [data]
    while left:
        value = left.pop()
        if type(value) in PLAIN:
            continue
        if isinstance(value, float):
            if not isfinite(value):
                return True
        elif isinstance(value, dict):
            left += value.values()
        elif isinstance(value, LISTS):
            left += value
    return False


def _members(value: Any, text: Any) -> Iterator[tuple[str, Any, Any]]:
    """What a collection holds, each beside its JSON; where that has another form, beside ``null``: it cannot be told
    then which of its nulls stands for what.
    """
    if isinstance(value, dict):
        texts = list(text.values()) if isinstance(text, dict) and len(text) == len(value) else [None] * len(value)
        yield from zip(map(str, value), value.values(), texts, strict=True)
    elif isinstance(value, LISTS):
        is_same = isinstance(text, list) and len(text) == len(value) and not isinstance(value, set | frozenset)
        texts = text if is_same else [None] * len(value)
        yield from zip(map(str, range(len(value))), value, texts, strict=True)
