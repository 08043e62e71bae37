"""The options of the data source, and what is said of wrong ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rocketbox.spark.options import SourceOptions

NEEDED = {"nameServer": "127.0.0.1:9876", "topic": "orders"}


def test_options_have_defaults_and_names_in_any_case() -> None:
    options = SourceOptions({"NAMESERVER": "a:1;b:2", "Topic": "orders", "rowsperpartition": "7", "group": "etl"})
    assert (options.name_server, options.topic, options.tags, options.group) == ("a:1;b:2", "orders", "*", "etl")
    assert (options.rows_per_partition, options.max_offsets_per_trigger) == (7, None)
    assert options.commit_offsets
    assert options.fail_on_data_loss
    assert options.stream_start == "group"
    plain = SourceOptions(NEEDED)
    assert not plain.commit_offsets
    assert plain.stream_start == "earliest"
    assert plain.max_partitions >= 2


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topic": " "}, "needs the option topic"),
        ({"nameServer": "localhost"}, "option nameServer is 'localhost'; it must be host:port"),
        ({"failondataLos": "true"}, "has no option 'failondataLos'; did you mean failOnDataLoss?"),
        ({"xyz": "1"}, "has no option 'xyz'; there are nameServer, topic,"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger is '0'; it must be a whole number above 0"),
        ({"rowsPerPartition": "many"}, "rowsPerPartition is 'many'; it must be a whole number above 0"),
        ({"commitOffsets": "yes"}, "commitOffsets is 'yes'; it must be true or false"),
        ({"commitOffsets": "true"}, "the option group must say whose offsets"),
        ({"startingOffsets": "group"}, "the option group must say which one"),
        ({"startingOffsets": "first"}, "startingOffsets must be earliest, latest, group or JSON"),
        ({"endingOffsets": "earliest"}, "endingOffsets must be latest or JSON"),
        ({"startingOffsets": '{"orders": {"b": {"0": -3}}}'}, "startingOffsets has offset -3"),
        ({"startingOffsets": '{"other": {"b": {"0": 3}}}'}, "names topic 'other', and option topic is 'orders'"),
    ],
)
def test_a_wrong_option_is_named_with_what_would_be_right(options: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        SourceOptions({**NEEDED, **options})


@pytest.mark.parametrize("name", ["maxOffsetsPerTrigger", "metadataPath"])
def test_options_of_streams_are_refused_in_batch_reads(name: str) -> None:
    with pytest.raises(ValueError, match=f"option {name} is for streaming reads"):
        SourceOptions({**NEEDED, name: "1"}).check_batch()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"endingOffsets": "latest"}, "option endingOffsets is for batch reads"),
        ({"startingOffsets": "latest"}, "needs the option metadataPath"),
        ({"startingOffsets": '{"orders": {"b": {"0": -1}}}'}, "needs the option metadataPath"),
        ({"startingOffsets": "group", "group": "g", "commitOffsets": "false"}, "needs the option metadataPath"),
    ],
)
def test_a_stream_that_could_skip_messages_is_refused(options: dict[str, str], text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=text):
        SourceOptions({**NEEDED, **options}).check_stream()
    if "metadataPath" in text:
        SourceOptions({**NEEDED, **options, "metadataPath": str(tmp_path)}).check_stream()
