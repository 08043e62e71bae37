"""Values of JSON bodies, checked one by one: what a peer or a file says is never taken for what it should be.

Source: fastjson's leniency as Apache RocketMQ's peers rely on it (numbers as text, fractions cut off).
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rocketbox.errors import RemoteProtocolError

__all__ = [
    "BareKeys",
    "as_int",
    "as_list",
    "as_name",
    "as_object",
    "as_text",
    "check_size",
    "dumps",
    "dumps_bare",
    "reading",
]


LONGEST_NAME = 1000  # characters; a topic's has up to 127, or 255


def dumps(value: Any) -> bytes:
    """Compact JSON with sorted keys."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Everything that can go wrong in a body of the wrong shape becomes one error."""
    try:
        yield
    except (ValueError, TypeError, AttributeError, KeyError, IndexError, struct.error, zlib.error) as error:
        raise RemoteProtocolError(f"{what} cannot be read: {error or type(error).__name__}") from None


def check_size(body: bytes, most: int) -> None:
    """Raises ValueError for a body that is larger than what it says could make it."""
    if len(body) > most:
        raise ValueError(f"it has {len(body)} bytes, and {most} is the most")


def _kind(value: Any) -> str:
    """What was found, without its content: that may be millions of characters, or nested too deep to print."""
    return "null" if value is None else f"a {type(value).__name__}"


def as_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{_kind(value)} is not an object")
    return value


def as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise TypeError(f"{_kind(value)} is not a list")
    return value


def as_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{_kind(value)} is not text")
    return value


def as_name(value: Any) -> str:
    """A name or address that logs and errors show: one with a line break would begin a line of theirs."""
    text = as_text(value)
    if not text.isprintable() or len(text) > LONGEST_NAME:
        raise ValueError(f"a name has more than {LONGEST_NAME} characters, or some that cannot be printed")
    return text


def as_int(value: Any) -> int:
    """A Java long. Numbers may come as text; a fraction is cut off, as fastjson does."""
    try:
        number = int(value)
    except OverflowError:
        raise ValueError("an infinite number") from None
    if not -(2**63) <= number < 2**63:
        raise ValueError("a number of more than 64 bits")
    return number


class BareKeys(dict[str, str]):
    """An object whose keys are written without quotes."""


def dumps_bare(value: Any) -> str:
    """As :func:`dumps`, as text; the keys of BareKeys stand without quotes, as fastjson writes numbers."""
    if isinstance(value, dict):
        bare = isinstance(value, BareKeys)
        entries = (f"{key if bare else json.dumps(key)}:{dumps_bare(value[key])}" for key in sorted(value))
        return "{" + ",".join(entries) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(dumps_bare, value)) + "]"
    return json.dumps(value)
