"""From what was written to values for pydantic: text by the type that it is for, and never by YAML 1.1's guesses.

A leaf that takes text gets the text as it stands (``no``, ``0123`` and ``12:30`` stay what they are); numbers, truth
values, enums and times are read here or left to pydantic, which refuses them with what was expected.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from enum import Enum, Flag
from pathlib import PurePath
from typing import Any

from pydantic import SecretBytes, SecretStr

from rocketbox.boot.masking import MASK
from rocketbox.boot.origins import Group, Listing, Raw, Ready, Scalar, split_key
from rocketbox.boot.secrets import is_secret
from rocketbox.boot.shapes import ANY, UNDECLARED, Leaf, Many, Section, Shape, Table, key_text, uniform
from rocketbox.boot.wording import expected, is_class, members_of, mistaken, single_value_fix, unknown_key
from rocketbox.durations import parse_duration
from rocketbox.errors import Finding

__all__ = ["UNSET", "Converter"]

UNSET: Any = object()
"""Nothing was written: the default holds."""

MAX_DIGITS = 640  # Python reads as many in any case, and may refuse more

_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_OCTAL = re.compile(r"[-+]?0[0-9]+")
_FLOAT = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_SEXAGESIMAL = re.compile(r"[-+]?[0-9]+(:[0-5]?[0-9])+(\.[0-9]*)?")
_YAML_TRUTHS = {"y": True, "yes": True, "on": True, "n": False, "no": False, "off": False}

_SECRETS = (SecretStr, SecretBytes)
_TEXT_KINDS = (str, bytes, SecretStr, SecretBytes, PurePath)


class Converter:
    """Turns raw values into what pydantic takes; what cannot be right is added to ``findings``.

    Unknown keys of a mapping in a list go to ``warnings`` where nobody forbids them. ``text`` replaces the placeholders
    of a scalar, given the key that it belongs to.
    """

    def __init__(
        self, findings: list[Finding], warnings: list[Finding], text: Callable[[Scalar, str], str | None]
    ) -> None:
        self.findings = findings
        self.warnings = warnings
        self._text = text

    def wrong(self, what: str, raw: Raw, fix: str) -> Any:
        self.findings.append(Finding(what, str(raw.origin), fix))
        return UNSET

    def value(self, shape: Shape, raw: Raw, key: str) -> Any:
        """The value for a shape, or UNSET."""
        if isinstance(raw, Ready):
            is_plain = isinstance(shape, Leaf) and not shape.is_secret and not shape.is_any
            return raw.value.get_secret_value() if is_plain and isinstance(raw.value, _SECRETS) else raw.value
        if shape is UNDECLARED:
            for scalar in raw.items if isinstance(raw, Listing) else (raw,):
                if isinstance(scalar, Scalar):
                    self._text(scalar, key)  # what it refers to must exist all the same
            return UNSET
        if isinstance(shape, Leaf):
            return self._leaf(shape, raw, key)
        if isinstance(shape, Many):
            return self._many(shape, raw, key)
        return self._group(shape, raw, key)

    def _group(self, shape: Section | Table, raw: Raw, key: str) -> Any:
        if isinstance(raw, Scalar):
            if raw.text is None:  # a heading with nothing below it
                return UNSET
            if shape.many is not None:
                return self._many(
                    shape.many if shape.scalar is None else replace(shape.many, scalar=shape.scalar), raw, key
                )
            if shape.scalar is not None:
                return self._leaf(shape.scalar, raw, key)
        if isinstance(raw, Listing) and shape.many is not None:
            return self._many(shape.many, raw, key)
        if isinstance(raw, Group):
            if isinstance(shape, Section):
                return self._section(shape, raw, key)
            values = {name: self._inner(shape.value, each, key_text((key, name))) for name, _, each in raw.entries}
            return {name: value for name, value in values.items() if value is not UNSET}
        if isinstance(shape, Section) and shape.fields:
            fix = f"{key} takes: {', '.join(sorted({known.key for known in shape.fields.values()}))}"
        else:
            fix = f"write {key}.<name>: ..."
        return self.wrong(mistaken(key, "keys below it", raw), raw, fix)

    def _section(self, shape: Section, raw: Group, key: str) -> dict[str, Any]:
        """A mapping inside a list, by the names that pydantic takes."""
        values: dict[str, Any] = {}
        for name, origin, inner in raw.entries:
            known = shape.by_key(name)
            if known is not None and known.above:
                what = f"{key}.{name} leads to {key}.{known.key}, which a list takes by that name only"
                self.wrong(what, inner, f"write {known.key}")
                continue
            if known is None and shape.extra is None and not shape.loose:
                told = self.findings if shape.strict else self.warnings
                told.append(unknown_key([*split_key(key), name], [*split_key(key)], shape, str(origin)))
                continue
            inner_shape: Shape = known.shape if known is not None else shape.extra or ANY
            value = self._inner(inner_shape, inner, f"{key}.{name}")
            if value is not UNSET:
                values[known.feed or name if known is not None else name] = value
        return values

    def _many(self, shape: Many, raw: Raw, key: str) -> Any:
        if isinstance(raw, Group):
            return self.wrong(mistaken(key, "a list", raw), raw, f"write {key}: [..., ...]")
        if isinstance(raw, Listing):
            items = [self._item(shape.item_at(index), item, f"{key}[{index}]") for index, item in enumerate(raw.items)]
            return [item for item in items if item is not UNSET]
        assert isinstance(raw, Scalar)
        text = self._text(raw, key)
        if text is None:
            return None if shape.nullable else UNSET
        if shape.validated:
            return text
        if shape.scalar is not None:
            value = self._leaf(shape.scalar, replace(raw, text=text, open_=False), key)
            if value != text or _takes_text(shape.scalar):
                return value
        if _is_json_list(text):
            what = f"{key} is a list in JSON, and would be taken apart at its commas"
            return self.wrong(what, raw, "write the entries with commas between them and nothing around")
        parts = [part.strip() for part in text.split(",") if part.strip()]
        return [
            self.value(shape.item_at(index), replace(raw, text=part, open_=False), key)
            for index, part in enumerate(parts)
        ]

    def _item(self, shape: Shape, raw: Raw, key: str) -> Any:
        """An entry of a list; one that is left empty is wrong, for those behind it would change their places."""
        found = len(self.findings)
        value = self._inner(shape, raw, key)
        if value is UNSET and len(self.findings) == found and isinstance(raw, Scalar) and raw.text is None:
            return self.wrong(f"{key} is empty", raw, "write a value, or take this entry out")
        return value

    def _inner(self, shape: Shape, raw: Raw, key: str) -> Any:
        """A value inside of a list, where no other source says anything: null is None even for a group of keys."""
        if isinstance(raw, Scalar) and raw.text is None and shape.nullable:
            return None
        return self.value(shape, raw, key)

    def _leaf(self, leaf: Leaf, raw: Raw, key: str) -> Any:
        if isinstance(raw, Listing | Group):
            if leaf.is_any:
                return self._natural(raw, key)
            return self.wrong(mistaken(key, expected(leaf), raw), raw, single_value_fix(key, leaf, raw))
        assert isinstance(raw, Scalar)
        text = self._text(raw, key)
        if text is None:
            return None if leaf.nullable or leaf.is_any else UNSET
        if leaf.is_any:
            return self._natural(replace(raw, text=text, open_=False), key)
        takes_text = _takes_text(leaf)
        if not text.strip() and leaf.nullable and not takes_text:
            return None
        if raw.plain and not takes_text and _OCTAL.fullmatch(text) and _is_numeric(leaf):
            said = MASK if is_secret(split_key(key), leaf, raw) else text
            return self.wrong(
                f"{key} is {said}, which some readers of YAML take for an octal number", raw, "write it without the 0"
            )
        if leaf.validated:
            return text
        if takes_text and not (raw.plain and len(leaf.kinds) > 1):
            return text
        for kind in sorted(leaf.kinds, key=_breadth):
            value = _read(kind, text)
            if value is not UNSET:
                return value
        return text

    def _natural(self, raw: Raw, key: str) -> Any:
        """A value whose type nobody declared, by YAML's core rules; what readers of YAML disagree on is refused."""
        if isinstance(raw, Ready):
            return raw.value
        if isinstance(raw, Listing):
            return [self._natural(item, f"{key}[{index}]") for index, item in enumerate(raw.items)]
        if isinstance(raw, Group):
            return {name: self._natural(inner, f"{key}.{name}") for name, _, inner in raw.entries}
        text = self._text(raw, key)
        if text is None or not raw.plain:
            return text
        said = MASK if is_secret(split_key(key), None, raw) else text
        if text.lower() in _YAML_TRUTHS:
            truth = str(_YAML_TRUTHS[text.lower()]).lower()
            what = f"{key} is {said}, which some readers of YAML take for {truth}"
            return self.wrong(what, raw, f'write {truth}, or "{said}" for the text')
        if _OCTAL.fullmatch(text) or _SEXAGESIMAL.fullmatch(text):
            what = f"{key} is {said}, which readers of YAML take for different numbers"
            return self.wrong(what, raw, f'write "{said}" for the text, or a plain decimal number')
        for kind in (bool, int, float):
            value = _read(kind, text)
            if value is not UNSET:
                return value
        return text


def _takes_text(leaf: Leaf) -> bool:
    return any(is_class(kind, _TEXT_KINDS) for kind in leaf.kinds)


def _is_json_list(text: str) -> bool:
    if not text.lstrip().startswith("["):
        return False
    try:
        return isinstance(json.loads(text), list)
    except (ValueError, RecursionError):
        return False


def _breadth(kind: Any) -> int:
    """A whole number is one before it is a number, and a number before it is a time, however a union names them."""
    return 2 if is_class(kind, (timedelta,)) else 1 if is_class(kind, (float,)) else 0


def _is_numeric(leaf: Leaf) -> bool:
    return any(is_class(kind, (int, float, timedelta)) for kind in leaf.kinds)


def _read(kind: Any, text: str) -> Any:
    """Text as a value of a plain kind; UNSET when it is none, or when pydantic reads the kind from text itself."""
    plain = text.strip()
    if kind is bool:
        return {"true": True, "false": False}.get(plain.lower(), UNSET)
    if kind is int:
        return int(plain) if len(plain) <= MAX_DIGITS and _INT.fullmatch(plain) else UNSET
    if kind is float:
        return float(plain) if _FLOAT.fullmatch(plain) else UNSET
    if kind is timedelta:
        try:
            return parse_duration(plain)
        except ValueError:
            return UNSET
    if is_class(kind, (Enum,)):
        for member in kind:
            if str(member.value) == plain:
                return member
        if is_class(kind, (Flag,)) and _INT.fullmatch(plain):
            return int(plain)  # several of them together
    for name, member in members_of(kind):
        if name == plain:
            return member
    for name, member in members_of(kind):
        if uniform(name) == uniform(plain):
            return member
    return UNSET
