"""What ``invalid-limit`` holds has not been tried: no stop, other member or long wait makes it a dead letter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import anyio
import pytest

from rocketbox.client import ClientOptions, ConsumeContext, ConsumeNext, MQClientInstance
from rocketbox.client.outcomes import Outcomes
from rocketbox.listeners import ContainerStatus
from rocketbox.message import ConsumeMode
from rocketbox.protocol.codes import RequestCode
from tests.support.client.scripted_broker import ScriptedBroker
from tests.support.clocks import VirtualClock, settle
from tests.support.framework.containers import container_of

pytestmark = pytest.mark.anyio

OPTIONS = ClientOptions(client_ip="10.0.0.9", api_timeout=60.0)
Seen = list[list[int]]


def handlers(seen: Seen) -> dict[str, Any]:
    async def one(row: dict[str, int]) -> None:
        seen.append([row["number"]])

    async def batch(rows: list[dict[str, int]]) -> None:
        seen.append([row["number"] for row in rows])

    def blocking(row: dict[str, int]) -> None:
        seen.append([row["number"]])

    return {"one": one, "batch": batch, "def": blocking}


async def handled_in_threads(seen: Seen, wanted: Seen) -> None:
    """Return when that was handled: threads take their own time."""
    for _ in range(2000):
        if seen == wanted:
            return
        await settle(20)
    raise AssertionError(f"{seen} was handled, and not {wanted}")


def options_of(kind: str, mode: ConsumeMode) -> dict[str, Any]:
    size = {"consume_message_batch_max_size": 10} if kind == "batch" else {}
    return {"consume_mode": mode, "invalid_limit": 1, "max_reconsume_times": 1, "consume_timeout": 60, **size}


def back(broker: ScriptedBroker) -> list[int]:
    """The offsets of what was sent back, or to the dead-letter queue."""
    return [int(offset) - 1000 for (offset,) in broker.fields(RequestCode.CONSUMER_SEND_MSG_BACK, "offset")]


def judged(kind: str, mode: ConsumeMode) -> list[list[int]]:
    """What may have been dead-lettered before the limit held the other one: beside each other either comes first."""
    if kind == "batch":
        return [[]]
    return [[0], [1]] if mode is ConsumeMode.CONCURRENTLY else [[0]]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def broker(clock: VirtualClock) -> ScriptedBroker:
    """One unreadable payload that is dead-lettered, and behind it one that is held and one that can be read."""
    broker = ScriptedBroker(clock)
    broker.topics = {"A": 1, "%RETRY%g": 1}
    broker.committed["A", 0] = 0
    broker.store("A", b"{", reconsume_times=1)
    broker.store("A", b"{", reconsume_times=1)
    broker.store("A", b'{"number": 7}', reconsume_times=1)
    return broker


WAYS = [(kind, mode) for kind in ("one", "batch", "def") for mode in ConsumeMode]


@pytest.mark.parametrize(("kind", "mode"), WAYS)
async def test_a_stop_leaves_what_is_held_in_its_queue_as_it_came(
    kind: str, mode: ConsumeMode, clock: VirtualClock, broker: ScriptedBroker
) -> None:
    """Long after consume-timeout, and although each is at its last attempt."""
    seen: Seen = []
    concurrent = kind != "batch" and mode is ConsumeMode.CONCURRENTLY  # what can be read is handled beside it
    async with (
        broker,
        MQClientInstance(broker.address, options=OPTIONS, clock=clock, network=broker.network) as instance,
    ):
        async with container_of(instance, {"A": handlers(seen)[kind]}, **options_of(kind, mode)) as container:
            await settle(200)
            await clock.advance(150)
            assert container.state().status is ContainerStatus.PAUSED
            handled = [[7]] if concurrent else []
            await handled_in_threads(seen, handled)
        assert seen == handled
        gone = back(broker)
        assert gone in judged(kind, mode)
        assert broker.committed["A", 0] == (1 if gone == [0] else 0)


@pytest.mark.parametrize("kind", ["one", "batch", "def"])
async def test_a_stop_sends_back_what_is_held_and_so_repeats_nothing_that_was_handled_behind_it(
    kind: str, clock: VirtualClock, broker: ScriptedBroker
) -> None:
    """While it has attempts left."""
    seen: Seen = []
    options = options_of(kind, ConsumeMode.CONCURRENTLY) | {"max_reconsume_times": 2}
    async with (
        broker,
        MQClientInstance(broker.address, options=OPTIONS, clock=clock, network=broker.network) as instance,
    ):
        async with container_of(instance, {"A": handlers(seen)[kind]}, **options):
            await settle(200)
            await handled_in_threads(seen, [] if kind == "batch" else [[7]])
        assert sorted(back(broker)) == ([0, 1, 2] if kind == "batch" else [0, 1])
        assert broker.committed["A", 0] == 3


async def test_a_payload_that_comes_to_the_limit_when_its_queue_is_gone_holds_nothing_up(
    clock: VirtualClock, broker: ScriptedBroker
) -> None:
    """Middleware has waited meanwhile."""
    seen: Seen = []
    go_on = anyio.Event()

    async def wait(context: ConsumeContext, call_next: ConsumeNext) -> Outcomes:
        if context.messages[0].topic == "A":
            await go_on.wait()
        return await call_next(context)

    broker.topics = {"A": 1, "B": 1, "%RETRY%g": 1}
    broker.committed["B", 0] = 0
    broker.store("B", b"{", b"{")
    client_options = replace(OPTIONS, consume_middleware=(wait,))
    functions = {"A": handlers(seen)["one"], "B": handlers(seen)["def"]}
    async with (
        broker,
        MQClientInstance(broker.address, options=client_options, clock=clock, network=broker.network) as instance,
        container_of(instance, functions, **options_of("one", ConsumeMode.ORDERLY)) as container,
    ):
        await settle(200)
        assert container.state().status is ContainerStatus.PAUSED
        assert [each for each in broker.locks if each.topic == "A"]
        broker.other_members = ["0@new"]
        broker.notify("g")
        await clock.advance(5)
        go_on.set()
        await clock.advance(60)
        assert not [each for each in broker.locks if each.topic == "A"]


@pytest.mark.parametrize(("kind", "mode"), WAYS)
async def test_another_member_gets_what_is_held_and_nothing_of_it_is_begun_here(
    kind: str, mode: ConsumeMode, clock: VirtualClock, broker: ScriptedBroker
) -> None:
    seen: Seen = []
    async with (
        broker,
        MQClientInstance(broker.address, options=OPTIONS, clock=clock, network=broker.network) as instance,
        container_of(instance, {"A": handlers(seen)[kind]}, **options_of(kind, mode)) as container,
    ):
        concurrent = kind != "batch" and mode is ConsumeMode.CONCURRENTLY
        await settle(200)
        handled = [[7]] if concurrent else []
        await handled_in_threads(seen, handled)
        assert container.state().status is ContainerStatus.PAUSED
        broker.other_members = ["0@new"]
        broker.notify("g")
        await clock.advance(120)
        queues = [each.queue.topic for each in container.consumer.state().queues]
        assert "A" not in queues
        assert not [each for each in broker.locks if each.topic == "A"]
        for _ in range(3):
            container.resume()
            await clock.advance(61)
        assert seen == handled
        assert back(broker) in judged(kind, mode)


async def test_a_lock_that_is_lost_while_a_payload_is_held_leaves_it_to_who_has_it(
    clock: VirtualClock, broker: ScriptedBroker
) -> None:
    """The queue is this member's still, for the group has no other."""
    seen: Seen = []
    async with (
        broker,
        MQClientInstance(broker.address, options=OPTIONS, clock=clock, network=broker.network) as instance,
        container_of(instance, {"A": handlers(seen)["batch"]}, **options_of("batch", ConsumeMode.ORDERLY)) as container,
    ):
        await settle(200)
        (queue,) = [each for each in broker.locks if each.topic == "A"]
        broker.locks.clear()
        broker.foreign_locks.add(queue)
        await clock.advance(120)
        container.resume()
        await clock.advance(1)
        assert (seen, back(broker)) == ([], [])
        broker.foreign_locks.clear()
        await clock.advance(60)
        assert container.state().status is ContainerStatus.PAUSED, "it is taken again, and as bad"
        container.resume()
        await clock.advance(61)
        container.resume()
        await clock.advance(5)
        assert (seen, back(broker)) == ([[7]], [0, 1])


async def test_what_is_held_is_dealt_with_when_the_group_is_resumed(
    clock: VirtualClock, broker: ScriptedBroker
) -> None:
    seen: Seen = []
    options = options_of("batch", ConsumeMode.CONCURRENTLY)
    async with (
        broker,
        MQClientInstance(broker.address, options=OPTIONS, clock=clock, network=broker.network) as instance,
        container_of(instance, {"A": handlers(seen)["batch"]}, **options) as container,
    ):
        await settle(200)
        await clock.advance(150)
        container.resume()
        await settle(200)
        assert (seen, sorted(back(broker))) == ([[7]], [0, 1])
        assert container.state().status is ContainerStatus.RUNNING


async def test_a_pause_of_others_that_ends_leaves_the_group_paused_if_too_much_could_not_be_read_meanwhile(
    clock: VirtualClock, broker: ScriptedBroker
) -> None:
    async def pauses(row: dict[str, int]) -> None:
        container.pause("by a test")

    broker.topics = {"A": 1, "B": 1, "%RETRY%g": 1}
    broker.committed["B", 0] = 0
    async with (
        broker,
        MQClientInstance(broker.address, options=OPTIONS, clock=clock, network=broker.network) as instance,
        container_of(instance, {"A": handlers([])["one"], "B": pauses}, invalid_limit=5) as container,
    ):
        await settle(200)
        broker.store("B", b"{}", *[b"{"] * 4)
        await clock.advance(5)
        assert (container.state().status, container.state().reason) == (ContainerStatus.PAUSED, "by a test")
        container.end_pause("by somebody else")
        assert container.state().reason == "by a test"
        container.end_pause("by a test")
        assert container.state().status is ContainerStatus.PAUSED
        assert "more than 5 payloads a minute" in str(container.state().reason)
        container.begin_anew()
        container.pause("by a test")
        container.end_pause("by a test")
        assert container.state().status is ContainerStatus.RUNNING
