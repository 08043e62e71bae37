"""Times as users write them: ``3s``, ``1m30s``, ``PT3S``, a timedelta; and times as text.

The one parser of times, for every edge at which users write one: settings, decorators, sends, ``RetryLater``. What a
number without a unit means differs there, and is said by the caller: milliseconds in settings (as in Spring), seconds
where a call of Python takes a number, and nothing in a decorator.

Source: Spring Boot 3 ``DurationStyle``.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Any

__all__ = [
    "DURATION_EXAMPLE",
    "DURATION_WITH_UNIT_EXAMPLE",
    "format_duration",
    "parse_duration",
    "parse_time",
]

DURATION_EXAMPLE = "3000 (milliseconds), 3s, 500ms, 1m30s or PT3S"
DURATION_WITH_UNIT_EXAMPLE = "15m, 30s, 500ms, 1m30s or PT3S"

_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART = r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)"
_PARTS = re.compile(rf"(?:{_PART}\s*)+", re.IGNORECASE)
_ISO = re.compile(r"P(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE)


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


def parse_time(value: Any) -> timedelta:
    """The time that ``value`` means in a call: a timedelta, text with a unit, or a number of seconds.

    Raises ValueError, with examples of what would be right.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return timedelta(seconds=value)
        except (OverflowError, ValueError) as error:  # inf, nan
            raise ValueError(f"{value} seconds are no time") from error
    return parse_duration(value, bare_numbers=False)


def format_duration(value: timedelta) -> str:
    """A time as text with units: ``15m``, ``1m30s``, ``500ms``, ``0s``; parts below a millisecond are left out."""
    rest = round(abs(value) / timedelta(milliseconds=1))
    parts = []
    for unit in ("d", "h", "m", "s", "ms"):
        count, rest = divmod(rest, _MS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return ("-" if value < timedelta(0) else "") + ("".join(parts) or "0s")
