"""Resolving the hints of one parameter."""

from __future__ import annotations

from collections.abc import Callable

from rocketbox.hints import hint_of, parameters_of


def test_a_function_may_use_a_variable_that_is_assigned_after_it() -> None:
    def handle(body: str) -> str:
        return body + suffix

    def hints(function: Callable[..., object]) -> list[object]:
        return [hint_of(function, parameter) for parameter in parameters_of(function)]

    assert hints(handle) == [str]
    suffix = "!"
    assert handle("a") == "a!"
