"""Reading sends by their bytes and writing answers from a template give what the ordinary ways give."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketbox.errors import RemoteProtocolError
from rocketbox.protocol.codes import RequestCode, SerializeType
from rocketbox.protocol.command import (
    RemotingCommand,
    decode_command,
    encode_command,
    encode_ext_fields,
    encode_response,
)
from rocketbox.protocol.headers import HeaderError, SendMessageRequestHeader
from rocketbox.protocol.prepared_sends import SendRequest, SendTemplate, encode_send_numbers
from rocketbox.protocol.send_frames import SendHead, SendReader, SendReplyTemplate
from tests.support.remoting.json_requests import almost, json_request, read_json

FIELDS = {
    "a": "PG", "b": "T", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000", "h": "7",
    "i": "WAIT\x01true\x02", "j": "2", "k": "false", "l": "16", "m": "false", "n": "broker-a",
}  # fmt: skip
HEAD = SendHead("T", "TBW102", 4, 1, 0, 7, 2, 16, False)


def received(fields: dict[str, str], serialization: SerializeType, code: int = 310) -> RemotingCommand:
    frame = encode_command(RemotingCommand.request(code, fields, b"body"), 5, serialization=serialization)
    return decode_command(frame[4:])


@pytest.mark.parametrize("serialization", SerializeType)
def test_a_send_is_read_from_either_header(serialization: SerializeType) -> None:
    reader = SendReader()
    for _ in range(2):  # the second time it is looked up
        assert reader.read(received(FIELDS, serialization)) == (HEAD, 1_700_000_000_000, b"WAIT\x01true\x02")


def test_the_bytes_are_read_without_a_mapping() -> None:
    request = received(FIELDS, SerializeType.ROCKETMQ)
    SendReader().read(request)
    assert request.raw_header is not None


@pytest.mark.parametrize("value", ["", "1"])
@pytest.mark.parametrize("name", sorted(FIELDS))
def test_short_values_are_read_as_by_names(name: str, value: str) -> None:
    entries = encode_ext_fields({**FIELDS, name: "12345"})
    at = entries.index(name.encode() + b"\0\0\0\x05" + b"12345") + 1
    entries = entries[:at] + len(value).to_bytes(4, "big") + value.encode() + entries[at + 9 :]

    def read(*, plain: bool) -> object:
        head = struct.pack(">hBhiiI", 310, 3, 479, 5, 0, 0) + struct.pack(">I", len(entries)) + entries
        request = decode_command(struct.pack(">I", 1 << 24 | len(head)) + head)
        try:
            if plain:
                _ = request.ext_fields
            return SendReader().read(request)
        except (RemoteProtocolError, HeaderError) as error:
            return str(error)

    assert read(plain=False) == read(plain=True)


JAVA_5_5 = (
    rb'{"code":310,"extFields":{"a":"load-producer","b":"T","c":"TBW102","d":"4","e":"3","f":"0","g":"1795315415435",'
    rb'"h":"0","i":"KEYS\u0001k39\u0002UNIQ_KEY\u0001FD000002\u0002WAIT\u0001true\u0002TAGS\u0001A\u0002","j":"0",'
    rb'"k":"false","m":"false","n":"broker-a"},"flag":0,"language":"JAVA","opaque":51,"serializeTypeCurrentRPC":"JSON",'
    rb'"version":513}'
)
JAVA_HEAD = SendHead("T", "TBW102", 4, 3, 0, 0, 0, None, False)


def test_a_java_clients_json_is_read_without_a_mapping() -> None:
    reader = SendReader()
    properties = b"KEYS\x01k39\x02UNIQ_KEY\x01FD000002\x02WAIT\x01true\x02TAGS\x01A\x02"
    for opaque in (b"51", b"52"):
        for born in (1_795_315_415_435, 1_795_315_415_999):
            header = JAVA_5_5.replace(b'"opaque":51', b'"opaque":' + opaque).replace(b"1795315415435", b"%d" % born)
            request = json_request(header, b"body")
            assert reader.read(request) == (JAVA_HEAD, born, properties)
            if opaque == b"52":
                assert request.raw_header is not None
    assert reader.remembered == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (rb"k39", rb"k\"39"),
        (rb"k39", rb"k\\u0001"),
        (rb"k39", rb"\u00e9"),
        (rb"k39", "é".encode()),
        (rb"k39", b"\xff"),
        (rb"k39", b"k\x01"),
        (rb"k39", b"k\x7f"),
        (rb'"T"', rb'"T\u0001"'),
        (rb'"T"', b'"T\xff"'),
        (rb'"T"', rb'{"g":"1"}'),
        (rb'"j":"0"', rb'"j":"0","g":"1795315415435"'),
        (rb'"j":"0"', rb'"j":"0","\u0067":"1795315415436"'),
        (rb'"j":"0"', rb'"j":"0","i":"WAIT\u0001false"'),
        (rb'"j":"0"', rb'"j":"0'),
        (rb'"g":"1795315415435"', rb'"g":"179531541543x"'),
        (rb'"g":"1795315415435"', rb'"g":"17953154154350"'),
        (rb'"g":"1795315415435"', rb'"g":1795315415435'),
        (rb'"opaque":51', rb'"opaque":51,"remark":"\q"'),
        (rb'"opaque":51', rb'"opaque":051'),
        (rb'"extFields":{', rb'"g":"1795315415435","h":"0","i":"a","extFields":{"x":"y",'),
    ],
)
def test_odd_json_is_read_as_by_names_after_the_usual_one_too(old: bytes, new: bytes) -> None:
    header = JAVA_5_5.replace(old, new)
    assert header != JAVA_5_5
    reader = SendReader()
    reader.read(json_request(JAVA_5_5, b"body"))
    expected = read_json(SendReader(), header, plain=True)
    assert read_json(reader, header, plain=False) == expected
    assert read_json(SendReader(), header, plain=False) == expected


def test_json_that_is_almost_as_the_one_before_is_read_as_by_names() -> None:
    pieces = [
        b'"opaque":', b',"flag":', b',"g":"', b'","i":"', b"7", b"0", b" ", b",", b":", b'"', b"\\", b"\\u0001", b"}",
        b"\x01", b"\xc3\xa9", b'"remark":"a"',
    ]  # fmt: skip
    reader, read = SendReader(), 0
    for header in almost(JAVA_5_5, pieces, count=4_000):
        assert reader.read(json_request(JAVA_5_5, b"body"))[0] == JAVA_HEAD
        found = read_json(reader, header, plain=False)
        assert found == read_json(SendReader(), header, plain=True), header
        read += isinstance(found, tuple)
    assert read > 400


def test_the_long_names_are_read() -> None:
    header = SendMessageRequestHeader(
        producer_group="PG", topic="T", queue_id=1, born_timestamp=5, flag=7, reconsume_times=2,
        max_reconsume_times=16, properties="A\x011",
    )  # fmt: skip
    for serialization in SerializeType:
        request = received(header.encode(), serialization, RequestCode.SEND_MESSAGE)
        assert SendReader().read(request) == (HEAD, 5, b"A\x011")


def test_our_own_producers_frames_are_read_without_a_mapping() -> None:
    reader = SendReader()
    for numbers, flag, batch in ((encode_send_numbers(), 0, False), (encode_send_numbers(flag=7, batch=True), 7, True)):
        request = SendRequest("T", b"body", b"TAGS\x01A\x02", "ID", 1_700_000_000_123, numbers=numbers)
        request.template = SendTemplate("PG", "T", 3, "broker-a")
        command = decode_command(request.encode(9)[4:])
        head, born, properties = reader.read(command)
        assert command.raw_header is not None
        assert (head.topic, head.queue_id, head.max_reconsume_times) == ("T", 3, None)
        assert (head.flag, head.batch) == (flag, batch)
        assert (born, properties) == (1_700_000_000_123, b"TAGS\x01A\x02")


def test_what_is_missing_has_a_default() -> None:
    head, born, properties = SendReader().read(received({"b": "T"}, SerializeType.ROCKETMQ))
    assert head == SendHead("T", "", 4, -1, 0, 0, 0, None, False)
    assert (born, properties) == (0, b"")


@pytest.mark.parametrize("name", ["d", "e", "f", "g", "h", "j", "l"])
@pytest.mark.parametrize("serialization", SerializeType)
def test_a_number_that_is_none_is_named(name: str, serialization: SerializeType) -> None:
    with pytest.raises(HeaderError, match=f"field {name} is 'many'"):
        SendReader().read(received({**FIELDS, name: "many"}, serialization))


TRICKY = [
    "1", "true", "T", "1700000000000", "\x00\x01g\x00\x00\x00\x0d1700000000000", "\x00\x01i\x00\x00\x00\x01x",
    "é\x01\x02",
]  # fmt: skip
entry = st.tuples(st.sampled_from("abcdefghijklmnx"), st.sampled_from(TRICKY))


@given(st.lists(entry, max_size=12))
def test_any_order_and_any_value_is_read_as_by_names(entries: list[tuple[str, str]]) -> None:
    """Values may hold bytes that look like the names the fast way looks for; of a name twice the last one wins."""
    ext = b"".join(encode_ext_fields({name: value}) for name, value in entries)
    size = 21 + len(ext)
    header = (310).to_bytes(2, "big") + b"\x03\x01\xdf" + bytes(8) + bytes(4) + len(ext).to_bytes(4, "big") + ext
    request = decode_command((1 << 24 | size).to_bytes(4, "big") + header + b"body")
    plain = decode_command((1 << 24 | size).to_bytes(4, "big") + header + b"body")
    assert plain.ext_fields == dict(entries)  # it is parsed now: read goes by names
    try:
        expected = SendReader().read(plain)
    except HeaderError:
        with pytest.raises(HeaderError):
            SendReader().read(request)
    else:
        assert SendReader().read(request) == expected


JSON_TRICKY = [
    "1", "true", "T", "1700000000000", '","g":"1700000000000', '","i":"x', "é\x01\x02", "a\\", "{", '"',
    ',"flag":0,"language":"JAVA"',
]  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from("bdefghijklmnx"), st.sampled_from(JSON_TRICKY)), max_size=12))
def test_any_json_is_read_as_by_names(entries: list[tuple[str, str]]) -> None:
    fields = ",".join(f"{json.dumps(name)}:{json.dumps(value)}" for name, value in entries)
    header = f'{{"code":310,"extFields":{{{fields}}},"flag":0,"language":"JAVA","opaque":1,"version":1}}'.encode()
    plain = json_request(header, b"body")
    assert plain.ext_fields == dict(entries)
    reader = SendReader()
    try:
        expected = SendReader().read(plain)
    except HeaderError:
        with pytest.raises(HeaderError):
            reader.read(json_request(header, b"body"))
    else:
        for _ in range(2):
            assert reader.read(json_request(header, b"body")) == expected


@pytest.mark.parametrize("serialization", SerializeType)
@pytest.mark.parametrize("transaction_id", [b"7F000001", b'a"b\\\xc3\xa9', None])
def test_the_answer_is_what_the_ordinary_way_writes(serialization: SerializeType, transaction_id: bytes | None) -> None:
    request = received(FIELDS, serialization)
    constant = {"MSG_REGION": 'Default"Region', "TRACE_ON": "true"}
    frame = SendReplyTemplate(constant).encode(request, b"AB12", 3, 12_345, transaction_id)
    fields = {"msgId": "AB12", "queueId": "3", "queueOffset": "12345"}
    if transaction_id is not None:
        fields["transactionId"] = transaction_id.decode()
    assert frame == encode_response(request, RemotingCommand.response(0, None, {**fields, **constant}))


@pytest.mark.parametrize("serialization", list(SerializeType))
def test_a_send_with_a_giant_header_is_read_but_not_remembered(serialization: SerializeType) -> None:
    reader = SendReader()
    fields = {"b": "T", "e": "1", "AccessKey": "x" * 5_000, "c": "D" * 5_000, "g": "1700000000000", "i": "a\x01b\x02"}
    for _ in range(2):
        frame = encode_command(RemotingCommand.request(310, fields, b"body"), 7, serialization=serialization)
        head, born, properties = reader.read(decode_command(frame[4:]))
        assert (head.topic, head.queue_id, born, properties) == ("T", 1, 1_700_000_000_000, b"a\x01b\x02")
    assert reader.remembered == 0
