"""The types that functions and classes are annotated with, resolved one by one when they are asked for.

Resolving all at once (``typing.get_type_hints``) fails as a whole when one name exists for type checkers only.
"""

from __future__ import annotations

import collections.abc
import contextlib
import inspect
import os
import sys
import typing
from dataclasses import dataclass
from typing import Annotated, Any

from rocketbox.boot.marks import Qualifier

__all__ = [
    "Wanted",
    "fits",
    "hint_name",
    "parameters_of",
    "place_of",
    "provided_type",
    "resolve_hint",
    "return_annotation",
    "wanted",
]


def place_of(target: Any) -> str:
    """``file:line`` where a function or class stands; the file is relative when it is below the working directory."""
    plain = inspect.unwrap(target)
    plain = getattr(plain, "__func__", plain)
    code = getattr(plain, "__code__", None)
    if code is not None:
        path, line = code.co_filename, code.co_firstlineno
    else:
        try:
            path, line = inspect.getsourcefile(plain) or "", inspect.getsourcelines(plain)[1]
        except (TypeError, OSError):
            path, line = "", 0
    if not path:
        return f"{getattr(plain, '__module__', '?')}.{getattr(plain, '__qualname__', plain)}"
    return f"{path.removeprefix(os.getcwd() + os.sep)}:{line}"


def _signature(target: Any) -> inspect.Signature:
    if sys.version_info >= (3, 14):  # else looking at the signature would evaluate every annotation
        import annotationlib

        return inspect.signature(target, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(target)


def parameters_of(target: Any) -> list[inspect.Parameter]:
    """The parameters of a function, or of a class's constructor; ``*args`` and ``**kwargs`` left out."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [parameter for parameter in _signature(target).parameters.values() if parameter.kind not in variadic]


def return_annotation(function: Any) -> Any:
    """What a function says that it returns, unresolved; ``inspect.Signature.empty`` when it says nothing."""
    return _signature(function).return_annotation


def resolve_hint(target: Any, annotation: Any) -> Any:
    """The annotation as a type, with its ``Annotated`` extras; raises NameError and its kin when there is none."""
    function = vars(target).get("__init__", target) if isinstance(target, type) else target
    plain = inspect.unwrap(function)
    plain = getattr(plain, "__func__", plain)
    names: dict[str, Any] = dict(getattr(plain, "__globals__", {}))
    if not names and isinstance(target, type):  # a generated constructor
        names = {name: value for base in reversed(target.__mro__) for name, value in _module_of(base).items()}
    enclosing = dict(inspect.getclosurevars(plain).nonlocals) if inspect.isfunction(plain) else {}

    def probe() -> None:
        """Carries the one annotation through typing.get_type_hints, which resolves nested text as well."""

    probe.__annotations__ = {"it": annotation}
    return typing.get_type_hints(probe, names, enclosing, include_extras=True)["it"]


def _module_of(class_: type) -> dict[str, Any]:
    module = sys.modules.get(class_.__module__)
    return vars(module) if module is not None else {}


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
        if origin is Annotated:
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
        return arguments[0]
    return hint


def hint_name(hint: Any) -> str:
    """A type as a user would write it, without modules."""
    if isinstance(hint, type) and not typing.get_args(hint):
        return hint.__name__
    arguments = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if origin is not None and isinstance(origin, type):
        return f"{origin.__name__}[{', '.join(hint_name(argument) for argument in arguments)}]"
    return str(hint).replace("typing.", "")


def fits(provided: Any, asked: Any) -> bool:
    """Whether a bean that provides one type can be given where the other is asked for."""
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
