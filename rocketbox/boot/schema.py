"""All keys of all models, each model below its prefix: where a written key leads, and the name of a variable.

Which keys a model has is read in ``boot.schema_reading``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel

from rocketbox.boot.schema_reading import section_of
from rocketbox.boot.shapes import (
    UNDECLARED,
    Field,
    Leaf,
    Many,
    Path,
    Section,
    Shape,
    Table,
    leaves_of,
    uniform,
)

__all__ = ["Located", "Schema"]

KeyT = TypeVar("KeyT")
AnswerT = TypeVar("AnswerT")

MOST_KEPT = 4000  # answers about keys and variables; a process has some 100 variables, an application fewer keys
_NUMBER = re.compile(r"0|[1-9][0-9]{0,3}")  # of a list's entry in the name of a variable


@dataclass(frozen=True)
class Located:
    """Where a written key leads. ``unknown`` is the index of the part that nobody knows; ``within`` knew the rest.

    ``rest`` are parts below a leaf.
    """

    path: Path
    shape: Shape
    rest: Path = ()
    unknown: int | None = None
    within: Section | None = None


class Schema:
    """All keys of all models, each model below its prefix. Below ``strict`` prefixes unknown keys are refused.

    Raises ConfigurationError when a model cannot be a group of settings.
    """

    def __init__(self, models: Mapping[str, type[BaseModel]], strict: Sequence[str]) -> None:
        self.root = Section(loose=True)
        self.sections: dict[str, Section] = {}
        self._strict = tuple(strict)
        self._located: dict[Path, Located] = {}
        self._variables: dict[str, Path | None] = {}
        for prefix, model in sorted(models.items(), key=lambda entry: entry[0].count(".")):
            is_strict = any(prefix == name or prefix.startswith(name + ".") for name in strict)
            self.sections[prefix] = section = section_of(model, is_strict, prefix)
            self._mount(prefix, section)
            if not is_strict:  # what is wrong with a user's model is told even where nothing is written of it
                for _ in leaves_of(section, ()):
                    pass

    def _mount(self, prefix: str, section: Section) -> None:
        *above, last = prefix.split(".")
        parent = self.root
        for part in above:
            known = parent.by_key(part)
            if known is None or not isinstance(known.shape, Section):
                is_strict = parent is self.root and part in self._strict
                known = _leading_to(part, Section(loose=not is_strict, strict=is_strict))
                parent.fields[uniform(part)] = known
            assert isinstance(known.shape, Section)
            parent = known.shape
        native = parent.by_key(last)
        if native is not None:  # the model above has it as well
            native.shape = section
        else:
            parent.fields[uniform(last)] = _leading_to(last, section)

    def locate(self, parts: Sequence[str]) -> Located:
        """Follow the parts of a key from the root."""
        key = tuple(parts)
        found = self._located.get(key)
        if found is None:
            found = _kept(self._located, key, self._locate(key))
        return found

    def _locate(self, parts: Path) -> Located:
        shape: Shape = self.root
        path: list[str] = []
        index = 0
        while index < len(parts):
            part = parts[index]
            if isinstance(shape, Section):
                known = shape.by_key(part)
                if known is not None:
                    path[len(path) - known.above :] = [known.key]
                    shape = known.shape
                elif shape.extra is not None:
                    path.append(part)
                    shape = shape.extra
                elif shape.loose:
                    return Located((*path, *(uniform(rest) for rest in parts[index:])), UNDECLARED)
                else:
                    return Located(tuple(path), shape, unknown=index, within=shape)
                index += 1
            elif isinstance(shape, Table):
                single = isinstance(shape.value, Leaf | Many) and not (
                    isinstance(shape.value, Leaf) and shape.value.is_any
                )
                path.append(".".join(parts[index:]) if single else part)
                index = len(parts) if single else index + 1
                shape = shape.value
            else:
                return Located(tuple(path), shape, parts[index:])
        return Located(tuple(path), shape)

    def shape_at(self, path: Sequence[str]) -> tuple[Shape, Field | None]:
        """The shape at a path that was located, and the declared key there."""
        shape: Shape = self.root
        known: Field | None = None
        for part in path:
            if isinstance(shape, Section):
                known = shape.by_key(part)
                shape = known.shape if known is not None else shape.extra or UNDECLARED
            else:
                known = None
                shape = shape.value if isinstance(shape, Table) else UNDECLARED
        return shape, known

    def locate_variable(self, name: str, known: Callable[[Path], Iterable[str]]) -> Path | None:
        """The leaf that an environment variable sets; None when its name is that of no leaf.

        ``known(path)`` are the keys that a table has already: a name that fits one of them means that one. An entry of
        a list has its number in the path.
        """
        if name in self._variables:
            return self._variables[name]
        has_asked = False

        def asking(path: Path) -> Iterable[str]:
            nonlocal has_asked
            has_asked = True
            return known(path)

        found = next(_matches(self.root, _words(name), (), asking), None)
        return found if has_asked else _kept(self._variables, name, found)  # else it is of this start alone

    def table_of_variable(self, name: str) -> Path | None:
        """The table whose groups take further keys, and below which a variable's name leads; None for no such table."""
        return next(_open_tables(self.root, _words(name), ()), None)

    def group_of_variable(self, name: str) -> Path | None:
        """The group of keys that a variable's name is that of, where nothing else may stand; None for no such group."""
        return next(_groups(self.root, _words(name), ()), None)

    def leaves(self) -> Iterator[tuple[Path, Leaf | Many]]:
        """Every leaf of every model; ``*`` stands for the keys of tables."""
        return leaves_of(self.root, ())


def _kept(answers: dict[KeyT, AnswerT], key: KeyT, answer: AnswerT) -> AnswerT:
    """The answer, which the next start with the same models asks for again."""
    if len(answers) >= MOST_KEPT:
        answers.clear()
    answers[key] = answer
    return answer


def _words(variable: str) -> list[str]:
    return [word.lower() for word in variable.replace("-", "_").replace(".", "_").split("_") if word]


def _leading_to(key: str, section: Section) -> Field:
    return Field(key, lambda: section)


def _matches(shape: Shape, words: list[str], path: Path, known: Callable[[Path], Iterable[str]]) -> Iterator[Path]:
    if not words:
        if isinstance(shape, Leaf | Many) or shape.scalar is not None or shape.many is not None:
            yield path
        return
    if isinstance(shape, Section):
        for length in range(1, len(words) + 1):
            candidate = shape.fields.get("".join(words[:length]))
            if candidate is not None:
                place = (*path[: len(path) - candidate.above], candidate.key)
                yield from _matches(candidate.shape, words[length:], place, known)
        if shape.extra is not None:
            extras = {uniform(each): each for each in shape.known_extras()}
            if "".join(words) in extras:
                yield (*path, extras["".join(words)])
    elif isinstance(shape, Table):
        yield from _matches_in_table(shape, words, path, known)
    elif isinstance(shape, Many) and _NUMBER.fullmatch(words[0]):
        yield from _matches(shape.item_at(int(words[0])), words[1:], (*path, words[0]), known)


def _groups(shape: Shape, words: list[str], path: Path) -> Iterator[Path]:
    if not words:
        if isinstance(shape, Section | Table) and shape.scalar is None and shape.many is None:
            yield path
    elif isinstance(shape, Table):
        for length in range(1, len(words) + 1):
            yield from _groups(shape.value, words[length:], (*path, "-".join(words[:length])))
    elif isinstance(shape, Section):
        for length in range(1, len(words) + 1):
            candidate = shape.fields.get("".join(words[:length]))
            if candidate is not None and not candidate.above:
                yield from _groups(candidate.shape, words[length:], (*path, candidate.key))
    elif isinstance(shape, Many) and _NUMBER.fullmatch(words[0]):
        yield from _groups(shape.item_at(int(words[0])), words[1:], (*path, words[0]))


def _open_tables(shape: Shape, words: list[str], path: Path) -> Iterator[Path]:
    if isinstance(shape, Table):
        if isinstance(shape.value, Section) and shape.value.extra is not None and len(words) > 1:
            yield path
        elif isinstance(shape.value, Section):
            for length in range(1, len(words)):
                yield from _open_tables(shape.value, words[length:], (*path, "-".join(words[:length])))
    elif isinstance(shape, Section):
        for length in range(1, len(words) + 1):
            candidate = shape.fields.get("".join(words[:length]))
            if candidate is not None and not candidate.above:
                yield from _open_tables(candidate.shape, words[length:], (*path, candidate.key))


def _matches_in_table(
    table: Table, words: list[str], path: Path, known: Callable[[Path], Iterable[str]]
) -> Iterator[Path]:
    by_name = {uniform(key.replace(".", "")): key for key in known(path)}
    if isinstance(table.value, Leaf | Many):
        yield (*path, by_name.get("".join(words), ".".join(words)))
        return
    for wanted in (True, False):  # a key that is there already comes first
        for length in range(1, len(words) + 1):
            existing = by_name.get("".join(words[:length]))
            if (existing is not None) is wanted:
                key = existing if existing is not None else "-".join(words[:length])
                yield from _matches(table.value, words[length:], (*path, key), known)
