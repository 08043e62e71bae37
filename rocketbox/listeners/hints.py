"""The types a function's parameters are annotated with, resolved one by one when they are asked for.

Resolving all at once (``typing.get_type_hints``) fails as a whole when one name exists for type checkers only; here
only who asks for that one parameter sees it fail. Works with and without ``from __future__ import annotations``, and
for Python 3.14's lazy annotations.
"""

from __future__ import annotations

import inspect
import os
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["UnresolvedHintError", "hint_of", "parameters_of", "place_of"]


class UnresolvedHintError(Exception):
    """The annotation of one parameter names something that cannot be found at run time."""

    def __init__(self, parameter: str, annotation: object, reason: str) -> None:
        self.parameter = parameter
        self.annotation = annotation if isinstance(annotation, str) else repr(annotation)
        self.reason = reason
        super().__init__(f"the type {self.annotation} of parameter {parameter!r} cannot be resolved: {reason}")


def place_of(function: Callable[..., Any]) -> str:
    """``file:line`` where the function (or its first decorator) stands; the file is relative when it is below here."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', function)}"
    path = code.co_filename
    here = os.getcwd() + os.sep
    return f"{path.removeprefix(here)}:{code.co_firstlineno}"


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters one by one, ``self`` of a bound method and ``*args``/``**kwargs`` left out; hints unresolved."""
    if sys.version_info >= (3, 14):  # else looking at the signature would evaluate every annotation
        import annotationlib

        signature = inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
    else:
        signature = inspect.signature(function)
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [parameter for parameter in signature.parameters.values() if parameter.kind not in variadic]


def hint_of(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """The resolved hint with its ``Annotated`` extras; ``inspect.Parameter.empty`` where there is none.

    Raises UnresolvedHintError.
    """
    if parameter.annotation is inspect.Parameter.empty:
        return inspect.Parameter.empty
    plain = inspect.unwrap(function)
    plain = getattr(plain, "__func__", plain)
    names: Mapping[str, Any] = getattr(plain, "__globals__", {})
    # Names of an enclosing function are known only where the function itself uses them; those are in its closure.
    enclosing = _enclosing_names(plain) if inspect.isfunction(plain) else {}

    def probe() -> None:
        """Carries the one annotation through typing.get_type_hints, which resolves nested text as well."""

    probe.__annotations__ = {parameter.name: parameter.annotation}
    try:
        hints = typing.get_type_hints(probe, dict(names), dict(enclosing), include_extras=True)
    except Exception as error:  # evaluating text can raise anything
        raise UnresolvedHintError(parameter.name, parameter.annotation, str(error)) from error
    return hints[parameter.name]


def _enclosing_names(function: types.FunctionType) -> dict[str, Any]:
    """What the function uses of the one around it; a name that has no value yet is left out."""
    names = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # the cell is empty: the variable is assigned later
            continue
    return names
