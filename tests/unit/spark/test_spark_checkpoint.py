"""The form of offsets in Spark's checkpoint: the same text for the same values, and words for what cannot be read."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketbox.message import MessageQueue
from rocketbox.spark.checkpoint import (
    INITIAL,
    CheckpointError,
    QueueProgress,
    StreamOffset,
    Witness,
    decode_ends,
    decode_offset,
    encode_ends,
    encode_offset,
    lag,
)
from rocketbox.spark.progress import ranges_between

numbers = st.integers(0, 2**62)
queues = st.builds(
    MessageQueue, st.sampled_from(["t", "u"]), st.sampled_from(["broker-a", "broker-b"]), st.integers(0, 20)
)
progresses = st.builds(
    lambda first, rows, witness, stood: QueueProgress(first, first + rows, witness, stood),
    numbers,
    st.integers(0, 10**9),
    st.none() | st.builds(Witness, numbers, numbers),
    st.none() | numbers,
)
offsets = st.builds(
    lambda queues, group, since, start, tags: StreamOffset(queues, group, since_ms=since, start=start, tags=tags),
    st.dictionaries(queues, progresses, max_size=12),
    st.none() | st.sampled_from(["etl", "lake"]),
    st.none() | numbers,
    st.none() | st.sampled_from(["earliest", "latest", "1769860800000ms"]),
    st.none() | st.sampled_from(["*", "A || B"]),
)
QUEUE = MessageQueue("orders", "broker-a", 0)


@given(offsets, st.randoms())
def test_the_text_of_an_offset_does_not_depend_on_the_order_of_its_queues(
    offset: StreamOffset, chance: random.Random
) -> None:
    items = list(offset.queues.items())
    chance.shuffle(items)
    text = json.dumps(encode_offset(offset))
    assert text == json.dumps(encode_offset(dataclasses.replace(offset, queues=dict(items))))
    assert text == json.dumps(json.loads(text), sort_keys=True)
    assert decode_offset(json.loads(text)) == offset


def test_the_form_is_what_the_documentation_says() -> None:
    offset = StreamOffset({QUEUE: QueueProgress(0, 5, Witness(1_795_000_000_000, 5120))}, "etl")
    assert json.dumps(encode_offset(offset)) == (
        '{"group": "etl", "queues": {"orders": {"broker-a": {"0": '
        '{"first": 0, "log": 5120, "next": 5, "stored": 1795000000000}}}}, "v": 1}'
    )
    behind = StreamOffset({QUEUE: QueueProgress(0, 5, stood=70)})
    assert encode_offset(behind)["queues"]["orders"]["broker-a"]["0"] == {"first": 0, "next": 5, "stood": 70}
    begun = StreamOffset({}, "etl", start="group", tags="A || B")
    assert (
        json.dumps(encode_offset(begun)) == '{"group": "etl", "queues": {}, "start": "group", "tags": "A || B", "v": 1}'
    )
    assert encode_offset(INITIAL) == {"initial": True, "v": 1}
    assert decode_offset({"initial": True, "v": 1}) == INITIAL


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"orders": {"broker-a": {"0": 5}}}, "written by an earlier rocketbox.*startingOffsets=group"),
        ({"v": 2, "queues": {}}, "written by a newer rocketbox: its offsets have form 2.*upgrade rocketbox"),
        ({}, "which are no offsets of the source rocketmq"),
        ({"v": "1"}, "its form v is '1'"),
        ({"v": True, "queues": {}}, "its form v is True"),
        ([1], "it is no JSON object"),
        (None, "it is no JSON object"),
        ({"v": 1}, "'queues'"),
        ({"v": 1, "queues": {"t": 5}}, "no offsets of the source"),
        ({"v": 1, "queues": {"t": {"b": {"x": {"first": 0, "next": 1}}}}}, "invalid literal"),
        ({"v": 1, "queues": {"t": {"b": {"0": {"first": 0}}}}}, "'next'"),
        ({"v": 1, "queues": {"t": {"b": {"0": {"first": 9, "next": 1}}}}}, "first 9 lies behind next 1"),
        ({"v": 1, "queues": {"t": {"b": {"0": {"first": 0, "next": 1, "log": 7}}}}}, "'stored'"),
        ({"v": 1, "queues": {"t": {"b": {"0": {"first": 0, "next": -1}}}}}, "next is -1"),
        ({"v": 1, "queues": {}, "group": 7}, "group 7 is no text"),
        ({"v": 1, "queues": {}, "namespace": 7}, "namespace 7 is no text"),
        ({"v": 1, "queues": {}, "since": "now"}, "since is 'now', no whole number"),
    ],
)
def test_what_is_no_offset_is_refused_with_what_to_do(value: Any, text: str) -> None:
    with pytest.raises(CheckpointError, match=f"(?s){text}.*rocketbox spark reset|{text}"):
        decode_offset(value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["v", "queues", "group", "0", "first", "next"]), inner, max_size=3)
        ),
    )
)
def test_garbage_raises_nothing_else(value: Any) -> None:
    for decode in (decode_offset, decode_ends):
        with contextlib.suppress(CheckpointError):
            decode(value)


def test_lag_is_what_lies_between_two_offsets() -> None:
    other = MessageQueue("orders", "broker-a", 1)
    done = encode_offset(StreamOffset({QUEUE: QueueProgress(0, 5)}))
    assert lag(done, encode_ends({QUEUE: 12, other: 3})) == {QUEUE: 7, other: 0}
    assert decode_ends(encode_offset(INITIAL)) == {}


@given(st.lists(st.dictionaries(queues, st.integers(0, 50), max_size=6), min_size=1, max_size=6), st.integers(0, 5))
def test_batches_read_each_offset_once_whichever_of_them_is_repeated(
    growth: list[dict[MessageQueue, int]], repeated: int
) -> None:
    """Queues appear and grow from batch to batch; one batch is planned again from what came back out of the log."""
    log = [INITIAL]
    for step in growth:
        found = dict(log[-1].queues)
        for queue, rows in step.items():
            begun = found.get(queue) or QueueProgress(7, 7)
            found[queue] = QueueProgress(begun.first, begun.next + rows)
        log.append(StreamOffset(found))
    log = [decode_offset(json.loads(json.dumps(encode_offset(each)))) for each in log]
    batches = [ranges_between(start, end) for start, end in itertools.pairwise(log)]
    number = repeated % len(batches)
    assert ranges_between(log[number], log[number + 1]) == batches[number]
    read = Counter(
        (piece.queue, offset) for batch in batches for piece in batch for offset in range(piece.start, piece.end)
    )
    assert set(read.values()) <= {1}
    assert set(read) == {
        (q, offset) for q, found in log[-1].queues.items() for offset in range(found.first, found.next)
    }
