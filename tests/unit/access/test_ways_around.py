"""Ways around what a user may: topics in which messages of others lie, rights that were taken away, guessed keys."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from random import Random

import anyio
import pytest

from rocketbox.broker.access import server_access
from rocketbox.broker.options import read_broker_options
from rocketbox.broker.store import record_reading
from rocketbox.clock import RealClock
from rocketbox.protocol.codes import RequestCode as C
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.stored_message import StoredMessage, decode_messages, encode_batch, encode_stored_message
from rocketbox.remoting.acl import RequestSigner
from rocketbox.remoting.client import RemotingClient
from rocketbox.remoting.connection import Connection
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.broker.access import ACL_2, ADMIN, UserWires, broker_with_access, keys_of, put_policy
from tests.support.broker.in_memory import BrokerWire, HastyClock
from tests.support.broker.wire import java_hash
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.anyio

SCHEDULE, LEVEL = "SCHEDULE_TOPIC_XXXX", 18
KEYS = "KEYS\x01k\x02"  # without properties a send has not the common form
PLAIN_ACL = f"""
accounts:
- {{accessKey: {ADMIN.access_key}, secretKey: {ADMIN.secret_key}, admin: true}}
- accessKey: curious
  secretKey: {keys_of("curious").secret_key}
  defaultTopicPerm: PUB|SUB
  topicPerms: [secret=DENY]
  groupPerms: [mine=SUB]
"""


@pytest.mark.parametrize("kind", ["ACL 1.0", "ACL 2.0"])
async def test_delayed_messages_of_a_topic_are_read_by_who_may_read_it(kind: str, tmp_path: Path) -> None:
    """Until they are due they lie beside those of all other topics: a right to every topic is none to these."""
    (tmp_path / "plain_acl.yml").write_text(PLAIN_ACL)
    plain: dict[str, object] = {"acl-enable": True, "acl-file": str(tmp_path / "plain_acl.yml")}
    async with broker_with_access(plain if kind == "ACL 1.0" else None) as users:
        admin = await users.wire(ADMIN)
        if kind == "ACL 1.0":
            curious = await users.wire(keys_of("curious"))
        else:
            curious = await users.new_user(
                admin,
                "curious",
                ("*", "Pub,Sub,Get", "Allow"),
                ("Topic:S*", "Pub,Sub,Get", "Allow"),
                ("Topic:secret", "Pub,Sub,Get", "Deny"),
                ("Group:mine", "Sub", "Allow"),
            )
        assert (await admin.send("secret", b"hidden", properties=f"KEYS\x01k\x02DELAY\x01{LEVEL}\x02")).code == 0
        query = {"topic": SCHEDULE, "key": "k", "maxNum": 1, "beginTimestamp": 0, "endTimestamp": 1 << 60}
        back = {"offset": 0, "group": "mine", "delayLevel": 1, "originTopic": "mine"}

        async def answers(wire: BrokerWire) -> list[RemotingCommand]:
            return [
                await wire.pull(SCHEDULE, queue=LEVEL - 1, group="mine"),
                await wire.broker(C.QUERY_MESSAGE, query),
                await wire.broker(C.VIEW_MESSAGE_BY_ID, {"offset": 0}),
                await wire.broker(C.CONSUMER_SEND_MSG_BACK, back),
            ]

        assert [answer.code for answer in await answers(admin)] == [0, 0, 0, 0], "these ways are there"
        for refused in await answers(curious):
            assert refused.code == (1 if kind == "ACL 1.0" else 16)
            assert "SCHEDULE_TOPIC_XXXX" in (refused.remark or "")
            assert b"hidden" not in refused.body


async def test_dead_letters_of_a_denied_topic_are_not_read_by_who_may_read_every_other_topic(
    users: UserWires, admin: BrokerWire
) -> None:
    entries = (("Topic:*", "Pub,Sub,Get", "Allow"), ("Topic:secret", "All", "Deny"), ("Group:mine", "Sub", "Allow"))
    curious = await users.new_user(admin, "curious", *entries)
    await admin.send("secret", b"hidden")
    back = {"offset": 0, "group": "board", "delayLevel": -1, "originTopic": "secret"}
    assert (await admin.broker(C.CONSUMER_SEND_MSG_BACK, back)).code == 0
    await until(lambda: users.broker.store.max_offset("%DLQ%board", 0) == 1)
    assert (await admin.pull("%DLQ%board", group="mine")).code == 0
    refused = await curious.pull("%DLQ%board", group="mine")
    assert refused.code == 16
    assert b"hidden" not in refused.body
    assert (await put_policy(admin, "curious", "Topic:%DLQ%*", "Sub")).code == 0
    assert (await curious.pull("%DLQ%board", group="mine")).code == 0


async def test_who_is_given_that_topic_by_name_reads_it(users: UserWires, admin: BrokerWire) -> None:
    await admin.send("secret", b"hidden", properties=f"DELAY\x01{LEVEL}\x02")
    named = await users.new_user(admin, "named", (f"Topic:{SCHEDULE}", "Sub", "Allow"), ("Group:mine", "Sub", "Allow"))
    assert (await named.pull(SCHEDULE, queue=LEVEL - 1, group="mine")).code == 0


@pytest.mark.parametrize("topic", ["DefaultCluster_REPLY_TOPIC", "team%DefaultCluster_REPLY_TOPIC"])
async def test_copies_of_replies_are_read_by_who_is_given_their_topic_by_name(
    users: UserWires, admin: BrokerWire, topic: str
) -> None:
    """They are everybody's: who may read every topic but some would read what was asked there."""
    entries = (("Topic:*", "Pub,Sub,Get", "Allow"), ("Topic:quotes", "All", "Deny"), ("Group:mine", "Sub", "Allow"))
    reader = await users.new_user(admin, "reader", *entries)
    named = await users.new_user(admin, "named", (f"Topic:{topic}", "Sub", "Allow"), ("Group:mine", "Sub", "Allow"))
    fields = {
        "b": topic,
        "c": "TBW102",
        "d": 4,
        "a": "g",
        "e": 0,
        "g": 1,
        "i": "MSG_TYPE\x01reply\x02UNIQ_KEY\x01A\x02",
    }
    answer = await reader.broker(C.SEND_REPLY_MESSAGE_V2, fields, b"99")
    assert "REPLY_TO_CLIENT] is null" in str(answer.remark), "to send them takes no more than the right to every topic"
    refused = await reader.pull(topic, group="mine")
    assert (refused.code, f"Topic:{topic}" in str(refused.remark)) == (16, True)
    assert (await named.pull(topic, group="mine")).code == 0


async def _disable(admin: BrokerWire) -> RemotingCommand:
    body = json.dumps({"username": "consumer", "userStatus": "disable"}).encode()
    return await admin.broker(C.AUTH_UPDATE_USER, {"username": "consumer"}, body)


async def _delete(admin: BrokerWire) -> RemotingCommand:
    return await admin.broker(C.AUTH_DELETE_USER, {"username": "consumer"})


async def _deny_topic(admin: BrokerWire) -> RemotingCommand:
    return await put_policy(admin, "consumer", "Topic:orders", "Sub", "Deny")


async def _deny_group(admin: BrokerWire) -> RemotingCommand:
    return await put_policy(admin, "consumer", "Group:board", "Sub", "Deny")


async def _change_password(admin: BrokerWire) -> RemotingCommand:
    body = json.dumps({"username": "consumer", "password": "another-secret"}).encode()
    return await admin.broker(C.AUTH_UPDATE_USER, {"username": "consumer"}, body)


@pytest.mark.parametrize(
    ("take_away", "code", "remark"),
    [
        (_disable, 16, "check signature failed."),
        (_delete, 16, "check signature failed."),
        (_deny_topic, 16, "User:consumer has no permission to access Topic:orders"),
        (_deny_group, 16, "User:consumer has no permission to access Group:board"),
        (_change_password, 0, "FOUND"),  # it was signed with what was right then, by who may still
    ],
)
async def test_a_pull_on_hold_brings_nothing_to_who_may_not_any_more(
    users: UserWires,
    admin: BrokerWire,
    take_away: Callable[[BrokerWire], Awaitable[RemotingCommand]],
    code: int,
    remark: str,
) -> None:
    consumer = await users.new_user(
        admin, "consumer", ("Topic:orders", "Sub", "Allow"), ("Group:board", "Sub", "Allow")
    )
    assert (await admin.send("orders", b"before")).code == 0
    answers: list[RemotingCommand] = []

    async def pull() -> None:
        answers.append(await consumer.pull("orders", offset=1, group="board", suspend_ms=round(PATIENCE * 1000)))

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pull)
            await until(lambda: users.broker.held_pulls.waiting("orders", 0, "board") == 1)
            assert (await take_away(admin)).code == 0
            assert (await admin.send("orders", b"after")).code == 0
    assert answers[0].code == code
    assert (answers[0].remark or "").startswith(remark)
    assert [message.body for message in decode_messages(answers[0].body)] == ([b"after"] if code == 0 else [])


async def test_sends_by_the_quick_way_are_asked_for_rights_each(users: UserWires, admin: BrokerWire) -> None:
    """Headers that are alike are read once, and what they mean is kept, also of one that was refused."""
    stranger = await users.new_user(admin, "stranger", ("Topic:mine", "Pub", "Allow"))
    for _ in range(3):
        assert (await stranger.send("mine", properties=KEYS)).code == 0
        assert (await stranger.send("orders", properties=KEYS)).code == 16


@pytest.mark.parametrize("take_away", [_disable, _delete, _change_password])
async def test_the_quick_way_ends_with_its_user(
    users: UserWires, admin: BrokerWire, take_away: Callable[[BrokerWire], Awaitable[RemotingCommand]]
) -> None:
    user = await users.new_user(admin, "consumer", ("Topic:orders", "Pub", "Allow"))
    for _ in range(3):
        assert (await user.send("orders", properties=KEYS)).code == 0
    assert (await take_away(admin)).code == 0
    for _ in range(3):
        assert (await user.send("orders", properties=KEYS)).code == 16


@pytest.mark.parametrize(
    ("code", "allowed", "forbidden"),
    [
        (C.SEND_REPLY_MESSAGE, "topic", "b"),
        (C.SEND_REPLY_MESSAGE_V2, "b", "topic"),
        (C.SEND_MESSAGE, "topic", "b"),
        (C.SEND_MESSAGE_V2, "b", "topic"),
        (C.SEND_BATCH_MESSAGE, "b", "topic"),
    ],
)
async def test_a_header_with_both_kinds_of_names_leads_to_no_topic_of_others(
    users: UserWires, admin: BrokerWire, code: C, allowed: str, forbidden: str
) -> None:
    """The code says which names count, for the right and for what is done."""
    to_reply = ("Topic:DefaultCluster_REPLY_TOPIC", "Pub", "Allow")
    user = await users.new_user(admin, "user", ("Topic:orders", "Pub", "Allow"), to_reply)
    for topic in ("orders", "secret"):
        assert (await admin.send(topic)).code == 0
    long_names = {
        "producerGroup": "desk", "topic": "", "queueId": 0, "bornTimestamp": 1, "sysFlag": 0, "flag": 0,
        "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "properties": KEYS,
    }  # fmt: skip
    letters = {"a": "desk", "b": "", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": KEYS}
    own, other = (long_names, letters) if allowed == "topic" else (letters, long_names)
    for extra in (other, {forbidden: "secret"}, {**other, "producerGroup": ""}):
        without_group = {name: value for name, value in own.items() if name != "producerGroup"}
        for fields in (own, without_group):
            await user.broker(code, {**extra, **fields, allowed: "orders", forbidden: "secret"}, b"forged")
    stored = [users.broker.store.max_offset("secret", queue) for queue in range(8)]
    assert sum(stored) == 1, "what the administrator has sent"


class Member:
    """A client that says to be a producer of a group, and hears what the broker asks of it."""

    def __init__(self, users: UserWires, name: str, group: str = "cashiers", client_id: str = "") -> None:
        self.heard: list[tuple[int, bytes]] = []
        self.beat = json.dumps({"clientID": client_id or name, "producerDataSet": [{"groupName": group}]}).encode()
        self.address = users.broker.address
        self.client = RemotingClient(
            clock=users.broker._clock, network=users.unsigned.network, hooks=[RequestSigner(keys_of(name))],
            handlers=dict.fromkeys((int(C.CHECK_TRANSACTION_STATE), int(C.PUSH_REPLY_MESSAGE_TO_CLIENT)), self._hear),
        )  # fmt: skip

    def _hear(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        self.heard.append((request.code, request.body))
        return RemotingCommand.response()

    async def say(self) -> None:
        """Send the heartbeat."""
        answer = await self.client.request(
            self.address, RemotingCommand.request(C.HEART_BEAT, None, self.beat), timeout=PATIENCE
        )
        assert answer.code == 0

    async def ask(self) -> None:
        """Send :data:`REQUEST`."""
        request = RemotingCommand.request(C.SEND_MESSAGE_V2, ASKING, b"?")
        assert (await self.client.request(self.address, request, timeout=PATIENCE)).code == 0


async def test_of_a_transaction_asks_the_broker_nobody_who_may_not_send_to_its_topic() -> None:
    """The question holds the message, and to say to be a producer of a group takes no right."""
    settings = {**ACL_2, "transactionTimeOut": 1000, "transactionCheckInterval": 100}
    async with broker_with_access(settings, clock=HastyClock()) as users:
        admin = await users.wire(ADMIN)
        await users.new_user(admin, "curious", ("Topic:mine", "Pub", "Allow"))
        cashier = await users.new_user(admin, "cashier", ("Topic:secret", "Pub", "Allow"))
        assert (await admin.send("secret")).code == 0
        spy, friend = Member(users, "curious"), Member(users, "cashier")
        async with spy.client, friend.client:
            await spy.say()
            half = "TRAN_MSG\x01true\x02PGROUP\x01cashiers\x02"
            assert (await cashier.send("secret", b"hidden", properties=half, f=4)).code == 0
            with anyio.fail_after(PATIENCE):
                await until(lambda: users.broker.transaction_checks.unasked > 1)
                assert spy.heard == []
                await friend.say()
                await until(lambda: len(friend.heard) > 2)
            assert spy.heard == []
            assert b"hidden" in friend.heard[0][1]


async def test_a_reply_goes_to_no_other_user_who_goes_by_the_id_of_who_asked(
    users: UserWires, admin: BrokerWire
) -> None:
    """The id stands in each request, so whoever consumes them knows it."""
    for name in ("asker", "curious"):
        await users.new_user(admin, name, ("Topic:quotes", "Pub", "Allow"))
    assert (await admin.send("quotes")).code == 0
    asker, spy = Member(users, "asker"), Member(users, "curious", client_id="asker")
    again = Member(users, "asker")
    async with asker.client, spy.client, again.client:
        for client in (asker, spy):
            await client.say()
        await asker.ask()
        assert (await admin.broker(C.SEND_REPLY_MESSAGE_V2, REPLY_FIELDS, b"hidden")).code == 0
        assert (len(asker.heard), len(spy.heard)) == (1, 0)
        await again.say()  # it has connected anew, and the broker does not know yet that the other one is gone
        await spy.say()
        await again.ask()
        assert (await admin.broker(C.SEND_REPLY_MESSAGE_V2, REPLY_FIELDS, b"hidden")).code == 0
        assert (len(again.heard), len(spy.heard)) == (1, 0)


OWN_TOPICS = ("mine", "mine_REPLY_TOPIC", "team%mine", "%DLQ%DefaultCluster_REPLY_TOPIC", "%DefaultCluster_REPLY_TOPIC")


@pytest.mark.parametrize("topic", OWN_TOPICS)
async def test_nobody_answers_who_may_read_a_request_and_send_anything_but_replies(
    users: UserWires, admin: BrokerWire, topic: str
) -> None:
    """The reply is handed on whatever topic its copy is for, so the right to that is not enough."""
    await users.new_user(admin, "asker", ("Topic:quotes", "Pub", "Allow"))
    entries = (("Topic:quotes", "Sub", "Allow"), (f"Topic:{topic}", "Pub", "Allow"), ("Group:*", "Sub", "Allow"))
    reader = await users.new_user(admin, "reader", *entries)
    assert (await admin.send("quotes")).code == 0
    asker = Member(users, "asker")
    async with asker.client:
        await asker.say()
        await asker.ask()
        assert b"CORRELATION_ID" in (await reader.pull("quotes", 1, group="mine")).body
        for code, names in ((C.SEND_REPLY_MESSAGE_V2, REPLY_FIELDS), (C.SEND_REPLY_MESSAGE, LONG_REPLY_FIELDS)):
            field = "b" if code is C.SEND_REPLY_MESSAGE_V2 else "topic"
            answer = await reader.broker(code, {**names, field: topic}, b"forged")
            assert (answer.code, "Topic:DefaultCluster_REPLY_TOPIC" in str(answer.remark)) == (16, True)
        assert asker.heard == []


@pytest.mark.parametrize("topic", ["DefaultCluster_REPLY_TOPIC", "team%DefaultCluster_REPLY_TOPIC"])
async def test_who_may_send_replies_of_the_cluster_or_of_a_namespace_answers(
    users: UserWires, admin: BrokerWire, topic: str
) -> None:
    await users.new_user(admin, "asker", ("Topic:quotes", "Pub", "Allow"))
    replier = await users.new_user(admin, "replier", (f"Topic:{topic}", "Pub", "Allow"))
    assert (await admin.send("quotes")).code == 0
    asker = Member(users, "asker")
    async with asker.client:
        await asker.say()
        await asker.ask()
        assert (await replier.broker(C.SEND_REPLY_MESSAGE_V2, {**REPLY_FIELDS, "b": topic}, b"99")).code == 0
        assert (await replier.broker(C.SEND_REPLY_MESSAGE_V2, {**REPLY_FIELDS, "b": "mine"}, b"99")).code == 16
        assert asker.heard == [(C.PUSH_REPLY_MESSAGE_TO_CLIENT, b"99")]


@pytest.mark.parametrize("end", ["stopped", "killed"])
async def test_a_reply_to_a_request_from_before_the_brokers_start_goes_to_who_has_sent_it_or_nobody(end: str) -> None:
    """Though another user was the first to say the asker's id since, and has sent the request anew."""
    storage = MemoryStorage()
    async with broker_with_access(storage=storage) as users:
        admin = await users.wire(ADMIN)
        for name in ("asker", "curious"):
            await users.new_user(admin, name, ("Topic:quotes", "Pub", "Allow"))
        assert (await admin.send("quotes")).code == 0
        asker = Member(users, "asker")
        async with asker.client:
            await asker.ask()
    path = "/store/config/askers.json"
    assert storage.exists(path)
    if end == "killed":
        for each in (path, f"{path}.crc"):
            storage.remove(each)
    async with broker_with_access(storage=storage) as users:
        admin = await users.wire(ADMIN)
        asker, spy = Member(users, "asker"), Member(users, "curious", client_id="asker")
        async with spy.client, asker.client:
            await spy.say()
            answer = await admin.broker(C.SEND_REPLY_MESSAGE_V2, REPLY_FIELDS, b"hidden")
            assert answer.code == 1
            if end == "killed":
                assert "is not known here" in str(answer.remark)
            else:
                await spy.ask()  # which comes too late
                await asker.say()
                assert (await admin.broker(C.SEND_REPLY_MESSAGE_V2, REPLY_FIELDS, b"hidden")).code == 0
            assert (len(asker.heard), len(spy.heard)) == (int(end == "stopped"), 0)


async def test_a_damaged_file_of_who_has_sent_requests_keeps_no_broker_from_its_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    storage = MemoryStorage()
    path = "/store/config/askers.json"
    for text in (b'{"requests":{"c":7}}', b"[1]", b"{hidden"):
        storage.make_directories("/store/config")
        for each in (f"{path}.bak", f"{path}.crc"):
            if storage.exists(each):
                storage.remove(each)
        file = storage.open(path, create=True)
        file.truncate(0)
        file.write(0, [text])
        file.close()
        caplog.clear()
        async with broker_with_access(storage=storage):
            pass
        told = [record.getMessage() for record in caplog.records if "askers.json" in record.getMessage()]
        assert len(told) == 1
        assert "replies to requests of before are refused" in told[0]
        assert "hidden" not in caplog.text


REQUEST = "CORRELATION_ID\x01c\x02REPLY_TO_CLIENT\x01asker\x02TTL\x013000\x02UNIQ_KEY\x01A\x02"
ASKING = {"a": "askers", "b": "quotes", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": REQUEST}
REPLY = "CORRELATION_ID\x01c\x02REPLY_TO_CLIENT\x01asker\x02MSG_TYPE\x01reply\x02"
REPLY_FIELDS = {"a": "g", "b": "DefaultCluster_REPLY_TOPIC", "c": "TBW102", "d": 4, "e": 0, "g": 1, "i": REPLY}
LONG_REPLY_FIELDS = {
    "producerGroup": "g", "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "queueId": 0, "sysFlag": 0, "flag": 0,
    "bornTimestamp": 1, "properties": REPLY,
}  # fmt: skip


async def test_who_signs_where_nobody_has_to_gets_his_replies(tmp_path: Path) -> None:
    """At an address of plain_acl.yml's white list, where no signature is looked at, so that it says nothing."""
    (tmp_path / "plain_acl.yml").write_text(f"globalWhiteRemoteAddresses: [127.0.0.1]{PLAIN_ACL}")
    plain: dict[str, object] = {"acl-enable": True, "acl-file": str(tmp_path / "plain_acl.yml")}
    async with broker_with_access(plain) as users:
        admin = await users.wire(ADMIN)
        assert (await admin.send("quotes")).code == 0
        asker = Member(users, "curious", client_id="asker")
        async with asker.client:
            await asker.say()
            request = RemotingCommand.request(C.SEND_MESSAGE_V2, ASKING, b"?")
            assert (await asker.client.request(asker.address, request, timeout=PATIENCE)).code == 0
            assert (await admin.broker(C.SEND_REPLY_MESSAGE_V2, REPLY_FIELDS, b"shown")).code == 0
            assert len(asker.heard) == 1


BATCH = encode_batch([(0, b"?", REQUEST.encode())])
ASKING_IN_A_BATCH = {**ASKING, "i": "", "m": "true"}


@pytest.mark.parametrize(
    ("fields", "body"), [(ASKING, b"?"), (ASKING_IN_A_BATCH, BATCH)], ids=["a request", "requests in a batch"]
)
async def test_a_reply_goes_to_who_has_sent_the_request_though_others_said_his_id_before(
    fields: dict[str, str], body: bytes, users: UserWires, admin: BrokerWire
) -> None:
    """As when they wait until he connects anew, or the broker was started again."""
    for name in ("asker", "curious"):
        await users.new_user(admin, name, ("Topic:quotes", "Pub", "Allow"))
    assert (await admin.send("quotes")).code == 0
    asker, spy = Member(users, "asker"), Member(users, "curious", client_id="asker")
    async with spy.client:
        async with asker.client:
            await spy.say()
            await asker.say()
            for member in (asker, spy):  # who has read the correlation id comes too late with it
                code = C.SEND_MESSAGE_V2 if fields is ASKING else C.SEND_BATCH_MESSAGE
                request = RemotingCommand.request(code, fields, body)
                assert (await member.client.request(member.address, request, timeout=PATIENCE)).code == 0
            assert (await admin.broker(C.SEND_REPLY_MESSAGE_V2, REPLY_FIELDS, b"hidden")).code == 0
            assert (len(asker.heard), len(spy.heard)) == (1, 0)
        answer = await admin.broker(C.SEND_REPLY_MESSAGE_V2, REPLY_FIELDS, b"hidden")
    assert answer.code == 1
    assert spy.heard == []


async def test_a_request_that_is_sent_to_be_retried_is_none_of_who_retries_it(
    users: UserWires, admin: BrokerWire
) -> None:
    """Who consumes requests and fails sends them again, as they were; the broker does not know who has asked."""
    await users.new_user(admin, "asker")
    await users.new_user(admin, "curious", ("Group:board", "Sub", "Allow"))
    asker, spy = Member(users, "asker"), Member(users, "curious", client_id="asker")
    async with asker.client, spy.client:
        await asker.say()
        await spy.say()
        request = RemotingCommand.request(C.SEND_MESSAGE_V2, {**ASKING, "b": "%RETRY%board"}, b"?")
        assert (await spy.client.request(spy.address, request, timeout=PATIENCE)).code == 0
        assert (await admin.broker(C.SEND_REPLY_MESSAGE_V2, REPLY_FIELDS, b"hidden")).code == 1
        assert (len(asker.heard), len(spy.heard)) == (0, 0)


async def test_who_has_another_key_now_gets_replies_over_his_new_connection(
    users: UserWires, admin: BrokerWire
) -> None:
    """Though the broker does not know yet that the old one, with the old key, is gone."""
    for name in ("of-may", "of-june"):
        await users.new_user(admin, name, ("Topic:quotes", "Pub", "Allow"))
    assert (await admin.send("quotes")).code == 0
    old, new = (Member(users, name, client_id="asker") for name in ("of-may", "of-june"))
    async with old.client, new.client:
        for member in (old, new):
            await member.say()
        request = RemotingCommand.request(C.SEND_MESSAGE_V2, ASKING, b"?")
        assert (await new.client.request(new.address, request, timeout=PATIENCE)).code == 0
        assert (await admin.broker(C.SEND_REPLY_MESSAGE_V2, REPLY_FIELDS, b"99")).code == 0
    assert (len(old.heard), len(new.heard)) == (0, 1)


def _another_key(topic: str, other_topic: str, key: str) -> str:
    """One that the index cannot tell from that key of the other topic: it knows hashes alone."""
    places = 7  # enough digits of base 31 for 32 bits
    rest = java_hash(f"{other_topic}#{key}") - java_hash(f"{topic}#" + "A" * places)
    rest %= 1 << 32
    return "".join(chr(ord("A") + rest // 31**place % 31) for place in reversed(range(places)))


async def test_what_looks_like_the_half_message_of_another_ends_no_transaction(
    users: UserWires, admin: BrokerWire
) -> None:
    """The body of a message may be a whole record, at an offset that its sender foresees."""
    curious = await users.new_user(admin, "curious", ("Topic:mine", "Pub", "Allow"))
    for topic in ("mine", "secret"):
        assert (await admin.send(topic)).code == 0
    half = "TRAN_MSG\x01true\x02PGROUP\x01cashiers\x02"
    assert (await admin.send("secret", b"paid", properties=half, f=4)).code == 0
    (open_half,) = users.broker.halves.due(float("inf"))
    store, body_at = users.broker.store, 88
    at = store.max_commit_log_offset + body_at
    forged = StoredMessage(
        "RMQ_SYS_TRANS_HALF_TOPIC", 0, b"x", b"PGROUP\x01cashiers\x02REAL_TOPIC\x01mine\x02REAL_QID\x010\x02"
    )
    record = encode_stored_message(
        forged, property_crc=True, place=(open_half.queue_offset, at, 1, (b"\x7f\0\0\1", 10911))
    )
    assert (await curious.send("mine", record)).code == 0
    assert await store.read_record(at) is not None, "it can be read as a record"
    end = {
        "producerGroup": "cashiers", "tranStateTableOffset": open_half.queue_offset, "commitLogOffset": at,
        "fromTransactionCheck": "true", "msgId": "x", "transactionId": "x",
    }  # fmt: skip
    for commit_or_rollback in (12, 8):
        answer = await curious.broker(C.END_TRANSACTION, {**end, "commitOrRollback": commit_or_rollback})
        assert answer.code != 0
    assert users.broker.halves.is_open(open_half)


async def test_what_looks_like_a_record_that_is_larger_than_any_is_not_read(
    users: UserWires, admin: BrokerWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sender foresees where it will lie. It could announce all that the log holds, to be read for each question."""
    curious = await users.new_user(admin, "curious", ("Topic:mine", "Pub,Sub,Get", "Allow"))
    assert (await admin.send("mine")).code == 0
    store, body_at = users.broker.store, 88
    for size, is_read in ((3_000, True), (5_000, False)):
        at = store.max_commit_log_offset + body_at
        forged = StoredMessage("mine", 0, b"x" * size, KEYS.encode())
        record = encode_stored_message(forged, property_crc=True, place=(0, at, 1, (b"\x7f\0\0\1", 10911)))
        assert (await curious.send("mine", record)).code == 0
        assert await store.read_record(at) == record, "it looks like one"
        monkeypatch.setattr(record_reading, "LARGEST", 4_096)
        assert (await store.read_record(at) == record) is is_read
        monkeypatch.undo()


@pytest.mark.parametrize("is_of_a_message", [False, True])
async def test_what_looks_like_a_record_shows_nothing_of_the_message_behind_it(
    users: UserWires, admin: BrokerWire, is_of_a_message: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no checksum, and its properties are what follows: the end of its own message, and one of somebody else.

    With one that its sender has guessed it would say whether he has guessed right, be it by the time of the answer.
    """
    rights = (("Topic:mine", "Pub,Sub,Get", "Allow"), ("Group:mine", "Sub", "Allow"))
    curious = await users.new_user(admin, "curious", *rights)
    for topic in ("mine", "secret"):
        assert (await admin.send(topic)).code == 0
    store, body_at = users.broker.store, 88
    at = store.max_commit_log_offset + body_at
    number = 1 if is_of_a_message else 0  # of the message that it lies in, or of another of its queue
    begin = encode_stored_message(StoredMessage("mine", 0, b""), place=(number, at, 1, (b"\x7f\0\0\1", 10911)))
    behind = 300
    forged = (len(begin) + behind).to_bytes(4, "big") + begin[4:-2] + behind.to_bytes(2, "big")
    assert (await curious.send("mine", forged)).code == 0
    assert (await admin.send("secret", b"hidden" * 20)).code == 0
    record = await store.read_record(at)
    assert record is not None, "it looks like one"
    assert b"hidden" in record
    checked: list[int] = []
    monkeypatch.setattr(record_reading, "check_record", lambda record, offset: checked.append(offset))
    viewed = await curious.broker(C.VIEW_MESSAGE_BY_ID, {"offset": at})
    assert b"hidden" not in viewed.body
    assert viewed.code == 1
    assert (await curious.broker(C.CONSUMER_SEND_MSG_BACK, {"offset": at, "group": "mine", "delayLevel": -1})).code == 1
    assert checked == []


@pytest.mark.parametrize("unique", [False, True])
async def test_a_key_with_the_hash_of_another_topics_finds_none_of_its_messages(
    users: UserWires, admin: BrokerWire, unique: bool
) -> None:
    curious = await users.new_user(admin, "curious", ("Topic:mine", "Pub,Sub,Get", "Allow"))
    assert (await curious.send("mine", b"own", properties="KEYS\x01own\x02")).code == 0
    name = "UNIQ_KEY" if unique else "KEYS"
    assert (await admin.send("secret", b"hidden", properties=f"{name}\x01order-4711\x02")).code == 0
    flag = {"_UNIQUE_KEY_QUERY": "true"} if unique else {}

    async def query(wire: BrokerWire, topic: str, key: str) -> RemotingCommand:
        fields = {"topic": topic, "key": key, "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 1 << 60, **flag}
        return await wire.broker(C.QUERY_MESSAGE, fields)

    assert b"hidden" in (await query(admin, "secret", "order-4711")).body
    found = await query(curious, "mine", _another_key("mine", "secret", "order-4711"))
    assert b"hidden" not in found.body
    assert found.code == 22
    if not unique:
        assert b"own" in (await query(curious, "mine", "own")).body


async def test_members_say_of_themselves_what_they_may(users: UserWires, admin: BrokerWire) -> None:
    """A group and each topic in a heartbeat, and a group and each queue to be locked: all of them are looked at."""
    consumer = await users.new_user(
        admin, "consumer", ("Topic:orders", "Sub", "Allow"), ("Group:board", "Sub", "Allow")
    )

    async def lock(group: str, *topics: str) -> list[int]:
        queues = [{"topic": topic, "brokerName": "broker-a", "queueId": 0} for topic in topics]
        body = json.dumps({"consumerGroup": group, "clientId": "client", "mqSet": queues}).encode()
        return [(await consumer.broker(code, body=body)).code for code in (C.LOCK_BATCH_MQ, C.UNLOCK_BATCH_MQ)]

    assert (await consumer.heartbeat("board", {"orders": "*", "%RETRY%board": "*"})).code == 0
    assert (await consumer.heartbeat("board", {"orders": "*", "secret": "*"})).code == 16
    assert (await consumer.heartbeat("board", {"orders": "*", "%RETRY%another": "*"})).code == 16
    assert (await consumer.heartbeat("another", {"orders": "*"})).code == 16
    assert users.broker.consumers.group("another") is None
    assert await lock("board", "orders", "%RETRY%board") == [0, 0]
    assert await lock("board", "orders", "secret") == [16, 16]
    assert await lock("another", "orders") == [16, 16]


async def test_reading_takes_the_right_to_topic_and_group(users: UserWires, admin: BrokerWire) -> None:
    topic_only = await users.new_user(admin, "topic-only", ("Topic:orders", "Sub,Get,Update", "Allow"))
    group_only = await users.new_user(admin, "group-only", ("Group:board", "Sub,Get,Update", "Allow"))
    both = await users.new_user(admin, "both", ("Topic:orders", "Sub", "Allow"), ("Group:board", "Sub", "Allow"))
    assert (await admin.send("orders")).code == 0
    queue = {"consumerGroup": "board", "topic": "orders", "queueId": 0}
    for user, code in ((topic_only, 16), (group_only, 16), (both, 0)):
        assert (await user.pull("orders", group="board")).code == code
        assert (await user.broker(C.UPDATE_CONSUMER_OFFSET, {**queue, "commitOffset": 1})).code == code
        assert (await user.broker(C.QUERY_CONSUMER_OFFSET, queue)).code == code


async def test_to_look_at_a_cluster_is_not_to_change_it(users: UserWires, admin: BrokerWire) -> None:
    surveyor = await users.new_user(admin, "surveyor", ("Cluster:*", "Get", "Allow"))
    other = await users.new_user(admin, "other", ("Cluster:AnotherCluster", "Get,Update", "Allow"))
    body = json.dumps({"username": "new", "password": "secret-of-new"}).encode()
    for user, may_look in ((surveyor, True), (other, False)):
        assert ((await user.broker(C.AUTH_LIST_USER)).code == 0) is may_look
        assert (await user.broker(C.AUTH_CREATE_USER, {"username": "new"}, body)).code == 16


def test_the_servers_own_keys_do_not_follow_from_what_anybody_sees() -> None:
    """Of the chances that choose queues and ids, whoever sees enough can compute what came before."""
    settings: Mapping[str, object] = ACL_2
    options = read_broker_options(settings, store_path_root_dir=Path("/store"), listen_port=0)
    keys = set()
    for _ in range(2):
        access = server_access(options, RealClock(Random(1)))
        assert access is not None
        keys.add(access.inner.secret_key)
    assert len(keys) == 2
