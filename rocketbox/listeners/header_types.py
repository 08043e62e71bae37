"""Which types a header may have: those that some text becomes.

A property of a message is text, and ``listeners.arguments`` reads it by pydantic. A type that refuses every text would
dead-letter each message that has the header; that is found here, by trying some text before anything starts.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

__all__ = ["unreadable_header"]

REFUSES_TEXT = frozenset(
    {
        "callable_type", "complex_type", "dataclass_exact_type", "dataclass_type", "dict_type", "frozen_set_type",
        "is_instance_of", "is_subclass_of", "iterable_type", "list_type", "mapping_type", "model_attributes_type",
        "model_type", "needs_python_object", "none_required", "sequence_str", "set_type", "tuple_type",
    }
)  # fmt: skip
"""Pydantic's errors that are about text as such; others are about this one text, and another may do."""


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
