"""A micro-batch as Spark gives it: whether its function is called with it, what is counted, and what becomes of it.

Spark calls on a thread of py4j's, and commits the batch when that call returns; what is raised ends the query without
a commit. So a batch that must not be committed (the application stops, the lease is lost) is refused by raising.

The text of what is raised stands in Spark's UI and event log, and in the properties of dead letters, where the masks of
this process's log do not reach: secrets of the settings are taken out of it before.

How the function itself is called is ``batch_call``'s.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from anyio.from_thread import BlockingPortal
from pyspark.sql import DataFrame

from rocketbox.client import Admin
from rocketbox.clock import Clock
from rocketbox.frames import awaited_frames, outwards, place_of_frame, users_frame
from rocketbox.spark.batch_call import BatchCall
from rocketbox.spark.batch_log import BatchLog, PlannedBatch
from rocketbox.spark.checkpoint import INITIAL, decode_offset
from rocketbox.spark.deliveries import Delivery
from rocketbox.spark.given_up import frame_of, remains_of
from rocketbox.spark.lease import Lease, LeaseLostError
from rocketbox.spark.listener_options import SparkListenerOptions
from rocketbox.spark.offsets import QueueRange
from rocketbox.spark.offsets import in_words as in_words_of
from rocketbox.spark.progress import ranges_between
from rocketbox.spark.query import in_words, is_of_a_stop, is_of_reading
from rocketbox.spark.query_options import OnFailedBatch
from rocketbox.spark.servers import Servers
from rocketbox.spark.signature import SparkSignature

__all__ = ["BatchFailedTooOftenError", "BatchRunner", "MaskedError", "RefusedError"]

_log = logging.getLogger(__name__)


class RefusedError(Exception):
    """The application stops: the batch is not begun, and so not committed."""


class BatchFailedTooOftenError(Exception):
    """A batch has used up its attempts, the last of which ended with its process."""


class MaskedError(Exception):
    """What a function has raised, as Spark may be told of it: with a secret in its text taken out."""


class BatchRunner:
    """Calls one function with batches; ``beans`` give its other arguments, ``delivery`` its rows.

    ``succeeded`` is called behind each batch that is done. ``mask`` takes secrets out of text that leaves the process.
    """

    def __init__(
        self,
        options: SparkListenerOptions,
        signature: SparkSignature,
        *,
        beans: Mapping[str, Callable[[], Any]],
        delivery: Delivery,
        admin: Admin,
        clock: Clock,
        succeeded: Callable[[], None],
        mask: Callable[[str], str] | None = None,
    ) -> None:
        self.failure: BaseException | None = None
        """What ended the query that runs, as it was raised: Spark hands on its text only."""
        self.gave_up = False
        """Whether that was the last attempt that the batch had."""
        self.done = -1
        """The id of the last batch of this query that the function has done."""
        self.last = -1
        """The id of the last batch that is done, by whichever query and process."""
        self.begun = -1
        """The id of the last batch that Spark has given to this query's function, or that was refused; -1: none yet."""
        self.attempt = (-1, 0)  # batch, which attempt it is
        self.idle = threading.Event()
        self.idle.set()
        self._options = options
        self._function = BatchCall(options, signature, beans=beans, delivery=delivery)
        self._delivery = delivery
        self._admin = admin
        self._clock = clock
        self._succeeded = succeeded
        self._mask = mask
        self._ranges: list[QueueRange] | None = None  # what the batch reads, where the checkpoint says so
        self._refusing = self._interrupted = self._cancelled = False
        self._cut_short: tuple[int, int] | None = None
        self._not_tried: tuple[int, int] | None = None  # a batch, and its attempts without one that is taken back
        self._failed: tuple[int, Exception] | None = None  # what the function raised last in a batch that is given up
        self._thread: int | None = None

    def begin(
        self, log: BatchLog, planned: PlannedBatch | None, lease: Lease, portal: BlockingPortal, servers: Servers
    ) -> None:
        """A query that asks ``servers`` is about to start; ``planned`` is the last batch of its checkpoint.

        Blocks: it looks into that.
        """
        self.failure, self.gave_up, self.done, self.begun, self._interrupted = None, False, -1, -1, False
        self.last = -1 if planned is None else planned.id if planned.done else planned.id - 1
        self._log, self._lease, self._portal, self._servers = log, lease, portal, servers
        self._pending = -1 if planned is None or planned.done else planned.id
        self._tried = log.attempts(planned)
        if self._not_tried is not None and self._not_tried[0] == self._pending:  # perhaps it could not be written down
            self._tried = min(self._tried, self._not_tried[1])
        self._last_end = (-1, None) if planned is None else (planned.id, planned.end)

    def refuse(self) -> None:
        """Begin no further batch."""
        self._refusing = True

    def interrupt(self) -> None:
        """The query is about to be stopped, and will begin again."""
        self._interrupted = True

    def cancel(self) -> bool:
        """Await no function from now on; whether one is awaited, which is about to be cancelled.

        Whatever that ends with is no attempt.
        """
        self._cancelled = self._function.stop_awaiting()
        return self._cancelled

    def take_back(self) -> None:
        """Count an attempt for none where a stop has cut it short, or its rows could not be read: see ``_is_excused``.

        So where the function has done the batch, and Spark has not written that down (its disk is full), and where the
        query has ended between the plan of a batch and the call of its function.

        Not on the thread that called the function: Spark interrupts that one when it stops the query.
        """
        cut, self._cut_short = self._cut_short, None
        if cut is None and (cut := self._uncommitted() or self._not_begun()) is None:
            return
        batch, attempt = cut
        self._not_tried = batch, attempt - 1
        try:
            self._log.note(batch, attempt - 1)
        except Exception as error:
            _log.warning(
                "an attempt of batch %d of Spark listener %s was cut short, and counts once this process has ended: %s",
                batch, self._options.group, in_words(error),
            )  # fmt: skip

    def _uncommitted(self) -> tuple[int, int] | None:
        """The batch that the function has done and Spark has not written down, and its attempt."""
        if self.done < 0 or self.done != self.attempt[0]:
            return None
        try:
            return None if self._log.is_done(self.done) else self.attempt
        except Exception:  # its Java process is gone: mostly it is
            return None

    def _not_begun(self) -> tuple[int, int] | None:
        """The batch that this query has planned and not begun, as its first attempt."""
        following = self.last + 1
        if following in (self._pending, self.begun):
            return None
        try:
            return (following, 1) if self._log.is_planned(following) else None
        except Exception:  # its Java process is gone: where it was planned, this process still knows
            self._not_tried = following, 0
            return None

    def hangs_at(self) -> str | None:
        """The line of the function's that is at work now, or waits."""
        frames = awaited_frames(self._function.coroutine)
        if not frames and self._thread is not None:
            frames = list(outwards(sys._current_frames().get(self._thread)))
        found = users_frame(frames)
        return None if found is None else place_of_frame(found)

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Called by Spark."""
        self.idle.clear()
        self.begun, self._thread = batch, threading.get_ident()
        attempt = self._tried + 1 if batch == self._pending else 1
        try:
            self._check(batch, attempt)
            if not self._is_empty(batch):
                self._deliver(rows, batch, attempt)
            self.done = self.last = batch
            self._succeeded()
        except BaseException as error:
            self.failure = error
            if self._is_excused(error):
                self._cut_short = (batch, attempt)
            if (masked := self._masked(error)) is not None:
                raise masked from None
            raise
        finally:
            self._thread = None
            self.idle.set()

    def _masked(self, error: BaseException) -> MaskedError | None:
        """What Spark is given in place of an error whose text, or whose cause's, holds a secret."""
        if self._mask is None or not isinstance(error, Exception):
            return None
        text = "".join(traceback.format_exception(error))
        return None if self._mask(text) == text else MaskedError(self._told(error))

    def _told(self, error: BaseException) -> str:
        text = in_words(error)
        return text if self._mask is None else self._mask(text)

    def _is_excused(self, error: BaseException) -> bool:
        """Whether neither the batch nor the function is to blame for the end of an attempt."""
        if self._cancelled or isinstance(error, (RefusedError, LeaseLostError)) or is_of_reading(error):
            return True
        return (self._refusing or self._interrupted) and is_of_a_stop(error)

    def _check(self, batch: int, attempt: int) -> None:
        """Whether the batch may begin; it is counted then."""
        if self._refusing:
            raise RefusedError("the application stops")
        self._portal.call(self._lease.confirm)
        most = self._options.max_batch_attempts
        if most is not None and attempt > most and self._options.on_failed_batch is OnFailedBatch.FAIL:
            self._give_up(batch)
            raise self._never_ended(batch, attempt)
        self.attempt, self._not_tried = (batch, attempt), None
        if attempt > 1 or batch == self._pending:  # of which a note may stand there that it was not tried
            self._log.note(batch, attempt)

    def _never_ended(self, batch: int, attempt: int) -> BatchFailedTooOftenError:
        return BatchFailedTooOftenError(
            f"batch {batch} was begun {attempt - 1} times and never ended, the last time with its process; "
            f"max_batch_attempts is {self._options.max_batch_attempts}"
        )

    def _give_up(self, batch: int) -> None:
        self.gave_up = True
        self._log.note(batch, 0)  # whoever starts the application again has mended it

    def _is_empty(self, batch: int) -> bool:
        """Whether it ends in each queue where it began; Spark makes such batches when there is a new queue."""
        (last, before), end = self._last_end, self._log.end(batch)
        if last != batch - 1:
            before = self._log.end(batch - 1)
        self._last_end = (batch, end)
        self._ranges = None
        if end is None or (before is None and batch > 0):
            return False
        self._ranges = ranges_between(INITIAL if before is None else decode_offset(before), decode_offset(end))
        return not any(self._ranges)

    def _deliver(self, rows: DataFrame, batch: int, attempt: int) -> None:
        most = self._options.max_batch_attempts
        if most is not None and attempt > most:
            failed = self._failed if self._failed is not None and self._failed[0] == batch else None
            self._dead_letter(rows, batch, self._never_ended(batch, attempt) if failed is None else failed[1])
        else:
            self._attempt(rows, batch, attempt)
        self._portal.call(self._lease.confirm)  # another driver may have read it by now

    def _attempt(self, rows: DataFrame, batch: int, attempt: int) -> None:
        """Call the function; dead letters where that was the last time."""
        most = self._options.max_batch_attempts
        if self._options.persist:
            rows.persist()
        try:
            self._call(rows, batch, attempt)
        except Exception as error:
            if attempt != most or self._is_excused(error):
                raise
            if self._options.on_failed_batch is OnFailedBatch.FAIL:
                self._give_up(batch)
                raise
            self._failed = batch, error  # the reason also where its dead letters are sent by a later attempt
            self._dead_letter(rows, batch, error)
        finally:
            if self._options.persist:
                rows.unpersist()

    def _dead_letter(self, rows: DataFrame, batch: int, error: Exception) -> None:
        self._portal.call(self._lease.confirm)
        number, lost = 0, ""
        if self._ranges is not None:
            remains = self._portal.call(remains_of, self._admin, self._ranges, self._clock)
            lost = remains.gone_in_words()
            rows = frame_of(rows.sparkSession, remains.there, self._servers, self._options.selector_expression)
        if self._ranges is None or remains.there:
            number = self._delivery.dead_letter(rows, self._told(error), self._servers)
        _log.error(
            "batch %d of Spark listener %s has failed %d times (max_batch_attempts): %d messages of it are in "
            "%%DLQ%%%s%s",
            batch, self._options.group, self._options.max_batch_attempts, number, self._options.group,
            f"; {lost}" if lost else "", exc_info=error,
        )  # fmt: skip
        self._failed = None

    def _call(self, rows: DataFrame, batch: int, attempt: int) -> None:
        query_id = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if not query_id:  # two sinks that name batches by it would overwrite each other
            raise RuntimeError("Spark does not say which query the batch belongs to (sql.streaming.queryId)")
        extent = {in_words_of(each.queue): (each.start, each.end) for each in self._ranges or () if each}
        self._function(rows, batch, attempt, query_id, self._portal, self._servers, extent)
