"""The options of the data source, and what is said of wrong ones."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rocketbox.message import MessageQueue
from rocketbox.spark.options import OPTIONS, SourceOptions
from rocketbox.spark.starting import EARLIEST, GROUP, LATEST, Place, PlaceKind, Places
from rocketbox.spark.write_options import WRITE_OPTIONS, WriteOptions

NEEDED = {"nameServer": "127.0.0.1:9876", "topic": "orders"}


def test_options_have_defaults_and_names_in_any_case() -> None:
    options = SourceOptions({"NAMESERVER": "a:1;b:2", "Topic": "orders", "rowsperpartition": "7", "group": "etl"})
    assert (options.name_server, str(options.selection), options.tags, options.group) == (
        "a:1;b:2", "topic orders", "*", "etl",
    )  # fmt: skip
    assert (options.rows_per_partition, options.max_partitions, options.max_offsets_per_trigger) == (7, None, None)
    assert not options.commit_offsets, "the bare source has to be asked"
    assert options.fail_on_data_loss
    assert options.stream_start == Places(GROUP)
    assert options.batch_start == Places(EARLIEST)
    assert SourceOptions(NEEDED).stream_start == Places(EARLIEST)


def test_what_is_read_is_a_list_a_pattern_or_single_queues() -> None:
    def selected(**given: str) -> SourceOptions:
        return SourceOptions({"nameServer": "a:1", **given})

    queues = [MessageQueue(topic, "broker-a", number) for topic in ("orders", "payments") for number in (0, 1)]
    listed = selected(topic="orders, payments").selection
    assert [listed.has(queue) for queue in queues] == [True] * 4
    assert str(listed) == "topics orders, payments"
    pattern = selected(topicPattern="ord.*").selection
    assert [pattern.has(queue) for queue in queues] == [True, True, False, False]
    for internal in ("%RETRY%orders", "%DLQ%orders", "SCHEDULE_TOPIC_XXXX", "rmq_sys_x", "TBW102"):
        assert not selected(topicPattern=".*").selection.has(MessageQueue(internal, "broker-a", 0))
    assert selected(topic="%DLQ%orders").selection.has(MessageQueue("%DLQ%orders", "broker-a", 0)), "by name it is read"
    assigned = selected(assign='{"orders": {"broker-a": [1]}, "payments": {"broker-a": [0]}}').selection
    assert [assigned.has(queue) for queue in queues] == [False, True, True, False]


def test_a_place_is_a_word_a_time_or_an_offset_of_a_queue() -> None:
    def start(text: str) -> Places:
        return SourceOptions({**NEEDED, "group": "g", "startingOffsets": text}).batch_start

    assert start("Earliest") == Places(EARLIEST)
    assert start("group") == Places(GROUP)
    noon = Places(Place(PlaceKind.TIME, 1_769_860_800_000))
    for text in ("2026-01-31T12:00:00Z", "2026-01-31 13:00:00+01:00", "1769860800s", "1769860800000ms"):
        assert start(text) == noon, text
    queue = MessageQueue("orders", "b", 0)
    named = '{"orders": {"b": {"0": 23, "1": -2, "2": -1, "3": "1769860800s"}}}'
    assert [start(named).of(MessageQueue("orders", "b", number)) for number in range(5)] == [
        Place(PlaceKind.OFFSET, 23), EARLIEST, LATEST, noon.others, EARLIEST,
    ]  # fmt: skip
    ends = SourceOptions({**NEEDED, "endingOffsets": '{"orders": {"b": {"0": 5}}}'}).ending_offsets
    assert ends.of(MessageQueue("orders", "b", 1)) == LATEST
    assert start("latest").of_new(queue, None) == EARLIEST, "all of it came after the query began"
    since = Place(PlaceKind.TIME, 1_769_860_800_000 - 60_000)
    assert start("latest").of_new(queue, 1_769_860_800_000) == since, "but for clocks that differ"
    assert start("earliest").of_new(queue, 1_769_860_800_000) == EARLIEST


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topic": " "}, "option topic is blank; leave it out, or say what it is"),
        ({"group": ""}, "option group is blank; leave it out, or say what it is"),
        ({"path": "orders"}, "what is read is said by the option topic, topicPattern or assign"),
        ({"topic": "a,,b"}, "option topic is 'a,,b'; it must be a name, or several separated by ','"),
        ({"topicPattern": "a.*"}, "options topic and topicPattern are given, and one of them alone"),
        ({"subscribe": "orders"}, "what Spark's Kafka source calls so is topic here"),
        ({"kafka.bootstrap.servers": "a:1"}, "what Spark's Kafka source calls so is nameServer here"),
        ({"startingTimestamp": "1"}, "what Spark's Kafka source calls so is startingOffsets here"),
        ({"minPartitions": "8"}, "leave it out: tasks are made by rows, and rowsPerPartition says how many each reads"),
        ({"includeHeaders": "true"}, "source calls so is includeProperties here"),
        ({"metadataPath": "/x"}, "leave it out: the first offsets are in Spark's checkpoint now"),
        ({"nameServer": "localhost"}, "option nameServer is 'localhost'; it must be host:port"),
        ({"nameServer": "a:1;desk:hunter2@b:2"}, "option nameServer has a user or password before a host"),
        ({"nameServer": "http://a/x?token=hunter2"}, "option nameServer is 'http://a/x'; it must be host:port"),
        ({"failondataLos": "true"}, "has no option 'failondataLos'; did you mean failOnDataLoss?"),
        ({"xyz": "1"}, "has no option 'xyz'; there are nameServer, namespace,"),
        (
            {"option.topic": "orders"},
            "a topic is no table of a catalog, so there is no CREATE TABLE of it and no INSERT",
        ),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger is '0'; it must be a whole number above 0"),
        ({"rowsPerPartition": "many"}, "rowsPerPartition is 'many'; it must be a whole number above 0"),
        ({"commitOffsets": "yes"}, "commitOffsets is 'yes'; it must be true or false"),
        ({"commitOffsets": "true"}, "the option group must say whose offsets"),
        ({"startingOffsets": "group"}, "the option group must say which one"),
        ({"startingOffsets": "first"}, "startingOffsets must be earliest, latest, group, a time such as"),
        ({"startingOffsets": "[1]"}, "startingOffsets must be earliest, latest, group, a time such as"),
        ({"startingOffsets": '{"orders": {"b": {"x": 1}}}'}, "startingOffsets must be earliest, latest, group"),
        ({"startingOffsets": "2026-01-31T12:00:00"}, "has no time zone, and it is read on several machines"),
        ({"startingOffsets": "2026-13-31T12:00:00Z"}, "month must be in 1..12"),
        ({"startingOffsets": "1769860800"}, "is none of them"),
        ({"endingOffsets": "earliest"}, "endingOffsets must be latest, group, a time such as"),
        ({"endingOffsets": "group"}, "option endingOffsets is 'group'; then the option group must say which one"),
        ({"startingOffsets": '{"orders": {"b": {"0": -3}}}'}, "offset -3: -2 is the beginning, -1 the end"),
        ({"startingOffsets": '{"orders": {"b": {"0": true}}}'}, "True is no offset"),
        ({"startingOffsets": '{"other": {"b": {"0": 3}}}'}, "and topic orders is read"),
        ({"maxBytesPerTrigger": "much"}, "option maxBytesPerTrigger is 'much': not a size such as"),
        ({"maxBytesPerTrigger": "0"}, "option maxBytesPerTrigger is '0': it must be more than nothing"),
        ({"maxTriggerDelay": "5"}, "option maxTriggerDelay is '5': 5 has no unit"),
        ({"maxTriggerDelay": "5m"}, "minOffsetsPerTrigger is waited for: give that as well"),
        (
            {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
            "minOffsetsPerTrigger is 5, and maxOffsetsPerTrigger allows 4 only",
        ),
        ({"missingTopic": "ignore"}, "option missingTopic is 'ignore'; it must be wait or fail"),
    ],
)
def test_a_wrong_option_is_named_with_what_would_be_right(options: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        SourceOptions({**NEEDED, **options})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "needs the option topic (or topicPattern, or assign)"),
        ({"topicPattern": "a("}, "topicPattern is 'a(', which is no regular expression"),
        ({"assign": "[1]"}, 'assign must be JSON such as {"topic": {"broker-a": [0, 1]}}'),
        ({"assign": '{"t": {"b": [-1]}}'}, "-1 is no number of a queue"),
        ({"assign": "{}"}, "option assign names no queue"),
    ],
)
def test_what_is_read_must_be_said(options: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        SourceOptions({"nameServer": "127.0.0.1:9876", **options})


@pytest.mark.parametrize(
    "name",
    [
        "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "commitOffsets", "missingTopic",
        "endingOffsets",
    ],
)  # fmt: skip
def test_options_of_one_kind_of_read_are_refused_in_the_other(name: str) -> None:
    value = {"commitOffsets": "false", "missingTopic": "wait", "endingOffsets": "latest"}.get(name, "1")
    options = SourceOptions({**NEEDED, name: value})
    refused, taken, where = (options.check_batch, options.check_stream, "streaming")
    if name == "endingOffsets":
        refused, taken, where = (taken, refused, "batch")
    with pytest.raises(ValueError, match=f"option {name} is for {where} reads"):
        refused()
    taken()


def test_each_option_is_told_of_in_the_reference() -> None:
    assert {option.name for option in OPTIONS} >= {"nameServer", "topic", "startingOffsets", "failOnDataLoss"}
    assert {option.name for option in WRITE_OPTIONS} >= {"nameServer", "topic", "jsonColumns", "maxInFlight"}
    assert all(option.meaning.endswith(".") for option in (*OPTIONS, *WRITE_OPTIONS))


def test_options_of_a_write_have_defaults_and_names_in_any_case() -> None:
    options = WriteOptions({"NAMESERVER": "a:1;b:2", "Topic": " orders ", "jsoncolumns": "number, item"})
    assert (options.servers.name_server, options.topic, options.json_columns) == (
        "a:1;b:2",
        "orders",
        ("number", "item"),
    )
    assert (options.send_timeout, options.max_in_flight, options.max_in_flight_bytes) == (3.0, 1000, 8 * 1024 * 1024)
    assert (options.producer_group, options.delay_level, options.drop_reserved) == ("spark-writer", 0, False)
    sized = WriteOptions({"nameServer": "a:1", "maxInFlightBytes": "64KB", "sendTimeout": "1m"})
    assert (sized.max_in_flight_bytes, sized.send_timeout) == (65536, 60.0)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"nameServer": ""}, "option nameServer is blank; leave it out, or say what it is"),
        ({"nameServer": "localhost"}, "option nameServer is 'localhost'; it must be host:port"),
        ({"tags": "A"}, "a write by the data source rocketmq has no option 'tags'; did you mean tag?"),
        ({"xyz": "A"}, "has no option 'xyz'; there are nameServer, namespace,"),
        ({"kafka.bootstrap.servers": "a:1"}, "what Spark's Kafka sink calls so is nameServer here"),
        ({"kafka.delivery.timeout.ms": "1"}, "what Spark's Kafka sink calls so is sendTimeout here"),
        ({"kafka.acks": "all"}, "leave it out: a row is written when its broker has acknowledged it"),
        ({"path": "orders"}, "leave it out: the topic is said by the option topic"),
        ({"option.topic": "orders"}, "there is no CREATE TABLE of it and no INSERT"),
        ({"delayLevel": "0"}, "option delayLevel is '0'; it must be a whole number above 0"),
        (
            {"delayLevel": "99"},
            "option delayLevel is 99; RocketMQ has the levels 1 (1 s) to 18 (2 h); leave it out for a message that is",
        ),
        ({"topic": " "}, "option topic is blank; leave it out, or say what it is"),
        ({"tag": ""}, "option tag is blank; leave it out, or say what it is"),
        ({"hashKey": "\t"}, "option hashKey is blank; leave it out, or say what it is"),
        ({"producerGroup": " "}, "option producerGroup is blank; leave it out, or say what it is"),
        ({"deadLettersOf": " "}, "option deadLettersOf is blank; leave it out, or say what it is"),
        ({"delayLevel": " "}, "option delayLevel is blank; leave it out, or say what it is"),
        ({"topic": "of orders"}, "option topic: topic 'of orders' holds a character that is not allowed; it may hold"),
        ({"topic": "t" * 128}, "has 128 characters, at most 127 are allowed"),
        ({"topic": "t" * 120, "namespace": "ten-letter"}, "with namespace ten-letter before it, at most 127 are"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, "option topic: topic 'SCHEDULE_TOPIC_XXXX' belongs to RocketMQ itself"),
        ({"tag": "a|b"}, "option tag: tag 'a|b' holds '|', which separates tags in a selector expression"),
        ({"hashKey": "a\x01b"}, "option hashKey: the tag, a key, the hash_key or a property of the message to 'the"),
        ({"producerGroup": "of us"}, "option producerGroup: producer group 'of us' holds a character that is not"),
        ({"deadLettersOf": "of us"}, "option deadLettersOf: consumer group 'of us' holds a character that is not"),
        ({"maxInFlight": "many"}, "option maxInFlight is 'many'; it must be a whole number above 0"),
        ({"maxInFlightBytes": "much"}, "option maxInFlightBytes is 'much': not a size such as"),
        ({"sendTimeout": "soon"}, "option sendTimeout is 'soon'"),
        ({"sendTimeout": "3"}, "option sendTimeout is '3': 3 has no unit"),
        ({"sendTimeout": "0s"}, "option sendTimeout is '0s': it must be more than nothing"),
        ({"jsonColumns": "a,,b"}, "option jsonColumns is 'a,,b'; it must be a name, or several separated by ','"),
        ({"namespace": "a%b"}, "option namespace is 'a%b': it holds %"),
        (
            {"namespaceV2": "\u00e4"},
            "option namespaceV2 is '\u00e4': it holds a character that cannot stand in a header",
        ),
        ({"namespace": "a", "namespaceV2": "a"}, "options namespace and namespaceV2 are both given; keep one of them"),
        ({"reservedProperties": "keep"}, "option reservedProperties is 'keep'; it must be fail or drop"),
        ({"deadLettersOf": "g", "tag": "A"}, "option tag does not go together with deadLettersOf"),
    ],
)
def test_a_wrong_option_of_a_write_is_named_with_what_would_be_right(options: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        WriteOptions({"nameServer": "127.0.0.1:9876", **options})


def test_what_spark_says_to_a_stream_is_no_option_of_a_write() -> None:
    assert WriteOptions({"nameServer": "h:1", "checkpointLocation": "/x", "queryName": ""}).topic is None
    with pytest.raises(ValueError, match="needs the option nameServer"):
        WriteOptions({"topic": "t"})


@pytest.mark.parametrize("options", [SourceOptions, WriteOptions])
def test_a_table_of_a_catalog_is_refused_with_what_there_is_instead(options: Any) -> None:
    """As it comes by INSERT and by a name that saveAsTable() has left: without any option."""
    with pytest.raises(ValueError, match=r"needs the option nameServer; a topic is no table .* and no INSERT"):
        options({})
