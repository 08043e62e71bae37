"""``typing.TypedDict`` for pydantic on Python 3.11, which takes ``typing_extensions.TypedDict`` only.

Python 3.11's own does not know which keys of a base class are required; what can be known is kept.
"""

from __future__ import annotations

import sys
import types
import typing
from typing import Annotated, Any, Union, get_args, get_origin

import typing_extensions  # pydantic itself stands on it

__all__ = ["readable_by_pydantic"]


def readable_by_pydantic(type_: Any) -> Any:
    """The same type with each TypedDict in it replaced by one that pydantic takes; from Python 3.12 on, the type."""
    if sys.version_info >= (3, 12):
        return type_
    if typing.is_typeddict(type_):
        return _rebuilt(type_)
    origin, arguments = get_origin(type_), get_args(type_)
    if not arguments or origin is None:
        return type_
    if origin is Annotated:
        return Annotated[(readable_by_pydantic(arguments[0]), *arguments[1:])]
    replaced = tuple(
        argument if isinstance(argument, list) else readable_by_pydantic(argument) for argument in arguments
    )
    if replaced == arguments:
        return type_
    if origin in (Union, types.UnionType):
        return Union[replaced]  # noqa: UP007 - from a tuple
    return origin[replaced]


def _rebuilt(type_: Any) -> Any:
    hints = typing.get_type_hints(type_, include_extras=True)
    fields = {}
    for name, hint in hints.items():
        if get_origin(hint) in (typing.Required, typing.NotRequired):
            (hint,) = get_args(hint)
        kind = typing_extensions.Required if name in type_.__required_keys__ else typing_extensions.NotRequired
        fields[name] = kind[readable_by_pydantic(hint)]
    return typing_extensions.TypedDict(type_.__name__, fields)  # type: ignore[operator]  # made at run time
