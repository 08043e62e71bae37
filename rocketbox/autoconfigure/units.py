"""Times and sizes as users write them in YAML, environment and decorators.

``Duration`` takes ``3000`` (milliseconds, as in Spring), ``"3000"``, ``3s``, ``500ms``, ``1m30s``, ``PT3S`` and a
timedelta; ``UnitDuration`` the same without bare numbers, for listener options, where Spring means minutes by some of
them; ``DataSize`` bytes or ``4MB`` (1024-based).

Source: Spring Boot 3 ``DurationStyle``, ``DataSize``.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, TypeAdapter, ValidationError

__all__ = ["DataSize", "Duration", "UnitDuration", "parse_duration", "parse_size"]

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)", re.IGNORECASE)
_SIZE = re.compile(r"(\d+)\s*(B|KB|MB|GB|TB)?", re.IGNORECASE)
_SIZE_UNITS = {"": 1, "B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_iso = TypeAdapter(timedelta)


def parse_duration(value: Any, *, bare_numbers: bool = True) -> timedelta:
    """The time that a value means; ValueError with examples of what would be right."""
    example = "write 3000 (ms), 3s, 500ms or PT3S" if bare_numbers else "write it with a unit: 15m, 30s, 500ms or PT3S"
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} is no time; {example}")
    text = str(value).strip()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        if not bare_numbers:
            raise ValueError(f"a time of {text} has no unit; {example}")
        return timedelta(milliseconds=float(text))
    if re.fullmatch(rf"(?:{_PART.pattern}\s*)+", text, re.IGNORECASE):
        return timedelta(milliseconds=sum(float(n) * _UNITS_MS[unit.lower()] for n, unit in _PART.findall(text)))
    if text[:1] in "Pp":
        try:
            return _iso.validate_python(text.upper())
        except ValidationError:
            pass
    raise ValueError(f"{text!r} is no time; {example}")


def parse_size(value: Any) -> int:
    """The bytes that a value means; ValueError with examples of what would be right."""
    match = None if isinstance(value, bool) else _SIZE.fullmatch(str(value).strip())
    if match is None:
        raise ValueError(f"{value!r} is no size; write bytes (4194304) or 4MB (1024-based)")
    return int(match[1]) * _SIZE_UNITS[(match[2] or "").upper()]


def _unit_duration(value: Any) -> timedelta:
    return parse_duration(value, bare_numbers=False)


Duration = Annotated[timedelta, BeforeValidator(parse_duration)]
UnitDuration = Annotated[timedelta, BeforeValidator(_unit_duration)]
DataSize = Annotated[int, BeforeValidator(parse_size)]
