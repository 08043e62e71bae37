"""The models of the settings: one declaration of listener options, spellings, what the client is given."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from pydantic import ValidationError

from rocketbox.autoconfigure.listening import candidate_of, cluster_settings
from rocketbox.autoconfigure.properties import ListenerProperties, ProducerProperties, RocketMQProperties
from rocketbox.client import ProducerOptions
from rocketbox.errors import ConfigurationError
from rocketbox.listeners.options import FUNCTION_OPTIONS, GROUP_OPTIONS, OnInvalid
from rocketbox.marks import rocketmq_listener, rocketmq_spark_listener, send_to
from rocketbox.message import ConsumeMode
from rocketbox.spark.query_options import QUERY_OPTIONS


def as_written(text: str, subject: str, where: str) -> str:
    return text.replace("${topic}", "departures")


async def on_departure(departure: dict[str, Any]) -> None: ...


def test_every_option_of_the_decorator_is_a_setting_with_a_place_and_a_default() -> None:
    options = {field.name for field in dataclasses.fields(rocketmq_listener)}
    assert {*GROUP_OPTIONS, *FUNCTION_OPTIONS} | {"consumer_group", "cluster", "enabled"} == options
    of_spark = {name for name, option in QUERY_OPTIONS.items() if option.key is not None}
    assert of_spark <= {field.name for field in dataclasses.fields(rocketmq_spark_listener)}
    assert set(ListenerProperties.model_fields) == (options | of_spark) - {"consumer_group", "cluster"}


def test_settings_of_listeners_become_what_the_registrar_takes() -> None:
    properties = RocketMQProperties.model_validate(
        {
            "consumer": {
                "group": "shared",
                "pull-batch-size": 16,
                "listeners": {"desk": {"consume-mode": "orderly", "consume-timeout": "15m", "departures": False}},
            }
        }
    )
    settings = cluster_settings("rocketmq", properties, {"rocketmq.consumer.listeners.desk.consume-mode": "a:1"}.get)
    assert settings.defaults.values == {"pull_batch_size": 16, "group": "shared"}
    desk = settings.groups["desk"]
    assert desk.values == {"consume_mode": ConsumeMode.ORDERLY, "consume_timeout": 900.0}
    assert desk.where("consume_mode") == "a:1"
    assert settings.switches == {"desk": {"departures": False}}


def test_an_unknown_option_is_refused_with_the_nearest_one() -> None:
    properties = RocketMQProperties.model_validate({"consumer": {"listeners": {"desk": {"concurency": 3}}}})
    with pytest.raises(ConfigurationError, match=r"did you mean rocketmq\.consumer\.listeners\.desk\.concurrency\?"):
        cluster_settings("rocketmq", properties, lambda key: None)


def test_a_decorators_text_is_resolved_and_its_times_are_read() -> None:
    mark = rocketmq_listener(topic="${topic}", consumer_group="desk", consume_timeout="90s", on_invalid="SKIP")
    candidate = candidate_of(on_departure, mark, (send_to("${topic}-alerts"),), resolve_text=as_written)
    assert candidate.declared.values == {
        "topic": "departures",
        "consumer_group": "desk",
        "consume_timeout": 90.0,
        "on_invalid": OnInvalid.SKIP,
    }
    assert candidate.replies == (send_to("departures-alerts"),)


def test_everything_wrong_in_a_decorator_is_found_together() -> None:
    mark = rocketmq_listener(topic="x", consume_timeout="15", on_invalid="maybe", concurrency="many")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError) as caught:
        candidate_of(on_departure, mark, (), resolve_text=as_written)
    assert len(caught.value.findings) == 3
    assert all("test_rocketmq_properties.py:" in (finding.where or "") for finding in caught.value.findings)


def test_producer_settings_reach_the_clients_options() -> None:
    options = ProducerProperties.model_validate(
        {
            "group": "desk",
            "send-message-timeout": 1500,
            "retry-times-when-send-failed": 5,
            "retry-next-server": True,
            "max-message-size": "1MB",
            "accept-weak-ack": True,
        }
    ).as_options(ProducerOptions)
    assert options.send_message_timeout == 1.5
    assert options.retry_times_when_send_failed == 5
    assert options.retry_another_broker_when_not_store_ok
    assert options.max_message_size == 1 << 20
    assert options.accept_weak_ack


@pytest.mark.parametrize("wrong", [{"name-server": " "}, {"startup": "maybe"}, {"producer": {"namespce": "x"}}])
def test_what_is_no_setting_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RocketMQProperties.model_validate(wrong)
