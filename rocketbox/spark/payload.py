"""The columns that a JSON body becomes, and what happens to a body that does not fit its schema.

A body fits when it is one JSON object whose values have the types of the schema, and which has every field that the
schema says a body must have. One that does not fit has nulls in all its columns and its text in ``_corrupt``, which is
null for all others; one that could not even be read from its message has no body, and its ``_error`` is the source's.

Source: Apache Spark 4.3.0 ``from_json`` (``JsonToStructs``, ``JacksonParser``), which by itself takes a missing field
for null, the first of several objects for the whole, and single quotes for JSON. What it makes of texts and numbers
that are no time as pydantic writes it is worse (``12:30`` is today, milliseconds are the year 58054), and of a decimal
with a comma; one with a large exponent keeps it for hours. ``payload_forms`` and ``payload_decimals`` say what it may
read.
"""

from __future__ import annotations

from typing import Any, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from rocketbox.spark.columns import ERROR
from rocketbox.spark.payload_decimals import may_take_hours
from rocketbox.spark.payload_forms import has_decimals, lone_surrogate, repeated_keys, texts_of, wrong_forms
from rocketbox.spark.schema import BodySchema, body_schema

__all__ = ["CORRUPT", "MESSAGE", "invalid_rows", "payload_columns", "reason_of"]

CORRUPT, MESSAGE = "_corrupt", "message"
"""With the source's error: the columns beside those of a body, whose names a schema may not have."""
STRICT = {"mode": "PERMISSIVE", "allowSingleQuotes": "false"}
BODY, PARSED, TEXTS = "_body", "_parsed", "_texts"
AN_OBJECT = r"^\s*\{"


def payload_columns(rows: DataFrame, schema: Any, mode: Literal["PERMISSIVE", "FAILFAST"] = "PERMISSIVE") -> DataFrame:
    """The columns of the bodies, then ``_corrupt``, ``_error``, and the whole message as the struct ``message``.

    ``rows`` are those of the data source ``rocketmq``; ``schema`` is what :func:`~rocketbox.spark.schema.body_schema`
    takes. PERMISSIVE keeps bodies that do not fit as rows with ``_corrupt``; FAILFAST fails the job that meets one,
    or a message that could not be read, with the place of the message. Raises SchemaError.
    """
    shape = schema if isinstance(schema, BodySchema) else body_schema(schema)
    text = f.col("body").cast("string")
    own = _with_corrupt(_all_nullable(shape.json))
    texts = [] if (kind := texts_of(shape.json)) is None else [_read(text, _with_corrupt(kind)).alias(TEXTS)]
    error = [f.col(ERROR)] if ERROR in rows.columns else []
    whole = rows.select(text.alias(BODY), *texts, *error, f.struct("*").alias(MESSAGE))
    parsed = _read(f.col(BODY), own)
    if texts:
        parsed = f.when(~f.coalesce(_must_not_be_read(shape.json), f.lit(False)), parsed)
    whole = whole.withColumn(PARSED, parsed)
    fits = _fits(shape.json)
    kind = _all_nullable(shape.columns)
    columns = f.struct(*(f.col(PARSED).getField(name).alias(name) for name in shape.json.names)).cast(kind)
    body = f.when(fits, columns)
    if mode == "FAILFAST":
        why = f.when(f.col(BODY).isNull(), _unread(bool(error))).otherwise(_misfit())
        body = f.when(fits & f.col(BODY).isNotNull(), columns).otherwise(f.raise_error(why).cast(kind))
    corrupt = f.when(~fits, f.make_valid_utf8(f.col(BODY)))
    found = whole.select(body.alias(PARSED), corrupt.alias(CORRUPT), *error, MESSAGE)
    return found.select(
        *(f.col(PARSED).getField(name).alias(name) for name in shape.columns.names), CORRUPT, *error, MESSAGE
    )  # fmt: skip


def invalid_rows(columns: list[str]) -> Column | None:
    """Which rows of a frame do not hold what their sender meant; None where the frame does not tell."""
    marks = [f.col(name).isNotNull() for name in (CORRUPT, ERROR) if name in columns]
    if not marks:
        return None
    return marks[0] if len(marks) == 1 else marks[0] | marks[1]


def reason_of(columns: list[str]) -> Column:
    """Why an invalid row is one, in words."""
    misfit = f.lit("its body does not fit the schema of the listener")
    return f.coalesce(f.col(ERROR), misfit) if ERROR in columns else misfit


def _misfit() -> Column:
    return f.concat(
        f.lit("the body of the message at "), _place(), f.lit(" does not fit the schema: "),
        f.substring(f.make_valid_utf8(f.col(BODY)), 1, 200),
    )  # fmt: skip


def _unread(has_error: bool) -> Column:
    """Why a message has no body: there is none that was sent without."""
    none = f.lit("it has no body, and the column _error, which says why, was left out")
    why = f.coalesce(f.col(ERROR), none) if has_error else none
    return f.concat(f.lit("the message at "), _place(), f.lit(" could not be read: "), why)


def _place() -> Column:
    message = f.col(MESSAGE)
    parts = [message.getField(name).cast("string") for name in ("topic", "broker_name", "queue_id", "queue_offset")]
    return f.concat_ws("/", *parts)


def _fits(shape: t.StructType) -> Column:
    """Whether a body that is there is one JSON object with all that it must have."""
    body, parsed = f.col(BODY), f.col(PARSED)
    right = parsed.isNotNull() & parsed.getField(CORRUPT).isNull()
    fits = f.is_valid_utf8(body) & body.rlike(AN_OBJECT) & right & _is_alone(body) & ~lone_surrogate(body)
    wrong = [_missing(parsed, shape), repeated_keys(parsed, shape)]
    for each in wrong:
        if each is not None:
            fits = fits & ~f.coalesce(each, f.lit(False))
    return body.isNull() | fits  # where there is none, _error says why


def _must_not_be_read(shape: t.StructType) -> Column:
    """Whether Spark would find something else in a body than is there, or be at it for hours."""
    body, texts = f.col(BODY), f.col(TEXTS)
    # Of what is no object, or no JSON, the texts that were read are not all that are there.
    must_not = ~body.rlike(AN_OBJECT) | texts.getField(CORRUPT).isNotNull()
    if (wrong := wrong_forms(texts, shape)) is not None:
        must_not = must_not | f.coalesce(wrong, f.lit(False))
    return must_not | may_take_hours(body) if has_decimals(shape) else must_not


def _read(text: Column, kind: t.StructType) -> Column:
    return f.from_json(text, kind, {**STRICT, "columnNameOfCorruptRecord": CORRUPT})


def _with_corrupt(kind: t.StructType) -> t.StructType:
    return t.StructType([*kind.fields, t.StructField(CORRUPT, t.StringType())])


def _is_alone(body: Column) -> Column:
    """Whether nothing stands behind the object: within brackets it is JSON then.

    A bracket of the body's own could close them. Then it also does where one more number stands before ours.
    """

    def elements(end: str) -> Column:
        return f.coalesce(f.json_array_length(f.concat(f.lit("["), body, f.lit(end))), f.lit(0))

    return (elements("]") == 1) & (~f.contains(body, f.lit("]")) | (elements(",0]") == 2))


def _missing(value: Column, kind: t.DataType) -> Column | None:
    """Whether something is null in a value that must not be; None where all may be."""
    if isinstance(kind, t.StructType):
        found = [_null_or_missing(value.getField(each.name), each.dataType, each.nullable) for each in kind]
        wanted = [each for each in found if each is not None]
        if not wanted:
            return None
        result = wanted[0]
        for each in wanted[1:]:
            result = result | each
        return result
    if isinstance(kind, t.ArrayType):
        return _any(value, kind.elementType, kind.containsNull)
    if isinstance(kind, t.MapType):
        return _any(f.map_values(value), kind.valueType, kind.valueContainsNull)
    return None


def _null_or_missing(value: Column, kind: t.DataType, nullable: bool) -> Column | None:
    inner = _missing(value, kind)
    if inner is not None:
        inner = value.isNotNull() & inner
    if nullable:
        return inner
    return value.isNull() if inner is None else value.isNull() | inner


def _any(values: Column, kind: t.DataType, nullable: bool) -> Column | None:
    """Whether an element of an array lacks something."""
    if nullable and not _asks(kind):
        return None

    def holds(element: Column) -> Column:
        found = _null_or_missing(element, kind, nullable)
        return f.lit(False) if found is None else found

    return f.coalesce(f.exists(values, holds), f.lit(False))


def _asks(kind: t.DataType) -> bool:
    """Whether something in a value may not be null."""
    if isinstance(kind, t.StructType):
        return any(not each.nullable or _asks(each.dataType) for each in kind)
    if isinstance(kind, t.ArrayType):
        return not kind.containsNull or _asks(kind.elementType)
    return isinstance(kind, t.MapType) and (not kind.valueContainsNull or _asks(kind.valueType))


def _all_nullable(kind: Any) -> Any:
    """The same type with nulls allowed everywhere: what Spark reads a body as, before it is looked at."""
    if isinstance(kind, t.StructType):
        return t.StructType([t.StructField(each.name, _all_nullable(each.dataType)) for each in kind])
    if isinstance(kind, t.ArrayType):
        return t.ArrayType(_all_nullable(kind.elementType))
    if isinstance(kind, t.MapType):
        return t.MapType(kind.keyType, _all_nullable(kind.valueType))
    return kind
