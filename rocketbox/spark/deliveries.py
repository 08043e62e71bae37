"""What a listener's function gets of a micro-batch: its rows in the form that it asks for, and what of invalid ones.

A row is invalid whose message could not be read (``_error``) or whose body does not fit the schema (``_corrupt``).
``on_invalid`` says what becomes of it: ``column`` leaves it to the function, ``fail`` refuses the batch before the
function is called, ``skip`` leaves it out, ``dead-letter`` sends it to the group's dead-letter topic once the function
is done. Those that the function has are counted by what its own first action sees, so that nothing is read twice for
it; those that it does not have, in rows that are kept meanwhile.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyarrow import ArrowInvalid
from pyspark.errors import ParseException
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as f
from pyspark.sql.types import LongType, TimestampNTZType, TimestampType

from rocketbox.clock import Clock
from rocketbox.errors import ConfigurationError, Finding, RocketBoxError
from rocketbox.rare_log import RareLog
from rocketbox.spark.columns import ERROR
from rocketbox.spark.payload import CORRUPT, MESSAGE, invalid_rows, payload_columns, reason_of
from rocketbox.spark.query_options import OnInvalidBody, RowForm
from rocketbox.spark.schema import BodySchema, SchemaError, body_schema
from rocketbox.spark.servers import Servers
from rocketbox.spark.session import make_active

__all__ = ["FORMS", "Delivery", "InvalidRowError", "form_of", "missing_library"]

_log = logging.getLogger(__name__)

FORMS = {
    RowForm.SPARK: ("pyspark", "DataFrame"),
    RowForm.ARROW: ("pyarrow", "Table"),
    RowForm.PANDAS: ("pandas", "DataFrame"),
    RowForm.POLARS: ("polars", "DataFrame"),
}
"""Whose type each form is, and its name."""
PERIOD = 60.0  # seconds between two lines about invalid rows
MOST_WAITING = 100  # batches whose count has not been told yet: a function may never look at its rows


class InvalidRowError(RocketBoxError):
    """A batch has a row that ``on_invalid: fail`` does not let pass."""


def missing_library(form: RowForm) -> str | None:
    """The library that a form needs and that is not installed."""
    library, _ = FORMS[form]
    return None if importlib.util.find_spec(library) is not None else library


def form_of(hint: Any) -> RowForm | None:
    """The form whose type a parameter's hint is; told by names, so that nothing is loaded for it."""
    library, _, _ = str(getattr(hint, "__module__", "")).partition(".")
    name = getattr(hint, "__qualname__", "")
    return next((form for form, of in FORMS.items() if of == (library, name)), None)


class Delivery:
    """How one listener's function gets its batches. Raises ConfigurationError for a schema that cannot be columns."""

    def __init__(
        self,
        *,
        label: str,
        where: str,
        group: str,
        schema: Any,
        as_: RowForm,
        on_invalid: OnInvalidBody,
        clock: Clock,
        send_letters: Callable[[DataFrame, str, Servers], object] | None = None,
        has_own_bodies: bool = False,
    ) -> None:
        """``send_letters(letters, group, servers)`` sends dead letters (None: Spark's processes do).

        ``has_own_bodies``: those of the rows are not what was sent, which is fetched once more for dead letters.
        """
        self._label = label
        self._where = where
        self._group = group
        self._schema = schema
        self._as = as_
        self._on_invalid = on_invalid
        self._clock = clock
        self._send_letters = send_letters or write_letters
        self._has_own_bodies = has_own_bodies
        self._log = RareLog(_log, PERIOD)
        self._waiting: list[tuple[int, Observation]] = []
        self._of_batches: dict[int, int] = {}  # invalid rows of the last ones
        self.invalid = 0
        """How many invalid rows it has seen; those of a batch that comes again are counted once."""
        self._shape: BodySchema | None = None
        if schema is not None and not isinstance(schema, str):
            self._shape = self._read_schema()

    def begin(self) -> None:
        """A query starts, in a session, which alone reads DDL. Raises ConfigurationError.

        What a query before it has counted and not told yet is forgotten: its session may be dead, and nobody answers.
        """
        self._waiting = []
        if self._shape is None and self._schema is not None:
            self._shape = self._read_schema()

    def _read_schema(self) -> BodySchema:
        try:
            shape = body_schema(self._schema)
        except SchemaError as error:
            raise ConfigurationError(Finding(f"{self._label}: {error}", self._where)) from None
        except ParseException as error:
            said = str(error).strip().partition("\n")[0]  # below it Spark shows the text once more
            raise ConfigurationError(
                Finding(
                    f"{self._label}: schema {self._schema!r} is no DDL of Spark: {said}",
                    self._where,
                    "write it as 'id bigint, item string'",
                )
            ) from None
        taken = {CORRUPT: "a body that does not fit", ERROR: "a message's error", MESSAGE: "the whole message"}
        for name in shape.columns.names:
            if (what := taken.get(name.lower())) is not None:
                raise ConfigurationError(
                    Finding(
                        f"{self._label}: its schema has a field {name!r}, and that is the column of {what}",
                        self._where,
                        "give the field another name in the model, with the old one as alias; or leave schema= out and "
                        "use from_json",
                    )
                )
        return shape

    @contextmanager
    def of(self, rows: DataFrame, batch: int, servers: Servers) -> Iterator[Any]:
        """What the function gets of a batch's rows; what has to come after the function comes at the end.

        Raises InvalidRowError where ``on_invalid`` is ``fail``.
        """
        frame = rows if self._shape is None else payload_columns(rows, self._shape)
        invalid = invalid_rows(frame.columns)
        if invalid is None:
            yield self._form(frame)
        elif self._is_told_by_its_first_action:
            counted = Observation()
            frame = frame.observe(counted, f.count_if(invalid).alias("invalid"))
            self._waiting = [*self._waiting[1 - MOST_WAITING :], (batch, counted)]
            try:
                yield self._form(frame if self._on_invalid is OnInvalidBody.COLUMN else frame.where(~invalid))
            finally:
                self.count()
        else:
            frame.persist()  # it is looked at twice
            try:
                yield from self._looked_at(frame, invalid, batch, servers)
            finally:
                frame.unpersist()

    @property
    def _is_told_by_its_first_action(self) -> bool:
        """Whether Spark may count invalid rows beside the function's first action.

        That may be ``isEmpty()``, which looks at one row, and Spark tells of none behind it, and of none that goes by
        ``rdd`` or ``foreachPartition``. Of rows that the function has all the same it does not matter; those that it
        does not get are counted for certain. A form that holds all rows is made by one action.
        """
        if self._on_invalid is OnInvalidBody.SKIP:
            return self._as is not RowForm.SPARK
        return self._on_invalid is OnInvalidBody.COLUMN

    def _looked_at(self, frame: DataFrame, invalid: Column, batch: int, servers: Servers) -> Iterator[Any]:
        found = frame.where(invalid)
        if self._on_invalid is OnInvalidBody.FAIL:
            if first := found.head():
                raise self._refusal(first, frame.columns)
            yield self._form(frame)
            return
        yield self._form(frame.where(~invalid))
        if number := found.count():
            if self._on_invalid is OnInvalidBody.DEAD_LETTER:
                reason = reason_of(found.columns).alias("reason")
                whole = found.select(f"{MESSAGE}.*", reason) if MESSAGE in found.columns else found.select("*", reason)
                self._send_letters(self._as_sent(whole), self._group, servers)
            self._saw(number, batch)

    def dead_letter(self, messages: DataFrame, reason: str, servers: Servers) -> int:
        """Send messages, with the columns of a read, to the group's dead-letter topic; how many they were."""
        counted = Observation()
        letters = (
            self._as_sent(messages)
            .withColumn("reason", f.lit(reason))
            .observe(counted, f.count(f.lit(1)).alias("letters"))
        )
        self._send_letters(letters, self._group, servers)
        return int(counted.get["letters"])

    def _as_sent(self, messages: DataFrame) -> DataFrame:
        """Without the bodies that nobody has sent."""
        return messages.withColumn("body", f.lit(None).cast("binary")) if self._has_own_bodies else messages

    def _refusal(self, row: Any, columns: list[str]) -> InvalidRowError:
        message = row[MESSAGE] if MESSAGE in columns else row
        place = f"{message['topic']}/{message['broker_name']}/{message['queue_id']}/{message['queue_offset']}"
        error = row[ERROR] if ERROR in columns else None
        told = error or f"its body does not fit the schema: {row[CORRUPT][:200]}"
        return InvalidRowError(
            f"the message at {place} is invalid: {told} (on_invalid column, skip and dead-letter go on with the rest)"
        )

    def _form(self, frame: DataFrame) -> Any:
        forms: dict[RowForm, Callable[[], Any]] = {
            RowForm.SPARK: lambda: frame,
            RowForm.ARROW: frame.toArrow,
            RowForm.PANDAS: lambda: _pandas(frame),
            RowForm.POLARS: lambda: _polars(frame),
        }
        return forms[self._as]()

    def count(self) -> int:
        """The invalid rows of all that Spark has counted by now; it tells a moment after the action that counts."""
        waiting = []
        for batch, counted in self._waiting:
            told = counted._jo is not None and counted._jo.future().isCompleted()
            if not told:
                waiting.append((batch, counted))
            elif number := counted.get.get("invalid"):
                self._saw(number, batch)
        self._waiting = waiting
        return self.invalid

    def _saw(self, number: int, batch: int) -> None:
        more = number - self._of_batches.get(batch, 0)  # one that comes again may be looked at further than before
        if more <= 0:
            return
        self._of_batches[batch] = number
        if len(self._of_batches) > MOST_WAITING:
            del self._of_batches[min(self._of_batches)]
        self.invalid += more
        now = self._clock.monotonic()
        done = {
            OnInvalidBody.COLUMN: "they have their text in _corrupt, or _error",
            OnInvalidBody.SKIP: "they are left out",
        }.get(self._on_invalid, f"they are in %DLQ%{self._group}")
        self._log.tell(
            logging.WARNING, now, "invalid", "%s: batch %d had %d messages that could not be read, or do not fit the "
            "schema; %s (%d since the start)", self._label, batch, number, done, self.invalid,
        )  # fmt: skip


def write_letters(letters: DataFrame, group: str, servers: Servers) -> None:
    """Send dead letters by the processes of Spark."""
    options = {**servers.told(), "deadLettersOf": group, "writeId": "dead-letters"}
    make_active(letters.sparkSession)
    letters.write.format("rocketmq").mode("append").options(**options).save()


def _pandas(frame: DataFrame) -> Any:
    """The frame of pandas that Spark makes, but whole numbers stay as they are, and so do times.

    Spark makes floats of a column of whole numbers that has a null, which an optional field or one invalid row brings:
    a number of more than 53 bits would become another one. A column of ``bigint`` with nulls is ``Int64`` here instead.
    """
    wholes = [each.name for each in frame.schema if each.nullable and isinstance(each.dataType, LongType)]
    missing = {name: f"{name} is null" for name in wholes}
    flags = {flag: _named(name).isNull() for name, flag in missing.items()}
    filled = {name: f.coalesce(_named(name), f.lit(0)) for name in wholes}
    found = _pandas_of_any_time(frame.withColumns(flags | filled))
    for name, flag in missing.items():
        nulls = found.pop(flag)
        if nulls.any():
            found[name] = found[name].astype("Int64").mask(nulls)
    return found


def _pandas_of_any_time(frame: DataFrame) -> Any:
    """What Spark makes; with a time that has no nanoseconds there, its times in microseconds.

    A sender may write any time, and the end of the calendar is written often: it must not be the end of the topic.
    """
    try:
        return frame.toPandas()
    except ArrowInvalid:  # Spark has warned of it
        times = [each.name for each in frame.schema if isinstance(each.dataType, TimestampType | TimestampNTZType)]
        if not times:
            raise
    # Within an array Spark leaves each time as exact as it is.
    found: Any = frame.withColumns({name: f.array(_named(name)) for name in times}).toPandas()
    for name in times:
        found[name] = found[name].str[0].astype("datetime64[us]")
    return found


def _named(name: str) -> Column:
    """The column of exactly this name, whatever is in it."""
    return f.col(f"`{name.replace('`', '``')}`")


def _polars(frame: DataFrame) -> Any:
    import polars

    return polars.from_arrow(frame.toArrow())
