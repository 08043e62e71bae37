"""Known bytes of RocketMQ's protocol, obtained by running Apache's Java classes."""

from __future__ import annotations

import json

import pytest

from rocketbox.message import MessageExt, SelectorType, decode_properties
from rocketbox.protocol.codes import LanguageCode, RequestCode, SerializeType
from rocketbox.protocol.command import RemotingCommand, decode_command, encode_command
from rocketbox.protocol.headers import SendMessageRequestHeader
from rocketbox.protocol.ids import parse_offset_msg_id
from rocketbox.protocol.stored_message import (
    StoredMessage,
    decode_batch,
    decode_message,
    decode_messages,
    encode_batch,
    encode_stored_message,
)
from rocketbox.protocol.tags import java_string_hash, parse_subscription

HEARTBEAT_HEADER = "00220301df000000010000000000000001720000000800016b0000000176"
STORED = (
    "00000068daa320a73610a6860000000300000000000000000000002a000000000012d687000000000000018bcfe568000a0000010000c350"
    "0000018bcfe56805c0a8010200002a9f0000000000000000000000000000000568656c6c6f0154000754414753014102"
)
BATCH_ELEMENT = "0000001f000000000000000000000001000000026869000754414753014102"


def test_json_header_of_a_send() -> None:
    header = SendMessageRequestHeader(
        producer_group="PG", topic="T", queue_id=1, born_timestamp=1_700_000_000_000, properties="WAIT\x01true\x02"
    )
    command = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, {**header.encode_v2(), "bname": "broker-a"})
    frame = encode_command(command, 7, serialization=SerializeType.JSON)
    expected = (
        '{"code":310,"extFields":{"a":"PG","b":"T","c":"TBW102","d":"4","e":"1","f":"0","g":"1700000000000","h":"0",'
        '"i":"WAIT\\u0001true\\u0002","j":"0","k":"false","m":"false","bname":"broker-a"},"flag":0,"language":"PYTHON",'
        '"opaque":7,"serializeTypeCurrentRPC":"JSON","version":479}'
    )
    assert json.loads(frame[8:]) == json.loads(expected)


def test_binary_frame() -> None:
    command = RemotingCommand(code=34, remark="r", ext_fields={"k": "v"}, body=b"hi")
    frame = encode_command(command, 1)
    assert frame.hex() == "000000240100001e" + HEARTBEAT_HEADER + "6869"
    decoded = decode_command(frame[4:])
    assert (decoded.code, decoded.language, decoded.version, decoded.opaque) == (34, LanguageCode.PYTHON, 479, 1)
    assert (decoded.remark, dict(decoded.ext_fields), decoded.body) == ("r", {"k": "v"}, b"hi")


def test_json_frame_has_javas_sizes() -> None:
    command = RemotingCommand(code=34, remark="r", ext_fields={"k": "v"}, body=b"hi")
    frame = encode_command(command, 1, serialization=SerializeType.JSON)
    assert frame[:8].hex() == "0000008b00000085"
    assert frame.endswith(b"}hi")


def message_of_the_vector() -> StoredMessage:
    return StoredMessage(
        topic="T",
        queue_id=3,
        body=b"hello",
        properties=b"TAGS\x01A\x02",
        born_timestamp_ms=1_700_000_000_000,
        born_host=(bytes([10, 0, 0, 1]), 50_000),
        queue_offset=42,
        commit_log_offset=1_234_567,
        store_timestamp_ms=1_700_000_000_005,
        store_host=(bytes([192, 168, 1, 2]), 10_911),
    )


def check_message_of_the_vector(message: MessageExt) -> None:
    assert (message.topic, message.queue_id, message.body, message.tag) == ("T", 3, b"hello", "A")
    assert (message.queue_offset, message.commit_log_offset, message.body_crc) == (42, 1_234_567, 907_060_870)
    assert (message.born_timestamp_ms, message.store_timestamp_ms) == (1_700_000_000_000, 1_700_000_000_005)
    assert (message.born_host, message.store_host) == ("10.0.0.1:50000", "192.168.1.2:10911")
    assert message.offset_msg_id == "C0A8010200002A9F000000000012D687"


def test_stored_message() -> None:
    assert encode_stored_message(message_of_the_vector()).hex() == STORED
    message, end = decode_message(bytes.fromhex(STORED))
    assert end == 104
    check_message_of_the_vector(message)
    (fast,) = decode_messages(bytes.fromhex(STORED), "broker-a")
    check_message_of_the_vector(fast)
    assert fast.broker_name == "broker-a"


def test_offset_message_id() -> None:
    assert parse_offset_msg_id("C0A8010200002A9F000000000012D687") == (bytes([192, 168, 1, 2]), 10_911, 1_234_567)


def test_batch_element() -> None:
    assert encode_batch([(1, b"hi", b"TAGS\x01A\x02")]).hex() == BATCH_ELEMENT
    (element,) = decode_batch(bytes.fromhex(BATCH_ELEMENT))
    assert (element.flag, element.body, decode_properties(element.properties)) == (1, b"hi", {"TAGS": "A"})


@pytest.mark.parametrize(
    ("text", "code"), [("TagA", 2_598_919), ("*", 42), ("中文", 646_394), ("\U0001f600", 1_772_899), ("", 0)]
)
def test_java_string_hash(text: str, code: int) -> None:
    assert java_string_hash(text) == code


def test_subscription() -> None:
    data = parse_subscription("T", "A||B")
    assert (data.sub_string, data.tags_set, data.code_set) == ("A||B", ("A", "B"), (65, 66))
    assert parse_subscription("T", None).sub_string == "*"
    assert parse_subscription("T", "a > 1", SelectorType.SQL92).expression_type == "SQL92"
