"""What handlers say they return, and whether that goes with what they take and where their answers are sent.

What becomes of a value that was returned is told by ``dispatch``.
"""

from __future__ import annotations

import collections.abc
import inspect
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, Union, get_args, get_origin

from rocketbox.errors import Finding
from rocketbox.hints import hint_of_method, resolve_hint, return_annotation
from rocketbox.listeners.payload_types import type_name, without_none
from rocketbox.listeners.signature import UNKNOWN, HandlerSignature

__all__ = ["return_type", "wrong_return"]


def return_type(function: Callable[..., Any], owner: Any) -> Any:
    """The type that a handler says it returns; UNKNOWN where none is understood. ``owner`` is the hint of its bean."""
    annotation = return_annotation(function)
    if annotation is inspect.Signature.empty:
        return UNKNOWN
    try:
        returns = hint_of_method(resolve_hint(function, annotation), function, owner)
    except Exception:  # evaluating an annotation can raise anything, and a return type need not exist at run time
        return UNKNOWN
    if get_origin(returns) in (collections.abc.Awaitable, collections.abc.Coroutine) and get_args(returns):
        returns = get_args(returns)[-1]  # of a def that returns what is awaited
    return type(None) if returns is None else returns


def wrong_return(signature: HandlerSignature, *, sends_on: bool) -> Finding | None:
    """What is wrong with the return type of a handler, where it says one; ``sends_on``: it has a ``send_to``."""
    returns, name = signature.returns, signature.name
    if returns is UNKNOWN:
        return None
    if sends_on and returns is type(None):
        return Finding(
            f"listener {name} has @send_to and returns None, so that nothing is ever sent",
            signature.where,
            "return what is to be sent on, and say its type; or take @send_to away",
        )
    if signature.is_batch and not _may_be_list(returns):
        single = type_name(without_none(returns))
        each = "None or an exception for each message"
        return Finding(
            f"listener {name} takes a batch and returns one {single}",
            signature.where,
            f"return list[{single}], or None for nothing to send" if sends_on else f"return None, or a list: {each}",
        )
    return None


def _may_be_list(hint: Any) -> bool:
    """Whether a value of the type may be a list or a tuple, or None."""
    origin = get_origin(hint)
    if origin is Annotated:
        return _may_be_list(get_args(hint)[0])
    if origin in (Union, types.UnionType):
        return all(_may_be_list(member) for member in get_args(hint))
    kind = origin or hint
    if kind is Any or not isinstance(kind, type) or kind is type(None):
        return True  # a name for a type, a type variable: nothing is known
    if typing.is_typeddict(kind):
        return False
    try:
        return issubclass(kind, list | tuple) or issubclass(list, kind)
    except TypeError:  # a protocol that cannot be asked
        return True
