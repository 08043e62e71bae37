"""What each of four kinds of user may, of every request code there is: asked over the wire, under both kinds of ACL."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import pytest

from rocketbox.access.control import AccessControl
from rocketbox.access.needs import needs_by_code
from rocketbox.access.users import UserTable
from rocketbox.clock import RealClock
from rocketbox.nameserver.name_server import NameServer
from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.remoting.acl import RequestSigner
from rocketbox.remoting.client import RemotingClient
from rocketbox.remoting.connection import Connection
from rocketbox.remoting.network import MemoryNetwork
from rocketbox.remoting.server import RemotingServer
from tests.support.broker.access import ADMIN, broker_with_access, keys_of
from tests.support.broker.in_memory import BrokerWire, broker_in_memory

pytestmark = pytest.mark.anyio

C = RequestCode
ROLES = ("admin", "producer", "consumer", "stranger")  # the last is known, and may nothing
EVERYBODY = frozenset(ROLES)
ADMINS, PRODUCERS, CONSUMERS = frozenset({"admin"}), frozenset({"admin", "producer"}), frozenset({"admin", "consumer"})
EITHER = PRODUCERS | CONSUMERS

OF_THE_BROKER: Mapping[int, frozenset[str]] = {
    C.SEND_MESSAGE: PRODUCERS,
    C.SEND_MESSAGE_V2: PRODUCERS,
    C.SEND_BATCH_MESSAGE: PRODUCERS,
    C.SEND_REPLY_MESSAGE: PRODUCERS,
    C.SEND_REPLY_MESSAGE_V2: PRODUCERS,
    C.PULL_MESSAGE: CONSUMERS,
    C.QUERY_MESSAGE: CONSUMERS,
    C.QUERY_CONSUMER_OFFSET: CONSUMERS,
    C.UPDATE_CONSUMER_OFFSET: CONSUMERS,
    C.UPDATE_AND_CREATE_TOPIC: ADMINS,
    C.GET_ALL_TOPIC_CONFIG: ADMINS,
    C.SEARCH_OFFSET_BY_TIMESTAMP: CONSUMERS,
    C.GET_MAX_OFFSET: CONSUMERS,
    C.GET_MIN_OFFSET: CONSUMERS,
    C.VIEW_MESSAGE_BY_ID: CONSUMERS,
    C.HEART_BEAT: CONSUMERS,
    C.UNREGISTER_CLIENT: CONSUMERS,
    C.CONSUMER_SEND_MSG_BACK: CONSUMERS,
    C.RECALL_MESSAGE: PRODUCERS,
    C.END_TRANSACTION: PRODUCERS,
    C.GET_CONSUMER_LIST_BY_GROUP: CONSUMERS,
    C.LOCK_BATCH_MQ: CONSUMERS,
    C.UNLOCK_BATCH_MQ: CONSUMERS,
    C.CHECK_CLIENT_CONFIG: EVERYBODY,
    C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: ADMINS,
    C.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: ADMINS,
    C.DELETE_SUBSCRIPTIONGROUP: ADMINS,
    C.DELETE_TOPIC_IN_BROKER: ADMINS,
    C.AUTH_CREATE_USER: ADMINS,
    C.AUTH_UPDATE_USER: ADMINS,
    C.AUTH_DELETE_USER: ADMINS,
    C.AUTH_GET_USER: ADMINS,
    C.AUTH_LIST_USER: ADMINS,
    C.AUTH_CREATE_ACL: ADMINS,
    C.AUTH_UPDATE_ACL: ADMINS,
    C.AUTH_DELETE_ACL: ADMINS,
    C.AUTH_GET_ACL: ADMINS,
    C.AUTH_LIST_ACL: ADMINS,
}
OF_THE_NAME_SERVER: Mapping[int, frozenset[str]] = {
    C.REGISTER_BROKER: ADMINS,
    C.UNREGISTER_BROKER: ADMINS,
    C.GET_ROUTEINFO_BY_TOPIC: EITHER,
    C.GET_BROKER_CLUSTER_INFO: EVERYBODY,
    C.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: EVERYBODY,
    C.DELETE_TOPIC_IN_NAMESRV: ADMINS,
}
PRODUCER_MAY_LOOK = frozenset({C.SEARCH_OFFSET_BY_TIMESTAMP, C.GET_MAX_OFFSET, C.GET_MIN_OFFSET})
"""Under ACL 1.0, which has no right to look: who may send to a topic or read it may ask where it ends."""

PLAIN_ACL = f"""
accounts:
- {{accessKey: {ADMIN.access_key}, secretKey: {ADMIN.secret_key}, admin: true}}
- {{accessKey: producer, secretKey: secret-of-producer, topicPerms: [orders=PUB, DefaultCluster_REPLY_TOPIC=PUB]}}
- {{accessKey: consumer, secretKey: secret-of-consumer, topicPerms: [orders=SUB], groupPerms: [board=SUB]}}
- {{accessKey: stranger, secretKey: secret-of-stranger}}
"""

QUEUE = {"topic": "orders", "queueId": "0"}
V1_SEND = {
    "producerGroup": "g", "topic": "orders", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0",
    "sysFlag": "0", "bornTimestamp": "1700000000000", "flag": "0", "properties": "", "reconsumeTimes": "0",
}  # fmt: skip
V2_SEND = dict(zip("abcdefghj", V1_SEND.values(), strict=False)) | {"h": "0", "i": "", "j": "0"}
BEAT = {
    "clientID": "c", "producerDataSet": [],
    "consumerDataSet": [{"groupName": "board", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
                         "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "unitMode": False,
                         "subscriptionDataSet": [{"topic": "orders", "subString": "*", "subVersion": 1,
                                                  "expressionType": "TAG"}]}],
}  # fmt: skip
LOCKS = {"consumerGroup": "board", "clientId": "c",
         "mqSet": [{"topic": "orders", "brokerName": "broker-a", "queueId": 0}]}  # fmt: skip

FIELDS: Mapping[int, dict[str, str]] = {
    C.SEND_MESSAGE: V1_SEND,
    C.SEND_MESSAGE_V2: V2_SEND,
    C.SEND_BATCH_MESSAGE: {**V2_SEND, "m": "true"},
    C.SEND_REPLY_MESSAGE: V1_SEND,
    C.SEND_REPLY_MESSAGE_V2: V2_SEND,
    C.PULL_MESSAGE: {**QUEUE, "consumerGroup": "board", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "4",
                     "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0"},
    C.QUERY_MESSAGE: {"topic": "orders", "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "1"},
    C.QUERY_CONSUMER_OFFSET: {**QUEUE, "consumerGroup": "board"},
    C.UPDATE_CONSUMER_OFFSET: {**QUEUE, "consumerGroup": "board", "commitOffset": "0"},
    C.UPDATE_AND_CREATE_TOPIC: {"topic": "orders", "defaultTopic": "TBW102", "readQueueNums": "4",
                                "writeQueueNums": "4", "perm": "6", "topicFilterType": "SINGLE_TAG", "order": "false"},
    C.SEARCH_OFFSET_BY_TIMESTAMP: {**QUEUE, "timestamp": "0"},
    C.GET_MAX_OFFSET: QUEUE,
    C.GET_MIN_OFFSET: QUEUE,
    C.VIEW_MESSAGE_BY_ID: {"offset": "0", "topic": "mine"},  # what it says of the topic does not count
    C.UNREGISTER_CLIENT: {"clientID": "c", "consumerGroup": "board"},
    C.RECALL_MESSAGE: {"topic": "orders", "producerGroup": "shop", "recallHandle": "dj=="},
    C.CONSUMER_SEND_MSG_BACK: {"offset": "0", "group": "board", "delayLevel": "1", "originTopic": "orders"},
    C.END_TRANSACTION: {"producerGroup": "g", "tranStateTableOffset": "0", "commitLogOffset": "0",
                        "commitOrRollback": "8"},
    C.GET_CONSUMER_LIST_BY_GROUP: {"consumerGroup": "board"},
    C.DELETE_SUBSCRIPTIONGROUP: {"groupName": "another"},
    C.DELETE_TOPIC_IN_BROKER: {"topic": "another"},
    C.AUTH_CREATE_USER: {"username": "new"},
    C.AUTH_UPDATE_USER: {"username": "stranger"},
    C.AUTH_DELETE_USER: {"username": "nobody"},
    C.AUTH_GET_USER: {"username": "stranger"},
    C.AUTH_CREATE_ACL: {"subject": "User:stranger"},
    C.AUTH_UPDATE_ACL: {"subject": "User:stranger"},
    C.AUTH_DELETE_ACL: {"subject": "User:stranger", "resource": "Topic:nothing"},
    C.AUTH_GET_ACL: {"subject": "User:stranger"},
    C.GET_ROUTEINFO_BY_TOPIC: {"topic": "orders"},
    C.DELETE_TOPIC_IN_NAMESRV: {"topic": "another", "clusterName": "DefaultCluster"},
    C.REGISTER_BROKER: {"brokerName": "b", "brokerAddr": "127.0.0.1:1", "clusterName": "DefaultCluster",
                        "haServerAddr": "", "brokerId": "0"},
    C.UNREGISTER_BROKER: {"brokerName": "b", "brokerAddr": "127.0.0.1:1", "clusterName": "DefaultCluster",
                          "brokerId": "0"},
}  # fmt: skip
BODIES: Mapping[int, object] = {
    C.HEART_BEAT: BEAT,
    C.LOCK_BATCH_MQ: LOCKS,
    C.UNLOCK_BATCH_MQ: LOCKS,
    C.CHECK_CLIENT_CONFIG: {"subscriptionData": {"expressionType": "TAG"}},
    C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: {"groupName": "board"},
    C.AUTH_CREATE_USER: {"username": "new", "password": "secret-of-new", "userType": "Normal"},
    C.AUTH_UPDATE_USER: {"username": "stranger", "userStatus": "enable"},
}


def is_refused(answer: RemotingCommand) -> bool:
    """Whether access control has said no."""
    remark = answer.remark or ""
    return "AclException" in remark or (answer.code == 16 and not remark.startswith(("The acl", "the topic")))


async def ask(wire: BrokerWire, address: str, code: int) -> RemotingCommand:
    body = json.dumps(BODIES[code]).encode() if code in BODIES else b"body"
    request = RemotingCommand.request(code, FIELDS.get(code, {}), body)
    return await wire.client.request(address, request, timeout=30)


@asynccontextmanager
async def everybody(kind: str, folder: Path) -> AsyncIterator[dict[str, BrokerWire]]:
    """A wire for each role, to a broker with one message of orders."""
    settings: dict[str, object] | None = None
    if kind == "ACL 1.0":
        (folder / "plain_acl.yml").write_text(PLAIN_ACL)
        settings = {"acl-enable": True, "acl-file": str(folder / "plain_acl.yml")}
    async with broker_with_access(settings) as users:
        admin = await users.wire(ADMIN)
        wires = {"admin": admin}
        if settings is None:
            may_reply = ("Topic:DefaultCluster_REPLY_TOPIC", "Pub", "Allow")
            wires["producer"] = await users.new_user(admin, "producer", ("Topic:orders", "Pub", "Allow"), may_reply)
            wires["consumer"] = await users.new_user(
                admin, "consumer", ("Topic:orders", "Sub,Get", "Allow"), ("Group:board", "Sub", "Allow")
            )
            wires["stranger"] = await users.new_user(admin, "stranger")
        else:
            wires |= {role: await users.wire(keys_of(role)) for role in ROLES[1:]}
        assert (await admin.send("orders")).code == 0
        yield wires


@pytest.mark.parametrize("kind", ["ACL 1.0", "ACL 2.0"])
async def test_who_may_ask_the_broker_what(kind: str, tmp_path: Path) -> None:
    async with everybody(kind, tmp_path) as wires:
        broker = wires["admin"].running
        codes = {int(code) for code in broker._handlers}
        assert codes == {int(code) for code in OF_THE_BROKER if kind == "ACL 2.0" or code < 3000}, "a line for each"
        wrong = []
        for code in sorted(codes):
            may = OF_THE_BROKER[code] | (PRODUCERS if kind == "ACL 1.0" and code in PRODUCER_MAY_LOOK else frozenset())
            for role in ROLES:
                answer = await ask(wires[role], broker.address, code)
                if is_refused(answer) is (role in may):
                    wrong.append((RequestCode(code).name, role, answer.code, answer.remark))
        assert wrong == []


async def test_who_is_not_known_may_ask_nothing(tmp_path: Path) -> None:
    async with everybody("ACL 2.0", tmp_path) as wires:
        admin = wires["admin"]
        async with RemotingClient(clock=RealClock(), network=admin.network) as client:
            wire = BrokerWire(admin.running, client, admin.network)
            taken = []
            for code in range(4001):
                answer = await client.request(admin.broker_address, RemotingCommand.request(code), timeout=30)
                if answer.code not in (3, 16):
                    taken.append(code)
            assert taken == []
            for each in OF_THE_BROKER:
                assert (await ask(wire, admin.broker_address, each)).code == 16


async def test_who_may_ask_the_name_server_what(tmp_path: Path) -> None:
    async with everybody("ACL 2.0", tmp_path) as wires:
        admin = wires["admin"]
        access = admin.running.access
        assert access is not None
        async with NameServer(clock=RealClock(), network=admin.network, access=access.control) as name_server:
            codes = {int(code) for code in name_server.server._role.handlers}
            assert codes == set(map(int, OF_THE_NAME_SERVER))
            wrong = []
            for code in sorted(codes):
                for role in ROLES:
                    answer = await ask(wires[role], name_server.address, code)
                    if is_refused(answer) is (role in OF_THE_NAME_SERVER[code]):
                        wrong.append((RequestCode(code).name, role, answer.code, answer.remark))
            assert wrong == []


CONFIGURATION = {
    25: "UPDATE_BROKER_CONFIG", 26: "GET_BROKER_CONFIG", 100: "PUT_KV_CONFIG", 101: "GET_KV_CONFIG",
    102: "DELETE_KV_CONFIG", 219: "GET_KVLIST_BY_NAMESPACE", 318: "UPDATE_NAMESRV_CONFIG", 319: "GET_NAMESRV_CONFIG",
    902: "ADD_BROKER", 903: "REMOVE_BROKER", 1009: "UPDATE_CONTROLLER_CONFIG", 1010: "GET_CONTROLLER_CONFIG",
    2001: "UPDATE_COLD_DATA_FLOW_CTR_CONFIG", 2002: "REMOVE_COLD_DATA_FLOW_CTR_CONFIG",
    2003: "GET_COLD_DATA_FLOW_CTR_INFO", 2004: "SET_COMMITLOG_READ_MODE",
}  # fmt: skip
"""What changes Apache's servers, or tells of their settings; some of it ran commands (CVE-2023-33246, -37582)."""


@pytest.mark.parametrize("kind", [None, "ACL 1.0", "ACL 2.0"])
async def test_no_server_has_its_configuration_changed_or_read_by_anybody(kind: str | None, tmp_path: Path) -> None:
    body = b"rocketmqHome=-c $@|sh . echo touch /tmp/x;\nconfigStorePath=/etc/passwd\nfilterServerNums=1\n"

    async def answers(wire: BrokerWire, address: str) -> dict[int, tuple[int, str | None, bytes, dict[str, str]]]:
        found = {}
        for code in CONFIGURATION:
            request = RemotingCommand.request(code, {"namespace": "n", "key": "k", "value": "v"}, body)
            answer = await wire.client.request(address, request, timeout=30)
            found[code] = (answer.code, answer.remark, bytes(answer.body or b""), dict(answer.ext_fields))
        return found

    unsupported: dict[int, tuple[int, str | None, bytes, dict[str, str]]]
    unsupported = {code: (3, f" request type {code} not supported", b"", {}) for code in CONFIGURATION}
    async with AsyncExitStack() as stack:
        if kind is None:
            wires = {"anybody": await stack.enter_async_context(broker_in_memory())}
        else:
            wires = await stack.enter_async_context(everybody(kind, tmp_path))
        (one, *_) = wires.values()
        access = None if one.running.access is None else one.running.access.control
        server = await stack.enter_async_context(
            NameServer(clock=RealClock(), network=one.network, access=access)
        )  # fmt: skip
        for wire in wires.values():
            assert await answers(wire, one.broker_address) == unsupported
            assert await answers(wire, server.address) == unsupported


async def test_servers_without_access_control_answer_the_codes_of_the_table_and_no_other() -> None:
    async with (
        broker_in_memory() as wire,
        NameServer(clock=RealClock(), network=wire.network) as name_server,
    ):

        async def answered(address: str) -> set[int]:
            found = set()
            for code in range(4_001):
                answer = await wire.client.request(address, RemotingCommand.request(code), timeout=30)
                if answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    found.add(code)
            return found

        of_users = {code for code in RequestCode if code.name.startswith("AUTH_")}  # there are none here
        assert await answered(wire.broker_address) == {*OF_THE_BROKER} - of_users
        assert await answered(name_server.address) == {*OF_THE_NAME_SERVER}


def test_every_code_that_is_handled_is_in_the_table() -> None:
    assert {*OF_THE_BROKER, *OF_THE_NAME_SERVER} == needs_by_code("DefaultCluster").keys()


async def test_a_code_that_is_handled_and_not_in_the_table_is_refused() -> None:
    """A new request is open to nobody until somebody has said to whom, super users included."""
    called: list[RemotingCommand] = []

    def handle(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        called.append(request)
        return RemotingCommand.response()

    from rocketbox.protocol.auth_bodies import UserInfo

    table, clock, network = UserTable(), RealClock(), MemoryNetwork()
    table.create(UserInfo(username=ADMIN.access_key, password=ADMIN.secret_key, user_type="Super"))
    access = AccessControl(table, clock, cluster="DefaultCluster")
    server = RemotingServer({999: handle}, host="h", port=0, clock=clock, network=network, guard=access.guard)
    async with server, RemotingClient(clock=clock, network=network, hooks=[RequestSigner(ADMIN)]) as client:
        with anyio.fail_after(30):
            answer = await client.request(server.address, RemotingCommand.request(999), timeout=30)
    assert (answer.code, answer.remark) == (16, "nothing is said here of who may send request 999")
    assert called == []
