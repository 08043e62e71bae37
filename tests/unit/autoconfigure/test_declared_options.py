"""An option is declared once, on its dataclass: decorator, keys, bounds, schema, reference and mapping follow."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from types import ModuleType
from typing import Annotated, Any

import pytest
from annotated_types import Ge, Gt, Le

from rocketbox.autoconfigure.option_models import Properties, with_options
from rocketbox.autoconfigure.properties import ListenerProperties, ProducerProperties
from rocketbox.boot.json_schema import json_schema
from rocketbox.boot.reference import markdown_reference
from rocketbox.boot.root_settings import load_settings
from rocketbox.client import ConsumerOptions, LitePullConsumerOptions, ProducerOptions
from rocketbox.client.options import ClientOptions
from rocketbox.declarations import BYTES, IN_CODE, SECONDS, Key, Option, Words, options_of
from rocketbox.errors import ConfigurationError, Finding
from rocketbox.listeners.options import LISTENER_OPTIONS, GroupOptions, consumer_options
from rocketbox.listeners.transaction_listeners import TRANSACTION_LISTENER_OPTIONS
from rocketbox.marks import rocketmq_listener, rocketmq_transaction_listener
from tests.support.framework.services import ServiceMaker

# --- the decorator ----------------------------------------------------------------------------------------------------


def in_a_decorator(option: Option) -> Any:
    """The type that an option has there: what settings write as text may be an object of Python or text."""
    if option.unit is SECONDS:
        return timedelta | str | None
    if option.kind is datetime:
        return datetime | str | None
    if issubclass(option.kind, Enum) and option.kind.__module__ != "rocketbox.message":
        return str | None  # importing the marks loads no more than the messages
    return option.kind | None


def differences(mark: type, options: typing.Mapping[str, Option]) -> list[str]:
    """Where the signature of a decorator is not what the declarations say."""
    hints = typing.get_type_hints(mark)
    written = [(field.name, hints[field.name], field.repr) for field in dataclasses.fields(mark)]
    derived = [(option.name, in_a_decorator(option), not option.secret) for option in options.values()]
    wrong = [
        f"{one} is written, {other} declared" for one, other in zip(written, derived, strict=False) if one != other
    ]
    missing = [each[0] for each in derived[len(written) :]]
    return wrong + [f"{name} is missing" for name in missing]


def test_the_decorators_signature_is_what_is_declared() -> None:
    assert differences(rocketmq_listener, LISTENER_OPTIONS) == []
    assert all(field.default is None for field in dataclasses.fields(rocketmq_listener)), "None: not said"


def test_the_signature_of_the_decorator_of_transaction_listeners_is_what_is_declared() -> None:
    declared = sorted(TRANSACTION_LISTENER_OPTIONS.values(), key=lambda option: option.name)
    fields = dataclasses.fields(rocketmq_transaction_listener)
    hints = typing.get_type_hints(rocketmq_transaction_listener)
    assert sorted((field.name, hints[field.name]) for field in fields) == [
        (option.name, in_a_decorator(option)) for option in declared
    ]
    assert all(field.default is None for field in fields), "None: not said"


@dataclass(frozen=True, kw_only=True)
class WithLinger(GroupOptions):
    """A group's options with one more."""

    linger: Annotated[float, SECONDS, Ge(0), Le(10), Words("pause before a batch that is not full")] = 1.5
    passphrase: Annotated[str | None, Words("opens the batch")] = dataclasses.field(default=None, repr=False)
    tuning: Annotated[int, IN_CODE] = 1


MORE = {name: option for name, option in options_of(WithLinger).items() if option.key is not None}


def test_an_option_that_the_decorator_does_not_have_is_noticed() -> None:
    added = {name: option for name, option in MORE.items() if name not in LISTENER_OPTIONS}
    assert differences(rocketmq_listener, {**LISTENER_OPTIONS, **added}) == [
        "linger is missing",
        "passphrase is missing",
    ]


# --- one more option, and what follows from it ------------------------------------------------------------------------


@with_options(MORE, of_listeners=True)
class GroupProperties(Properties):
    """Options of a group."""


@dataclass(frozen=True, kw_only=True)
class MoreOfProducers(ProducerOptions):
    """A producer's options with more of them."""

    linger: Annotated[float, SECONDS, Gt(0), Words("wait for more messages")] = 0.25
    buffer: Annotated[int, BYTES, Ge(1024), Key("room"), Words("that wait together")] = 2048


@with_options(options_of(MoreOfProducers))
class MoreProperties(Properties):
    """Options of a producer."""


def test_an_option_that_is_declared_is_a_key_and_reaches_the_dataclass() -> None:
    settings = load_settings(
        {"of-group": GroupProperties, "of-producer": MoreProperties},
        environ={
            "OF_GROUP_LINGER": "2s",
            "OF_PRODUCER_ROOM": "4KB",
            "OF_PRODUCER_LINGER": "50",
            "OF_GROUP_TUNING": "7",
        },
    )
    group, producer = settings.get("of-group"), settings.get("of-producer")
    assert group.values()["linger"] == 2.0
    assert "tuning" not in group.values()
    options = producer.as_options(MoreOfProducers)
    assert options == MoreOfProducers(linger=0.05, buffer=4096)
    assert load_settings({"of": MoreProperties}, environ={}).get("of").as_options(MoreOfProducers) == MoreOfProducers()
    assert load_settings({"of": GroupProperties}, environ={}).get("of").values()["linger"] is None, "nobody said it"


@pytest.mark.parametrize(
    ("variable", "written", "what"),
    [
        ("OF_GROUP_LINGER", "11s", "of-group.linger is '11s', and must be from 0s to 10s"),
        ("OF_PRODUCER_LINGER", "0", "of-producer.linger is '0', and must be more than 0s"),
        ("OF_PRODUCER_ROOM", "1", "of-producer.room is '1', and must be 1KB or more"),
    ],
)
def test_its_bounds_hold_for_the_key_in_the_units_of_settings(variable: str, written: str, what: str) -> None:
    models = {"of-group": GroupProperties, "of-producer": MoreProperties}
    with pytest.raises(ConfigurationError) as caught:
        load_settings(models, environ={variable: written})
    assert [finding.what for finding in caught.value.findings] == [what]
    assert variable in (caught.value.findings[0].where or "")


def test_its_bounds_hold_for_the_dataclass() -> None:
    with pytest.raises(ConfigurationError) as caught:
        MoreOfProducers(linger=0.0, buffer=1, create_topic_key=" ")
    assert [(finding.what, finding.fix) for finding in caught.value.findings] == [
        ("MoreOfProducers.linger is 0.0", "it must be more than 0 seconds"),
        ("MoreOfProducers.buffer is 1", "it must be 1024 or more bytes"),
        ("MoreOfProducers.create_topic_key is ' '", "it must be text that is not blank"),
    ]


def test_the_reference_and_the_schema_have_it() -> None:
    page = markdown_reference({"of-group": GroupProperties, "of-producer": MoreProperties})
    words = "pause before a batch that is not full (default 1s500ms)"
    assert f"| `of-group.linger` | a time with its unit, from 0s, up to 10s |  | {words} |" in page
    assert "| `of-producer.room` | a size, from 1024 | `2KB` | that wait together |" in page
    assert "tuning" not in page
    schema = json_schema({"of-producer": MoreProperties})["properties"]["of-producer"]["properties"]
    assert schema["linger"]["description"].startswith("wait for more messages; a time")
    assert schema["room"]["default"] == "2KB"


def test_a_secret_is_one_because_its_declaration_says_so() -> None:
    models = {"of-group": GroupProperties}
    settings = load_settings(models, environ={"OF_GROUP_PASSPHRASE": "open-sesame"})
    assert settings.secrets == {"open-sesame"}
    assert "open-sesame" not in repr(settings.get("of-group"))
    assert settings.get("of-group").values()["passphrase"] == "open-sesame"
    assert "open-sesame" not in repr(WithLinger(passphrase="open-sesame"))
    assert {option.name for option in LISTENER_OPTIONS.values() if option.secret} == {"access_key", "secret_key"}


def test_an_option_says_what_it_does_or_that_it_is_no_setting() -> None:
    @dataclass(frozen=True)
    class Silent:
        speed: Annotated[int, Ge(1)] = 1

    with pytest.raises(TypeError, match=r"Silent\.speed needs Words\(\.\.\.\), or IN_CODE"):
        options_of(Silent)


# --- ours -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("class_", [ProducerOptions, LitePullConsumerOptions, GroupOptions, ClientOptions])
def test_the_defaults_are_within_their_bounds(class_: type) -> None:
    for option in options_of(class_).values():
        if option.bounds is not None and option.default is not None:
            assert option.bounds.holds(option.default), option.name


@pytest.mark.parametrize("class_", [ProducerOptions, ConsumerOptions])
def test_no_key_is_lost_on_its_way_to_the_client(class_: type) -> None:
    """Each key set to something else than its default arrives."""
    model = ProducerProperties if class_ is ProducerOptions else ListenerProperties
    for option in options_of(class_).values():
        if option.key is None:
            continue
        text, value = other_than_the_default(option)
        said: Any = model.model_validate({option.key: text})
        if class_ is ProducerOptions:
            arrived = said.as_options(ProducerOptions)
        else:
            beside = {"consume_from_where": "TIMESTAMP"} if option.name == "consume_timestamp" else {}
            with_more = model.model_validate({option.key: text, **beside})
            given = {name: each for name, each in with_more.values().items() if each is not None}
            arrived = consumer_options(GroupOptions(**given))
        assert getattr(arrived, option.name) == value, option.name


def other_than_the_default(option: Option) -> tuple[Any, Any]:
    if option.kind is bool:
        return (not option.default,) * 2
    if option.unit is SECONDS:
        return "12500ms", 12.5
    if option.kind is datetime:
        return "2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)
    if option.kind is int:
        number = 17 if option.default is None else option.default + 1
        return number, number
    if option.kind is str:
        return "other", "other"
    last = list(option.kind)[-1]
    return last.name, last


# --- in a service -----------------------------------------------------------------------------------------------------

SERVICE = """
from rocketbox import RocketBox, rocketmq_listener

app = RocketBox("desk", scan=[__name__])

@rocketmq_listener(topic="departures", consumer_group="desk"OPTIONS)
async def on_departure(body: bytes) -> None: ...
"""


def refused(module: ModuleType) -> Finding:
    """The one finding about the settings."""
    with pytest.raises(ConfigurationError) as caught:
        module.app.look()
    (finding,) = caught.value.findings
    return finding


def test_a_value_out_of_bounds_is_told_with_its_key_and_place_before_the_start(service: ServiceMaker) -> None:
    settings = "rocketmq:\n  name-server: embedded\n  consumer.listeners.desk.pull-interval: 2m\n"
    finding = refused(service(SERVICE.replace("OPTIONS", ""), settings))
    assert finding.what == ("rocketmq.consumer.listeners.desk.pull-interval is '2m', and must be from 0s to 1m5s535ms")
    assert finding.where == "rocketbox.yaml:3:42"


def test_a_value_out_of_bounds_in_a_decorator_is_told_with_its_line(service: ServiceMaker) -> None:
    source = SERVICE.replace("OPTIONS", ", pull_interval='2m', concurrency=0")
    found = service(source, "rocketmq.name-server: embedded\n").app.look().findings
    assert [finding.what for finding in found] == [
        "concurrency of listener on_departure is 0, and must be from 1 to 1000",
        "pull_interval of listener on_departure is '2m', and must be from 0s to 1m5s535ms",
    ]
    assert all((finding.where or "").endswith(".py:5") for finding in found)


@pytest.mark.parametrize(
    ("options", "written", "expected"),
    [
        ("", "20260131120000", datetime(2026, 1, 31, 12).astimezone()),
        ("", '"2026-01-31T12:00:00Z"', datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("", "2026-01-31", datetime(2026, 1, 31).astimezone()),
        (", consume_timestamp='20260131120000'", None, datetime(2026, 1, 31, 12).astimezone()),
        (", consume_timestamp=DAY", None, datetime(2026, 1, 31, tzinfo=UTC)),
    ],
)
def test_where_a_new_group_begins_may_be_a_time(
    service: ServiceMaker, options: str, written: str | None, expected: datetime
) -> None:
    settings = "rocketmq:\n  name-server: embedded\n  consumer.listeners.desk:\n    consume-from-where: timestamp\n"
    if written is not None:
        settings += f"    consume-timestamp: {written}\n"
    source = "from datetime import UTC, datetime\nDAY = datetime(2026, 1, 31, tzinfo=UTC)\n" + SERVICE
    look = service(source.replace("OPTIONS", options), settings).app.look()
    assert look.findings == []
    (plan,) = look.plans
    assert consumer_options(plan.options).consume_timestamp == expected


def test_a_time_that_is_none_is_told_with_what_to_write(service: ServiceMaker) -> None:
    settings = "rocketmq:\n  name-server: embedded\n  consumer.consume-timestamp: yesterday\n"
    finding = refused(service(SERVICE.replace("OPTIONS", ""), settings))
    assert finding.what == "rocketmq.consumer.consume-timestamp is 'yesterday', and must be a point in time"
    assert finding.fix == "write 2026-01-31T12:00:00, 2026-01-31T12:00:00Z or 20260131120000"


def test_what_all_clients_have_alike_reaches_each_of_them(service: ServiceMaker) -> None:
    settings = "rocketmq.name-server: embedded\nrocketbox.client.max-cached-bytes: 1MB\n"
    look = service(SERVICE.replace("OPTIONS", ""), settings).app.look()
    expected = ClientOptions(max_cached_bytes=1 << 20, mask=look.service.mask)
    assert look.service.client("ns:9876", ClientOptions()).options == expected
    assert look.service.cached_bytes.limit == 1 << 20
