"""Frames of Apache's Java clients and servers: all are read, and our requests carry the same fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rocketbox.protocol import bodies, headers, registration_bodies
from rocketbox.protocol.codes import RequestCode, SerializeType
from rocketbox.protocol.command import RemotingCommand, decode_command, encode_command
from rocketbox.protocol.framing import FrameReader
from rocketbox.protocol.stored_message import decode_batch, decode_messages, encode_batch

FILE = Path(__file__).parents[2] / "data" / "frames" / "java-5.5.0.jsonl"
FRAMES: list[dict[str, Any]] = [json.loads(line) for line in FILE.read_text().splitlines()]
C = RequestCode

REQUEST_HEADERS: dict[int, type[Any]] = {
    C.SEND_MESSAGE_V2: headers.SendMessageRequestHeader,
    C.SEND_BATCH_MESSAGE: headers.SendMessageRequestHeader,
    C.PULL_MESSAGE: headers.PullMessageRequestHeader,
    C.QUERY_MESSAGE: headers.QueryMessageRequestHeader,
    C.QUERY_CONSUMER_OFFSET: headers.QueryConsumerOffsetRequestHeader,
    C.UPDATE_CONSUMER_OFFSET: headers.UpdateConsumerOffsetRequestHeader,
    C.SEARCH_OFFSET_BY_TIMESTAMP: headers.SearchOffsetRequestHeader,
    C.GET_MAX_OFFSET: headers.GetMaxOffsetRequestHeader,
    C.GET_MIN_OFFSET: headers.GetMinOffsetRequestHeader,
    C.UNREGISTER_CLIENT: headers.UnregisterClientRequestHeader,
    C.CONSUMER_SEND_MSG_BACK: headers.ConsumerSendMsgBackRequestHeader,
    C.GET_CONSUMER_LIST_BY_GROUP: headers.GetConsumerListByGroupRequestHeader,
    C.NOTIFY_CONSUMER_IDS_CHANGED: headers.NotifyConsumerIdsChangedRequestHeader,
    C.GET_ROUTEINFO_BY_TOPIC: headers.GetRouteInfoRequestHeader,
    C.REGISTER_BROKER: headers.RegisterBrokerRequestHeader,
    C.UNREGISTER_BROKER: headers.UnregisterBrokerRequestHeader,
}
# Fields that hooks of the Java client add to any request: signatures, namespaces, the kind of client.
ADDED_BY_HOOKS = {"AccessKey", "Signature", "SecurityToken", "ns", "nsd", "ReqT", "__RMQ.TRANSIENT.ReqT"}


def name(frame: dict[str, Any]) -> str:
    return f"{frame['scenario']}-{frame['direction']}-{frame['code']}"


def read(frame: dict[str, Any]) -> RemotingCommand:
    (command,) = FrameReader().feed(bytes.fromhex(frame["hex"]))
    return command


@pytest.mark.parametrize("frame", FRAMES, ids=map(name, FRAMES))
def test_every_recorded_frame_is_read(frame: dict[str, Any]) -> None:
    command = read(frame)
    assert (command.code, command.opaque, command.flag) == (frame["code"], frame["opaque"], frame["flag"])
    assert command.serialization == SerializeType[frame["serialize"]]
    assert command.version == frame["headerVersion"]
    assert command.remark == frame.get("remark")
    assert dict(command.ext_fields) == (frame["extFields"] or {})
    assert len(command.body) == frame["bodyLen"]


@pytest.mark.parametrize("frame", FRAMES, ids=map(name, FRAMES))
def test_every_recorded_frame_can_be_written_in_both_forms(frame: dict[str, Any]) -> None:
    command = read(frame)
    for serialization in SerializeType:
        again = decode_command(encode_command(command, command.opaque, serialization=serialization)[4:])
        assert (again.code, again.flag, again.opaque, again.body) == (
            command.code, command.flag, command.opaque, command.body
        )  # fmt: skip
        # A binary header cannot carry an empty text: it is none.
        fields = {
            key: value for key, value in command.ext_fields.items() if value or serialization is SerializeType.JSON
        }
        assert dict(again.ext_fields) == fields or command.code > 32_767


REQUESTS = [frame for frame in FRAMES if frame["code"] in REQUEST_HEADERS and not frame["flag"] & 1]


@pytest.mark.parametrize("frame", REQUESTS, ids=map(name, REQUESTS))
def test_our_requests_carry_the_fields_of_javas(frame: dict[str, Any]) -> None:
    recorded = {key: value for key, value in (frame["extFields"] or {}).items() if key not in ADDED_BY_HOOKS}
    kind = REQUEST_HEADERS[frame["code"]]
    if frame["code"] in (C.SEND_MESSAGE_V2, C.SEND_BATCH_MESSAGE):
        assert kind.decode_v2(recorded).encode_v2() == recorded
    else:
        assert kind.decode(recorded).encode() == recorded


def test_all_codes_of_the_slice_that_java_sends_are_compared() -> None:
    recorded = {frame["code"] for frame in REQUESTS}
    assert recorded == set(REQUEST_HEADERS)


BODIES: list[tuple[dict[str, Any], Any, Any]] = [
    (frame, *codec)
    for frame in FRAMES
    for codec in [
        {
            (C.HEART_BEAT, None): (bodies.decode_heartbeat, bodies.encode_heartbeat),
            (C.LOCK_BATCH_MQ, None): (bodies.decode_lock_batch_request, bodies.encode_lock_batch_request),
            (0, C.LOCK_BATCH_MQ): (bodies.decode_lock_batch_response, bodies.encode_lock_batch_response),
            (0, C.GET_CONSUMER_LIST_BY_GROUP): (bodies.decode_consumer_list, bodies.encode_consumer_list),
            (0, C.GET_ROUTEINFO_BY_TOPIC): (bodies.decode_topic_route, bodies.encode_topic_route),
        }.get((frame["code"], frame.get("answers")))
    ]
    if codec is not None and frame["bodyLen"]
]


@pytest.mark.parametrize(("frame", "decode", "encode"), BODIES, ids=[name(frame) for frame, _, _ in BODIES])
def test_json_bodies_are_read_and_written_as_java_does(frame: dict[str, Any], decode: Any, encode: Any) -> None:
    body = read(frame).body
    assert json.loads(encode(decode(body))) == json.loads(body)


def test_a_brokers_registration_is_read() -> None:
    (frame,) = [frame for frame in FRAMES if frame["code"] == C.REGISTER_BROKER]
    command = read(frame)
    header = headers.RegisterBrokerRequestHeader.decode(command.ext_fields)
    data = registration_bodies.decode_register_broker(
        command.body, compressed=header.compressed, version=command.version
    )
    recorded = json.loads(command.body)["topicConfigSerializeWrapper"]
    written = json.loads(registration_bodies.encode_register_broker(data))["topicConfigSerializeWrapper"]
    assert written["topicConfigTable"] == recorded["topicConfigTable"]
    assert written["dataVersion"] == recorded["dataVersion"]
    assert written.keys() == recorded.keys()


def test_a_recorded_batch_is_read_and_written_byte_for_byte() -> None:
    batches = [read(frame).body for frame in FRAMES if frame["code"] == C.SEND_BATCH_MESSAGE]
    assert batches
    for body in batches:
        elements = decode_batch(body)
        assert len(elements) > 1
        assert encode_batch([(one.flag, one.body, one.properties) for one in elements]) == body


def test_pulled_messages_are_read() -> None:
    pulls = [frame for frame in FRAMES if frame.get("answers") == C.PULL_MESSAGE and frame["bodyLen"]]
    assert pulls
    for frame in pulls:
        command = read(frame)
        answer = headers.PullMessageResponseHeader.decode(command.ext_fields)
        messages = decode_messages(command.body, "broker-a")
        assert messages
        assert messages[-1].queue_offset < answer.next_begin_offset <= answer.max_offset
        assert all(message.msg_id == message.properties["UNIQ_KEY"] for message in messages)
