"""What is made of pydantic models and takes a while, kept for the next start of the same application in this process.

The models decide it alone, and hardly ever change: a test starts the same service hundreds of times. One that was
rebuilt, or is another class of the same name, makes it anew.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from operator import is_
from typing import Any, Generic, TypeVar

__all__ = ["KeptByModels"]

T = TypeVar("T")
MOST = 8  # of these are kept; they keep the models of their applications


class KeptByModels(Generic[T]):
    """Values by the models that they are made of, in the order of their last use. May be asked in any thread."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, tuple[list[Any], T]] = {}

    def of(self, models: Iterable[tuple[str, Any]], besides: Hashable, make: Callable[[], T]) -> T:
        """What ``make()`` makes of these models by their prefixes, and of ``besides``; it may be there already."""
        models = tuple(models)
        key = models, besides
        kept = self._kept.pop(key, None)
        if kept is None or not all(map(is_, kept[0], _built(models))):
            made = make()
            kept = _built(models), made  # by now those that were not complete are
        while len(self._kept) >= MOST:
            self._kept.pop(next(iter(self._kept), None), None)
        self._kept[key] = kept
        return kept[1]


def _built(models: Iterable[tuple[str, Any]]) -> list[Any]:
    """What pydantic has built of each model: another object when it was rebuilt."""
    return [getattr(model, "__pydantic_core_schema__", None) for _, model in models]
