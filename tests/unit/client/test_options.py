"""Bounds of options, and options that go together: wrong ones are refused when they are made."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from rocketbox.client import ConsumerOptions, LitePullConsumerOptions, ProducerOptions
from rocketbox.errors import ConfigurationError


@pytest.mark.parametrize("topic", ["", "a b", "SCHEDULE_TOPIC_XXXX", "t" * 128])
@pytest.mark.parametrize("kind", [ConsumerOptions, ProducerOptions])
def test_trace_goes_to_a_topic_that_may_be_sent_to(kind: type, topic: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{kind.__name__}.customized_trace_topic"):
        kind(customized_trace_topic=topic)


@pytest.mark.parametrize("size", [0, 1025])
def test_a_pull_consumers_batch_has_bounds(size: int) -> None:
    with pytest.raises(ConfigurationError, match=r"pull_batch_size is .*\n.*from 1 to 1024"):
        LitePullConsumerOptions(pull_batch_size=size)


def test_a_time_to_begin_at_needs_from_where_to_say_so() -> None:
    with pytest.raises(ConfigurationError, match="consume_timestamp is set, and consume_from_where is LAST_OFFSET"):
        ConsumerOptions(consume_timestamp=datetime(2026, 1, 31, tzinfo=UTC))
