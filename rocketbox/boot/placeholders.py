"""``${NAME}``, ``${NAME:default}`` and ``${other.key}`` in text, nested at will: ``${A:${b.c:7}}``.

Where names are looked up is handed in. ``\\${`` stands for a plain ``${``.

Source: Spring ``PlaceholderResolutionSupport``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rocketbox.errors import Finding

__all__ = ["Found", "Lookup", "PlaceholderError", "resolve_placeholders"]

MOST_NESTED = 100  # names that stand for names, and placeholders in placeholders, together
MOST_CHARACTERS = 1 << 20  # of one text, with all that its names stand for
MOST_OF_A_NAME = 1000  # characters

_BRACE = re.compile(r"[{}]")
_COLON_OR_BRACE = re.compile(r"[:{]")


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
        return _Part(self, text, _closings(text), chain).replaced(0, len(text))

    def deeper(self, chain: tuple[_Step, ...]) -> None:
        self.depth += 1
        if self.depth > MOST_NESTED:
            raise self.refusal(
                f"{self.outline(chain)} has placeholders in one another, more than {MOST_NESTED} deep",
                "write what they stand for in fewer steps",
                chain,
            )

    def named(self, name: str, chain: tuple[_Step, ...]) -> str | None:
        """What a name stands for; None for nothing."""
        if len(name) > MOST_OF_A_NAME:
            what = f"{self.outline(chain)} needs a name of {len(name)} characters, and one has {MOST_OF_A_NAME} at most"
            raise self.refusal(what, "write ${NAME}, or ${NAME:default} with the text behind the colon", chain)
        if name in self.known:
            return self.known[name]
        found = self.lookup(name)
        if found is None:
            return None
        if not found.open_:
            return found.text
        places = [self.where, *(step.where for step in chain)]
        if found.where in places:  # a place, for one value has several names
            what = f"{self.chain(chain)} -> ${{{name}}} goes in a circle"
            circle = frozenset(places[places.index(found.where) :])
            raise PlaceholderError(Finding(what, self.where, "give one of them a value of its own"), circle)
        value = self.known[name] = self.replace(found.text, (*chain, _Step(name, found.where)))
        return value

    def missing(self, name: str, chain: tuple[_Step, ...]) -> PlaceholderError:
        what = f"{self.chain(chain)} needs ${{{name}}}, and nothing has that name"
        fix = f"set the environment variable or key {name}, or write a default: ${{{name}:...}}"
        return PlaceholderError(Finding(what, self.where, fix), frozenset({self.place(chain), f"${{{name}}}"}))

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


@dataclass(frozen=True)
class _Part:
    """One text, of which parts are replaced: the whole, and names and defaults in it, which are read where they stand.

    So a text is looked through once for each brace, however deep placeholders nest. ``closings`` leads from each
    brace that opens to the one that closes it.
    """

    resolver: _Resolver
    text: str
    closings: Mapping[int, int]
    chain: tuple[_Step, ...]

    def replaced(self, begin: int, end: int) -> str:
        """A part with its placeholders replaced."""
        text, start = self.text, self.text.find("${", begin, end)
        if start < 0:
            return text[begin:end]
        resolver, position, length = self.resolver, begin, 0
        resolver.deeper(self.chain)
        done: list[str] = []
        while start >= 0:
            if start > begin and text[start - 1] == "\\":
                done += [text[position : start - 1], "${"]
                position = start + 2
            else:
                closing = self.closing(start + 1)
                done += [text[position:start], self.value(start + 2, closing)]
                length += start - position + len(done[-1])
                position = closing + 1
            if length > MOST_CHARACTERS:
                raise resolver.refusal(
                    f"{resolver.outline(self.chain)} becomes a text of more than {MOST_CHARACTERS} characters",
                    "name each of the others once, or write a shorter text",
                    self.chain,
                )
            start = text.find("${", position, end)
        resolver.depth -= 1
        return "".join((*done, text[position:end]))

    def closing(self, brace: int) -> int:
        if brace not in self.closings:
            what = f"{self.resolver.chain(self.chain)} has a ${{ that is never closed"
            raise self.resolver.refusal(what, "close it with }, or write \\${ for a plain ${", self.chain)
        return self.closings[brace]

    def value(self, begin: int, end: int) -> str:
        """What stands for ``name`` or ``name:default`` between braces."""
        colon = self.colon(begin, end)
        name = self.replaced(begin, end if colon is None else colon).strip()
        value = self.resolver.named(name, self.chain)
        if value is not None:
            return value
        if colon is None:
            raise self.resolver.missing(name, self.chain)
        return self.replaced(colon + 1, end)

    def colon(self, begin: int, end: int) -> int | None:
        """The colon in front of the default; one between braces does not count."""
        found = _COLON_OR_BRACE.search(self.text, begin, end)
        while found is not None and found[0] == "{":
            found = _COLON_OR_BRACE.search(self.text, self.closings[found.start()], end)
        return None if found is None else found.start()


def _closings(text: str) -> Mapping[int, int]:
    """For each brace that opens and is closed the place where it is."""
    open_: list[int] = []
    closings: dict[int, int] = {}
    for found in _BRACE.finditer(text):
        if found[0] == "{":
            open_.append(found.start())
        elif open_:
            closings[open_.pop()] = found.start()
    return closings
