"""The keys of settings as a JSON Schema, by which editors of YAML complete them and mark what is wrong.

Made from the shapes that settings are read by, so it takes what they take: ``${...}`` in place of any value, times and
sizes with units, enums in any spelling, lists as text with commas, nothing below a heading. Keys are in kebab case.
What is required is not marked as such: it may come from the environment.

Source: JSON Schema draft 2020-12.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from datetime import timedelta
from enum import Enum
from pathlib import PurePath
from typing import Any

from pydantic import BaseModel, SecretBytes, SecretStr

from rocketbox.boot.effective import format_value
from rocketbox.boot.secrets import is_secret
from rocketbox.boot.settings import schema_of
from rocketbox.boot.shapes import Field, Leaf, Many, Section, Shape, Table, uniform
from rocketbox.boot.wording import is_class, members_of

__all__ = ["json_schema"]

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_PLACEHOLDER = r"\$\{.+\}"
_UNITS = r"(\d+(\.\d+)?\s*([mM]?[sS]|[mMhHdD])\s*)+"
_ISO = r"[pP](\d+[dD])?([tT](\d+[hH])?(\d+[mM])?(\d+(\.\d+)?[sS])?)?"
_TIME = rf"^-?({_UNITS}|{_ISO})$"
_TIME_OR_NUMBER = rf"^-?({_UNITS}|{_ISO}|\d+(\.\d+)?)$"
_SIZE = r"^\d+\s*([kKmMgGtT]?[bB])?$"
_INTEGER = r"^[-+]?(0|[1-9]\d*)$"
_NUMBER = r"^[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?$"
_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}

Node = dict[str, Any]


def json_schema(models: Mapping[str, type[BaseModel]], title: str = "Settings of rocketbox") -> Node:
    """The schema of these models below their prefixes; other keys at the root are allowed."""
    return {"$schema": DIALECT, "title": title, **_section(schema_of(models).root)}


def _shape(shape: Shape, bounds: Node | None = None) -> Node:
    if isinstance(shape, Section):
        return _or_single(_section(shape), shape.scalar)
    if isinstance(shape, Table):
        return _or_single(_table(shape), shape.scalar)
    if isinstance(shape, Many):
        return {"anyOf": [{"type": "array", "items": _shape(shape.item)}, {"type": ["string", "number", "null"]}]}
    return _leaf(shape, bounds or {})


def _or_single(node: Node, scalar: Leaf | None) -> Node:
    return node if scalar is None else {"anyOf": [node, _leaf(scalar, {})]}


def _section(section: Section) -> Node:
    node: Node = {"type": ["object", "null"]}
    if section.model is not None and (description := _first_paragraph(section.model)):
        node["description"] = description
    node["properties"] = {known.key: _field(section, known) for known in dict.fromkeys(section.fields.values())}
    if section.extra is not None:
        node["additionalProperties"] = _shape(section.extra)
    elif section.strict:
        node["patternProperties"] = {r"[.\[]": {}, "^<<$": {}}  # a.b: for a: {b: }, and YAML's merges
        node["additionalProperties"] = False
    return node


def _table(table: Table) -> Node:
    value = _shape(table.value)
    if isinstance(table.value, Leaf | Many):  # its keys may have dots, and each part may stand on a line of its own
        value = {"anyOf": [value, {"type": "object"}]}
    return {"type": ["object", "null"], "additionalProperties": value}


def _field(section: Section, known: Field) -> Node:
    info = section.model.model_fields[known.attribute] if section.model is not None and known.attribute else None
    if info is None:
        return _shape(known.shape)
    bounds = {
        word: limit
        for each in info.metadata
        for name, word in _BOUNDS.items()
        if isinstance(limit := getattr(each, name, None), int | float)
    }
    node = _shape(known.shape, bounds)
    words = [info.description or node.get("description", "")]
    if isinstance(known.shape, Leaf) and known.shape.description:
        words.append(known.shape.description)
    if info.is_required():
        words.append("required")
    if description := "; ".join(word for word in words if word):
        node["description"] = description
    default = info.get_default(call_default_factory=False)
    has_default = isinstance(known.shape, Leaf) and not info.is_required() and default is not None
    if has_default and not is_secret([known.key], known.shape):
        node["default"] = _default(default, known.shape)
    return node


def _default(default: Any, shape: Shape) -> Any:
    is_size = isinstance(shape, Leaf) and bool(shape.description)
    is_plain = isinstance(default, bool | float | str) or (isinstance(default, int) and not is_size)
    return default if is_plain and not isinstance(default, Enum) else format_value(default, shape)


def _first_paragraph(model: type[BaseModel]) -> str:
    text = model.__doc__ or "" if "__doc__" in vars(model) else ""
    return " ".join(inspect.cleandoc(text).partition("\n\n")[0].split()).replace("``", "")


def _leaf(leaf: Leaf, bounds: Node) -> Node:
    if leaf.is_any:
        return {}
    kinds = [_kind(kind, leaf, bounds) for kind in leaf.kinds]
    alternatives = [each for kind in kinds for each in kind]
    if any(each == _TEXT for each in alternatives):
        return {"type": _TEXT["type"]}
    unique: list[Node] = []
    for each in [*alternatives, {"type": "string", "pattern": _PLACEHOLDER}, {"type": "null"}]:
        if each not in unique:
            unique.append(each)
    return {"anyOf": unique}


_TEXT: Node = {"type": ["string", "number", "boolean", "null"]}  # plain text that looks like a number stays text


def _kind(kind: Any, leaf: Leaf, bounds: Node) -> list[Node]:
    if leaf.description.startswith("a time with"):
        return [{"type": "string", "pattern": _TIME}]
    if leaf.description.startswith("a time") or is_class(kind, (timedelta,)):
        return [{"type": "number"}, {"type": "string", "pattern": _TIME_OR_NUMBER}]
    if leaf.description.startswith("a size"):
        return [{"type": "integer", **bounds}, {"type": "string", "pattern": _SIZE}]
    if members := members_of(kind):
        names = list({uniform(name): name for name, _ in reversed(members)}.values())[::-1]  # a value before a name
        return [{"enum": names}, {"type": "string", "pattern": f"^({'|'.join(map(_any_spelling, names))})$"}]
    if kind is bool:
        return [
            {"type": "boolean"},
            {"type": "string", "pattern": f"^({_any_spelling('true')}|{_any_spelling('false')})$"},
        ]
    if kind is int:
        return [{"type": "integer", **bounds}, {"type": "string", "pattern": _INTEGER}]
    if kind is float:
        return [{"type": "number", **bounds}, {"type": "string", "pattern": _NUMBER}]
    if is_class(kind, (str, bytes, SecretStr, SecretBytes, PurePath)):
        return [_TEXT]
    return [{}] if leaf.validated else [_TEXT]  # what pydantic reads from text itself


def _any_spelling(name: str) -> str:
    """A pattern for a name in any case, with ``-``, ``_`` or nothing between its letters."""
    letters = [letter for letter in name if letter not in "-_"]
    return "[-_]?".join(
        f"[{letter.lower()}{letter.upper()}]" if letter.isalpha() else re.escape(letter) for letter in letters
    )
