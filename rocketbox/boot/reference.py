"""The keys of settings as Markdown tables, one for each group: the page of a reference that cannot drift.

Made from the shapes that settings are read by, as the JSON Schema is (``boot.json_schema``): the key, what it takes,
its default, what it means. What holds for all keys (sources, spellings, units) is not repeated here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from pydantic import BaseModel

from rocketbox.boot.effective import format_value
from rocketbox.boot.root_settings import schema_of
from rocketbox.boot.secrets import is_secret, reveals
from rocketbox.boot.shapes import MISSING, Field, Leaf, Many, Section, Shape, Table
from rocketbox.boot.wording import expected, members_of
from rocketbox.durations import format_duration

__all__ = ["markdown_reference", "markdown_table"]

HEAD = ("Key", "Takes", "Default", "Meaning")
_BOUNDS = {"ge": "from {}", "gt": "above {}", "le": "up to {}", "lt": "below {}"}


def markdown_reference(models: Mapping[str, type[BaseModel]], *, heading: str = "##") -> str:
    """All keys of these models below their prefixes, and those about profiles and imports.

    Each group begins with ``heading`` and its key. ``<name>`` in a key is chosen by the user, ``[]`` is each item of a
    list.
    """
    groups = _groups(schema_of(models).root, _Group(""), ())
    return "\n\n".join(group.render(heading) for group in groups if group.rows)


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of cells that are Markdown; their ``|`` are escaped."""
    lines = [head, ["---"] * len(head), *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@dataclass
class _Group:
    key: str
    words: str = ""
    rows: list[tuple[str, str, str, str]] = field(default_factory=list)

    def render(self, heading: str) -> str:
        words = _sentence(_escaped(self.words.removeprefix(f"`{self.key}`").lstrip(":,. ")))
        parts = [f"{heading} `{self.key}`", *([words] if words else []), markdown_table(HEAD, self.rows)]
        return "\n\n".join(parts)

    def add(self, key: str, takes: str, default: str = "", meaning: str = "") -> None:
        self.rows.append((f"`{key}`", takes, default, _escaped(meaning)))


Above = tuple[tuple[str, Section], ...]


def _groups(section: Section, group: _Group, above: Above) -> Iterator[_Group]:
    """The group of a section with its values, then the groups below it."""
    group.words = section.words.replace("``", "`") or group.words
    if section.model is not None or section.members:
        above = (*above, (group.key, section))
    below: list[tuple[Section, _Group]] = []
    for known in section.own:
        key = f"{group.key}.{known.key}" if group.key else known.key
        inner, place = _inner(known.shape)
        if inner is None:
            group.add(key + place, _takes(known), _default(known), known.description)
            continue
        if (scalar := getattr(known.shape, "scalar", None)) is not None:
            group.add(key, _leaf(scalar), "", known.description)
        same = next(((name, each) for name, each in above if _has_all_of(each, inner)), None)
        if same is None:
            below.append((inner, _Group(key + place, known.description)))
        else:
            group.add(f"{key}{place}.<key>", _same(same, inner), "", known.description)
    if section.extra is not None:
        group.add(f"{group.key}.<key>", "a value" if not isinstance(section.extra, Leaf) else _leaf(section.extra))
    yield group
    for inner, each in below:
        yield from _groups(inner, each, above)


def _inner(shape: Shape) -> tuple[Section | None, str]:
    """The section that stands at a shape, if any, and what leads from the key to it."""
    if isinstance(shape, Section):
        return shape, ""
    if isinstance(shape, Table) and not _ends_in_itself(shape):
        inner, place = _inner(shape.value)
        return inner, f".<name>{place}"
    if isinstance(shape, Many) and not isinstance(shape.item, Leaf) and not _ends_in_itself(shape):
        inner, place = _inner(shape.item)
        return inner, f"[]{place}"
    return None, ""


def _ends_in_itself(shape: Shape) -> bool:
    """Whether a table or list of tables and lists leads to no other shape than itself."""
    seen: list[Shape] = []
    while isinstance(shape, Table | Many):
        if shape in seen:
            return True
        seen.append(shape)
        shape = shape.value if isinstance(shape, Table) else shape.item
    return False


def _has_all_of(section: Section, other: Section) -> bool:
    if section.members or other.members:
        return section is other or section.members == other.members
    return other.model is not None and other.model in getattr(section.model, "__mro__", ())


def _same(above: tuple[str, Section], section: Section) -> str:
    name, outer = above
    missing = [each.key for each in outer.own if each.attribute and section.by_key(each.key) is None]
    without = f" but {', '.join(f'`{each}`' for each in missing)}" if missing else ""
    return f"the keys of `{name}`{without}"


# --- the cells -------------------------------------------------------------------------------------------------------


def _takes(known: Field) -> str:
    leaf, is_list = known.shape, False
    if _ends_in_itself(leaf):
        return "groups and lists of values"
    while isinstance(leaf, Table | Many):
        leaf, is_list = (leaf.item, True) if isinstance(leaf, Many) else (leaf.value, False)
    assert isinstance(leaf, Leaf), "what has keys of its own is a group"
    words = "secret text" if is_secret([known.key], known.shape) and expected(leaf) == "text" else _leaf(leaf)
    if is_list:
        return f"a list: {words}"
    limits = ", ".join(_limits(known)) if isinstance(known.shape, Leaf) else ""
    return f"{words}, {limits}" if limits else words


def _leaf(leaf: Leaf) -> str:
    words = expected(leaf)
    names = words.removeprefix("one of ")
    if len(leaf.kinds) == 1 and members_of(leaf.kinds[0]) and names != words:
        return ", ".join(f"`{name}`" for name in names.split(", "))
    return words


def _limits(known: Field) -> Iterator[str]:
    for each in known.bounds:
        for name, words in _BOUNDS.items():
            limit = getattr(each, name, None)
            if limit is not None:
                yield words.format(format_duration(limit) if isinstance(limit, timedelta) else limit)


def _default(known: Field) -> str:
    if known.feed is None:
        return ""
    if known.required:
        return "required"
    if known.default in (None, MISSING, [], {}, ()) or reveals([known.key], known.shape, known.default):
        return ""
    return f"`{format_value(known.default, known.shape)}`"


def _escaped(text: str) -> str:
    """Text in which ``<name>`` is no HTML tag; what stands between backticks stays as it is."""
    return "`".join(part if number % 2 else part.replace("<", r"\<") for number, part in enumerate(text.split("`")))


def _sentence(text: str) -> str:
    """The text as a sentence: a capital at its beginning and a full stop at its end, if they are missing."""
    text = text[:1].upper() + text[1:]
    return text + "." if text and text[-1] not in ".:!?" else text
