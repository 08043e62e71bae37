"""Ways to name the name servers: our client with each on the embedded servers and Apache's, Java's on the embedded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio.to_thread
import pytest

from rocketbox.client import (
    Admin,
    ClientOptions,
    ConsumerOptions,
    MQClientInstance,
    Producer,
    ProducerOptions,
    PushConsumer,
)
from rocketbox.embedded import EmbeddedOptions, EmbeddedServers
from rocketbox.message import ConsumeFromWhere, Message, MessageExt, SendResult
from rocketbox.remoting import name_server_addresses
from tests.conformance.apache import EACH_BUT_NEWEST_BETWEEN, apache_servers
from tests.conformance.java_sender import java_sender
from tests.support.remoting.address_server import HttpAddressServer
from tests.support.waiting import PATIENCE, until

pytestmark = [pytest.mark.apache, pytest.mark.smoke, pytest.mark.anyio]

SEND = ProducerOptions(send_message_timeout=12.0)
FIRST = ConsumerOptions(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
POLLS_OFTEN = ClientOptions(poll_name_server_interval=0.1)
NOBODY = "127.0.0.1:1"
FORMER = "former"  # the broker that is left


@contextmanager
def embedded(folder: Path, host: str = "127.0.0.1") -> Iterator[str]:
    """The address of another name server than the fixture's, with a broker of its own."""
    options = EmbeddedOptions(data_dir=folder, port=0, name_server_port=0, host=host, broker={"broker-name": FORMER})
    with EmbeddedServers.in_thread(options) as servers:
        yield servers.name_server_address


async def sent_and_consumed(said: str | list[str], topic: str) -> None:
    """Send and consume by what is said of the name servers, and look that nothing else comes."""
    got: list[tuple[str, bytes, str | None]] = []

    async def take(messages: list[MessageExt]) -> None:
        got.extend((message.topic, message.body, message.tag) for message in messages)

    async with (
        Producer(f"p-{topic}", name_server=said, options=SEND) as producer,
        PushConsumer(f"g-{topic}", name_server=said, options=FIRST) as consumer,
    ):
        for body in (b"one", b"two"):
            await producer.send(Message(topic, body, tag="A"))
        await consumer.subscribe(topic, "*", take)
        await until(lambda: len(got) >= 2)
        await producer.send(Message(topic, b"last"))
        await until(lambda: (topic, b"last", None) in got)
    assert sorted(got, key=lambda each: each[1]) == [
        (topic, b"last", None), (topic, b"one", "A"), (topic, b"two", "A"),
    ]  # fmt: skip


async def test_those_of_a_list_that_are_there_are_used(name_server: str, topic: str) -> None:
    await sent_and_consumed(f"{NOBODY};{name_server}", topic)
    await sent_and_consumed([NOBODY, name_server], f"{topic}-2")


async def test_an_address_server_tells_which_there_are(name_server: str, topic: str) -> None:
    with HttpAddressServer(f"{NOBODY};{name_server}\n") as address_server:
        await sent_and_consumed(address_server.url, topic)
    assert set(address_server.paths) == {"/rocketmq/nsaddr"}


async def send_until_it_goes_elsewhere(producer: Producer, topic: str) -> list[SendResult]:
    """The results of sends of ``1``, ``2`` and so on; the last one is the first that another broker has."""
    results: list[SendResult] = []
    with anyio.fail_after(PATIENCE):
        while not results or results[-1].queue.broker_name == FORMER:
            results.append(await producer.send(Message(topic, b"%d" % (1 + len(results)))))
    return results


async def assert_they_lie_where_they_were_sent(
    results: list[SendResult], topic: str, former: Admin, admin: Admin
) -> None:
    """All but the last one at the embedded broker that is left, the last one alone at the other."""
    assert sum([await former.max_offset(queue) for queue in await former.queues(topic)]) == len(results) - 1
    found: list[bytes] = []
    with anyio.fail_after(PATIENCE):
        while not found:  # Apache's brokers fill their queues later
            pulled = [await admin.pull(queue, 0) for queue in await admin.queues(topic)]
            found = [message.body for each in pulled for message in each.messages]
    assert found == [b"%d" % (len(results) - 1)]


async def test_messages_go_where_the_list_leads_to_by_then(name_server: str, topic: str, tmp_path: Path) -> None:
    with embedded(tmp_path) as former:
        async with (
            MQClientInstance(former, options=POLLS_OFTEN) as instance,
            Producer(f"p-{topic}", instance=instance, options=SEND) as producer,
            Admin(name_server=name_server) as admin,
            Admin(name_server=former) as admin_of_former,
        ):
            first = await producer.send(Message(topic, b"0"))
            assert first.queue.broker_name == FORMER
            await admin.create_topic(topic, queues=2)
            instance.replace_name_servers(f"{NOBODY};{name_server}")
            results = [first, *await send_until_it_goes_elsewhere(producer, topic)]
            await assert_they_lie_where_they_were_sent(results, topic, admin_of_former, admin)
            assert not instance.remoting.connected(former)


async def test_what_an_address_server_tells_by_then_is_followed(
    name_server: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(name_server_addresses, "ASK_AGAIN_AFTER", 0.05)
    with embedded(tmp_path) as former, HttpAddressServer(former) as address_server:
        async with (
            Producer(
                f"p-{topic}", name_server=address_server.url, options=SEND, client_options=POLLS_OFTEN
            ) as producer,
            Admin(name_server=name_server) as admin,
            Admin(name_server=former) as admin_of_former,
        ):  # fmt: skip
            first = await producer.send(Message(topic, b"0"))
            await admin.create_topic(topic, queues=2)
            address_server.answer = name_server
            results = [first, *await send_until_it_goes_elsewhere(producer, topic)]
            assert producer.instance.name_servers == (name_server,)
            await assert_they_lie_where_they_were_sent(results, topic, admin_of_former, admin)


@pytest.mark.parametrize("version", EACH_BUT_NEWEST_BETWEEN)
async def test_apaches_servers_by_ipv6(version: str, topic: str, tmp_path: Path) -> None:
    with apache_servers(tmp_path, version, keeps_store=False, host="::1") as servers:
        assert servers.name_server.startswith("[::1]:")
        await sent_and_consumed(servers.name_server, topic)


def _java_sends(name_server: str, version: str, topic: str, *options: str) -> None:
    with java_sender(name_server, f"p-{topic}", version, options=options) as java:
        java.send("plain", topic, "java's")


@pytest.mark.parametrize("version", EACH_BUT_NEWEST_BETWEEN)
@pytest.mark.parametrize("way", ["list, by IPv6", "address server"])
async def test_javas_client_finds_the_embedded_servers(version: str, way: str, topic: str, tmp_path: Path) -> None:
    by_http = way == "address server"
    with (
        embedded(tmp_path, "127.0.0.1" if by_http else "::1") as address,
        HttpAddressServer(f"{address}\n") as address_server,
    ):
        said = "-" if by_http else f"{address};{address.replace('::1', '0:0:0:0:0:0:0:1')}"
        options = [f"-Drocketmq.namesrv.domain={address_server.url.split('/')[2]}"] if by_http else []
        await anyio.to_thread.run_sync(_java_sends, said, version, topic, *options)
        assert bool(address_server.paths) is by_http
        async with Admin(name_server=address) as admin:
            found = [await admin.pull(queue, 0) for queue in await admin.queues(topic)]
    assert [(each.body, each.tag, each.keys) for pulled in found for each in pulled.messages] == [
        (b"java's", "tag", ("key",))
    ]
