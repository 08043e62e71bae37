"""The marked method of a bean, as a call of it by its name finds it.

A mark is read of a class, and a bean may be an object of another one: what a factory makes is often of a subclass, and
a test puts a stand-in in its place. Its own method of that name is what is called, as Python does it everywhere.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any

from rocketbox.hints import name_of

__all__ = ["BeanMethod"]


class BeanMethod:
    """``function`` is what stands in the class that the hint ``owner`` asks for, or in a base of it."""

    def __init__(self, function: Callable[..., Any], owner: Any) -> None:
        self._function = function
        self._name = _name_of(function, owner)

    def of(self, bean: Any) -> Callable[..., Any]:
        """The method, bound to this bean. Raises TypeError for an object that has none of its name."""
        if self._name is None:
            bound: Callable[..., Any] = self._function.__get__(bean)
            return bound
        found: Any = getattr(bean, self._name, None)
        if not callable(found):
            raise TypeError(
                f"{name_of(type(bean))} has no method {self._name}, and is in the place of what has the listener "
                f"{name_of(self._function)}: write one"
            )
        method: Callable[..., Any] = found
        return method


def _name_of(function: Callable[..., Any], owner: Any) -> str | None:
    """Under which name it stands there: mostly its own, else that which a decorator or an assignment has given it."""
    kind = typing.get_args(owner)[0] if typing.get_origin(owner) is typing.Annotated else owner
    bases: tuple[type, ...] = getattr(typing.get_origin(kind) or kind, "__mro__", ())
    names = {name: None for base in bases for name, member in vars(base).items() if member is function}
    own = getattr(function, "__name__", None)
    return own if own in names else next(iter(names), None)
