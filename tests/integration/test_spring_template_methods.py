"""Each method of rocketmq-spring's ``RocketMQTemplate``, by the call that is written for it here (2.3.4).

What its own tests accept ("connect to null failed") is checked by what a listener gets. Those of them that send:

    there                                                       | here
    testSendMessage: sync, async, orderly, delay                | test_sync_send..., test_async_sends...,
                                                                | test_orderly_sends..., test_sends_with_a_delay...
    testBatchSendMessage, testAsyncBatchSendMessage, empty ones | test_sync_send_of_a_collection...
    testSendMessage_withCustomAsyncSenderExecutor               | none: a coroutine is sent by the loop
    testSendAndReceive_NullMessage, _Sync, _Async               | test_send_and_receive..., test_a_request_without...
    testSendTransactionalMessage, testTransactionListener       | test_a_message_in_a_transaction
    testHandleMessage: a reply is sent                          | test_send_and_receive..., test_listeners_answer
    testMessageBuilder, testHeaderConvertToRMQMsg               | test_sync_send..., test_tags_and_delays...
    testPayload, testDoConvertMessage                           | test_sync_send..., test_payload_formats
    ExtTemplate.testProperties, testTransactionListener         | test_application_clusters, test_transaction_listeners
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import GenericAlias, ModuleType
from typing import Any

import anyio
import pytest

from rocketbox import InvalidMessageError, LocalTransactionState, Message, ReplyTimeoutError
from rocketbox.testing import Harness
from tests.support.framework.services import ServiceMaker

pytestmark = pytest.mark.anyio
PAGE = Path(__file__).parents[2] / "docs/reference/coming-from-rocketmq-spring.md"
METHODS = (
    "syncSend syncSendDelayTimeSeconds syncSendDelayTimeMills syncSendDeliverTimeMills syncSendOrderly asyncSend "
    "asyncSendOrderly sendOneWay sendOneWayOrderly sendAndReceive sendMessageInTransaction receive send convertAndSend "
    "getProducer setProducer getConsumer setConsumer getCharset setCharset getMessageQueueSelector "
    "setMessageQueueSelector setAsyncSenderExecutor getMessageConverter setMessageConverter getDefaultDestination "
    "setDefaultDestination afterPropertiesSet destroy"
).split()

SETTINGS = """
rocketmq:
  name-server: embedded
  producer: {group: desk, default-destination: "orders:default"}
"""
DESK = """
    from __future__ import annotations

    from datetime import datetime

    from pydantic import BaseModel
    from rocketbox import LocalTransactionState, MessageExt, RocketBox, rocketmq_listener, rocketmq_transaction_listener

    class Order(BaseModel):
        number: int
        at: datetime | None = None

    got: list[MessageExt] = []

    @rocketmq_listener(topic="orders", consumer_group="desk")
    async def on_order(message: MessageExt) -> None:
        got.append(message)

    @rocketmq_listener(topic="asks", consumer_group="asks")
    async def answer(order: Order) -> list[Order]:
        return [order, Order(number=order.number + 1)]

    @rocketmq_transaction_listener(topic="orders")
    async def was_stored(message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.COMMIT

    app = RocketBox("desk", scan=[__name__])
"""
POST_PROCESSOR = """
    from dataclasses import replace

    from rocketbox import bean
    from rocketbox.client import SendContext, SendMiddleware, SendNext

    @bean
    def keyed() -> SendMiddleware:
        async def send(context: SendContext, call_next: SendNext):
            context.messages = [replace(message, keys=("KEY-1",)) for message in context.messages]
            return await call_next(context)

        return send

"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def desk(service: ServiceMaker) -> ModuleType:
    return service(DESK, SETTINGS)


@pytest.fixture
async def harness(desk: ModuleType) -> AsyncIterator[Harness]:
    async with Harness(desk.app) as harness:
        yield harness


async def bodies(harness: Harness, desk: ModuleType) -> list[bytes]:
    """What the listener has got by now."""
    await harness.drain()
    return sorted(message.body for message in desk.got)


@pytest.mark.parametrize("method", METHODS)
def test_each_method_has_a_row_in_the_page(method: str) -> None:
    table = PAGE.read_text().split("## Methods of `RocketMQTemplate`")[1].split("\n## ")[0]
    first_cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("|")]
    assert [cell for cell in first_cells if re.search(rf"`{method}\b", cell)], method


async def test_sync_send_of_objects_texts_bytes_and_messages(harness: Harness, desk: ModuleType) -> None:
    template, order = harness.app.template, desk.Order(number=1, at=datetime(2026, 11, 23, 12, tzinfo=UTC))
    assert (await template.send("orders:new", order, keys="KEY-1", headers={"desk": "JFK"})).queue_offset == 0
    await template.send("orders", "text", timeout=3.0)
    await template.send("orders", b"\xff\x00")
    await template.send("orders", Message("", b"message", keys=("KEY-2",)))
    assert len(await bodies(harness, desk)) == 4
    first = next(message for message in desk.got if message.keys == ("KEY-1",))
    assert (first.tag, first.properties["desk"]) == ("new", "JFK")
    assert desk.Order.model_validate_json(first.body) == order


async def test_send_and_convert_and_send_to_the_default_destination(harness: Harness, desk: ModuleType) -> None:
    await harness.app.template.send(None, desk.Order(number=1), headers={"desk": "JFK"})
    await harness.drain()
    assert [(message.tag, message.properties["desk"]) for message in desk.got] == [("default", "JFK")]


async def test_sync_send_of_a_collection_is_one_batch(harness: Harness, desk: ModuleType) -> None:
    results = await harness.app.template.send_batch("orders", ["a", "b", "c"])
    assert len({result.queue for result in results}) == 1
    assert await bodies(harness, desk) == [b"a", b"b", b"c"]
    with pytest.raises(InvalidMessageError, match="a batch needs at least one message"):
        await harness.app.template.send_batch("orders", [])


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({"delay_level": 2}, 5.0),
        ({"delay": "5s", "timeout": "3s"}, 5.0),
        ({"delay": timedelta(seconds=7)}, 7.0),
        ({"delay": timedelta(milliseconds=7300)}, 7.3),
    ],
)
async def test_sends_with_a_delay_come_then(
    harness: Harness, desk: ModuleType, options: dict[str, object], seconds: float
) -> None:
    await harness.app.template.send("orders", "late", **options)  # type: ignore[arg-type]  # of all kinds
    await harness.advance(timedelta(seconds=seconds - 0.5))
    assert await bodies(harness, desk) == []
    await harness.advance(timedelta(seconds=1.5))
    assert await bodies(harness, desk) == [b"late"]


async def test_a_send_with_a_time_comes_then(desk: ModuleType) -> None:
    now = datetime(2026, 11, 23, 12, tzinfo=UTC)
    async with Harness(desk.app, now=now) as harness:
        await harness.app.template.send("orders", "late", deliver_at=now + timedelta(seconds=30))
        await harness.advance(timedelta(seconds=29))
        assert await bodies(harness, desk) == []
        await harness.advance(timedelta(seconds=3))
        assert await bodies(harness, desk) == [b"late"]


async def test_orderly_sends_go_to_the_queue_of_their_key(harness: Harness, desk: ModuleType) -> None:
    template = harness.app.template
    one = [await template.send("orders", f"{number}", hash_key="order-7") for number in range(3)]
    batch = await template.send_batch("orders", ["a", "b"], hash_key="order-7")
    assert len({result.queue for result in (*one, *batch)}) == 1
    assert [result.queue_offset for result in (*one, *batch)] == [0, 1, 2, 3, 4]
    await template.send_one_way("orders", "last", hash_key="order-7")
    await harness.drain()
    assert {message.queue_id for message in desk.got} == {one[0].queue.queue_id}


async def test_orderly_sends_with_a_delay_level_come_then_in_the_queue_of_their_key_and_in_order(
    harness: Harness, desk: ModuleType
) -> None:
    template = harness.app.template
    at_once = await template.send("orders", "at once", hash_key="order-7")
    for number in range(3):
        late = await template.send("orders", f"late {number}", hash_key="order-7", delay_level=2)
        assert late.queue == at_once.queue
    await harness.advance(timedelta(seconds=4.5))
    assert await bodies(harness, desk) == [b"at once"]
    await harness.advance(timedelta(seconds=1.5))
    await harness.drain()
    stored = sorted(desk.got, key=lambda message: message.queue_offset)
    assert [message.body for message in stored] == [b"at once", b"late 0", b"late 1", b"late 2"]
    assert {message.queue_id for message in stored} == {at_once.queue.queue_id}
    assert {message.properties["__SHARDINGKEY"] for message in stored} == {"order-7"}


async def test_async_sends_in_tasks_keep_the_order_of_their_keys_and_send_many_keeps_their_queue(
    harness: Harness, desk: ModuleType
) -> None:
    template, keys = harness.app.template, ("order-1", "order-2", "order-3")

    async def send_all_of(key: str) -> None:
        for number in range(4):
            await template.send("orders", f"{key} {number}", hash_key=key)

    async with anyio.create_task_group() as tasks:
        for key in keys:
            tasks.start_soon(send_all_of, key)
    many = {key: await template.send_many("orders", [f"{key} many"] * 2, hash_key=key) for key in keys}
    await harness.drain()
    for key in keys:
        of_key = [message for message in desk.got if message.properties["__SHARDINGKEY"] == key]
        in_order = [message.body.decode() for message in sorted(of_key, key=lambda message: message.queue_offset)]
        assert in_order == [*(f"{key} {number}" for number in range(4)), f"{key} many", f"{key} many"]
        assert {message.queue_id for message in of_key} == {result.queue.queue_id for result in many[key]}
        assert len({message.queue_id for message in of_key}) == 1
    assert len({message.queue_id for message in desk.got}) > 1, "one queue for all shows nothing"


async def test_a_post_processor_is_a_middleware_or_a_message_that_is_changed_before_it_is_sent(
    service: ServiceMaker,
) -> None:
    desk = service(DESK.replace("    app = ", POST_PROCESSOR + "    app = "), SETTINGS)
    async with Harness(desk.app) as harness:
        template = harness.app.template
        await template.send("orders:new", "by a middleware", headers={"desk": "JFK"})
        message = template.to_message("orders:new", "by hand", headers={"desk": "JFK"})
        await template.send("orders", replace(message, tag="changed"))
        await harness.drain()
    told = {message.body: (message.tag, message.properties["desk"], message.keys) for message in desk.got}
    assert told == {b"by a middleware": ("new", "JFK", ("KEY-1",)), b"by hand": ("changed", "JFK", ("KEY-1",))}


async def test_async_sends_are_sends_in_tasks_or_send_many(harness: Harness, desk: ModuleType) -> None:
    template = harness.app.template
    async with anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(template.send, "orders", f"task {number}")
    assert len(await template.send_many("orders", ["many 0", "many 1"])) == 2
    chosen = await template.send_many("orders", ["to 3", "too"], queue=lambda queues, message: queues[3])
    assert [result.queue.queue_id for result in chosen] == [3, 3]
    await template.send_one_way("orders", "one way")
    assert await bodies(harness, desk) == [b"many 0", b"many 1", b"one way", b"task 0", b"task 1", b"task 2",
                                            b"to 3", b"too"]  # fmt: skip


async def test_send_and_receive_of_objects_and_generics(harness: Harness, desk: ModuleType) -> None:
    template, order = harness.app.template, desk.Order(number=1)
    orders: Any = GenericAlias(list, (desk.Order,))
    answer = await template.send_and_receive("asks", order, orders, timeout="5s", hash_key="order-1")
    assert [each.number for each in answer] == [1, 2]
    assert isinstance(await template.send_and_receive("asks", order, str), str)
    assert isinstance(await template.send_and_receive("asks", order, bytes), bytes)
    with pytest.raises(ReplyTimeoutError):
        await template.send_and_receive("nobody", order, str, timeout="1s")


async def test_a_request_without_a_payload_is_refused_and_nothing_is_sent(harness: Harness, desk: ModuleType) -> None:
    with pytest.raises(InvalidMessageError, match="None is no payload"):
        await harness.app.template.send_and_receive("orders", None, str)
    assert await bodies(harness, desk) == []


async def test_a_request_has_no_delay_and_the_reply_to_one_that_waits_all_the_same_is_late(
    harness: Harness, desk: ModuleType
) -> None:
    template, order = harness.app.template, desk.Order(number=1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'delay_level'"):
        await template.send_and_receive("asks", order, str, timeout="9s", delay_level=2)  # type: ignore[call-arg]
    late = template.to_message("asks", order, delay_level=2)
    with pytest.raises(ReplyTimeoutError):
        await template.send_and_receive("asks", late, str, timeout="4s")
    began = harness.now
    assert await template.send_and_receive("asks", late, str, timeout="9s")
    assert timedelta(seconds=5) <= harness.now - began < timedelta(seconds=6)


async def test_a_message_in_a_transaction(harness: Harness, desk: ModuleType) -> None:
    template = harness.app.template

    async def work(transaction: object) -> LocalTransactionState:
        return LocalTransactionState.ROLLBACK

    async with template.transaction("orders:paid", "committed"):
        assert await bodies(harness, desk) == []
    assert (await template.send_in_transaction("orders", "rolled back", work)).state is LocalTransactionState.ROLLBACK
    assert await bodies(harness, desk) == [b"committed"]
    with pytest.raises(InvalidMessageError, match="nobody could say what became of a transaction to 'elsewhere'"):
        async with template.transaction("elsewhere", "a"):
            pass


async def test_tags_and_delays_are_no_headers_and_nothing_is_dropped(harness: Harness, desk: ModuleType) -> None:
    for name in ("TAGS", "DELAY", "WAIT", "UNIQ_KEY", "TTL", "rocketmq_TAGS"):
        with pytest.raises(InvalidMessageError, match=f"header '{name}' is a property of RocketMQ's own"):
            await harness.app.template.send("orders", "a", headers={name: "1"})
    with pytest.raises(InvalidMessageError, match="None is no payload"):
        await harness.app.template.send("orders", None)
    assert await bodies(harness, desk) == []
