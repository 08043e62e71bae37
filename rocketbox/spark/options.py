"""The options of a read by the data source ``rocketmq``: declared once, read and checked. Pure: no client, no Spark.

Their meaning stands here and nowhere else: the reference in the documentation and the hints of errors are made of
``OPTIONS``. Names are those of Spark's Kafka source where both have the same thing. Writes: ``write_options``.
"""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Self

from rocketbox.protocol.tags import parse_subscription
from rocketbox.spark.body_formats import READ_FORMAT_OPTIONS, body_format_of
from rocketbox.spark.columns import choose_columns
from rocketbox.spark.option_values import OptionTable, SourceOption, Use
from rocketbox.spark.selection import Selection, assigned_queues
from rocketbox.spark.servers import KEYS_ARE_NO_OPTIONS, SERVER_OPTIONS, servers_of
from rocketbox.spark.starting import EARLIEST, LATEST, PlaceKind, Places, places_of

__all__ = ["OPTIONS", "ROWS_PER_PARTITION", "SourceOptions", "filter_text"]

ROWS_PER_PARTITION = 20_000
SELECTING = ("topic", "topicPattern", "assign")

OPTIONS = (
    *SERVER_OPTIONS,
    SourceOption(
        "topic",
        "The topic, or several with `,`. One of `topic`, `topicPattern` and `assign` is needed.",
        kafka=("subscribe",),
    ),
    SourceOption(
        "topicPattern",
        "A regular expression for whole names of topics; new topics are found within half a minute. Retry and "
        "dead-letter topics and those of the servers are never meant.",
        kafka=("subscribePattern",),
    ),
    SourceOption("assign", 'Single queues, as JSON: `{"orders": {"broker-a": [0, 1]}}`.', kafka=("assign",)),
    SourceOption("tags", "Which tags, such as `UA || AA`; the broker selects them.", "`*`"),
    SourceOption(
        "group",
        "A consumer group: where `startingOffsets=group` begins, and whose offsets follow with `commitOffsets`.",
        kafka=("kafka.group.id", "groupIdPrefix"),
    ),
    SourceOption(
        "startingOffsets",
        "Where a batch read, or a stream without a checkpoint, begins: `earliest`, `latest`, `group` "
        "(where it stands, else earliest), a time such as `2026-01-31T12:00:00Z`, `1769860800s` or `1769860800000ms` "
        "(the first message stored then or later), or JSON such as "
        '`{"orders": {"broker-a": {"0": 23, "1": -2, "2": "2026-01-31T12:00:00Z"}}}` (-2 beginning, -1 end), which '
        "may leave queues out (those: earliest). A queue that appears later begins at its beginning; with `latest` at "
        "what was stored since the query began; or where the group or the time says.",
        "`group` for a stream with a group, else `earliest`",
        kafka=("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"),
    ),
    SourceOption(
        "endingOffsets",
        "Where a batch read ends, not included: `latest`, `group`, a time, or JSON as above (queues it leaves out: "
        "latest).",
        "`latest`",
        "batch",
        ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
    ),
    SourceOption(
        "maxOffsetsPerTrigger",
        "Rows of one micro-batch at most, shared in proportion to the queues' backlogs. With a filter by tags fewer "
        "come: offsets are counted.",
        use="stream",
        kafka=("maxOffsetsPerTrigger",),
    ),
    SourceOption(
        "maxBytesPerTrigger",
        "Stored bytes of one micro-batch at most, such as `64MB`, reckoned from the next messages of each queue; one "
        "message at least.",
        use="stream",
    ),
    SourceOption(
        "minOffsetsPerTrigger",
        "Rows that a micro-batch waits for, `maxTriggerDelay` at most; without meaning for the trigger available-now.",
        use="stream",
        kafka=("minOffsetsPerTrigger",),
    ),
    SourceOption("maxTriggerDelay", "How long it waits for them.", "`15m`", "stream", ("maxTriggerDelay",)),
    SourceOption(
        "commitOffsets",
        "`true`: the offsets of `group` on the brokers follow the batches that are done, never backwards, so that "
        "tools show the lag. What counts is Spark's checkpoint.",
        "`false`",
        "stream",
    ),
    SourceOption(
        "missingTopic",
        "For a topic that does not exist: `wait` until it does (with the trigger available-now for a minute; then the "
        "query fails), or `fail` at the start. A batch read always fails.",
        "`wait`",
        "stream",
    ),
    SourceOption(
        "failOnDataLoss",
        "`true`: offsets that are gone before they were read fail the read; `false`: it goes on behind them, and the "
        "log says how many there were. The same holds for a stream whose topic was given fewer queues "
        "(`readQueueNums`), while their broker is there and they hold unread messages: `false` leaves them out until "
        "the topic has them again. A checkpoint of another store is refused in both cases.",
        "`true`",
        kafka=("failOnDataLoss",),
    ),
    SourceOption(
        "logAbsences",
        "Whether Spark's processes log, on their stderr, that servers do not answer or a topic does not exist. A "
        "listener says `false`: the application's log and health tell it.",
        "`true`",
    ),
    SourceOption(
        "rowsPerPartition",
        "About how many rows one task reads: small queues share a task, large ones are split.",
        "`20000`",
        kafka=("maxRecordsPerPartition",),
    ),
    SourceOption("maxPartitions", "Tasks of one batch at most.", "as many as the rows need"),
    SourceOption(
        "pushFilters",
        "`true`: filters on some columns are done by the source where `spark.sql.python.filterPushdown.enabled` is "
        "true, for a frame that is used once: Spark would give the filters of one use to the others, and rows would be "
        "lost and doubled. See below.",
        "`false`",
        "batch",
    ),
    SourceOption(
        "columns",
        "Which columns, in which order, such as `body, queue_offset`. What is not named is not decoded: without "
        "`msg_id`, `tag`, `keys` and `properties` no property is looked at, without `body` nothing is unpacked.",
        "all",
    ),
    SourceOption(
        "includeProperties",
        "`false`: all columns but `properties`.",
        "`true`",
        kafka=("includeHeaders",),
    ),
    *READ_FORMAT_OPTIONS,
)
_ASKED = "a broker that does not answer is asked for a minute"
_TABLE = OptionTable(
    "the data source rocketmq",
    "Kafka source",
    OPTIONS,
    {
        **KEYS_ARE_NO_OPTIONS,
        "path": "what is read is said by the option topic, topicPattern or assign",
        "metadatapath": "the first offsets are in Spark's checkpoint now",
        "minpartitions": "tasks are made by rows, and rowsPerPartition says how many each reads",
        "polltimeoutms": _ASKED,
        "fetchoffset.numretries": _ASKED,
        "fetchoffset.retryintervalms": _ASKED,
    },
)


def filter_text(tags: str) -> str:
    """A filter by tags in one form, however it was written. Raises InvalidMessageError."""
    return " || ".join(sorted(parse_subscription("", tags).tags_set)) or "*"


class SourceOptions:
    """The options of a read, checked. Raises ValueError naming the option and what would be right."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = values = _TABLE.read(options)
        self.servers = servers_of(values)
        self.selection = self._selection()
        self.tags = values.text("tags") or "*"
        self.group = values.text("group")
        self.starting_offsets = self._places("startingOffsets", ("earliest", "latest", "group"), Places(EARLIEST))
        self.ending_offsets = self._places("endingOffsets", ("latest", "group"), Places(LATEST)) or Places(LATEST)
        self.max_offsets_per_trigger = values.number("maxOffsetsPerTrigger")
        self.max_bytes_per_trigger = values.size("maxBytesPerTrigger")
        self.min_offsets_per_trigger = values.number("minOffsetsPerTrigger")
        self.max_trigger_delay = values.duration("maxTriggerDelay") or timedelta(minutes=15)
        self.commit_offsets = values.switch("commitOffsets", False)
        self.waits_for_topic = values.word("missingTopic", ("wait", "fail")) != "fail"
        self.fail_on_data_loss = values.switch("failOnDataLoss", True)
        self.absence_level = logging.WARNING if values.switch("logAbsences", True) else logging.DEBUG
        """At which absences of servers are logged."""
        self.rows_per_partition = values.number("rowsPerPartition") or ROWS_PER_PARTITION
        self.max_partitions = values.number("maxPartitions")
        self.push_filters = values.switch("pushFilters", False)
        said = values.switch("includeProperties", True) if "includeProperties" in values else None
        self.columns = choose_columns(values.text("columns"), said)
        self.body_format = body_format_of(values)
        if self.group is None:
            if self.commit_offsets:
                raise ValueError("option commitOffsets is true; then the option group must say whose offsets they are")
            for name, places in (("startingOffsets", self.starting_offsets), ("endingOffsets", self.ending_offsets)):
                if places is not None and places.has(PlaceKind.GROUP):
                    raise ValueError(f"option {name} is 'group'; then the option group must say which one")
        least, most = self.min_offsets_per_trigger, self.max_offsets_per_trigger
        if least is not None and most is not None and least > most:
            raise ValueError(f"option minOffsetsPerTrigger is {least}, and maxOffsetsPerTrigger allows {most} only")
        if "maxTriggerDelay" in values and least is None:
            raise ValueError("option maxTriggerDelay is how long minOffsetsPerTrigger is waited for: give that as well")

    def check_batch(self) -> None:
        """Raises ValueError for an option that only means something in a streaming read."""
        self._refuse("stream", "streaming reads (spark.readStream)")

    def check_stream(self) -> None:
        """Raises ValueError for an option that only means something in a batch read."""
        self._refuse("batch", "batch reads (spark.read)")

    @property
    def name_server(self) -> str:
        """Of the servers that are asked."""
        return self.servers.name_server

    @property
    def batch_start(self) -> Places:
        """Where a batch read begins."""
        return self.starting_offsets or Places(EARLIEST)

    @property
    def stream_start(self) -> Places:
        """Where a streaming read begins: as said, else at the group's offsets, else at the beginning."""
        if self.starting_offsets is not None:
            return self.starting_offsets
        return places_of("startingOffsets", "group" if self.group else "earliest", ("earliest", "group"), EARLIEST)

    @property
    def tags_text(self) -> str:
        """The filter in its one form."""
        return filter_text(self.tags)

    def with_tags(self, tags: str) -> Self:
        """The same with another filter by tags."""
        changed = copy.copy(self)
        changed.tags = tags
        return changed

    def _refuse(self, use: Use, where: str) -> None:
        for name in self._values:
            if _TABLE.find(name).use == use:
                raise ValueError(f"option {name} is for {where} only; leave it out")

    def _selection(self) -> Selection:
        values = self._values
        given = {name: text for name in SELECTING if (text := values.text(name)) is not None}
        if len(given) != 1:
            raise ValueError(
                "the data source rocketmq needs the option topic (or topicPattern, or assign)"
                if not given
                else f"options {' and '.join(given)} are given, and one of them alone says what is read"
            )
        if "assign" in given:
            return Selection(assigned=assigned_queues(given["assign"]))
        if "topicPattern" in given:
            try:
                return Selection(pattern=re.compile(given["topicPattern"]))
            except re.error as error:
                raise ValueError(
                    f"option topicPattern is {given['topicPattern']!r}, which is no regular expression: {error}"
                ) from None
        return Selection(topics=tuple(dict.fromkeys(values.names("topic") or ())))

    def _places(self, name: str, words: tuple[str, ...], others: Places) -> Places | None:
        if (text := self._values.text(name)) is None:
            return None
        places = places_of(name, text, words, others.others)
        for queue in places.named:
            if not self.selection.has(queue):
                raise ValueError(f"option {name} names {queue}, and {self.selection} is read")
        return places
