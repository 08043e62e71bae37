"""The message that a send with given options makes."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel, TypeAdapter

from rocketbox.client import Producer
from rocketbox.errors import ConfigurationError, InvalidMessageError
from rocketbox.message import Message, MessageExt, encode_properties
from rocketbox.template import RocketMQTemplate
from rocketbox.template.headers import (
    DeliveryTime,
    delivery_time,
    keys_of,
    split_destination,
    timeout_seconds,
    to_properties,
)


class Departure(BaseModel):
    flight: str


class Terminal(Enum):
    NORTH = "north"


@pytest.fixture
def template() -> RocketMQTemplate:
    return RocketMQTemplate(Producer("flight-desk", name_server="127.0.0.1:1"))  # never entered: nothing is sent


def test_destination_payload_and_options_become_a_message(template: RocketMQTemplate) -> None:
    message = template.to_message(
        "departures:UA",
        Departure(flight="UA1545"),
        keys="UA1545",
        hash_key="UA1545",
        delay=timedelta(seconds=5),
        headers={"airport": "JFK", "attempt": 2, "late": True, "terminal": Terminal.NORTH},
    )
    assert message == Message(
        "departures",
        b'{"flight":"UA1545"}',
        tag="UA",
        keys=("UA1545",),
        properties={"airport": "JFK", "attempt": "2", "late": "true", "terminal": "north"},
        hash_key="UA1545",
        delay_level=2,
    )


def test_a_ready_made_message_keeps_what_is_not_said_otherwise(template: RocketMQTemplate) -> None:
    own = Message("elsewhere", b"x", tag="AA", keys=("k1",), properties={"a": "1"}, hash_key="h", delay_level=3)
    assert template.to_message("departures", own) == Message(
        "departures", b"x", tag="AA", keys=("k1",), properties={"a": "1"}, hash_key="h", delay_level=3
    )
    assert template.to_message("departures:UA", own, keys=["k2", "k3"], headers={"b": 2}) == Message(
        "departures", b"x", tag="UA", keys=("k2", "k3"), properties={"a": "1", "b": "2"}, hash_key="h", delay_level=3
    )


def test_a_ready_made_message_of_which_nothing_is_said_otherwise_is_sent_itself(template: RocketMQTemplate) -> None:
    own = Message("departures", b"x", tag="AA", keys=("k1",), properties={"a": "1"})
    assert template.to_message("departures", own) is own
    others = (
        template.to_message("departures", own, keys=[]),
        template.to_message("departures", own, hash_key=""),
        template.to_message("departures", own, delay_level=0),
        template.to_message("departures", own, headers={"b": 2}),
    )
    assert others == (
        Message("departures", b"x", tag="AA", properties={"a": "1"}),
        Message("departures", b"x", tag="AA", keys=("k1",), hash_key="", properties={"a": "1"}),
        own,
        Message("departures", b"x", tag="AA", keys=("k1",), properties={"a": "1", "b": "2"}),
    )


def test_a_destination_is_split_at_its_first_colon() -> None:
    assert split_destination("departures") == ("departures", None)
    assert split_destination("departures:UA:x") == ("departures", "UA:x")


@pytest.mark.parametrize("destination", ["", "  ", ":UA", "departures:", "departures: "])
def test_a_destination_with_a_blank_part_is_refused(destination: str) -> None:
    with pytest.raises(InvalidMessageError, match="neither 'topic' nor 'topic:tag'"):
        split_destination(destination)


def test_two_different_tags_are_refused(template: RocketMQTemplate) -> None:
    assert template.to_message("departures:UA", b"x", tag="UA").tag == "UA"
    with pytest.raises(InvalidMessageError, match="name different tags"):
        template.to_message("departures:UA", b"x", tag="AA")


def test_a_delay_is_a_level_where_one_is_just_as_long_and_a_time_of_its_own_else() -> None:
    assert delivery_time(None, None, None) is None
    for delay, level in ((timedelta(0), 0), (timedelta(seconds=1), 1), (timedelta(hours=2), 18)):
        assert delivery_time(delay, None, None) == DeliveryTime(delay_level=level)
    for delay in (timedelta(seconds=2), timedelta(hours=3), timedelta(milliseconds=500)):
        assert delivery_time(delay, None, None) == DeliveryTime(delay=delay)
    at = datetime(2030, 1, 1, tzinfo=UTC)
    assert delivery_time(None, None, at) == DeliveryTime(deliver_at=at)
    assert delivery_time(None, 3, None) == DeliveryTime(delay_level=3)
    with pytest.raises(InvalidMessageError, match="negative"):
        delivery_time("-1s", None, None)
    with pytest.raises(InvalidMessageError, match="not several"):
        delivery_time("1s", 1, None)


def test_a_time_takes_the_place_of_that_of_a_message(template: RocketMQTemplate) -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    own = Message("elsewhere", b"x", deliver_at=at)
    assert template.to_message("t", own).deliver_at == at
    assert template.to_message("t", own, delay="7s") == Message("t", b"x", delay=timedelta(seconds=7))
    assert template.to_message("t", own, delay_level=2) == Message("t", b"x", delay_level=2)


@pytest.mark.parametrize("delay", ["5s", "5000ms", "PT5S", timedelta(seconds=5)])
def test_a_delay_is_a_timedelta_or_text_with_a_unit(template: RocketMQTemplate, delay: timedelta | str) -> None:
    assert template.to_message("departures", b"x", delay=delay).delay_level == 2


@pytest.mark.parametrize("delay", ["5", 5, 5.0, "soon", True])
def test_a_delay_without_a_unit_is_refused_with_what_to_write(delay: Any) -> None:
    with pytest.raises(InvalidMessageError, match=rf"^delay={re.escape(repr(delay))}: .*15m, 30s.*timedelta"):
        delivery_time(delay, None, None)


def test_a_timeout_is_a_timedelta_text_with_a_unit_or_a_number_of_seconds() -> None:
    given: list[Any] = [None, 2.5, 3, timedelta(seconds=2), "1500ms", "1m"]
    assert [timeout_seconds(each) for each in given] == [None, 2.5, 3, 2.0, 1.5, 60.0]
    with pytest.raises(InvalidMessageError, match=r"^timeout='5': 5 has no unit; .*, a timedelta, or a number of sec"):
        timeout_seconds("5")


def test_keys_are_words() -> None:
    assert keys_of("a") == ("a",)
    assert keys_of(["a", "b"]) == ("a", "b")
    assert keys_of(None) == ()
    for bad in ("a b", "", " a"):
        with pytest.raises(InvalidMessageError, match="white space"):
            keys_of(bad)


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ({"TAGS": "UA"}, "use tag="),
        ({"KEYS": "x"}, "use keys="),
        ({"UNIQ_KEY": "x"}, "RocketMQ's own"),
        ({"airport": None}, "leave it out"),
        ({"airport": ""}, "leave it out"),
    ],
)
def test_headers_that_would_be_lost_are_refused(headers: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidMessageError, match=says):
        to_properties(headers)


@pytest.mark.anyio
async def test_a_template_of_one_producer_says_that_it_knows_no_further_cluster(template: RocketMQTemplate) -> None:
    with pytest.raises(ConfigurationError, match="none of cluster 'audit'"):
        await template.send("departures", b"x", cluster="audit")


# --- messages that came, headers, the default destination ------------------------------------------------------------


def came(properties: dict[str, str], *, born_ip: bytes = bytes(4), flag: int = 3) -> MessageExt:
    fields = (0, 0, 0, 2, flag, 9, 0, 8, 1_700_000_000_000, born_ip, 4321, 0, bytes(4), 0, 4, 0, 4)
    return MessageExt(fields, b"body", "departures", encode_properties(properties))


def test_a_message_that_came_is_sent_on_with_what_belongs_to_it(template: RocketMQTemplate) -> None:
    message = came(
        {
            "KEYS": "UA1545 JFK",
            "TAGS": "UA",
            "airport": "JFK",
            "__SHARDINGKEY": "UA1545",
            "UNIQ_KEY": "id",
            "DELAY": "3",
            "WAIT": "true",
            "RECONSUME_TIME": "4",
            "ORIGIN_MESSAGE_ID": "id",
            "TTL": "3000",
            "__transactionId__": "id",
            "TRANSACTION_CHECK_TIMES": "2",
            "CHECK_IMMUNITY_TIME_IN_SECONDS": "60",
            "TIMER_ROLL_LABEL": "1",
            "INNER_NUM": "32",
            "INNER_BASE": "64",
            "INNER_MULTI_DISPATCH": "queue-of-its-own",
            "TRACE_CONTEXT": "of the first way",
            "REAL_TOPIC": "departures",
        }
    )
    on = Message(
        "later", b"body", tag="UA", keys=("UA1545", "JFK"), properties={"airport": "JFK"}, hash_key="UA1545", flag=3
    )
    assert template.to_message("later", message) == on
    other = template.to_message("later:AA", message, keys="k", headers={"airport": "LHR"}, hash_key="AA1")
    assert (other.tag, other.keys, other.properties, other.hash_key) == ("AA", ("k",), {"airport": "LHR"}, "AA1")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.5, "1.5"),
        (Decimal("1.50"), "1.50"),
        (datetime(2026, 11, 23, 12, tzinfo=UTC), "2026-11-23T12:00:00+00:00"),
        (date(2026, 11, 23), "2026-11-23"),
        (timedelta(hours=1, milliseconds=5), "PT3600.005S"),
        (-timedelta(seconds=90), "-PT90S"),
        (timedelta(0), "PT0S"),
        (timedelta(seconds=2**32 - 1, microseconds=1), "P49710DT23295.000001S"),
        (-timedelta(days=400_000, microseconds=1), "-P400000DT0.000001S"),
        (timedelta.max, "P999999999DT86399.999999S"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Path("a/b"), "a/b"),
    ],
)
def test_headers_of_all_types_are_read_again_as_they_were(value: Any, text: str) -> None:
    properties = to_properties({"x": value})
    assert properties == {"x": text}
    assert TypeAdapter[Any](type(value) if not isinstance(value, Path) else Path).validate_python(text) == value


@pytest.mark.parametrize("value", [b"a", ["a"], ("a",), {"a": 1}, {1}, Departure(flight="UA1"), object()])
def test_what_has_no_text_is_no_header(value: object) -> None:
    with pytest.raises(InvalidMessageError, match=r"header 'x' is of type \w+, and a header is text"):
        to_properties({"x": value})


@pytest.mark.parametrize(
    ("name", "instead"), [("rocketmq_KEYS", "keys="), ("rocketmq_TAGS", "tag="), ("DELAY", "delay=")]
)
def test_a_header_that_rocketmq_spring_would_drop_is_refused(name: str, instead: str) -> None:
    with pytest.raises(InvalidMessageError, match=rf"header '{name}' is a property of RocketMQ's own; use {instead}"):
        to_properties({name: "a"})


def test_sends_without_a_destination_go_to_the_default_one(template: RocketMQTemplate) -> None:
    with pytest.raises(InvalidMessageError, match=r"set rocketmq\.producer\.default-destination"):
        template.to_message(None, "a")
    other = RocketMQTemplate(template.producer, default_destination="departures:UA")
    assert other.to_message(None, "a") == Message("departures", b"a", tag="UA")
    assert other.to_message("arrivals", "a") == Message("arrivals", b"a")
    with pytest.raises(InvalidMessageError, match="is neither 'topic' nor 'topic:tag'"):
        RocketMQTemplate(template.producer, default_destination="departures:")


@pytest.mark.parametrize(
    ("payload", "content_type"),
    [
        ("text", "text/plain;charset=UTF-8"),
        (b"\xff", "application/octet-stream"),
        ({"a": 1}, "application/json"),
        (Message("departures", b"a"), "application/octet-stream"),
        (Message("departures", b"a", properties={"contentType": "image/png"}), "image/png"),
    ],
)
def test_headers_of_spring_are_put_on_where_it_is_asked_for(
    template: RocketMQTemplate, payload: object, content_type: str
) -> None:
    spring = RocketMQTemplate(template.producer, spring_headers=True)
    properties = spring.to_message("departures", payload, headers={"airport": "JFK"}).properties
    assert set(properties) == {"id", "timestamp", "contentType", "airport"}
    assert UUID(properties["id"])
    assert abs(int(properties["timestamp"]) / 1000 - datetime.now(UTC).timestamp()) < 60
    assert properties["contentType"] == content_type
    said = spring.to_message("departures", b"a", headers={"contentType": "image/png"}).properties
    assert said["contentType"] == "image/png"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"destination": 5}, "destination is 5, of type int; it must be text"),
        ({"destination": b"t"}, "of type bytes; it must be text"),
        ({"keys": 5}, "keys is 5, of type int; it must be a text or a list"),
        ({"keys": {"a": 1}}, "of type dict; it must be a text or a list"),
        ({"keys": ["a", 5]}, "key 5 is of type int; it must be text"),
        ({"keys": b"a"}, "keys is b'a', of type bytes; it must be a text or a list"),
        ({"keys": [b"a"]}, "key b'a' is of type bytes"),
        ({"headers": ["a"]}, "of type list; it must be a mapping"),
    ],
)
def test_what_is_no_text_is_named(template: RocketMQTemplate, wrong: dict[str, Any], words: str) -> None:
    arguments = {"destination": "departures", "payload": "x", **wrong}
    with pytest.raises(InvalidMessageError, match=re.escape(words)):
        template.to_message(**arguments)
