"""Users who have just the permissions that the documentation lists, on Apache's brokers with access control."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from rocketbox.client import (
    Admin,
    ClientOptions,
    ConsumerOptions,
    Credentials,
    CredentialsFile,
    MQClientInstance,
    Producer,
    ProducerOptions,
    PushConsumer,
    TraceCounts,
)
from rocketbox.client.sending import Sender
from rocketbox.errors import AccessDeniedError, Reject, RetryLater
from rocketbox.message import ConsumeFromWhere, ConsumeMode, LocalTransactionState, Message, MessageExt
from tests.conformance.acl import AclServers, producer, user
from tests.support.broker.rights import May, documented
from tests.support.waiting import until

pytestmark = [pytest.mark.apache, pytest.mark.smoke, pytest.mark.anyio]


SENDER, BOARD, MORGUE = user("sending"), user("boarding"), user("gravedigger")
LAKE = user("filling-the-lake")
ASKER, PRICER = user("asking-for-quotes"), user("pricing-quotes")
ROTATED = user("rotated", "the-first-one")
LATE = {"group": user("latecomer-to-group"), "topic": user("latecomer-to-topic")}


@pytest.fixture(scope="module")
def running(acl: AclServers) -> AclServers:
    anyio.run(_prepare, acl)
    return acl


async def _prepare(servers: AclServers) -> None:
    await servers.let(SENDER, documented("send to") | documented("send message traces"))
    await servers.let(BOARD, documented("listen to it in group"))
    await servers.let(MORGUE, documented("read the dead letters"))
    await servers.let(LAKE, documented("listen to it with Spark") | documented("give up messages of that listener"))
    await servers.let(ASKER, documented("ask for replies in"))
    await servers.let(PRICER, documented("answer requests in"))
    await servers.let(ROTATED, documented("send to"))
    for lacking, latecomer in LATE.items():
        await servers.let(latecomer, _late(lacking, all_of_it=False))
    for topic in ("departures", "quotes"):
        await servers.make_topic(topic)
    if servers.has_acl_1:  # there it is the administrator who makes topics
        await servers.make_topic("%DLQ%lake")
    await servers.until_known(SENDER)
    async with producer(servers.name_server, SENDER) as sending:
        await sending.send(Message("departures", b"let in"))


def _late(lacking: str, *, all_of_it: bool) -> May:
    """What a latecomer may, who lacks the topic or the group in the beginning."""
    topics, group = documented("listen to it in group").topics, f"late-{lacking}"
    policies = {**documented("listen to it in group").policies, f"Group:{group}": ("Sub",)}
    if all_of_it:
        return May(topics, {group: "SUB"}, policies)
    rest = {name: actions for name, actions in policies.items() if not name.lower().startswith(lacking)}
    return May({} if lacking == "topic" else topics, {} if lacking == "group" else {group: "SUB"}, rest)


@asynccontextmanager
async def consuming(
    servers: AclServers,
    who: Credentials,
    group: str,
    handle: Callable[[MessageExt], None],
    *,
    topic: str = "departures",
    mode: ConsumeMode = ConsumeMode.CONCURRENTLY,
    begin: ConsumeFromWhere = ConsumeFromWhere.FIRST_OFFSET,
) -> AsyncIterator[PushConsumer]:
    async def each(batch: list[MessageExt]) -> None:
        for message in batch:
            handle(message)

    options = ConsumerOptions(
        consume_from_where=begin, consume_mode=mode, max_reconsume_times=3, suspend_current_queue_time=0.1
    )
    client = ClientOptions(credentials=who)
    name_server = servers.name_server
    async with PushConsumer(group, name_server=name_server, client_options=client, options=options) as consumer:
        await consumer.subscribe(topic, "*", each)
        yield consumer


async def test_listed_permissions_are_enough_for_retries_dead_letters_order_and_traces(running: AclServers) -> None:
    seen: list[tuple[bytes, int]] = []
    in_order = (b"0", b"1", b"2", b"hopeless", b"3", b"4")

    def handle(message: MessageExt) -> None:
        seen.append((message.body, message.reconsume_times))
        if message.body == b"again" and message.reconsume_times == 0:
            raise RetryLater(timedelta(seconds=1))
        if message.body in (b"dead", b"buried"):
            raise Reject("no use")
        if message.body == b"hopeless" or (message.body == b"2" and message.reconsume_times == 0):
            raise ValueError("its queue waits for it")

    async with producer(running.name_server, SENDER) as sending:
        async with consuming(running, BOARD, "board", handle, begin=ConsumeFromWhere.LAST_OFFSET) as consumer:
            for body in (b"first", b"again", b"dead"):
                await sending.send(Message("departures", body))
            await until(lambda: {(b"first", 0), (b"again", 0), (b"again", 1), (b"dead", 0)} <= set(seen))
            assert consumer.state().refused == ()
        async with Producer(
            "traced", name_server=running.name_server, options=ProducerOptions(enable_msg_trace=True),
            client_options=ClientOptions(credentials=SENDER),
        ) as traced:  # fmt: skip
            await traced.send(Message("departures", b"traced"))
        assert traced.trace == TraceCounts(waiting=0, sent=1, dropped=0, failed=0)
        async with consuming(running, BOARD, "board", handle, mode=ConsumeMode.ORDERLY) as consumer:
            for body in in_order:
                await sending.send(Message("departures", body, hash_key="one"))
            await sending.send(Message("departures", b"buried"))
            await until(lambda: {(b"4", 0), (b"buried", 0)} <= set(seen) and not consumer.state().held)
            assert consumer.state().refused == ()
    assert [each for each in seen if each[0] in in_order] == [
        (b"0", 0), (b"1", 0), (b"2", 0), (b"2", 1), *((b"hopeless", times) for times in range(4)), (b"3", 0), (b"4", 0),
    ]  # fmt: skip
    dead: list[bytes] = []
    async with consuming(running, MORGUE, "morgue", lambda each: dead.append(each.body), topic="%DLQ%board"):
        await until(lambda: {b"dead", b"buried", b"hopeless"} <= set(dead))


async def test_listed_permissions_are_enough_for_dead_letters_of_spark(running: AclServers, tmp_path: Path) -> None:
    """What a task of Spark's does; no session is needed."""
    pytest.importorskip("pyspark")
    import pyarrow as pa
    from pyspark.sql import types as t

    from rocketbox.spark.writing import SentRows, plan_write

    async with producer(running.name_server, SENDER) as sending:
        sent = await sending.send(Message("departures", b"no flight"))
    keys = tmp_path / "keys.yml"
    keys.write_text(f"access-key: {LAKE.access_key}\nsecret-key: {LAKE.secret_key}\n")
    keys.chmod(0o600)
    columns = {
        "body": (t.BinaryType(), b"no flight"), "topic": (t.StringType(), "departures"),
        "broker_name": (t.StringType(), sent.queue.broker_name), "queue_id": (t.IntegerType(), sent.queue.queue_id),
        "queue_offset": (t.LongType(), sent.queue_offset), "reason": (t.StringType(), "it does not fit"),
    }  # fmt: skip
    schema = t.StructType([t.StructField(name, kind) for name, (kind, _) in columns.items()])
    options = {"nameServer": running.name_server, "credentialsFile": str(keys), "sendTimeout": "12s"}
    write = plan_write({**options, "deadLettersOf": "lake"}, schema, overwrite=False)
    row = pa.RecordBatch.from_pylist([{name: value for name, (_, value) in columns.items()}])
    assert await anyio.to_thread.run_sync(write.run, iter([row])) == SentRows(1)
    async with Admin(name_server=running.name_server, client_options=running.administrator) as admin:
        dead: list[MessageExt] = []
        for queue in await admin.queues("%DLQ%lake"):
            dead += (await admin.pull(queue, 0)).messages
    assert [(each.body, each.properties["DLQ_REASON"]) for each in dead] == [(b"no flight", "it does not fit")]


async def test_listed_permissions_are_enough_to_ask_and_answer(running: AclServers) -> None:
    client = ClientOptions(credentials=PRICER)
    options = ConsumerOptions(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    async with (
        producer(running.name_server, ASKER) as asking,
        PushConsumer("pricing", name_server=running.name_server, client_options=client, options=options) as consumer,
    ):

        async def answer(requests: list[MessageExt]) -> None:
            for request in requests:
                await consumer.reply(request, b"99 for " + request.body)

        await consumer.subscribe("quotes", "*", answer)
        reply = await asking.request(Message("quotes", b"UA1"), timeout=30)
        assert reply.body == b"99 for UA1"
        assert consumer.state().refused == ()


async def test_listed_permissions_are_enough_for_transactions_times_and_recalls(running: AclServers) -> None:
    seen: list[bytes] = []

    async def check(message: MessageExt) -> LocalTransactionState:
        raise AssertionError("nothing is left open")

    def trading(who: Credentials) -> Producer:
        client = ClientOptions(credentials=who)
        return Producer("trade", name_server=running.name_server, client_options=client, transaction_checker=check)

    async with (
        trading(SENDER) as sending,
        trading(BOARD) as another,
        consuming(running, BOARD, "board", lambda each: seen.append(each.body), begin=ConsumeFromWhere.LAST_OFFSET),
    ):
        async with sending.transaction(Message("departures", b"committed")):
            pass
        async with sending.transaction(Message("departures", b"rolled back")) as transaction:
            transaction.rollback()
        await sending.send_batch([Message("departures", b"of a batch"), Message("departures", b"of it too")])
        await sending.send(Message("departures", b"later", delay=timedelta(seconds=1)))
        expected = {b"committed", b"of a batch", b"of it too", b"later"}
        if not running.has_acl_1:
            waiting = await sending.send(Message("departures", b"never", delay=timedelta(seconds=45)))
            with pytest.raises(AccessDeniedError):
                await another.recall(waiting.recall_handle)
            assert await sending.recall(waiting.recall_handle) == waiting.msg_id
        await until(lambda: expected <= set(seen))
        with pytest.raises(AccessDeniedError):
            await another.transaction(Message("departures", b"never")).begin()
    assert not {b"rolled back", b"never"} & set(seen)


async def test_a_retry_that_is_sent_like_a_new_message_takes_no_more(running: AclServers) -> None:
    options = ClientOptions(credentials=BOARD)
    async with MQClientInstance(running.name_server, options=options) as instance:
        with anyio.fail_after(30):
            while await instance.find_route("%RETRY%board", refresh=True) is None:
                await anyio.sleep(0.2)
        properties = {"RECONSUME_TIME": "1", "MAX_RECONSUME_TIMES": "3", "RETRY_TOPIC": "departures"}
        await Sender("board", instance).send_prepared("%RETRY%board", b"again", properties)


async def test_tokens_are_signed_and_not_looked_at(running: AclServers) -> None:
    lent = Credentials(access_key=SENDER.access_key, secret_key=SENDER.secret_key, security_token="ended long ago")
    async with producer(running.name_server, lent) as sending:
        await sending.send(Message("departures", b"with a token"))


async def test_a_group_that_may_not_read_says_so_and_goes_on_when_it_may(running: AclServers) -> None:
    seen: dict[str, set[bytes]] = {lacking: set() for lacking in LATE}

    def handler_of(lacking: str) -> Callable[[MessageExt], None]:
        return lambda message: seen[lacking].add(message.body)

    async with AsyncExitStack() as stack:
        consumers = {
            lacking: await stack.enter_async_context(
                consuming(running, latecomer, f"late-{lacking}", handler_of(lacking))
            )
            for lacking, latecomer in LATE.items()
        }
        for lacking, resource in (("group", "group late-group"), ("topic", "topic departures")):
            missing = f"user late... lacks SUB on {resource}"
            await until(lambda: missing in consumers[lacking].state().refused)  # noqa: B023 # it ends before the next
        assert seen == {"group": set(), "topic": set()}
        for lacking, latecomer in LATE.items():
            await running.let(latecomer, _late(lacking, all_of_it=True))
        for lacking, consumer in consumers.items():
            await until(lambda: b"let in" in seen[lacking])  # noqa: B023
            await until(lambda: consumer.state().refused == (), seconds=90)  # noqa: B023


async def test_keys_are_rotated_while_messages_are_sent_and_none_is_lost(running: AclServers, tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(f"accessKey: rotated\nsecretKey: {ROTATED.secret_key}\n")
    acknowledged: set[bytes] = set()
    refused: list[AccessDeniedError] = []
    ended = anyio.Event()

    async def send(sending: Producer) -> None:
        while not ended.is_set():
            body = b"rotated %d" % len(acknowledged)
            try:
                await sending.send(Message("departures", body))
            except AccessDeniedError as error:
                refused.append(error)
                continue
            acknowledged.add(body)
            await anyio.sleep(0.01)

    async with producer(running.name_server, CredentialsFile(file)) as sending, anyio.create_task_group() as tasks:
        tasks.start_soon(send, sending)
        await until(lambda: len(acknowledged) > 10)
        renewed = user("rotated", "the-second-one")
        await running.let(renewed, documented("send to"))
        await running.until_known(renewed)
        file.write_text(f"AccessKey=rotated\nSecretKey={renewed.secret_key}\n")
        before = len(acknowledged)
        await until(lambda: len(acknowledged) > before + 50)
        ended.set()
    assert all(error.wrong_keys for error in refused)
    seen: set[bytes] = set()
    async with consuming(running, BOARD, "board", lambda message: seen.add(message.body)):
        await until(lambda: acknowledged <= seen)
