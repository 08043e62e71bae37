"""What is encoded is decoded again, whatever it is; prepared and ordinary ways of encoding agree."""

from __future__ import annotations

import dataclasses
import json
import random
import struct
import sys
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketbox.errors import InvalidMessageError, RemoteProtocolError
from rocketbox.message import Compression, ConsumeFromWhere, MessageModel, MessageQueue, encode_properties
from rocketbox.protocol import admin_bodies, bodies, registration_bodies
from rocketbox.protocol.codes import MessageSysFlag, SerializeType
from rocketbox.protocol.command import (
    RemotingCommand,
    decode_command,
    encode_command,
    encode_response,
)
from rocketbox.protocol.compression import sys_flag_of
from rocketbox.protocol.framing import FrameReader
from rocketbox.protocol.headers import (
    CreateTopicRequestHeader,
    HeaderError,
    PullMessageRequestHeader,
    SendMessageRequestHeader,
)
from rocketbox.protocol.ids import UniqIdGenerator, parse_offset_msg_id
from rocketbox.protocol.loose_json import dumps_with_raw_keys, loads_loose
from rocketbox.protocol.prepared_sends import SendRequest, SendTemplate, encode_send_numbers
from rocketbox.protocol.stored_message import (
    BatchTooLongError,
    RecordTemplate,
    StoredMessage,
    decode_batch,
    decode_message,
    decode_messages,
    decode_some_messages,
    encode_batch,
    encode_stored_message,
)
from rocketbox.protocol.tags import SubscriptionData, parse_subscription

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
names = st.from_regex(r"[%|a-zA-Z0-9_-]{1,60}", fullmatch=True)
fields = st.dictionaries(texts, texts, max_size=8)
int32s = st.integers(-(2**31), 2**31 - 1)
opaques = st.integers(0, 2**31 - 1)
longs = st.integers(-(2**63), 2**63 - 1)


@given(
    st.integers(0, 32_767), opaques, st.none() | texts, fields, st.binary(max_size=50), st.sampled_from(SerializeType)
)
def test_commands(
    code: int, opaque: int, remark: str | None, ext: dict[str, str], body: bytes, serialization: SerializeType
) -> None:
    request = RemotingCommand(code=code, remark=remark, ext_fields=ext, body=body)
    decoded = decode_command(encode_command(request, opaque, serialization=serialization)[4:])
    assert (decoded.code, decoded.opaque, decoded.remark) == (code, opaque, remark)
    assert (dict(decoded.ext_fields), decoded.body) == (ext, body)
    assert not decoded.is_response
    answer = decode_command(encode_response(decoded, RemotingCommand.response(19, remark, ext, body))[4:])
    assert answer.is_response
    assert answer.serialization == serialization
    assert (answer.code, answer.opaque, answer.remark, dict(answer.ext_fields)) == (19, opaque, remark, ext)


@given(st.integers(32_768, 300_000), opaques)
def test_codes_that_do_not_fit_a_binary_header_go_out_as_json(code: int, opaque: int) -> None:
    decoded = decode_command(encode_command(RemotingCommand.request(code), opaque)[4:])
    assert (decoded.code, decoded.opaque, decoded.serialization) == (code, opaque, SerializeType.JSON)


@given(st.lists(st.tuples(opaques, fields, st.binary(max_size=40)), max_size=6), st.randoms())
def test_frames_come_out_however_they_are_cut(
    commands: list[tuple[int, dict[str, str], bytes]], chance: random.Random
) -> None:
    stream = b"".join(
        encode_command(
            RemotingCommand.request(105, ext, body), opaque, serialization=chance.choice(list(SerializeType))
        )
        for opaque, ext, body in commands
    )
    reader = FrameReader()
    found = []
    position = 0
    while position < len(stream):
        size = chance.choice([1, 2, 3, 7, 50, len(stream)])
        found += reader.feed(stream[position : position + size])
        position += size
    assert [(one.opaque, dict(one.ext_fields), one.body) for one in found] == commands


hosts = st.tuples(st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16), st.integers(0, 65_535))
stored = st.builds(
    StoredMessage,
    topic=names,
    queue_id=st.integers(0, 2**31 - 1),
    body=st.binary(max_size=100),
    properties=st.dictionaries(names, names, max_size=5).map(encode_properties),
    flag=int32s,
    sys_flag=st.sampled_from([0, 2, 4, 8, 0xC, 0x300]),
    born_timestamp_ms=longs,
    born_host=hosts,
    reconsume_times=int32s,
    prepared_transaction_offset=longs,
    queue_offset=st.integers(0, 2**62),
    commit_log_offset=st.integers(0, 2**62),
    store_timestamp_ms=longs,
    store_host=hosts,
)


@given(st.lists(stored, max_size=5), st.booleans())
def test_stored_messages(records: list[StoredMessage], property_crc: bool) -> None:
    encoded = [encode_stored_message(record, property_crc=property_crc) for record in records]
    messages = decode_messages(b"".join(encoded), "broker-a")
    assert len(messages) == len(records)
    position = 0
    buffer = b"".join(encoded)
    for record, message, data in zip(records, messages, encoded, strict=True):
        slow, position = decode_message(buffer, position)
        for decoded in (message, slow):
            assert (decoded.topic, decoded.body, decoded.queue_id) == (record.topic, record.body, record.queue_id)
            assert decoded.flag == record.flag
            assert decoded.reconsume_times == max(0, record.reconsume_times), "no message was consumed less than never"
            assert (decoded.queue_offset, decoded.commit_log_offset) == (record.queue_offset, record.commit_log_offset)
            assert decoded.born_timestamp_ms == record.born_timestamp_ms
            assert decoded.store_timestamp_ms == record.store_timestamp_ms
            assert decoded.fields[9:11] == record.born_host
            assert decoded.fields[12:14] == record.store_host
            assert decoded.raw_properties.startswith(record.properties)
            assert decoded.store_size == len(data)
            assert decoded.body_crc == zlib.crc32(record.body) & 0x7FFF_FFFF
        if property_crc:
            covered, checksum = data[:-20], data[-20:]
            assert checksum[:9] == b"__CRC32#\x01"
            assert int(checksum[9:19][::-1]) == zlib.crc32(covered) & 0x7FFF_FFFF


def test_a_topic_of_more_than_127_bytes_is_written_as_version_2() -> None:
    record = encode_stored_message(StoredMessage("t" * 128, 0, b"x"))
    assert record[4:8].hex() == "daa320ab"
    assert decode_message(record)[0].topic == "t" * 128


@pytest.mark.parametrize("length", [1, 126, 127, 128, 129])
def test_a_records_template_writes_topics_of_any_length_as_the_ordinary_way_does(length: int) -> None:
    message = StoredMessage("t" * length, 3, b"body", b"TAGS\x01A\x02", flag=5, sys_flag=4)
    hosts = RecordTemplate.hosts(message.born_host, 8, message.store_host)
    record = RecordTemplate(message).encode(6, 7, 9, hosts, b"body", b"TAGS\x01A\x02")
    whole = dataclasses.replace(message, queue_offset=6, commit_log_offset=7, store_timestamp_ms=8, born_timestamp_ms=9)
    assert record == encode_stored_message(whole, property_crc=True)


@pytest.mark.parametrize("born", [b"\x7f\0\0\1", bytes(15) + b"\1"])
@pytest.mark.parametrize("stored", [b"\x7f\0\0\1", bytes(15) + b"\2"])
def test_flags_of_a_record_are_kept_whatever_addresses_it_has(born: bytes, stored: bytes) -> None:
    flags = int(MessageSysFlag.TRANSACTION_PREPARED)
    record = encode_stored_message(
        StoredMessage("t", 0, b"x", sys_flag=flags, born_host=(born, 1), store_host=(stored, 2))
    )
    message, _ = decode_message(record)
    v6 = (MessageSysFlag.BORNHOST_V6 if len(born) == 16 else 0) | (
        MessageSysFlag.STOREHOST_V6 if len(stored) == 16 else 0
    )
    assert message.sys_flag == flags | v6


def test_compressed_bodies_are_unpacked_when_they_are_asked_for() -> None:
    body = b"all work and no play " * 1000
    for kind in (0, MessageSysFlag.COMPRESSION_ZLIB):
        flags = int(MessageSysFlag.COMPRESSED | kind)
        record = encode_stored_message(StoredMessage("t", 0, zlib.compress(body), sys_flag=flags))
        (message,) = decode_messages(record)
        assert message.body == body
        assert not message.sys_flag & MessageSysFlag.COMPRESSED
        (packed,) = decode_messages(record, decompress=False)
        assert packed.body == zlib.compress(body)
        assert packed.sys_flag & MessageSysFlag.COMPRESSED


def test_an_inner_batch_becomes_its_messages() -> None:
    elements = [(number, b"%d" % number, b"TAGS\x01A\x02") for number in range(3)]
    flags = int(MessageSysFlag.NEED_UNWRAP | MessageSysFlag.INNER_BATCH)
    record = encode_stored_message(
        StoredMessage("t", 1, encode_batch(elements), sys_flag=flags, queue_offset=7, commit_log_offset=9)
    )
    messages = decode_messages(record)
    assert [message.queue_offset for message in messages] == [7, 8, 9]
    assert [message.body for message in messages] == [b"0", b"1", b"2"]
    assert [message.flag for message in messages] == [0, 1, 2]
    assert {message.commit_log_offset for message in messages} == {9}


@pytest.mark.parametrize(
    ("count", "next_offset", "below", "fits"),
    [(3, 10, None, True), (3, 9, None, False), (3, None, 10, True), (3, None, 9, False), (3, None, None, True),
     (3, 12, 9, True), (0, 8, None, True)],
)  # fmt: skip
def test_an_inner_batch_takes_the_places_that_it_has(
    count: int, next_offset: int | None, below: int | None, fits: bool
) -> None:
    """Between it and the next record, or where the next pull begins; else it is one message, whatever it says."""
    flags = int(MessageSysFlag.NEED_UNWRAP | MessageSysFlag.INNER_BATCH)
    body = encode_batch([(0, b"x", b"")] * count) or b""
    data = encode_stored_message(StoredMessage("t", 1, body, sys_flag=flags, queue_offset=7))
    if next_offset is not None:
        data += encode_stored_message(StoredMessage("t", 1, b"next", queue_offset=next_offset))
    messages, is_all = decode_some_messages(data, below=below)
    assert is_all
    offsets = [message.queue_offset for message in messages if message.body != b"next"]
    assert offsets == ([7 + number for number in range(count or 1)] if fits else [7])
    if not fits:
        assert messages[0].body == body


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("count", "taken"), [(32_767, 32_767), (32_768, 1)])
def test_an_inner_batch_of_more_messages_than_a_queue_of_batches_can_say_is_one_message(
    packed: bool, count: int, taken: int
) -> None:
    """Each takes some 300 bytes when it is read and 22 when it came, and packed next to none."""
    elements = encode_batch([(0, b"", b"")] * count)
    flags = int(MessageSysFlag.NEED_UNWRAP | MessageSysFlag.INNER_BATCH)
    body, way = (zlib.compress(elements), sys_flag_of(Compression.ZLIB)) if packed else (elements, 0)
    record = encode_stored_message(StoredMessage("t", 1, body, sys_flag=flags | way, queue_offset=7))
    messages = decode_messages(record)
    assert [message.queue_offset for message in messages] == list(range(7, 7 + taken))
    if taken == 1:
        assert messages[0].body == elements


def test_a_batch_in_a_compressed_body_is_bounded_as_that_and_what_is_packed_in_it_stays_so() -> None:
    most = 1 << 20
    bomb = zlib.compress(bytes(8 * most))
    flags = int(MessageSysFlag.NEED_UNWRAP | MessageSysFlag.INNER_BATCH) | sys_flag_of(Compression.ZLIB)

    def record(elements: list[tuple[int, bytes, bytes]]) -> bytes:
        body = zlib.compress(encode_batch(elements))
        return encode_stored_message(StoredMessage("t", 1, body, sys_flag=flags, queue_offset=7))

    inner = encode_stored_message(StoredMessage("t", 1, bomb, sys_flag=flags))
    read = decode_messages(record([(0, bomb, b""), (0, inner, b"")]), max_body_bytes=most)
    assert [message.body for message in read] == [bomb, inner]
    assert {message.sys_flag & MessageSysFlag.COMPRESSED for message in read} == {0}
    with pytest.raises(RemoteProtocolError, match=f"larger than {most} bytes"):
        decode_messages(record([(0, bytes(most), b"")]), max_body_bytes=most)


def test_an_inner_batch_at_which_reading_stops_takes_no_place_of_the_next_record() -> None:
    flags = int(MessageSysFlag.NEED_UNWRAP | MessageSysFlag.INNER_BATCH)
    elements = encode_batch([(0, b"x" * 1000, b"")] * 3)
    for next_offset in (9, 10):
        data = encode_stored_message(StoredMessage("t", 1, elements, sys_flag=flags, queue_offset=7))
        data += encode_stored_message(StoredMessage("t", 1, b"next", queue_offset=next_offset))
        messages, is_all = decode_some_messages(data, max_body_bytes=2000, below=100)
        assert not is_all
        assert [message.queue_offset for message in messages] == ([7] if next_offset == 9 else [7, 8, 9])


@pytest.mark.parametrize(
    "piece",
    ["A||", "|", "||", " || ", "t", "\u00e9", "\t", "a b||", "*||", "A|||", "(((", "\\"],
    ids=ascii,
)
def test_a_long_expression_of_tags_is_read_in_steps_that_grow_with_its_length_alone(piece: str) -> None:
    """And each name in another: the steps are lines of ours that run, and there are a few for each character."""

    def steps(expression: str) -> int:
        count = 0

        def trace(frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
            nonlocal count
            count += event == "line"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            with suppress(InvalidMessageError):
                parse_subscription("T", expression)
        finally:
            sys.settrace(before)
        return count

    some, more = (steps((piece * size)[:size] or "*") for size in (10_000, 20_000))
    assert some <= 8 * 10_000
    assert more <= 2 * some + 100
    many = steps("||".join(map(str, range(2_000))))
    assert many <= 8 * 10_000


def test_properties_too_long_for_a_record_are_refused() -> None:
    with pytest.raises(InvalidMessageError, match="32767"):
        encode_stored_message(StoredMessage("t", 0, b"x", b"a" * 32_768))
    encode_stored_message(StoredMessage("t", 0, b"x", b"a" * 32_767))
    with pytest.raises(InvalidMessageError, match="32767"):
        encode_stored_message(StoredMessage("t", 0, b"x", b"a" * 32_767), property_crc=True)


@given(st.lists(st.tuples(int32s, st.binary(max_size=50), st.binary(max_size=50)), max_size=5))
def test_batches(elements: list[tuple[int, bytes, bytes]]) -> None:
    decoded = decode_batch(encode_batch(elements))
    assert [(one.flag, one.body, one.properties) for one in decoded] == elements
    assert len(decode_batch(encode_batch(elements), len(elements))) == len(elements)
    if elements:
        with pytest.raises(BatchTooLongError, match=f"more than {len(elements) - 1} "):
            decode_batch(encode_batch(elements), len(elements) - 1)


@given(
    names, names, st.integers(0, 1000), names, opaques, st.integers(0, 10**15), st.binary(max_size=60),
    st.dictionaries(names, names, max_size=4), st.sampled_from([0, 0, 1, -5]), st.sampled_from([0, 0, 4]),
    st.sampled_from([0, 3]), st.sampled_from([None, 16]), st.booleans(), st.sampled_from([310, 320, 325]),
)  # fmt: skip
def test_a_prepared_send_has_the_fields_of_an_ordinary_one(
    group: str, topic: str, queue_id: int, broker: str, opaque: int, born: int, body: bytes,
    properties: dict[str, str], flag: int, sys_flag: int, times: int, most: int | None, batch: bool, code: int,
) -> None:  # fmt: skip
    text = encode_properties(properties)
    numbers = encode_send_numbers(
        flag=flag, sys_flag=sys_flag, reconsume_times=times, max_reconsume_times=most, batch=batch
    )
    request = SendRequest(topic, body, text, "ID", born, code=code, numbers=numbers)
    request.template = SendTemplate(group, topic, queue_id, broker)
    frame = request.encode(opaque)
    header = SendMessageRequestHeader(
        producer_group=group, topic=topic, queue_id=queue_id, born_timestamp=born, properties=text.decode() or None,
        flag=flag, sys_flag=sys_flag, reconsume_times=times, max_reconsume_times=most, batch=batch, bname=broker,
    )  # fmt: skip
    ordinary = encode_command(RemotingCommand.request(code, header.encode_v2(), body), opaque)
    one, other = decode_command(frame[4:]), decode_command(ordinary[4:])
    assert (one.code, one.opaque, one.flag, one.body) == (other.code, other.opaque, other.flag, other.body)
    assert (one.language, one.version, one.remark) == (other.language, other.version, other.remark)
    fields_of_one = {name: value for name, value in one.ext_fields.items() if value}
    assert fields_of_one == dict(other.ext_fields)
    assert SendMessageRequestHeader.decode_v2(fields_of_one) == header


@pytest.mark.parametrize("born", [0, 7, 999_999_999_999, 1_700_000_000_000, 9_999_999_999_999, 10_000_000_000_000])
def test_a_plain_send_of_any_time_is_a_whole_frame(born: int) -> None:
    request = SendRequest("T", b"body", b"TAGS\x01A\x02", "ID", born)
    request.template = SendTemplate("PG", "T", 3, "broker-a")
    (command,) = FrameReader().feed(request.encode(9))
    header = SendMessageRequestHeader.decode_v2(command.ext_fields)
    assert (header.born_timestamp, header.properties, header.queue_id) == (born, "TAGS\x01A\x02", 3)
    assert (header.flag, header.sys_flag, header.batch, command.body) == (0, 0, False, b"body")


def test_what_is_not_said_of_a_topic_or_a_record_is_apaches_default() -> None:
    header = CreateTopicRequestHeader(
        topic="T", read_queue_nums=8, write_queue_nums=8, perm=6, topic_filter_type="SINGLE_TAG"
    )
    assert header.encode() == {
        "topic": "T", "defaultTopic": "TBW102", "readQueueNums": "8", "writeQueueNums": "8", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "order": "false",
    }  # fmt: skip
    assert parse_subscription("T", "*").sub_version == SubscriptionData("T", "*").sub_version == 0
    message, _ = decode_message(encode_stored_message(StoredMessage("t", 0, b"x")))
    assert (message.store_timestamp_ms, message.born_timestamp_ms, message.reconsume_times) == (0, 0, 0)
    assert (message.queue_offset, message.commit_log_offset, message.sys_flag, message.flag) == (0, 0, 0, 0)


def test_a_missing_or_garbled_field_is_named() -> None:
    values = PullMessageRequestHeader(
        consumer_group="g", topic="t", queue_id=0, queue_offset=0, max_msg_nums=32, sys_flag=0, commit_offset=0,
        suspend_timeout_millis=0, sub_version=0,
    ).encode()  # fmt: skip
    with pytest.raises(HeaderError, match="field queueId is missing"):
        PullMessageRequestHeader.decode({name: value for name, value in values.items() if name != "queueId"})
    with pytest.raises(HeaderError, match="field queueId is 'x'"):
        PullMessageRequestHeader.decode({**values, "queueId": "x"})


subscriptions = st.builds(
    parse_subscription, names, st.lists(names.filter(lambda n: "|" not in n), min_size=1).map("||".join)
)


@given(st.lists(names), st.lists(st.tuples(names, st.lists(subscriptions, max_size=3)), max_size=3))
def test_heartbeats(producers: list[str], consumers: list[tuple[str, list[SubscriptionData]]]) -> None:
    data = bodies.HeartbeatData(
        "10.0.0.1@1#2",
        tuple(map(bodies.ProducerData, producers)),
        tuple(
            bodies.ConsumerData(
                group, message_model=MessageModel.BROADCASTING, consume_from_where=ConsumeFromWhere.TIMESTAMP,
                subscription_data_set=tuple(wanted),
            )
            for group, wanted in consumers
        ),
    )  # fmt: skip
    assert bodies.decode_heartbeat(bodies.encode_heartbeat(data)) == data


def test_a_heartbeat_that_writes_enums_as_numbers_is_read() -> None:
    body = (  # as librocketmq sends it
        b'{"clientID":"24806-127.0.0.1@DEFAULT","consumerDataSet":[{"consumeFromWhere":4,"consumeType":1,"groupName":'
        b'"g1","messageModel":0,"subscriptionDataSet":[{"subString":"*","subVersion":"1795314081254","topic":"t"}]}],'
        b'"producerDataSet":[{"groupName":"p"}]}\n'
    )
    (consumer,) = bodies.decode_heartbeat(body).consumer_data_set
    assert consumer.consume_type == "CONSUME_PASSIVELY"
    assert consumer.message_model is MessageModel.BROADCASTING
    assert consumer.consume_from_where is ConsumeFromWhere.FIRST_OFFSET
    assert [(one.topic, one.sub_version) for one in consumer.subscription_data_set] == [("t", 1795314081254)]
    with pytest.raises(RemoteProtocolError, match="7 is no member of CONSUME_ACTIVELY"):
        bodies.decode_heartbeat(body.replace(b'"consumeType":1', b'"consumeType":7'))


@given(st.booleans(), st.dictionaries(st.integers(0, 9), names, min_size=1), texts)
def test_routes(strict: bool, addresses: dict[int, str], cluster: str) -> None:
    data = bodies.TopicRouteData(
        (bodies.QueueData("broker-a", 4, 8, 6, 1),), (bodies.BrokerData(cluster, "broker-a", addresses, True),), "a:4"
    )
    assert bodies.decode_topic_route(bodies.encode_topic_route(data, strict=strict)) == data


@given(st.sets(st.builds(MessageQueue, names, names, st.integers(0, 100))), names, names)
def test_locks(queues: set[MessageQueue], group: str, client_id: str) -> None:
    request = bodies.LockBatchRequestBody(group, client_id, tuple(sorted(queues)))
    assert bodies.decode_lock_batch_request(bodies.encode_lock_batch_request(request)) == request
    answer = bodies.encode_lock_batch_response(sorted(queues))
    assert bodies.decode_lock_batch_response(answer) == sorted(queues)


@given(st.dictionaries(names, st.tuples(st.integers(0, 99), st.integers(0, 7), st.booleans())), st.booleans())
def test_registrations(topics: dict[str, tuple[int, int, bool]], compressed: bool) -> None:
    table = {
        name: registration_bodies.TopicConfig(name, queues, queues, perm, order=order and not compressed)
        for name, (queues, perm, order) in topics.items()
    }
    version = registration_bodies.DataVersion(0, 1_700_000_000_000, 3)
    data = registration_bodies.RegisterBrokerBody(registration_bodies.TopicConfigSerializeWrapper(table, version))
    body = registration_bodies.encode_register_broker(data)
    if compressed:  # as Apache's RegisterBrokerBody writes it
        lines = [
            f"{t.topic_name} {t.read_queue_nums} {t.write_queue_nums} {t.perm} SINGLE_TAG {{}}" for t in table.values()
        ]
        parts = [b'{"counter":3,"stateVersion":0,"timestamp":1700000000000}', *(line.encode() for line in lines), b"[]"]
        sized = [struct.pack(">i", len(part)) + part for part in parts]
        body = zlib.compress(sized[0] + struct.pack(">i", len(lines)) + b"".join(sized[1:]) + struct.pack(">i", 0))
    assert registration_bodies.decode_register_broker(body, compressed=compressed) == data


def test_a_topic_is_read_as_it_was_written_whatever_it_says() -> None:
    topic = registration_bodies.TopicConfig(
        "T", 3, 5, 4, topic_filter_type="MULTI_TAG", topic_sys_flag=2, order=True, attributes={"a": "b"}
    )
    assert registration_bodies.TopicConfig.from_json(topic.to_json()) == topic


def test_members_of_enums_may_be_written_as_their_numbers_and_others_are_refused() -> None:
    def heartbeat(model: int) -> bytes:
        consumer = {"groupName": "g", "consumeType": 1, "messageModel": model, "subscriptionDataSet": []}
        return json.dumps({"clientID": "c", "consumerDataSet": [consumer], "producerDataSet": []}).encode()

    models = [bodies.decode_heartbeat(heartbeat(number)).consumer_data_set[0].message_model for number in (0, 1)]
    assert models == [MessageModel.BROADCASTING, MessageModel.CLUSTERING]
    for number in (-1, 2):
        with pytest.raises(RemoteProtocolError, match=f"{number} is no member of BROADCASTING, CLUSTERING"):
            bodies.decode_heartbeat(heartbeat(number))


def test_a_change_of_a_table_counts_its_version_up() -> None:
    version = registration_bodies.DataVersion(2, 1_600_000_000_000, 3)
    assert version.next(1_700_000_000_000) == registration_bodies.DataVersion(2, 1_700_000_000_000, 4)


def test_a_large_registration_that_was_compressed_is_unpacked_in_steps() -> None:
    topics = [b"%040d 8 8 6 SINGLE_TAG {}" % number for number in range(30_000)]  # 2 MB
    parts = [b'{"counter":3,"stateVersion":0,"timestamp":7}', *topics, b"[]"]
    sized = [struct.pack(">i", len(part)) + part for part in parts]
    text = sized[0] + struct.pack(">i", len(topics)) + b"".join(sized[1:]) + struct.pack(">i", 0)
    steps = registration_bodies.registration_in_steps(zlib.compress(text), compressed=True)
    before_topics = 0
    while next(steps, "done") is None:
        before_topics += 1
    reading = len(topics) // registration_bodies.TOPICS_OF_A_STEP
    unpacking = len(text) // registration_bodies.UNPACKED_OF_A_STEP
    assert before_topics >= reading + unpacking - 1


def test_ids_are_unique_and_of_javas_form() -> None:
    now = int(datetime(2026, 11, 21, tzinfo=UTC).timestamp() * 1000)
    generator = UniqIdGenerator(random.Random(1), bytes([10, 0, 0, 1]))
    made = [generator.next(now) for _ in range(70_000)]
    assert len(set(made)) == 70_000
    assert {len(one) for one in made} == {32}
    assert all(one.startswith("0A000001") and one == one.upper() for one in made[:100])
    assert len(UniqIdGenerator(random.Random(1), bytes(16)).next(now)) == 56


def test_the_month_of_an_id_rolls_over() -> None:
    generator = UniqIdGenerator(random.Random(1))
    first, second = generator.next(1_700_000_000_000), generator.next(1_700_000_000_000 + 40 * 86_400_000)
    days = [int(one[20:28], 16) / 86_400_000 for one in (first, second)]
    assert all(0 <= day < 32 for day in days)


def test_no_two_ids_are_alike_however_many_are_made_at_one_time_and_though_the_clock_is_put_back() -> None:
    """Their counter has 16 bits, and all messages of a batch have one time."""
    now = 1_790_000_000_000
    generator = UniqIdGenerator(random.Random(1))
    times = [now] * 150_000 + [now - 1_000 + made // 100 for made in range(200_000)] + [now + 1_001] * 70_000
    assert len({generator.next(time) for time in times}) == len(times)


def test_the_time_of_an_id_is_that_since_its_month_began() -> None:
    generator = UniqIdGenerator(random.Random(1))
    for month in (1, 2, 12):
        begin = int(time.mktime((2024, month, 1, 0, 0, 0, 0, 0, -1)) * 1000)
        for since in (0, 1, 86_400_000, 28 * 86_400_000):
            assert int(generator.next(begin + since)[20:28], 16) == since
        assert int(generator.next(begin - 1)[20:28], 16) > 27 * 86_400_000, "the month before"


@pytest.mark.parametrize("text", ["", "xyz", "C0A80102", "0" * 33])
def test_what_is_no_offset_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidMessageError, match="32 or 56"):
        parse_offset_msg_id(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(json_values)
def test_ordinary_json_is_read_as_it_is(value: object) -> None:
    import json

    assert loads_loose(json.dumps(value)) == value
    # In an object with a bare key the tolerant reader reads the same value.
    assert loads_loose("{0:" + json.dumps(value) + ",}") == {"0": value}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{0:"10.0.0.1:10911",1:"b"}', {"0": "10.0.0.1:10911", "1": "b"}),
        ("{'a':'it\\'s \"so\"', b: [1,2,],}", {"a": 'it\'s "so"', "b": [1, 2]}),
        ('{"t":{{"q":1}:5}}', {"t": {'{"q":1}': 5}}),
        ("{a:true,b:null,c:-1.5}", {"a": True, "b": None, "c": -1.5}),
    ],
)
def test_fastjsons_dialect(text: str, value: object) -> None:
    assert loads_loose(text) == value


def test_maps_with_objects_as_keys() -> None:
    text = dumps_with_raw_keys("offsetTable", [({"topic": "T", "queueId": 1}, 5)])
    assert text == '{"offsetTable":{{"queueId":1,"topic":"T"}:5}}'


@given(
    st.builds(
        StoredMessage,
        topic=st.text("té%", min_size=1, max_size=140),
        queue_id=int32s,
        body=st.binary(max_size=50),
        properties=st.just(b"") | st.binary(max_size=50).map(lambda text: text + b"\x02"),
        flag=int32s,
        sys_flag=int32s,
        born_timestamp_ms=longs,
        born_host=st.tuples(st.binary(min_size=4, max_size=4), int32s),
        reconsume_times=int32s,
        prepared_transaction_offset=longs,
        queue_offset=longs,
        commit_log_offset=longs,
        store_timestamp_ms=longs,
        store_host=st.tuples(st.binary(min_size=4, max_size=4), int32s),
    )
)
def test_records_from_a_template_are_those_that_are_encoded_one_by_one(message: StoredMessage) -> None:
    template = RecordTemplate(message)
    hosts = RecordTemplate.hosts(message.born_host, message.store_timestamp_ms, message.store_host)
    record = template.encode(
        message.queue_offset, message.commit_log_offset, message.born_timestamp_ms, hosts, message.body,
        message.properties,
    )  # fmt: skip
    assert record == encode_stored_message(message, property_crc=True)
    assert len(record) == template.bytes_beside + len(message.body) + len(message.properties)


def test_a_number_out_of_its_range_makes_no_template() -> None:
    with pytest.raises(struct.error):
        RecordTemplate(StoredMessage("t", 0, b"", flag=2**40))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 6, 7])
def test_lists_of_topics_are_written_in_steps(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_bodies, "NAMES_OF_A_STEP", 3)
    names = [f"topic {number}" for number in range(count)]
    assert admin_bodies.decode_topic_list(admin_bodies.encode_topic_list(names)) == names
