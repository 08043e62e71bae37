"""Messages of a frame to the dead-letter topic of a group, with the reason in their properties.

They are what the group's handlers would have sent back: body and properties as they came, their id kept, and where they
came from in ``DLQ_ORIGIN_TOPIC`` and ``DLQ_ORIGIN_MESSAGE_ID``. A message whose body could not be read, or is larger
unpacked than a message may be, is fetched from its queue once more, and goes as its broker has it; one that has been
deleted meanwhile, or whose record is damaged, is lost, which is told. Sent at least once, as every write: a batch that
comes again sends its dead letters again, with the same DEDUP_KEY.

Source: Apache RocketMQ 5.x ``AbstractSendMessageProcessor.consumerSendMsgBack`` (what a dead letter has).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import types as t

from rocketbox.client import Admin, Producer
from rocketbox.client.needed_topics import until_in_route
from rocketbox.clock import Clock
from rocketbox.errors import ClientError, NoRouteError, RemoteProtocolError, RocketBoxError
from rocketbox.message import MAX_PROPERTIES_BYTES, Message, MessageQueue, Property, encode_properties
from rocketbox.protocol.codes import MessageSysFlag, dlq_topic
from rocketbox.protocol.stored_message import INNER_BATCH, decode_messages
from rocketbox.spark.group_topics import make_group_topic
from rocketbox.spark.offsets import in_words
from rocketbox.spark.outgoing import DEDUP_KEY, RowError, digest_of
from rocketbox.spark.worker_client import gather

__all__ = ["DLQ_REASON", "DeadLetter", "DeadLetterPlan", "send_dead_lot"]

_log = logging.getLogger(__name__)

DLQ_REASON = "DLQ_REASON"
REASON = "reason"
"""The column with the reason."""
NEEDED = ("body", "topic", "broker_name", "queue_id", "queue_offset", REASON)
TAKEN = (*NEEDED, "properties", "msg_id")
MOST_REASON = 1000  # characters
OF_ITS_OLD_PLACE = frozenset(
    "MIN_OFFSET MAX_OFFSET DELAY TRAN_MSG REAL_TOPIC REAL_QID PGROUP CLUSTER POP_CK POP_CK_OFFSET 1ST_POP_TIME "
    "TIMER_DELAY_SEC TIMER_DELAY_MS TIMER_DELIVER_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_OUT_MS "
    "TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL __CRC32#".split()
)
"""Properties that a broker would take for an order to itself, or that are no longer true."""
AT_ONCE = 16  # dead letters of a task in flight
MOST_NAMED = 5  # messages that are lost and told one by one
ROUTE_TIMEOUT = 5.0  # seconds until a topic that was made is known to the name server
CONTROL = re.compile(r"[\x00-\x1f\x7f]+")


@dataclass(frozen=True)
class DeadLetter:
    """A message as it will stand in the dead-letter topic; its ``body`` is None when it is to be fetched."""

    topic: str
    body: bytes | None
    properties: Mapping[str, str]
    queue: MessageQueue
    queue_offset: int


class DeadLetterPlan:
    """How rows of ``schema``, those of a read and a column ``reason``, become dead letters. Raises ValueError."""

    def __init__(self, schema: t.StructType, group: str) -> None:
        if missing := [name for name in NEEDED if name not in schema.names]:
            raise ValueError(
                f"a frame of dead letters lacks the column {missing[0]}; it needs those of the message that was read "
                f"({', '.join(NEEDED[:-1])}, and properties and msg_id where it has them) and {REASON}, a string"
            )
        self._columns = [index for index, name in enumerate(schema.names) if name in TAKEN]
        self._topic = dlq_topic(group)

    def messages(self, batch: pa.RecordBatch, key_of: Callable[[int, str], str]) -> Iterator[DeadLetter | RowError]:
        """One for each row; ``key_of(row, digest)`` is the row's DEDUP_KEY."""
        for row, values in enumerate(batch.select(self._columns).to_pylist()):
            queue = MessageQueue(values["topic"], values["broker_name"], values["queue_id"])
            properties = {
                name: value
                for name, value in values.get("properties") or ()
                if value is not None and name not in OF_ITS_OLD_PLACE
            }
            origin = values.get("msg_id") or properties.get(Property.UNIQ_KEY)
            if origin:
                properties.setdefault(Property.UNIQ_KEY, origin)
                properties["DLQ_ORIGIN_MESSAGE_ID"] = origin
            properties["DLQ_ORIGIN_TOPIC"] = queue.topic
            properties[Property.RETRY_TOPIC] = queue.topic
            at = f"{queue.broker_name}/{queue.queue_id}/{values['queue_offset']}"
            extra = {
                DEDUP_KEY: key_of(row, digest_of(Message(queue.topic, values["body"] or b"", at))),
                DLQ_REASON: CONTROL.sub(" ", values[REASON] or "")[:MOST_REASON].strip() or "no reason was given",
            }
            if len(encode_properties({**properties, **extra})) <= MAX_PROPERTIES_BYTES - len("WAIT=true"):
                properties |= extra
            yield DeadLetter(self._topic, values["body"] or None, properties, queue, values["queue_offset"])


Fetch = Callable[[Admin, DeadLetter], Awaitable[tuple[bytes, int] | None]]


async def send_dead_lot(
    producer: Producer, lot: Sequence[DeadLetter], timeout: float, *, fetch: Fetch | None = None
) -> Mapping[int, Exception]:
    """Send dead letters, to a topic that is made when it is not there. The errors, by the number in the lot.

    ``fetch`` gets a body that a letter lacks, as :func:`fetch_body` does when none is given.
    """
    fetch = fetch or fetch_body
    admin = Admin(instance=producer.instance)
    await ensure_topic(admin, lot, producer.instance.clock)
    failed: dict[int, Exception] = {}
    lost: list[DeadLetter] = []
    waiting = iter(enumerate(lot))

    async def work(_: int) -> None:
        for index, letter in waiting:
            try:
                body = letter.body
                if body is not None and len(body) <= producer.options.max_message_size:
                    found: tuple[bytes, int] | None = (body, 0)
                else:
                    found = await fetch(admin, letter)
                if found is None:
                    lost.append(letter)
                    continue
                body, packing = found
                await producer.send_prepared(
                    letter.topic, body, dict(letter.properties), sys_flag=packing, timeout=timeout
                )
            except RocketBoxError as error:
                failed[index] = error

    await gather(work, range(min(AT_ONCE, len(lot))))
    if lost:
        lost.sort(key=lambda letter: (letter.queue, letter.queue_offset))
        places = [f"{in_words(letter.queue)} {letter.queue_offset}" for letter in lost[:MOST_NAMED]]
        _log.warning(
            "%d of %d messages for %s could not be read, and are deleted or damaged: they are lost "
            "(%s%s)", len(lost), len(lot), lot[0].topic, ", ".join(places), ", ..." if len(lost) > MOST_NAMED else "",
        )  # fmt: skip
    return failed


async def ensure_topic(admin: Admin, lot: Sequence[DeadLetter], clock: Clock) -> None:
    """Brokers make the topic when they dead-letter themselves; until then nothing can be sent to it."""
    topic, brokers = lot[0].topic, {letter.queue.broker_name for letter in lot}
    try:
        await admin.queues(topic)
    except NoRouteError:
        await make_group_topic(admin, topic, brokers)
        await until_in_route(admin, topic, brokers, clock, ROUTE_TIMEOUT)


async def fetch_body(admin: Admin, letter: DeadLetter) -> tuple[bytes, int] | None:
    """The body as the broker has it, and the flags that say how it is compressed; None: it is deleted, or damaged.

    That of a message within an inner batch has none: what is compressed there is the batch.
    """
    queue, offset = letter.queue, letter.queue_offset
    pulled = await admin.pull_records(queue, offset, 1)
    try:
        messages = decode_messages(pulled.records, queue.broker_name, decompress=False)
        if any(message.sys_flag & INNER_BATCH == INNER_BATCH for message in messages):
            messages = decode_messages(pulled.records, queue.broker_name, below=pulled.next_begin_offset)
    except RemoteProtocolError:
        return None
    for message in messages:
        if message.queue_offset == offset:
            packing = message.sys_flag & (MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_MASK)
            return message.body, int(packing)
    if pulled.min_offset > offset:
        if await admin.min_offset(queue) <= offset:  # as its master says: a replica may begin later
            raise ClientError(
                f"{in_words(queue)} has message {offset}, and the machine that was asked has none before "
                f"{pulled.min_offset}"
            )
    elif pulled.next_begin_offset <= offset:
        raise ClientError(f"{in_words(queue)} ends at {pulled.max_offset}, and its message {offset} was read before")
    return None
