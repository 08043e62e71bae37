"""In a round of rebalancing each broker is asked once for the members of a group, however many topics it has."""

from __future__ import annotations

import anyio
import pytest

from rocketbox.client.members import Said
from rocketbox.errors import RequestTimeoutError

pytestmark = pytest.mark.anyio


class Brokers:
    """Answers when it is let to; counts what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.may_answer = anyio.Event()
        self.error: RequestTimeoutError | None = None

    async def ask(self, broker: str) -> list[str]:
        self.asked.append(broker)
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return [f"member at {broker}"]


async def test_who_asks_meanwhile_or_later_hears_what_the_first_one_heard() -> None:
    brokers, heard = Brokers(), list[list[str]]()
    said = Said(brokers.ask)

    async def ask(broker: str) -> None:
        heard.append(await said.by(broker))

    async with anyio.create_task_group() as tasks:
        for broker in ("a", "a", "b"):
            tasks.start_soon(ask, broker)
        await anyio.wait_all_tasks_blocked()
        assert sorted(brokers.asked) == ["a", "b"]
        brokers.may_answer.set()
    await ask("a")
    assert sorted(heard) == [["member at a"]] * 3 + [["member at b"]]
    assert sorted(brokers.asked) == ["a", "b"]
    await Said(brokers.ask).by("a")
    assert brokers.asked.count("a") == 2, "another round asks anew"


async def test_a_broker_that_does_not_answer_is_an_error_for_all_who_ask() -> None:
    brokers, errors = Brokers(), list[BaseException]()
    brokers.error = RequestTimeoutError("request 38", "a", 3.0)
    said = Said(brokers.ask)

    async def ask() -> None:
        try:
            await said.by("a")
        except RequestTimeoutError as error:
            errors.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        brokers.may_answer.set()
    assert len(errors) == 2
    assert brokers.asked == ["a"]


async def test_when_who_asks_is_cancelled_the_next_one_asks() -> None:
    brokers, heard = Brokers(), list[list[str]]()
    said = Said(brokers.ask)
    given_up = anyio.CancelScope()

    async def gives_up() -> None:
        with given_up:
            await said.by("a")

    async def ask() -> None:
        heard.append(await said.by("a"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(gives_up)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        given_up.cancel()
        await anyio.wait_all_tasks_blocked()
        brokers.may_answer.set()
    assert heard == [["member at a"]]
    assert brokers.asked == ["a", "a"]
