"""The harness on real servers over TCP: several clusters, and what waits for ever. (More of it: conformance.)"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import pytest

from rocketbox.client import Admin, Producer
from rocketbox.embedded import EmbeddedOptions, EmbeddedServers
from rocketbox.errors import Reject
from rocketbox.protocol.codes import MessageSysFlag
from rocketbox.protocol.group_config import SubscriptionGroupConfig
from rocketbox.testing import Harness, HarnessError, StuckError
from tests.support.framework.services import ServiceMaker

pytestmark = pytest.mark.anyio

SOURCE = """
import anyio
from rocketbox import ConsumeMode, RocketBox, RocketMQTemplate, rocketmq_listener

app = RocketBox("desk", scan=[__name__])
seen = []

@rocketmq_listener(topic="departures", consumer_group="desk")
async def depart(flight: str, template: RocketMQTemplate) -> None:
    if flight == "never":
        await anyio.sleep_forever()
    seen.append(("main", flight))
    await template.send("records", flight, cluster="audit")

@rocketmq_listener(topic="records", consumer_group="auditor", cluster="audit", max_reconsume_times=0)
async def record(flight: str) -> None:
    seen.append(("audit", flight))

@rocketmq_listener(topic="steps", consumer_group="walker", consume_mode=ConsumeMode.ORDERLY)
async def step(text: str) -> None:
    raise ConnectionError("stumbled")
"""

SETTINGS = """
rocketmq:
  name-server: ns1.example:9876
  producer: {group: desk}
  clusters:
    audit: {name-server: "ns3.example:9876", producer: {group: desk}}
"""


QUICK_STOP = {"rocketbox.shutdown.timeout": "500ms"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def desk(service: ServiceMaker) -> ModuleType:
    return service(SOURCE, SETTINGS)


@pytest.fixture
def main(tmp_path: Path) -> Iterator[str]:
    with EmbeddedServers.in_thread(EmbeddedOptions(data_dir=tmp_path / "main", port=0, name_server_port=0)) as servers:
        yield servers.name_server_address


@pytest.fixture
def audit(tmp_path: Path) -> Iterator[str]:
    with EmbeddedServers.in_thread(EmbeddedOptions(data_dir=tmp_path / "audit", port=0, name_server_port=0)) as servers:
        yield servers.name_server_address


async def test_each_cluster_is_where_it_was_said_to_be(desk: ModuleType, main: str, audit: str) -> None:
    async with Harness(desk.app, name_server={"": main, "audit": audit}) as harness:
        await harness.send("departures", "UA1")
        await harness.drain()
        assert desk.seen == [("main", "UA1"), ("audit", "UA1")]
        assert harness.sent("records", cluster="audit").one(str) == "UA1"
        harness.handler("record").fails(error=OSError("closed"))
        await harness.send("records", "UA2", cluster="audit")
        await harness.drain()
        assert str(harness.dead_letters("auditor", cluster="audit")[0].why) == "closed"
        assert harness.dead_letters("desk") == []


async def test_one_server_may_be_both_clusters(desk: ModuleType, main: str) -> None:
    async with Harness(desk.app, name_server={"": main, "audit": main}) as harness:
        await harness.send("departures", "UA1")
        await harness.drain()
        assert len(harness.sent("records")) == len(harness.sent("records", cluster="audit")) == 1


async def test_a_cluster_that_was_given_no_server_is_not_looked_for(desk: ModuleType, main: str) -> None:
    told = r"rocketmq\.clusters\.audit of desk needs a name server, .* --rocketbox-name-server=audit=host:port as well"
    with pytest.raises(HarnessError, match=told):
        async with Harness(desk.app, name_server=main):
            raise AssertionError("it started")
    with pytest.raises(HarnessError, match="name_server= has none for the main cluster"):
        Harness(desk.app, name_server={"audit": main})


async def test_a_handler_that_hangs_is_named(desk: ModuleType, main: str, audit: str) -> None:
    async with Harness(desk.app, name_server={"": main, "audit": audit}, patience=0.3, settings=QUICK_STOP) as harness:
        await harness.send("departures", "never")
        told = r"nothing has gone on for 0\.3 s: handler depart .* waits at .*service_\d+\.py:\d+ in depart\. Give"
        with pytest.raises(StuckError, match=told):
            await harness.drain()


async def test_drain_does_not_wait_for_a_queue_that_waits_for_its_own_retry(
    desk: ModuleType, main: str, audit: str
) -> None:
    async with Harness(desk.app, name_server={"": main, "audit": audit}) as harness:
        await harness.send("steps", "one", hash_key="way")
        with pytest.raises(ConnectionError, match="stumbled"):
            await harness.drain()


COUNTS = """
from rocketbox import ConsumeMode, RocketBox, rocketmq_listener

app = RocketBox("counter", scan=[__name__])

@rocketmq_listener(topic="counts", consumer_group="counts", invalid_limit=2)
async def count(counted: dict) -> None: ...

@rocketmq_listener(topic="turns", consumer_group="turns", invalid_limit=2, consume_mode=ConsumeMode.ORDERLY)
async def turn(counted: dict) -> None: ...
"""


@pytest.mark.parametrize(("topic", "handler"), [("counts", "count"), ("turns", "turn")])
async def test_what_the_limit_of_unreadable_payloads_holds_is_not_waited_for(
    service: ServiceMaker, main: str, topic: str, handler: str
) -> None:
    counter = service(COUNTS, "rocketmq: {name-server: ns1.example:9876, producer: {group: counter}}")
    async with Harness(counter.app, name_server=main, patience=2, settings=QUICK_STOP) as harness:
        for number in range(9):
            await harness.send(topic, "no count", hash_key=str(number))
        await harness.drain()
        assert f"group {topic} is paused" in harness.log
        await harness.fresh()
        await harness.send(topic, {"n": 1})
        await harness.drain()
        assert [call.payload for call in harness.calls(handler)] == [{"n": 1}]


TAGGED = """
from rocketbox import RocketBox, rocketmq_listener

app = RocketBox("tower", scan=[__name__])
landed = []

@rocketmq_listener(topic="planes", consumer_group="tower", selector_expression="UA || AA")
async def land(flight: str) -> None:
    landed.append(flight)

@rocketmq_listener(topic="planes", consumer_group="tower", selector_expression="DL")
async def wave(flight: str) -> None:
    landed.append(flight)
"""


async def test_drain_does_not_wait_for_messages_with_tags_that_a_group_does_not_take(
    service: ServiceMaker, main: str
) -> None:
    """A broker holds back for seconds what would tell the group that it has passed over them."""
    tower = service(TAGGED, "rocketmq: {name-server: ns1.example:9876, producer: {group: tower}}")
    async with Harness(tower.app, name_server=main, patience=2) as harness:
        for number, tag in enumerate(("UA", "B6", "DL", "EV", "B6")):
            await harness.send(f"planes:{tag}", f"{tag}{number}", hash_key="runway")
        await harness.drain()
        assert tower.landed == ["UA0", "DL2"]
        await harness.send("planes:AA", "AA5", hash_key="runway")
        await harness.drain()
        assert tower.landed == ["UA0", "DL2", "AA5"]


NEWS = """
from datetime import datetime
from rocketbox import ConsumeFromWhere, MessageModel, RocketBox, rocketmq_listener

app = RocketBox("news", scan=[__name__])

@rocketmq_listener(topic="news", consumer_group="first", message_model=MessageModel.BROADCASTING,
                   consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
async def read_all(text: str) -> None: ...

@rocketmq_listener(topic="news", consumer_group="since", message_model=MessageModel.BROADCASTING,
                   consume_from_where=ConsumeFromWhere.TIMESTAMP, consume_timestamp="20200101000000")
async def read_since(text: str) -> None: ...
"""


async def test_a_broadcasting_group_gets_nothing_of_an_earlier_run(service: ServiceMaker, main: str) -> None:
    news = service(NEWS, "rocketmq: {name-server: ns1.example:9876, producer: {group: news}}")
    for text in ("of one run", "of the next one"):
        async with Harness(news.app, name_server=main) as harness:
            await harness.send("news", text)
            await harness.drain()
            assert [call.arguments for call in harness.calls(news.read_all)] == [(text,)]
            assert [call.arguments for call in harness.calls(news.read_since)] == [(text,)]
            assert [(each.consumed, each.end) for each in harness.offsets("first")] == [(1, 1)]


async def test_virtual_time_is_refused(desk: ModuleType, main: str) -> None:
    with pytest.raises(HarnessError, match=r"now=.* needs virtual time, and on a real broker \(127\.0\.0\.1:\d+\)"):
        async with Harness(desk.app, name_server=main, now=datetime(2026, 1, 2, tzinfo=UTC)):
            raise AssertionError("it started")


# --- dead letters ----------------------------------------------------------------------------------------------------


async def send_unreadable(name_server: str, topic: str) -> None:
    """Send what says that it is compressed, and is not."""
    async with Producer("elsewhere", name_server=name_server) as producer:
        await producer.send_prepared(topic, b"not packed", {}, sys_flag=MessageSysFlag.COMPRESSED)


async def test_dead_letters_are_read_from_the_broker(desk: ModuleType, main: str, audit: str) -> None:
    """What a handler has given up as the broker has it, and what never came to a handler."""
    async with Harness(desk.app, name_server={"": main, "audit": audit}, failures="keep") as harness:
        harness.handler("depart").fails(error=Reject("closed"))
        await harness.send("departures", "UA1", keys="k1")
        await harness.drain()
        (letter,) = harness.dead_letters("desk")
        assert (letter.payload(str), letter.message.topic, str(letter.why)) == ("UA1", "%DLQ%desk", "closed")
        assert letter.message.properties["RETRY_TOPIC"] == "departures"
        await send_unreadable(main, "departures")
        await harness.drain()
        _, unreadable = harness.dead_letters("desk")
        assert (unreadable.body, unreadable.why) == (b"not packed", None)
        assert len(harness.calls("depart")) == 1
        await harness.fresh()
        assert harness.dead_letters("desk") == []
    async with Harness(desk.app, name_server={"": main, "audit": audit}) as harness:
        await harness.drain()
        assert harness.dead_letters("desk") == [], "those of an earlier run"


async def test_consumed_tells_of_a_dead_letter_that_no_handler_saw(desk: ModuleType, main: str, audit: str) -> None:
    async with Harness(desk.app, name_server={"": main, "audit": audit}) as harness:
        await send_unreadable(main, "departures")
        with pytest.raises(AssertionError, match=r"group desk has consumed 0 messages, and not 1\n.*dead letter"):
            await harness.consumed("desk", within="20s")


async def test_what_a_broker_loses_is_no_dead_letter(desk: ModuleType, main: str, audit: str) -> None:
    """A group without retry queues: the broker takes back what is given up, and keeps nothing of it."""
    async with Admin(main) as admin:
        await admin.create_group(SubscriptionGroupConfig("desk", retry_queue_nums=0))
    async with Harness(desk.app, name_server={"": main, "audit": audit}, patience=0.5) as harness:
        harness.handler("depart").fails(error=Reject("closed"))
        await harness.send("departures", "UA1", keys="k1")
        told = r"what depart \(.*\) has given up, keys k1, which is not in the dead-letter queue of group desk yet\."
        with pytest.raises(StuckError, match=told):
            await harness.drain()
        assert harness.dead_letters("desk") == []
