"""Users who have just the permissions that the documentation lists, on Apache's brokers with access control."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from rocketbox.client import (
    Admin,
    ClientOptions,
    ConsumerOptions,
    Credentials,
    CredentialsFile,
    MQClientInstance,
    Producer,
    PushConsumer,
)
from rocketbox.client.sending import Sender
from rocketbox.errors import AccessDeniedError, Reject, RetryLater
from rocketbox.message import ConsumeFromWhere, ConsumeMode, Message, MessageExt
from tests.conformance.acl import ADMIN, AclServers, May, acl_servers, documented
from tests.conformance.apache import EACH_VERSION
from tests.support.waiting import until

pytestmark = [pytest.mark.apache, pytest.mark.smoke, pytest.mark.anyio]


def user(name: str, secret: str = "") -> Credentials:
    return Credentials(access_key=name, secret_key=secret or f"secret-of-{name}")


SENDER, BOARD, MORGUE = user("sender"), user("boarding"), user("gravedigger")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", params=EACH_VERSION)
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AclServers]:
    with acl_servers(tmp_path_factory.mktemp(request.param), request.param, traceTopicEnable="true") as servers:
        anyio.run(_prepare, servers)
        yield servers


async def _prepare(servers: AclServers) -> None:
    await servers.let(SENDER, documented("send to") | documented("send message traces"))
    await servers.let(BOARD, documented("listen to it"))
    await servers.let(MORGUE, documented("read the dead letters"))
    async with Admin(name_server=servers.name_server, client_options=ClientOptions(credentials=ADMIN)) as admin:
        await admin.create_topic("departures", queues=2)
    await _until_let_in(servers, SENDER)


async def _until_let_in(servers: AclServers, sender: Credentials) -> None:
    """Brokers of 4.x look at their file twice a second."""
    async with producer(servers, sender) as sending:
        with anyio.fail_after(30):
            while True:
                try:
                    await sending.send(Message("departures", b"let in"))
                except AccessDeniedError:
                    await anyio.sleep(0.2)
                else:
                    return


def producer(servers: AclServers, credentials: object) -> Producer:
    return Producer(
        "desk",
        name_server=servers.name_server,
        client_options=ClientOptions(credentials=credentials),  # type: ignore[arg-type]
    )


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

    options = ConsumerOptions(consume_from_where=begin, consume_mode=mode, max_reconsume_times=3)
    client = ClientOptions(credentials=who)
    name_server = servers.name_server
    async with PushConsumer(group, name_server=name_server, client_options=client, options=options) as consumer:
        await consumer.subscribe(topic, "*", each)
        yield consumer


async def test_listed_permissions_are_enough_for_retries_dead_letters_order_and_traces(running: AclServers) -> None:
    seen: list[tuple[bytes, int]] = []

    def handle(message: MessageExt) -> None:
        seen.append((message.body, message.reconsume_times))
        if message.body == b"again" and message.reconsume_times == 0:
            raise RetryLater(timedelta(seconds=1))
        if message.body in (b"dead", b"buried"):
            raise Reject("no use")

    async with producer(running, SENDER) as sending:
        async with consuming(running, BOARD, "board", handle, begin=ConsumeFromWhere.LAST_OFFSET) as consumer:
            for body in (b"first", b"again", b"dead"):
                await sending.send(Message("departures", body))
            await until(lambda: {(b"first", 0), (b"again", 0), (b"again", 1), (b"dead", 0)} <= set(seen))
            assert consumer.state().refused == ()
        await sending.send(Message("RMQ_SYS_TRACE_TOPIC", b"a trace"))
        async with consuming(running, BOARD, "board", handle, mode=ConsumeMode.ORDERLY) as consumer:
            for number in range(5):
                await sending.send(Message("departures", b"%d" % number, hash_key="one"))
            await sending.send(Message("departures", b"buried"))
            await until(lambda: {(b"%d" % number, 0) for number in range(5)} | {(b"buried", 0)} <= set(seen))
            assert consumer.state().refused == ()
    numbers = [body for body, _ in seen if body.isdigit()]
    assert numbers == sorted(numbers)
    dead: list[bytes] = []
    async with consuming(running, MORGUE, "morgue", lambda each: dead.append(each.body), topic="%DLQ%board"):
        await until(lambda: {b"dead", b"buried"} <= set(dead))


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
    async with producer(running, lent) as sending:
        await sending.send(Message("departures", b"with a token"))


@pytest.mark.parametrize("lacking", ["group", "topic"])
async def test_a_group_that_may_not_read_says_so_and_goes_on_when_it_may(running: AclServers, lacking: str) -> None:
    enough = documented("listen to it")
    group = f"late-{lacking}"
    enough = May(enough.topics, {group: "SUB"}, {**enough.policies, f"Group:{group}": ("Sub",)})
    policies = {name: actions for name, actions in enough.policies.items() if not name.lower().startswith(lacking)}
    little = May({} if lacking == "topic" else enough.topics, {} if lacking == "group" else enough.groups, policies)
    latecomer = user(f"latecomer-{lacking}")
    await running.let(latecomer, little)
    await anyio.sleep(1.5 if running.has_acl_1 else 0)
    seen: list[bytes] = []
    async with consuming(running, latecomer, group, lambda message: seen.append(message.body)) as consumer:
        resource = "topic departures" if lacking == "topic" else f"group {group}"
        await until(lambda: f"user late... lacks SUB on {resource}" in consumer.state().refused)
        assert seen == []
        await running.let(latecomer, enough)
        await until(lambda: b"let in" in seen)
        await until(lambda: consumer.state().refused == (), seconds=90)


async def test_keys_are_rotated_while_messages_are_sent_and_none_is_lost(running: AclServers, tmp_path: Path) -> None:
    rotated = user("rotated", "the-first-secret")
    await running.let(rotated, documented("send to"))
    await _until_let_in(running, rotated)
    file = tmp_path / "keys.yaml"
    file.write_text("accessKey: rotated\nsecretKey: the-first-secret\n")
    acknowledged: set[bytes] = set()
    ended = anyio.Event()

    async def send(sending: Producer) -> None:
        number = 0
        while not ended.is_set():
            number += 1
            result = await sending.send(Message("departures", b"rotated %d" % number), timeout=20)
            acknowledged.add(b"rotated %d" % number)
            assert result.msg_id
            await anyio.sleep(0.01)

    async with producer(running, CredentialsFile(file)) as sending, anyio.create_task_group() as tasks:
        tasks.start_soon(send, sending)
        await until(lambda: len(acknowledged) > 10)
        # First the file, then the servers would leave a moment as well: both orders happen to users.
        await running.let(user("rotated", "the-second-secret"), documented("send to"))
        await anyio.sleep(0.2)
        file.write_text("AccessKey=rotated\nSecretKey=the-second-secret\n")
        before = len(acknowledged)
        await until(lambda: len(acknowledged) > before + 100)
        ended.set()
    seen: set[bytes] = set()
    async with consuming(running, BOARD, "board", lambda message: seen.add(message.body)):
        await until(lambda: acknowledged <= seen)
