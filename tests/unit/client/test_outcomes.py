"""What becomes of each message of a batch, and which delay level a wait is."""

from __future__ import annotations

from datetime import timedelta

import pytest

from rocketbox.client.outcomes import Failures, delay_level_for, failures_of_error, failures_of_result
from rocketbox.errors import BatchFailed, HandlerError, Reject, RetryLater
from rocketbox.message import MessageExt


def messages(count: int) -> list[MessageExt]:
    host = b"\x7f\0\0\1"
    return [
        MessageExt((0, 0, 0, 0, 0, offset, 0, 0, 0, host, 0, 0, host, 0, 0, 0, 1), b"x", "T", b"")
        for offset in range(count)
    ]


def failed(failures: Failures) -> list[int]:
    return [message.queue_offset for message, _ in failures]


@pytest.mark.parametrize("signal", [Reject("no"), RetryLater("5s"), BatchFailed(1)])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_signal_that_is_alone_in_the_group_of_a_task_group_is_the_outcome(signal: Exception, depth: int) -> None:
    error = signal
    for _ in range(depth):
        error = ExceptionGroup("unhandled errors in a TaskGroup", [error])
    failures = failures_of_error(messages(3), error)
    assert all(reason is signal for _, reason in failures)
    assert failed(failures) == ([1, 2] if isinstance(signal, BatchFailed) else [0, 1, 2])


@pytest.mark.parametrize("others", [[ValueError("no disk")], [Reject("again")]])
def test_a_signal_beside_other_errors_is_an_error_like_any(others: list[Exception]) -> None:
    error = ExceptionGroup("unhandled errors in a TaskGroup", [Reject("no"), *others])
    assert all(reason is error for _, reason in failures_of_error(messages(2), error))


def test_a_signal_in_a_group_that_is_returned_as_the_outcome_of_a_message_is_its_outcome() -> None:
    """``asyncio.gather(..., return_exceptions=True)`` returns such groups, and batches return its results."""
    group = ExceptionGroup("unhandled errors in a TaskGroup", [signal := Reject("no")])
    assert [reason for _, reason in failures_of_result(messages(2), [None, group])] == [signal]


def test_a_group_of_one_other_error_stays_as_it_is() -> None:
    error = ExceptionGroup("unhandled errors in a TaskGroup", [ValueError("no disk")])
    assert [reason for _, reason in failures_of_error(messages(1), error)] == [error]


def test_an_error_brings_the_whole_batch_back() -> None:
    error = ValueError("no")
    failures = failures_of_error(messages(3), error)
    assert failed(failures) == [0, 1, 2]
    assert all(reason is error for _, reason in failures)


@pytest.mark.parametrize(("index", "back"), [(0, [0, 1, 2]), (1, [1, 2]), (2, [2])])
def test_batch_failed_brings_back_from_its_index_on(index: int, back: list[int]) -> None:
    assert failed(failures_of_error(messages(3), BatchFailed(index))) == back


def test_batch_failed_past_the_end_brings_all_back() -> None:
    assert failed(failures_of_error(messages(3), BatchFailed(3))) == [0, 1, 2]


def test_none_is_all_consumed() -> None:
    assert failures_of_result(messages(3), None) == []
    assert failures_of_result(messages(2), [None, None]) == []


def test_each_message_has_its_own_outcome() -> None:
    reject, later = Reject("bad"), RetryLater(1)
    failures = failures_of_result(messages(4), [None, reject, None, later])
    assert failed(failures) == [1, 3]
    assert [reason for _, reason in failures] == [reject, later]


@pytest.mark.parametrize("result", [True, "abc", [None], [None, None, None, None], [None, 1, None], object()])
def test_what_is_no_outcome_brings_all_back_and_says_so(result: object) -> None:
    failures = failures_of_result(messages(3), result)
    assert failed(failures) == [0, 1, 2]
    assert all(isinstance(reason, HandlerError) and "3 outcomes" in str(reason) for _, reason in failures)


@pytest.mark.parametrize(
    ("delay", "level"),
    [
        (timedelta(0), 1),
        (timedelta(seconds=1), 1),
        (timedelta(milliseconds=1001), 2),
        (timedelta(seconds=30), 4),
        (timedelta(minutes=11), 15),
        (timedelta(hours=2), 18),
        (timedelta(hours=2, milliseconds=1), 18),
    ],
)
def test_a_delay_is_the_first_level_that_is_not_shorter(delay: timedelta, level: int) -> None:
    assert delay_level_for(delay) == level


class Unwritable:
    def __repr__(self) -> str:
        raise RuntimeError("its session is closed")


def test_what_is_no_outcome_and_cannot_be_written_out_brings_all_back_as_well() -> None:
    failures = failures_of_result(messages(1), Unwritable())
    assert failed(failures) == [0]
    assert "Unwritable" in str(failures[0][1])
    assert "RuntimeError" in str(failures[0][1])
