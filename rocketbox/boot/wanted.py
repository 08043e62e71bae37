"""What hints ask the container for, what bean functions provide by theirs, and whether one fits the other.

How annotations become types is in ``rocketbox.hints``.
"""

from __future__ import annotations

import collections.abc
import contextlib
import types
import typing
from dataclasses import dataclass
from typing import Annotated, Any

from typing_extensions import TypeAliasType

from rocketbox.boot.marks import Qualifier

__all__ = ["Wanted", "fits", "hint_name", "provided_name", "provided_type", "wanted"]


@dataclass(frozen=True)
class Wanted:
    """What somebody asks the container for."""

    type_: Any
    qualifier: str | None = None
    every: bool = False  # list[T]: all of them
    optional: bool = False  # T | None

    def __str__(self) -> str:
        name = hint_name(self.type_)
        return f"{name} named {self.qualifier!r}" if self.qualifier is not None else name


def wanted(hint: Any) -> Wanted:
    """Read ``T``, ``Annotated[T, Qualifier("x")]``, ``list[T]`` and ``T | None``, in any useful nesting."""
    qualifier: str | None = None
    every = optional = False
    while True:
        origin = typing.get_origin(hint)
        arguments = typing.get_args(hint)
        if isinstance(hint, TypeAliasType):
            hint = hint.__value__
        elif origin is Annotated:
            qualifier = next((extra.name for extra in arguments[1:] if isinstance(extra, Qualifier)), qualifier)
            hint = arguments[0]
        elif type(None) in arguments and len(arguments) == 2 and not every:
            optional = True
            (hint,) = (argument for argument in arguments if argument is not type(None))
        elif origin is list and not every and not optional:
            every = True
            (hint,) = arguments
        else:
            return Wanted(hint, qualifier, every, optional)


_WRAPPERS = (
    collections.abc.Iterator,
    collections.abc.Generator,
    collections.abc.AsyncIterator,
    collections.abc.AsyncGenerator,
    collections.abc.Iterable,
    collections.abc.AsyncIterable,
    contextlib.AbstractContextManager,
    contextlib.AbstractAsyncContextManager,
    collections.abc.Awaitable,
    collections.abc.Coroutine,
)


def provided_type(hint: Any, *, wrapped: bool) -> Any:
    """The type of the bean; ``wrapped``: the return type is an iterator or context manager of it."""
    if typing.get_origin(hint) is Annotated:
        return provided_type(typing.get_args(hint)[0], wrapped=wrapped)
    arguments = typing.get_args(hint)
    if wrapped and typing.get_origin(hint) in _WRAPPERS and arguments:
        return provided_type(arguments[0], wrapped=False)
    return hint


def provided_name(hint: Any) -> str | None:
    """The name that a return type gives the bean: ``Annotated[T, Qualifier("x")]``, also inside of an iterator."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is Annotated:
        own = next((extra.name for extra in arguments[1:] if isinstance(extra, Qualifier)), None)
        return own or provided_name(arguments[0])
    return provided_name(arguments[0]) if typing.get_origin(hint) in _WRAPPERS and arguments else None


def hint_name(hint: Any) -> str:
    """A type as a user would write it, without modules."""
    if isinstance(hint, type) and not typing.get_args(hint):
        return hint.__name__
    arguments = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return " | ".join("None" if argument is type(None) else hint_name(argument) for argument in arguments)
    if origin is not None and isinstance(origin, type):
        return f"{origin.__name__}[{', '.join(hint_name(argument) for argument in arguments)}]"
    return str(hint).replace("typing.", "")


def fits(provided: Any, asked: Any) -> bool:
    """Whether a bean that provides one type can be given where the other is asked for."""
    if type(provided) is type and type(asked) is type:  # plain classes, which most are
        return issubclass(provided, asked) and (asked is not object or provided is object)
    if provided == asked:
        return True
    if typing.get_args(asked):
        bases: tuple[Any, ...] = getattr(typing.get_origin(provided) or provided, "__orig_bases__", ())
        return any(fits(base, asked) for base in bases)
    plain = typing.get_origin(provided) or provided
    if not isinstance(plain, type) or not isinstance(asked, type) or asked is object:
        return False
    if asked in plain.__mro__:
        return True
    try:
        return issubclass(plain, asked)
    except TypeError:  # a Protocol that is not checkable at run time
        return False
