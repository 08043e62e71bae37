"""Times and sizes as types of pydantic models: ``3000``, ``3s``, ``PT3S``; ``4MB``.

``Duration`` reads a bare number as milliseconds, ``DurationWithUnit`` refuses one (``rocketbox.durations`` parses
both), ``DataSize`` is an int of bytes with 1024-based units.

Source: Spring Boot 3 ``DataSize``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from rocketbox.durations import DURATION_EXAMPLE, DURATION_WITH_UNIT_EXAMPLE, parse_duration

__all__ = [
    "SIZE_EXAMPLE",
    "DataSize",
    "Duration",
    "DurationWithUnit",
    "format_size",
    "parse_data_size",
    "words_of",
]

SIZE_EXAMPLE = "4194304 (bytes), 512KB or 4MB (1024-based)"

_SIZE = re.compile(r"(\d+)\s*([KMGT]?B)?", re.IGNORECASE)
_BYTES = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}


def parse_data_size(value: Any) -> int:
    """The bytes that ``value`` means; raises ValueError with examples of what would be right."""
    match = None if isinstance(value, bool | float) else _SIZE.fullmatch(str(value).strip())
    if match is None:
        raise ValueError(f"not a size such as {SIZE_EXAMPLE}")
    return int(match[1]) * _BYTES[(match[2] or "B").upper()]


def format_size(value: int) -> str:
    """A number of bytes as text, with the largest unit that leaves a whole number: ``4MB``, ``1000``."""
    for unit in ("TB", "GB", "MB", "KB"):
        if value and value % _BYTES[unit] == 0:
            return f"{value // _BYTES[unit]}{unit}"
    return str(value)


def _duration_with_unit(value: Any) -> timedelta:
    return parse_duration(value, bare_numbers=False)


_DURATION = f"a time: {DURATION_EXAMPLE}"
_DURATION_WITH_UNIT = f"a time with its unit: {DURATION_WITH_UNIT_EXAMPLE}"
_DATA_SIZE = f"a size: {SIZE_EXAMPLE}"
_WORDS: Mapping[Any, str] = {
    parse_duration: _DURATION,
    _duration_with_unit: _DURATION_WITH_UNIT,
    parse_data_size: _DATA_SIZE,
}

Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    WithJsonSchema({"type": ["string", "integer"], "description": _DURATION}),
]
DurationWithUnit = Annotated[
    timedelta,
    BeforeValidator(_duration_with_unit),
    WithJsonSchema({"type": "string", "description": _DURATION_WITH_UNIT}),
]
DataSize = Annotated[
    int,
    BeforeValidator(parse_data_size),
    WithJsonSchema({"type": ["string", "integer"], "description": _DATA_SIZE}),
]


def words_of(validator: Any) -> str:
    """What a type with this validator takes, an example behind a colon; empty for one that is none of these."""
    try:
        return _WORDS.get(validator, "")
    except TypeError:  # it cannot be hashed
        return ""
