"""Expressions of profiles: ``prod``, ``!prod``, ``prod & eu``, in documents of settings files and in conditions.

It imports nothing, for conditions stand in every module of a service. Spring Boot 3 has ``|`` and parentheses as well;
here several expressions, of which one is enough, are written beside one another.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence

__all__ = ["accepts", "fault_of_expression", "profiles_in"]

_NO_NAME = re.compile(r"[\s!&|,;(){}]")  # what an expression of Spring's, a list or a placeholder has, and no profile


def accepts(expressions: Sequence[str], active: Collection[str]) -> bool:
    """Whether a document with these ``on-profile`` expressions counts: one of ``prod``, ``!prod``, ``prod & eu``."""
    return any(all(_holds(term.strip(), active) for term in expression.split("&")) for expression in expressions)


def _holds(term: str, active: Collection[str]) -> bool:
    return term[1:].strip() not in active if term.startswith("!") else term in active


def fault_of_expression(expression: str) -> str | None:
    """What keeps a text from being an ``on-profile`` expression; None for one that is.

    One that is not would name a profile that never is active, and what depends on it would be left out in silence.
    """
    for term in expression.split("&"):
        name = term.strip().removeprefix("!").strip()
        if not name:
            return "a name is missing" if expression.strip() else "it names no profile"
        if found := _NO_NAME.search(name):
            return f"{found[0]!r} is no part of a profile's name" if found[0].strip() else "a name has a space in it"
    return None


def profiles_in(expressions: Iterable[str]) -> Iterator[str]:
    """The profiles that ``on-profile`` expressions name, whether they should be active or not."""
    for expression in expressions:
        for term in expression.split("&"):
            yield term.strip().removeprefix("!").strip()
