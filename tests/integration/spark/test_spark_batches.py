"""The call of a listener's function with a batch, by hand: what is kept, not delivered, refused and given up."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from anyio.from_thread import start_blocking_portal
from pyspark.sql import DataFrame

from rocketbox.client import Admin, MQClientInstance
from rocketbox.clock import RealClock
from rocketbox.errors import ConnectError
from rocketbox.message import Message, MessageExt, MessageQueue
from rocketbox.protocol.codes import dlq_topic
from rocketbox.spark.batch import SparkBatch
from rocketbox.spark.batch_log import BatchLog
from rocketbox.spark.batches import BatchRunner, MaskedError
from rocketbox.spark.checkpoint import QueueProgress, StreamOffset, encode_offset
from rocketbox.spark.deliveries import Delivery, write_letters
from rocketbox.spark.lease import Lease, LeaseLostError
from rocketbox.spark.listener_options import SparkListenerOptions
from rocketbox.spark.query_options import OnFailedBatch
from rocketbox.spark.servers import Servers
from rocketbox.spark.signature import read_spark_signature
from rocketbox.storage.file_system import RealStorage
from tests.support.broker.wire import SMALL_FILES
from tests.support.spark.topics import Broker
from tests.support.store.retention import expire_first_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

QUERY = "00000000-0000-0000-0000-000000000001"


def offsets(topic: str, *places: tuple[int, int]) -> StreamOffset:
    """The end of a batch: first and next offset of each queue."""
    queues = {
        MessageQueue(topic, "broker-a", number): QueueProgress(first, following)
        for number, (first, following) in enumerate(places)
    }
    return StreamOffset(queues, group="lake")


@contextmanager
def batches(
    spark: SparkSession,
    broker: Broker,
    topic: str,
    folder: Path,
    function: Callable[..., Any],
    ends: Sequence[StreamOffset] = (),
    *,
    send_letters: Callable[[DataFrame, str, Servers], object] | None = None,
    mask: Callable[[str], str] | None = None,
    **options: Any,
) -> Iterator[BatchRunner]:
    """What calls ``function`` with batches that have these ends."""
    said = SparkListenerOptions(topic=topic, group=topic[-40:], checkpoint=str(folder), **options)
    context = spark.sparkContext
    with ExitStack() as stack:
        portal = stack.enter_context(start_blocking_portal())
        instance = stack.enter_context(portal.wrap_async_context_manager(MQClientInstance(broker.name_server)))
        lease = Lease(instance, said.group, topic, holder="this test")
        assert portal.call(lease.take).held
        stack.callback(portal.call, lease.release)
        delivery = Delivery(
            label="Spark listener f", where="app.py:1", group=said.group, schema=None, as_=said.as_,
            on_invalid=said.on_invalid, clock=RealClock(), send_letters=send_letters,
        )  # fmt: skip
        runner = BatchRunner(
            said, read_spark_signature(function), beans={}, delivery=delivery, admin=Admin(instance=instance),
            clock=RealClock(), succeeded=lambda: None, mask=mask,
        )  # fmt: skip
        log = BatchLog(spark, f"file:{folder}")
        if ends:  # as Spark does it before the first of them
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "metadata").write_text(json.dumps({"id": QUERY}))
        runner.begin(log, log.last_planned(), lease, portal, Servers(broker.name_server))
        for number, end in enumerate(ends):  # as Spark does it before each of them
            (folder / "offsets").mkdir(parents=True, exist_ok=True)
            (folder / "offsets" / str(number)).write_text(f"v1\n{{}}\n{json.dumps(encode_offset(end))}")
        context.setLocalProperty("sql.streaming.queryId", QUERY)
        context.setLocalProperty("streaming.sql.batchId", "0")
        stack.callback(context.setLocalProperty, "sql.streaming.queryId", "")
        stack.callback(context.setLocalProperty, "streaming.sql.batchId", "")
        yield runner


def give_lease_to_another(broker: Broker, topic: str) -> None:
    """As brokers do that are started anew: another driver comes first."""

    async def give(admin: Admin) -> None:
        forgotten = Lease(admin._instance, topic[-40:], topic, holder="this test")
        assert (await forgotten.take()).held
        await forgotten.release()
        assert (await Lease(admin._instance, topic[-40:], topic, holder="another").take()).held

    broker.ask(give)


def make_topic(broker: Broker, topic: str) -> None:
    broker.ask(lambda admin: admin.create_topic(topic, queues=2))


def noting(spark: SparkSession, note: Path) -> DataFrame:
    """Three rows, and a line in a file each time that they are computed."""

    def read(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with note.open("a") as output:
            output.write("computed\n")
        yield from rows

    return spark.range(0, 3, 1, 1).mapInArrow(read, "id bigint")


def times(note: Path) -> int:
    return len(note.read_text().splitlines())


@pytest.mark.parametrize(("persist", "reads"), [(False, 2), (True, 1)])
def test_a_persisted_batch_is_read_once_for_all_actions_of_a_call_and_let_go_behind_it(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path, persist: bool, reads: int
) -> None:
    topic = "".join(letter if letter.isalnum() else "_" for letter in topic)
    make_topic(broker, topic)
    note = tmp_path / "note"
    kept: list[bool] = []

    def handle(frame: DataFrame) -> None:
        assert frame.count() == 3
        assert len(frame.collect()) == 3
        kept.append(frame.storageLevel.useMemory)
        if len(kept) == 2:
            raise ArithmeticError("the sink is full")

    with batches(spark, broker, topic, tmp_path / "checkpoint", handle, persist=persist) as call:
        for number in range(2):
            rows = noting(spark, note)
            with pytest.raises(ArithmeticError) if number else nullcontext():
                call(rows, number)
            assert times(note) == reads * (number + 1)
            assert not rows.storageLevel.useMemory
    assert kept == [persist, persist]


def test_a_batch_in_which_no_queue_goes_on_is_not_delivered(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    make_topic(broker, topic)
    delivered: list[int] = []

    def handle(frame: DataFrame, batch: SparkBatch) -> None:
        delivered.append(batch.id)

    ends = [
        offsets(topic, (5, 5)),  # the first one of a query that begins at the end
        offsets(topic, (5, 7)),
        offsets(topic, (5, 7), (0, 0)),  # a queue more
        offsets(topic, (5, 7), (0, 1)),
    ]
    with batches(spark, broker, topic, tmp_path, handle, ends) as call:
        for number in range(len(ends)):
            call(spark.range(1), number)
            assert call.done == number
    assert delivered == [1, 3]


def test_a_batch_whose_lease_is_lost_before_its_function_begins_does_not_call_it_and_has_not_been_tried(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    make_topic(broker, topic)
    delivered: list[tuple[int, int]] = []

    def handle(frame: DataFrame, batch: SparkBatch) -> None:
        delivered.append((batch.id, batch.attempt))

    ends = [offsets(topic, (0, 1)), offsets(topic, (0, 2))]
    with batches(spark, broker, topic, tmp_path, handle, ends, max_batch_attempts=1) as call:
        call(spark.range(1), 0)
        give_lease_to_another(broker, topic)
        with pytest.raises(LeaseLostError, match="another driver has it"):
            call(spark.range(1), 1)
        assert delivered == [(0, 1)]
        assert (call.done, call.gave_up) == (0, False)
        call.take_back()  # as behind each query
        assert call._log.attempts(call._log.last_planned()) == 0


@pytest.mark.parametrize("java_answers", [True, False])
def test_a_batch_that_was_planned_and_never_begun_has_not_been_tried(
    spark: SparkSession,
    broker: Broker,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    java_answers: bool,
) -> None:
    """Its query was stopped, or has failed, before Spark called the function."""
    make_topic(broker, topic)
    attempts: list[tuple[int, int]] = []

    def handle(frame: DataFrame, batch: SparkBatch) -> None:
        attempts.append((batch.id, batch.attempt))
        if batch.id == 1:
            raise ArithmeticError("the sink is full")

    def is_gone(log: BatchLog, batch: int) -> bool:
        raise ConnectionRefusedError("nobody listens")

    ends = [offsets(topic, (0, 2)), offsets(topic, (0, 5))]
    with batches(spark, broker, topic, tmp_path, handle, ends, max_batch_attempts=2) as call:
        call(spark.range(1), 0)
        (tmp_path / "commits").mkdir()
        (tmp_path / "commits" / "0").write_text("v1\n{}")
        with monkeypatch.context() as patch:
            if not java_answers:
                patch.setattr(BatchLog, "is_planned", is_gone)
            call.take_back()
        log = BatchLog(spark, f"file:{tmp_path}")
        assert log.attempts(log.last_planned()) == (0 if java_answers else 1)  # for another process
        call.begin(log, log.last_planned(), call._lease, call._portal, call._servers)
        with pytest.raises(ArithmeticError):
            call(spark.range(1), 1)
        call.take_back()  # which takes nothing back of a batch that was begun
        assert log.attempts(log.last_planned()) == 1
    assert attempts == [(0, 1), (1, 1)]


def test_a_batch_of_an_unknown_query_is_refused_before_the_function(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    make_topic(broker, topic)

    def handle(frame: DataFrame, batch: SparkBatch) -> None:
        pytest.fail(f"a sink would take it for a batch of query {batch.query_id!r}")

    with batches(spark, broker, topic, tmp_path, handle) as call:
        for unknown in (None, ""):
            spark.sparkContext.setLocalProperty("sql.streaming.queryId", unknown)  # type: ignore[arg-type]
            with pytest.raises(RuntimeError, match="Spark does not say which query the batch belongs to"):
                call(spark.range(1), 0)
    assert call.done == -1


def failing(frame: DataFrame) -> None:
    raise ArithmeticError("the sink is full")


def dead_letters(broker: Broker, topic: str) -> list[MessageExt]:
    async def pull(admin: Admin) -> list[MessageExt]:
        found: list[MessageExt] = []
        for queue in await admin.queues(dlq_topic(topic[-40:])):
            found += (await admin.pull(queue, 0, 64)).messages
        return found

    return broker.ask(pull)


def read(spark: SparkSession, broker: Broker, queue: MessageQueue, start: int, end: int, **options: str) -> DataFrame:
    """The frame of a batch: where it begins and ends is known before it is read."""
    places = [json.dumps({queue.topic: {queue.broker_name: {str(queue.queue_id): offset}}}) for offset in (start, end)]
    given = {"assign": json.dumps({queue.topic: {queue.broker_name: [queue.queue_id]}}), **options}
    return (
        spark.read.format("rocketmq")
        .options(nameServer=broker.name_server, startingOffsets=places[0], endingOffsets=places[1], **given)
        .load()
    )


def masked(text: str) -> str:
    """As the application takes out what its settings hold: here the password is "the sink"."""
    return text.replace("the sink", "******")


def test_spark_is_told_no_secret_of_what_a_function_raises(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    """Its text stands in Spark's log, UI and event log."""
    make_topic(broker, topic)

    def handle(frame: DataFrame) -> None:
        try:
            failing(frame)
        except ArithmeticError as error:
            raise ValueError("no login at desk:the sink@base") from error

    with batches(spark, broker, topic, tmp_path, handle, mask=masked) as call:
        with pytest.raises(MaskedError, match=r"^ValueError: no login at desk:\*\*\*\*\*\*@base$") as raised:
            call(spark.range(1), 0)
        assert "the sink" not in "".join(traceback.format_exception(raised.value))
        assert isinstance(call.failure, ValueError), "what the log and the states of the service tell"


GIVES_UP: dict[str, Any] = {"max_batch_attempts": 1, "on_failed_batch": OnFailedBatch.DEAD_LETTER}


def test_the_dead_letters_of_a_batch_are_whole_messages_whatever_columns_its_function_has(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queue = MessageQueue(topic, "broker-a", 0)
    bodies = [b"%d" % number for number in range(10)]
    broker.send_messages([Message(topic, body, tag="T", properties={"run": "1"}) for body in bodies], queue)
    rows = read(spark, broker, queue, 2, 9, columns="body")
    ends = [offsets(topic, (2, 9))]
    with batches(spark, broker, topic, tmp_path, failing, ends, **GIVES_UP) as call:
        call(rows, 0)
    letters = dead_letters(broker, topic)
    assert sorted(letter.body for letter in letters) == bodies[2:9]
    assert {(letter.tag, letter.properties["run"]) for letter in letters} == {("T", "1")}
    assert {letter.properties["DLQ_REASON"] for letter in letters} == {"ArithmeticError: the sink is full"}
    assert {letter.properties["DEDUP_KEY"].rsplit("/", 3)[0] for letter in letters} == {f"{QUERY}.dead-letters/0"}
    assert f"has failed 1 times (max_batch_attempts): 7 messages of it are in %DLQ%{topic[-40:]}" in caplog.text
    assert "deleted" not in caplog.text


def test_what_retention_has_left_of_a_batch_is_dead_lettered_and_the_rest_is_told(
    spark: SparkSession, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queue, store = MessageQueue(topic, "broker-a", 0), tmp_path / "store"
    small = {**SMALL_FILES, "mapped-file-size-commit-log": 4096}
    with Broker(store, settings=small) as broker:
        ports = broker.ports
        broker.send_messages([Message(topic, b"%d" % number) for number in range(60)], queue)
    expire_first_files(RealStorage(), str(store))
    with Broker(store, **ports, settings=small) as broker:
        first = broker.ask(lambda admin: admin.min_offset(queue))
        assert 0 < first < 30
        ends = [offsets(topic, (0, 30), (0, 0)), offsets(topic, (0, 32), (0, 0))]
        with (
            caplog.at_level(logging.WARNING, "rocketbox"),
            batches(spark, broker, topic, tmp_path / "checkpoint", failing, ends, **GIVES_UP) as call,
        ):
            call(read(spark, broker, queue, 0, 30), 0)
            assert sorted(int(letter.body) for letter in dead_letters(broker, topic)) == list(range(first, 30))
            assert (
                f"{30 - first} messages of it are in %DLQ%{topic[-40:]}; "
                f"{first} of its offsets were deleted meanwhile, or taken away with their queues, and are lost: "
                f"{topic} broker-a/0 0 to {first - 1}"
            ) in caplog.text
            call(read(spark, broker, queue, 30, 32), 1)
            assert len(dead_letters(broker, topic)) == 32 - first
            assert call.done == 1


@pytest.mark.parametrize("tried", [0, 1], ids=["the last attempt", "one after the last"])
def test_a_batch_whose_lease_is_lost_while_it_is_dead_lettered_is_not_committed(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path, tried: int
) -> None:
    queue = MessageQueue(topic, "broker-a", 0)
    broker.send_messages([Message(topic, b"%d" % number) for number in range(3)], queue)

    def send_and_lose(letters: DataFrame, group: str, servers: Servers) -> None:
        write_letters(letters, group, servers)
        give_lease_to_another(broker, topic)

    ends = [offsets(topic, (0, 3))]
    if tried:
        begin = tmp_path / "offsets"
        begin.mkdir()
        (begin / "0").write_text(f"v1\n{{}}\n{json.dumps(encode_offset(ends[0]))}")
    with batches(spark, broker, topic, tmp_path, failing, ends, send_letters=send_and_lose, **GIVES_UP) as call:
        with pytest.raises(LeaseLostError, match="another driver has it"):
            call(read(spark, broker, queue, 0, 3), 0)
        assert call.done == -1
    assert len(dead_letters(broker, topic)) == 3


def test_dead_letters_have_the_functions_error_for_a_reason_also_where_they_are_sent_by_a_later_attempt(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    broker.send_messages([Message(topic, b"%d" % number) for number in range(3)], MessageQueue(topic, "broker-a", 0))
    failures: list[Exception] = [ConnectError("127.0.0.1:1", "refused")]

    def send_later(letters: DataFrame, group: str, servers: Servers) -> None:
        if failures:
            raise failures.pop()
        write_letters(letters, group, servers)

    with batches(
        spark, broker, topic, tmp_path, failing, [offsets(topic, (0, 3))], send_letters=send_later, mask=masked,
        **GIVES_UP,
    ) as call:  # fmt: skip
        rows = read(spark, broker, MessageQueue(topic, "broker-a", 0), 0, 3)
        with pytest.raises(MaskedError, match="cannot connect to"):  # behind what the function raised
            call(rows, 0)
        call.begin(call._log, call._log.last_planned(), call._lease, call._portal, call._servers)
        call(rows, 0)
    assert {letter.properties["DLQ_REASON"] for letter in dead_letters(broker, topic)} == {
        "ArithmeticError: ****** is full"
    }
