"""Sizes as users write them: ``4194304`` (bytes), ``512KB``, ``4MB``; 1024-based.

Source: Spring Boot 3 ``DataSize``.
"""

from __future__ import annotations

import re
from typing import Any

__all__ = ["SIZE_EXAMPLE", "format_size", "parse_data_size"]

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
