"""The marked method of a bean, as a call of it by its name finds it.

A mark is read of a class, and a bean may be an object of another one: what a factory makes is often of a subclass, and
a test puts a stand-in in its place. Its own method of that name is what is called, as Python does it everywhere.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from rocketbox.hints import class_of, makes_coroutine, name_of, place_of, plain_function

__all__ = ["BeanMethod"]


class BeanMethod:
    """``function`` is what stands in the class that the hint ``owner`` asks for, or in a base of it."""

    def __init__(self, function: Callable[..., Any], owner: Any) -> None:
        self._function = function
        self._name = _name_of(function, owner)
        self._fits: type | None = None  # the class of the last bean, whose method is of the same kind

    def of(self, bean: Any) -> Callable[..., Any]:
        """The method, bound to this bean.

        Raises TypeError for an object that has none of its name, or one that is called in another way: where it runs,
        and whether somebody awaits it, was decided by what is marked.
        """
        if self._name is None:
            bound: Callable[..., Any] = self._function.__get__(bean)
            return bound
        found: Any = getattr(bean, self._name, None)
        if type(bean) is not self._fits:
            self._check(type(bean), found)
            self._fits = type(bean)
        method: Callable[..., Any] = found
        return method

    def _check(self, class_: type, found: Any) -> None:
        marked = f"the listener {name_of(self._function)}"
        if not callable(found):
            what = f"{name_of(class_)} has no method {self._name}"
            raise TypeError(f"{what}, and is in the place of what has {marked}: write one")
        function = plain_function(found)
        if not inspect.ismethod(found) or function is plain_function(self._function):
            return  # a mock, which can be anything, or what was checked at the start
        wanted, kind = ("async def" if makes_coroutine(each) else "def" for each in (self._function, found))
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            kind = "generator"
        if kind != wanted:
            where = f"{name_of(function)} ({place_of(function)})"
            raise TypeError(f"{where} is a {kind} in the place of {marked}, which is {wanted}: write it as one")


def _name_of(function: Callable[..., Any], owner: Any) -> str | None:
    """Under which name it stands there: mostly its own, else that which a decorator or an assignment has given it."""
    class_ = class_of(owner)
    bases = () if class_ is None else class_.__mro__
    first = {name: member for base in reversed(bases) for name, member in vars(base).items()}
    names = [name for name, member in first.items() if member is function]
    own = getattr(function, "__name__", None)
    return own if own in names else next(iter(names), None)
