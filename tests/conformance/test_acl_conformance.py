"""Signed requests on Apache's brokers with access control: ACL 1.0 (plain_acl.yml) of 4.9.7, ACL 2.0 of 5.x."""

from __future__ import annotations

from types import ModuleType

import anyio
import pytest

from rocketbox.client import ClientOptions, ConsumerOptions, Credentials, PushConsumer
from rocketbox.errors import AccessDeniedError, ConfigurationError
from rocketbox.message import ConsumeFromWhere, Message, MessageExt
from tests.conformance.acl import TOPIC, AclServers, producer, user
from tests.support.broker.rights import documented
from tests.support.framework.services import ServiceMaker

pytestmark = [pytest.mark.apache, pytest.mark.smoke, pytest.mark.anyio]

PUBLISHER, SUBSCRIBER = user("publisher"), user("subscriber")
SECONDS = 30.0


@pytest.fixture(scope="module")
def name_server(acl: AclServers) -> str:
    """Of a broker on which the publisher may send to departures, and the subscriber read it in group board."""
    anyio.run(_prepare, acl)
    return acl.name_server


async def _prepare(acl: AclServers) -> None:
    await acl.let(PUBLISHER, documented("send to"))
    await acl.let(SUBSCRIBER, documented("listen to it in group"))
    await acl.make_topic()
    await acl.until_known(PUBLISHER)


@pytest.fixture
def topic() -> str:
    return TOPIC


async def consumed(name_server: str, user: Credentials, group: str, wanted: set[bytes], seconds: float) -> set[bytes]:
    """What a member of the group gets of departures, until it has got the wanted."""
    seen: set[bytes] = set()
    complete = anyio.Event()

    async def handle(batch: list[MessageExt]) -> None:
        seen.update(message.body for message in batch)
        if wanted <= seen:
            complete.set()

    options = ConsumerOptions(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    client = ClientOptions(credentials=user)
    async with PushConsumer(group, name_server=name_server, client_options=client, options=options) as consumer:
        await consumer.subscribe("departures", "*", handle)
        with anyio.move_on_after(seconds):
            await complete.wait()
    return seen


async def test_who_may_publish_and_subscribe_does(name_server: str, topic: str) -> None:
    sent = {b"%d of %d bytes %s" % (number, number * 100, b"x" * number * 100) for number in range(8)}
    first, second, *rest = sorted(sent)
    async with producer(name_server, PUBLISHER) as publisher:
        await publisher.send(Message(topic, first, flag=7, keys=("k1", "k2"), properties={"ä": "ü€"}))
        await publisher.send_one_way(Message(topic, second))
        await publisher.send_many([Message(topic, body) for body in rest[:4]])
        await publisher.send_batch([Message(topic, body) for body in rest[4:]])
    assert await consumed(name_server, SUBSCRIBER, "board", sent, SECONDS) >= sent


@pytest.mark.parametrize(
    "stranger",
    [
        None,
        Credentials(access_key=PUBLISHER.access_key, secret_key="a wrong one"),
        Credentials(access_key="stranger", secret_key="whatever"),
        SUBSCRIBER,
    ],
    ids=["without keys", "wrong secret", "unknown user", "not permitted"],
)
async def test_who_may_not_publish_is_told_so_at_once(
    name_server: str, topic: str, stranger: Credentials | None
) -> None:
    async with producer(name_server, stranger) as sending:
        with pytest.raises(AccessDeniedError) as caught:
            await sending.send(Message(topic, b"never"))
    assert getattr(caught.value, "__notes__", []) == [], "there was one try"


async def test_who_may_not_subscribe_gets_nothing(name_server: str, topic: str) -> None:
    async with producer(name_server, PUBLISHER) as publisher:
        await publisher.send(Message(topic, b"not for everybody"))
    assert await consumed(name_server, PUBLISHER, "board", {b"not for everybody"}, 3.0) == set()


SERVICE = """
import anyio
from rocketbox import ConsumeFromWhere, RocketBox, rocketmq_listener

app = RocketBox("desk", scan=[__name__])
seen = anyio.Event()

@rocketmq_listener(topic="departures", consumer_group="board", consume_from_where=ConsumeFromWhere.LAST_OFFSET)
async def on_departure(text: str) -> None:
    if text == "from the service":
        seen.set()
"""

SETTINGS = f"""
rocketmq:
  name-server: NAME_SERVER
  producer: {{group: desk, access-key: {PUBLISHER.access_key}, secret-key: {PUBLISHER.secret_key}}}
  consumer: {{access-key: {SUBSCRIBER.access_key}, secret-key: {SUBSCRIBER.secret_key}}}
"""


async def test_a_service_publishes_as_one_user_and_subscribes_as_another(
    name_server: str, topic: str, service: ServiceMaker
) -> None:
    module: ModuleType = service(SERVICE, SETTINGS.replace("NAME_SERVER", name_server))
    async with module.app:
        with anyio.fail_after(SECONDS):
            await module.app.template.send(topic, "from the service")
            await module.seen.wait()


async def test_who_may_not_make_topics_is_told_so_and_may_look_at_those_that_are_there(
    name_server: str, topic: str, service: ServiceMaker
) -> None:
    keys = f"access-key: {PUBLISHER.access_key}\n  secret-key: {PUBLISHER.secret_key}\n"
    settings = f"rocketmq:\n  name-server: {name_server}\n  producer.group: desk\n  {keys}"
    source = "from rocketbox import RocketBox\n\napp = RocketBox('desk', scan=[__name__])\n"
    with pytest.raises(ConfigurationError) as caught:
        async with service(source, settings + "  topics: {refunds: {queues: 3}}\n").app:
            pass
    (finding,) = caught.value.findings
    assert finding.what.startswith("rocketmq.topics.refunds: topic refunds cannot be made: ")
    assert "let this user do it; or have somebody create it, and let rocketmq.topics-mode be check" in str(finding.fix)
    async with service(source, settings + f"  topics-mode: check\n  topics: {{{topic}: {{queues: 2}}}}\n").app as app:
        await app.template.send(topic, "sent")
