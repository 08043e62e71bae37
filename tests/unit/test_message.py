"""The property text, ids, and what users read from messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketbox.errors import InvalidMessageError, RemoteProtocolError
from rocketbox.message import (
    MessageExt,
    SendResult,
    SendStatus,
    decode_properties,
    encode_properties,
    format_offset_msg_id,
)
from rocketbox.protocol.command import RemotingCommand

words = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1)


@given(st.dictionaries(words, words))
def test_properties_survive_a_round_trip(properties: dict[str, str]) -> None:
    assert decode_properties(encode_properties(properties)) == properties


def test_the_last_separator_may_be_missing() -> None:
    assert decode_properties(b"TAGS\x01A\x02KEYS\x01k") == {"TAGS": "A", "KEYS": "k"}


def test_pairs_without_a_name_or_value_are_dropped() -> None:
    assert decode_properties(b"\x01A\x02B\x01\x02C\x02D\x01d\x01e\x02") == {"D": "d\x01e"}


@pytest.mark.parametrize("properties", [{"a\x01": "b"}, {"a": "b\x02c"}])
def test_a_separator_in_a_property_is_refused(properties: dict[str, str]) -> None:
    with pytest.raises(InvalidMessageError, match="control character"):
        encode_properties(properties)


def test_an_offset_id_is_the_brokers_address_and_the_offset() -> None:
    assert format_offset_msg_id(bytes([192, 168, 1, 2]), 10911, 1234567) == "C0A8010200002A9F000000000012D687"
    assert format_offset_msg_id(bytes(4), -2, -1) == "00000000" + "FFFFFFFE" + "F" * 16


def test_a_message_reads_its_fields_from_the_record() -> None:
    fields: tuple[object, ...] = (
        104,
        -626843481,
        907060870,
        3,
        0,
        42,
        1234567,
        0,
        1700000000000,
        b"\n\x00\x00\x01",
        50000,
    )
    fields += (1700000000005, b"\xc0\xa8\x01\x02", 10911, 2, 0, 5)
    message = MessageExt(fields, b"hello", "T", b"TAGS\x01A\x02KEYS\x01k1 k2\x02", "broker-a")
    assert (message.queue_id, message.queue_offset, message.commit_log_offset) == (3, 42, 1234567)
    assert (message.born_host, message.store_host) == ("10.0.0.1:50000", "192.168.1.2:10911")
    assert (message.tag, message.keys, message.reconsume_times) == ("A", ("k1", "k2"), 2)
    assert message.msg_id == message.offset_msg_id == "C0A8010200002A9F000000000012D687"
    message.set_property("UNIQ_KEY", "ID")
    assert message.msg_id == "ID"
    assert "hello" not in repr(message)


@pytest.mark.parametrize(
    ("fields", "told"),
    [({}, "did not tell the queueId"), ({"queueId": "one", "queueOffset": "7"}, "told 'one' as the queueId")],
)
def test_a_send_result_whose_answer_does_not_say_where_the_message_is_says_so(
    fields: dict[str, str], told: str
) -> None:
    result = SendResult(SendStatus.SEND_OK, "ID", "T", "broker-a", RemotingCommand.response(ext_fields=fields))
    with pytest.raises(RemoteProtocolError, match=told):
        _ = result.queue
    with pytest.raises(RemoteProtocolError, match="msgId of message ID"):
        _ = result.offset_msg_id
    assert told in repr(result), "it can be logged"
