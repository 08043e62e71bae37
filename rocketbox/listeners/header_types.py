"""Headers among the parameters of a handler: where a ``Header`` stands, and which types one may have.

A property of a message is text, and ``listeners.arguments`` reads it by pydantic. A type that refuses every text would
dead-letter each message that has the header; that is found here, by trying some text before anything starts.
"""

from __future__ import annotations

import enum
import inspect
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from rocketbox.marks import Header

__all__ = ["header_in", "misplaced_header", "unreadable_header"]

REFUSES_TEXT = frozenset(
    {
        "callable_type", "complex_type", "dataclass_exact_type", "dataclass_type", "dict_type", "frozen_set_type",
        "is_instance_of", "is_subclass_of", "iterable_type", "list_type", "mapping_type", "model_attributes_type",
        "model_type", "needs_python_object", "none_required", "sequence_str", "set_type", "tuple_type",
    }
)  # fmt: skip
"""Pydantic's errors that are about text as such; others are about this one text, and another may do."""


def header_in(hint: Any) -> str | None:
    """The header that a parameter of this type is given: of ``Annotated[T, Header(...)]``, also beside None."""
    if get_origin(hint) is Annotated:
        return next((extra.name for extra in get_args(hint)[1:] if isinstance(extra, Header)), None)
    members = [each for each in get_args(hint) if each is not type(None)]
    may_be_none = get_origin(hint) in (Union, types.UnionType) and len(members) == 1
    return header_in(members[0]) if may_be_none else None


def misplaced_header(parameter: inspect.Parameter, hint: Any, name: str) -> tuple[str, str] | None:
    """What is wrong with a Header that stands where none is looked for, and what to write; None when all is well.

    The parameter would be given the body instead. ``name`` is that of the type.
    """
    if isinstance(parameter.default, Header):
        return "as its default", f"write {parameter.name}: Annotated[{name}, Header({parameter.default.name!r})]"
    if _names_header_class(hint):
        return "without its name", f'write {parameter.name}: Annotated[..., Header("name")]'
    if header_in(hint) is None and (header := _header_within(hint)) is not None:
        if get_origin(hint) is list:
            return "inside of its type", "take list[MessageExt] and read each message's properties"
        return "inside of its type", f"write {parameter.name}: Annotated[..., Header({header!r})]"
    return None


def _names_header_class(hint: Any) -> bool:
    if get_origin(hint) is Annotated and any(each is Header for each in get_args(hint)[1:]):
        return True
    return any(_names_header_class(each) for each in get_args(hint))


def _header_within(hint: Any) -> str | None:
    """The name of a Header anywhere in a hint."""
    return header_in(hint) or next(filter(None, map(_header_within, get_args(hint))), None)


def unreadable_header(hint: Any) -> str | None:
    """Why no text can become a value of ``hint``; None when some can, as far as trying tells."""
    try:
        adapter = TypeAdapter[Any](hint)
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        return str(error).splitlines()[0]
    reason = None
    for text in _texts(hint):
        try:
            adapter.validate_python(text)
        except ValidationError as error:
            problems = error.errors(include_url=False, include_context=False, include_input=False)
            closed = {"enum", "literal_error"} if _is_closed(hint) else set()
            if any(problem["type"] not in REFUSES_TEXT | closed for problem in problems):
                return None
            reason = reason or problems[0]["msg"]
        except Exception:  # a validator of the user's may raise anything, for this text
            return None
        else:
            return None
    return reason


def _texts(hint: Any) -> Iterator[str]:
    """What a value is written as, where all values are known; else any text."""
    values = list(_values(hint))
    yield from values or ["text"]


def _is_closed(hint: Any) -> bool:
    return bool(list(_values(hint)))


def _values(hint: Any) -> Iterator[str]:
    origin = get_origin(hint)
    if origin is Annotated:
        yield from _values(get_args(hint)[0])
    elif origin in (Union, types.UnionType):
        for member in get_args(hint):
            yield from _values(member)
    elif origin is Literal:
        yield from (str(value) for value in get_args(hint))
    elif isinstance(hint, type) and issubclass(hint, enum.Enum):
        yield from (str(member.value) for member in hint)
