"""A directory in turns with a real Apache broker: all that either acknowledged is there when ours opens it again.

Ours is stopped or killed, Apache's is killed a moment after its first acknowledgement: before it has written its
checkpoint, in which our mark still stands. (kill -9 leaves the page cache: what Apache acknowledged is in the file.)
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import anyio
import pytest

from rocketbox.broker.store.message_store import MessageStore
from rocketbox.client import Producer
from rocketbox.errors import RocketBoxError
from rocketbox.message import Message
from rocketbox.protocol.stored_message import decode_message
from tests.conformance.apache import EACH_VERSION, apache_servers
from tests.support.broker.broker_process import BrokerProcess

pytestmark = pytest.mark.apache

TOPIC = "InTurns"


def message(number: int) -> Message:
    return Message(TOPIC, b"%06d " % number * (number % 40 + 1), tag=f"t{number % 3}", keys=[f"k{number}"])


async def send_some(name_server: str, first: int, count: int) -> list[int]:
    async with Producer("in-turns", name_server=name_server) as producer:
        for number in range(first, first + count):
            await producer.send(message(number))
    return list(range(first, first + count))


async def send_for(name_server: str, first: int, seconds: float) -> list[int]:
    """Send one after another; returns those acknowledged within ``seconds`` behind the first acknowledgement."""
    acknowledged: list[int] = []
    async with Producer("in-turns", name_server=name_server) as producer:
        for _ in range(20):
            try:
                await producer.send(message(first), timeout=20)
                break
            except RocketBoxError:
                await anyio.sleep(0.5)  # another process' start offers no event to wait for
        acknowledged.append(first)
        with anyio.move_on_after(seconds):
            while True:
                number = first + len(acknowledged)
                await producer.send(message(number), timeout=20)
                acknowledged.append(number)
    return acknowledged


async def found_in(directory: Path) -> list[int]:
    """The numbers of all messages of the topic, each of which is what was sent, once, in the order it was sent."""
    found: list[int] = []
    async with MessageStore(directory) as store:
        for topic, queue_id in store.queues():
            if topic != TOPIC:
                continue
            numbers = []
            offset = store.min_offset(topic, queue_id)
            while offset < store.max_offset(topic, queue_id):
                result = store.get(topic, queue_id, offset)
                for record in result.records:
                    decoded = decode_message(record)[0]
                    number = int(decoded.body.split()[0])
                    sent = message(number)
                    assert decoded.queue_offset == offset
                    assert (decoded.body, decoded.tag, list(decoded.keys)) == (sent.body, sent.tag, list(sent.keys))
                    offset += 1
                    numbers.append(number)
                assert result.records
                offset = result.next_begin_offset
            assert numbers == sorted(set(numbers))
            found += numbers
        assert len(found) == len(set(found))
        for number in found[:: max(1, len(found) // 50)]:
            assert len((await store.query_keys(TOPIC, f"k{number}", 9, 0, 1 << 60)).records) == 1
    return sorted(found)


@pytest.mark.parametrize("version", EACH_VERSION)
@pytest.mark.parametrize(("ours", "seconds"), [("killed", 0.2), ("stopped", 0.2), ("stopped", 3.0)])
def test_nothing_that_a_killed_apache_broker_acknowledged_is_missing(
    tmp_path: Path, version: str, ours: str, seconds: float
) -> None:
    directory = tmp_path / "store"
    acknowledged: list[int] = []
    with BrokerProcess(directory) as broker:
        acknowledged += anyio.run(send_some, broker.name_server, 0, 10)
        if ours == "killed":
            broker.kill()
    for turn in (1, 2):
        with apache_servers(tmp_path, version) as apache:
            acknowledged += anyio.run(partial(send_for, apache.name_server, 100_000 * turn, seconds))
            apache.kill_broker()
        assert set(acknowledged) <= set(anyio.run(found_in, directory))
        with BrokerProcess(directory) as broker:
            acknowledged += anyio.run(send_some, broker.name_server, 100_000 * turn + 50_000, 5)
            broker.kill()
    found = anyio.run(found_in, directory)
    assert set(acknowledged) <= set(found)
    assert len(found) - len(acknowledged) <= 2  # the one on its way when Apache's was killed
