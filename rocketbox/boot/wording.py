"""The words of findings about settings: what a key takes, an example, how a value is shown, what was probably meant."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, Literal

from pydantic import SecretBytes, SecretStr

from rocketbox.boot.masking import MASK
from rocketbox.boot.origins import Group, Listing, Raw, Ready, Scalar
from rocketbox.boot.shapes import Field, Leaf, Section, key_text, uniform
from rocketbox.durations import DURATION_EXAMPLE
from rocketbox.errors import Finding

MOST_DIGITS_SHOWN = 100
DIGITS_OF_A_LONG_ONE = 20

__all__ = ["example", "expected", "is_class", "members_of", "mistaken", "shown", "single_value_fix", "unknown_key"]


def is_class(kind: Any, classes: tuple[type, ...]) -> bool:
    """Whether a hint is a class below one of these."""
    return isinstance(kind, type) and issubclass(kind, classes)


def members_of(kind: Any) -> list[tuple[str, Any]]:
    """The names that an enum or Literal takes, with their values."""
    if is_class(kind, (Enum,)):
        by_value = [(str(member.value), member) for member in kind if isinstance(member.value, str)]
        return [*by_value, *((member.name, member) for member in kind)]
    if typing.get_origin(kind) is Literal:
        members = [member for member in typing.get_args(kind) if member is not None]
        return [(str(member.value if isinstance(member, Enum) else member), member) for member in members]
    return []


def expected(leaf: Leaf) -> str:
    """What a leaf takes, in words."""
    if leaf.description:
        return leaf.description.partition(":")[0]
    words = [_expected_kind(kind) for kind in leaf.kinds]
    return " or ".join(dict.fromkeys(words)) or "a value"


def _expected_kind(kind: Any) -> str:
    if members := members_of(kind):
        spellings = {id(member): name for name, member in reversed(members)}  # a value of text before the name
        names = list(spellings.values())[::-1]
        unique = [name for number, name in enumerate(names) if uniform(name) not in map(uniform, names[:number])]
        return "one of " + ", ".join(unique)  # debug and DEBUG are one
    for class_, words in (
        (bool, "true or false"),
        (int, "a whole number"),
        ((float, Decimal), "a number"),
        (timedelta, "a time"),
        (PurePath, "a path"),
        ((str, SecretStr, bytes, SecretBytes), "text"),
    ):
        if is_class(kind, class_ if isinstance(class_, tuple) else (class_,)):
            return words
    return f"a {getattr(kind, '__name__', kind)}"


def example(leaf: Leaf) -> str:
    """What to write for a leaf."""
    if ":" in leaf.description:
        return leaf.description.partition(":")[2].strip()
    if any(is_class(kind, (timedelta,)) for kind in leaf.kinds):
        return DURATION_EXAMPLE
    words = expected(leaf)
    return words + {"a whole number": ", such as 3", "a number": ", such as 0.5"}.get(words, "")


def mistaken(key: str, takes: str, raw: Raw | None) -> str:
    """What is wrong where something of another shape is written than what ``takes`` tells; None: keys below it.

    The names of these keys are not told: a password in braces is one.
    """
    if isinstance(raw, Listing):
        return f"{key} takes {takes}, and a list is written there"
    if isinstance(raw, Scalar):
        return f"{key} takes {takes}, and a single value is written there"
    return f"{key} takes {takes}, and keys are written below it"


def single_value_fix(key: str, leaf: Leaf, raw: Raw | None = None) -> str:
    """What to write where a list or group of keys stands in the place of a single value: a list's own entries, joined.

    Only of a key whose text may hold several of them, and which is no secret.
    """
    if leaf.separator and isinstance(raw, Listing):
        texts = [each.text for each in raw.items if isinstance(each, Scalar) and each.text and not each.secret]
        if texts and len(texts) == len(raw.items):
            return f"write {key}: {leaf.separator.join(texts)}"
    words = example(leaf)
    return f"write {key}: ..." if words in ("text", "a value") else f"write {words}"


def shown(raw: Raw, text: str | None, secret: bool) -> str:
    """A value in a finding; of a secret only whether it is empty."""
    if secret:
        return "empty" if isinstance(raw, Scalar) and text is not None and not text.strip() else MASK
    if isinstance(raw, Listing):
        return "a list"
    if isinstance(raw, Group):
        return "a group of keys"
    if isinstance(raw, Ready):
        return repr(raw.value)
    if text is None or not text.strip():
        return "empty"
    return _cut_number(text) or f"'{text}'"


def _cut_number(text: str) -> str:
    """A number of too many digits for a line, as its beginning and its length; empty for what is none."""
    digits = text.strip().lstrip("+-")
    if len(digits) <= MOST_DIGITS_SHOWN or not digits.isdecimal():
        return ""
    return f"'{digits[:DIGITS_OF_A_LONG_ONE]}...', a number of {len(digits)} digits"


def unknown_key(parts: Sequence[str], path: Sequence[str], within: Section, where: str) -> Finding:
    """The finding for a key that nobody knows; ``path`` leads to ``within``, ``parts`` is the key as written."""
    written = parts[len(path)]
    known: dict[str, Field] = {uniform(each.key): each for each in within.fields.values()}
    near = difflib.get_close_matches(uniform(written), known, 1)
    if near:
        fix = f"did you mean {key_text((*path, known[near[0]].key))}?"
    else:
        above = key_text(path)
        fix = f"{above} takes: {', '.join(sorted(each.key for each in known.values()))}"
    return Finding(f"unknown key {key_text((*path, written))}", where, fix)
