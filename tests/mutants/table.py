"""The table of broken builds, and how one is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["MUTANTS", "Mutant", "mutant", "replace"]


@dataclass(frozen=True)
class Mutant:
    """``switch_on`` breaks the product in this process; ``test`` (a pytest argument) must fail then."""

    name: str
    breaks: str
    test: str
    switch_on: Callable[[], None]


MUTANTS: list[Mutant] = []


def mutant(name: str, breaks: str, test: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def add(switch_on: Callable[[], None]) -> Callable[[], None]:
        MUTANTS.append(Mutant(name, breaks, test, switch_on))
        return switch_on

    return add


def replace(owner: Any, name: str, function: Any) -> Any:
    """Put ``function`` in the place of an attribute, which must be there; returns what was."""
    before = getattr(owner, name)
    setattr(owner, name, function)
    return before
