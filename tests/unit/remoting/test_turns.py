"""Large requests in turns: small ones at once, large ones one at a time with others in between, and not too many."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from typing import Any

import anyio
import pytest

from rocketbox.broker.limits import LimitError, too_many_large_requests
from rocketbox.protocol.codes import ResponseCode
from rocketbox.protocol.loose_json import Steps
from rocketbox.remoting.turns import Turns
from tests.support.clocks import settle

pytestmark = pytest.mark.anyio


def work(name: str, steps: int, log: list[str]) -> Steps[str]:
    for number in range(steps - 1):
        log.append(f"{name}{number}")
        yield
    return name


async def done(result: Any) -> Any:
    return await result if isinstance(result, Awaitable) else result


async def test_what_takes_one_step_is_done_at_once() -> None:
    assert Turns(1, too_many_large_requests).run(work("a", 1, []), "x") == "a"


async def test_others_have_their_turn_between_the_steps() -> None:
    turns, log = Turns(5, too_many_large_requests), list[str]()

    async def other() -> None:
        for number in range(3):
            log.append(f"other{number}")
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(other)
        assert await done(turns.run(work("a", 200, log), "x")) == "a"
    assert log.index("other2") < 190


async def test_large_requests_go_one_at_a_time_each_to_its_end() -> None:
    turns, log = Turns(5, too_many_large_requests), list[str]()
    async with anyio.create_task_group() as group:
        for name in "abc":
            group.start_soon(done, turns.run(work(name, 4, log), name))
    assert log[:3] == ["a0", "b0", "c0"]
    assert sorted(log[3::2]) == ["a1", "b1", "c1"]
    assert all(second == f"{first[0]}2" for first, second in zip(log[3::2], log[4::2], strict=True))
    assert turns.waiting == 0


async def test_too_many_large_requests_are_refused() -> None:
    turns, log = Turns(2, too_many_large_requests), list[str]()
    async with anyio.create_task_group() as group:
        for name in "ab":
            group.start_soon(done, turns.run(work(name, 4, log), name))
        with pytest.raises(LimitError, match=r"2 large requests wait; 2 is the most \(max-large-requests\)") as refused:
            turns.run(work("c", 4, log), "c")
        assert refused.value.code == ResponseCode.SYSTEM_BUSY
    assert turns.run(work("d", 1, log), "c") == "d"
    assert turns.refused == 1


async def test_one_that_fails_or_is_given_up_leaves_its_place() -> None:
    turns = Turns(1, too_many_large_requests)

    def failing() -> Iterator[None]:
        yield
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await done(turns.run(failing(), "x"))  # type: ignore[arg-type]
    with anyio.CancelScope() as scope:
        scope.cancel()
        await done(turns.run(work("a", 5, []), "x"))
    await settle()
    assert turns.waiting == 0
    assert await done(turns.run(work("b", 5, []), "x")) == "b"


async def test_one_owner_has_an_eighth_of_the_room_and_others_go_between_its_requests() -> None:
    turns, log = Turns(32, too_many_large_requests), list[str]()

    async def finish(name: str, answer: Any) -> None:
        log.append(await done(answer))

    async with anyio.create_task_group() as group:
        for name in ("greedy1", "greedy2", "greedy3", "greedy4"):
            group.start_soon(finish, name, turns.run(work(name, 40, []), "greedy"))
            await settle(1)
        with pytest.raises(LimitError, match="4 large requests of this connection wait; 4 is the most"):
            turns.run(work("greedy5", 4, []), "greedy")
        group.start_soon(finish, "other", turns.run(work("other", 4, []), "other"))
    assert log == ["greedy1", "greedy2", "other", "greedy3", "greedy4"]
    assert (turns.waiting, turns.refused) == (0, 1)


async def test_one_that_is_given_up_while_it_waits_holds_nobody_up() -> None:
    turns, ended = Turns(32, too_many_large_requests), list[str]()

    async def finish(name: str, scope: anyio.CancelScope) -> None:
        with scope:
            ended.append(await done(turns.run(work(name, 40, []), name)))

    scopes = {name: anyio.CancelScope() for name in "abc"}
    async with anyio.create_task_group() as group:
        for name, scope in scopes.items():
            group.start_soon(finish, name, scope)
        await settle(1)
        scopes["b"].cancel()
    assert sorted(ended) == ["a", "c"]
    assert turns.waiting == 0
