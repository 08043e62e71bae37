"""Requests of a simulation: clients that ask, a group that replies, and to whom its replies may go.

Who replies names the request in the reply, so who gets another's reply sees it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable

from rocketbox.client import ConsumerOptions, Producer, PushConsumer
from rocketbox.client.instance import MQClientInstance
from rocketbox.errors import ReplyError, ReplyTimeoutError, RocketBoxError
from rocketbox.message import ConsumeFromWhere, Message, MessageExt
from tests.simulation.arrivals import ASKED
from tests.simulation.history import AT_ONCE, History, split

__all__ = ["Requests"]

GROUP = "repliers"


class Requests:
    """Those of all clients."""

    def __init__(self, chance: random.Random, history: History, brokers: Iterable[str]) -> None:
        self._random = chance
        self._history = history
        self._names = {ASKED, GROUP, *brokers}

    async def run(
        self, producer: Producer, stream: str, is_on: Callable[[], bool],
        pause: Callable[[float, float], Coroutine[None, None, None]],
    ) -> None:  # fmt: skip
        """Ask, and look at each reply."""
        number = 0
        while is_on():
            both = [self._ask(producer, f"{stream}-{number + more}") for more in range(2)]
            await asyncio.gather(*both)  # so that there are two which a reply may go to
            number += 2
            await pause(5.0, 30.0)
        if left := len(producer.instance.waiting_requests):
            self._history.violate(f"{left} requests of {stream} still wait")

    async def _ask(self, producer: Producer, body: str) -> None:
        began = self._history.now()
        self._history.trace(f"asks {body}")
        try:
            reply = await producer.request(Message(ASKED, body.encode()), timeout=self._random.uniform(3.0, 9.0))
            said = reply.body.decode()
        except ReplyError as error:
            said = f"{error.error_class} {error.message}"
        except RocketBoxError as error:
            said = type(error).__name__
        self._history.trace(f"{body} is told {said}")
        expected = expected_reply(body)
        was_calm = self._history.is_calm(began, self._names)
        if said in (ReplyTimeoutError.__name__, expected) or not is_reply(said):
            if was_calm and (said != expected or (is_reply(said) and self._history.now() > began + AT_ONCE)):
                self._history.violate(f"{body} was told {said} after {self._history.now() - began:.3f} s: {expected}")
        elif said != expected:
            self._history.violate(f"{body} was told {said}, which is another's reply")

    async def reply(self, instance: MQClientInstance, until: Callable[[], Coroutine[None, None, None]]) -> None:
        """A member of the group that replies, until it is to end."""
        consumer = PushConsumer(
            GROUP,
            instance=instance,
            options=ConsumerOptions(consume_from_where=ConsumeFromWhere.FIRST_OFFSET, wait_for_servers=True),
        )

        async def handle(batch: list[MessageExt]) -> None:
            for message in batch:
                body = message.body.decode()
                expected = expected_reply(body)
                self._history.trace(f"replies to {body}")
                if expected.startswith(ValueError.__name__):
                    raise ValueError(body)
                if is_reply(expected):
                    await consumer.replier.try_to_reply(message, expected.encode())

        await consumer.subscribe(ASKED, "*", handle)
        async with instance, consumer:
            await until()


def expected_reply(body: str) -> str:
    """What a request is told: its own reply, the error of its handler, or, as nobody replies, nothing."""
    _, number = split(body)
    if number % 7 == 3:
        return f"{ValueError.__name__} {body}"
    return ReplyTimeoutError.__name__ if number % 11 == 5 else f"reply to {body}"


def is_reply(said: str) -> bool:
    """Whether somebody has replied."""
    return said.startswith(("reply to ", f"{ValueError.__name__} "))
