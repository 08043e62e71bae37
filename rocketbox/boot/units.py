"""Times, points in time and sizes as types of pydantic models: ``3000``, ``3s``; ``2026-01-31T12:00:00``; ``4MB``.

What is text for pydantic, and several things for who reads it, says what stands between them (:func:`separated_by`).

``Duration`` reads a bare number as milliseconds, ``DurationWithUnit`` refuses one (``rocketbox.durations`` parses
both), ``DataSize`` is an int of bytes with 1024-based units (``rocketbox.sizes``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from rocketbox.durations import DURATION_EXAMPLE, DURATION_WITH_UNIT_EXAMPLE, parse_duration
from rocketbox.sizes import SIZE_EXAMPLE, parse_data_size

__all__ = [
    "DataSize",
    "Duration",
    "DurationWithUnit",
    "Timestamp",
    "parse_timestamp",
    "separated_by",
    "separator_of",
    "words_of",
]

TIMESTAMP_EXAMPLE = "2026-01-31T12:00:00, 2026-01-31T12:00:00Z or 20260131120000"

_APACHE_TIME = re.compile(r"\d{14}")  # UtilAll.YYYYMMDDHHMMSS


def parse_timestamp(value: Any) -> datetime:
    """The point in time that ``value`` means: a datetime, ISO text, or Apache's ``yyyyMMddHHmmss``.

    In local time where no zone is named, as Java has it. Raises ValueError with examples of what would be right.
    """
    if isinstance(value, datetime):
        return value.astimezone() if value.tzinfo is None else value
    text = str(value).strip()
    try:
        if _APACHE_TIME.fullmatch(text):
            return datetime.strptime(text, "%Y%m%d%H%M%S").astimezone()
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"not a point in time such as {TIMESTAMP_EXAMPLE}") from None
    return found.astimezone() if found.tzinfo is None else found


def _duration_with_unit(value: Any) -> timedelta:
    return parse_duration(value, bare_numbers=False)


_DURATION = f"a time: {DURATION_EXAMPLE}"
_DURATION_WITH_UNIT = f"a time with its unit: {DURATION_WITH_UNIT_EXAMPLE}"
_TIMESTAMP = f"a point in time: {TIMESTAMP_EXAMPLE}"
_DATA_SIZE = f"a size: {SIZE_EXAMPLE}"
_WORDS: Mapping[Any, str] = {
    parse_duration: _DURATION,
    _duration_with_unit: _DURATION_WITH_UNIT,
    parse_timestamp: _TIMESTAMP,
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
Timestamp = Annotated[
    datetime, BeforeValidator(parse_timestamp), WithJsonSchema({"type": "string", "description": _TIMESTAMP})
]
DataSize = Annotated[
    int,
    BeforeValidator(parse_data_size),
    WithJsonSchema({"type": ["string", "integer"], "description": _DATA_SIZE}),
]


class _Separated:
    """The validator that knows a separator; it changes nothing."""

    def __init__(self, separator: str) -> None:
        self.separator = separator

    def __call__(self, value: Any) -> Any:
        return value


def separated_by(separator: str) -> BeforeValidator:
    """Marks text that may hold several things with ``separator`` between them, so that an error can join a list."""
    return BeforeValidator(_Separated(separator))


def separator_of(validator: Any) -> str:
    """What stands between several things in text with this validator; empty for one that is none of these."""
    return validator.separator if isinstance(validator, _Separated) else ""


def words_of(validator: Any) -> str:
    """What a type with this validator takes, an example behind a colon; empty for one that is none of these."""
    try:
        return _WORDS.get(validator, "")
    except TypeError:  # it cannot be hashed
        return ""
