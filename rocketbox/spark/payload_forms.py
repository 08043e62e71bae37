"""Forms of texts in a JSON body that Spark's parser does not look at closely enough, as conditions on its columns.

It reads a time out of ``12:30`` (today's), ``2026`` and milliseconds (as seconds), a date out of ``20000``, and 15 out
of the decimal ``1,5``. Taken are forms that pydantic reads and writes alike; anything else does not fit, and is told.
A body with another form is not given to it, as long decimals would keep it for hours (``payload_decimals``).

Source: Apache Spark 4.3.0 ``JacksonParser``, ``SparkDateTimeUtils.stringToTimestamp``, ``ExprUtils.getDecimalParser``;
RFC 8259 sections 4 (names that come twice) and 8.2 (surrogates).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql import types as t

__all__ = ["has_decimals", "lone_surrogate", "repeated_keys", "texts_of", "wrong_forms"]

DAY = r"(?!0000)\d{4}-\d\d-\d\d"
CLOCK = r"\d\d:\d\d(:\d\d(\.\d+)?)?"
ZONE = r"([Zz]|[+-]\d\d:?\d\d)"
MIDNIGHT = r"00:00(:00(\.0+)?)?([Zz]|[+-]00:?00)?"
FORMS: dict[type[t.DataType], str] = {
    t.TimestampType: rf"^{DAY}([T ]{CLOCK}{ZONE}?)?$",
    t.TimestampNTZType: rf"^{DAY}([T ]{CLOCK})?$",
    t.DateType: rf"^{DAY}([T ]{MIDNIGHT})?$",
    t.DecimalType: r"^\s*[+-]?(\d{1,1000}(\.\d{0,1000})?|\.\d{1,1000})([Ee][+-]?0*\d{1,3})?\s*$",
}
# A backslash that is escaped itself begins nothing.
LONE_SURROGATE = (
    r"(?i)(?<!\\)(?:\\\\)*\\ud[89ab][0-9a-f]{2}(?!\\ud[c-f][0-9a-f]{2})"
    r"|(?<!\\)(?<!\\ud[89ab][0-9a-f]{2})(?:\\\\)*\\ud[c-f][0-9a-f]{2}"
)
Test = Callable[[Column, t.DataType], "Column | None"]


def texts_of(kind: t.StructType) -> t.StructType | None:
    """What of the type has a form that is looked at, as text; None where nothing has."""
    found = _texts(kind)
    return found if isinstance(found, t.StructType) else None


def has_decimals(kind: t.DataType) -> bool:
    """Whether a decimal is in a type."""
    if isinstance(kind, t.StructType):
        return any(has_decimals(each.dataType) for each in kind)
    if isinstance(kind, t.ArrayType):
        return has_decimals(kind.elementType)
    return isinstance(kind, t.DecimalType) or (isinstance(kind, t.MapType) and has_decimals(kind.valueType))


def wrong_forms(texts: Column, kind: t.StructType) -> Column | None:
    """Whether a text in the struct of :func:`texts_of` has not the form of its type; None where there is none."""

    def test(value: Column, of: t.DataType) -> Column | None:
        form = FORMS.get(type(of))
        return None if form is None else value.isNotNull() & ~value.rlike(form)

    return _any_of(texts, kind, test)


def repeated_keys(parsed: Column, kind: t.StructType) -> Column | None:
    """Whether a map has a key twice: who takes the first value and who takes the last would differ."""

    def test(value: Column, of: t.DataType) -> Column | None:
        if not isinstance(of, t.MapType):
            return None
        keys = f.map_keys(value)
        return f.size(keys) > f.size(f.array_distinct(keys))

    return _any_of(parsed, kind, test)


def lone_surrogate(body: Column) -> Column:
    """Whether the body has half of a character, which is no text: Spark makes a question mark of it."""
    return f.contains(body, f.lit(r"\u")) & body.rlike(LONE_SURROGATE)


def _texts(kind: t.DataType) -> Any:
    if type(kind) in FORMS:
        return t.StringType()
    if isinstance(kind, t.StructType):
        fields = [(each.name, _texts(each.dataType)) for each in kind]
        wanted = [t.StructField(name, inner) for name, inner in fields if inner is not None]
        return t.StructType(wanted) if wanted else None
    if isinstance(kind, t.ArrayType):
        return None if (inner := _texts(kind.elementType)) is None else t.ArrayType(inner)
    if isinstance(kind, t.MapType):
        return None if (inner := _texts(kind.valueType)) is None else t.MapType(kind.keyType, inner)
    return None


def _any_of(value: Column, kind: t.DataType, test: Test) -> Column | None:
    """Whether the test holds for the value or one inside of it; None where no type in there is asked for."""
    found = [test(value, kind)]
    if isinstance(kind, t.StructType):
        found += [_any_of(value.getField(each.name), each.dataType, test) for each in kind]
    elif isinstance(kind, t.ArrayType):
        found.append(_any_element(value, kind.elementType, test))
    elif isinstance(kind, t.MapType):
        found.append(_any_element(f.map_values(value), kind.valueType, test))
    result: Column | None = None
    for each in found:
        if each is not None:
            result = each if result is None else result | each
    return result


def _any_element(values: Column, kind: t.DataType, test: Test) -> Column | None:
    if _any_of(f.lit(None), kind, test) is None:
        return None
    return f.coalesce(f.exists(values, lambda element: _or_false(_any_of(element, kind, test))), f.lit(False))


def _or_false(found: Column | None) -> Column:
    return f.lit(False) if found is None else found
