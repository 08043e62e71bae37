"""``${NAME}``, ``${NAME:default}`` and ``${other.key}`` in text, nested at will: ``${A:${b.c:7}}``.

Where names are looked up is handed in. ``\\${`` stands for a plain ``${``.

Source: Spring ``PlaceholderResolutionSupport``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rocketbox.errors import Finding

__all__ = ["Found", "Lookup", "PlaceholderError", "resolve_placeholders"]

MOST_NESTED = 100  # names that stand for names, and placeholders in placeholders, together
MOST_CHARACTERS = 1 << 20  # of one text, with all that its names stand for


@dataclass(frozen=True)
class Found:
    """What a name stands for, itself perhaps with placeholders, and where that was written."""

    text: str = field(repr=False)  # it may be a secret
    where: str
    open_: bool = True


Lookup = Callable[[str], Found | None]


class PlaceholderError(Exception):
    """A placeholder cannot be replaced. ``cause`` is the same wherever the same fault shows.

    These are the places that refer to each other in a circle, or the place and the name that is not found.
    """

    def __init__(self, finding: Finding, cause: frozenset[str]) -> None:
        self.finding = finding
        self.cause = cause
        super().__init__(str(finding))


@dataclass(frozen=True)
class _Step:
    name: str
    where: str


def resolve_placeholders(text: str, lookup: Lookup, *, subject: str, where: str) -> str:
    """``text`` with its placeholders replaced.

    ``subject`` is the key or argument that the text belongs to, ``where`` its place; both go into the PlaceholderError
    when a name is not found and has no default, when names go in a circle, nest too deep, or stand for too much text.
    """
    return _Resolver(lookup, subject, where).replace(text, ())


class _Resolver:
    def __init__(self, lookup: Lookup, subject: str, where: str) -> None:
        self.lookup = lookup
        self.subject = subject
        self.where = where
        self.known: dict[str, str] = {}  # what names stand for, in the end: each is looked into once
        self.depth = 0

    def replace(self, text: str, chain: tuple[_Step, ...]) -> str:
        if "${" not in text:
            return text
        self.depth += 1
        if self.depth > MOST_NESTED:
            raise self.refusal(
                f"{self.outline(chain)} has placeholders in one another, more than {MOST_NESTED} deep",
                "write what they stand for in fewer steps",
                chain,
            )
        replaced = self.replaced(text, chain)
        self.depth -= 1
        return replaced

    def replaced(self, text: str, chain: tuple[_Step, ...]) -> str:
        done: list[str] = []
        position = length = 0
        while True:
            start = text.find("${", position)
            if start < 0:
                return "".join((*done, text[position:]))
            if start and text[start - 1] == "\\":
                done += [text[position : start - 1], "${"]
                position = start + 2
                continue
            end = self.closing(text, start, chain)
            done += [text[position:start], self.value(text[start + 2 : end], chain)]
            length += start - position + len(done[-1])
            if length > MOST_CHARACTERS:
                raise self.refusal(
                    f"{self.outline(chain)} becomes a text of more than {MOST_CHARACTERS} characters",
                    "name each of the others once, or write a shorter text",
                    chain,
                )
            position = end + 1

    def closing(self, text: str, start: int, chain: tuple[_Step, ...]) -> int:
        depth = 0
        for position in range(start, len(text)):
            depth += {"{": 1, "}": -1}.get(text[position], 0)
            if depth == 0 and position > start:
                return position
        what = f"{self.chain(chain)} has a ${{ that is never closed"
        raise self.refusal(what, "close it with }, or write \\${ for a plain ${", chain)

    def value(self, inner: str, chain: tuple[_Step, ...]) -> str:
        written, separator, default = _split_default(inner)
        name = self.replace(written, chain).strip()
        if name in self.known:
            return self.known[name]
        found = self.lookup(name)
        if found is not None:
            if not found.open_:
                return found.text
            places = [self.where, *(step.where for step in chain)]
            if found.where in places:  # a place, for one value has several names
                what = f"{self.chain(chain)} -> ${{{name}}} goes in a circle"
                circle = frozenset(places[places.index(found.where) :])
                raise PlaceholderError(Finding(what, self.where, "give one of them a value of its own"), circle)
            value = self.known[name] = self.replace(found.text, (*chain, _Step(name, found.where)))
            return value
        if separator:
            return self.replace(default, chain)
        what = f"{self.chain(chain)} needs ${{{name}}}, and nothing has that name"
        fix = f"set the environment variable or key {name}, or write a default: ${{{name}:...}}"
        raise PlaceholderError(Finding(what, self.where, fix), frozenset({self.place(chain), f"${{{name}}}"}))

    def refusal(self, what: str, fix: str, chain: tuple[_Step, ...]) -> PlaceholderError:
        return PlaceholderError(Finding(what, self.where, fix), frozenset({self.place(chain)}))

    def place(self, chain: tuple[_Step, ...]) -> str:
        return chain[-1].where if chain else self.where

    def chain(self, chain: tuple[_Step, ...]) -> str:
        return " -> ".join([self.subject, *(f"${{{step.name}}} ({step.where})" for step in chain)])

    def outline(self, chain: tuple[_Step, ...]) -> str:
        """The chain, of which a long one is cut in its middle."""
        steps = self.chain(chain).split(" -> ")
        return " -> ".join(steps if len(steps) < 7 else [*steps[:3], "...", *steps[-2:]])


def _split_default(inner: str) -> tuple[str, str, str]:
    """Name, the colon if there is one, default; a colon inside a nested placeholder does not count."""
    depth = 0
    for position, letter in enumerate(inner):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == ":" and depth == 0:
            return inner[:position], ":", inner[position + 1 :]
    return inner, "", ""
