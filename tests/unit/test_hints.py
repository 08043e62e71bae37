"""Resolving the hints of one parameter."""

from __future__ import annotations

import functools
from collections.abc import Callable

from rocketbox.hints import hint_of, is_variadic, makes_coroutine, name_of, parameters_of, place_of, plain_function


def test_a_function_may_use_a_variable_that_is_assigned_after_it() -> None:
    def handle(body: str) -> str:
        return body + suffix

    def hints(function: Callable[..., object]) -> list[object]:
        return [hint_of(function, parameter) for parameter in parameters_of(function)]

    assert hints(handle) == [str]
    suffix = "!"
    assert handle("a") == "a!"


class Handler:
    async def __call__(self, text: str) -> None: ...

    async def method(self, text: str) -> None: ...

    @staticmethod
    def plain(text: str) -> None: ...


def traced(function: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(function)
    def inner(*args: object) -> object:
        return function(*args)

    return inner


def test_what_is_called_in_the_end_is_found_behind_objects_partials_and_decorators() -> None:
    handler = Handler()
    everything = [handler, handler.method, functools.partial(handler), traced(handler.method), traced(traced(handler))]
    assert all(makes_coroutine(each) for each in everything)
    assert not any(makes_coroutine(each) for each in (handler.plain, traced(Handler.plain), print, Handler, 7))
    assert plain_function(handler) is Handler.__call__
    assert plain_function(traced(functools.partial(handler.method))) is Handler.method
    assert [name_of(each) for each in everything[:3]] == ["Handler", "Handler.method", "Handler"]
    assert place_of(handler) == place_of(Handler.__call__)


def test_what_a_partial_has_given_is_no_parameter() -> None:
    def handle(first: str, second: int, *more: str, third: float = 0.0, **rest: str) -> None: ...

    assert [each.name for each in parameters_of(functools.partial(handle, "a", third=1.0))] == ["second"]
    assert is_variadic(handle)
    assert not is_variadic(Handler.method)
