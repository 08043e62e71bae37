"""Whose a request is: signatures that are right, wrong, missing, twice, changed by a byte, and huge."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from rocketbox.access.accounts import EVERYTHING, Account
from rocketbox.access.control import AccessControl
from rocketbox.access.signed_sends import SendShape, cut_send
from rocketbox.protocol.codes import RequestCode, SerializeType
from rocketbox.protocol.command import (
    JSON,
    RemotingCommand,
    decode_command,
    decode_parts,
    encode_command,
    encode_ext_fields,
)
from rocketbox.remoting.acl import Credentials, RequestSigner
from rocketbox.remoting.client import RemotingClient
from rocketbox.remoting.options import RemotingOptions
from rocketbox.remoting.signing import SigningKey
from tests.support.broker.access import ADMIN, UserWires, broker_with_access, keys_of
from tests.support.broker.in_memory import BrokerWire

pytestmark = pytest.mark.anyio

WRONG = "check signature failed."
KEYS = "KEYS\x01k\x02"  # without properties a send has not the common form
PLAIN_ACL = f"""
accounts:
- {{accessKey: {ADMIN.access_key}, secretKey: {ADMIN.secret_key}, admin: true}}
"""


def send_fields(topic: str = "T") -> dict[str, str]:
    fields: dict[str, Any] = {
        "a": "group", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1_700_000_000_000, "h": 0,
        "i": "KEYS\x01k\x02", "j": 0, "k": "false", "m": "false",
    }  # fmt: skip
    return {name: str(value) for name, value in fields.items()}


def signed(command: RemotingCommand, credentials: Credentials = ADMIN) -> RemotingCommand:
    RequestSigner(credentials).before_request("", command)
    return command


async def ask(wire: BrokerWire, command: RemotingCommand, kind: SerializeType | None = None) -> RemotingCommand:
    """As it is, in either serialization."""
    if kind is None:
        return await wire.client.request(wire.broker_address, command, timeout=30)
    options = RemotingOptions(serialization=kind)
    async with RemotingClient(clock=wire.running._clock, network=wire.network, options=options) as client:
        return await client.request(wire.broker_address, command, timeout=30)


async def test_who_signs_is_served_and_who_does_not_is_not(users: UserWires, admin: BrokerWire) -> None:
    assert (await admin.send("T", properties=KEYS)).code == 0
    refused = await users.unsigned.send("T")
    assert (refused.code, refused.remark) == (16, "username cannot be null.")
    assert users.broker.access is not None
    assert users.broker.access.control.refused == 1


@pytest.mark.parametrize("kind", list(SerializeType))
@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE_V2, RequestCode.GET_ALL_TOPIC_CONFIG])
async def test_both_forms_of_header_are_checked(users: UserWires, kind: SerializeType, code: int) -> None:
    """The second and third of a form go the quick way."""
    for number in range(4):
        fields = {**send_fields(), "g": str(1_700_000_000_000 + number)} if code == 310 else {}
        command = signed(RemotingCommand.request(code, fields, b"body %d" % number))
        assert (await ask(users.unsigned, command, kind)).code == 0
        command.body += b"!"
        assert (await ask(users.unsigned, command, kind)).remark == WRONG


async def test_unknown_key_wrong_signature_and_disabled_user_get_one_answer(
    users: UserWires, admin: BrokerWire
) -> None:
    await users.new_user(admin, "disabled", ("Topic:T", "Pub", "Allow"), userStatus="disable")
    strangers = [
        dataclasses.replace(ADMIN, secret_key="another"),
        keys_of("stranger"),
        keys_of("disabled"),
        keys_of("ä" * 200),
        keys_of("x" * 60_000),
    ]
    answers = {(answer.code, answer.remark) for user in strangers
               if (answer := await (await users.wire(user)).send("T"))}  # fmt: skip
    assert answers == {(16, WRONG)}


async def test_the_quick_way_is_open_only_to_who_has_signed_over_the_connection(
    users: UserWires, admin: BrokerWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the time of an answer would tell which keys there are: an unknown one goes the slow way always."""
    for _ in range(3):
        assert (await admin.send("T", properties=KEYS)).code == 0
    read: list[bool] = []
    original = AccessControl._authenticate

    def counted(self: AccessControl, *arguments: Any) -> Account | None:
        read.append(True)
        return original(self, *arguments)

    monkeypatch.setattr(AccessControl, "_authenticate", counted)
    assert (await admin.send("T", properties=KEYS)).code == 0
    assert read == []
    for user in (dataclasses.replace(ADMIN, secret_key="another"), keys_of("stranger")):
        wire = await users.wire(user)
        for _ in range(3):
            assert (await wire.send("T", properties=KEYS)).code == 16
    assert len(read) == 6


@pytest.mark.parametrize("acl", ["ACL 1.0", "ACL 2.0"])
@pytest.mark.parametrize("kind", list(SerializeType))
async def test_every_byte_counts(kind: SerializeType, acl: str, tmp_path: Path) -> None:
    """Of a send that was served before, so that the quick way would be open."""
    (tmp_path / "plain_acl.yml").write_text(PLAIN_ACL)
    plain: dict[str, object] = {"acl-enable": True, "acl-file": str(tmp_path / "plain_acl.yml")}
    options = RemotingOptions(serialization=kind)
    async with (
        broker_with_access(plain if acl == "ACL 1.0" else None) as users,
        RemotingClient(clock=users.broker._clock, network=users.unsigned.network, options=options) as client,
    ):
        good = signed(RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, send_fields(), b"body"))
        for _ in range(2):
            assert (await client.request(users.broker.address, good, timeout=30)).code == 0
        frame = encode_command(good, 1, serialization=kind)
        served: list[tuple[int, dict[str, str]]] = []
        refused = 0
        for at in range(8, len(frame)):
            changed = frame[:at] + bytes([frame[at] ^ 0x01]) + frame[at + 1 :]
            try:
                command = decode_command(changed[4:])
                fields = dict(command.ext_fields)
            except Exception:
                continue
            if command.code != RequestCode.SEND_MESSAGE_V2 or command.is_response:
                continue
            if (fields, command.body) == (dict(good.ext_fields), good.body):
                continue  # what has changed is not signed: language, version, a remark
            if (
                "".join(v for k, v in sorted(fields.items()) if k != "Signature")
                == "".join(v for k, v in sorted(good.ext_fields.items()) if k != "Signature")
                and fields.get("Signature") == good.ext_fields["Signature"]
                and command.body == good.body
            ):
                continue  # names are not signed, only their order is; Apache's way
            answer = await client.request(
                users.broker.address, RemotingCommand.request(command.code, fields, command.body), timeout=30
            )
            if answer.code == 0:
                served.append((at, fields))
            refused += answer.code != 0
        assert served == []
        assert refused > 100


async def test_fields_that_come_twice_mean_what_is_signed(users: UserWires) -> None:
    """The last one counts, for the signature as for the handler."""
    good = signed(RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, send_fields("mine"), b"body"))
    entries = encode_ext_fields({"b": "another"}) + encode_ext_fields(good.ext_fields)
    twice = encode_command(RemotingCommand.request(310), 1)
    head, body = twice[:29], b"body"
    frame = bytearray(head + entries + body)
    frame[0:4] = (len(frame) - 4).to_bytes(4, "big")
    frame[5:8] = (len(entries) + 21).to_bytes(3, "big")
    frame[25:29] = len(entries).to_bytes(4, "big")
    command = decode_command(bytes(frame[4:]))
    cut = cut_send(command)
    assert cut is not None
    assert command.ext_fields["b"] == "mine"
    account = Account(ADMIN.access_key, SigningKey(ADMIN.secret_key), EVERYTHING)
    assert SendShape.of(cut, command.ext_fields, account, ()) is None, "no quick way for names that come twice"


async def test_half_a_character_in_a_field_that_comes_twice_is_no_failure_of_the_broker() -> None:
    """Java writes no half of a surrogate pair, others may, and the first of two such fields looks like a plain time."""
    fields = send_fields() | {"AccessKey": ADMIN.access_key}
    header = encode_command(RemotingCommand.request(310, fields | {"Signature": "x" * 28}), 1, serialization=JSON)[8:]
    header = header.replace(b'"h":"0"', rb'"h":"0","g":"\ud800"')
    command = decode_parts(JSON, header, b"body")
    cut = cut_send(command)
    assert cut is not None
    account = Account(ADMIN.access_key, SigningKey(ADMIN.secret_key), EVERYTHING)
    assert SendShape.of(cut, command.ext_fields, account, ()) is None


async def test_a_request_signed_twice_is_signed(users: UserWires) -> None:
    command = signed(signed(RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, send_fields(), b"body")))
    assert (await ask(users.unsigned, command)).code == 0


async def test_a_request_signed_by_two_is_the_last_ones(users: UserWires, admin: BrokerWire) -> None:
    await users.new_user(admin, "other", ("Topic:T", "Pub", "Allow"))
    command = signed(
        signed(RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, send_fields(), b"body")), keys_of("other")
    )
    assert (await ask(users.unsigned, command)).code == 0
    command = signed(
        signed(RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, send_fields("U"), b"body")), keys_of("other")
    )
    assert "no permission to access Topic:U" in str((await ask(users.unsigned, command)).remark)


async def test_a_field_behind_the_signature_makes_it_wrong(users: UserWires) -> None:
    command = signed(RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, send_fields(), b"body"))
    command.ext_fields = {**command.ext_fields, "nsd": "true"}
    assert (await ask(users.unsigned, command)).remark == WRONG


async def test_odd_characters_are_signed_as_java_signs_them(users: UserWires) -> None:
    fields = {"Ω": "1", "\U00010330": "2", "\ufb01": "3", "é": "\x00\x01\x02", "": "nameless"}
    command = signed(RemotingCommand.request(RequestCode.GET_ALL_TOPIC_CONFIG, {"a": "b"}))
    assert (await ask(users.unsigned, command)).code == 0
    values = {**fields, "AccessKey": ADMIN.access_key}
    names = sorted((name for name in values if name), key=lambda name: name.encode("utf-16-be"))
    assert names.index("\U00010330") < names.index("\ufb01"), "Java compares UTF-16"
    signature = SigningKey(ADMIN.secret_key).begin()
    signature.update("".join(values[name] for name in names).encode())
    text = SigningKey(ADMIN.secret_key).finish(signature).decode()
    command = RemotingCommand.request(RequestCode.GET_ALL_TOPIC_CONFIG, {**values, "Signature": text})
    assert (await ask(users.unsigned, command, SerializeType.ROCKETMQ)).code == 0


@pytest.mark.parametrize(("version", "is_signed"), [(399, False), (401, True), (500, True)])
async def test_the_flag_of_unique_keys_is_signed_from_4_9_4_on(users: UserWires, version: int, is_signed: bool) -> None:
    query = {"topic": "T", "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "1"}
    flag = {"_UNIQUE_KEY_QUERY": "true"}
    with_flag = signed(RemotingCommand.request(RequestCode.QUERY_MESSAGE, {**query, **flag}))
    without = signed(RemotingCommand.request(RequestCode.QUERY_MESSAGE, query))
    without.ext_fields = {**without.ext_fields, **flag}
    options = RemotingOptions(version=version)
    async with RemotingClient(clock=users.broker._clock, network=users.unsigned.network, options=options) as client:
        codes = [(await client.request(users.broker.address, each, timeout=30)).code for each in (with_flag, without)]
    assert codes == ([22, 16] if is_signed else [16, 22])


async def test_a_replayed_frame_is_served_again(users: UserWires) -> None:
    """A limit of the protocol that has neither time nor nonce, and why the docs ask for TLS."""
    command = signed(RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, send_fields(), b"body"))
    assert [(await ask(users.unsigned, command)).code for _ in range(2)] == [0, 0]


async def test_a_wrong_one_costs_its_connection_nothing(users: UserWires, admin: BrokerWire) -> None:
    async with RemotingClient(clock=users.broker._clock, network=users.unsigned.network) as client:
        bad = signed(RemotingCommand.request(310, send_fields(), b"body"), keys_of("stranger"))
        good = signed(RemotingCommand.request(310, send_fields(), b"body"))
        codes = [(await client.request(users.broker.address, each, timeout=30)).code for each in (bad, good, bad, good)]
    assert codes == [16, 0, 16, 0]


async def test_a_deleted_user_is_refused_at_once(users: UserWires, admin: BrokerWire) -> None:
    wire = await users.new_user(admin, "leaver", ("Topic:T", "Pub", "Allow"))
    assert [(await wire.send("T")).code for _ in range(3)] == [0, 0, 0]
    assert (await admin.broker(RequestCode.AUTH_DELETE_USER, {"username": "leaver"})).code == 0
    answer = await wire.send("T")
    assert (answer.code, answer.remark) == (16, WRONG)


async def test_one_way_requests_are_checked_too(users: UserWires, admin: BrokerWire) -> None:
    await admin.send("T")
    command = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, send_fields(), b"never")
    await users.unsigned.client.send_oneway(users.broker.address, command, timeout=30)
    await users.unsigned.send("T")  # behind it
    assert users.broker.access is not None
    assert users.broker.access.control.refused == 2
    assert [message.body for message in await admin.messages("T", group="g")] == [b"hello"]


async def test_acl_1_takes_signatures_with_and_without_the_flag(tmp_path: Path) -> None:
    """4.9.7 leaves it out always, and its own clients sign it."""
    (tmp_path / "plain_acl.yml").write_text(PLAIN_ACL)
    settings: dict[str, object] = {"acl-enable": True, "acl-file": str(tmp_path / "plain_acl.yml")}
    query = {"topic": "T", "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "1"}
    flag = {"_UNIQUE_KEY_QUERY": "true"}
    async with broker_with_access(settings) as users:
        with_flag = signed(RemotingCommand.request(RequestCode.QUERY_MESSAGE, {**query, **flag}))
        without = signed(RemotingCommand.request(RequestCode.QUERY_MESSAGE, query))
        without.ext_fields = {**without.ext_fields, **flag}
        assert [(await ask(users.unsigned, each)).code for each in (with_flag, without)] == [22, 22]
        unknown = signed(RemotingCommand.request(310, send_fields()), keys_of("stranger"))
        wrong = signed(RemotingCommand.request(310, send_fields()), dataclasses.replace(ADMIN, secret_key="another"))
        answers = [await ask(users.unsigned, each) for each in (unknown, wrong)]
        assert [answer.code for answer in answers] == [1, 1]
        start = "org.apache.rocketmq.acl.common.AclException: Check signature failed for accessKey="
        assert [answer.remark for answer in answers] == [f"{start}stranger", f"{start}administrator"]
