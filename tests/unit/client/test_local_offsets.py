"""The file of broadcasting consumers' offsets: Java's format, replaced as a whole, checked when read, one's own."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketbox.client import ClientOptions, ConsumerOptions, MQClientInstance, PushConsumer
from rocketbox.client.local_offsets import LocalOffsetStore, decode_offsets, encode_offsets
from rocketbox.client.process_queue import ProcessQueue
from rocketbox.errors import ClientError, ClientStateError
from rocketbox.message import MessageModel, MessageQueue
from rocketbox.protocol.namespaces import Namespace
from rocketbox.storage.file_system import LockHandle, RealStorage, Storage
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.client.scripted_cluster import ScriptedCluster
from tests.support.clocks import VirtualClock
from tests.support.store.crashable_storage import CrashableStorage, Image
from tests.support.threads import no_thread_left
from tests.support.waiting import PATIENCE

WRITTEN_BY_JAVA = (
    b'{\n\t"offsetTable":{\n\t\t{\n\t\t\t"brokerName":"broker-a",\n\t\t\t"queueId":2,\n'
    b'\t\t\t"topic":"T555"\n\t\t}:1\n\t}\n}'
)
QUEUE = MessageQueue("T555", "broker-a", 2)
FOLDER = Path("/offsets")
CLIENT = "192.0.2.2@DEFAULT"


def at(offset: int, queue: MessageQueue = QUEUE) -> ProcessQueue:
    return ProcessQueue(queue, offset, now=0.0)


def store_in(storage: Storage) -> LocalOffsetStore:
    return LocalOffsetStore(storage, FOLDER, CLIENT, "g", VirtualClock())


def path_in(storage: Storage, suffix: str = "") -> str:
    return f"{store_in(storage).path}{suffix}"


def content(storage: Storage, suffix: str = "") -> bytes:
    file = storage.open(path_in(storage, suffix))
    return file.read(0, file.size())


def overwrite(storage: Storage, data: bytes, suffix: str = "") -> None:
    file = storage.open(path_in(storage, suffix), create=True)
    file.truncate(0)
    file.write(0, [data])


# --- the format -------------------------------------------------------------------------------------------------------


def test_the_file_is_written_as_java_writes_it() -> None:
    assert encode_offsets({QUEUE: 1}) == WRITTEN_BY_JAVA
    assert decode_offsets(WRITTEN_BY_JAVA) == {QUEUE: 1}


def test_other_forms_of_the_file_are_read() -> None:
    compact = b'{"offsetTable":{{"brokerName":"broker-a","queueId":2,"topic":"T555"}:1}}'
    text_keys = b'{"offsetTable":{"{\\"brokerName\\":\\"broker-a\\",\\"queueId\\":2,\\"topic\\":\\"T555\\"}":1}}'
    of_4_9 = (
        b'{\n\t"offsetTable":{{\n\t\t\t"brokerName":"broker-a",\n\t\t\t"queueId":2,\n'
        b'\t\t\t"topic":"T555"\n\t\t}:1\n\t}\n}'
    )
    assert decode_offsets(compact) == decode_offsets(text_keys) == decode_offsets(of_4_9) == {QUEUE: 1}
    assert decode_offsets(encode_offsets({})) == {}


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)


@given(st.dictionaries(st.builds(MessageQueue, names, names, st.integers(0, 2**31 - 1)), st.integers(0, 2**63 - 1)))
def test_what_is_written_is_read_back(offsets: dict[MessageQueue, int]) -> None:
    assert decode_offsets(encode_offsets(offsets)) == offsets


@given(st.integers(0, len(WRITTEN_BY_JAVA) - 1))
def test_a_cut_file_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode_offsets(WRITTEN_BY_JAVA[:size])


@pytest.mark.parametrize(
    "entry",
    [
        b'{"brokerName":"b","queueId":null,"topic":"T"}:1',
        b'{"brokerName":"b","queueId":[1],"topic":"T"}:1',
        b'{"brokerName":"b","queueId":1e999,"topic":"T"}:1',
        b'{"brokerName":"b","queueId":true,"topic":"T"}:1',
        b'{"brokerName":"b","queueId":-1,"topic":"T"}:1',
        b'{"brokerName":"b","queueId":2147483648,"topic":"T"}:1',
        b'{"brokerName":null,"queueId":1,"topic":"T"}:1',
        b'{"brokerName":"b","queueId":1,"topic":7}:1',
        b'{"brokerName":"b","queueId":1,"topic":"T"}:true',
        b'{"brokerName":"b","queueId":1,"topic":"T"}:-1',
        b'{"brokerName":"b","queueId":1,"topic":"T"}:9223372036854775808',
        b'"7":1',
    ],
)
def test_a_file_with_what_is_no_queue_or_no_offset_is_refused(entry: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode_offsets(b'{"offsetTable":{' + entry + b"}}")


# --- the file ---------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_offsets_are_merged_into_what_is_there(anyio_backend: str, tmp_path: Path) -> None:
    other = MessageQueue("T555", "broker-a", 3)
    store = LocalOffsetStore(RealStorage(), tmp_path, CLIENT, "g", VirtualClock())
    assert await store.read(QUEUE) is None
    await store.persist([at(5)])
    await store.persist([at(7, other)])
    again = LocalOffsetStore(RealStorage(), tmp_path, CLIENT, "g", VirtualClock())
    assert (await again.read(QUEUE), await again.read(other)) == (5, 7)
    assert store.path == tmp_path / CLIENT / "g" / "offsets.json"
    assert decode_offsets(store.path.with_name("offsets.json.bak").read_bytes()) == {QUEUE: 5}


@pytest.mark.anyio
async def test_queues_that_are_handed_on_are_written_until_they_are_dropped(anyio_backend: str) -> None:
    store = store_in(MemoryStorage())
    queue = at(5)
    queue.close()
    await store.persist([queue])
    assert await store.read(QUEUE) == 5
    queue.pulled_to = 9
    queue.drop()
    await store.persist([queue])
    assert await store.read(QUEUE) == 5


@pytest.mark.anyio
async def test_what_is_unchanged_is_not_written_again(anyio_backend: str) -> None:
    storage = MemoryStorage()
    store = store_in(storage)
    await store.persist([at(5)])
    written = len(storage.calls)
    await store.persist([at(5)])
    assert len(storage.calls) == written


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_damaged_file_gives_way_to_its_backup_which_it_never_replaces(
    anyio_backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    storage = MemoryStorage()
    store = store_in(storage)
    await store.persist([at(5)])
    await store.persist([at(6)])
    overwrite(storage, WRITTEN_BY_JAVA[:40])
    again = store_in(storage)
    assert await again.read(QUEUE) == 5
    assert f"cannot read offsets from {store.path}" in caplog.text
    await again.persist([at(7)])
    assert content(storage, ".damaged") == WRITTEN_BY_JAVA[:40]
    assert decode_offsets(content(storage, ".bak")) == {QUEUE: 5}
    assert decode_offsets(content(storage)) == {QUEUE: 7}
    await again.persist([at(8)])
    assert decode_offsets(content(storage, ".bak")) == {QUEUE: 7}


@pytest.mark.anyio
async def test_two_damaged_files_are_an_error_and_never_offset_zero(anyio_backend: str) -> None:
    storage = MemoryStorage()
    await store_in(storage).persist([at(5)])
    overwrite(storage, b"")
    with pytest.raises(ClientError, match=r"offsets\.json is damaged .* remove it to begin where consume_from_where"):
        await store_in(storage).read(QUEUE)


@pytest.mark.anyio
async def test_a_disk_that_does_not_read_is_no_file_without_offsets(anyio_backend: str) -> None:
    storage = Faulty(lambda call, path: call == "read")
    await store_in(storage).persist([at(5)])
    storage.broken = True
    with pytest.raises(ClientError, match="damaged"):
        await store_in(storage).read(QUEUE)
    storage.broken = False
    assert await store_in(storage).read(QUEUE) == 5


@pytest.mark.anyio
async def test_queues_that_begin_side_by_side_read_the_file_once(anyio_backend: str) -> None:
    """A late reading would put an older state in the place of what was written meanwhile."""
    storage = MemoryStorage()
    await store_in(storage).persist([at(5)])
    reads: list[str] = []
    storage.begin_call = lambda name, path: reads.append(path) if name == "read" else None  # type: ignore[method-assign]
    again = store_in(storage)
    async with anyio.create_task_group() as tasks:
        for _ in range(16):
            tasks.start_soon(again.read, QUEUE)
    assert len(reads) == 1


# --- a disk that refuses, and crashes ---------------------------------------------------------------------------------


class Faulty(MemoryStorage):
    """One that is full, or worse, for some calls while it is ``broken``."""

    def __init__(self, fails: Callable[[str, str], bool]) -> None:
        super().__init__()
        self.fails = fails
        self.broken = False

    def begin_call(self, name: str, path: str) -> None:
        if self.broken and self.fails(name, path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "call", ["make_directories", "create", "truncate", "write", "sync", "rename", "sync_directory"]
)
@pytest.mark.parametrize("first", [True, False])
async def test_a_disk_that_refuses_costs_nothing_but_the_commit(
    anyio_backend: str, call: str, first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    storage = Faulty(lambda name, path: name == call)
    store = store_in(storage)
    if not first:
        await store.persist([at(4)])
    assert await store.read(QUEUE) == (None if first else 4)
    storage.broken = True
    await store.persist([at(5)])
    assert f"cannot write offsets to {store.path}, they are written again later" in caplog.text
    assert "No space left on device" in caplog.text
    storage.broken = False
    assert await store_in(storage).read(QUEUE) in ({None, 5} if first else {4, 5})
    await store.persist([at(5)])
    assert await store_in(storage).read(QUEUE) == 5


@pytest.mark.anyio
async def test_a_disk_that_stays_full_does_not_fill_the_log(
    anyio_backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    storage, clock = Faulty(lambda name, path: name == "write"), VirtualClock()
    store = LocalOffsetStore(storage, FOLDER, CLIENT, "g", clock)
    storage.broken = True
    for second in range(120):  # as often as offsets are committed
        await store.persist([at(second + 1)])
        await clock.advance(1)
    assert caplog.text.count("cannot write offsets") == 2, "one a minute"
    storage.broken = False
    await store.persist([at(500)])
    storage.broken = True
    await store.persist([at(501)])
    assert caplog.text.count("cannot write offsets") == 3, "one at once after it was well"


@pytest.mark.anyio
@pytest.mark.parametrize("seed", range(3))
async def test_whatever_a_power_failure_leaves_holds_the_last_offsets_or_those_before(
    anyio_backend: str, seed: int
) -> None:
    chance = random.Random(seed)
    storage = CrashableStorage()
    states: list[tuple[int, Image]] = []

    def note(call: str, path: str, offset: int, size: int) -> None:
        states.extend((committed, storage.sample(chance)) for _ in range(8))

    committed = 0
    store = store_in(storage)
    await store.persist([at(1)])
    committed = 1
    storage.before_call = note
    for offset in range(2, 6):
        await store.persist([at(offset)])
        committed = offset
    for done, image in states:
        found = await store_in(CrashableStorage(image)).read(QUEUE)
        assert found in (done, done + 1), "the last that were committed, or those that were on their way"


# --- namespaces V2 ---------------------------------------------------------------------------------------------------


def test_a_namespace_in_a_header_has_a_folder_that_is_no_other_groups() -> None:
    def folder(group: str, v1: str = "", v2: str | None = None) -> str:
        return LocalOffsetStore(
            MemoryStorage(), FOLDER, CLIENT, group, VirtualClock(), Namespace(v1), v2
        ).path.parent.name  # fmt: skip

    assert folder("g", v2="team") == "team@g"
    assert folder("g", v2="../a@b%") == "..%2Fa%40b%25@g"
    assert len({folder("g", v2="team"), folder("g", v1="team"), folder("g", v2="tea%6d")}) == 3
    assert folder("g", v1="team") == folder("team%g") == "team%g", "it is the same group"


@pytest.mark.anyio
async def test_offsets_that_java_has_kept_without_the_namespace_are_told_of_once(
    anyio_backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether they are of the same topics nobody knows: a service outside of the namespace may have left them."""
    storage = MemoryStorage()
    await store_in(storage).persist([at(7)])
    for offset in (None, 3):
        store = LocalOffsetStore(storage, FOLDER, CLIENT, "g", VirtualClock(), namespace_v2="team")
        assert await store.read(QUEUE) == offset
        await store.persist([at(3)])
    (told,) = caplog.messages
    assert told == (
        f"there are no offsets of group g in namespace team yet, and some without it in {path_in(storage)}, where "
        "Java's clients keep them. They are not used. To go on from them, stop this consumer and copy that file to "
        f"{store.path}"
    )


# --- whose file it is -------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_two_consumers_of_a_process_cannot_have_one_file(anyio_backend: str) -> None:
    storage = MemoryStorage()
    async with store_in(storage):
        with pytest.raises(ClientStateError, match=r"'g' in this process keeps its offsets in .* instance_name"):
            await store_in(storage).__aenter__()
        async with LocalOffsetStore(storage, FOLDER, CLIENT, "other", VirtualClock()), store_in(MemoryStorage()):
            pass
    async with store_in(storage):
        pass


HOLDS = """
import os, sys, threading
from pathlib import Path
import anyio
from rocketbox.client.local_offsets import LocalOffsetStore
from rocketbox.clock import RealClock
from rocketbox.errors import ClientStateError
from rocketbox.storage.file_system import RealStorage

def store():
    return LocalOffsetStore(RealStorage(), Path(sys.argv[1]), sys.argv[2], "g", RealClock())

async def enter(text="has it"):
    try:
        async with store():
            print(text, flush=True)
            sys.stdin.readline()
    except ClientStateError as error:
        print(error, flush=True)

async def fork():
    async with store():
        child = os.fork()
        if not child:
            thread = threading.Thread(target=anyio.run, args=[enter])  # where no loop runs
            thread.start()
            thread.join()
            os._exit(0)
        os.waitpid(child, 0)
        child = os.fork()
    if not child:
        thread = threading.Thread(target=anyio.run, args=[enter, "has it"])
        sys.stdin.readline()
        thread.start()
        thread.join()
        os._exit(0)
    print("has left", os.getpid(), flush=True)
    os.waitpid(child, 0)

anyio.run(fork if sys.argv[3:] else enter)
"""


def other_process(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", HOLDS, str(folder), CLIENT, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.anyio
async def test_consumers_of_two_processes_cannot_have_one_file(anyio_backend: str, tmp_path: Path) -> None:
    def store(client: str = CLIENT) -> LocalOffsetStore:
        return LocalOffsetStore(RealStorage(), tmp_path, client, "g", VirtualClock())

    with other_process(tmp_path) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "has it\n"
        with pytest.raises(ClientStateError, match=f"in process {other.pid} keeps its offsets in .* instance_name"):
            await store().__aenter__()
        async with store("192.0.2.2@another"):
            pass
        other.kill()
    async with store():
        pass


def test_a_child_of_fork_leaves_the_file_to_its_parent_and_may_have_it_afterwards(tmp_path: Path) -> None:
    with other_process(tmp_path, "fork") as parent:
        told, _ = parent.communicate("\n" * 9, timeout=60)
    refused, *lines = told.splitlines()
    assert f"in process {parent.pid} keeps its offsets in" in refused
    assert sorted(lines) == ["has it", f"has left {parent.pid}"]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_start_that_was_cancelled_leaves_the_file_to_the_next_one(anyio_backend: str, tmp_path: Path) -> None:
    locking, go_on = threading.Event(), threading.Event()

    class SlowToLock(RealStorage):
        def lock(self, path: str) -> LockHandle:
            locking.set()
            go_on.wait(10)
            return super().lock(path)

    async def begin_and_end(storage: Storage) -> None:
        async with LocalOffsetStore(storage, tmp_path, CLIENT, "g", VirtualClock()):
            pass

    starting = asyncio.ensure_future(begin_and_end(SlowToLock()))
    await anyio.to_thread.run_sync(locking.wait)
    starting.cancel()  # as asyncio.timeout() does it, which no scope of anyio's keeps away
    for _ in range(5):
        await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await anyio.to_thread.run_sync(int)
    await begin_and_end(RealStorage())


async def test_a_directory_that_takes_no_lock_is_told_of_and_its_offsets_are_read(
    anyio_backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As one that is for reading only, where nobody overwrites anything."""
    storage = Faulty(lambda name, path: name == "lock")
    await store_in(storage).persist([at(5)])
    storage.broken = True
    async with store_in(storage) as store:
        assert await store.read(QUEUE) == 5
    assert "No space left on device" in caplog.text


@pytest.mark.anyio
async def test_broadcasting_in_two_clusters_needs_two_files(anyio_backend: str) -> None:
    clock, storage = VirtualClock(), MemoryStorage()
    options = ConsumerOptions(message_model=MessageModel.BROADCASTING, local_offset_dir=FOLDER)
    async with ScriptedCluster(clock) as one, ScriptedCluster(clock) as other:
        instances = [
            MQClientInstance(
                cluster.name_server.address, options=ClientOptions(client_ip="192.0.2.7", instance_name=name),
                clock=clock, network=cluster.network, storage=storage,
            )
            for cluster, name in ((one, "DEFAULT"), (other, "DEFAULT"), (other, "second"))
        ]  # fmt: skip
        async with instances[0], instances[1], instances[2], anyio.create_task_group() as tasks:

            async def pass_time() -> None:
                while True:
                    await clock.advance(0.1)

            async with PushConsumer("g", instance=instances[0], options=options):
                second = PushConsumer("g", instance=instances[1], options=options)
                with pytest.raises(ClientStateError, match="keeps its offsets in"):
                    await second.__aenter__()
                tasks.start_soon(pass_time)
                async with PushConsumer("g", instance=instances[2], options=options):
                    pass
            async with PushConsumer("g", instance=instances[1], options=options):
                pass
            tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_offsets_are_kept_where_others_hold_all_threads() -> None:
    storage = MemoryStorage()
    with anyio.fail_after(PATIENCE):
        async with no_thread_left(), store_in(storage) as store:
            await store.persist([at(7)])
    assert b"7" in content(storage)
