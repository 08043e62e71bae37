"""Values as they were written, before any type is known: text, lists and groups, each with its place."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Group", "Item", "Listing", "Origin", "Raw", "Ready", "Scalar", "file_label", "split_key"]


@dataclass(frozen=True)
class Origin:
    """Where a value was written. ``source`` is a file, or what stands for one; ``line`` and ``column`` begin at 1."""

    source: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        if not self.line:
            return self.source
        return f"{self.source}:{self.line}:{self.column}" if self.column else f"{self.source}:{self.line}"


@dataclass(frozen=True)
class Scalar:
    """Text; None is YAML's null. ``plain``: it was written without quotes. ``open_``: ``${...}`` in it counts.

    ``secret``: it comes from where secrets are kept, and is never shown, whatever its key.
    """

    text: str | None = field(repr=False)  # it may be a secret
    origin: Origin
    plain: bool = True
    open_: bool = True
    secret: bool = False


@dataclass(frozen=True)
class Listing:
    """A list."""

    items: tuple[Raw, ...]
    origin: Origin


@dataclass(frozen=True)
class Group:
    """A mapping inside a list, or an empty one: keys, where each was written, values."""

    entries: tuple[tuple[str, Origin, Raw], ...]
    origin: Origin


@dataclass(frozen=True)
class Ready:
    """A Python value that a program handed in."""

    value: Any = field(repr=False)
    origin: Origin


Raw = Scalar | Listing | Group | Ready


@dataclass(frozen=True)
class Item:
    """One value of a source, with the parts of its key as they were written and the place of each part."""

    parts: tuple[str, ...]
    places: tuple[Origin, ...]
    raw: Raw


def split_key(text: str) -> list[str]:
    """The parts of ``a.b[c.d].e``: a, b, c.d, e."""
    return list(_parts_of(text))


@functools.lru_cache(maxsize=4096)  # a start asks for the same keys as the one before
def _parts_of(text: str) -> tuple[str, ...]:
    parts: list[str] = []
    rest = text
    while rest:
        if rest.startswith("[") and "]" in rest:
            part, rest = rest[1:].split("]", 1)
            rest = rest.removeprefix(".")
        else:
            end = min((position for mark in ".[" if (position := rest.find(mark, 1)) > 0), default=len(rest))
            part, rest = rest[:end], rest[end:].removeprefix(".")
        parts.append(part)
    return tuple(parts) or ("",)


def file_label(path: Path) -> str:
    """How a file is named to the user: relative when it is below the working directory."""
    return str(path.absolute()).removeprefix(os.getcwd() + os.sep)
