"""A consumer gets what it subscribes to, each message once as long as nothing fails, and goes on where it was."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import anyio
import pytest

from rocketbox.client import Admin, ClientOptions, ConsumerOptions, Producer, PushConsumer
from rocketbox.message import ConsumeFromWhere, Message, MessageExt, MessageModel
from tests.support.client.consuming import Seen, send_all, servers
from tests.support.loops import anyio_backend as anyio_backend
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


def bodies(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix}-{number}".encode() for number in range(count)]


async def test_every_message_comes_once(anyio_backend: str, tmp_path: Path) -> None:
    seen = Seen()
    async with servers(tmp_path) as embedded:
        address = embedded.name_server_address
        async with (
            Producer("p", name_server=address) as producer,
            PushConsumer("desk", name_server=address) as consumer,
        ):
            await consumer.subscribe("departures", "*", seen)
            await send_all(producer, "departures", bodies("d", 200))
            await seen.all_of(bodies("d", 200))
            await until(lambda: consumer.state().lag == 0, "no lag")
            assert set(seen.counts().values()) == {1}
            assert consumer.state().held == 0
            assert all(message.topic == "departures" for message in seen.messages)
            assert all(message.broker_name for message in seen.messages)


async def test_tags_select_by_text_and_not_by_hash_alone(anyio_backend: str, tmp_path: Path) -> None:
    selected, everything = Seen(), Seen()
    async with servers(tmp_path) as embedded:
        address = embedded.name_server_address
        async with (
            Producer("p", name_server=address) as producer,
            PushConsumer("some", name_server=address) as some,
            PushConsumer("every", name_server=address) as every,
        ):
            await some.subscribe("t", "Aa || C", selected)
            await every.subscribe("t", "*", everything)
            for tag in ("Aa", "BB", "C", "D", None):  # Aa and BB have one Java hash
                await producer.send(Message("t", f"{tag}".encode(), tag=tag))
            await everything.all_of([b"Aa", b"BB", b"C", b"D", b"None"])
            await selected.all_of([b"Aa", b"C"])
            await until(lambda: some.state().lag == 0, "the offset moves over what was left out")
            assert sorted(selected.bodies) == [b"Aa", b"C"]


async def test_topics_have_handlers_of_their_own(anyio_backend: str, tmp_path: Path) -> None:
    first, second = Seen(), Seen()
    async with servers(tmp_path) as embedded:
        address = embedded.name_server_address
        consumer = PushConsumer("desk", name_server=address)
        await consumer.subscribe("one", "*", first)
        await consumer.subscribe("two", "*", second, batch_max_size=16)
        async with Producer("p", name_server=address) as producer, consumer:
            await send_all(producer, "one", bodies("one", 20))
            await send_all(producer, "two", bodies("two", 20))
            await first.all_of(bodies("one", 20))
            await second.all_of(bodies("two", 20))
            assert sorted(first.bodies) == sorted(bodies("one", 20))
            assert sorted(second.bodies) == sorted(bodies("two", 20))

            await consumer.unsubscribe("two")
            await send_all(producer, "two", bodies("later", 5))
            await send_all(producer, "one", bodies("still", 5))
            await first.all_of(bodies("still", 5))
            assert sorted(second.bodies) == sorted(bodies("two", 20)), "not what came after it was unsubscribed"

            await consumer.subscribe("two", "*", first)
            await first.all_of(bodies("later", 5))
            came = first.counts()
            assert came == Counter(bodies("one", 20) + bodies("still", 5) + bodies("later", 5)), "each once"


async def test_a_topic_that_appears_later_is_read_from_its_beginning(anyio_backend: str, tmp_path: Path) -> None:
    seen = Seen()
    seldom = ClientOptions(poll_name_server_interval=3600)  # the routes that are known
    async with servers(tmp_path) as embedded:
        address = embedded.name_server_address
        async with (
            Producer("p", name_server=address) as producer,
            PushConsumer("desk", name_server=address, client_options=seldom) as consumer,
        ):
            await consumer.subscribe("not-yet", "*", seen)
            assert consumer.state().topics_without_route == ("not-yet",)
            await send_all(producer, "not-yet", bodies("n", 40))
            await seen.all_of(bodies("n", 40))
            await until(lambda: consumer.state().lag == 0, "no lag")
            assert set(seen.counts().values()) == {1}
            assert consumer.state().topics_without_route == ()


async def test_first_offset_reads_what_was_there_before(anyio_backend: str, tmp_path: Path) -> None:
    seen = Seen()
    options = ConsumerOptions(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    async with servers(tmp_path) as embedded:
        address = embedded.name_server_address
        async with Producer("p", name_server=address) as producer:
            await send_all(producer, "old", bodies("o", 30))
        async with PushConsumer("desk", name_server=address, options=options) as consumer:
            await consumer.subscribe("old", "*", seen)
            await seen.all_of(bodies("o", 30))
            await until(lambda: consumer.state().lag == 0, "no lag")
    assert seen.counts() == Counter(bodies("o", 30)), "each once"


async def test_a_restart_goes_on_at_the_committed_offset(anyio_backend: str, tmp_path: Path) -> None:
    before, after = Seen(), Seen()
    async with servers(tmp_path) as embedded:
        address = embedded.name_server_address
        async with Producer("p", name_server=address) as producer:
            async with PushConsumer("desk", name_server=address) as consumer:
                await consumer.subscribe("t", "*", before)
                await send_all(producer, "t", bodies("before", 50))
                await before.all_of(bodies("before", 50))
            await send_all(producer, "t", bodies("between", 50))
            async with PushConsumer("desk", name_server=address) as consumer:
                await consumer.subscribe("t", "*", after)
                await send_all(producer, "t", bodies("after", 50))
                await after.all_of(bodies("between", 50) + bodies("after", 50))
    assert set(before.counts().values()) == {1}
    assert set(after.bodies) == {*bodies("between", 50), *bodies("after", 50)}
    assert set(after.counts().values()) == {1}


async def test_the_broker_may_restart_and_nothing_is_lost(anyio_backend: str, tmp_path: Path) -> None:
    seen = Seen()
    async with servers(tmp_path) as embedded:  # takes two free ports
        address = embedded.name_server_address
        ports = {
            "name_server_port": int(address.rpartition(":")[2]),
            "port": int(embedded.broker_address.rpartition(":")[2]),
        }
    async with Producer("p", name_server=address) as producer, PushConsumer("desk", name_server=address) as consumer:
        async with servers(tmp_path, **ports):
            await consumer.subscribe("t", "*", seen)
            await send_all(producer, "t", bodies("before", 30))
            await seen.all_of(bodies("before", 30))
            await until(lambda: consumer.state().lag == 0, "no lag")
            await consumer.persist_offsets()  # else they may come again
        async with servers(tmp_path, **ports):
            await send_all(producer, "t", bodies("after", 30))
            await seen.all_of(bodies("after", 30))
            await until(lambda: consumer.state().lag == 0, "no lag")
            assert await consumer.drain(5)
    assert seen.counts() == Counter(bodies("before", 30) + bodies("after", 30)), "each once"


async def test_pause_holds_back_and_resume_goes_on(anyio_backend: str, tmp_path: Path) -> None:
    seen = Seen()
    async with servers(tmp_path) as embedded:
        address = embedded.name_server_address
        async with (
            Producer("p", name_server=address) as producer,
            PushConsumer("desk", name_server=address) as consumer,
        ):
            await consumer.subscribe("t", "*", seen)
            await send_all(producer, "t", bodies("before", 5))
            await seen.all_of(bodies("before", 5))
            consumer.pause()
            assert consumer.state().paused
            await send_all(producer, "t", bodies("held", 20))
            await anyio.sleep(0.3)
            assert not set(bodies("held", 20)) & set(seen.bodies)
            consumer.resume()
            await seen.all_of(bodies("held", 20))
            await until(lambda: consumer.state().lag == 0, "no lag")
            assert seen.counts() == Counter(bodies("before", 5) + bodies("held", 20)), "each once"


async def test_leaving_lets_running_handlers_finish_and_commits_them(anyio_backend: str, tmp_path: Path) -> None:
    begun, again = anyio.Event(), Seen()
    ended: list[bytes] = []

    async def slow(batch: list[MessageExt]) -> None:
        begun.set()
        await anyio.sleep(0.5)
        ended.extend(message.body for message in batch)

    async with servers(tmp_path) as embedded:
        address = embedded.name_server_address
        async with Producer("p", name_server=address) as producer:
            async with PushConsumer("desk", name_server=address) as consumer:
                await consumer.subscribe("t", "*", slow)
                await producer.send(Message("t", b"slow"))
                await begun.wait()
            assert ended == [b"slow"]
            async with PushConsumer("desk", name_server=address) as consumer:
                await consumer.subscribe("t", "*", again)
                await producer.send(Message("t", b"next"))
                await again.all_of([b"next"])
                assert again.bodies == [b"next"]


async def test_a_handler_that_outlasts_the_stop_is_cancelled_and_not_committed(
    anyio_backend: str, tmp_path: Path
) -> None:
    begun, again = anyio.Event(), Seen()

    async def endless(batch: list[MessageExt]) -> None:
        begun.set()
        await anyio.sleep_forever()

    async with servers(tmp_path) as embedded:
        address = embedded.name_server_address
        async with Producer("p", name_server=address) as producer:
            options = ConsumerOptions(await_termination=0.2)
            async with PushConsumer("desk", name_server=address, options=options) as consumer:
                await consumer.subscribe("t", "*", endless)
                await producer.send(Message("t", b"again"))
                await begun.wait()
            async with PushConsumer("desk", name_server=address) as consumer:
                await consumer.subscribe("t", "*", again)
                await again.all_of([b"again"])
                await until(lambda: consumer.state().lag == 0, "no lag")
                assert [(message.body, message.reconsume_times) for message in again.messages] == [(b"again", 0)]


async def test_with_broadcasting_each_member_gets_everything_and_remembers_it_here(
    anyio_backend: str, tmp_path: Path
) -> None:
    first, second, later = Seen(), Seen(), Seen()

    def options(name: str) -> ConsumerOptions:
        return ConsumerOptions(message_model=MessageModel.BROADCASTING, local_offset_dir=tmp_path / name)

    async with servers(tmp_path / "store") as embedded:
        address = embedded.name_server_address
        async with Producer("p", name_server=address) as producer:
            async with (
                PushConsumer("all", name_server=address, options=options("one")) as one,
                PushConsumer("all", name_server=address, options=options("two")) as two,
            ):
                await one.subscribe("t", "*", first)
                await two.subscribe("t", "*", second)
                await send_all(producer, "t", bodies("b", 30))
                await first.all_of(bodies("b", 30))
                await second.all_of(bodies("b", 30))
            await send_all(producer, "t", bodies("later", 10))
            async with PushConsumer("all", name_server=address, options=options("one")) as one:
                await one.subscribe("t", "*", later)
                await later.all_of(bodies("later", 10))
                assert sorted(later.bodies) == sorted(bodies("later", 10))
    assert set(first.counts().values()) == set(second.counts().values()) == {1}
    assert len(list((tmp_path / "one").rglob("offsets.json"))) == 1


@pytest.mark.parametrize("fresh", [False, True])
async def test_nothing_of_a_topic_that_was_deleted_and_made_again_is_missed(
    anyio_backend: str, tmp_path: Path, fresh: bool
) -> None:
    seen = Seen()
    async with servers(tmp_path) as embedded:
        address = embedded.name_server_address
        async with Producer("p", name_server=address) as producer, Admin(name_server=address) as admin:
            await admin.create_topic("departures", queues=1)
            async with PushConsumer("desk", name_server=address) as consumer:
                await consumer.subscribe("departures", "*", seen)
                await send_all(producer, "departures", bodies("old", 20))
                await seen.all_of(bodies("old", 20))
                await until(lambda: consumer.state().lag == 0, "no lag")
                await admin.delete_topic("departures")
                await admin.create_topic("departures", queues=1)
                if not fresh:
                    await send_all(producer, "departures", bodies("new", 30))
                    await seen.all_of(bodies("new", 30))
            if fresh:
                await send_all(producer, "departures", bodies("new", 30))
                async with PushConsumer("desk", name_server=address) as consumer:
                    await consumer.subscribe("departures", "*", seen)
                    await seen.all_of(bodies("new", 30))
    assert seen.counts() == Counter(bodies("old", 20) + bodies("new", 30)), "each once"
