"""The keys of settings as a JSON Schema, by which editors of YAML complete them and mark what is wrong.

Made from the shapes that settings are read by, so it takes what they take: ``${...}`` in place of any value, times and
sizes with units, enums in any spelling, lists as text with commas, nothing below a heading. Keys are in kebab case.
What is required is not marked as such: it may come from the environment.

Source: JSON Schema draft 2020-12.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from enum import Enum, Flag
from pathlib import PurePath
from typing import Any

from pydantic import BaseModel, SecretBytes, SecretStr

from rocketbox.boot.effective import format_value
from rocketbox.boot.root_settings import schema_of
from rocketbox.boot.secrets import reveals
from rocketbox.boot.shapes import MISSING, Field, Leaf, Many, Section, Shape, Table, uniform
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
    writer = _Writer()
    root = writer.section(schema_of(models).root)
    definitions = {"$defs": writer.definitions} if writer.definitions else {}
    return {"$schema": DIALECT, "title": title, **root, **definitions}


class _Writer:
    """Writes shapes; one that contains itself is a definition which the places inside of it refer to."""

    def __init__(self) -> None:
        self.definitions: dict[str, Node] = {}
        self._open: list[tuple[Any, str]] = []  # shapes that are being written, with the names of their definitions
        self._used: set[str] = set()

    def shape(self, shape: Shape, bounds: Node | None = None) -> Node:
        if isinstance(shape, Leaf):
            return _leaf(shape, bounds or {})
        own = (shape.members or shape.model or shape) if isinstance(shape, Section) else shape
        for each, name in self._open:
            if each is own or (isinstance(own, tuple) and each == own):
                self._used.add(name)
                return {"$ref": f"#/$defs/{name}"}
        name = f"{getattr(own, '__name__', 'Value')}-{len(self._open)}-{len(self.definitions)}"
        self._open.append((own, name))
        node = self.container(shape)
        self._open.pop()
        if name not in self._used:
            return node
        self.definitions[name] = node
        return {"$ref": f"#/$defs/{name}"}

    def container(self, shape: Section | Table | Many) -> Node:
        if isinstance(shape, Many):
            node: Node = {"type": "array", "items": self.shape(shape.item)}
            return {"anyOf": [node, {"type": ["string", "number", "null"]}]}
        node = self.section(shape) if isinstance(shape, Section) else self.table(shape)
        others = [] if shape.scalar is None else [_leaf(shape.scalar, {})]
        if shape.many is not None:
            others.append(self.shape(shape.many))
        return {"anyOf": [node, *others]} if others else node

    def section(self, section: Section) -> Node:
        node: Node = {"type": ["object", "null"]}
        if section.words:
            node["description"] = section.words.replace("``", "")
        node["properties"] = {known.key: self.field(known) for known in section.own}
        if section.extra is not None:
            for name, known in section.known_extras().items():
                node["properties"].setdefault(name, self.field(known))
            node["additionalProperties"] = self.shape(section.extra)
        elif section.strict:
            node["patternProperties"] = {r"[.\[]": {}, "^<<$": {}}  # a.b: for a: {b: }, and YAML's merges
            node["additionalProperties"] = False
        return node

    def table(self, table: Table) -> Node:
        value = self.shape(table.value)
        if isinstance(table.value, Leaf | Many):  # its keys may have dots, and each part may stand on a line of its own
            value = {"anyOf": [value, {"type": "object"}]}
        return {"type": ["object", "null"], "additionalProperties": value}

    def field(self, known: Field) -> Node:
        if known.feed is None:
            return self.shape(known.shape)
        bounds = {
            word: limit
            for each in known.bounds
            for name, word in _BOUNDS.items()
            if isinstance(limit := getattr(each, name, None), int | float)
        }
        node = self.shape(known.shape, bounds)
        words = [known.description or node.get("description", "")]
        if isinstance(known.shape, Leaf) and known.shape.description:
            words.append(known.shape.description)
        if known.required:
            words.append("required")
        if description := "; ".join(word for word in words if word):
            node["description"] = description
        has_default = isinstance(known.shape, Leaf) and known.default is not None and known.default is not MISSING
        if has_default and not reveals([known.key], known.shape, known.default):
            node["default"] = _default(known.default, known.shape)
        return node


def _default(default: Any, shape: Shape) -> Any:
    is_size = isinstance(shape, Leaf) and bool(shape.description)
    is_plain = isinstance(default, bool | float | str) or (isinstance(default, int) and not is_size)
    return default if is_plain and not isinstance(default, Enum) else format_value(default, shape)


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
        values = [getattr(member, "value", member) for _, member in members]
        numbers = [each for each in dict.fromkeys(values) if isinstance(each, bool | int | float)]
        nodes: list[Node] = [{"type": "integer"}] if is_class(kind, (Flag,)) else []  # several of them together
        spelled = f"^({'|'.join(map(_any_spelling, names))})$"
        return [{"enum": [*names, *numbers]}, {"type": "string", "pattern": spelled}, *nodes]
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
