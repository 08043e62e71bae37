"""What a Spark listener tells the data source of its options, and what that would refuse, known before it starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rocketbox.spark.columns import ERROR
from rocketbox.spark.options import ROWS_PER_PARTITION, SourceOptions
from rocketbox.spark.query_options import OnFailedBatch, OnInvalidBody

__all__ = ["rows_of_a_task", "source_options", "wrong_source_options"]

FEWEST_ROWS = 2_000  # of a task: what starts and ends one takes as long as reading some hundred rows

_SAID_BY: Mapping[str, str] = {
    "nameserver": "the cluster's name-server",
    "namespace": "namespace",
    "namespacev2": "namespace_v2",
    **dict.fromkeys(
        ("tlsenable", "tlscafile", "tlscertfile", "tlskeyfile", "tlsservername", "tlsverify"), "the cluster's tls.*"
    ),
    "credentialsfile": "its cluster's or group's credentials-file",
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


_PLACE = ("topic", "broker_name", "queue_id", "queue_offset")
_LETTER = ("body", *_PLACE, "properties")
_NEEDED_FOR: Mapping[OnInvalidBody, tuple[str, ...]] = {
    OnInvalidBody.SKIP: (ERROR,),
    OnInvalidBody.FAIL: (ERROR, *_PLACE),
    OnInvalidBody.DEAD_LETTER: (ERROR, *_LETTER),
}
"""Columns of the source without which invalid messages would pass unseen, or could not be named or dead-lettered."""


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


def wrong_source_options(
    values: Mapping[str, Any], topic: str, group: str, tags: str, *, has_schema: bool = False
) -> Iterator[tuple[str, str]]:
    """What the data source would refuse of it, or the listener could not work with: which option, and why."""
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
            source = SourceOptions({**known, **told})
            source.check_stream()
        except ValueError as error:
            yield option, str(error)
            continue
        if told is plain:
            yield from ((option, why) for why in _lacking(values, source.columns, has_schema))
    if values["on_failed_batch"] is OnFailedBatch.DEAD_LETTER and values["max_batch_attempts"] is None:
        yield (
            "on_failed_batch",
            "it is for a batch that has used up max_batch_attempts, and nobody says how many; give both",
        )


def _lacking(values: Mapping[str, Any], columns: Sequence[str], has_schema: bool) -> Iterator[str]:
    needed: dict[str, tuple[str, ...]] = {"a schema": ("body",)} if has_schema else {}
    if (on_invalid := values["on_invalid"]) in _NEEDED_FOR:
        needed[f"on_invalid {on_invalid.value}"] = _NEEDED_FOR[on_invalid]
    elif has_schema:
        needed["a schema"] = ("body", ERROR)
    elif "body" in columns:  # a message that has none of it would neither be counted nor told
        needed["body"] = (ERROR,)
    for what, names in needed.items():
        if missing := [name for name in names if name not in columns]:
            yield f"{what} needs {', '.join(missing)}, which columns and includeProperties leave out"
