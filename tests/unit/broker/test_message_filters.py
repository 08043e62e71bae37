"""Selection in two steps, by a queue's unit and by the record, shown by a filter that selects by a property."""

from __future__ import annotations

import random

import anyio
import pytest

from rocketbox.broker.broker import Broker
from rocketbox.broker.extensions import BrokerExtensions
from rocketbox.broker.property_text import find_property
from rocketbox.broker.store.message_store import MessageStore
from rocketbox.broker.store.options import StoreOptions
from rocketbox.broker.store.reading import FILTERED_BYTES, GetMessageStatus
from rocketbox.errors import InvalidMessageError
from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.stored_message import StoredMessage, decode_message, decode_messages
from rocketbox.protocol.tags import SubscriptionData
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.broker.in_memory import BrokerWire, broker_in_memory
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio


class PropertyFilter:
    """A toy: selects messages with a property of a value; of the units, those whose tag's code is even."""

    def __init__(self, subscription: SubscriptionData) -> None:
        name, equals, value = subscription.sub_string.partition("=")
        if not equals:
            raise InvalidMessageError(f"{subscription.sub_string!r} is not NAME=VALUE")
        self._name, self._value = name.encode(), value.encode()
        self.looked_at = 0

    def matches_unit(self, tags_code: int) -> bool:
        return tags_code % 2 == 0

    def matches_record(self, record: bytes) -> bool:
        self.looked_at += 1
        properties = decode_message(record, decompress=False)[0].raw_properties
        return find_property(properties, self._name) == self._value


EXTENSIONS = BrokerExtensions(filters={"PROPERTY": PropertyFilter})
RED = "colour\x01red\x02"
BLUE = "colour\x01blue\x02"


async def pull(wire: BrokerWire, offset: int, most: int = 32, suspend_ms: int | None = None) -> RemotingCommand:
    return await wire.pull(
        "t", offset, expression="colour=red", expressionType="PROPERTY", maxMsgNums=most, suspend_ms=suspend_ms
    )


def waiting(broker: Broker) -> int:
    """How many pulls of the readers are on hold."""
    return broker.held_pulls.waiting("t", 0, "readers")


async def held(wire: BrokerWire) -> None:
    """Return when the pull is on hold."""
    with anyio.fail_after(PATIENCE):
        while not waiting(wire.running):
            await anyio.lowlevel.checkpoint()


async def test_the_properties_of_the_records_decide_what_a_pull_finds() -> None:
    async with broker_in_memory(extensions=EXTENSIONS) as wire:
        for number, colour in enumerate([RED, BLUE, RED, BLUE, BLUE, RED]):
            assert (await wire.send("t", b"%d" % number, properties=colour)).code == 0
        assert (await wire.send("t", b"odd", properties=RED + "TAGS\x01A\x02")).code == 0  # the code of A is 65
        found = await pull(wire, 0)
        assert [message.body for message in decode_messages(found.body)] == [b"0", b"2", b"5"]
        assert found.ext_fields["nextBeginOffset"] == "7"


async def test_a_held_pull_is_not_woken_by_what_its_filter_refuses() -> None:
    async with broker_in_memory(extensions=EXTENSIONS) as wire, anyio.create_task_group() as tasks:
        assert (await wire.send("t", b"first", properties=BLUE)).code == 0
        answers: list[RemotingCommand] = []

        async def wait() -> None:
            answers.append(await pull(wire, 1, suspend_ms=15_000))

        tasks.start_soon(wait)
        await held(wire)
        assert (await wire.send("t", b"second", properties=BLUE)).code == 0
        assert (await wire.send("t", b"third", properties=RED + "TAGS\x01A\x02")).code == 0
        assert waiting(wire.running) == 1
        assert answers == []
        assert (await wire.send("t", b"fourth", properties=RED)).code == 0
        with anyio.fail_after(PATIENCE):
            while not answers:
                await anyio.lowlevel.checkpoint()
        assert [message.body for message in decode_messages(answers[0].body)] == [b"fourth"]
        assert answers[0].ext_fields["nextBeginOffset"] == "4"
        assert waiting(wire.running) == 0


async def test_the_heartbeats_subscription_may_be_of_any_kind_there_is_a_filter_for() -> None:
    async with broker_in_memory(extensions=EXTENSIONS) as wire:
        for colour in (BLUE, RED):
            assert (await wire.send("t", colour.encode(), properties=colour)).code == 0
        assert (await wire.heartbeat("readers", {"t": "colour=blue"}, kind="PROPERTY")).code == 0
        found = await wire.pull("t", expression=None)
        assert [message.body for message in decode_messages(found.body)] == [BLUE.encode()]
        body = b'{"subscriptionData":{"topic":"t","subString":"a=1","expressionType":"%b"}}'
        assert (await wire.broker(RequestCode.CHECK_CLIENT_CONFIG, {}, body % b"PROPERTY")).code == 0
        assert (await wire.broker(RequestCode.CHECK_CLIENT_CONFIG, {}, body % b"SQL92")).code != 0


async def test_an_expression_that_cannot_be_read_is_answered_so() -> None:
    async with broker_in_memory(extensions=EXTENSIONS) as wire:
        assert (await wire.send("t", b"first")).code == 0
        wrong = await wire.pull("t", expression="red", expressionType="PROPERTY")
        assert wrong.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert "'red' is not NAME=VALUE" in str(wrong.remark)


async def test_too_many_held_pulls_are_turned_away_with_the_setting_named() -> None:
    async with broker_in_memory(settings={"max-held-pulls": 1}) as wire, anyio.create_task_group() as tasks:
        assert (await wire.send("t", b"first")).code == 0
        tasks.start_soon(lambda: wire.pull("t", 1, suspend_ms=15_000))
        await held(wire)
        refused = await wire.pull("t", 1, suspend_ms=15_000)
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert "1 pulls are on hold already; max-held-pulls is 1" in str(refused.remark)
        assert wire.running.held_pulls.refused == 1
        tasks.cancel_scope.cancel()


async def test_held_pulls_with_long_expressions_are_turned_away_by_their_bytes() -> None:
    long = "||".join(f"t{number}" for number in range(2_000))
    async with broker_in_memory(settings={"max-held-pull-bytes": "8MB"}) as wire, anyio.create_task_group() as tasks:
        assert (await wire.send("t", b"first")).code == 0
        tasks.start_soon(lambda: wire.pull("t", 1, suspend_ms=15_000, expression=long))
        await held(wire)
        refused = await wire.pull("t", 1, suspend_ms=15_000, expression=long)
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert "pulls of this connection on hold have 281024 bytes and this one 281024; 524288" in str(refused.remark)
        assert wire.running.held_pulls.bytes == 281_024
        tasks.start_soon(lambda: wire.pull("t", 1, suspend_ms=15_000, expression="a || b"))
        with anyio.fail_after(PATIENCE):
            while len(wire.running.held_pulls) < 2:
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()


async def put_all(store: MessageStore, *messages: StoredMessage) -> None:
    for message in messages:
        end = store.put(message).end_offset
    await store.durable(end)


def coloured(colour: str, body: bytes) -> StoredMessage:
    return StoredMessage("t", 0, body, colour.encode())


def red() -> PropertyFilter:
    return PropertyFilter(SubscriptionData("t", "colour=red", expression_type="PROPERTY"))


SMALL = StoreOptions(
    mapped_file_size_commit_log=16 << 20,
    mapped_file_size_consume_queue=200_000,
    max_hash_slot_num=100,
    max_index_num=1000,
    allocate_ahead=0,
)


async def test_what_one_read_looks_at_in_vain_is_bounded_in_bytes() -> None:
    async with MessageStore("/store", SMALL, storage=MemoryStorage()) as store:
        await put_all(store, *[coloured(BLUE, bytes(1 << 20))] * 7, coloured(RED, b"at last"))
        steps = []
        offset = 0
        while not (found := store.get("t", 0, offset, filter=(selects := red()))).records:
            assert found.status is GetMessageStatus.NO_MATCHED_MESSAGE
            assert selects.looked_at <= FILTERED_BYTES // (1 << 20) + 1
            assert found.next_begin_offset > offset
            offset = found.next_begin_offset
            steps.append(offset)
        assert len(steps) == 1
        assert decode_message(found.records[0])[0].body == b"at last"
        assert found.next_begin_offset == 8


@pytest.mark.parametrize("seed", range(5))
async def test_reads_one_after_another_find_each_wanted_message_once(seed: int) -> None:
    chance = random.Random(seed)
    colours = [RED if chance.random() < 0.3 else BLUE for _ in range(200)]
    async with MessageStore("/store", SMALL, storage=MemoryStorage()) as store:
        await put_all(
            store,
            *[coloured(colour, b"%d" % number * chance.randrange(1, 40)) for number, colour in enumerate(colours)],
        )
        found: list[int] = []
        offset = 0
        while offset < len(colours):
            most, most_bytes = chance.randrange(1, 10), chance.choice([1, 300, 2000, None])
            answer = store.get("t", 0, offset, most, most_bytes, filter=red())
            assert len(answer.records) <= most
            if most_bytes is not None and len(answer.records) > 1:
                assert sum(map(len, answer.records)) <= most_bytes
            found += [decode_message(record)[0].queue_offset for record in answer.records]
            assert answer.next_begin_offset > offset
            offset = answer.next_begin_offset
        assert found == [number for number, colour in enumerate(colours) if colour == RED]
