"""Types that a payload may have, told from all others, and hints taken apart for that.

How a body becomes one is the converter's business (``template``), which parameter is the payload that of ``binding``.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import types
import typing
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from rocketbox.template.codecs import is_library_type

__all__ = [
    "PAYLOAD_TYPES",
    "is_payload",
    "is_plain",
    "item_of_list",
    "may_be_none",
    "mentions_payload",
    "plain_hint",
    "type_name",
    "without_none",
]

PAYLOAD_TYPES = "a pydantic model, dataclass, TypedDict, dict, str, bytes, a union of them, or list[...] of one of them"
PLAIN_TYPES = (str, bytes, dict, collections.abc.Mapping)


def is_payload(hint: Any) -> bool:
    """Whether a body can be read as ``hint``: one of the types that a handler's payload may have."""
    origin = get_origin(hint)
    if origin is Annotated:
        return is_payload(get_args(hint)[0])
    if origin in (Union, types.UnionType):
        members = [member for member in get_args(hint) if member is not type(None)]
        return bool(members) and all(is_payload(member) for member in members)
    if (meant := _without_alias(hint)) is not hint:
        return is_payload(meant)
    kind = origin or hint
    if not isinstance(kind, type):
        return False
    return (
        kind in PLAIN_TYPES
        or issubclass(kind, BaseModel)
        or dataclasses.is_dataclass(kind)
        or typing.is_typeddict(kind)
        or is_library_type(kind)
    )


def is_plain(hint: Any) -> bool:
    """Whether every value of the hint is text, bytes or a mapping: data, that only a name makes a bean."""
    origin = get_origin(hint)
    if origin is Annotated:
        return is_plain(get_args(hint)[0])
    if origin in (Union, types.UnionType):
        return all(member is type(None) or is_plain(member) for member in get_args(hint))
    return (origin or hint) in PLAIN_TYPES


def mentions_payload(hint: Any) -> bool:
    """Whether the hint is a collection or a union in which a payload occurs: it was meant to be given one."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType) or (
        isinstance(origin, type) and issubclass(origin, collections.abc.Iterable)
    ):
        return any(is_payload(each) or mentions_payload(each) for each in get_args(hint))
    return False


def type_name(hint: Any) -> str:
    """A type as a user writes it."""
    return hint.__qualname__ if isinstance(hint, type) and not get_args(hint) else str(hint).replace("typing.", "")


def may_be_none(hint: Any) -> bool:
    return may_be_none(get_args(hint)[0]) if get_origin(hint) is Annotated else without_none(hint) is not hint


def item_of_list(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is list else None


def plain_hint(hint: Any) -> Any:
    """What is meant by ``Annotated[T, ...]`` and by ``type Batch = T`` (Python 3.12): T; any other hint as it is."""
    while True:
        meant = get_args(hint)[0] if get_origin(hint) is Annotated else _without_alias(hint)
        if meant is hint:
            return hint
        hint = meant


def _without_alias(hint: Any) -> Any:
    """What ``type Batch = list[Order]`` stands for, and ``Batch[Order]`` where that is ``type Batch[T] = list[T]``."""
    alias = get_origin(hint) or hint
    if type(alias).__name__ != "TypeAliasType":  # of typing or of typing_extensions
        return hint
    return alias.__value__ if alias is hint else alias.__value__[get_args(hint)]


def without_none(hint: Any) -> Any:
    """``T`` of ``T | None``, of ``Annotated[T, ...] | None`` likewise; any other hint as it is."""
    if get_origin(hint) in (Union, types.UnionType):
        members = [member for member in get_args(hint) if member is not type(None)]
        if len(members) == 1 and len(members) < len(get_args(hint)):
            return members[0]
    return hint
