"""What a Spark listener is told about the micro-batch it gets; importing it loads no pyspark."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar

from rocketbox.template.unawaited import expects_await

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SparkBatch"]

ResultT = TypeVar("ResultT")
Runner = Callable[[Callable[[], Any]], Awaitable[Any]]


@dataclass(frozen=True)
class SparkBatch:
    """What a listener may know of the micro-batch it gets.

    ``query_id`` and ``id`` together name the batch for ever: a sink that overwrites by them keeps each row once.
    ``attempt`` is 1, and grows when the same batch comes again, also in another process.
    """

    id: int
    query_id: str
    topic: str
    group: str
    attempt: int
    spark: SparkSession
    written: set[str] = field(default_factory=set, repr=False, compare=False)
    """Where :meth:`write` has written in this call."""
    extent: Mapping[str, tuple[int, int]] = field(default_factory=dict, repr=False, compare=False)
    """From which offset on, and up to before which one, it reads each queue; nothing where that is not known."""
    runner: Runner | None = field(default=None, repr=False, compare=False)
    """How :meth:`run` runs something; None for a batch that a test has made."""

    @expects_await
    async def run(self, function: Callable[..., ResultT], *args: Any) -> ResultT:
        """The result of ``function(*args)``, for async functions: ``rows = await batch.run(frame.collect)``.

        It runs on the thread of the batch, whose jobs belong to the query and end with it, and the application's loop
        goes on meanwhile. Calls of one batch run one after another. Raises ClientStateError once the listener's
        function has ended (a task that outlives it has nobody to run its jobs), and in one that is not async.
        """
        if self.runner is None:
            return function(*args)
        result: ResultT = await self.runner(partial(function, *args))
        return result

    def already_done(self, path: str | PathLike[str]) -> bool:
        """Whether :meth:`write` has written this batch to ``path`` as a whole, in this call or one before it."""
        from rocketbox.spark.sinks import is_done

        return is_done(self, str(path))

    def write(
        self,
        frame: DataFrame,
        path: str | PathLike[str],
        format: str = "parquet",  # noqa: A002 - Spark's name for it
        *,
        partition_by: str | Sequence[str] = (),
        **options: str | bool | int,
    ) -> bool:
        """Write the frame so that each of its rows is at ``path`` once, however often the batch comes.

        Files go to ``path/query=<query_id>/batch=<id>``, which takes the place of what an earlier attempt left there;
        a Delta table gets ``txnAppId`` and ``txnVersion``, by which it knows the batch. ``partition_by`` are columns,
        the ``options`` those of Spark's writer of that format. False: the batch was there as a whole already. Raises
        ValueError for a second write to one path in one call, which would replace the first, and for options that ask
        for something else than to add the batch (``mode``, ``replaceWhere``).
        """
        from rocketbox.spark.sinks import write_once

        return write_once(self, frame, str(path), format, partition_by, options)
