"""A validator for the words of JSON Schema (draft 2020-12) that ``rocketbox schema`` uses; all others are errors."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["accepts"]

_TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
    "null": type(None),
}
_SAYS_NOTHING = {"$schema", "$defs", "title", "description", "default"}


def accepts(schema: Any, value: Any, whole: Any = None) -> bool:
    """Whether a value is as the schema says, which is a part of the ``whole``."""
    if isinstance(schema, bool):
        return schema
    root = schema if whole is None else whole
    return all(_holds(schema, word, said, value, root) for word, said in schema.items() if word not in _SAYS_NOTHING)


def _holds(schema: Any, word: str, said: Any, value: Any, whole: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match word:
        case "type":
            return any(_is_of(name, value) for name in ([said] if isinstance(said, str) else said))
        case "$ref":
            return accepts(whole["$defs"][said.removeprefix("#/$defs/")], value, whole)
        case "anyOf":
            return any(accepts(each, value, whole) for each in said)
        case "enum":
            return any(each == value and type(each) is type(value) for each in said)
        case "pattern":
            return not isinstance(value, str) or re.search(said, value) is not None
        case "minimum":
            return not is_number or value >= said
        case "maximum":
            return not is_number or value <= said
        case "exclusiveMinimum":
            return not is_number or value > said
        case "items":
            return not isinstance(value, list) or all(accepts(said, each, whole) for each in value)
        case "properties":
            return not isinstance(value, dict) or all(
                accepts(said[key], value[key], whole) for key in said.keys() & value
            )
        case "patternProperties":
            return not isinstance(value, dict) or all(
                accepts(each, inner, whole)
                for key, inner in value.items()
                for name, each in said.items()
                if re.search(name, key)
            )
        case "additionalProperties":
            return not isinstance(value, dict) or all(
                accepts(said, inner, whole)
                for key, inner in value.items()
                if key not in schema.get("properties", {})
                and not any(re.search(name, key) for name in schema.get("patternProperties", {}))
            )
    raise AssertionError(f"the checker does not know {word}")


def _is_of(name: str, value: Any) -> bool:
    if isinstance(value, bool) and name in ("number", "integer"):
        return False
    return isinstance(value, _TYPES[name])
