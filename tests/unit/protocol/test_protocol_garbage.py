"""Whatever bytes come in, only errors of the protocol come out."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rocketbox.errors import RemoteProtocolError
from rocketbox.message import MessageQueue
from rocketbox.protocol import bodies, registration_bodies
from rocketbox.protocol.codes import SerializeType
from rocketbox.protocol.command import RemotingCommand, decode_command, encode_command
from rocketbox.protocol.framing import FrameReader
from rocketbox.protocol.loose_json import loads_loose
from rocketbox.protocol.stored_message import (
    StoredMessage,
    decode_batch,
    decode_message,
    decode_messages,
    encode_batch,
    encode_stored_message,
)

READERS: list[Callable[[bytes], Any]] = [
    decode_messages,
    decode_message,
    decode_batch,
    bodies.decode_heartbeat,
    bodies.decode_topic_route,
    bodies.decode_consumer_list,
    bodies.decode_lock_batch_request,
    bodies.decode_lock_batch_response,
    registration_bodies.decode_register_broker,
    lambda data: registration_bodies.decode_register_broker(data, compressed=True),
    decode_command,
]
VALID = [
    encode_stored_message(StoredMessage("topic", 3, b"body", b"TAGS\x01A\x02"), property_crc=True),
    encode_stored_message(StoredMessage("t" * 200, 3, b"body", b"TAGS\x01A\x02", born_host=(bytes(16), 1))),
    encode_batch([(1, b"hi", b"TAGS\x01A\x02"), (2, b"ho", b"")]),
    bodies.encode_heartbeat(bodies.HeartbeatData("id", (bodies.ProducerData("g"),), (bodies.ConsumerData("g"),))),
    bodies.encode_topic_route(bodies.TopicRouteData((bodies.QueueData("b", 1, 1, 6),)), strict=False),
    encode_command(RemotingCommand.request(310, {"a": "b"}, b"body"), 5)[4:],
]


def read(reader: Callable[[bytes], Any], data: bytes) -> None:
    try:
        result = reader(data)
        if isinstance(result, RemotingCommand):
            # The rest of a command is read when it is asked for.
            repr((result.ext_fields, result.remark, result.language, result.version))
    except RemoteProtocolError:
        pass


@pytest.mark.parametrize("reader", READERS)
@given(data=st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
@example(data=b"[" * 100_000)
@example(data=b'{"clientID":"x","consumerDataSet":[5]}')
@example(data=b'{"brokerDatas":[{"brokerAddrs":5,"brokerName":"b"}]}')
@example(data=b'{"clientID":"x","heartbeatFingerprint":1e999}')
@example(data=b'{"lockOKMQSet":[{"brokerName":"b","queueId":-Infinity,"topic":"t"}]}')
@example(data=b'{"clientId":"c","consumerGroup":"g","mqSet":[{"brokerName":"b","queueId":1e999,"topic":"t"}]}')
@example(data=b'{"queueDatas":[{"brokerName":"b","perm":1e999,"readQueueNums":1,"writeQueueNums":1}]}')
@example(data=b'{"orderTopicConf":{"a":1}}')
@example(data=b'{"topicConfigSerializeWrapper":{"dataVersion":{"counter":NaN}}}')
@example(data=b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"t":{"perm":1e999}}}}')
@example(data=b'{"consumerIdList":' + b"[" * 600 + b"]" * 600 + b"}")
@example(data=b"\x00\x00\x00\x00")
def test_random_bytes(reader: Callable[[bytes], Any], data: bytes) -> None:
    read(reader, data)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("valid", VALID, ids=range(len(VALID)))
def test_valid_bytes_with_one_byte_changed_or_cut_off(reader: Callable[[bytes], Any], valid: bytes) -> None:
    chance = random.Random(7)
    for position in range(len(valid)):
        read(reader, valid[:position])
        for value in (0, 0x7F, 0x80, 0xFF, chance.randrange(256)):
            read(reader, valid[:position] + bytes([value]) + valid[position + 1 :])


@given(st.binary(max_size=300))
def test_a_stream_of_garbage(data: bytes) -> None:
    reader = FrameReader()
    try:
        for command in reader.feed(data):
            repr((command.ext_fields, command.remark, command.language))
    except RemoteProtocolError:
        pass


@given(st.text())
def test_json_that_is_none_says_so(text: str) -> None:
    with contextlib.suppress(ValueError):
        loads_loose(text)


LONGEST_READ = 0.25  # seconds of this thread's CPU for a header of 4 MiB, in which the loop stands still


@pytest.mark.parametrize("place", ["remark", "a field"])
def test_a_long_header_of_escapes_alone_is_read_in_little_time(place: str) -> None:
    text = '"' * (2 << 20)
    command = RemotingCommand.response(1, *(("ill", {"a": text}) if place == "a field" else (text, {"a": "b"})))
    frame = encode_command(command, 7, serialization=SerializeType.JSON)[4:]
    began = time.thread_time()
    read = decode_command(frame)
    assert (read.code, read.opaque, read.remark, read.ext_fields) == (1, 7, command.remark, command.ext_fields)
    assert time.thread_time() - began < LONGEST_READ


@pytest.mark.parametrize("kind", SerializeType)
@pytest.mark.parametrize("fields", [{}, {"a": "b"}], ids=["remark", "field"])
def test_a_long_header_that_is_no_utf_8_is_refused(kind: SerializeType, fields: dict[str, str]) -> None:
    """What would stand in place of 4 million wrong bytes takes a fifth of a second."""
    for size in (1_000, 1_000_000):
        text = "~" * size
        command = RemotingCommand.response(1, None if fields else text, {"a": text} if fields else {})
        frame = encode_command(command, 7, serialization=kind)[4:].replace(b"~", b"\xff")
        if size == 1_000:
            read = decode_command(frame)
            assert "\ufffd" * size in (read.remark, read.ext_fields.get("a"))
            continue
        with pytest.raises(RemoteProtocolError, match="is not UTF-8"):
            decode_command(frame).ext_fields  # noqa: B018


@pytest.mark.parametrize("size", [10, 20_000, 1_000_000])
def test_a_remark_of_any_length_is_read(size: int) -> None:
    remark = 'x"\u4e2d' * (size // 3)
    answer = RemotingCommand.response(1, remark, {"a": "b"})
    frame = encode_command(answer, 7, serialization=SerializeType.JSON)
    read = decode_command(frame[4:])
    assert (read.code, read.opaque, read.is_response, read.ext_fields) == (1, 7, True, {"a": "b"})
    assert read.remark == remark


def test_frames_above_the_limits_are_refused_before_they_are_here() -> None:
    with pytest.raises(RemoteProtocolError):
        FrameReader(max_frame_bytes=1000).feed((1001).to_bytes(4, "big"))
    with pytest.raises(RemoteProtocolError):
        FrameReader(max_header_bytes=100).feed((500).to_bytes(4, "big") + (1 << 24 | 200).to_bytes(4, "big"))
    with pytest.raises(RemoteProtocolError):
        FrameReader().feed(b"\xff\xff\xff\xff")


@pytest.mark.parametrize("number", ["1e999", "NaN", "9223372036854775808", "1" * 400])
def test_numbers_that_are_no_java_long_are_refused(number: str) -> None:
    with pytest.raises(RemoteProtocolError):
        bodies.decode_lock_batch_response(
            f'{{"lockOKMQSet":[{{"brokerName":"b","queueId":{number},"topic":"t"}}]}}'.encode()
        )


def test_as_many_queues_as_a_topic_may_have_are_locked_whatever_the_length_of_its_name() -> None:
    """127 characters are the longest name that brokers take."""
    queues = [MessageQueue("t" * 127, "broker-of-the-city", number) for number in range(bodies.MOST_QUEUES)]
    answer = bodies.encode_lock_batch_response(queues)
    assert len(bodies.decode_lock_batch_response(answer)) == bodies.MOST_QUEUES
    with pytest.raises(RemoteProtocolError, match="is the most"):
        bodies.decode_lock_batch_response(answer + b" " * (1 << 20))


def test_an_error_does_not_repeat_the_garbage() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        bodies.decode_consumer_list(b'{"consumerIdList":"' + b"x" * 100_000 + b'"}')
    assert len(str(caught.value)) < 200


def test_a_large_text_in_loose_json_is_read_and_no_error_repeats_it() -> None:
    assert loads_loose('{0:"' + "x" * 3_000_000 + '"}') == {"0": "x" * 3_000_000}
    with pytest.raises(ValueError, match="character") as caught:
        loads_loose("{" + "k" * 100_000 + "}")
    assert len(str(caught.value)) < 200


MANY = 50_000
JSON_OF_MANY_VALUES = {
    "objects": b'{"code":10,"extFields":{%b}}' % b",".join([b'"%x":{}' % number for number in range(MANY)]),
    "texts": b'{"code":10,"extFields":{%b},"flag":0,"language":"JAVA","opaque":1,"version":1}'
    % b",".join([b'"%x":"\\\\"' % number for number in range(MANY)]),
    "a list": b'{"code":10,"remark":[%b]}' % b",".join([b"{}"] * MANY),
    "long numbers": b'{"code":10,"x":[%b]}' % b",".join([b"9" * 4_000] * 50),
    "behind an escaped quote": b'{"code":10,"remark":"\\"%b' % (b'","a":"' * MANY),
}


@pytest.mark.parametrize("kind", JSON_OF_MANY_VALUES)
def test_a_json_header_of_very_many_values_is_refused_before_they_are_read(kind: str) -> None:
    header = JSON_OF_MANY_VALUES[kind]
    with pytest.raises(RemoteProtocolError, match="1000 fields"):
        _ = decode_command(len(header).to_bytes(4, "big") + header).ext_fields


def test_a_binary_header_of_very_many_fields_is_refused() -> None:
    for count in (1_000, 1_001):
        command = RemotingCommand.request(310, {f"{number:x}": "1" for number in range(count)})
        read = decode_command(encode_command(command, 1)[4:])
        if count == 1_000:
            assert read.ext_fields == command.ext_fields
        else:
            with pytest.raises(RemoteProtocolError, match="1000 fields"):
                _ = read.ext_fields


@pytest.mark.parametrize("serialization", list(SerializeType))
@pytest.mark.parametrize(
    "text", ["\x01" * 32_767, '"' * 32_767, "\\" * 32_767, '{"a":[1,{}],' * 2_500, "7F00," * 500_000]
)
def test_a_long_text_in_a_header_is_read(serialization: SerializeType, text: str) -> None:
    fields = {"a": "group", "g": "1700000000000", "i": text, "n": text[:100]}
    data = encode_command(RemotingCommand.request(310, fields), 1, serialization=serialization)[4:]
    assert decode_command(data).ext_fields == fields
