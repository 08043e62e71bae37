"""Names that mean something to a file system: refused, or stored in the store's own directory and nowhere else."""

from __future__ import annotations

import json
from pathlib import PurePosixPath

import pytest

from rocketbox.protocol.codes import RequestCode as C
from rocketbox.protocol.codes import ResponseCode
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.broker.in_memory import BrokerWire, broker_in_memory

pytestmark = pytest.mark.anyio

ROOT = "/store"
HARMLESS = ("%2e%2e", "%2f", "con", "NUL", "CON", "aux", "COM1", "|", "%", "A", "a", "-rf", "__pycache__", "t" * 127)
"""What may be in a name: nobody decodes it, and none of it ends or climbs a directory."""
WRONG = (
    "..", ".", "../x", "../../etc/passwd", "/etc/passwd", "a/b", "a/../../b", "a\\b", "..\\x", "C:", "a:b", "nul.txt",
    "\0", "a\0b", "\0/etc", "a\n", "a b", "~", "~root", "$HOME", "*", "?", "é" * 255, "é", "\uff0e\uff0e",
    "\u2024\u2024", "\u2025",
)  # fmt: skip


class WatchedStorage(MemoryStorage):
    """Knows every path that anybody has asked for, in any way."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[str] = set()

    def begin_call(self, name: str, path: str) -> None:
        self.asked.add(path)
        super().begin_call(name, path)

    def check(self) -> None:
        for path in self.asked:
            parts = PurePosixPath(path).parts
            assert parts[:2] == ("/", "store"), path
            assert path == "/".join(("", *parts[1:])), "as it is written, without . and //"
            assert ".." not in parts
            assert "\0" not in path
            assert all(len(part.encode()) <= 255 for part in parts), path


async def use_everywhere(wire: BrokerWire, name: str) -> list[int]:
    """Ask for it as a topic and as a group wherever the broker takes names; the answers' codes."""
    topic = {
        "topic": name, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "order": "false",
    }  # fmt: skip
    queue = {"topic": name, "queueId": 0, "consumerGroup": name}
    back = {"offset": 0, "group": name, "delayLevel": 0, "originTopic": name, "maxReconsumeTimes": 1}
    query = {"topic": name, "key": name, "maxNum": 1, "beginTimestamp": 0, "endTimestamp": 1 << 60}
    answers = [
        await wire.broker(C.UPDATE_AND_CREATE_TOPIC, topic),
        await wire.send(name, b"hello", a=name, properties=f"KEYS\x01{name}\x02"),
        await wire.send(f"%RETRY%{name}", b"again", a=name),
        await wire.send(f"%DLQ%{name}", b"dead", a=name),
        await wire.heartbeat(name, {name: "*"}, client_id=name),
        await wire.pull(name, group=name, commit=0),
        await wire.broker(C.UPDATE_CONSUMER_OFFSET, {**queue, "commitOffset": 1}),
        await wire.broker(C.QUERY_CONSUMER_OFFSET, queue),
        await wire.broker(C.GET_MAX_OFFSET, queue),
        await wire.broker(C.SEARCH_OFFSET_BY_TIMESTAMP, {**queue, "timestamp": 0}),
        await wire.broker(C.CONSUMER_SEND_MSG_BACK, back),
        await wire.broker(C.QUERY_MESSAGE, query),
        await wire.broker(
            C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, json.dumps({"groupName": name, "brokerId": 0}).encode()
        ),
        await wire.broker(C.DELETE_TOPIC_IN_BROKER, {"topic": name}),
        await wire.broker(C.DELETE_SUBSCRIPTIONGROUP, {"groupName": name, "cleanOffset": "true"}),
    ]
    return [answer.code for answer in answers]


@pytest.mark.parametrize("name", WRONG, ids=ascii)
async def test_a_name_that_could_lead_elsewhere_is_refused_and_no_file_has_it(name: str) -> None:
    storage = WatchedStorage()
    async with broker_in_memory(storage=storage) as wire:
        created, sent, *_ = await use_everywhere(wire, name)
        assert (created, sent) == (ResponseCode.INVALID_PARAMETER, ResponseCode.INVALID_PARAMETER)
    assert storage.list_directory(f"{ROOT}/consumequeue") == []
    storage.check()


@pytest.mark.parametrize("name", HARMLESS)
async def test_a_name_that_only_looks_like_one_that_leads_elsewhere_is_a_directory_of_the_store(name: str) -> None:
    storage = WatchedStorage()
    async with broker_in_memory(storage=storage) as wire:
        assert (await wire.send(name, name.encode())).code == 0
        assert [message.body for message in await wire.messages(name)] == [name.encode()]
    assert storage.list_directory(f"{ROOT}/consumequeue") == [name]
    async with broker_in_memory(storage=storage) as wire:
        assert (await use_everywhere(wire, name))[:2] == [0, 0]
    storage.check()


async def test_names_that_differ_in_the_size_of_letters_are_different_topics() -> None:
    storage = WatchedStorage()
    async with broker_in_memory(storage=storage) as wire:
        for name in ("A", "a", "CON", "con"):
            assert (await wire.send(name, name.encode())).code == 0
        for name in ("A", "a", "CON", "con"):
            assert [message.body for message in await wire.messages(name)] == [name.encode()]
    storage.check()


@pytest.mark.parametrize(
    ("topic", "problem"),
    [
        ("%RETRY%" + "g" * 120, None),
        ("%RETRY%" + "g" * 248, None),
        ("%DLQ%" + "g" * 250, None),
        ("%RETRY%" + "g" * 249, "is longer than topic max length: 255"),
        ("%DLQ%" + "g" * 251, "is longer than topic max length: 255"),
        ("t" * 127, None),
        ("t" * 128, "is longer than topic max length: 127"),
    ],
    ids=lambda value: f"{value[:8]} {len(value)}" if value else "",
)
async def test_topics_of_groups_may_be_longer_than_others_and_have_a_longest_too(
    topic: str, problem: str | None
) -> None:
    storage = WatchedStorage()
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "order": "false",
    }  # fmt: skip
    async with broker_in_memory(storage=storage) as wire:
        answer = await wire.broker(C.UPDATE_AND_CREATE_TOPIC, fields)
        assert answer.code == (0 if problem is None else ResponseCode.INVALID_PARAMETER), answer.remark
        assert (problem or "") in (answer.remark or "")
        if problem is not None:
            assert len(answer.remark or "") < 400
            assert (await wire.send(topic)).code == ResponseCode.INVALID_PARAMETER
    storage.check()
