"""The streaming query of a listener: how it is made and stopped, and what its end means.

Everything here blocks, and asks the Java process; where that is gone, py4j raises what ``GONE`` names.

Source: Apache Spark 4.3.0 ``StreamingQuery``, ``StreamExecution.stop``; py4j 0.10.9 ``PythonClient``.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped] # it has no types
from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from rocketbox.errors import ConfigurationError, Finding
from rocketbox.safe_repr import safe_str
from rocketbox.spark.checkpoint import CheckpointError
from rocketbox.spark.listener_options import SparkListenerOptions
from rocketbox.spark.paths import checkpoint_location
from rocketbox.spark.servers import Servers
from rocketbox.spark.session import SessionLostError, is_alive, log_no_query_errors

__all__ = [
    "GONE",
    "end_idle_callbacks",
    "in_words",
    "is_active",
    "is_of_a_stop",
    "is_of_reading",
    "is_permanent",
    "is_the_sources",
    "start_query",
    "stop_query",
]

GONE = (Py4JError, OSError)
"""What is raised when the Java process does not answer any more."""

PERMANENT = (ConfigurationError, CheckpointError, SessionLostError, AnalysisException, IllegalArgumentException)
_BY_JAVA = (IllegalArgumentException, Py4JJavaError)
LONGEST_LINE, LONGEST_SENTENCE = 500, 3000  # characters of an error; ours say at their end what to do
STOP_TIMEOUT = "spark.sql.streaming.stopTimeout"
SHORTEST_STOP = 0.5  # seconds; Spark takes 0 for ever

# What a source raises in a process of its own comes as the text of its traceback, behind what that was raised from.
_RAISED = re.compile(r"^(?!java\.|org\.apache\.)(?:\w+\.)*(\w+(?:Error|Exception)): .*$", re.MULTILINE)
_PERMANENT_IN_SOURCE = frozenset(
    {"ValueError", "CheckpointError", "DataLossError", "QueuesTakenError", "MissingTopicError"}
)
_DAMAGED = "Failed to read log file"  # of a checkpoint
_GIVEN_UP_IN_A_TASK = re.compile(
    r"^rocketbox\.(?:\w+\.)*(?:CheckpointError|DataLossError|QueuesTakenError): ", re.MULTILINE
)
_READING = re.compile(r'^\s*File "[^"]*rocketbox/spark/reading\.py"', re.MULTILINE)
_PERMANENT_IN_JAVA = (
    "java.lang.IllegalArgumentException",
    "java.lang.ClassNotFoundException",
    "org.apache.hadoop.fs.UnsupportedFileSystemException",
)
# By which Hadoop says that the name of a machine is not known, now: DNS may be away for a moment, at a start above all
# (``SecurityUtil.buildTokenService``, for a name node, within an IllegalArgumentException).
_UNKNOWN_NOW = "java.net.UnknownHostException"
# What actions of a function meet when Spark stops its query, whose thread it interrupts and whose jobs it cancels
# (StreamExecution.interruptAndAwaitExecutionThreadTermination), or its session.
_STOPPED = re.compile(
    r"Interrupted(?:IO)?Exception|ClosedByInterruptException|cancelled job group|JOB_CANCELLED|"
    r"SparkContext was shut down|stopped SparkContext|SparkContext has been shutdown"
)
_CANCELLED = frozenset({"CancelledError", "Cancelled"})  # of futures, of asyncio, of trio: a coroutine's
_STILL_ENDING = "already active"  # the last run of this query has not ended yet


def start_query(
    session: SparkSession,
    options: SparkListenerOptions,
    *,
    servers: Servers,
    starting_offsets: str,
    rows_of_a_task: int,
    on_batch: Callable[[DataFrame, int], None],
) -> StreamingQuery:
    """Start the listener's query; ``on_batch(rows, id)`` is called with each micro-batch, on a thread of py4j's."""
    reader = (
        session.readStream.format("rocketmq")
        .options(**servers.told())
        .option("topic", options.topic)
        .option("group", options.group)
        .option("tags", options.selector_expression)
        .option("startingOffsets", starting_offsets)
        .option("rowsPerPartition", rows_of_a_task)
        .option("logAbsences", "false")  # the listener looks for itself (``topic_watch``)
        .options(**options.source_options)
    )
    if options.max_messages is not None:
        reader = reader.option("maxOffsetsPerTrigger", options.max_messages)
    writer = (
        reader.load()
        .writeStream.queryName(options.query_name)
        .option("checkpointLocation", checkpoint_location(options.checkpoint))
        .foreachBatch(on_batch)
    )
    if isinstance(options.trigger, timedelta):
        writer = writer.trigger(processingTime=f"{round(options.trigger.total_seconds() * 1000)} milliseconds")
    else:
        writer = writer.trigger(availableNow=True)
    return writer.start()


def stop_query(session: SparkSession, query: StreamingQuery, timeout: float) -> None:
    """Stop a query, without pages of Java in the log. Raises when it has not ended after ``timeout`` seconds.

    That is so while its function neither ends nor asks Spark for anything.
    """
    with _stops_of(session).one_more(session, timeout):
        query.stop()


class _Stops:
    """Queries of one session that are being stopped. Meanwhile it has settings of ours, and then its own again.

    It may be one of the user's, with queries of theirs. But without a timeout Spark waits for ever for a function.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._number = 0
        self._give_back = ExitStack()

    @contextmanager
    def one_more(self, session: SparkSession, timeout: float) -> Iterator[None]:
        with self._lock:
            if self._number == 0:
                before = session.conf.getAll.get(STOP_TIMEOUT)
                restore = partial(session.conf.unset, STOP_TIMEOUT)
                if before is not None:
                    restore = partial(session.conf.set, STOP_TIMEOUT, before)
                self._give_back.callback(restore)
                self._give_back.callback(log_no_query_errors(session))
            session.conf.set(STOP_TIMEOUT, f"{round(max(timeout, SHORTEST_STOP) * 1000)}ms")
            self._number += 1
        try:
            yield
        finally:
            with self._lock:
                self._number -= 1
                if self._number == 0:
                    with suppress(*GONE):
                        self._give_back.close()


_of_sessions: weakref.WeakKeyDictionary[SparkSession, _Stops] = weakref.WeakKeyDictionary()
_of_sessions_lock = threading.Lock()


def _stops_of(session: SparkSession) -> _Stops:
    with _of_sessions_lock:
        return _of_sessions.setdefault(session, _Stops())


def is_active(session: SparkSession, query: StreamingQuery) -> bool:
    """Whether a query runs: not where its Java process is gone. Raises what py4j raises."""
    try:
        return bool(query.isActive)
    except GONE:
        if is_alive(session):
            raise
        return False


def end_idle_callbacks(session: SparkSession) -> None:
    """Close the connections over which Java has called and calls nothing now; without a word when it is gone.

    py4j keeps that of a thread for ever, with a thread and a socket in this process, also when Java's own thread has
    ended: each query has one. A thread that lives, as that of another query, makes a new one for its next call.
    """
    gateway: Any = session.sparkContext._gateway
    with suppress(*GONE):
        gateway.java_gateway_server.getCallbackClient().periodicCleanup()


def is_permanent(error: BaseException) -> bool:
    """Whether no restart mends what has ended a query, or kept it from starting."""
    text = safe_str(error)
    if _STILL_ENDING in text or (isinstance(error, _BY_JAVA) and _UNKNOWN_NOW in text):
        return False
    if isinstance(error, PERMANENT):
        return True
    if isinstance(error, Py4JJavaError):
        return any(name in text for name in _PERMANENT_IN_JAVA)
    raised = list(_RAISED.finditer(text))
    return _DAMAGED in text or (bool(raised) and raised[-1][1] in _PERMANENT_IN_SOURCE)


def is_the_sources(error: BaseException) -> bool:
    """Whether it is what our source gives up for good in a task, also where it is raised by an action of a function.

    A function's own errors are not judged: whoever wrote it knows what passes.
    """
    return isinstance(error, PySparkException) and _GIVEN_UP_IN_A_TASK.search(safe_str(error)) is not None


def is_of_reading(error: BaseException) -> bool:
    """Whether a batch's rows could not be read this time: its function is not to blame, whichever action has tried.

    Not what the source has given up for good.
    """
    chain = list(_chain(error))
    return any(_READING.search(safe_str(each)) for each in chain) and not any(map(is_the_sources, chain))


def is_of_a_stop(error: BaseException) -> bool:
    """Whether an error in a function's call comes of its query, its session or its coroutine being stopped.

    That is what Spark's actions raise then, also where the function has raised another error from it.
    """
    return any(
        type(each).__name__ in _CANCELLED
        or (isinstance(each, (Py4JError, PySparkException)) and _STOPPED.search(safe_str(each)) is not None)
        for each in _chain(error)
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and those that it was raised from or beside."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def in_words(error: BaseException) -> str:
    """An error in one line; of a source's traceback that what it raised."""
    if isinstance(error, ConfigurationError):
        return "; ".join(map(_finding_in_words, error.findings))
    text = safe_str(error).strip()
    if type(error).__module__.startswith("rocketbox."):  # its text is a sentence
        return text.partition("\n")[0]
    if isinstance(error, Py4JJavaError):  # which call it was, and then what that raised
        text = text.partition("\n")[2].removeprefix(": ") or text
        return text.partition("\n")[0]
    raised = list(_RAISED.finditer(text))
    line = raised[-1][0] if raised else f"{type(error).__name__}: {text.partition(chr(10))[0]}"
    longest = LONGEST_SENTENCE if line.startswith("rocketbox.") else LONGEST_LINE
    return line if len(line) <= longest else f"{line[:longest]}..."


def _finding_in_words(finding: Finding) -> str:
    what = finding.what if finding.where is None else f"{finding.what} ({finding.where})"
    return what if finding.fix is None else f"{what}: {finding.fix}"
