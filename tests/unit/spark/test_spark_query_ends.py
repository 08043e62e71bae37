"""What the end of a query means, and what health shows of the states of a listener."""

from __future__ import annotations

import asyncio
from concurrent.futures import CancelledError

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import (
    AnalysisException,
    IllegalArgumentException,
    PySparkException,
    PythonException,
    StreamingQueryException,
)

from rocketbox.errors import ConfigurationError, Finding
from rocketbox.listeners import ContainerStatus
from rocketbox.message import MessageQueue
from rocketbox.spark.checkpoint import CheckpointError
from rocketbox.spark.query import in_words, is_of_a_stop, is_permanent, is_the_sources
from rocketbox.spark.query_progress import lag_of
from rocketbox.spark.session import SessionLostError
from rocketbox.spark.states import Situation, SparkListenerState

pytestmark = pytest.mark.spark


CAUSE = (
    "\n\nThe above exception was the direct cause of the following exception:\n\nTraceback (most recent call last):\n"
    '  File "python_streaming_source_runner.py", line 21, in main\n    offset = ask()\n'
)


def of_a_source(raised: str) -> StreamingQueryException:
    text = (
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PYTHON_STREAMING_DATA_SOURCE_RUNTIME_"
        "ERROR] Failed when Python streaming data source perform latestOffset: Traceback (most recent call last):\n"
        '  File "python_streaming_source_runner.py", line 12, in main\n'
        f"    offset = reader.latestOffset(start)\n{raised}\n\n SQLSTATE: 38000 SQLSTATE: XXKST"
    )
    return StreamingQueryException(text)


@pytest.mark.parametrize(
    "error",
    [
        AnalysisException("[PATH_NOT_FOUND] no path"),
        IllegalArgumentException("Expected scheme-specific part at index 5: hdfs:"),
        ConfigurationError(Finding("wrong", None)),
        CheckpointError("of another cluster"),
        SessionLostError("submit it again"),
        of_a_source("ValueError: option tags is wrong"),
        of_a_source("rocketbox.spark.checkpoint.CheckpointError: the checkpoint is of another store"),
        of_a_source("rocketbox.spark.loss.DataLossError: orders a/0: offsets 5 to 7 are gone"),
        of_a_source("rocketbox.spark.selection.MissingTopicError: topic orders does not exist; create it"),
        of_a_source(f"KeyError: 'v'{CAUSE}rocketbox.spark.checkpoint.CheckpointError: the checkpoint holds no offsets"),
        StreamingQueryException("Failed to read log file file:/ck/commits/0. Incomplete log file"),
    ],
    ids=str,
)
def test_what_no_restart_mends_is_known(error: Exception) -> None:
    assert is_permanent(error)


@pytest.mark.parametrize(
    "error",
    [
        of_a_source("rocketbox.errors.ConnectError: nobody listens at 127.0.0.1:9876"),
        of_a_source("OSError: too many open files"),
        of_a_source(
            "rocketbox.spark.selection.MissingTopicError: no queue of it has a route"
            f"{CAUSE}rocketbox.spark.ends.SilenceError: nothing of topic orders has answered for 180 s"
        ),
        IllegalArgumentException("Cannot start query with name g.t as a query is already active"),
        IllegalArgumentException("java.net.UnknownHostException: namenode-0.hdfs.svc"),
        StreamingQueryException("[STREAM_FAILED] Query [id = 1] terminated with exception: namenode-0.hdfs.svc"),
        ConnectionRefusedError("refused"),
        RuntimeError("whatever"),
    ],
    ids=str,
)
def test_what_may_pass_is_tried_again(error: Exception) -> None:
    assert not is_permanent(error)


def of_an_action(raised: str) -> PythonException:
    """What a function's action raises when a task of its has failed."""
    return PythonException(
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
        f'  File "reading.py", line 9, in read\n    read()\n{raised}\n\n SQLSTATE: 39000'
    )


def test_what_the_source_gives_up_for_good_is_permanent_also_where_a_function_meets_it() -> None:
    for given_up in (
        of_an_action("rocketbox.spark.loss.DataLossError: orders a/0: offsets 5 to 7 are gone"),
        of_an_action("rocketbox.spark.taken_away.QueuesTakenError: unread messages were taken away: orders a/0 (3)"),
    ):
        assert is_the_sources(given_up)
        assert is_permanent(given_up)
    for of_the_users in (
        of_an_action("ValueError: 7 is no month"),
        of_an_action("rocketbox.errors.ConnectError: nobody listens at 127.0.0.1:9876"),
        ValueError("7 is no month"),
        AnalysisException("[PATH_NOT_FOUND] no path"),
    ):
        assert not is_the_sources(of_the_users)


def raised_from(cause: BaseException, error: Exception) -> Exception:
    error.__cause__ = cause
    return error


def test_what_comes_of_a_stop_is_no_error_of_a_functions() -> None:
    interrupted = PySparkException("java.lang.InterruptedException")
    cancelled = PySparkException("Job 3 cancelled part of cancelled job group 7")
    stops = (interrupted, cancelled, CancelledError(), asyncio.CancelledError())
    for error in (*stops, *(raised_from(each, ValueError("the sink is full")) for each in stops)):
        assert is_of_a_stop(error), error
    for own in (
        ValueError("InterruptedException"),
        OSError("no space left on device"),
        PySparkException("[DIVIDE_BY_ZERO] Division by zero."),
        raised_from(OSError("no space left on device"), ValueError("the sink is full")),
    ):
        assert not is_of_a_stop(own), own


def test_an_error_is_told_in_one_line_by_what_was_raised_first() -> None:
    error = of_a_source("rocketbox.errors.ConnectError: nobody listens at 127.0.0.1:9876")
    assert in_words(error) == "rocketbox.errors.ConnectError: nobody listens at 127.0.0.1:9876"
    assert in_words(SessionLostError("submit it\nagain")) == "submit it"
    finding = Finding("schema is none", "lake.py:7", "write it as DDL")
    assert in_words(ConfigurationError(finding)) == "schema is none (lake.py:7): write it as DDL"
    two = ConfigurationError([finding, Finding("there is no disk")])
    assert in_words(two) == "schema is none (lake.py:7): write it as DDL; there is no disk"
    assert in_words(ArithmeticError("the sink is full")) == "ArithmeticError: the sink is full"
    assert len(in_words(ArithmeticError("x" * 5000))) < 600
    told = f"rocketbox.spark.checkpoint.CheckpointError: {'queues differ; ' * 50}begin with another checkpoint"
    assert in_words(PySparkException(f"Traceback:\n{told}\n")) == told, "what to do stands at its end"


@pytest.mark.parametrize(
    ("state", "trouble", "status", "ready", "reason"),
    [
        ("STARTING", None, ContainerStatus.STARTING, False, "starting"),
        ("STARTING", "waits for topic t", ContainerStatus.STARTING, False, "waits for topic t"),
        ("RUNNING", None, ContainerStatus.RUNNING, True, None),
        ("RUNNING", "a broker is away", ContainerStatus.RUNNING, False, "a broker is away"),
        ("STANDING_BY", "a broker is away", ContainerStatus.STANDING_BY, True, None),
        ("FINISHED", "a broker is away", ContainerStatus.FINISHED, True, None),
        ("FAILED", None, ContainerStatus.FAILED, False, "failed"),
        ("UNAVAILABLE", None, ContainerStatus.FAILED, False, "no Java"),
        ("STOPPED", None, ContainerStatus.STOPPED, False, "stopped"),
    ],
)
def test_states_are_ready_or_say_why_not(
    state: str, trouble: str | None, status: ContainerStatus, ready: bool, reason: str | None
) -> None:
    assert Situation(SparkListenerState[state]).health(trouble, 0.0) == (status, ready, reason)


def test_a_query_that_restarts_says_why_and_when() -> None:
    situation = Situation(SparkListenerState.RESTARTING, "its query has ended: it broke", next_start=107.0)
    assert situation.health(None, 100.0) == (
        ContainerStatus.RESTARTING,
        False,
        "its query has ended: it broke; it starts again in 7 s",
    )


def test_the_lag_is_what_lies_between_the_ends_and_what_was_read() -> None:
    ends = {MessageQueue("T", "a", 0): 9, MessageQueue("T", "a", 1): 4, MessageQueue("T", "b", 0): 2}
    read = {MessageQueue("T", "a", 0): 5, MessageQueue("T", "a", 1): 6}
    assert lag_of(ends, read) == {"a/0": 4, "a/1": 0, "b/0": 2}
