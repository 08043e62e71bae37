"""YAML files as lists of documents, every value with its place and as the text that was written.

PyYAML composes nodes with marks; nothing is constructed, so YAML 1.1's own ideas of ``no``, ``0123`` and ``12:30``
never come in: what a text means is decided where the type is known. Refused with their line: duplicate keys, tags other
than YAML's own plain ones, keys that are no text, alias bombs, and everything that is not YAML.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from rocketbox.boot.origins import Group, Item, Listing, Origin, Raw, Scalar, file_label, split_key
from rocketbox.boot.secrets import has_secret_name
from rocketbox.errors import Finding

__all__ = ["Document", "read_documents"]

MAX_NODES = 10_000  # of one file with its aliases expanded; the largest settings files have some hundreds
MAX_DEPTH = 50

_TAG = "tag:yaml.org,2002:"
NO_TAGS = "a tag (!...) is not allowed in settings"
QUOTE_COMMAS = "put text with a comma in it in quotes"
QUOTE_TAGS = "put text that begins with ! in quotes"
_PLAIN_TAGS = {_TAG + name for name in "str int float bool null map seq merge value timestamp".split()}


_BESIDE_A_VALUE = re.compile(r"[:=\s]+")


@dataclass(frozen=True)
class Document:
    """One document of a file: its values, flattened to the leaves of its groups."""

    items: tuple[Item, ...]


@dataclass
class _Reader:
    label: str
    text: str
    findings: list[Finding]
    items: list[Item] = field(default_factory=list)
    nodes: int = 0
    is_bomb: bool = False

    def origin(self, mark: yaml.Mark) -> Origin:
        return Origin(self.label, mark.line + 1, mark.column + 1)

    def wrong(self, what: str, node: yaml.Node, fix: str) -> None:
        self.findings.append(Finding(what, str(self.origin(node.start_mark)), fix))

    def count(self, node: yaml.Node, depth: int) -> bool:
        """Whether the file is still of a sane size; says so once when it is not."""
        self.nodes += 1
        if self.nodes <= MAX_NODES and depth <= MAX_DEPTH and not self.is_bomb:
            return True
        if not self.is_bomb:
            self.is_bomb = True
            self.wrong(
                "the aliases of this file (*name) stand for too much, or for themselves",
                node,
                "write the values out instead of repeating them with * and &",
            )
        return False

    def has_plain_tag(self, node: yaml.Node) -> bool:
        if node.tag in _PLAIN_TAGS:
            return True
        if node.tag.startswith(f"{_TAG}python/"):
            tag = node.tag.replace(_TAG, "!!")
            self.wrong(f"the tag {tag} is not allowed in settings", node, f"leave {tag} out")
        else:  # it is not told, for it may be a password
            self.wrong(NO_TAGS, node, QUOTE_TAGS)
        return False

    def read(self, node: yaml.Node, parts: tuple[str, ...], places: tuple[Origin, ...]) -> None:
        """Add the values below a node to ``items``."""
        if not self.count(node, len(parts)) or not self.has_plain_tag(node):
            return
        if isinstance(node, yaml.MappingNode) and (node.value or not parts):
            for key, origin, value in self.entries(node, parts):
                names = tuple(split_key(key))
                self.read(value, (*parts, *names), (*places, *(origin for _ in names)))
        else:
            raw = self.raw(node, len(parts))
            if raw is not None:
                self.items.append(Item(parts, places, raw))

    def entries(
        self, node: yaml.MappingNode, parts: tuple[str, ...] = (), merges: int = 0
    ) -> list[tuple[str, Origin, yaml.Node]]:
        """The entries of a mapping, its merges (``<<``) first; duplicates are findings.

        ``merges`` is how many others merge this one, each inside of the one before.
        """
        merged: dict[str, tuple[str, Origin, yaml.Node]] = {}
        own: dict[str, tuple[str, Origin, yaml.Node]] = {}
        last = ""
        for key, value in node.value:
            if key.tag == _TAG + "merge":
                for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    if not isinstance(source, yaml.MappingNode) or source is node:
                        self.wrong("<< takes a group of keys, such as *name", key, "name a group with &name before")
                    elif self.count(source, len(parts) + merges):
                        for entry in self.entries(source, parts, merges + 1):
                            merged.setdefault(entry[0], entry)
                continue
            if not isinstance(key, yaml.ScalarNode) or key.tag not in _PLAIN_TAGS:
                self.wrong("a key that is no text is not allowed in settings", key, "write a plain key")
                continue
            name = str(key.value)
            origin = self.origin(key.start_mark)
            wrong = self.torn(node, parts, key, value, last) if key.style is None and _is_left_out(value) else None
            if wrong is not None:
                self.findings.append(Finding(wrong[0], str(origin), wrong[1]))
                continue
            last = name
            if name in own:
                shown = ".".join((*parts, name))
                self.findings.append(
                    Finding(f"{shown} is written twice, first at {own[name][1]}", str(origin), "keep one of the two")
                )
                continue
            own[name] = (name, origin, value)
        return list({**merged, **own}.values())

    def torn(
        self, node: yaml.MappingNode, parts: tuple[str, ...], key: yaml.ScalarNode, value: yaml.Node, last: str
    ) -> tuple[str, str] | None:
        """What is wrong with a key without a value that has its value in itself, or is a part of the value before.

        Nothing of that is told, for it may be a password.
        """
        name = str(key.value)
        # An empty value begins behind the colon, and where there is none, at what follows: spaces may be between.
        has_colon = self.text[key.end_mark.index : value.start_mark.index].endswith(":")
        if node.flow_style and not has_colon and has_secret_name(last):
            return f"{'.'.join((*parts, last))} ends at a comma, and what follows is no key with a value", QUOTE_COMMAS
        before = _BESIDE_A_VALUE.split(name, maxsplit=1)[0]
        if before == name or (has_colon and not has_secret_name(before)):
            return None
        what = f"{'.'.join((*parts, before))} is not followed by a colon and a space, so that it has no value"
        fix = f"write {before}: and its value, with a space between"
        return what, f"{fix}; or put the key in quotes, if all of it is one" if has_colon else fix

    def raw(self, node: yaml.Node, depth: int) -> Raw | None:
        """A node as a value: what stands in a list, or at the end of a key."""
        origin = self.origin(node.start_mark)
        if isinstance(node, yaml.ScalarNode):
            is_null = node.tag == _TAG + "null" and node.style is None
            return Scalar(None if is_null else str(node.value), origin, plain=node.style is None)
        if isinstance(node, yaml.SequenceNode):
            return Listing(tuple(self._inner(child, depth + 1) for child in node.value), origin)
        assert isinstance(node, yaml.MappingNode)
        entries = self.entries(node)
        return Group(tuple((name, place, self._inner(value, depth + 1)) for name, place, value in entries), origin)

    def _inner(self, node: yaml.Node, depth: int) -> Raw:
        if self.count(node, depth) and self.has_plain_tag(node):
            raw = self.raw(node, depth)
            if raw is not None:
                return raw
        return Scalar(None, self.origin(node.start_mark))


def _is_left_out(node: yaml.Node) -> bool:
    """Whether nothing at all is written for a value."""
    return isinstance(node, yaml.ScalarNode) and node.style is None and not node.value


def read_documents(path: Path, findings: list[Finding]) -> list[Document]:
    """The documents of a file; what is wrong with it is added to ``findings``, with its line."""
    label = file_label(path)
    text = _read_text(path, label, findings)
    if text is None:
        return []
    documents, wrong = _documents_in(text, label)
    findings += wrong
    return list(documents)


@functools.lru_cache(maxsize=16)  # a test starts the same service hundreds of times, and PyYAML takes 1 ms for 10 lines
def _documents_in(text: str, label: str) -> tuple[tuple[Document, ...], tuple[Finding, ...]]:
    """The documents of a text that was read from a file, and what is wrong with it."""
    findings: list[Finding] = []
    documents: list[Document] = []
    try:
        for node in yaml.compose_all(text, Loader=yaml.SafeLoader):
            reader = _Reader(label, text, findings)
            if isinstance(node, yaml.MappingNode):
                reader.read(node, (), ())
            elif not (isinstance(node, yaml.ScalarNode) and node.tag == _TAG + "null"):  # an empty document
                reader.wrong("settings begin with a key", node, "write key: value")
            documents.append(Document(() if reader.is_bomb else tuple(reader.items)))
    except yaml.YAMLError as error:
        findings.append(_not_yaml(error, text, label))
        return (), tuple(findings)
    except RecursionError:  # PyYAML calls itself for each level
        findings.append(_too_deep(text, label))
        return (), tuple(findings)
    return tuple(documents), tuple(findings)


def _read_text(path: Path, label: str, findings: list[Finding]) -> str | None:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        above = bytes(error.object[: error.start])
        line, column = above.count(b"\n") + 1, len(above) - above.rfind(b"\n")
        findings.append(
            Finding(f"{label} is not UTF-8: byte {error.start}", str(Origin(label, line, column)), "save it as UTF-8")
        )
    except IsADirectoryError:
        findings.append(Finding(f"{label} is a directory", label, "name a YAML file"))
    except OSError as error:
        findings.append(Finding(f"{label} cannot be read: {error.strerror}", label, "name a file that can be read"))
    return None


def _too_deep(text: str, label: str) -> Finding:
    """The finding about a file whose groups and lists cannot be read, with the place where they become too deep."""
    depth, mark = 0, None
    for event in yaml.parse(text, Loader=yaml.SafeLoader):  # this one does not call itself
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            mark = event.start_mark
            break
    where = label if mark is None else str(Origin(label, mark.line + 1, mark.column + 1))
    what = f"{label} has more than {MAX_DEPTH} groups or lists inside of each other"
    return Finding(what, where, "write fewer inside of each other, or put text that begins with [ or { in quotes")


def _not_yaml(error: yaml.YAMLError, text: str, label: str) -> Finding:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is None:
        reason = getattr(error, "reason", None) or str(error).splitlines()[0]
        above = text[: getattr(error, "position", 0)]
        where = str(Origin(label, above.count("\n") + 1, len(above) - above.rfind("\n")))
        return Finding(f"{label} is not valid YAML: {reason}", where, "take this character out")
    where = str(Origin(label, mark.line + 1, mark.column + 1))
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    if "\t" in line[: mark.column + 1]:
        return Finding(f"{label} has a tab where YAML takes spaces only", where, "indent with spaces")
    if "undefined alias" in str(getattr(error, "problem", "")):  # it is not told, for it may be a password
        what = f"{label} refers to an anchor (*...) that is nowhere above"
        return Finding(what, where, "put text that begins with * in quotes, or write &name before what is meant")
    if "tag handle" in str(getattr(error, "problem", "")):  # nor is this
        return Finding(NO_TAGS, where, QUOTE_TAGS)
    if "duplicate anchor" in str(getattr(error, "context", "")):  # nor this
        return Finding(f"{label} has an anchor (&...) twice", where, "put text that begins with & in quotes")
    reason = " ".join(part for part in (getattr(error, "context", None), getattr(error, "problem", None)) if part)
    return Finding(f"{label} is not valid YAML: {reason}", where, "correct this line or the one before it")
