"""Options that ask for what is not built are checked, and refused when somebody starts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from rocketbox.client import (
    ClientOptions,
    ConsumerOptions,
    LitePullConsumerOptions,
    MQClientInstance,
    Producer,
    ProducerOptions,
    PushConsumer,
)
from rocketbox.client.unbuilt import UNBUILT, unbuilt_among
from rocketbox.declarations import options_of
from rocketbox.errors import ConfigurationError

MEMBERS = (ProducerOptions, ConsumerOptions, LitePullConsumerOptions)

ASKING: list[tuple[Any, dict[str, Any]]] = [
    *((options, {"enable_msg_trace": True, "customized_trace_topic": "traces"}) for options in MEMBERS),
]


def start(options: Any) -> object:
    """What is made with these options."""
    if isinstance(options, ClientOptions):
        return MQClientInstance("ns:9876", options=options)
    if isinstance(options, ProducerOptions):
        return Producer("desk", name_server="ns:9876", options=options)
    return PushConsumer("desk", name_server="ns:9876", options=options)


@pytest.mark.parametrize(("kind", "said"), ASKING)
def test_each_option_that_asks_for_what_is_not_built_is_named(kind: Any, said: dict[str, Any]) -> None:
    options = kind(**said)
    assert dict(unbuilt_among(vars(options), options_of(kind))).keys() == said.keys()
    if kind is LitePullConsumerOptions:
        return
    with pytest.raises(ConfigurationError) as caught:
        start(options)
    told = [finding.what.partition(" ")[0] for finding in caught.value.findings]
    assert sorted(told) == sorted(f"{kind.__name__}.{name}" for name in said)
    assert all(finding.fix for finding in caught.value.findings)


@pytest.mark.parametrize("kind", [ClientOptions, *MEMBERS])
def test_defaults_ask_for_nothing(kind: Any) -> None:
    assert list(unbuilt_among(vars(kind()), options_of(kind))) == []


def test_every_option_of_the_table_is_tried_here() -> None:
    assert {name for _, said in ASKING for name in said} == UNBUILT.keys()


@pytest.mark.parametrize("size", [0, 1025])
def test_a_pull_consumers_batch_has_bounds(size: int) -> None:
    with pytest.raises(ConfigurationError, match=r"pull_batch_size is .*\n.*from 1 to 1024"):
        LitePullConsumerOptions(pull_batch_size=size)


def test_a_time_to_begin_at_needs_from_where_to_say_so() -> None:
    with pytest.raises(ConfigurationError, match="consume_timestamp is set, and consume_from_where is LAST_OFFSET"):
        ConsumerOptions(consume_timestamp=datetime(2026, 1, 31, tzinfo=UTC))
