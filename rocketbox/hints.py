"""What can be known of a function before it is called: its name and place, its parameters and their types.

The types that functions and classes are annotated with are resolved one by one when they are asked for.

Resolving all at once (``typing.get_type_hints``) fails as a whole when one name exists for type checkers only; here
only who asks for that one hint sees it fail. Works with and without ``from __future__ import annotations``, and for
Python 3.14's lazy annotations. What a hint means is the business of who asks: ``boot.dependencies``,
``listeners.binding``.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import types
import typing
from typing import Any

__all__ = [
    "UnresolvedHintError",
    "class_of",
    "hint_of",
    "hint_of_method",
    "is_variadic",
    "makes_coroutine",
    "name_of",
    "parameters_of",
    "plain_function",
    "place_of",
    "resolve_hint",
    "return_annotation",
]


VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class UnresolvedHintError(Exception):
    """The annotation of one parameter names something that cannot be found at run time."""

    def __init__(self, parameter: str, annotation: object, reason: str) -> None:
        self.parameter = parameter
        self.annotation = annotation if isinstance(annotation, str) else repr(annotation)
        self.reason = reason
        super().__init__(f"the type {self.annotation} of parameter {parameter!r} cannot be resolved: {reason}")


def name_of(target: Any) -> str:
    """What a function, class or callable object is called: an object by its class, a partial by its function."""
    plain = target
    while isinstance(plain, functools.partial):
        plain = plain.func
    return str(getattr(plain, "__qualname__", type(plain).__qualname__))


def makes_coroutine(target: Any) -> bool:
    """Whether a call of target gives something to await, as far as that is known without calling it.

    True for an ``async def``, for an object whose ``__call__`` is one, and for a partial of one or a decorated one
    (``functools.wraps``). A plain function may return something to await as well, which only its call tells.
    """
    while True:
        if inspect.iscoroutinefunction(target):
            return True
        step = _below(target)
        if step is target:
            return False
        target = step


def place_of(target: Any) -> str:
    """``file:line`` where a function or class (or its first decorator) stands.

    The file is relative when it is below the working directory.
    """
    plain = plain_function(target)
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

    ``self`` of a bound method, ``*args``/``**kwargs`` and what a ``functools.partial`` has given already are left out.
    """
    given = target.keywords if isinstance(target, functools.partial) else {}
    return [
        parameter
        for name, parameter in _signature(target).parameters.items()
        if parameter.kind not in VARIADIC and name not in given
    ]


def is_variadic(target: Any) -> bool:
    """Whether a function takes ``*args`` or ``**kwargs``."""
    return any(parameter.kind in VARIADIC for parameter in _signature(target).parameters.values())


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


def class_of(hint: Any) -> type | None:
    """The class that the hint of a bean means."""
    if typing.get_origin(hint) is typing.Annotated:
        return class_of(typing.get_args(hint)[0])
    kind = typing.get_origin(hint) or hint
    return kind if isinstance(kind, type) else None


def hint_of_method(hint: Any, method: Any, owner: Any) -> Any:
    """A hint of a method as it is for a class, or for ``Base[Order]``: its type variables are what ``owner`` binds."""
    owner = typing.get_args(owner)[0] if typing.get_origin(owner) is typing.Annotated else owner
    kind = typing.get_origin(owner) or owner
    if not isinstance(kind, type):
        return hint
    plain = plain_function(method)
    for base in kind.__mro__:
        if any(plain_function(member) is plain for member in vars(base).values() if callable(member)):
            return _with_variables(hint, _variables(owner, base))
    return hint


def _variables(owner: Any, definer: type) -> dict[Any, Any]:
    """What the type variables of a base class are in ``owner``."""
    kind = typing.get_origin(owner) or owner
    own = dict(zip(getattr(kind, "__parameters__", ()), typing.get_args(owner), strict=False))
    if kind is definer:
        return own
    for base in vars(kind).get("__orig_bases__", kind.__bases__):
        plain = typing.get_origin(base) or base
        if isinstance(plain, type) and issubclass(plain, definer):
            return _variables(_with_variables(base, own), definer)
    return {}


def _with_variables(hint: Any, variables: dict[Any, Any]) -> Any:
    if isinstance(hint, typing.TypeVar):
        return variables.get(hint, hint)
    parameters = () if isinstance(hint, type) else getattr(hint, "__parameters__", ())
    return hint[tuple(variables.get(each, each) for each in parameters)] if parameters else hint


def resolve_hint(target: Any, annotation: Any) -> Any:
    """The annotation as a type, with its ``Annotated`` extras; raises NameError and its kin when there is none."""
    plain = plain_function(vars(target).get("__init__", target) if isinstance(target, type) else target)
    names: dict[str, Any] = dict(getattr(plain, "__globals__", {}))
    if not names and isinstance(target, type):  # a generated constructor
        names = {name: value for base in reversed(target.__mro__) for name, value in _module_of(base).items()}
    # Names of an enclosing function are known only where the function itself uses them; those are in its closure.
    enclosing = _enclosing_names(plain) if inspect.isfunction(plain) else {}

    def probe() -> None:
        """Carries the one annotation through typing.get_type_hints, which resolves nested text as well."""

    probe.__annotations__ = {"it": annotation}
    return typing.get_type_hints(probe, names, enclosing, include_extras=True)["it"]


def plain_function(target: Any) -> Any:
    """What stands behind decorators and partials, the function of a bound method, or of a callable object."""
    while (step := _below(target)) is not target:
        target = step
    return target


def _below(target: Any) -> Any:
    """What target calls, where that is known; else itself."""
    if isinstance(target, type):
        return target
    if isinstance(target, functools.partial):
        return target.func
    if "__wrapped__" in getattr(target, "__dict__", {}):
        return target.__wrapped__
    if inspect.ismethod(target):
        return target.__func__
    if callable(target) and not inspect.isroutine(target):
        call = type(target).__call__
        return call if inspect.isfunction(call) else target
    return target


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
