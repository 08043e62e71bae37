"""Which queue a message goes to: by chance, to one that is said, and to another broker than the one that failed."""

from __future__ import annotations

import signal
from collections import Counter
from itertools import pairwise
from pathlib import Path

import anyio
import pytest

from rocketbox.client import Admin, ClientOptions, Producer, ProducerOptions
from rocketbox.client.queue_choice import QueueChoice
from rocketbox.errors import BrokerError, RemotingError
from rocketbox.message import Message, MessageQueue, SendResult
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.prepared_sends import SendRequest
from tests.conformance.apache import NEWEST, VERSIONS, apache_broker, apache_servers
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.apache, pytest.mark.anyio]

SEND = ProducerOptions(send_message_timeout=12.0)


async def stored(admin: Admin, results: list[SendResult]) -> list[tuple[MessageQueue, int, bytes]]:
    """Queue, offset and body of what was sent, as the broker has it."""
    found = [await admin.view(result.offset_msg_id) for result in results]
    return [
        (MessageQueue(each.topic, result.queue.broker_name, each.queue_id), each.queue_offset, each.body)
        for each, result in zip(found, results, strict=True)
    ]


@pytest.mark.smoke
async def test_messages_go_to_the_queue_that_is_said_in_their_order(name_server: str, topic: str) -> None:
    async with (
        Producer(f"p-{topic}", name_server=name_server, options=SEND) as producer,
        Admin(name_server=name_server) as admin,
    ):
        await admin.create_topic(topic, queues=4)
        first, *_, last = sorted(await admin.queues(topic))
        results = [
            await producer.send(Message(topic, b"%d" % number), queue=last if number % 3 else first)
            for number in range(9)
        ]
        assert await stored(admin, results) == [
            (
                last if number % 3 else first,
                number // 3 if number % 3 == 0 else number - 1 - number // 3,
                b"%d" % number,
            )
            for number in range(9)
        ]
        with pytest.raises(BrokerError, match=r"queueId.*4"):
            await producer.send(Message(topic, b"nowhere"), queue=MessageQueue(topic, last.broker_name, 4))


@pytest.mark.smoke
async def test_chance_finds_every_queue_and_does_not_take_them_in_turn(name_server: str, topic: str) -> None:
    async with (
        Producer(f"p-{topic}", name_server=name_server, options=SEND) as producer,
        Admin(name_server=name_server) as admin,
    ):
        await admin.create_topic(topic, queues=4)
        queues = sorted(await admin.queues(topic))
        in_turn = [(await producer.send(Message(topic, b"in turn"))).queue for _ in range(12)]
        assert Counter(in_turn) == dict.fromkeys(queues, 3)
        results = [await producer.send(Message(topic, b"by chance"), queue=QueueChoice.RANDOM) for _ in range(60)]
        drawn = [result.queue for result in results]
        assert set(drawn) == set(queues)
        assert any(one == other for one, other in pairwise(drawn))
        assert [queue for queue, _, _ in await stored(admin, results)] == drawn


class SendsTo:
    """A hook of a client that counts what it sends to each broker."""

    def __init__(self) -> None:
        self.addresses: Counter[str] = Counter()

    def before_request(self, address: str, command: RemotingCommand) -> None:
        """Of no interest."""

    def before_prepared(self, address: str, request: SendRequest) -> bytes:
        self.addresses[address] += 1
        return b""

    def after_response(self, address: str, code: int, response: RemotingCommand) -> None:
        """Of no interest."""


@pytest.mark.parametrize("version", [pytest.param(NEWEST, marks=pytest.mark.smoke), *VERSIONS[1:]])
async def test_messages_go_elsewhere_when_a_broker_stands_still_or_is_killed(
    version: str, topic: str, tmp_path: Path
) -> None:
    sends, options = SendsTo(), ProducerOptions(send_message_timeout=4.0)
    with (
        apache_servers(tmp_path, version, keeps_store=False) as staying,
        apache_broker(
            tmp_path / "b", staying.name_server, version, keeps_store=False, brokerName="broker-b"
        ) as leaving,
    ):
        async with (
            Producer(
                f"p-{topic}", name_server=staying.name_server, options=options,
                client_options=ClientOptions(hooks=(sends,)),
            ) as producer,
            Admin(name_server=staying.name_server) as admin,
        ):  # fmt: skip
            with anyio.fail_after(PATIENCE):
                while len(await admin.masters()) < 2:
                    await anyio.sleep(0.05)
                await admin.create_topic(topic, queues=2)
                while len(queues := await admin.queues(topic)) < 4:
                    await anyio.sleep(0.05)
            before = [await producer.send(Message(topic, b"before")) for _ in range(4)]
            assert {result.queue for result in before} == set(queues)
            sends.addresses.clear()
            leaving.broker_process.send_signal(signal.SIGSTOP)
            after = [await producer.send(Message(topic, b"%d" % number)) for number in range(10)]
            assert sends.addresses == {staying.broker: 10, leaving.broker: 1}, "asked once, then avoided"
            leaving.kill_broker()
            after += [await producer.send(Message(topic, b"%d" % number)) for number in range(10, 20)]
            assert {result.queue.broker_name for result in after} == {"broker-a"}
            (gone, *_) = [queue for queue in queues if queue.broker_name == "broker-b"]
            with pytest.raises(RemotingError, match=leaving.broker):
                await producer.send(Message(topic, b"to a queue that is not there"), queue=gone, timeout=0.5)
            found: list[bytes] = []
            with anyio.fail_after(PATIENCE):
                while len(found) < 22:  # Apache's brokers fill their queues later
                    pulled = [await admin.pull(queue, 0) for queue in queues if queue.broker_name == "broker-a"]
                    found = [message.body for each in pulled for message in each.messages]
            assert Counter(found) == Counter([b"before"] * 2 + [b"%d" % number for number in range(20)])
