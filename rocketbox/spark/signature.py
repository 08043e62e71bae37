"""What a Spark listener's function takes: its DataFrame first, and behind it what is bound by type."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from rocketbox.errors import ConfigurationError, Finding
from rocketbox.hints import (
    UnresolvedHintError,
    hint_of,
    hint_of_method,
    name_of,
    parameters_of,
    place_of,
    plain_function,
)
from rocketbox.spark.batch import SparkBatch
from rocketbox.spark.deliveries import FORMS, form_of
from rocketbox.spark.query_options import RowForm

__all__ = ["SparkSignature", "read_spark_signature"]


@dataclass(frozen=True)
class SparkSignature:
    """What the function takes after its DataFrame: for each parameter, SparkBatch, SparkSession, or a bean's type.

    ``owner`` is the hint of the bean that a method is called on; None for a function.
    """

    function: Callable[..., Any]
    where: str
    is_async: bool
    parameters: tuple[tuple[str, Any], ...]
    owner: Any = None

    @property
    def beans(self) -> tuple[Any, ...]:
        return tuple(hint for _, hint in self.parameters if hint not in (SparkBatch, SparkSession))


def read_spark_signature(
    function: Callable[..., Any], as_: RowForm = RowForm.SPARK, *, owner: Any = None
) -> SparkSignature:
    """Look at the function's parameters. Raises ConfigurationError when they cannot be bound, or not to ``as_``.

    A function of ``owner`` is a method of its bean.
    """
    where = place_of(function)
    name = name_of(function)
    before = "" if owner is None else "self, "

    def refuse(what: str) -> ConfigurationError:
        return ConfigurationError(
            Finding(
                f"Spark listener {name}: {what}",
                where,
                f"write it as def name({before}rows: DataFrame, batch: SparkBatch, ...beans by their type)",
            )
        )

    plain = plain_function(function)
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        raise refuse("it is a generator, whose call runs nothing; leave the yield out")
    parameters = parameters_of(function)[0 if owner is None else 1 :]
    if not parameters:
        raise refuse("it takes no parameters, and the first one gets the DataFrame")
    hints = []
    for parameter in parameters:
        try:
            hints.append(hint_of_method(hint_of(function, parameter), function, owner))
        except UnresolvedHintError as error:
            raise refuse(str(error)) from None
    if hints[0] is not inspect.Parameter.empty and (asked := form_of(hints[0])) != as_:
        first = parameters[0].name
        if asked is None:
            raise refuse(f"its first parameter {first!r} is not a DataFrame but {hints[0]!r}")
        is_one = f"its first parameter {first!r} is one of {FORMS[asked][0]}"
        raise refuse(f"{is_one}, and as_ is {as_.value!r}; say as_={asked.value!r}")
    rest = []
    for parameter, hint in zip(parameters[1:], hints[1:], strict=True):
        if hint is inspect.Parameter.empty:
            if parameter.default is inspect.Parameter.empty:
                raise refuse(f"parameter {parameter.name!r} has no type")
            continue
        rest.append((parameter.name, hint))
    return SparkSignature(function, where, inspect.iscoroutinefunction(function), tuple(rest), owner)
