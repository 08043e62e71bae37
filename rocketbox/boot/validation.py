"""From what pydantic found to findings: the key, its value, where that was written, what it must be."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rocketbox.boot.layers import Entry
from rocketbox.boot.origins import Group, Listing, Raw, Scalar, file_label, split_key
from rocketbox.boot.schema import Schema
from rocketbox.boot.secrets import is_secret
from rocketbox.boot.shapes import ANY, Leaf, Many, Section, Shape, Table, key_text, uniform
from rocketbox.boot.sources import Texts
from rocketbox.boot.wording import example, expected, shown
from rocketbox.errors import Finding

__all__ = ["validation_findings"]

_WRONG_TYPES = ("enum", "literal_error", "int_from_float")
_OF_A_VALIDATOR = ("value_error", "assertion_error")
_SHOULD = re.compile(r"(?:Input|String|List|Tuple|Set|Frozenset|Dictionary|Data|Value|Bytes) should ")


Winners = Mapping[tuple[str, ...], Entry]


def validation_findings(
    error: ValidationError,
    prefixes: Mapping[str, str],
    schema: Schema,
    winners: Winners,
    texts: Texts,
    refused: Collection[tuple[str, ...]],
    file: Path | None,
) -> list[Finding]:
    """The findings of a validation; ``prefixes`` by field of the root, ``refused`` are keys that were told already."""
    findings: dict[tuple[str | int, ...], Finding] = {}
    found = []
    for each in error.errors(include_url=False):
        name, *location = each["loc"]
        prefix = prefixes[str(name)]
        found.append((each, _follow(schema.sections[prefix], split_key(prefix), location)))
    for each, place in _of_likeliest_members(found):
        if place.path in refused or place.steps in findings:
            continue  # one for a value, not one for each member of a union
        if each["type"] == "missing" and any(path[: len(place.path)] == place.path for path in refused):
            continue  # a group that is not there because all that is written in it was refused
        findings[place.steps] = _finding(each, place, winners, texts, file)
    return list(findings.values())


@dataclass(frozen=True)
class _Place:
    """Where pydantic found something: the path of a key, what lies below it in a list, and the shape there.

    ``members`` are the members of unions that were tried on the way, by how many steps lead to each.
    """

    path: tuple[str, ...]
    below: tuple[str | int, ...]
    shape: Shape
    members: tuple[tuple[int, str], ...]

    @property
    def steps(self) -> tuple[str | int, ...]:
        return (*self.path, *self.below)

    @property
    def key(self) -> str:
        return key_text(self.path) + "".join(
            f"[{each}]" if isinstance(each, int) else f".{each}" for each in self.below
        )


Found = Sequence[tuple[Any, _Place]]


def _of_likeliest_members(found: Found) -> Found:
    """What was found for the member of each union that the least is wrong with: only one of them can be meant."""
    wrong: dict[tuple[str | int, ...], Counter[str]] = {}
    for each, place in found:
        weight = 2 if each["type"] in ("literal_error", "extra_forbidden", "model_type", "dict_type") else 1
        for length, member in place.members:
            wrong.setdefault(place.steps[:length], Counter())[member] += weight
    likeliest = {steps: min(counts, key=lambda member: counts[member]) for steps, counts in wrong.items()}
    return [
        (each, place)
        for each, place in found
        if all(likeliest[place.steps[:length]] == member for length, member in place.members)
    ]


def _follow(section: Section, prefix: Sequence[str], location: Sequence[int | str]) -> _Place:
    path: list[str] = [*prefix]
    below: list[str | int] = []
    members: list[tuple[int, str]] = []
    shape: Shape = section
    is_member = False  # the member of a union was named: what follows is inside of it

    def step(name: str) -> None:
        (below if below else path).append(name)

    for part in location:
        if not isinstance(shape, Leaf) and shape.labelled and not is_member:
            members.append((len(path) + len(below), str(part)))
            is_member = True
            continue
        is_member = False
        if not isinstance(shape, Leaf | Many) and shape.many is not None and isinstance(part, int):
            shape = shape.many
        if isinstance(shape, Section):
            known = next((each for each in shape.own if part in (each.feed, each.attribute)), None)
            if known is not None:
                step(known.key)
                shape = known.shape
            elif shape.extra is not None or shape.strict:
                step(str(part))
                shape = shape.extra or ANY
        elif isinstance(shape, Table):
            step(str(part))
            shape = shape.value
        elif isinstance(shape, Many) and isinstance(part, int):
            below.append(part)
            shape = shape.item_at(part)
        # anything else is the name of a union's member
    return _Place(tuple(path), tuple(below), shape, tuple(members))


def _raw_at(raw: Raw, below: Sequence[str | int]) -> Raw:
    """What is written below a value, as far as it can be told apart there."""
    for each in below:
        if isinstance(raw, Listing) and isinstance(each, int):
            raw = raw.items[each]
        elif isinstance(raw, Scalar) and isinstance(each, int):
            parts = [part.strip() for part in (raw.text or "").split(",") if part.strip()]
            raw = replace(raw, text=parts[each]) if "${" not in (raw.text or "") and each < len(parts) else raw
        elif isinstance(raw, Group):
            raw = next((inner for name, _, inner in raw.entries if uniform(name) == uniform(str(each))), raw)
    return raw


def _finding(error: Any, place: _Place, winners: Winners, texts: Texts, file: Path | None) -> Finding:
    entry = winners.get(place.path)
    if error["type"] == "missing":
        return _missing(place, winners, file)
    is_tag = error["type"].startswith("union_tag_") and isinstance(place.shape, Section)
    if is_tag and (told := _of_discriminator(error, place, place.shape, winners)) is not None:
        return told
    if entry is None:
        near = next((each for each in winners.values() if each.path[: len(place.path)] == place.path), None)
        where = str(near.origin) if near is not None else None if file is None else file_label(file)
        return Finding(f"{place.key}: {_message(error)}", where, f"correct the keys below {place.key}")
    raw = _raw_at(entry.raw, place.below)
    secret = is_secret(place.path, place.shape, raw)
    value = shown(raw, texts.of_raw(raw, place.key), secret)
    what, fix = _words(error, place.shape, value, secret)
    return Finding(f"{place.key} is {value}{what}", str(raw.origin), fix)


def _of_discriminator(error: Any, place: _Place, shape: Shape, winners: Winners) -> Finding | None:
    """The finding about the key that says which member of a union is meant; None where a function decides."""
    context = error["ctx"]
    known = shape.by_key(str(context["discriminator"]).strip("'")) if isinstance(shape, Section) else None
    if known is None or not isinstance(known.shape, Leaf):
        return None
    key = f"{place.key}.{known.key}"
    near = next((each for path, each in winners.items() if path[: len(place.path)] == place.path), None)
    where = None if near is None else str(_raw_at(near.raw, place.below).origin)
    if error["type"] == "union_tag_not_found":
        what = f"{key} is not set, and says which keys belong there"
        return Finding(what, None if where is None else f"beside {where}", f"write {key}: {expected(known.shape)}")
    entry = winners.get((*place.path, known.key))
    what = f"{key} is '{context['tag']}', and must be {expected(known.shape)}"
    return Finding(what, where if entry is None else str(entry.origin), f"write {example(known.shape)}")


def _words(error: Any, shape: Shape, value: str, secret: bool) -> tuple[str, str]:
    """What comes behind ``key is value``, and what to do."""
    kind = error["type"]
    message = _message(error)
    if not isinstance(shape, Leaf):
        return ("", "correct it") if secret else (f": {message}", _mend(error) or "correct the value, or leave it out")
    has_words = bool(shape.description) or expected(shape).startswith(("a time", "one of "))
    if kind.endswith(("_parsing", "_type")) or kind in _WRONG_TYPES or (kind == "value_error" and has_words):
        return f", and must be {expected(shape)}", f"write {example(shape)}"
    if value == "empty" and kind == "string_too_short":
        return "", f"write {example(shape)}, or leave the key out"
    if secret:
        return ", which is not allowed", f"write {example(shape)}"
    if message.startswith("must be "):
        return f", and {message}", f"write {expected(shape)} that is {message.removeprefix('must be ')}"
    if message.startswith("must "):
        return f", and {message}", _mend(error) or f"write {example(shape)}"
    return (
        f": {message}",
        "correct the value, or leave it out" if kind in _OF_A_VALIDATOR else f"write {example(shape)}",
    )


def _mend(error: Any) -> str | None:
    """What to do about text and lists that are too short or long, or do not match."""
    context = error.get("ctx", {})
    entries = "characters" if error["type"].startswith("string_") else "entries"
    if error["type"] in ("string_too_short", "too_short"):
        return f"write at least {context['min_length']} {entries}"
    if error["type"] in ("string_too_long", "too_long"):
        return f"write at most {context['max_length']} {entries}"
    if error["type"] == "string_pattern_mismatch":
        return f"write text that matches {context['pattern']}"
    return None


def _message(error: Any) -> str:
    message = str(error["msg"])
    if error["type"] in _OF_A_VALIDATOR:  # what somebody wrote stays as it is
        return message.removeprefix("Value error, ").removeprefix("Assertion failed, ")
    if found := _SHOULD.match(message):
        return f"must {message[found.end() :]}"
    return message[:1].lower() + message[1:]


def _missing(place: _Place, winners: Winners, file: Path | None) -> Finding:
    what = f"{place.key} is required and not set"
    if place.below:
        entry = winners[place.path]
        return Finding(what, str(_raw_at(entry.raw, place.below[:-1]).origin), f"write {place.below[-1]} there as well")
    path = place.path
    variable = "_".join(path).replace("-", "_").replace(".", "_").upper()
    name = file_label(file) if file is not None else "rocketbox.yaml"
    near = next((each for each in winners.values() if each.path[: len(path) - 1] == path[:-1]), None)
    where = f"beside {near.origin}" if near is not None and len(path) > 1 else None
    return Finding(what, where, f"set it in {name}, or as {variable} in the environment")
