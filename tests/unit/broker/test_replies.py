"""Replies at a broker: who is handed which, what mute and hostile clients can do, and what the replier is told."""

from __future__ import annotations

import anyio
import pytest

from rocketbox.broker.clients import ClientChannel, ProducerTable
from rocketbox.clock import RealClock
from rocketbox.message import decode_properties, encode_properties
from rocketbox.protocol.codes import RequestCode, ResponseCode, SerializeType
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.headers import ReplyMessageRequestHeader
from rocketbox.remoting.client import RemotingClient
from rocketbox.remoting.connection import Connection, RemotingOptions
from tests.support.broker.in_memory import BrokerWire, broker_in_memory
from tests.support.clocks import VirtualClock
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio

V2 = {"producerGroup": "a", "topic": "b", "defaultTopic": "c", "defaultTopicQueueNums": "d", "queueId": "e",
      "sysFlag": "f", "bornTimestamp": "g", "flag": "h", "properties": "i", "reconsumeTimes": "j"}  # fmt: skip


class Asker:
    """A client that takes replies, and answers each with ``code``; ``mute`` ones do not answer."""

    def __init__(
        self, wire: BrokerWire, *, code: int = 0, mute: bool = False, kind: SerializeType = SerializeType.ROCKETMQ
    ) -> None:
        self.code, self.mute = code, mute
        self.handed: list[tuple[ReplyMessageRequestHeader, bytes]] = []
        self.client = RemotingClient(
            clock=RealClock(),
            network=wire.network,
            handlers={RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self._take},
            options=RemotingOptions(serialization=kind),
        )

    def _take(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        self.handed.append((ReplyMessageRequestHeader.decode(request.ext_fields), request.body))
        return None if self.mute else RemotingCommand.response(self.code, "no")


def fields(**changed: str | None) -> dict[str, str]:
    said: dict[str, str | None] = {
        "producerGroup": "desk",
        "topic": "DefaultCluster_REPLY_TOPIC",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "1700000000000",
        "flag": "7",
        "properties": encode_properties(
            {"MSG_TYPE": "reply", "CORRELATION_ID": "c1", "REPLY_TO_CLIENT": "asker", "TTL": "3000"}
        ).decode(),
        "reconsumeTimes": "0",
        **changed,
    }
    return {name: value for name, value in said.items() if value is not None}


async def reply(wire: BrokerWire, body: bytes = b"yes", code: int = 325, **changed: str | None) -> RemotingCommand:
    said = fields(**changed)
    if code == RequestCode.SEND_REPLY_MESSAGE_V2:
        said = {V2[name]: value for name, value in said.items()}
    return await wire.broker(code, said, body)


@pytest.mark.parametrize("kind", SerializeType)
@pytest.mark.parametrize("code", [RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2])
async def test_the_client_that_asked_is_handed_the_reply_and_nobody_else(code: int, kind: SerializeType) -> None:
    async with broker_in_memory() as wire:
        asker, other = Asker(wire, kind=kind), Asker(wire)
        async with asker.client, other.client:
            await wire.heartbeat("g", {"t": "*"}, client_id="asker", client=asker.client)
            await wire.heartbeat("g", {"t": "*"}, client_id="other", client=other.client)
            answer = await reply(wire, code=code)
            ((header, body),) = asker.handed
            assert other.handed == []
    assert answer.code == 0
    assert answer.ext_fields["queueId"] == "0"
    assert len(answer.ext_fields["msgId"]) == 32  # of the copy that was stored
    assert (body, header.topic, header.flag, header.producer_group) == (
        b"yes", "DefaultCluster_REPLY_TOPIC", 7, "desk",
    )  # fmt: skip
    assert header.born_host.rpartition(":")[2].isdigit()
    properties = decode_properties((header.properties or "").encode())
    assert properties.pop("PUSH_REPLY_TIME").isdigit()
    assert properties == {
        "MSG_TYPE": "reply", "CORRELATION_ID": "c1", "REPLY_TO_CLIENT": "asker", "TTL": "3000",
        "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
    }  # fmt: skip


async def test_the_replier_is_told_what_apache_tells_him() -> None:
    async with broker_in_memory(settings={"store-reply-message-enable": False}) as wire:
        asker = Asker(wire, code=1)
        async with asker.client:
            nobody = await reply(wire)
            assert (nobody.code, nobody.remark) == (1, "push reply message fail, channel of <asker> not found.")
            assert "msgId" not in nobody.ext_fields
            await wire.heartbeat("g", {"t": "*"}, client_id="asker", client=asker.client)
            refused = await reply(wire)
            assert (refused.code, refused.remark) == (1, "push reply message to askerfail.")
            asker.code = 0
            taken = await reply(wire)
            assert (taken.code, taken.ext_fields["msgId"], taken.ext_fields["queueOffset"]) == (0, "0", "0")
            nameless = await reply(wire, properties="MSG_TYPE\x01reply\x02")
            assert (nameless.code, nameless.remark) == (1, "reply message properties[REPLY_TO_CLIENT] is null")
            assert wire.running.store.max_offset("DefaultCluster_REPLY_TOPIC", 0) == 0


async def test_a_mute_client_holds_up_few_and_the_others_go_on() -> None:
    async with broker_in_memory(settings={"max-unanswered-replies": 3}) as wire:
        mute, asker = Asker(wire, mute=True), Asker(wire)
        async with mute.client, asker.client, anyio.create_task_group() as tasks:
            await wire.heartbeat("g", {"t": "*"}, client_id="mute", client=mute.client)
            await wire.heartbeat("g", {"t": "*"}, client_id="asker", client=asker.client)
            to_mute = "MSG_TYPE\x01reply\x02CORRELATION_ID\x01c\x02REPLY_TO_CLIENT\x01mute\x02"
            answers: list[RemotingCommand] = []

            async def try_mute() -> None:
                answers.append(await reply(wire, properties=to_mute))

            for _ in range(3):
                tasks.start_soon(try_mute)
            with anyio.fail_after(PATIENCE):
                while len(mute.handed) < 3:
                    await anyio.sleep(0.01)
            refused = await reply(wire, properties=to_mute)
            assert refused.code == 1
            assert "maxUnansweredReplies" in (refused.remark or "")
            assert (await reply(wire)).code == 0
            mute.client.close_connection(wire.broker_address)  # its replies are refused at once then
            with anyio.fail_after(PATIENCE):
                while len(answers) < 3:
                    await anyio.sleep(0.01)
            assert {answer.remark for answer in answers} == {"push reply message to mutefail."}


@pytest.mark.parametrize(
    ("changed", "body", "code"),
    [
        ({"queueId": "99"}, b"x", ResponseCode.INVALID_PARAMETER),
        ({"queueId": "many"}, b"x", ResponseCode.SYSTEM_ERROR),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, b"x", ResponseCode.NO_PERMISSION),
        ({"topic": "no such/name"}, b"x", ResponseCode.INVALID_PARAMETER),
        ({"topic": "%RETRY%desk"}, b"x", ResponseCode.MESSAGE_ILLEGAL),
        ({"topic": None}, b"x", ResponseCode.SYSTEM_ERROR),
        ({}, b"", ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_what_is_no_reply_is_refused_and_handed_to_nobody(
    changed: dict[str, str | None], body: bytes, code: ResponseCode
) -> None:
    async with broker_in_memory() as wire:
        asker = Asker(wire)
        async with asker.client:
            await wire.heartbeat("g", {"t": "*"}, client_id="asker", client=asker.client)
            assert (await reply(wire, body, 325, **changed)).code == code
            assert asker.handed == []
            assert (await reply(wire)).code == 0  # the connection is as good as before


async def test_a_large_reply_is_answered_by_its_size() -> None:
    async with broker_in_memory(settings={"max-message-size": 65_536}) as wire:
        answer = await reply(wire, b"x" * 65_537)
        assert (answer.code, "65536 is the most" in (answer.remark or "")) == (ResponseCode.MESSAGE_ILLEGAL, True)


def test_a_client_is_where_its_id_was_said_last_and_nowhere_when_it_is_gone() -> None:
    clock = VirtualClock()
    table: ProducerTable[str] = ProducerTable(clock, 120.0)

    def beat(group: str, connection: str, client: str) -> None:
        table.register(group, connection, ClientChannel(client, 3, 479, clock.monotonic()))

    assert table.connection_of("one") is None
    beat("a", "old", "one")
    beat("b", "old", "one")
    assert table.connection_of("one") == "old"
    beat("a", "new", "one")
    assert table.connection_of("one") == "new"
    beat("a", "old", "one")  # it is still there, and no news
    assert table.connection_of("one") == "new"
    table.on_close("new")
    assert table.connection_of("one") == "old"
    table.unregister("a", "one", "old")
    assert table.connection_of("one") == "old"
    beat("b", "old", "other")  # under another name now
    assert (table.connection_of("one"), table.connection_of("other")) == (None, "old")
    table.on_close("old")
    assert table.connection_of("other") is None
    assert table._clients == {}


def test_a_client_id_is_that_of_the_user_who_has_said_it_first_as_long_as_anybody_says_it() -> None:
    """Another user waits with it until the first one loses his connection: the replies to that one are not his."""
    clock = VirtualClock()
    table: ProducerTable[str] = ProducerTable(clock, 120.0)

    def beat(connection: str, user: str | None) -> None:
        table.register("a", connection, ClientChannel("one", 3, 479, clock.monotonic(), user))

    beat("first", "asker")
    beat("spy", "curious")
    beat("spy", "curious")
    assert table.connection_of("one") == "first"
    table.on_close("first")
    assert table.connection_of("one") is None
    beat("again", "asker")
    assert table.connection_of("one") == "again"
    beat("again", "asker-with-new-keys")
    assert table.connection_of("one") == "again"
    beat("spy", "asker")
    assert table.connection_of("one") == "again"
    table.on_close("again")
    table.on_close("spy")
    assert table._clients == {}
    beat("next", "curious")
    assert table.connection_of("one") == "next"
