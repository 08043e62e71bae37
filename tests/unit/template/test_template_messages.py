"""The message that a send with given options makes."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

import pytest
from pydantic import BaseModel

from rocketbox.client import Producer
from rocketbox.errors import ConfigurationError, InvalidMessageError
from rocketbox.message import Message
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
