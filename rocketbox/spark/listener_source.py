"""What a Spark listener tells the data source of its options, and what that would refuse, known before it starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rocketbox.spark.options import ROWS_PER_PARTITION, SourceOptions

__all__ = ["rows_of_a_task", "source_options", "wrong_source_options"]

FEWEST_ROWS = 2_000  # of a task: what starts and ends one takes as long as reading some hundred rows

_SAID_BY: Mapping[str, str] = {
    "nameserver": "the cluster's name-server",
    "topic": "topic",
    "topicpattern": "topic",
    "assign": "topic",
    "group": "consumer_group",
    "tags": "selector_expression",
    "startingoffsets": "starting_offsets",
    "maxoffsetspertrigger": "max_messages",
    "failondataloss": "fail_on_data_loss",
    "rowsperpartition": "rows_per_partition",
    "missingtopic": "the cluster's consumer.missing-topic",
}
"""Options of the source, in small letters, that a listener says by options of its own."""
_ALWAYS = {"commitoffsets": "its group's offsets always follow"}


def rows_of_a_task(max_messages: int | None, parallelism: int) -> int:
    """How many rows a task reads where nobody says it: a full batch gives each core of the cluster some."""
    if max_messages is None:
        return ROWS_PER_PARTITION
    return min(ROWS_PER_PARTITION, max(FEWEST_ROWS, -(-max_messages // parallelism)))


def source_options(values: Mapping[str, Any]) -> dict[str, str]:
    """What the data source is told of these options, beside topic, group, tags and where to begin."""
    told = {"failOnDataLoss": str(values["fail_on_data_loss"]).lower()}
    if values["rows_per_partition"] is not None:
        told["rowsPerPartition"] = str(values["rows_per_partition"])
    return {**told, **(values["options"] or {})}


def wrong_source_options(values: Mapping[str, Any], topic: str, group: str, tags: str) -> Iterator[tuple[str, str]]:
    """What the data source would refuse of it: which option of the listener, and why."""
    given = values["options"] or {}
    for name in given:
        if (said_by := _SAID_BY.get(name.lower())) is not None:
            yield "options", f"a listener says {name} by {said_by}"
        elif (why := _ALWAYS.get(name.lower())) is not None:
            yield "options", f"a listener has no {name}: {why}"
    known = {
        "nameServer": "name-server:9876",
        "topic": topic,
        "group": group,
        "tags": tags,
        "commitOffsets": "true",
        "maxOffsetsPerTrigger": str(values["max_messages"]),
    }
    plain = {name: text for name, text in given.items() if name.lower() not in {**_SAID_BY, **_ALWAYS}}
    for option, told in (("starting_offsets", {"startingOffsets": values["starting_offsets"]}), ("options", plain)):
        try:
            SourceOptions({**known, **told}).check_stream()
        except ValueError as error:
            yield option, str(error)
