"""What can be written once: iterators in the value of a handler, which goes to several places.

Each of them writes it anew, and would find an iterator at its end from the second one on.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

__all__ = ["where_an_iterator_lies"]

LISTS = (list, tuple, set, frozenset, deque)
PLAIN = frozenset({str, int, float, bool, bytes, type(None)})
"""Types whose values are most of a large value, and hold nothing: no more than this look is taken at them."""
OFTEN = frozenset({dict, list})
"""Types that are known to be no iterators: what is asked of a class takes long."""

_Path = tuple["_Path", Any] | None
"""Where a value lies: where what holds it lies, and its name there."""


def where_an_iterator_lies(value: Any) -> str | None:
    """Where in a value there is an iterator, by the names of fields and keys; "" for itself, None: nowhere.

    Models, dataclasses and other objects are looked into by their fields, and nothing is read from an iterator.
    """
    left: list[tuple[_Path, Any]] = [(None, value)]
    seen = set[int]()
    while left:
        path, each = left.pop()
        if type(each) not in OFTEN and isinstance(each, Iterator):
            return _text_of(path)
        if id(each) not in seen:
            seen.add(id(each))
            left += [((path, name), member) for name, member in _members(each) if type(member) not in PLAIN]
    return None


def _text_of(path: _Path) -> str:
    names = []
    while path is not None:
        path, name = path
        names.append(str(name))
    return ".".join(reversed(names))


def _members(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, (dict, Mapping)):
        return value.items()
    if isinstance(value, LISTS):
        return enumerate(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(each.name, getattr(value, each.name, None)) for each in dataclasses.fields(value)]
    if isinstance(names := getattr(type(value), "__struct_fields__", None), tuple):  # msgspec's
        return [(name, getattr(value, name, None)) for name in names]
    if hasattr(type(value), "model_fields"):
        return {**vars(value), **(getattr(value, "__pydantic_extra__", None) or {})}.items()
    return ()
