"""The types that functions and classes are annotated with, resolved one by one when they are asked for.

Resolving all at once (``typing.get_type_hints``) fails as a whole when one name exists for type checkers only; here
only who asks for that one hint sees it fail. Works with and without ``from __future__ import annotations``, and for
Python 3.14's lazy annotations. What a hint means is the business of who asks: ``boot.wanted``, ``listeners.binding``.
"""

from __future__ import annotations

import inspect
import os
import sys
import types
import typing
from typing import Any

__all__ = ["UnresolvedHintError", "hint_of", "parameters_of", "place_of", "resolve_hint", "return_annotation"]


class UnresolvedHintError(Exception):
    """The annotation of one parameter names something that cannot be found at run time."""

    def __init__(self, parameter: str, annotation: object, reason: str) -> None:
        self.parameter = parameter
        self.annotation = annotation if isinstance(annotation, str) else repr(annotation)
        self.reason = reason
        super().__init__(f"the type {self.annotation} of parameter {parameter!r} cannot be resolved: {reason}")


def place_of(target: Any) -> str:
    """``file:line`` where a function or class (or its first decorator) stands.

    The file is relative when it is below the working directory.
    """
    plain = _plain(target)
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


def parameters_of(target: Any) -> list[inspect.Parameter]:
    """The parameters of a function, or of a class's constructor, their hints unresolved.

    ``self`` of a bound method and ``*args``/``**kwargs`` are left out.
    """
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [parameter for parameter in _signature(target).parameters.values() if parameter.kind not in variadic]


def return_annotation(function: Any) -> Any:
    """What a function says that it returns, unresolved; ``inspect.Signature.empty`` when it says nothing."""
    return _signature(function).return_annotation


def hint_of(function: Any, parameter: inspect.Parameter) -> Any:
    """The resolved hint with its ``Annotated`` extras; ``inspect.Parameter.empty`` where there is none.

    Raises UnresolvedHintError.
    """
    if parameter.annotation is inspect.Parameter.empty:
        return inspect.Parameter.empty
    try:
        return resolve_hint(function, parameter.annotation)
    except Exception as error:  # evaluating text can raise anything
        raise UnresolvedHintError(parameter.name, parameter.annotation, str(error)) from error


def resolve_hint(target: Any, annotation: Any) -> Any:
    """The annotation as a type, with its ``Annotated`` extras; raises NameError and its kin when there is none."""
    plain = _plain(vars(target).get("__init__", target) if isinstance(target, type) else target)
    names: dict[str, Any] = dict(getattr(plain, "__globals__", {}))
    if not names and isinstance(target, type):  # a generated constructor
        names = {name: value for base in reversed(target.__mro__) for name, value in _module_of(base).items()}
    # Names of an enclosing function are known only where the function itself uses them; those are in its closure.
    enclosing = _enclosing_names(plain) if inspect.isfunction(plain) else {}

    def probe() -> None:
        """Carries the one annotation through typing.get_type_hints, which resolves nested text as well."""

    probe.__annotations__ = {"it": annotation}
    return typing.get_type_hints(probe, names, enclosing, include_extras=True)["it"]


def _plain(target: Any) -> Any:
    """What stands behind decorators, and the function of a bound method."""
    plain = inspect.unwrap(target)
    return getattr(plain, "__func__", plain)


def _signature(target: Any) -> inspect.Signature:
    if sys.version_info >= (3, 14):  # else looking at the signature would evaluate every annotation
        import annotationlib

        return inspect.signature(target, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(target)


def _enclosing_names(function: types.FunctionType) -> dict[str, Any]:
    """What the function uses of the one around it; a name that has no value yet is left out."""
    names = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # the cell is empty: the variable is assigned later
            continue
    return names


def _module_of(class_: type) -> dict[str, Any]:
    module = sys.modules.get(class_.__module__)
    return vars(module) if module is not None else {}
