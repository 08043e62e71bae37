"""Random puts, batches, kills, stops, flushes and losses of derived files: what is readable always equals a model."""

from __future__ import annotations

from typing import Any

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketbox.broker.store.message_store import MessageStore
from rocketbox.protocol.stored_message import decode_message
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.store.crash_checks import inline_pools
from tests.support.store.store_tools import ROOT, SMALL, ManualClock, message, number_of, numbers, remove_tree

QUEUES = [("orders", 0), ("orders", 1), ("bills", 0)]
Step = tuple[Any, ...]  # what to do, and for a put or batch the queue and how large or many
STEPS = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(QUEUES), st.integers(1, 900)),
    st.tuples(st.just("batch"), st.sampled_from(QUEUES), st.integers(1, 5)),
    st.tuples(st.sampled_from(["stop", "kill", "lose queues", "lose index", "wait"])),
)


@settings(max_examples=60)
@given(st.lists(STEPS, max_size=40))
def test_what_is_readable_equals_a_model(steps: list[Step]) -> None:
    with inline_pools():
        anyio.run(run, steps)


async def run(steps: list[Step]) -> None:
    storage, clock = MemoryStorage(), ManualClock(threads=False)
    model: dict[tuple[str, int], list[int]] = {queue: [] for queue in QUEUES}
    bodies: dict[int, bytes] = {}
    remaining = iter(steps)
    going_on = True
    while going_on:
        going_on = False
        async with MessageStore(ROOT, SMALL, clock=clock, storage=storage) as store:
            await check(store, model, bodies)
            for step in remaining:
                await take(step, store, clock, model, bodies)
                if step[0] in {"stop", "kill", "lose queues", "lose index"}:
                    going_on = True
                    break
            await check(store, model, bodies)
            snapshot = storage.copy()
        if going_on and step[0] != "stop":
            storage = snapshot
        if going_on and str(step[0]).startswith("lose"):
            remove_tree(storage, f"{ROOT}/{'consumequeue' if step[0] == 'lose queues' else 'index'}")


async def take(
    step: Step,
    store: MessageStore,
    clock: ManualClock,
    model: dict[tuple[str, int], list[int]],
    bodies: dict[int, bytes],
) -> None:
    if step[0] == "wait":
        await clock.advance(11)
    if step[0] not in {"put", "batch"}:
        return
    _, queue, count = step
    topic, queue_id = queue
    size, many = (count, 1) if step[0] == "put" else (30, count)
    first = len(bodies)
    messages = [message(first + n, topic=topic, queue_id=queue_id, size=size) for n in range(many)]
    result = store.put(messages[0]) if step[0] == "put" else store.put_batch(messages)
    assert result.queue_offset == len(model[topic, queue_id])
    await store.durable(result.end_offset)
    for number, each in enumerate(messages, first):
        model[topic, queue_id].append(number)
        bodies[number] = each.body


async def check(store: MessageStore, model: dict[tuple[str, int], list[int]], bodies: dict[int, bytes]) -> None:
    for (topic, queue_id), expected in model.items():
        assert numbers(store, topic, queue_id) == expected
        for number in expected[-2:]:
            (record,) = (await store.query_keys(topic, f"k{number}", 9, 0, 1 << 60)).records
            assert number_of(record) == number
            assert decode_message(record)[0].body == bodies[number]
