"""Numbers that JSON has not: NaN and the infinities, which pydantic and msgspec write as ``null`` and say nothing.

Who reads would get another value than was sent, or could not read the message at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import Enum
from math import isfinite
from typing import Any

from pydantic_core import from_json

__all__ = ["has_no_place_for_them", "where_an_iterator_is", "where_written_as_null"]

PLAIN = frozenset({str, int, bool, bytes, type(None)})
LISTS = (list, tuple, set, frozenset, deque)  # that a serializer leaves as they are; classes, since ABCs take longer

_PLAIN_SCHEMAS = frozenset(
    "int str bool none bytes date time datetime timedelta uuid url multi-host-url definition-ref".split()
)
_SCHEMAS_AROUND: Any = {  # of a core schema's type, where in it the schemas are of what it holds
    "nullable": ("schema",),
    "default": ("schema",),
    "function-before": ("schema",),
    "function-after": ("schema",),
    "function-wrap": ("schema",),
    "list": ("items_schema",),
    "set": ("items_schema",),
    "frozenset": ("items_schema",),
    "tuple": ("items_schema",),
    "dict": ("keys_schema", "values_schema"),
    "union": ("choices",),
    "lax-or-strict": ("lax_schema", "strict_schema"),
    "json-or-python": ("json_schema", "python_schema"),
    "definitions": ("schema", "definitions"),
    "model": ("schema",),
    "model-fields": ("fields",),
    "model-field": ("schema",),
    "dataclass": ("schema",),
    "dataclass-args": ("fields",),
    "dataclass-field": ("schema",),
    "typed-dict": ("fields",),
    "typed-dict-field": ("schema",),
}
_HARMLESS_CONFIG = frozenset(  # polymorphic_serialization is none of it: a subclass may hold anything
    """title strict from_attributes revalidate_instances validate_default validate_by_alias validate_by_name
    serialize_by_alias str_max_length str_min_length str_strip_whitespace str_to_lower str_to_upper
    coerce_numbers_to_str allow_inf_nan ser_json_bytes ser_json_inf_nan ser_json_temporal ser_json_timedelta
    val_json_bytes hide_input_in_errors loc_by_alias cache_strings regex_engine""".split()
)


def has_no_place_for_them(schema: Any) -> bool:
    """Whether every value of a core schema (of pydantic) surely is without these numbers, or is told of as unexpected.

    A value that was never validated can stand anywhere, as NaN in a field that is an ``int``; the serializers of all
    types named above tell of it. Those of ``Literal`` and of whatever is not named above do not, or may not.
    """
    left = [schema]
    while left:
        part = left.pop()
        if isinstance(part, list):
            left += part
            continue
        if isinstance(part, tuple):  # a member of a union with its label
            left.append(part[0])
            continue
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in _PLAIN_SCHEMAS and "serialization" not in part:
            continue
        if kind == "enum" and "serialization" not in part and _is_plain_enum(part["cls"]):
            continue
        around = _SCHEMAS_AROUND.get(kind)
        if around is None or _is_written_in_its_own_way(part) or any(name not in part for name in around):
            return False
        for name in around:
            inner = part[name]
            left += inner.values() if name == "fields" and isinstance(inner, dict) else [inner]
    return True


def _is_plain_enum(kind: type[Enum]) -> bool:
    """Whether no member of it is such a number, nor one that it makes of a value that no member has."""
    makes_none = getattr(kind._missing_, "__func__", None) is Enum._missing_.__func__  # type: ignore[attr-defined]
    return makes_none and all(type(member.value) in PLAIN for member in kind)


def _is_written_in_its_own_way(schema: dict[str, Any]) -> bool:
    """Whether there may be more in the JSON of a value than its fields, or something else."""
    config = dict(schema.get("config") or {})
    extra = {config.pop("extra_fields_behavior", None), schema.get("extra_behavior")}
    return bool(
        "serialization" in schema
        or schema.get("computed_fields")
        or "extras_schema" in schema
        or not extra <= {None, "ignore", "forbid"}
        or not config.keys() <= _HARMLESS_CONFIG
    )


def where_written_as_null(data: Any, body: bytes) -> str | None:
    """Where ``data`` has a number that is ``null`` in its JSON, as in ``legs.0.delay``; None: nowhere.

    ``data`` are dicts, lists and plain values, in the order in which the same serializer has written them to ``body``.
    ``""`` is the value itself.
    """
    if not _has_any(data):
        return None
    left = [("", data, from_json(body))]
    while left:
        where, value, text = left.pop()
        value = value.value if isinstance(value, Enum) else value
        if isinstance(value, float):
            if text is None and not isfinite(value):
                return where
        else:
            left += [(_inside(where, name), *pair) for name, *pair in _members(value, text)]
    return None


def where_an_iterator_is(data: Any) -> str | None:
    """Where ``data`` has an iterator, which the serializer that has written it has read to its end; None: nowhere."""
    left = [("", data)]
    while left:
        where, value = left.pop()
        if isinstance(value, Iterator):
            return where
        left += [(_inside(where, name), member) for name, member, _ in _members(value, None)]
    return None


def _inside(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _has_any(data: Any) -> bool:
    """Whether there is any such number, however it is written: mostly there is none, and this is quicker to see."""
    left = [data]
    while left:
        value = left.pop()
        if type(value) in PLAIN:
            continue
        if isinstance(value, float):
            if not isfinite(value):
                return True
        elif isinstance(value, dict):
            left += value.values()
        elif isinstance(value, LISTS):
            left += value
        elif isinstance(value, Enum):
            left.append(value.value)
    return False


def _members(value: Any, text: Any) -> Iterator[tuple[str, Any, Any]]:
    """What a collection holds, each beside its JSON; where that has another form, beside ``null``: it cannot be told
    then which of its nulls stands for what.
    """
    if isinstance(value, dict):
        texts = list(text.values()) if isinstance(text, dict) and len(text) == len(value) else [None] * len(value)
        yield from zip(map(str, value), value.values(), texts, strict=True)
    elif isinstance(value, LISTS):
        is_same = isinstance(text, list) and len(text) == len(value) and not isinstance(value, set | frozenset)
        texts = text if is_same else [None] * len(value)
        yield from zip(map(str, range(len(value))), value, texts, strict=True)
