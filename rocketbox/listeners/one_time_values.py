"""What can be written once: iterators in the value of a handler, which goes to several places.

Each of them writes it anew, and would find an iterator at its end from the second one on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["where_an_iterator_lies"]

LISTS = (list, tuple, set, frozenset)


def where_an_iterator_lies(value: Any) -> str | None:
    """Where in a value there is an iterator, by the names of fields and keys; "" for itself, None: nowhere.

    Models, dataclasses and other objects are looked into by their fields, and nothing is read from an iterator.
    """
    left, seen = [("", value)], set[int]()
    while left:
        where, each = left.pop()
        if isinstance(each, Iterator):
            return where
        members = _members(each)
        if members and id(each) not in seen:
            seen.add(id(each))
            left += [(f"{where}.{name}" if where else str(name), member) for name, member in members]
    return None


def _members(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, LISTS):
        return list(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(each.name, getattr(value, each.name, None)) for each in dataclasses.fields(value)]
    if isinstance(names := getattr(type(value), "__struct_fields__", None), tuple):  # msgspec's
        return [(name, getattr(value, name, None)) for name in names]
    if hasattr(type(value), "model_fields"):
        return list(vars(value).items())
    return []
