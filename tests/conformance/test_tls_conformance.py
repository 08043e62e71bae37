"""TLS with certificates on both sides: our client on Apache's servers, and Apache's Java clients on ours."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from rocketbox.client import ClientOptions, ConsumerOptions, Producer, ProducerOptions, PushConsumer, TlsOptions
from rocketbox.errors import Reject, RemotingError, RetryLater, RocketBoxError
from rocketbox.message import ConsumeFromWhere, ConsumeMode, Message, MessageExt
from tests.conformance.apache import EACH_BUT_NEWEST_BETWEEN, EACH_VERSION, apache_servers
from tests.conformance.java_exchange import exchange
from tests.conformance.java_load import JavaLoads
from tests.conformance.java_member import JavaMember
from tests.conformance.secured import TlsFiles
from tests.support.broker.broker_process import BrokerProcess
from tests.support.waiting import until

pytestmark = [pytest.mark.apache, pytest.mark.smoke, pytest.mark.anyio]

SECONDS = 60.0
SEND = ProducerOptions(send_message_timeout=12.0)  # a busy broker on two cores may need it
FIRST = ConsumeFromWhere.FIRST_OFFSET


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module", params=EACH_VERSION)
def name_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, files: TlsFiles
) -> Iterator[str]:
    folder = tmp_path_factory.mktemp(request.param)
    with apache_servers(folder, request.param, java_options=files.java_options, keeps_store=False) as servers:
        yield servers.name_server


class Consumer:
    """A member of a group of its own, and what it took: the first ``retry`` comes back, ``refused`` is dead."""

    def __init__(
        self, name_server: str, client: ClientOptions, topic: str, mode: ConsumeMode, refused: bytes = b""
    ) -> None:
        self.name_server, self.client, self.topic, self.mode, self.refused = name_server, client, topic, mode, refused
        self.group = f"g-{mode.value}-{topic}".replace("%", "_")
        self.bodies: list[bytes] = []
        self.retried: list[bytes] = []
        self._news = anyio.Event()

    async def handle(self, batch: list[MessageExt]) -> None:
        for message in batch:
            if message.body == b"retry" and not message.reconsume_times:
                raise RetryLater(timedelta(seconds=1))
            if message.body == self.refused:
                raise Reject("not wanted")
            if message.reconsume_times:
                self.retried.append(message.body)
            self.bodies.append(message.body)
        self._news.set()
        self._news = anyio.Event()

    async def until(self, wanted: set[bytes]) -> None:
        options = ConsumerOptions(consume_mode=self.mode, consume_from_where=FIRST)
        with anyio.fail_after(SECONDS):
            async with PushConsumer(
                self.group, name_server=self.name_server, client_options=self.client, options=options
            ) as consumer:
                await consumer.subscribe(self.topic, "*", self.handle)
                while not wanted <= set(self.bodies):
                    await self._news.wait()


async def test_messages_are_sent_consumed_retried_and_dead_lettered(
    name_server: str, files: TlsFiles, topic: str
) -> None:
    client = files.client_options
    async with Producer("p", name_server=name_server, client_options=client, options=SEND) as producer:
        await producer.send(Message(topic, b"retry"))
        await producer.send(Message(topic, b"reject"))
        await producer.send_one_way(Message(topic, b"one way"))
        await producer.send_many([Message(topic, b"%d" % number) for number in range(20)])
        await producer.send_batch([Message(topic, b"batch"), Message(topic, b"x" * 500_000)])
        wanted = {b"retry", b"one way", b"batch", b"x" * 500_000, *(b"%d" % number for number in range(20))}
        group = Consumer(name_server, client, topic, ConsumeMode.CONCURRENTLY, b"reject")
        await group.until(wanted)
        assert group.retried == [b"retry"]
        dead = Consumer(name_server, client, f"%DLQ%{group.group}", ConsumeMode.CONCURRENTLY)
        await dead.until({b"reject"})
        assert dead.bodies == [b"reject"]


async def test_orderly_messages_keep_their_order_over_retries_and_a_dead_letter(
    name_server: str, files: TlsFiles, topic: str
) -> None:
    client, group = files.client_options, f"g-{topic}"
    seen: list[tuple[bytes, int]] = []

    async def handle(batch: list[MessageExt]) -> None:
        for message in batch:
            seen.append((message.body, message.reconsume_times))
            if message.body == b"20" or seen[-1] == (b"10", 0):
                raise ValueError("its queue waits for it")

    options = ConsumerOptions(
        consume_mode=ConsumeMode.ORDERLY,
        consume_from_where=FIRST,
        max_reconsume_times=1,
        suspend_current_queue_time=0.1,
    )
    sent = [b"%d" % number for number in range(30)]
    async with (
        Producer("p", name_server=name_server, client_options=client, options=SEND) as producer,
        PushConsumer(group, name_server=name_server, client_options=client, options=options) as consumer,
    ):
        for body in sent:
            await producer.send(Message(topic, body, hash_key="one"))
        await consumer.subscribe(topic, "*", handle)
        await until(lambda: seen[-1:] == [(b"29", 0)] and not consumer.state().held, "the last one")
    assert seen == [
        *((body, 0) for body in sent[:11]), (b"10", 1), *((body, 0) for body in sent[11:21]), (b"20", 1),
        *((body, 0) for body in sent[21:]),
    ]  # fmt: skip
    dead = Consumer(name_server, client, f"%DLQ%{group}", ConsumeMode.CONCURRENTLY)
    await dead.until({b"20"})
    assert dead.bodies == [b"20"]


@pytest.mark.parametrize("tls", [None, "no certificate", "another name"])
async def test_who_is_not_to_be_believed_gets_nowhere(
    name_server: str, files: TlsFiles, topic: str, tls: str | None
) -> None:
    """Whoever it is that does not believe: the server, or we."""
    full = files.client_options.tls
    assert full is not None
    options = {
        None: ClientOptions(),
        "no certificate": ClientOptions(tls_enable=True, tls=TlsOptions(ca_file=full.ca_file)),
        "another name": ClientOptions(
            tls_enable=True,
            tls=TlsOptions(
                ca_file=full.ca_file, cert_file=full.cert_file, key_file=full.key_file, server_name="x.example"
            ),
        ),
    }[tls]
    async with Producer("p", name_server=name_server, client_options=options) as producer:
        with pytest.raises(RocketBoxError) as caught:
            await producer.send(Message(topic, b"never"))
    if tls is not None:
        assert "certificate" in str(caught.value)
    assert not isinstance(caught.value, RemotingError)  # no route, since no name server could be asked


@pytest.mark.parametrize("version", EACH_BUT_NEWEST_BETWEEN)
async def test_java_clients_send_and_consume_on_ours(version: str, files: TlsFiles, tmp_path: Path) -> None:
    messages = 2_000
    with (
        BrokerProcess(tmp_path / "store", *files.broker_arguments) as broker,
        JavaLoads(version=version, options=files.java_options) as java,
    ):
        java.produce(broker.name_server, "Java", messages)
        sent = java.result()
        assert (sent["messages"], sent["failures"]) == (messages, 0)
        java.wait_until_idle()
        java.consume(broker.name_server, "Java", messages, group="java")
        consumed = java.result()
        assert (consumed["messages"], consumed["failures"]) == (messages, 0)
        java.wait_until_idle()
        client = files.client_options
        member = JavaMember(
            broker.name_server, "ordered", "java-orderly", orderly=True, handler_ms=1, version=version,
            options=files.java_options,
        )  # fmt: skip
        async with Producer("p", name_server=broker.name_server, client_options=client, options=SEND) as producer:
            await producer.send(Message("ordered", b"0", hash_key="one"))
            with member:
                await anyio.to_thread.run_sync(member.wait_until_joined)
                for number in range(1, 20):
                    await producer.send(Message("ordered", b"%d" % number, hash_key="one"))
                ended: list[str] = []
                with anyio.fail_after(SECONDS):
                    while "19" not in ended:
                        await anyio.sleep(0.05)  # another process offers no event to wait for
                        ended = [body for _, what, body in member.events if what == "ends"]
                await anyio.to_thread.run_sync(member.leave)
        assert ended == [str(number) for number in range(int(ended[0]), 20)]


@pytest.mark.parametrize("version", EACH_VERSION)
def test_java_clients_retry_and_give_up_over_tls(version: str, files: TlsFiles, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "store", *files.broker_arguments) as broker:
        client = files.client_options
        exchange(broker.name_server, version, client, client, options=files.java_options)
