"""Broken builds of what stands between a message and its handler, each noticed by a test in the harness.

They show that the harness runs the production code of dispatch, middleware, retries, order and dead-lettering: what is
broken here is broken there, in the client as well as in the broker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rocketbox.broker.delay import DelayedDelivery
from rocketbox.broker.handlers.send_back import SendBackHandler
from rocketbox.client import push_consumer
from rocketbox.client.consume import OrderlyConsumer
from rocketbox.client.outcomes import DEAD_LETTER
from rocketbox.client.send_back import SendBack
from rocketbox.listeners.arguments import HandlerBinding
from rocketbox.listeners.dispatch import Invocation
from rocketbox.message import MessageExt
from tests.mutants.table import mutant, replace

HARNESS = "tests/unit/testing/test_harness.py"


@mutant(
    "dispatch sends nothing on",
    "what a handler with send_to returns is dropped",
    f"{HARNESS}::test_a_message_is_handled_and_what_it_returns_is_sent_on",
)
def nothing_sent_on() -> None:
    async def outcome(self: Any, result: Any) -> Any:
        self._dispatch.reply = None
        return await before(self, result)

    before = replace(Invocation, "_outcome", outcome)


@mutant(
    "dispatch forgets its settings",
    "a handler is given a model of settings with its defaults",
    f"{HARNESS}::test_a_rejected_message_is_a_dead_letter_that_says_why",
)
def default_settings() -> None:
    def arguments(self: Any, message: MessageExt) -> Any:
        return [type(each)() if type(each).__name__ == "PaymentProperties" else each for each in before(self, message)]

    before = replace(HandlerBinding, "arguments", arguments)


@mutant(
    "middleware is left out",
    "the service's own middleware is not around its handlers",
    f"{HARNESS}::test_middleware_of_the_service_is_around_its_handlers_and_sends",
)
def middleware_left_out() -> None:
    def wrap(group: str, middlewares: Sequence[Any], *others: Any) -> Any:
        ours = [each for each in middlewares if str(getattr(each, "__module__", "")).startswith("rocketbox.")]
        return before(group, ours, *others)

    before = replace(push_consumer, "wrap_handler", wrap)


@mutant(
    "retries are not sent back",
    "a message that has failed is taken for consumed",
    f"{HARNESS}::test_a_failed_message_comes_back_after_its_delay",
)
def not_sent_back() -> None:
    async def send_back(self: Any, message: Any, delay_level: int, max_reconsume_times: int, delay: Any = None) -> bool:
        return True

    replace(SendBack, "send_back", send_back)


@mutant(
    "retries come too early",
    "the broker delivers delayed messages after half of their delay",
    f"{HARNESS}::test_a_failed_message_comes_back_after_its_delay",
)
def half_a_delay() -> None:
    def delay_ms(self: Any, level: int) -> int:
        return int(before(self, level)) // 2

    before = replace(DelayedDelivery, "_delay_ms", delay_ms)


@mutant(
    "order is not kept",
    "what has failed goes behind the others of its queue",
    f"{HARNESS}::test_an_orderly_queue_waits_for_what_failed",
)
def behind_the_others() -> None:
    async def settle(self: Any, queue: Any, batch: Any, failures: Any) -> Any:
        others = list(queue.waiting)
        pause = await before(self, queue, batch, failures)
        failed = [message for message in queue.waiting if message not in others]
        queue.waiting.clear()
        queue.waiting.extend([*others, *failed])
        return pause

    before = replace(OrderlyConsumer, "_settle", settle)


@mutant(
    "dead letters come back",
    "a rejected message is sent back as one that has failed",
    f"{HARNESS}::test_a_rejected_message_is_a_dead_letter_that_says_why",
)
def rejected_come_back() -> None:
    async def send_back(self: Any, message: Any, delay_level: int, max_reconsume_times: int, delay: Any = None) -> bool:
        level = 0 if delay_level == DEAD_LETTER else delay_level
        return bool(await before(self, message, level, max_reconsume_times))

    before = replace(SendBack, "send_back", send_back)


@mutant(
    "retries never end",
    "the broker takes a message back however often it has failed",
    f"{HARNESS}::test_used_up_retries_end_in_a_dead_letter",
)
def endless_retries() -> None:
    def send_back(self: Any, connection: Any, request: Any, record: Any) -> Any:
        request.ext_fields["maxReconsumeTimes"] = "1000"
        return before(self, connection, request, record)

    before = replace(SendBackHandler, "_send_back", send_back)
