"""The file of broadcasting consumers' offsets: Java's format, replaced as a whole, checked when read."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketbox.client.instance import MQClientInstance
from rocketbox.client.offset_store import LocalOffsetStore, RemoteOffsetStore, decode_offsets, encode_offsets
from rocketbox.client.options import ClientOptions
from rocketbox.client.process_queue import ProcessQueue
from rocketbox.errors import ClientError
from rocketbox.message import MessageQueue
from rocketbox.protocol.codes import RequestCode
from rocketbox.protocol.command import RemotingCommand
from tests.clocks import VirtualClock
from tests.scripted_cluster import ScriptedCluster

WRITTEN_BY_JAVA = (
    b'{\n\t"offsetTable":{\n\t\t{\n\t\t\t"brokerName":"broker-a",\n\t\t\t"queueId":2,\n'
    b'\t\t\t"topic":"T555"\n\t\t}:1\n\t}\n}'
)
QUEUE = MessageQueue("T555", "broker-a", 2)


def at(offset: int, queue: MessageQueue = QUEUE) -> ProcessQueue:
    return ProcessQueue(queue, offset, now=0.0)


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


@pytest.mark.anyio
async def test_offsets_are_merged_into_what_is_there(anyio_backend: str, tmp_path: Path) -> None:
    other = MessageQueue("T555", "broker-a", 3)
    store = LocalOffsetStore(tmp_path, "192.0.2.2@DEFAULT", "g")
    assert await store.read(QUEUE) is None
    await store.persist([at(5)])
    await store.persist([at(7, other)])
    again = LocalOffsetStore(tmp_path, "192.0.2.2@DEFAULT", "g")
    assert (await again.read(QUEUE), await again.read(other)) == (5, 7)
    assert store.path == tmp_path / "192.0.2.2@DEFAULT" / "g" / "offsets.json"
    assert decode_offsets(store.path.with_name("offsets.json.bak").read_bytes()) == {QUEUE: 5}


@pytest.mark.anyio
async def test_queues_that_are_handed_on_are_written_until_they_are_dropped(anyio_backend: str, tmp_path: Path) -> None:
    store = LocalOffsetStore(tmp_path, "c", "g")
    queue = at(5)
    queue.close()
    await store.persist([queue])
    assert await store.read(QUEUE) == 5
    queue.pulled_to = 9
    queue.drop()
    await store.persist([queue])
    assert await store.read(QUEUE) == 5


@pytest.mark.anyio
async def test_a_damaged_file_gives_way_to_its_backup(anyio_backend: str, tmp_path: Path) -> None:
    store = LocalOffsetStore(tmp_path, "c", "g")
    await store.persist([at(5)])
    await store.persist([at(6)])
    store.path.write_bytes(WRITTEN_BY_JAVA[:40])
    assert await LocalOffsetStore(tmp_path, "c", "g").read(QUEUE) == 5
    store.path.unlink()  # as after a crash between the two renames
    assert await LocalOffsetStore(tmp_path, "c", "g").read(QUEUE) == 5


@pytest.mark.anyio
async def test_two_damaged_files_are_an_error_and_never_offset_zero(anyio_backend: str, tmp_path: Path) -> None:
    store = LocalOffsetStore(tmp_path, "c", "g")
    await store.persist([at(5)])
    store.path.write_bytes(b"")
    with pytest.raises(ClientError, match=r"offsets\.json is damaged"):
        await LocalOffsetStore(tmp_path, "c", "g").read(QUEUE)


@pytest.mark.anyio
async def test_a_disk_that_refuses_costs_nothing_but_the_commit(
    anyio_backend: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "c").write_bytes(b"a file where the directory should be")
    store = LocalOffsetStore(tmp_path, "c", "g")
    store._offsets = {}
    await store.persist([at(5)])
    assert "written again later" in caplog.text
    (tmp_path / "c").unlink()
    await store.persist([at(5)])
    assert await LocalOffsetStore(tmp_path, "c", "g").read(QUEUE) == 5


@pytest.mark.anyio
async def test_a_silent_broker_does_not_keep_the_others_from_their_commits(anyio_backend: str) -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock, ["broker-a", "broker-b"]) as cluster:
        cluster.add_topic("T555")
        cluster.brokers["broker-a"].scripts[RequestCode.UPDATE_CONSUMER_OFFSET] = lambda connection, request: None
        cluster.brokers["broker-b"].scripts[RequestCode.UPDATE_CONSUMER_OFFSET] = lambda connection, request: (
            RemotingCommand.response()
        )
        for broker in cluster.brokers.values():
            await broker.stop()
            await cluster.restart(broker)  # with the new scripts
        options = ClientOptions(client_ip="192.0.2.7")
        name_server = cluster.name_server.address
        async with MQClientInstance(name_server, options=options, clock=clock, network=cluster.network) as instance:
            await instance.route("T555")
            store = RemoteOffsetStore("g", instance)
            other = MessageQueue("T555", "broker-b", 0)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(store.persist, [at(5), at(6, other)])
                await clock.advance(1)
                (commit,) = cluster.brokers["broker-b"].requested(RequestCode.UPDATE_CONSUMER_OFFSET)
                assert commit.ext_fields["commitOffset"] == "6"
                await clock.advance(5)
