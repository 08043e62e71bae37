"""What is refused before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from enum import Enum

import pytest

from rocketbox.client.checks import MAX_KNOWN_TAGS, check_body, check_flag, check_group, check_topic, message_properties
from rocketbox.client.delays import milliseconds
from rocketbox.client.options import ClientOptions, ProducerOptions
from rocketbox.errors import ConfigurationError, InvalidGroupError, InvalidMessageError
from rocketbox.message import Message, decode_properties


@pytest.mark.parametrize(
    "group", ["", "  ", "a b", "ümlaut", "g" * 121, "DEFAULT_PRODUCER", "DEFAULT_CONSUMER", "CLIENT_INNER_PRODUCER"]
)
def test_group_that_rocketmq_does_not_take_is_refused(group: str) -> None:
    with pytest.raises(InvalidGroupError, match="producer group"):
        check_group(group, "producer")


@pytest.mark.parametrize("group", ["flight-desk", "g" * 120, "%RETRY%g", "A_1|b"])
def test_legal_group_passes(group: str) -> None:
    check_group(group, "consumer")


@pytest.mark.parametrize("topic", ["", " ", "a b", "t" * 128, "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "é"])
def test_topic_that_rocketmq_does_not_take_is_refused(topic: str) -> None:
    with pytest.raises(InvalidMessageError):
        check_topic(topic)


def test_longest_topic_passes() -> None:
    check_topic("t" * 127)


def test_empty_body_is_refused() -> None:
    with pytest.raises(InvalidMessageError, match="empty"):
        check_body("T", b"", 10)


def test_body_at_the_limit_passes_and_one_byte_more_names_the_setting() -> None:
    check_body("T", b"x" * 10, 10)
    with pytest.raises(InvalidMessageError, match="max-message-size"):
        check_body("T", b"x" * 11, 10)


def test_body_that_is_text_is_refused() -> None:
    with pytest.raises(InvalidMessageError, match="must be bytes"):
        check_body("T", "text", 10)  # type: ignore[arg-type] # what this test is about


def test_properties_hold_keys_tag_id_and_wait() -> None:
    message = Message("T", b"x", tag="UA", keys=["a", "b"], properties={"run": "7"}, delay_level=3)
    assert decode_properties(message_properties(message, "ID")) == {
        "run": "7",
        "KEYS": "a b",
        "UNIQ_KEY": "ID",
        "WAIT": "true",
        "TAGS": "UA",
        "DELAY": "3",
    }


def test_a_flag_that_is_a_truth_value_is_refused() -> None:
    with pytest.raises(InvalidMessageError, match="flag is True; it must be a whole number"):
        check_flag(True)


class Tag(str, Enum):  # noqa: UP042 # as code before Python 3.11 has it: formatted it is "Tag.PAID"
    PAID = "paid"


def test_a_member_of_an_enum_of_text_is_its_text() -> None:
    message = Message("T", b"x", tag=Tag.PAID, keys=[Tag.PAID], hash_key=Tag.PAID, properties={"state": Tag.PAID})
    found = decode_properties(message_properties(message, "ID"))
    assert [found[name] for name in ("TAGS", "KEYS", "__SHARDINGKEY", "state")] == ["paid"] * 4


def test_tags_are_checked_and_written_however_many_there_are() -> None:
    for number in [*range(MAX_KNOWN_TAGS + 2), 0, MAX_KNOWN_TAGS + 1]:
        tag = f"of-many-{number}"
        assert message_properties(Message("T", b"x", tag=tag), "ID").endswith(f"TAGS\x01{tag}\x02".encode())
        with pytest.raises(InvalidMessageError, match="separates tags"):
            message_properties(Message("T", b"x", tag=f"{tag}|x"), "ID")


def test_plain_message_has_id_and_wait_only() -> None:
    assert message_properties(Message("T", b"x"), "ID") == b"UNIQ_KEY\x01ID\x02WAIT\x01true\x02"
    assert message_properties(Message("T", b"x", wait_store_ok=False), "ID") == b"UNIQ_KEY\x01ID\x02WAIT\x01false\x02"


@pytest.mark.parametrize(
    "properties",
    [{"TAGS": "x"}, {"UNIQ_KEY": "x"}, {"": "x"}, {"a": ""}, {"a": " "}, {"a\x01": "b"}, {"a": "b\x02c"}],
)
def test_bad_property_is_refused(properties: Mapping[str, str]) -> None:
    with pytest.raises(InvalidMessageError):
        message_properties(Message("T", b"x", properties=properties), "ID")


@pytest.mark.parametrize(
    "message",
    [
        Message("T", b"x", tag=""),
        Message("T", b"x", tag="a||b"),
        Message("T", b"x", tag="a\x02b"),
        Message("T", b"x", keys=["a b"]),
        Message("T", b"x", keys=[""]),
        Message("T", b"x", keys=["a\x01"]),
        Message("T", b"x", keys="ab"),  # type: ignore[arg-type] # would be taken letter by letter
        Message("T", b"x", delay_level=-1),
        Message("T", b"x", delay_level=2**31),
        Message("T", b"x", delay_level=True),
        Message("T", b"x", properties={"big": "x" * 32_768}),
    ],
)
def test_bad_tag_key_level_or_size_is_refused(message: Message) -> None:
    with pytest.raises(InvalidMessageError):
        message_properties(message, "ID")


def test_the_longest_delay_has_its_milliseconds() -> None:
    found = decode_properties(message_properties(Message("T", b"x", delay=timedelta.max), "ID"))
    assert found["TIMER_DELAY_MS"] == "86400000000000000"
    assert milliseconds(timedelta(microseconds=1)) == 1


def test_options_out_of_range_are_all_named() -> None:
    with pytest.raises(ConfigurationError) as caught:
        ProducerOptions(send_message_timeout=0, retry_times_when_send_failed=-1)
    assert "send_message_timeout" in str(caught.value)
    assert "retry_times_when_send_failed" in str(caught.value)
    with pytest.raises(ConfigurationError, match="heartbeat_broker_interval"):
        ClientOptions(heartbeat_broker_interval=0)
