"""Stores that rocketbox 0.1.0 wrote, stopped in order and killed: opened whole, and gone on with, by what is here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rocketbox.message import MessageExt
from rocketbox.protocol.codes import SCHEDULE_TOPIC, RequestCode
from rocketbox.protocol.stored_message import decode_messages
from tests.support.archives import unpack
from tests.support.broker.wire import Wire, embedded

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

DATA = Path(__file__).parents[1] / "data" / "stores"
PLACES: dict[str, list[list[int]]] = json.loads((DATA / "rocketbox-0.1.0.expected.json").read_text())
FILE_SIZES: dict[str, Any] = {  # as the stores were written with
    "mapped-file-size-commit-log": "64KB",
    "mapped-file-size-consume-queue": 2000,
    "max-hash-slot-num": 100,
    "max-index-num": 400,
    "max-message-size": "32KB",
    "file-reserved-time": 1_000_000,  # hours: what these stores hold is years old by and by
}
QUEUES = 4
DELAY_LEVEL = 18


def body_of(number: int) -> bytes:
    return f"order {number} ".encode() * (1 + number % 40)


async def by_key(wire: Wire, topic: str, key: str) -> list[bytes]:
    """The bodies of the messages with a key."""
    fields = {"topic": topic, "key": key, "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 1 << 60}
    response = await wire.broker(RequestCode.QUERY_MESSAGE, fields)
    return [message.body for message in decode_messages(response.body)] if response.code == 0 else []


async def check(wire: Wire, kind: str) -> None:
    """Every message that was acknowledged is there, in its place, found by tag and key."""
    orders: list[list[MessageExt]] = [await wire.messages("Orders", queue=queue) for queue in range(QUEUES)]
    assert sum(map(len, orders)) == len(PLACES[kind])
    for number, (queue, offset) in enumerate(PLACES[kind]):
        message = orders[queue][offset]
        assert message.body == body_of(number)
        assert message.queue_offset == offset
        assert message.properties["TAGS"] == f"t{number % 3}"
        assert message.properties["KEYS"] == f"k{number}"
    for number in range(0, len(PLACES[kind]), 17):
        assert await by_key(wire, "Orders", f"k{number}") == [body_of(number)]
    for queue, of_queue in enumerate(orders):
        wanted = [message.queue_offset for message in of_queue if message.properties["TAGS"] == "t1"]
        tagged: list[int] = []
        offset = 0
        while offset < len(of_queue):
            response = await wire.pull("Orders", offset, queue=queue, expression="t1")
            tagged += [message.queue_offset for message in decode_messages(response.body)]
            offset = int(response.ext_fields["nextBeginOffset"])
        assert tagged == wanted
    batches = [message for queue in range(QUEUES) for message in await wire.messages("Batches", queue=queue)]
    senders = 1 if kind == "stopped" else 2
    assert [message.body for message in batches] == [b"in a batch %d" % number for number in range(3)] * senders
    parked = await wire.messages(SCHEDULE_TOPIC, queue=DELAY_LEVEL - 1)
    assert [message.body for message in parked] == [b"delayed"] * senders


@pytest.mark.parametrize("kind", ["stopped", "killed"])
async def test_a_store_of_the_first_release_is_opened_whole(tmp_path: Path, kind: str) -> None:
    unpack(DATA / f"rocketbox-0.1.0-{kind}.tar.gz", tmp_path)
    async with embedded(tmp_path / "store", **FILE_SIZES) as wire:
        await check(wire, kind)
        sent = await wire.send("Afterwards", b"one more")
        assert (sent.code, sent.ext_fields["queueOffset"]) == (0, "0")
    async with embedded(tmp_path / "store", **FILE_SIZES) as wire:
        await check(wire, kind)
        assert [message.body for message in await wire.messages("Afterwards")] == [b"one more"]
