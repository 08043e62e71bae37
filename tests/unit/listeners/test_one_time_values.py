"""Iterators are found wherever a value has them, and a look at a large value is short."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, RootModel

from rocketbox.listeners.one_time_values import where_an_iterator_lies


@dataclass
class Row:
    cells: Any


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str = "a"


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (lambda numbers: numbers, ""),
        (lambda numbers: [1, {"rows": (2, numbers)}], "1.rows.1"),
        (lambda numbers: {"row": Row([numbers])}, "row.cells.0"),
        (lambda numbers: [Open(rows=numbers)], "0.rows"),  # type: ignore[call-arg] # of the model's open fields
        (lambda numbers: RootModel[Any](numbers), "root"),
        (lambda numbers: deque([1, numbers]), "1"),
    ],
)
def test_an_iterator_is_named_by_its_place(make: Callable[[object], object], where: str) -> None:
    assert where_an_iterator_lies(make(map(str, range(2)))) == where
    assert where_an_iterator_lies(make(["0", "1"])) is None


def test_a_value_that_holds_itself_is_looked_at_once() -> None:
    value: list[object] = []
    value += [value, {"again": value}]
    assert where_an_iterator_lies(value) is None


def test_numbers_and_texts_take_no_call_each() -> None:
    """Handlers return megabytes, and the loop stands still meanwhile."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call" or event == "c_call"

    value = [{"number": number, "cells": [1, 2.0, "three", None, True, b"six"]} for number in range(1000)]
    sys.setprofile(count)
    try:
        assert where_an_iterator_lies(value) is None
    finally:
        sys.setprofile(None)
    assert calls < 20 * 2001
