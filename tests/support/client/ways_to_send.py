"""Each way to send once, by two users who may just what the documentation lists: a seller, and a clerk who consumes."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import anyio

from rocketbox.client import ClientOptions, ConsumerOptions, MQClientInstance, Producer, ProducerOptions, PushConsumer
from rocketbox.message import ConsumeFromWhere, LocalTransactionState, Message, MessageExt
from tests.support.broker.rights import May, documented
from tests.support.client.consuming import Seen

__all__ = ["OF_CLERKS", "OF_SELLERS", "each_way_to_send"]

_TRACED = documented("send message traces")
OF_SELLERS: May = documented("send to") | documented("ask for replies in") | _TRACED
OF_CLERKS: May = documented("listen to it in group") | documented("answer requests in") | _TRACED
LARGE = b"to be compressed " * 1_000
COMMIT, ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK


class _Book:
    """What became of transactions that were left open, by what they say."""

    def __init__(self) -> None:
        self.asked: set[bytes] = set()
        self.topics: set[str] = set()

    async def check(self, message: MessageExt) -> LocalTransactionState:
        self.asked.add(message.body)
        self.topics.add(message.topic)
        return COMMIT if message.body == b"checked: commit" else ROLLBACK


async def each_way_to_send(
    name_server: str, seller: ClientOptions, clerk: ClientOptions, *, has_timers: bool = True, seconds: float = 120.0
) -> None:
    """Send to "departures" in each way, traced, and ask in "quotes"; all that should come does, and no more.

    Both topics are there, and so is that of message trace. ``has_timers``: whether the broker knows times of delivery
    and recalls.
    """
    seen, book = Seen(), _Book()
    first = ConsumerOptions(consume_from_where=ConsumeFromWhere.FIRST_OFFSET, enable_msg_trace=True)
    options = ProducerOptions(send_message_timeout=12.0, enable_msg_trace=True)
    joining = replace(options, auto_batch=True)
    with anyio.fail_after(seconds):
        async with (
            MQClientInstance(name_server, options=seller) as selling,
            MQClientInstance(name_server, options=clerk) as at_the_counter,
            Producer("desk", instance=selling, options=options, transaction_checker=book.check) as producer,
            Producer("joining", instance=selling, options=joining) as batching,
            PushConsumer("board", instance=at_the_counter, options=first) as board,
            PushConsumer("pricing", instance=at_the_counter, options=first) as pricing,
        ):

            async def answer(requests: list[MessageExt]) -> None:
                for request in requests:
                    await pricing.reply(request, b"99 for " + request.body)

            await pricing.subscribe("quotes", "*", answer)
            await board.subscribe("departures", "*", seen)
            for body in (b"checked: commit", b"checked: roll back"):
                await producer.transaction(Message("departures", body)).begin()
            async with producer.transaction(Message("departures", b"committed")):
                pass
            async with producer.transaction(Message("departures", b"rolled back")) as transaction:
                transaction.rollback()
            await producer.send_one_way(Message("departures", b"one way"))
            await producer.send_many([Message("departures", b"of many"), Message("departures", LARGE)])
            await producer.send_batch([Message("departures", b"of a batch"), Message("departures", b"of it too")])
            async with anyio.create_task_group() as tasks:
                for body in (b"joined", b"joined too"):
                    tasks.start_soon(batching.send, Message("departures", body))
            expected = {
                b"checked: commit", b"committed", b"one way", b"of many", LARGE, b"of a batch", b"of it too",
                b"joined", b"joined too",
            }  # fmt: skip
            if has_timers:
                waiting = await producer.send(Message("departures", b"recalled", delay=timedelta(milliseconds=2_500)))
                assert await producer.recall(waiting.recall_handle) == waiting.msg_id
                await producer.send(Message("departures", b"in time", delay=timedelta(milliseconds=1_200)))
                expected.add(b"in time")
            reply = await producer.request(Message("quotes", b"UA1"), timeout=seconds)
            assert (reply.body, reply.topic) == (b"99 for UA1", "DefaultCluster_REPLY_TOPIC")
            await seen.all_of(expected)
            while len(book.asked) < 2:
                await anyio.sleep(0.05)  # the broker asks when it is time
            assert board.state().refused == pricing.state().refused == ()
    for traced in (producer.trace, batching.trace, board.trace, pricing.trace):
        assert traced is not None
        assert traced.sent > 0
        assert (traced.waiting, traced.dropped, traced.failed) == (0, 0, 0)
    assert set(seen.bodies) == expected
    assert {message.topic for message in seen.messages} | book.topics == {"departures"}
