"""How many entries the tables of some objects have: whatever grows with the messages that went through is seen."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["grown", "sizes"]

TABLES = (dict, list, set, deque, array, bytearray)
LOOKED_INTO = 64  # entries of a table whose own tables are counted too: those of a large one are alike


def sizes(roots: Mapping[str, object]) -> dict[str, int]:
    """By the path of attributes from a root: the entries of each table of rocketbox's own objects.

    Tables that several entries of another one have are added up under one path.
    """
    found: dict[str, int] = {}
    seen: set[int] = set()
    waiting: list[tuple[str, object]] = list(roots.items())
    while waiting:
        path, value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, TABLES):
            found[path] = found.get(path, 0) + len(value)
        waiting += ((f"{path}{name}", each) for name, each in _parts(value))
    return found


def _parts(value: Any) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for _, each in zip(range(LOOKED_INTO), value.values(), strict=False):
            yield "[]", each
    elif isinstance(value, list | tuple | set | frozenset | deque):
        for _, each in zip(range(LOOKED_INTO), value, strict=False):
            yield "[]", each
    elif type(value).__module__.startswith("rocketbox"):
        names = list(getattr(value, "__dict__", ()))
        names += [name for kind in type(value).__mro__ for name in kind.__dict__.get("__slots__", ())]
        for name in names:
            if hasattr(value, name) and name != "__weakref__":
                yield f".{name}", getattr(value, name)


def grown(before: Mapping[str, int], after: Mapping[str, int], by: int) -> dict[str, tuple[int, int]]:
    """Which tables have more than ``by`` entries more: how many they had, and have."""
    return {
        path: (before.get(path, 0), size) for path, size in sorted(after.items()) if size > before.get(path, 0) + by
    }
