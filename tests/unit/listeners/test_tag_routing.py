"""Functions of one group on one topic: each message goes to the one that takes its tag, and overlaps are refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rocketbox.client import ClientOptions, ConsumeContext, ConsumeMiddleware, ConsumeNext, MQClientInstance
from rocketbox.client.handler_threads import HandlerThreads
from rocketbox.client.middleware import wrap_handler
from rocketbox.client.outcomes import NobodyError, NotTriedError
from rocketbox.errors import BatchFailed, Reject
from rocketbox.listeners import ListenerContainer
from rocketbox.listeners.arguments import HandlerBinding
from rocketbox.listeners.binding import Beans
from rocketbox.listeners.dispatch import HandlerDispatch
from rocketbox.listeners.invalid_limit import InvalidLimit
from rocketbox.listeners.options import OptionLayer
from rocketbox.listeners.plans import ContainerPlan
from rocketbox.listeners.registrar import Candidate, ClusterSettings, plan_containers
from rocketbox.listeners.tag_routing import TagRouter
from rocketbox.message import ConsumeMode, MessageExt, SelectorType, encode_properties
from rocketbox.template import JsonMessageConverter, RocketMQTemplate
from tests.support.client.scripted_broker import ScriptedBroker
from tests.support.clocks import VirtualClock, settle

pytestmark = pytest.mark.anyio

NO_BEANS = Beans(has=lambda hint: False, provider=lambda hint: lambda: None)
Handler = Callable[..., Any]


def planned(*functions: tuple[Handler, dict[str, Any]], **options: Any) -> tuple[list[ContainerPlan], list[str]]:
    candidates = [
        Candidate(function, OptionLayer({"topic": "T", "consumer_group": "g", **options, **own}, lambda name: "here"))
        for function, own in functions
    ]
    converter = JsonMessageConverter()
    plans, wrong, _ = plan_containers(candidates, {None: ClusterSettings()}, beans=NO_BEANS, converter=converter)
    return plans, [finding.what for finding in wrong]


async def one(body: dict[str, Any]) -> None: ...


async def other(body: dict[str, Any]) -> None: ...


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ({}, {"selector_expression": "A"}, "and one takes all tags"),
        ({"selector_expression": "A || B"}, {}, "and other takes all tags"),
        ({"selector_expression": "A || *"}, {"selector_expression": "B"}, "and one takes all tags"),
        ({"selector_expression": "A || B || C"}, {"selector_expression": "C||B"}, "and both take B, C"),
        (
            {"selector_expression": "A"},
            {"selector_expression": "x > 1", "selector_type": SelectorType.SQL92},
            "and an SQL92 selector cannot be compared with another one",
        ),
    ],
)
def test_functions_that_would_get_the_same_messages_are_refused(
    first: dict[str, Any], second: dict[str, Any], why: str
) -> None:
    _, wrong = planned((one, first), (other, second))
    assert wrong == [f"group 'g' has two functions for topic 'T': one and other, {why}"]


def test_functions_of_disjoint_tags_share_a_topic() -> None:
    (plan,), wrong = planned((one, {"selector_expression": "A||B"}), (other, {"selector_expression": "C"}))
    assert wrong == []
    assert plan.topics == ("T",)


async def consumed(
    broker: ScriptedBroker,
    clock: VirtualClock,
    *functions: tuple[Handler, dict[str, Any]],
    middleware: Sequence[ConsumeMiddleware] = (),
    **options: Any,
) -> None:
    """Run a container of these functions until all that the broker holds is consumed."""
    (plan,), wrong = planned(*functions, **options)
    assert wrong == []

    def no_template(cluster: str | None) -> Callable[[], RocketMQTemplate]:
        raise AssertionError("nothing is sent on")

    client_options = ClientOptions(client_ip="10.0.0.9", api_timeout=60.0, consume_middleware=tuple(middleware))
    async with (
        MQClientInstance(broker.address, options=client_options, clock=clock, network=broker.network) as client,
        ListenerContainer(
            plan,
            instance=client,
            beans=NO_BEANS,
            converter=JsonMessageConverter(),
            template_of=no_template,
            clock=clock,
        ) as container,
    ):
        for _ in range(2000):  # threads take their own time
            await settle(20)
            state = container.consumer.state()
            if state.queues and not state.lag and not state.held:
                return
        raise AssertionError(f"not all is consumed: {state}")


def broker_with(clock: VirtualClock, *tags: str | None) -> ScriptedBroker:
    broker = ScriptedBroker(clock)
    broker.topics = {"T": 1, "%RETRY%g": 1}
    broker.committed["T", 0] = 0
    for number, tag in enumerate(tags):
        broker.store("T", b'{"number": %d}' % number, tag=tag)
    return broker


@pytest.mark.parametrize("mode", [ConsumeMode.CONCURRENTLY, ConsumeMode.ORDERLY])
async def test_each_message_goes_to_the_function_that_takes_its_tag(mode: ConsumeMode) -> None:
    seen: list[tuple[str, list[int]]] = []

    async def single(body: dict[str, int]) -> None:
        seen.append(("single", [body["number"]]))

    async def batch(bodies: list[dict[str, int]]) -> None:
        seen.append(("batch", [body["number"] for body in bodies]))

    clock = VirtualClock()
    async with broker_with(clock, "A", "B", "C", "A", "C") as broker:
        await consumed(
            broker,
            clock,
            (single, {"selector_expression": "A || B"}),
            (batch, {"selector_expression": "C", "consume_message_batch_max_size": 8}),
            consume_mode=mode,
        )
        assert sorted(number for name, numbers in seen if name == "single" for number in numbers) == [0, 1, 3]
        assert sorted(number for name, numbers in seen if name == "batch" for number in numbers) == [2, 4]
        if mode is ConsumeMode.ORDERLY:
            assert [number for _, numbers in seen for number in numbers] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("mixed", [False, True])
async def test_functions_that_block_get_their_messages_in_threads(mixed: bool) -> None:
    seen: dict[int, tuple[str, bool]] = {}

    def first(body: dict[str, int]) -> None:
        seen[body["number"]] = ("first", threading.current_thread() is threading.main_thread())

    def second(body: dict[str, int]) -> None:
        seen[body["number"]] = ("second", threading.current_thread() is threading.main_thread())

    async def third(body: dict[str, int]) -> None:
        seen[body["number"]] = ("third", threading.current_thread() is threading.main_thread())

    clock = VirtualClock()
    functions: list[tuple[Handler, dict[str, Any]]] = [
        (first, {"selector_expression": "A"}),
        (second, {"selector_expression": "B"}),
    ]
    async with broker_with(clock, "A", "B", *(["C"] if mixed else [])) as broker:
        await consumed(broker, clock, *functions, *([(third, {"selector_expression": "C"})] if mixed else []))
    expected = {0: ("first", False), 1: ("second", False)}
    assert seen == ({**expected, 2: ("third", True)} if mixed else expected)


async def test_what_stands_behind_a_rejected_message_of_an_orderly_queue_is_handled() -> None:
    seen: list[int] = []

    async def rejects(body: dict[str, int]) -> None:
        raise Reject("no seat is free")

    async def works(bodies: list[dict[str, int]]) -> None:
        seen.extend(body["number"] for body in bodies)

    clock = VirtualClock()
    async with broker_with(clock, "A", "B", "A", "B") as broker:
        await consumed(
            broker,
            clock,
            (rejects, {"selector_expression": "A"}),
            (works, {"selector_expression": "B", "consume_message_batch_max_size": 8}),
            consume_mode=ConsumeMode.ORDERLY,
        )
    assert seen == [1, 3]


async def test_a_failure_concerns_the_messages_of_its_function_alone() -> None:
    seen: list[int] = []

    async def fails(bodies: list[dict[str, int]]) -> None:
        raise ValueError("no seat is free")

    async def works(bodies: list[dict[str, int]]) -> None:
        seen.extend(body["number"] for body in bodies)

    for mode, expected in ((ConsumeMode.CONCURRENTLY, [1, 3]), (ConsumeMode.ORDERLY, [])):
        seen.clear()
        router = router_of(
            (fails, {"selector_expression": "A"}), (works, {"selector_expression": "B"}), consume_mode=mode
        )
        messages = [message(number, tag) for number, tag in enumerate("ABAB")]
        outcomes = await router.handle(messages)
        assert seen == expected
        assert outcomes is not None
        kept = [index for index, outcome in enumerate(outcomes) if outcome is None]
        assert [type(each) for each in outcomes if each] == (
            [ValueError, NotTriedError, NotTriedError, NotTriedError]
            if mode is ConsumeMode.ORDERLY
            else [ValueError, ValueError]
        )
        assert kept == expected  # what follows a failure in an orderly queue comes back with it
        unknown = await router.handle([message(9, "Z")])
        assert unknown is not None
        assert isinstance(unknown[0], NobodyError), "a tag that nobody takes any more is not lost"
        assert router.prepare([message(9, "Z")]) is None


@pytest.mark.parametrize(
    ("mode", "calls"),
    [
        (ConsumeMode.CONCURRENTLY, [("one", [0, 2, 3]), ("other", [1]), ("other", [4])]),
        (ConsumeMode.ORDERLY, [("one", [0]), ("other", [1]), ("one", [2, 3]), ("other", [4])]),
    ],
)
async def test_middleware_is_around_each_call_of_a_function(
    mode: ConsumeMode, calls: list[tuple[str, list[int]]]
) -> None:
    seen: list[tuple[str, list[int]]] = []

    async def looks(context: ConsumeContext, call_next: ConsumeNext) -> Any:
        outcomes = await call_next(context)
        seen.append((context.invocation.listener, numbers_of(context.messages)))
        return outcomes

    async def one(bodies: list[dict[str, int]]) -> None: ...

    async def other(body: dict[str, int]) -> None: ...

    clock = VirtualClock()
    async with broker_with(clock, "A", "B", "A", "A", "B") as broker:
        await consumed(
            broker,
            clock,
            (one, {"selector_expression": "A", "consume_message_batch_max_size": 8}),
            (other, {"selector_expression": "B"}),
            middleware=[looks],
            consume_mode=mode,
        )
    assert [(name.rpartition(".")[2], numbers) for name, numbers in seen] == calls


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (ValueError("it cannot be counted"), "ValueError"),
        (BatchFailed(0), "BatchFailed"),
        (SystemExit("a library has had enough"), "HandlerEndedError"),
    ],
)
@pytest.mark.parametrize("mode", [ConsumeMode.CONCURRENTLY, ConsumeMode.ORDERLY])
async def test_what_middleware_makes_of_a_call_concerns_its_messages_alone(
    mode: ConsumeMode, raised: BaseException, expected: str
) -> None:
    passed: list[list[int]] = []

    async def judges(context: ConsumeContext, call_next: ConsumeNext) -> Any:
        passed.append(numbers_of(context.messages))
        outcomes = await call_next(context)
        if context.messages[0].tag == "A":
            raise raised
        return outcomes

    async def works(bodies: list[dict[str, int]]) -> None: ...

    async def works_too(bodies: list[dict[str, int]]) -> None: ...

    router = router_of(
        (works, {"selector_expression": "A"}), (works_too, {"selector_expression": "B"}), consume_mode=mode
    )
    handle = wrap_handler("g", [judges], router.handle, router.invocation, router.divide)
    outcomes = await handle([message(number, tag) for number, tag in enumerate("BABA")])
    assert outcomes is not None
    told = ["consumed" if each is None else type(each).__name__ for each in outcomes]
    if mode is ConsumeMode.CONCURRENTLY:
        assert (told, passed) == (["consumed", expected] * 2, [[0, 2], [1, 3]])
    else:
        assert (told, passed) == (["consumed", expected, *["NotTriedError"] * 2], [[0], [1]])


async def test_messages_that_no_function_takes_any_more_pass_middleware_as_well() -> None:
    passed: list[tuple[Any, list[int]]] = []

    async def looks(context: ConsumeContext, call_next: ConsumeNext) -> Any:
        passed.append((context.invocation, numbers_of(context.messages)))
        return await call_next(context)

    for mode in ConsumeMode:
        passed.clear()
        router = router_of(
            (one, {"selector_expression": "A"}), (other, {"selector_expression": "B"}), consume_mode=mode
        )
        handle = wrap_handler("g", [looks], router.handle, router.invocation, router.divide)
        outcomes = await handle([message(number, "Z") for number in range(2)])
        assert outcomes is not None
        if mode is ConsumeMode.CONCURRENTLY:
            assert [type(each) for each in outcomes] == [NobodyError, NobodyError]
            assert passed == [(None, [0, 1])]
        else:
            assert [type(each) for each in outcomes] == [NobodyError, NotTriedError]
            assert passed == [(None, [0])]


def router_of(*functions: tuple[Handler, dict[str, Any]], consume_mode: ConsumeMode) -> TagRouter:
    """The router of a group's functions, whose batches may have eight messages."""
    (plan,), _ = planned(*functions, consume_mode=consume_mode, consume_message_batch_max_size=8)
    clock = VirtualClock()
    dispatches = [
        HandlerDispatch(
            group="g",
            binding=HandlerBinding(function.signature, NO_BEANS.provider, JsonMessageConverter()),
            limit=InvalidLimit(1, clock, lambda: None),
            consume_mode=consume_mode,
            threads=HandlerThreads(1, "g", clock),
        )
        for function in plan.functions
    ]
    return TagRouter("g", list(zip(plan.functions, dispatches, strict=True)))


def numbers_of(messages: Sequence[MessageExt]) -> list[int]:
    return [json.loads(each.body)["number"] for each in messages]


def message(number: int, tag: str) -> MessageExt:
    body = b'{"number": %d}' % number
    fields = (0, 0, 0, 0, 0, 0, 0, 0, 0, b"\x7f\0\0\1", 1, 0, b"\x7f\0\0\1", 1, 0, 0, len(body))
    return MessageExt(fields, body, "T", encode_properties({"TAGS": tag}), "broker-a")
