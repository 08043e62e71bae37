"""The tables' files: who waits for a write, what shares one, and what happens when the disk refuses."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from rocketbox.broker.askers import Askers
from rocketbox.broker.groups import GroupTable
from rocketbox.broker.offsets import OffsetTable
from rocketbox.broker.options import BrokerOptions
from rocketbox.broker.persister import LONGEST_BACKOFF, WRITE_TIMEOUT, Persister, TableFile
from rocketbox.broker.store.config_file import ConfigFile
from rocketbox.broker.store.troubles import Troubles
from rocketbox.broker.topics import TopicTable
from rocketbox.errors import StoreError
from rocketbox.protocol.registration_bodies import TopicConfig
from rocketbox.storage.memory_storage import MemoryStorage
from rocketbox.tasks import Supervisor
from tests.support.broker.table_tools import text_of
from tests.support.clocks import VirtualClock, settle
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio


class Disk(MemoryStorage):
    """Counts the writes of tables; has no room while it is full, and no time while it is held."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        self.free = threading.Event()
        self.free.set()
        self.writes: list[str] = []

    def record(self, name: str, path: str, offset: int = 0, size: int = 0) -> None:
        if path.endswith(".tmp") and name == "truncate":
            self.writes.append(Path(path).name.removesuffix(".json.tmp"))
            self.free.wait(10)
            if self.full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().record(name, path, offset, size)

    def text(self, name: str) -> bytes:
        path = f"/config/{name}.json"
        return self.open(path).read(0, 1 << 20) if self.exists(path) else b""


class Unused:
    """A table that never changes."""

    def load(self, text: str, file: str = "", /) -> None: ...

    def pieces(self) -> Iterator[bytes]:
        yield b'{"dataVersion":{}}'


class Bench:
    """Tables that are written, on a clock that stands still."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.clock = VirtualClock()
        self.troubles = Troubles(self.clock)
        self.persister = Persister(Path("/config"), disk, self.clock, self.troubles, sync_log=self.sync_log)
        options = BrokerOptions(store_path_root_dir=Path("/"))
        self.topics = TopicTable(options, self.clock, self.persister.topics, lambda topic: None)
        self.groups = GroupTable(self.clock, self.persister.groups)
        self.offsets = OffsetTable(self.clock, self.persister.offsets)

    async def sync_log(self) -> bool:
        """There is no log."""
        return True

    async def written(self, topic: str) -> None:
        await self.topics.in_turn(topic, lambda: None)

    async def until(self, condition: Callable[[], bool]) -> None:
        with anyio.fail_after(PATIENCE):
            while not condition():
                await anyio.sleep(0.001)

    async def at_rest(self, file: TableFile) -> None:
        await self.until(lambda: file.is_written(file.marked))


@asynccontextmanager
async def bench(disk: Disk | None = None) -> AsyncIterator[Bench]:
    run = Bench(disk or Disk())
    run.persister.load(topics=run.topics, groups=run.groups, offsets=run.offsets, delays=Unused())
    async with Supervisor("test", run.clock) as tasks:
        run.persister.start(tasks)
        yield run
    await run.persister.finish()


async def test_a_new_topic_is_on_disk_when_its_wait_is_over() -> None:
    async with bench() as run:
        run.topics.put(TopicConfig("t"))
        assert not run.topics.is_written("t")
        await run.written("t")
        assert b'"t"' in run.disk.text("topics")
        assert run.topics.is_written("t")
        assert run.topics.is_written("unknown")


async def test_many_new_topics_share_a_write() -> None:
    async with bench() as run:
        run.disk.free.clear()
        run.topics.put(TopicConfig("first"))
        await run.until(lambda: run.disk.writes == ["topics"])
        async with anyio.create_task_group() as group:
            for number in range(200):
                run.topics.put(TopicConfig(f"t{number}"))
                group.start_soon(run.written, f"t{number}")
            await settle()
            run.disk.free.set()
        assert run.disk.writes == ["topics"] * 2


async def test_groups_and_offsets_gather_and_nobody_waits() -> None:
    async with bench() as run:
        for number in range(300):
            run.groups.find(f"g{number}")
            run.offsets.commit(f"g{number}", "t", 0, number)
        await settle()
        assert run.disk.writes == []
        await run.clock.advance(1)
        await run.at_rest(run.persister.groups)
        assert run.disk.writes == ["subscriptionGroup"]
        await run.clock.advance(4)
        await run.at_rest(run.persister.offsets)
        assert run.disk.writes == ["subscriptionGroup", "consumerOffset"]
        assert b'"g299"' in run.disk.text("subscriptionGroup")
        assert b'"t@g299":{"0":299}' in run.disk.text("consumerOffset")


async def test_a_killed_broker_forgets_the_requests_of_a_second() -> None:
    """One whose table takes less than a tenth of a second to write."""
    run, askers = Bench(Disk()), Askers(10)
    askers.keep_in(run.persister.askers)
    run.persister.load(topics=run.topics, groups=run.groups, offsets=run.offsets, delays=Unused(), askers=askers)
    async with Supervisor("test", run.clock) as tasks:
        run.persister.start(tasks)
        for number in range(3):
            askers.note(b"CORRELATION_ID\x01%d\x02" % number, "somebody")
            await run.clock.advance(1)
            await run.at_rest(run.persister.askers)
            assert b'"%d":"somebody"' % number in run.disk.text("askers")
        assert run.disk.writes == ["askers"] * 3


async def test_who_changes_a_group_may_wait_for_it() -> None:
    async with bench() as run:
        group = run.groups.find("g")
        assert group is not None
        await run.groups.written(run.groups.put(group))
        assert b'"g"' in run.disk.text("subscriptionGroup")


async def test_what_is_deleted_is_gone_from_the_disk() -> None:
    async with bench() as run:
        run.topics.put(TopicConfig("t"))
        run.groups.find("g")
        run.offsets.commit("g", "t", 0, 5)
        await run.written("t")
        await run.persister.topics.written(run.topics.delete("t"))
        await run.groups.written(run.groups.delete("g"))
        run.offsets.delete_group("g")
        assert b'"t"' not in run.disk.text("topics")
        assert b'"g"' not in run.disk.text("subscriptionGroup")
    assert b'"t@g"' not in run.disk.text("consumerOffset")
    assert len(run.offsets) == 0


async def test_a_full_disk_refuses_a_topic_each_time_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async with bench() as run:
        run.disk.full = True
        run.topics.put(TopicConfig("t"))
        for _ in range(3):
            with pytest.raises(StoreError, match=r"topics\.json could not be written .*No space left"):
                await run.written("t")
            await run.clock.advance(0.1)
        assert [trouble.what for trouble in run.troubles.current] == ["writing /config/topics.json"]
        run.disk.full = False
        await run.clock.advance(LONGEST_BACKOFF)
        await run.written("t")
        assert run.troubles.current == []
        assert b'"t"' in run.disk.text("topics")
        assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1


async def test_a_write_that_failed_is_tried_again_by_itself() -> None:
    async with bench() as run:
        run.disk.full = True
        run.offsets.commit("g", "t", 0, 1)
        await run.clock.advance(5)
        await run.until(lambda: bool(run.troubles.current))
        run.disk.full = False
        await run.clock.advance(LONGEST_BACKOFF)
        await run.at_rest(run.persister.offsets)
        assert b'"t@g":{"0":1}' in run.disk.text("consumerOffset")


async def test_a_disk_that_hangs_keeps_nobody_for_ever() -> None:
    async with bench() as run:
        run.disk.free.clear()
        run.topics.put(TopicConfig("t"))
        async with anyio.create_task_group() as group:

            async def wait() -> None:
                with pytest.raises(StoreError, match="within 5 s"):
                    await run.written("t")

            group.start_soon(wait)
            await run.until(lambda: run.disk.writes == ["topics"])
            await run.clock.advance(WRITE_TIMEOUT)
        run.disk.free.set()
        await run.written("t")


async def test_a_stop_writes_what_is_not_written_yet() -> None:
    async with bench() as run:
        run.topics.put(TopicConfig("t"))
        run.groups.find("g")
        run.offsets.commit("g", "t", 0, 7)
    assert b'"t"' in run.disk.text("topics")
    assert b'"g"' in run.disk.text("subscriptionGroup")
    assert b'"t@g":{"0":7}' in run.disk.text("consumerOffset")
    assert run.disk.text("delayOffset")
    written = len(run.disk.writes)
    async with bench(run.disk) as again:
        assert again.topics.get("t") == TopicConfig("t")
        assert again.offsets.get("g", "t", 0) == 7
    assert len(run.disk.writes) == written  # nothing had changed


async def test_a_stop_goes_on_when_a_table_cannot_be_written() -> None:
    async with bench() as run:
        run.topics.put(TopicConfig("t"))
        await run.written("t")
        run.groups.find("g")
        run.disk.full = True
    assert run.disk.text("subscriptionGroup") == b""


async def test_a_change_while_the_table_is_written_is_written_next() -> None:
    async with bench() as run:
        for number in range(1000):
            run.topics.put(TopicConfig(f"t{number}"))
        await settle(3)  # it encodes its pieces now
        run.topics.put(TopicConfig("late"))
        run.topics.delete("t999")
        await run.written("late")
        assert b'"late"' in run.disk.text("topics")
        await run.at_rest(run.persister.topics)
        assert b'"t999"' not in run.disk.text("topics")
        assert run.disk.text("topics") == text_of(run.topics).encode()


async def test_who_stops_waiting_in_the_moment_of_the_write_hears_the_truth_and_holds_up_nobody() -> None:
    clock = VirtualClock()
    file = TableFile(ConfigFile(Path("/config/topics.json"), MemoryStorage()), clock)
    change = file.mark()
    outcomes: dict[str, str] = {}
    handled: list[str] = []

    async def wait(name: str) -> None:
        def handle() -> str:
            handled.append(name)
            return "handled"

        try:
            outcomes[name] = await file.in_turn(change, handle)
        except StoreError as error:
            outcomes[name] = str(error)

    async with anyio.create_task_group() as group:
        group.start_soon(wait, "early")
        await clock.advance(1)
        group.start_soon(wait, "late")
        await clock.advance(1)
        clock.call_at(WRITE_TIMEOUT, lambda: file.attempted(change, None))  # no task has a step in between
        await clock.advance(WRITE_TIMEOUT - 2)
    assert [name for name in ("early", "late") if outcomes[name] == "handled"] == handled
    assert handled[-1] == "late"
    assert outcomes["early"] in {"handled", "topics.json could not be written within 5 s"}


async def test_who_stops_waiting_in_the_moment_of_a_failed_write_holds_up_nobody() -> None:
    clock = VirtualClock()
    file = TableFile(ConfigFile(Path("/config/topics.json"), MemoryStorage()), clock)
    change = file.mark()
    outcomes: list[str] = []

    async def wait() -> None:
        with pytest.raises(StoreError) as raised:
            await file.written(change)
        outcomes.append(str(raised.value))

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await clock.advance(1)
        group.start_soon(wait)
        await clock.advance(1)
        clock.call_at(WRITE_TIMEOUT, lambda: file.attempted(change, "no room"))
        await clock.advance(WRITE_TIMEOUT - 2)
    assert len(outcomes) == 2
    assert "no room" in outcomes[1]


async def test_tables_that_say_what_is_done_are_written_when_the_log_is_synced_and_delays_not_without() -> None:
    class Ordered(Bench):
        is_good = False

        async def sync_log(self) -> bool:
            self.disk.writes.append("log")
            return self.is_good

    run = Ordered(Disk())
    run.persister.load(topics=run.topics, groups=run.groups, offsets=run.offsets, delays=Unused())
    async with Supervisor("test", run.clock) as tasks:
        run.persister.start(tasks)
        run.offsets.commit("g", "t", 0, 1)
        await run.clock.advance(5)
        await run.at_rest(run.persister.offsets)
        assert run.disk.writes == ["log", "consumerOffset"]
        change = run.persister.delays.mark()
        await run.clock.advance(10)
        await run.until(lambda: bool(run.troubles.current))
        assert "must not be ahead" in run.troubles.current[0].error
        assert not run.persister.delays.is_written(change)
        run.is_good = True
        await run.clock.advance(LONGEST_BACKOFF)
        await run.at_rest(run.persister.delays)
        assert run.disk.writes[-2:] == ["log", "delayOffset"]
        assert run.disk.writes.count("delayOffset") == 1
