"""What comes before what: read at each call of the file system, while it runs."""

from __future__ import annotations

import pytest

from rocketbox.broker.store.options import StoreOptions
from tests.support.store.crash_checks import inline_pools
from tests.support.store.crash_workloads import ASYNC, SYNC, Machine

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


async def test_nothing_can_be_read_before_its_sync_has_ended() -> None:
    machine = Machine(SYNC)
    readable: list[tuple[int, int]] = []

    def note() -> None:
        if hasattr(machine, "store"):
            readable.append((machine.store.max_offset("orders", 0), machine.ledger.acknowledged))

    with inline_pools():
        await machine.open()
        machine.on_point = note
        for number in range(1, 4):
            readable.clear()
            await machine.put()
            assert machine.store.max_offset("orders", 0) == number
            assert {count for count, _ in readable} == {number - 1}
        machine.on_point = None
        await machine.close()


@pytest.mark.parametrize("options", [SYNC, ASYNC], ids=["sync", "async"])
async def test_a_stop_is_said_to_be_clean_when_all_else_is_on_the_disk(options: StoreOptions) -> None:
    machine = Machine(options)
    calls: list[tuple[str, str]] = []
    with inline_pools():
        await machine.open()
        await machine.put()
        before = machine.storage.before_call
        assert before is not None

        def note(name: str, path: str, offset: int, size: int) -> None:
            calls.append((name, path))
            before(name, path, offset, size)

        machine.storage.before_call = note
        await machine.close()
    assert calls[-2:] == [("remove", "/store/abort"), ("sync directory", "/store")]
    assert any("/consumequeue/" in path for _, path in calls)
