"""Functions of one group on one topic: each message goes to the one that takes its tag, and overlaps are refused."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from rocketbox.client import ClientOptions, ConsumeContext, ConsumeMiddleware, ConsumeNext, MQClientInstance
from rocketbox.errors import BatchFailed, Reject
from rocketbox.listeners import ListenerContainer
from rocketbox.listeners.binding import Beans
from rocketbox.listeners.options import OptionLayer
from rocketbox.listeners.plans import ContainerPlan
from rocketbox.listeners.registrar import Candidate, ClusterSettings, plan_containers
from rocketbox.message import ConsumeMode, MessageExt, SelectorType
from rocketbox.protocol.codes import RequestCode
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


@asynccontextmanager
async def running(
    broker: ScriptedBroker,
    clock: VirtualClock,
    *functions: tuple[Handler, dict[str, Any]],
    middleware: Sequence[ConsumeMiddleware] = (),
    **options: Any,
) -> AsyncIterator[ListenerContainer]:
    """A container of these functions, which is started."""
    (plan,), wrong = planned(*functions, **options)
    assert wrong == []

    def no_template(cluster: str | None) -> Callable[[], RocketMQTemplate]:
        raise AssertionError("nothing is sent on")

    client_options = ClientOptions(client_ip="10.0.0.9", api_timeout=60.0, consume_middleware=tuple(middleware))
    async with (
        broker,
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
        yield container


async def consumed(
    broker: ScriptedBroker, clock: VirtualClock, *functions: tuple[Handler, dict[str, Any]], **options: Any
) -> None:
    """Run a container of these functions until all that the broker holds is consumed."""
    async with running(broker, clock, *functions, **options) as container:
        for _ in range(2000):  # threads take their own time
            await settle(20)
            state = container.consumer.state()
            if state.queues and not state.lag and not state.held:
                return
        raise AssertionError(f"not all is consumed: {state}")


def sent_back(broker: ScriptedBroker) -> list[int]:
    """The numbers of the messages that were sent back, or given to the dead-letter queue."""
    return [int(offset) - 1000 for (offset,) in broker.fields(RequestCode.CONSUMER_SEND_MSG_BACK, "offset")]


async def test_middleware_may_drop_what_comes_back_to_nobody() -> None:
    clock = VirtualClock()
    broker = broker_with(clock)
    broker.committed["%RETRY%g", 0] = 0
    broker.store("%RETRY%g", b"{}", tag="Z", retry_topic="T", reconsume_times=1)

    async def drop(context: ConsumeContext, call_next: ConsumeNext) -> list[None]:
        context.messages = []
        await call_next(context)
        return [None]

    async with running(
        broker, clock, (one, {"selector_expression": "A"}), (other, {"selector_expression": "B"}), middleware=[drop]
    ):
        await clock.advance(10)
    assert sent_back(broker) == []
    assert broker.committed["%RETRY%g", 0] == 1


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
    broker = broker_with(clock, "A", "B", "C", "A", "C")
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
    broker = broker_with(clock, "A", "B", *(["C"] if mixed else []))
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
    broker = broker_with(clock, "A", "B", "A", "B")
    await consumed(
        broker,
        clock,
        (rejects, {"selector_expression": "A"}),
        (works, {"selector_expression": "B", "consume_message_batch_max_size": 8}),
        consume_mode=ConsumeMode.ORDERLY,
    )
    assert seen == [1, 3]


async def test_a_failure_concerns_the_messages_of_its_function_alone() -> None:
    seen: list[list[int]] = []

    async def fails(bodies: list[dict[str, int]]) -> None:
        raise ValueError("no seat is free")

    async def works(bodies: list[dict[str, int]]) -> None:
        seen.append([body["number"] for body in bodies])

    clock = VirtualClock()
    broker = broker_with(clock, *"ABAB")
    await consumed(broker, clock, (fails, batches_of("A")), (works, batches_of("B")))
    assert (seen, sorted(sent_back(broker))) == ([[1, 3]], [0, 2])


async def test_what_stands_behind_a_failed_message_of_an_orderly_queue_waits_for_it() -> None:
    seen: list[tuple[str, list[int], int]] = []

    async def fails_once(bodies: list[dict[str, int]], message: list[MessageExt]) -> None:
        seen.append(("fails once", [body["number"] for body in bodies], message[0].reconsume_times))
        if not message[0].reconsume_times:
            raise ValueError("no seat is free")

    async def works(bodies: list[dict[str, int]], message: list[MessageExt]) -> None:
        seen.append(("works", [body["number"] for body in bodies], message[0].reconsume_times))

    clock = VirtualClock()
    broker = broker_with(clock, *"BAABBA")
    options: dict[str, Any] = {"consume_mode": ConsumeMode.ORDERLY, "suspend_current_queue_time": 1}
    async with running(broker, clock, (fails_once, batches_of("A")), (works, batches_of("B")), **options):
        await clock.advance(10)
    assert seen == [
        ("works", [0], 0),
        ("fails once", [1, 2], 0),
        ("fails once", [1, 2], 1),
        ("works", [3, 4], 0),
        ("fails once", [5], 0),
        ("fails once", [5], 1),
    ]


@pytest.mark.parametrize("mode", ConsumeMode)
async def test_messages_that_come_back_go_to_the_function_that_takes_their_tag(mode: ConsumeMode) -> None:
    seen: list[tuple[str, list[int]]] = []

    async def one(bodies: list[dict[str, int]]) -> None:
        seen.append(("one", [body["number"] for body in bodies]))

    async def other(body: dict[str, int]) -> None:
        seen.append(("other", [body["number"]]))

    clock = VirtualClock()
    broker = broker_with(clock)
    broker.committed["%RETRY%g", 0] = 0
    for number, tag in enumerate("AABAZ"):
        broker.store("%RETRY%g", b'{"number": %d}' % number, tag=tag, retry_topic="T", reconsume_times=1)
    options: dict[str, Any] = {"consume_mode": mode, "max_reconsume_times": 1, "suspend_current_queue_time": 1}
    async with running(broker, clock, (one, batches_of("A")), (other, {"selector_expression": "B"}), **options):
        await clock.advance(10)
    in_order = [("one", [0, 1]), ("other", [2]), ("one", [3])]
    beside_each_other = [("one", [0, 1, 3]), ("other", [2])]
    assert (seen if mode is ConsumeMode.ORDERLY else sorted(seen)) == (
        in_order if mode is ConsumeMode.ORDERLY else beside_each_other
    )
    assert sent_back(broker) == [4], "a tag that nobody takes any more is not lost: it is a dead letter"


async def test_a_function_that_hangs_keeps_no_other_ones_messages_back() -> None:
    seen: list[list[int]] = []
    clock = VirtualClock()

    async def hangs(body: dict[str, int]) -> None:
        await clock.sleep(1000)

    async def works(bodies: list[dict[str, int]]) -> None:
        seen.append([body["number"] for body in bodies])

    broker = broker_with(clock, *"BABAB")
    functions = (hangs, {"selector_expression": "A"}), (works, batches_of("B"))
    async with running(broker, clock, *functions, consume_timeout=2) as container:
        await clock.advance(1)
        seen_at_once, held = list(seen), container.consumer.state().held
        await clock.advance(5)
        came_back = sorted(sent_back(broker))
        await clock.advance(2000)
    assert (seen_at_once, held) == ([[0, 2, 4]], 2), "what is consumed is done with"
    assert (seen, came_back) == ([[0, 2, 4]], [1, 3])


async def test_the_timeout_is_that_of_one_call_whoever_shares_the_topic() -> None:
    begun: list[int] = []
    clock = VirtualClock()

    async def takes_its_time(body: dict[str, int]) -> None:
        begun.append(body["number"])
        await clock.sleep(1.5)

    async def batch(bodies: list[dict[str, int]]) -> None: ...

    broker = broker_with(clock, *"AAAA")
    functions = (takes_its_time, {"selector_expression": "A"}), (batch, batches_of("B"))
    async with running(broker, clock, *functions, consume_timeout=2, concurrency=1) as container:
        await clock.advance(10)
        came_back, held = sent_back(broker), container.consumer.state().held
    assert (begun, came_back, held) == ([0, 1, 2, 3], [], 0)


async def test_a_stop_begins_no_call_of_any_function() -> None:
    begun: list[int] = []
    clock = VirtualClock()

    async def takes_its_time(body: dict[str, int]) -> None:
        begun.append(body["number"])
        await clock.sleep(1)

    async def batch(bodies: list[dict[str, int]]) -> None: ...

    broker = broker_with(clock, *"AAAA")
    functions = (takes_its_time, {"selector_expression": "A"}), (batch, batches_of("B"))
    async with (
        running(broker, clock, *functions, concurrency=1) as container,
        anyio.create_task_group() as tasks,
    ):
        await clock.advance(1.5)
        tasks.start_soon(container.drain, 30.0)
        await clock.advance(30)
    assert begun == [0, 1]
    assert broker.committed["T", 0] == 2, "what has ended does not come again"


async def test_each_functions_first_failure_of_a_kind_has_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    def named_alike() -> tuple[Handler, Handler]:
        async def on_message(body: dict[str, int]) -> None:
            raise ValueError("no seat is free")

        first = on_message

        async def on_message(body: dict[str, int]) -> None:  # type: ignore[no-redef]
            raise ValueError("the gate is closed")

        return first, on_message

    one, other = named_alike()
    clock = VirtualClock()
    broker = broker_with(clock, *"ABAB")
    functions = (one, {"selector_expression": "A"}), (other, {"selector_expression": "B"})
    with caplog.at_level(logging.WARNING, "rocketbox.client.failure_log"):
        async with running(broker, clock, *functions):
            await clock.advance(1)
            in_full = {str(record.exc_info[1]) for record in caplog.records if record.exc_info}
            assert in_full == {"no seat is free", "the gate is closed"}, "they are handled beside each other"
            await clock.advance(70)
    counted = [record.getMessage() for record in caplog.records if "more messages" in record.getMessage()]
    assert len(counted) == 2
    for function in (one, other):
        where = f"test_tag_routing.py:{function.__code__.co_firstlineno}"
        said = rf"1 more messages of T for \S+on_message \(\S*{re.escape(where)}\) failed"
        assert [re.search(said, text) is not None for text in counted].count(True) == 1


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
    broker = broker_with(clock, "A", "B", "A", "A", "B")
    await consumed(
        broker,
        clock,
        (one, {"selector_expression": "A", "consume_message_batch_max_size": 8}),
        (other, {"selector_expression": "B"}),
        middleware=[looks],
        consume_mode=mode,
    )
    named = [(name.rpartition(".")[2], numbers) for name, numbers in seen]
    assert (named if mode is ConsumeMode.ORDERLY else sorted(named)) == calls


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
    mode: ConsumeMode, raised: BaseException, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    passed: list[list[int]] = []

    async def judges(context: ConsumeContext, call_next: ConsumeNext) -> Any:
        passed.append(numbers_of(context.messages))
        outcomes = await call_next(context)
        if context.messages[0].tag == "A" and not context.messages[0].reconsume_times:
            raise raised
        return outcomes

    async def works(bodies: list[dict[str, int]]) -> None: ...

    async def works_too(bodies: list[dict[str, int]]) -> None: ...

    clock = VirtualClock()
    broker = broker_with(clock, *"BABA")
    functions = (works, batches_of("A")), (works_too, batches_of("B"))
    options: dict[str, Any] = {"consume_mode": mode, "suspend_current_queue_time": 1}
    async with running(broker, clock, *functions, middleware=[judges], **options):
        await clock.advance(10)
    if mode is ConsumeMode.CONCURRENTLY:
        assert (sorted(passed), sorted(sent_back(broker))) == ([[0, 2], [1, 3]], [1, 3])
    else:
        assert (passed, sent_back(broker)) == ([[0], [1], [1], [2], [3], [3]], [])
    assert expected in caplog.text


async def test_messages_that_no_function_takes_any_more_pass_middleware_as_well() -> None:
    passed: list[tuple[Any, list[int]]] = []

    async def looks(context: ConsumeContext, call_next: ConsumeNext) -> Any:
        passed.append((context.invocation, numbers_of(context.messages)))
        return await call_next(context)

    for mode in ConsumeMode:
        passed.clear()
        clock = VirtualClock()
        broker = broker_with(clock)
        broker.committed["%RETRY%g", 0] = 0
        for number in range(2):
            broker.store("%RETRY%g", b'{"number": %d}' % number, tag="Z", retry_topic="T", reconsume_times=1)
        functions = (one, {"selector_expression": "A"}), (other, {"selector_expression": "B"})
        options: dict[str, Any] = {"consume_mode": mode, "max_reconsume_times": 1, "suspend_current_queue_time": 1}
        async with running(broker, clock, *functions, middleware=[looks], **options):
            await clock.advance(10)
        assert sorted(passed, key=str) == [(None, [0]), (None, [1])]
        assert sorted(sent_back(broker)) == [0, 1], "they are not lost"


def batches_of(tag: str) -> dict[str, Any]:
    """The options of a function that takes a tag's messages, up to eight a call."""
    return {"selector_expression": tag, "consume_message_batch_max_size": 8}


def numbers_of(messages: Sequence[MessageExt]) -> list[int]:
    return [json.loads(each.body)["number"] for each in messages]
