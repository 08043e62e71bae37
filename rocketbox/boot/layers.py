"""The sources of settings as layers: what each says, led to its key, with its place.

Files, ``.env``, environment, arguments and overrides all become the same: entries by path. Which layer wins, and what
the texts mean, is decided in ``boot.root_settings``.
"""

from __future__ import annotations

import difflib
import io
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dotenv.parser import parse_stream

from rocketbox.boot.imports import imports_in
from rocketbox.boot.origins import Group, Item, Listing, Origin, Raw, Ready, Scalar, file_label, split_key
from rocketbox.boot.profile_expressions import fault_of_expression
from rocketbox.boot.schema import Located, Schema
from rocketbox.boot.secrets import has_secret_name, is_secret
from rocketbox.boot.shapes import UNDECLARED, Leaf, Section, Shape, Table, key_text
from rocketbox.boot.wording import expected, mistaken, single_value_fix, unknown_key
from rocketbox.boot.yaml_documents import Document, read_documents
from rocketbox.errors import Finding

__all__ = [
    "IMPORT",
    "ConditionalDocument",
    "Entry",
    "Layer",
    "Placement",
    "argument_items",
    "conditional_documents",
    "dotenv_values",
    "override_items",
    "place_items",
    "place_variables",
]

ON_PROFILE = ("rocketbox", "config", "activate", "on-profile")
IMPORT = ("rocketbox", "config", "import")

_FOREIGN_SCHEMES = ("tcp://", "udp://", "sctp://")


@dataclass(frozen=True)
class Entry:
    """One value of one layer."""

    path: tuple[str, ...]
    shape: Shape
    raw: Raw
    layer: str

    @property
    def key(self) -> str:
        return key_text(self.path)

    @property
    def origin(self) -> Origin:
        return self.raw.origin

    @property
    def is_secret(self) -> bool:
        """Whether its value must never be shown: by its source, its type, or the name of its key."""
        return is_secret(self.path, self.shape, self.raw)


@dataclass
class Layer:
    """What one source says, by the paths of its keys. ``names`` are those of the user's with nothing below them."""

    name: str
    entries: dict[tuple[str, ...], Entry] = field(default_factory=dict)
    names: dict[tuple[str, ...], Entry] = field(default_factory=dict)


@dataclass(frozen=True)
class ConditionalDocument:
    """A document of a settings file; ``on_profile`` is empty for one that always counts.

    ``imports`` are the locations that it brings in, as they were written.
    """

    items: tuple[Item, ...]
    on_profile: tuple[str, ...] = ()
    imports: tuple[Scalar, ...] = ()


def conditional_documents(file: Path, findings: list[Finding]) -> list[ConditionalDocument]:
    """The documents of a file with their activation and imports taken out of them."""
    return [_conditional(document, findings) for document in read_documents(file, findings)]


def _conditional(document: Document, findings: list[Finding]) -> ConditionalDocument:
    rest = []
    on_profile: list[str] = []
    imports: list[Scalar] = []
    for item in document.items:
        key = tuple(part.replace("_", "-").lower() for part in item.parts)
        if key == IMPORT:
            imports += imports_in(item.raw, findings)
            continue
        if key != ON_PROFILE:
            rest.append(item)
            continue
        on_profile += _expressions(item.raw, findings)
    return ConditionalDocument(tuple(rest), tuple(on_profile), tuple(imports))


def _expressions(raw: Raw, findings: list[Finding]) -> list[str]:
    """The expressions of an ``on-profile``: one, several with commas, or a list."""
    scalars = raw.items if isinstance(raw, Listing) and raw.items else (raw,)
    expressions = []
    for scalar in scalars:
        text = scalar.text or "" if isinstance(scalar, Scalar) else ""
        here = [expression.strip() for expression in text.split(",")]
        if fault := next(filter(None, map(fault_of_expression, here)), None):
            what = f"{key_text(ON_PROFILE)} is {text!r}: {fault}"
            fix = "write a profile, !prod, or prod & eu for both; several with commas where one of them is enough"
            findings.append(Finding(what, str(scalar.origin), fix))
        expressions += here
    return expressions


@dataclass
class Placement:
    """Where findings and warnings of placing items go, and which unknown keys were told already."""

    schema: Schema
    findings: list[Finding]
    warnings: list[Finding]
    told: set[str] = field(default_factory=set)
    refused: set[tuple[str, ...]] = field(default_factory=set)  # keys for which something else was written


def place_items(layer: Layer, items: Iterable[Item], placement: Placement, *, must_be_known: bool = False) -> None:
    """Add items to a layer by their paths; unknown keys become findings, or warnings where nobody forbids them.

    Items of one call come from one document: two of them for one key are a finding. ``must_be_known``: arguments.
    """
    written: dict[tuple[str, ...], Item] = {}
    for item in items:
        located = placement.schema.locate(item.parts)
        if located.unknown is not None:
            assert located.within is not None
            place = str(item.places[located.unknown])
            if place not in placement.told:
                placement.told.add(place)
                finding = unknown_key(item.parts, located.path, located.within, place)
                if located.within.strict or must_be_known:
                    placement.findings.append(finding)
                    placement.refused.add((*located.path, item.parts[located.unknown]))
                else:
                    placement.warnings.append(finding)
            continue
        if _looks_like_a_prefix(item, placement, must_be_known):
            continue
        path, shape = located.path, located.shape
        if must_be_known and (wrong := _sets_nothing(item, located, placement.schema)) is not None:
            placement.findings.append(wrong)
            continue
        if located.rest:
            if not (isinstance(shape, Leaf) and shape.is_any):
                finding = _too_deep(path, shape, item.places[-1 - len(located.rest)])
                placement.refused.add(path)
                if finding not in placement.findings:
                    placement.findings.append(finding)
                continue
            path = (*path, *located.rest)
        if isinstance(shape, Section | Table) and _is_empty(item.raw):
            if isinstance(shape, Section) and isinstance(placement.schema.locate(path[:-1]).shape, Table):
                layer.names[path] = Entry(path, shape, Group((), item.raw.origin), layer.name)
            continue  # any other heading with nothing below it says nothing
        other = written.setdefault(path, item)
        if other is not item and not must_be_known:
            what = f"{key_text(path)} is written twice, first at {other.places[-1]}"
            placement.findings.append(Finding(what, str(item.places[-1]), "keep one of the two"))
            continue
        layer.entries[path] = Entry(path, shape, item.raw, layer.name)


def _is_empty(raw: Raw) -> bool:
    return (isinstance(raw, Scalar) and raw.text is None) or (isinstance(raw, Group) and not raw.entries)


def _sets_nothing(item: Item, located: Located, schema: Schema) -> Finding | None:
    """What is wrong with an argument or override that reaches no model: a variable's name, an object for a group."""
    raw, place, shape = item.raw, str(item.raw.origin), located.shape
    if shape is UNDECLARED and len(item.parts) == 1:
        variable = schema.locate_variable(item.parts[0], lambda _: ())
        if variable is not None:
            what = f"{item.parts[0]} is how a variable of the environment is named"
            return Finding(what, place, f"write {key_text(variable)}")
    if (
        isinstance(shape, Section)
        and isinstance(raw, Ready)
        and raw.value is not None
        and key_text(located.path) in schema.sections
    ):
        key = key_text(located.path)
        names = [known.key for known in shape.own if known.feed is not None]
        fix = f"write its keys: '{key}.{names[0]}': ..." if names else f"leave {key} out, it has no keys"
        return Finding(f"{key} takes keys below it, and is given a {type(raw.value).__name__}", place, fix)
    return None


def _too_deep(path: Sequence[str], shape: Shape, place: Origin) -> Finding:
    key = key_text(path)
    if isinstance(shape, Leaf):
        return Finding(mistaken(key, expected(shape), None), str(place), single_value_fix(key, shape))
    return Finding(mistaken(key, "a list", None), str(place), f"write {key}: [..., ...]")


def _looks_like_a_prefix(item: Item, placement: Placement, must_be_known: bool) -> bool:
    """Tell a root key that is nearly that of a model; True when that is an error."""
    root = placement.schema.root
    if root.by_key(item.parts[0]) is not None:
        return False
    near = difflib.get_close_matches(item.parts[0], [known.key for known in root.fields.values()], 1, 0.8)
    place = str(item.places[0])
    if near and place not in placement.told:
        placement.told.add(place)
        finding = Finding(f"unknown key {item.parts[0]}", place, f"did you mean {near[0]}?")
        (placement.findings if must_be_known else placement.warnings).append(finding)
    return bool(near) and must_be_known


# --- environment ---------------------------------------------------------------------------------------------------


def dotenv_values(file: Path, findings: list[Finding]) -> dict[str, Scalar]:
    """The variables of a ``.env`` file, each with its line; no file, no variables."""
    label = file_label(file)
    try:
        text = file.read_text("utf-8-sig")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        findings.append(Finding(f"{label} cannot be read: {error}", label, "save it as a UTF-8 text file"))
        return {}
    values: dict[str, Scalar] = {}
    for binding in parse_stream(io.StringIO(text)):
        lead = len(binding.original.string) - len(binding.original.string.lstrip("\n"))
        origin = Origin(label, binding.original.line + lead)
        if binding.error:
            findings.append(Finding(f"{label} has a line that is no assignment", str(origin), "write NAME=value"))
        elif binding.key is not None and binding.value is not None:
            values[binding.key] = Scalar(binding.value, origin)
    return values


def place_variables(
    layer: Layer,
    variables: Mapping[str, Scalar],
    placement: Placement,
    below: Sequence[Layer],
) -> None:
    """Add those variables to a layer whose names are those of known leaves; all others are somebody else's.

    Entries of a list, each by a variable of its own, become one list, which is taken whole as others are.
    """

    def known(path: tuple[str, ...]) -> Iterator[str]:
        for lower in below:
            for existing in lower.entries:
                if existing[: len(path)] == path and len(existing) > len(path):
                    yield existing[len(path)]

    names: dict[tuple[str, ...], str] = {}
    parts: dict[tuple[str, ...], dict[tuple[str, ...], tuple[str, Scalar]]] = {}
    for name in sorted(variables, key=lambda text: ("__" in text, text)):
        value = variables[name]
        if name.endswith("_PORT") and (value.text or "").startswith(_FOREIGN_SCHEMES):
            continue  # Kubernetes tells every pod where its services are
        path = placement.schema.locate_variable(name, known)
        if path is None:
            placement.warnings += _switch_that_is_none(name, value, placement.schema)
            placement.findings += _group_in_one_text(name, value, placement.schema)
            continue
        first = names.setdefault(path, name)
        if first != name:
            if variables[first].text != value.text:
                what = f"{first} and {name} both set {key_text(path)}, to different values"
                placement.findings.append(Finding(what, str(value.origin), "unset one of the two"))
            continue
        located = placement.schema.locate(path)
        if (isinstance(located.shape, Leaf) and located.shape.is_any) or not located.rest:
            path = (*located.path, *located.rest)
            layer.entries[path] = Entry(path, located.shape, value, layer.name)
        else:  # DESK_HOSTS_0
            parts.setdefault(located.path, {})[located.rest] = (name, value)
    for path, entries in parts.items():
        whole = layer.entries.get(path)
        if whole is not None:
            name = next(iter(entries.values()))[0]
            what = f"{names[path]} and {name} both set {key_text(path)}"
            placement.findings.append(Finding(what, str(whole.origin), "unset one of the two"))
            continue
        raw = _assembled(path, entries, placement)
        if raw is not None:
            layer.entries[path] = Entry(path, placement.schema.locate(path).shape, raw, layer.name)


def _assembled(
    path: tuple[str, ...], entries: Mapping[tuple[str, ...], tuple[str, Scalar]], placement: Placement
) -> Raw | None:
    """A list of which variables say one entry each; entries may have keys (``DESK_GATES_0_NAME``)."""
    (first, value) = next(iter(entries.values()))
    if () in entries:
        return entries[()][1]
    below: dict[str, dict[tuple[str, ...], tuple[str, Scalar]]] = {}
    for rest, each in entries.items():
        below.setdefault(rest[0], {})[rest[1:]] = each
    inner = {name: _assembled((*path, name), each, placement) for name, each in below.items()}
    if not all(name.isdigit() for name in inner):
        return Group(tuple((name, raw.origin, raw) for name, raw in inner.items() if raw is not None), value.origin)
    by_number = {int(name): raw for name, raw in inner.items()}
    missing = [number for number in range(max(by_number)) if number not in by_number]
    if missing:
        what = f"{first} is an entry of the list {key_text(path)}, and entry {missing[0]} is set by no variable"
        placement.findings.append(Finding(what, str(value.origin), "number the entries from 0 on, without gaps"))
        return None
    return Listing(tuple(raw for _, raw in sorted(by_number.items()) if raw is not None), value.origin)


def _switch_that_is_none(name: str, value: Scalar, schema: Schema) -> Iterator[Finding]:
    """A warning about a variable below a table that looks like a switch, for it would have to be a key of a file."""
    if (value.text or "").lower() not in ("true", "false"):
        return
    path = schema.table_of_variable(name)
    if path is not None:
        what = f"the variable {name} sets nothing: {key_text(path)} has no such key that a variable can name"
        fix = f"write {key_text(path)}.<name>.<key>: {(value.text or '').lower()} in a file, or as an argument"
        yield Finding(what, str(value.origin), fix)


def _group_in_one_text(name: str, value: Scalar, schema: Schema) -> Iterator[Finding]:
    """What is wrong with a variable that says a whole group of keys at once, as JSON."""
    if not (value.text or "").lstrip().startswith("{"):
        return
    path = schema.group_of_variable(name)
    if path is None:
        return
    try:
        said = json.loads(value.text or "")
    except (ValueError, RecursionError):
        return
    variables = " and ".join(f"{each}=..." for each in itertools.islice(_variables_of(name, said), 2))
    what = f"the variable {name} has JSON for the group of keys {key_text(path)}, and a variable says one key"
    yield Finding(what, str(value.origin), f"set {variables}" if variables else f"unset {name}, which says nothing")


def _variables_of(name: str, said: Any) -> Iterator[str]:
    """The variables that say what JSON does: one for each value, however many groups are around it."""
    if isinstance(said, dict):
        for key, each in said.items():
            word = "".join(letter if letter.isalnum() else "_" for letter in key).upper()
            yield from _variables_of(f"{name}_{word}", each)
    elif isinstance(said, list) and any(isinstance(each, dict) for each in said):
        for number, each in enumerate(said):
            yield from _variables_of(f"{name}_{number}", each)
    else:
        yield name


# --- arguments and overrides ---------------------------------------------------------------------------------------


_BEHIND_A_KEY = re.compile(r"[:\s]")


def argument_items(arguments: Sequence[str] | Mapping[str, str], findings: list[Finding]) -> list[Item]:
    """``--key=value`` and ``--key`` (true); the last of several for one key counts."""
    texts: dict[str, str] = {}
    if isinstance(arguments, Mapping):
        texts.update(arguments)
    else:
        before = last = ""
        for argument in arguments:
            name, separator, value = argument.removeprefix("--").partition("=")
            key = _BEHIND_A_KEY.split(name, maxsplit=1)[0]
            if argument.startswith("--") and key != name and (not separator or has_secret_name(key)):
                # What there is in its place may be a password, and one may have a = in it.
                what = f"--{key} is followed by a colon or a space, not by ="
                fix = f"write --{key}=value{'; set a key that has a colon in it in a file' if separator else ''}"
                findings.append(Finding(what, "the command line", fix))
                last = f"--{key}"
            elif argument.startswith("--") and name:
                texts[name] = value if separator else "true"
                last = f"--{name}"
            elif before.startswith("--") and "=" not in before:  # it is not told, for it may be a password
                what = f"the value of {before} is an argument of its own"
                findings.append(Finding(what, "the command line", f"write {before}=value"))
            elif last and not separator:  # nor is this, which may be the second word of one
                what = f"an argument behind {last} is no setting"
                fix = "write --key=value, with quotes around a value of several words"
                findings.append(Finding(what, "the command line", fix))
            else:
                what = f"the argument {name!r} is no setting"
                findings.append(Finding(what, "the command line", "write --key=value"))
            before = argument
    return [_item(name, Scalar(text, Origin(f"argument --{name}"))) for name, text in texts.items()]


def override_items(overrides: Mapping[Any, Any], findings: list[Finding], above: str = "") -> list[Item]:
    """Python values by dotted keys, or by nested mappings."""
    items: list[Item] = []
    for name, value in overrides.items():
        if not above and not isinstance(name, str):
            what = f"the key {name!r} of an override is no text"
            findings.append(Finding(what, "the overrides", "write a key such as 'desk.threshold-minutes'"))
            continue
        key = f"{above}.{name}" if above else name
        if isinstance(value, Mapping):
            items += override_items(value, findings, key)
        elif value is None or isinstance(value, str):  # None is nothing, as YAML's null
            items.append(_item(key, Scalar(value, Origin(f"override {key}"))))
        else:
            items.append(_item(key, Ready(value, Origin(f"override {key}"))))
    return items


def _item(key: str, raw: Raw) -> Item:
    parts = tuple(split_key(key))
    return Item(parts, (raw.origin,) * len(parts), raw)
