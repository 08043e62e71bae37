"""Signed requests: the signatures of Apache's Java client, on commands and on prepared sends of every kind."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketbox.errors import ConfigurationError
from rocketbox.protocol.codes import RequestCode
from rocketbox.protocol.command import RemotingCommand, decode_command, encode_command, encode_ext_fields
from rocketbox.protocol.prepared_sends import SendRequest, SendTemplate, encode_send_numbers
from rocketbox.remoting import acl
from rocketbox.remoting.acl import Credentials, RequestSigner
from tests.support.failures import variables_of_ours

RECORDED = Path(__file__).parents[2] / "data" / "frames" / "java-5.5.0.jsonl"
KEYS = Credentials(access_key="rocketmqtest", secret_key="12345678")  # those of the recording
LENT = Credentials(access_key="STS.of-me", secret_key="s" * 100, security_token="lent until noon")


def expected(fields: Mapping[str, str], body: bytes, secret: str) -> str:
    values = "".join(fields[name] for name in sorted(fields) if name != "Signature")
    return base64.b64encode(hmac.digest(secret.encode(), values.encode() + body, hashlib.sha1)).decode()


def signed(request: SendRequest, signer: RequestSigner) -> RemotingCommand:
    """The request as a server reads it."""
    request.added += signer.before_prepared("broker:1", request)
    return decode_command(request.encode(7)[4:])


def send(body: bytes = b"x", *, template: SendTemplate | None = None, numbers: bytes | None = None) -> SendRequest:
    request = SendRequest("T", body, b"UNIQ_KEY\x01A1\x02WAIT\x01true", "A1", 1_763_800_000_000)
    request.template = template or SendTemplate("PG", "T", 3, "broker-a")
    if numbers is not None:
        request.numbers = numbers
    return request


def test_commands_are_signed_as_javas_client_signs_them() -> None:
    frames = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    commands = [decode_command(bytes.fromhex(frame["hex"])[4:]) for frame in frames]
    recorded = [command for command in commands if "Signature" in command.ext_fields]
    assert len(recorded) == 5
    for command in recorded:
        theirs = dict(command.ext_fields)
        command.ext_fields = {name: theirs[name] for name in theirs if name not in ("AccessKey", "Signature")}
        RequestSigner(KEYS).before_request("broker:1", command)
        assert command.ext_fields == theirs


def test_a_command_that_goes_out_again_is_signed_anew_and_once() -> None:
    command = RemotingCommand.request(RequestCode.HEART_BEAT, {"clientID": "c"}, b"{}")
    signer = RequestSigner(LENT)
    signer.before_request("broker:1", command)
    first = dict(command.ext_fields)
    signer.before_request("broker:2", command)
    assert command.ext_fields == first
    assert (first["AccessKey"], first["SecurityToken"]) == ("STS.of-me", "lent until noon")
    read = decode_command(encode_command(command, 1)[4:])
    assert read.ext_fields["Signature"] == expected(read.ext_fields, b"{}", LENT.secret_key)


@pytest.mark.parametrize("credentials", [KEYS, LENT])
@given(
    body=st.binary(max_size=200),
    flag=st.integers(-(2**31), 2**31 - 1),
    sys_flag=st.integers(0, 2**16),
    most=st.none() | st.integers(0, 20),
    batch=st.booleans(),
    topic=st.text(st.characters(codec="utf-8"), min_size=1, max_size=8),
    born=st.integers(0, 2**50),
)
def test_a_prepared_send_is_signed_over_all_that_a_server_reads(
    credentials: Credentials,
    body: bytes,
    flag: int,
    sys_flag: int,
    most: int | None,
    batch: bool,
    topic: str,
    born: int,
) -> None:
    numbers = encode_send_numbers(flag=flag, sys_flag=sys_flag, max_reconsume_times=most, batch=batch)
    request = send(body, template=SendTemplate("PG", topic, 3, "broker-ü"), numbers=numbers)
    request.born_ms = born
    read = signed(request, RequestSigner(credentials))
    assert read.ext_fields["Signature"] == expected(read.ext_fields, body, credentials.secret_key)
    assert read.body == body


def test_only_the_first_send_to_a_queue_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    read_back = []

    def counting(frame: bytes) -> RemotingCommand:
        read_back.append(frame)
        return decode_command(frame)

    monkeypatch.setattr(acl, "decode_command", counting)
    signer = RequestSigner(KEYS)
    one, other = SendTemplate("PG", "T", 0, "broker-a"), SendTemplate("PG", "T", 1, "broker-a")
    flagged = encode_send_numbers(flag=7)
    for _ in range(3):
        for request in (send(template=one), send(template=other), send(template=one, numbers=flagged)):
            signer.before_prepared("broker:1", request)
    assert len(read_back) == 3


def test_what_is_kept_of_queues_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl, "_MOST_KEPT", 10)
    signer = RequestSigner(KEYS)
    for flag in range(35):
        request = send(numbers=encode_send_numbers(flag=flag))
        assert signed(request, signer).ext_fields["h"] == str(flag)
        assert len(signer._prepared) <= 10


@pytest.mark.parametrize("name", ["Zone", "__ZONE_NAME", "ns", "zz"])
def test_what_other_hooks_have_added_is_signed_wherever_it_sorts(name: str) -> None:
    request = send(b"body")
    request.added = encode_ext_fields({name: "north"})
    read = signed(request, RequestSigner(KEYS))
    assert read.ext_fields[name] == "north"
    assert read.ext_fields["Signature"] == expected(read.ext_fields, b"body", KEYS.secret_key)


@pytest.mark.parametrize(("key", "shown"), [("rocketmqtest", "rock..."), ("AK", "A..."), ("A", "...")])
def test_keys_are_in_no_repr(key: str, shown: str) -> None:
    credentials = Credentials(access_key=key, secret_key="hunter2-of-the-bank", security_token="hunter3")
    assert credentials.who == shown
    for text in (repr(credentials), str(credentials), repr(RequestSigner(credentials))):
        assert shown in text
        assert "hunter" not in text


@pytest.mark.parametrize("name", ["access_key", "secret_key", "security_token"])
def test_a_key_that_cannot_be_written_is_refused_and_not_shown(name: str) -> None:
    given = {"access_key": "AK", "secret_key": "SK", name: "hunter2-\udcfc"}
    with pytest.raises(ConfigurationError, match=rf"Credentials\.{name} has characters that UTF-8 cannot") as caught:
        Credentials(**given)  # type: ignore[arg-type]
    assert "hunter2" not in repr(caught.value)
    assert caught.value.__context__ is None, "no error that holds the key"


@pytest.mark.parametrize("name", ["access_key", "secret_key", "security_token"])
def test_an_empty_key_is_refused(name: str) -> None:
    given = {"access_key": "AK", "secret_key": "hunter2", name: " "}
    with pytest.raises(ConfigurationError, match=rf"Credentials\.{name} is empty") as caught:
        Credentials(**given)  # type: ignore[arg-type]
    assert "hunter2" not in str(caught.value)
    assert not [line for line in variables_of_ours(caught.value) if "hunter2" in line]
