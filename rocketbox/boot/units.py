"""Times and sizes as users write them: ``3000``, ``3s``, ``PT3S``; ``4MB``.

``Duration`` reads a bare number as milliseconds, ``DurationWithUnit`` refuses one, ``DataSize`` is an int of bytes with
1024-based units. All three are types for pydantic models; the parsers also serve times outside of the settings.

Source: Spring Boot 3 ``DurationStyle`` and ``DataSize``.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

__all__ = [
    "DURATION_EXAMPLE",
    "DURATION_WITH_UNIT_EXAMPLE",
    "SIZE_EXAMPLE",
    "DataSize",
    "Duration",
    "DurationWithUnit",
    "format_duration",
    "format_size",
    "parse_data_size",
    "parse_duration",
]

DURATION_EXAMPLE = "3000 (milliseconds), 3s, 500ms, 1m30s or PT3S"
DURATION_WITH_UNIT_EXAMPLE = "15m, 30s, 500ms, 1m30s or PT3S"
SIZE_EXAMPLE = "4194304 (bytes), 512KB or 4MB (1024-based)"

_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART = r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)"
_PARTS = re.compile(rf"(?:{_PART}\s*)+", re.IGNORECASE)
_ISO = re.compile(r"P(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE)
_SIZE = re.compile(r"(\d+)\s*([KMGT]?B)?", re.IGNORECASE)
_BYTES = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}


def parse_duration(value: Any, *, bare_numbers: bool = True) -> timedelta:
    """The time that ``value`` means: a timedelta, a number of milliseconds, or text. A leading ``-`` is kept.

    Raises ValueError, with examples of what would be right, also for a bare number unless ``bare_numbers``.
    """
    if isinstance(value, timedelta):
        return value
    example = DURATION_EXAMPLE if bare_numbers else DURATION_WITH_UNIT_EXAMPLE
    wrong = ValueError(f"not a time such as {example}")
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise wrong
    text = str(value).strip()
    sign, text = (-1, text[1:]) if text.startswith("-") else (1, text)
    if re.fullmatch(r"\d+(\.\d+)?", text):
        if not bare_numbers:
            raise ValueError(f"{text} has no unit; write a time such as {example}")
        milliseconds = float(text)
    elif _PARTS.fullmatch(text):
        milliseconds = math.fsum(float(number) * _MS[unit.lower()] for number, unit in _unit_parts(text))
    elif (match := _ISO.fullmatch(text)) and any(match.groups()):
        days, hours, minutes, seconds = (float(group or 0) for group in match.groups())
        milliseconds = days * _MS["d"] + hours * _MS["h"] + minutes * _MS["m"] + seconds * _MS["s"]
    else:
        raise wrong
    try:
        return timedelta(milliseconds=sign * milliseconds)
    except OverflowError as error:
        raise ValueError(f"longer than any time; write one such as {example}") from error


def _unit_parts(text: str) -> list[tuple[str, str]]:
    return re.findall(_PART, text, re.IGNORECASE)


def parse_data_size(value: Any) -> int:
    """The bytes that ``value`` means; raises ValueError with examples of what would be right."""
    match = None if isinstance(value, bool | float) else _SIZE.fullmatch(str(value).strip())
    if match is None:
        raise ValueError(f"not a size such as {SIZE_EXAMPLE}")
    return int(match[1]) * _BYTES[(match[2] or "B").upper()]


def format_duration(value: timedelta) -> str:
    """A time as text with units: ``15m``, ``1m30s``, ``500ms``, ``0s``; parts below a millisecond are left out."""
    rest = round(abs(value) / timedelta(milliseconds=1))
    parts = []
    for unit in ("d", "h", "m", "s", "ms"):
        count, rest = divmod(rest, _MS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return ("-" if value < timedelta(0) else "") + ("".join(parts) or "0s")


def format_size(value: int) -> str:
    """A number of bytes as text, with the largest unit that leaves a whole number: ``4MB``, ``1000``."""
    for unit in ("TB", "GB", "MB", "KB"):
        if value and value % _BYTES[unit] == 0:
            return f"{value // _BYTES[unit]}{unit}"
    return str(value)


def _duration_with_unit(value: Any) -> timedelta:
    return parse_duration(value, bare_numbers=False)


Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    WithJsonSchema({"type": ["string", "integer"], "description": f"a time: {DURATION_EXAMPLE}"}),
]
DurationWithUnit = Annotated[
    timedelta,
    BeforeValidator(_duration_with_unit),
    WithJsonSchema({"type": "string", "description": f"a time with its unit: {DURATION_WITH_UNIT_EXAMPLE}"}),
]
DataSize = Annotated[
    int,
    BeforeValidator(parse_data_size),
    WithJsonSchema({"type": ["string", "integer"], "description": f"a size: {SIZE_EXAMPLE}"}),
]
