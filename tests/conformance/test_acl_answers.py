"""What requests are answered whose user may not, or who are signed wrongly, late, again or twice: Apache's and ours.

Each is sent to Apache's broker and to a broker of ours whose users may the same, and the answers are compared: code and
remark. Apache's 4.9.7 ends each remark with the line of its code that has refused; ours never says such a thing. Where
ours answers something else on purpose it stands in ``OTHERS``, with the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from rocketbox.client import Credentials
from rocketbox.clock import RealClock
from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.remoting.acl import RequestSigner
from rocketbox.remoting.client import RemotingClient
from rocketbox.remoting.signing import SigningKey
from tests.conformance.acl import ADMIN, AclServers, user
from tests.support.broker.access import UserWires, broker_with_access
from tests.support.broker.rights import May, account, plain_acl

pytestmark = [pytest.mark.apache, pytest.mark.anyio]

SELLER, READER = user("seller-of-tickets"), user("reader-of-tickets")
MAY = {
    SELLER: May({"tickets": "PUB"}, {}, {"Topic:tickets": ("Pub",)}),
    READER: May({"tickets": "SUB"}, {"counter": "SUB"}, {"Topic:tickets": ("Sub", "Get"), "Group:counter": ("Sub",)}),
}
Answer = tuple[int, str]
_LINE_OF_APACHES = re.compile(r", org\.apache\.rocketmq\.[\w.]+\(\w+\.java:\d+\)$")


def send_fields(topic: str = "tickets", born: int = 1_700_000_000_000) -> dict[str, str]:
    fields = {
        "a": "p", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": born, "h": 0, "i": "KEYS\x01k\x02", "j": 0,
        "k": "false", "m": "false",
    }  # fmt: skip
    return {name: str(value) for name, value in fields.items()}


def signed(
    who: Credentials, code: int = RequestCode.SEND_MESSAGE_V2, fields: Mapping[str, str] | None = None,
    body: bytes = b"body",
) -> RemotingCommand:  # fmt: skip
    command = RemotingCommand.request(code, send_fields() if fields is None else dict(fields), body)
    RequestSigner(who).before_request("", command)
    return command


def signed_again(command: RemotingCommand, who: Credentials) -> RemotingCommand:
    RequestSigner(who).before_request("", command)
    return command


def changed(body: bytes = b"body", **fields: str | None) -> RemotingCommand:
    """A good send of which these fields, or the body, were changed behind the signature; None takes one away."""
    signed_fields = {**signed(SELLER).ext_fields, **fields}
    said = {name: value for name, value in signed_fields.items() if value is not None}
    return RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, said, body)


def over_the_first_signature() -> RemotingCommand:
    """As of a second hook that takes the first one's signature for a field of the request."""
    fields = {**signed(SELLER).ext_fields, "AccessKey": READER.access_key}
    signature = SigningKey(READER.secret_key).signature(fields, b"body", ()).decode()
    return RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, {**fields, "Signature": signature}, b"body")


def beat(consumers: bool) -> bytes:
    subscription = {"topic": "tickets", "subString": "*", "tagsSet": [], "codeSet": [], "subVersion": 1}
    group = {
        "groupName": "theirs", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING", "unitMode": False,
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": [subscription],
    }  # fmt: skip
    sets = {"producerDataSet": [{"groupName": "p"}], "consumerDataSet": [group] if consumers else []}
    return json.dumps({"clientID": "c", **sets}).encode()


def pull(group: str) -> dict[str, str]:
    fields = {
        "consumerGroup": group, "topic": "tickets", "queueId": 0, "queueOffset": 9, "maxMsgNums": 1, "sysFlag": 4,
        "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0,
    }  # fmt: skip
    return {name: str(value) for name, value in fields.items()}


END = {
    "producerGroup": "p", "topic": "tickets", "tranStateTableOffset": "0", "commitLogOffset": "0",
    "commitOrRollback": "8", "fromTransactionCheck": "false", "msgId": "x", "transactionId": "x",
}  # fmt: skip
OFFSET = {"consumerGroup": "counter", "topic": "tickets", "queueId": "0"}
AGAIN = signed(SELLER)
LENT = Credentials(access_key=SELLER.access_key, secret_key=SELLER.secret_key, security_token="ended long ago")
C = RequestCode
REQUESTS: dict[str, RemotingCommand] = {
    "signed": AGAIN,
    "replayed": AGAIN,
    "of 2001": signed(SELLER, fields=send_fields(born=1_000_000_000_000)),
    "of 2286": signed(SELLER, fields=send_fields(born=9_999_999_999_999)),
    "with a token that has ended": signed(LENT),
    "signed twice": signed_again(signed(SELLER), SELLER),
    "signed by two, the last of whom may": signed_again(signed(READER), SELLER),
    "signed by two, the last of whom may not": signed_again(signed(SELLER), READER),
    "signed over the first signature": over_the_first_signature(),
    "not signed": RemotingCommand.request(C.SEND_MESSAGE_V2, send_fields(), b"body"),
    "signed by a stranger": signed(user("stranger")),
    "signed by another secret": signed(user(SELLER.access_key, "another-secret")),
    "an empty signature": changed(Signature=""),
    "no signature": changed(Signature=None),
    "an odd signature": changed(Signature="ä" * 28),
    "a field more": changed(nsd="true"),
    "another body": changed(b"bodY"),
    "another topic": changed(b="wickets"),
    "a send": signed(READER),
    "a trace": signed(SELLER, fields=send_fields("RMQ_SYS_TRACE_TOPIC")),
    "a pull": signed(READER, C.PULL_MESSAGE, pull("theirs"), b""),
    "a producer's heartbeat": signed(READER, C.HEART_BEAT, {}, beat(consumers=False)),
    "a consumer's heartbeat": signed(READER, C.HEART_BEAT, {}, beat(consumers=True)),
    "a commit": signed(READER, C.UPDATE_CONSUMER_OFFSET, {**OFFSET, "consumerGroup": "theirs", "commitOffset": "0"}),
    "who consumes": signed(SELLER, C.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "counter"}),
    "where a queue ends": signed(SELLER, C.GET_MAX_OFFSET, {"topic": "tickets", "queueId": "0"}),
    "where a queue is read": signed(SELLER, C.QUERY_CONSUMER_OFFSET, OFFSET),
    "all topics": signed(SELLER, C.GET_ALL_TOPIC_CONFIG, {}),
    "the end of a transaction": signed(READER, C.END_TRANSACTION, END),
    "a recall": signed(READER, C.RECALL_MESSAGE, {"producerGroup": "p", "topic": "tickets", "recallHandle": "x"}),
    "a recall by who may": signed(SELLER, C.RECALL_MESSAGE, {"topic": "tickets", "recallHandle": "djEgYg=="}),
    "a reply": signed(READER, C.SEND_REPLY_MESSAGE_V2, send_fields("DefaultCluster_REPLY_TOPIC")),
    "a new topic": signed(
        SELLER, C.UPDATE_AND_CREATE_TOPIC,
        {"topic": "new", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
         "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"},
    ),
    "no topic any more": signed(SELLER, C.DELETE_TOPIC_IN_BROKER, {"topic": "tickets"}),
    "users": signed(SELLER, C.AUTH_LIST_USER, {"filter": "r"}),
}  # fmt: skip

REFUSED_1 = "org.apache.rocketmq.acl.common.AclException: "
TOPIC_1 = REFUSED_1 + "No default permission for topic:"
STRANGER = "signed by a stranger"  # ours tells nobody which keys there are
OTHERS_1: dict[str, tuple[Answer | None, Answer]] = {
    STRANGER: (
        (1, f"{REFUSED_1}No acl config for stranger"),
        (1, f"{REFUSED_1}Check signature failed for accessKey=stranger"),
    ),
    # There they take no right at all; None: its answer is an error of another kind, or none.
    "where a queue is read": (None, (1, TOPIC_1 + "tickets")),
    "all topics": (
        (0, ""),
        (1, f"{REFUSED_1}Need admin permission for request code=21, but accessKey=seller-of-tickets is not"),
    ),
    "the end of a transaction": (None, (1, TOPIC_1 + "tickets")),
    "a reply": (None, (1, TOPIC_1 + "DefaultCluster_REPLY_TOPIC")),
    # Requests that it does not know.
    "a recall": ((3, " request type 370 not supported"), (1, TOPIC_1 + "tickets")),
    "a recall by who may": ((3, " request type 370 not supported"), (604, "recall handle is invalid")),
}  # fmt: skip


def refused_2(who: Credentials, resource: str) -> str:
    return f"User:{who.access_key} has no permission to access {resource} from 127.0.0.1, no matched policies."


OTHERS_2: dict[str, tuple[Answer | None, Answer]] = {
    STRANGER: ((16, "User:stranger is not found."), (16, "check signature failed.")),
    "all topics": (
        (0, ""),
        (16, refused_2(SELLER, "Cluster:DefaultCluster")),
    ),
    "a reply": (None, (16, refused_2(READER, "Topic:DefaultCluster_REPLY_TOPIC"))),
}  # fmt: skip


async def answers(client: RemotingClient, broker: str) -> dict[str, Answer]:
    found = {}
    for name, request in REQUESTS.items():
        again = RemotingCommand.request(request.code, dict(request.ext_fields), request.body)
        answer = await client.request(broker, again, timeout=30)
        remark = "" if answer.code == ResponseCode.SUCCESS else answer.remark or ""
        found[name] = (answer.code, _LINE_OF_APACHES.sub("", remark))
    return found


async def answers_of_ours(servers: AclServers, folder: Path) -> dict[str, Answer]:
    settings: dict[str, object] | None = None
    if servers.has_acl_1:
        file = folder / "plain_acl.yml"
        file.write_text(plain_acl([account(who, may) for who, may in MAY.items()]))
        settings = {"acl-enable": True, "acl-file": str(file)}
    async with broker_with_access(settings) as users:
        admin = await users.wire(ADMIN)
        if not servers.has_acl_1:
            await let_users(users)
        assert (await admin.send("tickets")).code == 0
        return await answers(users.unsigned.client, users.broker.address)


async def let_users(users: UserWires) -> None:
    admin = await users.wire(ADMIN)
    for who, may in MAY.items():
        entries = [(resource, ",".join(actions), "Allow") for resource, actions in may.policies.items()]
        await users.new_user(admin, who.access_key, *entries)


async def prepare(servers: AclServers) -> None:
    for who, may in MAY.items():
        await servers.let(who, may)
    await servers.make_topic("tickets")
    await servers.until_known(READER)


async def test_ours_answers_as_apaches_does_but_where_it_is_meant_to(acl: AclServers, tmp_path: Path) -> None:
    await prepare(acl)
    async with RemotingClient(clock=RealClock()) as client:
        theirs = await answers(client, acl.broker)
    ours = await answers_of_ours(acl, tmp_path)
    others = OTHERS_1 if acl.has_acl_1 else OTHERS_2
    different = {name: (theirs[name], ours[name]) for name in REQUESTS if theirs[name] != ours[name]}
    known = {name: (theirs[name] if there is None else there, here) for name, (there, here) in others.items()}
    assert different == known
    for name in ("replayed", "of 2001", "of 2286", "with a token that has ended", "signed twice"):
        assert theirs[name] == (0, ""), name
