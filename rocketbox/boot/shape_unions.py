"""One shape for what may be any of several: the members of a union.

Its keys are those of all of its members; which of them is meant is decided by pydantic. What could not be told apart
is refused.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from rocketbox.boot.shapes import MISSING, Field, Leaf, Many, Section, Shape, Table
from rocketbox.errors import ConfigurationError

__all__ = ["UnionShapes"]


@dataclass(frozen=True)
class UnionShapes:
    """Makes one shape of several. ``refuse`` makes the error for what cannot be: what is wrong, and what to write."""

    refuse: Callable[[str, str], ConfigurationError]

    def of(self, shapes: Sequence[Shape], *, labelled: bool) -> Shape:
        """What may be any of these shapes, in one: its keys are those of all of them."""
        if len(shapes) == 1:
            return shapes[0]
        leaf = _leaf_of(
            [each for each in shapes if isinstance(each, Leaf)]
            + [each.scalar for each in shapes if not isinstance(each, Leaf) and each.scalar is not None]
        )
        if leaf is not None and leaf.is_any:
            return leaf
        nullable = any(each.nullable for each in shapes)
        sections = [each for each in shapes if isinstance(each, Section)]
        tables = [each for each in shapes if isinstance(each, Table)]
        lists = [each for each in shapes if isinstance(each, Many)]
        groups: list[Section | Table] = [*sections, *tables]
        lists += [each.many for each in groups if each.many is not None]
        if sections and tables:
            what = "has a value that is a group of known keys or of any keys, which cannot be told apart"
            raise self.refuse(what, "write one of the two, or a model with extra='allow'")
        many = self.lists(lists, nullable, labelled) if lists else None
        if sections:
            merged = self.sections(sections)
            return replace(merged, scalar=leaf, many=many, nullable=nullable, labelled=labelled)
        if tables:
            values = [each.read_value for each in tables]
            read = values[0] if len(values) == 1 else lambda: self.of([each() for each in values], labelled=True)
            return Table(read, leaf, many, nullable, labelled)
        if many is not None:
            return replace(many, scalar=leaf)
        assert leaf is not None
        return leaf

    def lists(self, lists: Sequence[Many], nullable: bool, labelled: bool) -> Many:
        validated = any(each.validated for each in lists)
        if len(lists) == 1:
            return replace(lists[0], nullable=nullable, labelled=labelled, validated=validated)
        return Many(
            lambda: self.of([each.item for each in lists], labelled=True),
            nullable=nullable,
            labelled=labelled,
            validated=validated,
        )

    def sections(self, sections: Sequence[Section]) -> Section:
        if len(sections) == 1:
            return sections[0]
        extras = [each.extra for each in sections if each.extra is not None]
        return Section(
            lambda: self.shared(sections),
            self.of(extras, labelled=True) if extras else None,
            strict=all(each.strict for each in sections),
            members=tuple(sections),
        )

    def shared(self, sections: Sequence[Section]) -> dict[str, Field]:
        """The keys of several models that may stand in one place."""
        found: dict[str, list[Field]] = {}
        for section in sections:
            for spelling, known in section.fields.items():
                found.setdefault(spelling, []).append(known)
        joined: dict[tuple[int, ...], Field] = {}
        return {
            spelling: joined.setdefault(tuple(map(id, fields)), self.joined(fields, len(sections)))
            for spelling, fields in found.items()
        }

    def joined(self, fields: Sequence[Field], number: int) -> Field:
        first = fields[0]
        feeds = dict.fromkeys(each.feed for each in fields)
        if len(feeds) > 1:
            what = f"has a union of models that call one key by different names: {', '.join(map(str, feeds))}"
            raise self.refuse(what, "give it the same name in all of them")
        if len(fields) == 1:
            return replace(first, required=False)
        return replace(
            first,
            read_shape=lambda: self.of([each.shape for each in fields], labelled=False),
            required=len(fields) == number and all(each.required for each in fields),
            default=MISSING,
            description=next((each.description for each in fields if each.description), ""),
        )


def _leaf_of(leaves: Sequence[Leaf]) -> Leaf | None:
    """One leaf for all of these."""
    if len(leaves) < 2:
        return leaves[0] if leaves else None
    kinds = list(dict.fromkeys(kind for each in leaves for kind in each.kinds))
    literals = [kind for kind in kinds if typing.get_origin(kind) is Literal]
    if len(literals) > 1:  # what each of them takes, all of them take together
        together: Any = Literal[tuple(each for kind in literals for each in typing.get_args(kind))]
        kinds = [together, *(kind for kind in kinds if kind not in literals)]
    descriptions = {each.description for each in leaves}
    separators = {each.separator for each in leaves}
    return Leaf(
        () if any(each.is_any for each in leaves) else tuple(kinds),
        any(each.nullable for each in leaves),
        any(each.validated for each in leaves),
        descriptions.pop() if len(descriptions) == 1 else "",
        separators.pop() if len(separators) == 1 else "",
        any(each.secret for each in leaves),
    )
