"""The options of a write by the data source ``rocketmq``: declared once, read and checked. Pure: nobody is asked.

Their meaning stands here and nowhere else: the reference in the documentation and the hints of errors are made of
``WRITE_OPTIONS``. Which columns of a frame are which parts of a message is in ``outgoing``.
"""

from __future__ import annotations

from collections.abc import Mapping

from rocketbox.client.checks import check_group, check_topic, message_properties
from rocketbox.errors import ClientError
from rocketbox.message import DELAY_LEVEL_SECONDS, Message
from rocketbox.protocol.namespaces import Namespace
from rocketbox.spark.body_formats import WRITE_FORMAT_OPTIONS, body_format_of
from rocketbox.spark.option_values import OptionTable, SourceOption
from rocketbox.spark.servers import KEYS_ARE_NO_OPTIONS, SERVER_OPTIONS, servers_of

__all__ = ["WRITE_OPTIONS", "WriteOptions", "wrong_level"]

SEND_TIMEOUT = 3.0  # seconds; the producer's own
IN_FLIGHT, BYTES_IN_FLIGHT = 1000, 8 * 1024 * 1024
LEVELS = len(DELAY_LEVEL_SECONDS)

WRITE_OPTIONS = (
    *SERVER_OPTIONS,
    SourceOption(
        "topic",
        "The topic of all rows. Needed where the frame has no column `topic`, and refused where it has one.",
        kafka=("topic",),
    ),
    SourceOption("tag", "The tag of all rows, instead of a column `tag`."),
    SourceOption("hashKey", "The hash key of all rows, which picks their queue, instead of a column `hash_key`."),
    SourceOption(
        "delayLevel", "The delay level of all rows, from 1 (1 s) to 18 (2 h), instead of a column `delay_level`."
    ),
    SourceOption(
        "jsonColumns",
        "Columns that become the fields of a JSON body, with commas, such as `number, item`; `*`: all that are no part "
        "of a message.",
    ),
    *WRITE_FORMAT_OPTIONS,
    SourceOption(
        "ignoreColumns",
        "Columns that are left out, with commas. A column that is neither a part of a message nor named is refused.",
    ),
    SourceOption(
        "reservedProperties",
        "What becomes of properties with RocketMQ's own names: `fail` the write, or `drop` them, as a copy of read "
        "messages needs it.",
        "`fail`",
    ),
    SourceOption(
        "deadLettersOf",
        "A consumer group: rows that were read become dead letters of it, with a column `reason`. Instead of `topic`, "
        "`tag`, `hashKey`, `delayLevel`, `jsonColumns` and `bodyFormat`.",
    ),
    SourceOption(
        "writeId",
        "Goes into the messages' property `DEDUP_KEY`: gives a job that runs again the same keys, and tells two writes "
        "of one micro-batch apart.",
        "a batch write: an id of its own",
    ),
    SourceOption(
        "sendTimeout",
        "How long one message is tried, over all its tries, such as `10s`.",
        "`3s`",
        kafka=("kafka.delivery.timeout.ms", "delivery.timeout.ms"),
    ),
    SourceOption(
        "maxInFlight",
        "Rows of a task that no broker has acknowledged yet, at most; as many again are made ready meanwhile.",
        f"`{IN_FLIGHT}`",
    ),
    SourceOption(
        "maxInFlightBytes",
        "The same in bytes of bodies, such as `8MB`, with 256 for what else a message has; one message at least.",
        "`8MB`",
        kafka=("kafka.buffer.memory", "buffer.memory"),
    ),
    SourceOption("producerGroup", "The producer group.", "`spark-writer`", kafka=("kafka.client.id", "client.id")),
)
_ACKNOWLEDGED = "a row is written when its broker has acknowledged it"
_TRIED = "a row is tried again until sendTimeout is over"
_TABLE = OptionTable(
    "a write by the data source rocketmq",
    "Kafka sink",
    WRITE_OPTIONS,
    {
        **KEYS_ARE_NO_OPTIONS,
        "path": "the topic is said by the option topic, or a column topic",
        "includeheaders": "a column properties is always written",
        "kafka.acks": _ACKNOWLEDGED,
        "acks": _ACKNOWLEDGED,
        "kafka.retries": _TRIED,
        "retries": _TRIED,
    },
    sparks_own=frozenset({"checkpointlocation", "queryname", "outputmode"}),
)


class WriteOptions:
    """The options of a write, checked. Raises ValueError naming the option and what would be right."""

    def __init__(self, options: Mapping[str, str]) -> None:
        values = _TABLE.read(options)
        self.servers = servers_of(values)
        self.topic = values.text("topic")
        self.tag = values.text("tag")
        self.hash_key = values.text("hashKey")
        self.delay_level = values.number("delayLevel") or 0
        self.json_columns = values.names("jsonColumns")
        self.body_format = body_format_of(values)
        self.ignore_columns = values.names("ignoreColumns") or ()
        self.drop_reserved = values.word("reservedProperties", ("fail", "drop")) == "drop"
        self.dead_letters_of = values.text("deadLettersOf")
        self.producer_group = values.text("producerGroup") or "spark-writer"
        self.write_id = values.text("writeId")
        timeout = values.duration("sendTimeout")
        self.send_timeout = SEND_TIMEOUT if timeout is None else timeout.total_seconds()
        self.max_in_flight = values.number("maxInFlight") or IN_FLIGHT
        self.max_in_flight_bytes = values.size("maxInFlightBytes") or BYTES_IN_FLIGHT
        if self.dead_letters_of is not None:
            others = ("topic", "tag", "hashKey", "delayLevel", "jsonColumns", "bodyFormat")
            given = [name for name in others if name in values]
            if given:
                raise ValueError(
                    f"option {given[0]} does not go together with deadLettersOf: a dead letter goes to the "
                    "dead-letter topic of the group, as the message that it was"
                )
        self._check_values()

    def _check_values(self) -> None:
        """What would fail each row, before there is one."""
        if (why := wrong_level(self.delay_level)) is not None:
            raise ValueError(f"option delayLevel is {self.delay_level}; {why}")
        namespace = Namespace(self.servers.namespace or "")
        option = "producerGroup"
        try:
            check_group(self.producer_group, "producer", namespace)
            if self.topic is not None:
                option = "topic"
                check_topic(self.topic, namespace)
            if self.dead_letters_of is not None:
                option = "deadLettersOf"
                check_group(self.dead_letters_of, "consumer", namespace)
            topic = self.topic or "the topic of its row"
            option = "tag"
            message_properties(Message(topic, b"", tag=self.tag), "")
            option = "hashKey"
            message_properties(Message(topic, b"", hash_key=self.hash_key), "")
        except ClientError as error:
            raise ValueError(f"option {option}: {error}") from None


def wrong_level(level: int) -> str | None:
    """What is wrong with the delay level of a message; None: nothing.

    Brokers take one that they do not have for their longest, without a word.
    """
    if 0 <= level <= LEVELS:
        return None
    return f"RocketMQ has the levels 1 (1 s) to {LEVELS} (2 h); leave it out for a message that is not delayed"
