"""A broker's process keeps its tables out of full garbage collections, and leaves no trace when it is done with it."""

from __future__ import annotations

import gc

import pytest

from rocketbox.cli.full_collections import ENTRIES, FULL_COLLECTIONS, tables_out_of_collections
from rocketbox.protocol.registration_bodies import TopicConfig
from rocketbox.tasks import Supervisor
from tests.support.clocks import VirtualClock, settle
from tests.support.living_objects import living

pytestmark = pytest.mark.anyio


async def test_tables_are_not_looked_at_by_collections_when_they_have_grown() -> None:
    clock = VirtualClock()
    topics: dict[str, TopicConfig] = {}
    thresholds = gc.get_threshold()

    def grow(to: int) -> None:
        for number in range(len(topics), to):
            topics[str(number)] = TopicConfig(str(number), attributes={"of": str(number)})

    def looked_at() -> int:
        return len(living(TopicConfig))

    gc.unfreeze()  # a service that a test before this one ran in this process
    gc.collect()
    before = looked_at()
    grow(5_000)
    assert looked_at() == before + 5_000
    with tables_out_of_collections(lambda: len(topics), clock) as tables:
        assert gc.get_threshold() == (*thresholds[:2], FULL_COLLECTIONS)
        assert looked_at() == 0
        async with Supervisor("test", clock) as tasks:
            tasks.start("look", tables.run)
            await settle()
            grow(5_000 + ENTRIES - 1)
            await clock.advance(1)
            assert looked_at() == ENTRIES - 1
            grow(5_000 + ENTRIES)
            await clock.advance(1)
            assert looked_at() == 0
    assert looked_at() == before + 5_000 + ENTRIES
    assert (gc.get_threshold(), gc.get_freeze_count()) == (thresholds, 0)


async def test_what_is_garbage_already_is_not_kept() -> None:
    class Ring:
        def __init__(self) -> None:
            self.next = self

    with tables_out_of_collections(lambda: 0, VirtualClock()) as tables:
        for _ in range(100):
            Ring()
        tables.take()
    assert living(Ring) == []
