"""The store that an Apache 5.5.0 broker wrote: read whole, gone on with, and its records written back byte for byte."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rocketbox.broker.store.config_file import ConfigFile
from rocketbox.broker.store.message_store import MessageStore
from rocketbox.broker.store.options import StoreOptions
from rocketbox.broker.store.reading import GetMessageStatus
from rocketbox.errors import StoreCorruptError
from rocketbox.message import MessageExt, decode_properties
from rocketbox.protocol.loose_json import loads_loose
from rocketbox.protocol.stored_message import StoredMessage, decode_message, encode_stored_message
from rocketbox.storage.file_system import RealStorage
from tests.support.archives import unpack
from tests.support.store.store_tools import ManualClock, message, put_all

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

DATA = Path(__file__).parents[2] / "data" / "stores"
EXPECTED: dict[str, Any] = json.loads((DATA / "apache-5.5.0.expected.json").read_text())
MESSAGES: list[dict[str, Any]] = EXPECTED["messages"]
OPTIONS = StoreOptions(
    mapped_file_size_commit_log=int(EXPECTED["conf"]["mappedFileSizeCommitLog"]),
    mapped_file_size_consume_queue=int(EXPECTED["conf"]["mappedFileSizeConsumeQueue"]),
    max_hash_slot_num=int(EXPECTED["conf"]["maxHashSlotNum"]),
    max_index_num=int(EXPECTED["conf"]["maxIndexNum"]),
    enabled_append_prop_crc=False,
)


@pytest.fixture
def store_directory(tmp_path: Path) -> Path:
    unpack(DATA / "apache-5.5.0.tar.gz", tmp_path, lambda name: "timerwheel" not in name)
    return tmp_path / "store"


def open_store(directory: Path) -> MessageStore:
    clock = ManualClock()
    clock.now_ms = MESSAGES[-1]["storeTimestamp"] + 1000
    return MessageStore(directory, OPTIONS, clock=clock)


def check_record(record: bytes | None, expected: dict[str, Any]) -> None:
    assert record is not None
    found, size = decode_message(record)
    assert size == len(record) == expected["storeSize"]
    assert (found.topic, found.queue_id) == (expected["topic"], expected["queueId"])
    assert found.body == expected["body"].encode()
    assert found.body_crc == expected["bodyCRC"]
    assert decode_properties(found.raw_properties) == expected["properties"]
    assert found.store_timestamp_ms == expected["storeTimestamp"]
    assert found.commit_log_offset == expected["commitLogOffset"]
    assert (found.born_host, found.store_host) == (expected["bornHost"], expected["storeHost"])
    assert (found.flag, found.reconsume_times) == (expected["flag"], expected["reconsumeTimes"])


class Noting:
    """Selects everything, and notes the code in each unit."""

    def __init__(self, codes: list[int]) -> None:
        self._codes = codes

    def matches_unit(self, tags_code: int) -> bool:
        self._codes.append(tags_code)
        return True

    def matches_record(self, record: bytes) -> bool:
        return True


async def check_store(directory: Path) -> None:
    async with open_store(directory) as store:
        assert store.report is not None
        assert (store.report.end, store.report.truncated_bytes) == (EXPECTED["commitLogEnd"], 0)
        for name, offset in EXPECTED["maxOffsets"].items():
            topic, _, queue_id = name.rpartition("@")
            assert store.max_offset(topic, int(queue_id)) == offset
            assert store.min_offset(topic, int(queue_id)) == 0
        for expected in MESSAGES:
            topic, queue_id = expected["topic"], expected["queueId"]
            check_record(store.read(expected["commitLogOffset"]), expected)
            codes: list[int] = []
            found = store.get(topic, queue_id, expected["queueOffset"], 1, filter=Noting(codes))
            assert found.status is GetMessageStatus.FOUND
            check_record(found.records[0], expected)
            assert codes[0] == expected["tagsCode"]
            everything = (0, 1 << 60)
            keys = [*expected["keys"], expected["properties"].get("UNIQ_KEY")]
            keys += [f"T#{expected['tags']}"] if expected["tags"] else []
            for key in filter(None, keys):
                assert found.records[0] in (await store.query_keys(topic, key, 64, *everything)).records
            assert (
                await store.find_offset_by_time(topic, queue_id, expected["storeTimestamp"]) <= expected["queueOffset"]
            )
            assert await store.find_offset_by_time(topic, queue_id, expected["storeTimestamp"] + 1) >= 0


async def test_every_record_is_read_by_queue_key_and_time(store_directory: Path) -> None:
    await check_store(store_directory)


async def test_it_opens_again_after_we_stopped_on_it(store_directory: Path) -> None:
    for _ in range(2):
        await check_store(store_directory)


@pytest.mark.parametrize("lost", ["consumequeue", "index", "checkpoint", "nothing but the clean stop"])
async def test_it_opens_the_same_when_what_is_derived_is_lost(store_directory: Path, lost: str) -> None:
    (store_directory / "abort").write_text("1234")
    if (store_directory / lost).is_dir():
        shutil.rmtree(store_directory / lost)
    elif (store_directory / lost).exists():
        (store_directory / lost).unlink()
    await check_store(store_directory)


async def test_it_goes_on_where_apache_stopped(store_directory: Path) -> None:
    async with open_store(store_directory) as store:
        places = await put_all(store, message(1, topic="Orders"))
        assert places[0] == EXPECTED["commitLogEnd"]
        (record,) = store.get("Orders", 0, EXPECTED["maxOffsets"]["Orders@0"]).records
        assert decode_message(record)[0].body == message(1).body


async def test_damage_in_the_middle_is_refused(store_directory: Path) -> None:
    log = store_directory / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    data[MESSAGES[10]["commitLogOffset"] + 90] ^= 4
    log.write_bytes(data)
    with pytest.raises(StoreCorruptError) as caught:
        async with open_store(store_directory):
            raise AssertionError("it must not open")
    assert caught.value.offset == MESSAGES[10]["commitLogOffset"]


async def test_every_record_is_written_back_byte_for_byte(store_directory: Path) -> None:
    log = (store_directory / "commitlog" / f"{0:020d}").read_bytes()
    for expected in MESSAGES:
        start = expected["commitLogOffset"]
        record = log[start : start + expected["storeSize"]]
        assert encode_stored_message(stored(decode_message(record, decompress=False)[0])) == record


async def test_a_store_fed_with_the_same_messages_has_the_same_log_and_queues(
    store_directory: Path, tmp_path: Path
) -> None:
    clock = ManualClock()
    async with MessageStore(tmp_path / "ours", OPTIONS, clock=clock) as store:
        log = (store_directory / "commitlog" / f"{0:020d}").read_bytes()
        for expected in MESSAGES:
            start = expected["commitLogOffset"]
            found = decode_message(log[start : start + expected["storeSize"]], decompress=False)[0]
            clock.now_ms = found.store_timestamp_ms
            store.store_host = (found.fields[12], found.fields[13])
            await put_all(store, stored(found))
    ours = tmp_path / "ours"
    assert (ours / "commitlog" / f"{0:020d}").read_bytes() == log
    for name in EXPECTED["cqfiles"]:
        path = Path("consumequeue") / name / f"{0:020d}"
        assert (ours / path).read_bytes() == (store_directory / path).read_bytes()
    (theirs,) = (store_directory / "index").iterdir()
    (mine,) = (ours / "index").iterdir()
    assert mine.read_bytes() == theirs.read_bytes()


def stored(found: MessageExt) -> StoredMessage:
    fields = found.fields
    return StoredMessage(
        topic=found.topic,
        queue_id=found.queue_id,
        body=found.body,
        properties=found.raw_properties,
        flag=found.flag,
        sys_flag=found.sys_flag,
        born_timestamp_ms=found.born_timestamp_ms,
        born_host=(fields[9], fields[10]),
        reconsume_times=found.reconsume_times,
        prepared_transaction_offset=found.prepared_transaction_offset,
        queue_offset=found.queue_offset,
        commit_log_offset=found.commit_log_offset,
        store_timestamp_ms=found.store_timestamp_ms,
        store_host=(fields[12], fields[13]),
    )


async def test_its_tables_are_read(store_directory: Path) -> None:
    for name, table in (
        ("topics", "topicConfigTable"),
        ("subscriptionGroup", "subscriptionGroupTable"),
        ("consumerOffset", "offsetTable"),
        ("delayOffset", "offsetTable"),
    ):
        text = ConfigFile(store_directory / "config" / f"{name}.json", RealStorage()).load()
        assert text is not None
        assert loads_loose(text)[table]


@pytest.mark.parametrize("clean", [True, False])
async def test_it_opens_with_its_own_file_sizes_whatever_the_settings_say(
    store_directory: Path, clean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not clean:
        (store_directory / "abort").write_text("1234")
    monkeypatch.setitem(globals(), "OPTIONS", StoreOptions(enabled_append_prop_crc=False))
    for _ in range(2):
        await check_store(store_directory)
