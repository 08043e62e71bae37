"""From what pydantic found to findings: the key, its value, where that was written, what it must be."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rocketbox.boot.merging import Merged
from rocketbox.boot.origins import Listing, Raw, file_label, split_key
from rocketbox.boot.secrets import is_secret
from rocketbox.boot.shapes import Leaf, Many, Schema, Section, Shape, Table, key_text
from rocketbox.boot.wording import example, expected, shown
from rocketbox.errors import Finding

__all__ = ["validation_findings"]

_WRONG_TYPES = ("enum", "literal_error", "int_from_float")


def validation_findings(
    error: ValidationError,
    prefixes: Mapping[str, str],
    schema: Schema,
    merged: Merged,
    refused: Collection[tuple[str, ...]],
    file: Path | None,
) -> list[Finding]:
    """The findings of a validation; ``prefixes`` by field of the root, ``refused`` are keys that were told already."""
    findings: dict[tuple[str, ...], Finding] = {}
    for each in error.errors(include_url=False):
        name, *location = each["loc"]
        prefix = prefixes[str(name)]
        path, shape, indices = _follow(schema.sections[prefix], [str(part) for part in location])
        whole = (*split_key(prefix), *path)
        if (
            whole not in refused and (*whole, *indices) not in findings
        ):  # one for a value, not one for each member of a union
            findings[*whole, *indices] = _finding(each, whole, shape, indices, merged, file)
    return list(findings.values())


def _follow(section: Section, location: Sequence[str]) -> tuple[list[str], Shape, list[str]]:
    """The path that pydantic means, the shape at its end, and the indices of a list there."""
    path: list[str] = []
    indices: list[str] = []
    shape: Shape = section
    for part in location:
        if isinstance(shape, Section):
            known = next((each for each in shape.fields.values() if part in (each.feed, each.attribute)), None)
            if known is not None:
                path.append(known.key)
                shape = known.shape
            elif shape.extra is not None:
                path.append(part)
                shape = shape.extra
        elif isinstance(shape, Table):
            path.append(part)
            shape = shape.value
        elif isinstance(shape, Many) and part.isdigit():
            indices.append(part)
            shape = shape.item
        # anything else is the name of a union's member
    return path, shape, indices


def _finding(
    error: Any, path: tuple[str, ...], shape: Shape, indices: Sequence[str], merged: Merged, file: Path | None
) -> Finding:
    key = key_text(path) + "".join(f"[{index}]" for index in indices)
    entry = merged.winners.get(path)
    if error["type"] == "missing":
        return _missing(key, path, merged, file)
    if entry is None:
        below = next((each for each in merged.winners.values() if each.path[: len(path)] == path), None)
        where = str(below.origin) if below is not None else None if file is None else file_label(file)
        return Finding(f"{key}: {_message(error)}", where, None)
    raw: Raw = entry.raw
    for index in indices:
        if isinstance(raw, Listing):
            raw = raw.items[int(index)]
    secret = is_secret(path, shape, raw)
    value = shown(raw, merged.texts.of_raw(raw, key), secret)
    if not isinstance(shape, Leaf):
        return Finding(f"{key} is {value}: {'' if secret else _message(error)}", str(raw.origin), None)
    fix = f"write {example(shape)}"
    kind = error["type"]
    has_words = bool(shape.description) or expected(shape) == "a time"
    if kind.endswith(("_parsing", "_type")) or kind in _WRONG_TYPES or (kind == "value_error" and has_words):
        what = f"{key} is {value}, and must be {expected(shape)}"
    elif secret:
        what = f"{key} is {value}, which is not allowed"
    elif error["msg"].startswith("Input should be "):
        what = f"{key} is {value}, and must be {error['msg'].removeprefix('Input should be ')}"
        fix = f"write {expected(shape)} that is {error['msg'].removeprefix('Input should be ')}"
    else:
        what = f"{key} is {value}: {_message(error)}"
    return Finding(what, str(raw.origin), fix)


def _message(error: Any) -> str:
    message = str(error["msg"])
    message = message.removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return message[:1].lower() + message[1:]


def _missing(key: str, path: Sequence[str], merged: Merged, file: Path | None) -> Finding:
    variable = "_".join(path).replace("-", "_").replace(".", "_").upper()
    place = file_label(file) if file is not None else "rocketbox.yaml"
    near = next((each for each in merged.winners.values() if each.path[: len(path) - 1] == tuple(path[:-1])), None)
    where = str(near.origin) if near is not None and len(path) > 1 else None
    return Finding(f"{key} is required and not set", where, f"set it in {place}, or as {variable} in the environment")
