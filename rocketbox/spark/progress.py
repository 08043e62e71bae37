"""From one offset of a stream to the next: what a micro-batch takes, and what is written of it.

Pure but for the questions to brokers: Spark's calls are ``readers``'. A queue that does not answer stays where it is,
and a queue that is new begins where the first offsets say; both are written in the end of the batch, so that it is the
same batch when it is repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from rocketbox.client import Admin
from rocketbox.clock import Clock
from rocketbox.errors import BrokerError, ClientError, RocketBoxError
from rocketbox.message import MessageQueue
from rocketbox.spark.asking import ask_each
from rocketbox.spark.checkpoint import QueueProgress, StreamOffset
from rocketbox.spark.ends import Ends
from rocketbox.spark.identity import another_store, changed_options, check_ownership, difference, witness_before
from rocketbox.spark.limits import FewRows, Turns, limit_bytes, limit_rows
from rocketbox.spark.looking import row_bytes
from rocketbox.spark.offsets import QueueOffsets, QueueRange, in_words
from rocketbox.spark.options import SourceOptions
from rocketbox.spark.selection import unreadable_at
from rocketbox.spark.starting import PlaceKind, begun_at, resolve, text_of, within
from rocketbox.spark.taken_away import TakenAway
from rocketbox.spark.worker_client import gather, may_be_closed, may_pass, patiently

__all__ = ["StreamProgress", "ranges_between"]

_log = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class _Backlog:
    """Where each queue is to be read from and to, as it is known now."""

    first: QueueOffsets
    last: QueueOffsets

    @property
    def rows(self) -> int:
        return sum(end - self.first[queue] for queue, end in self.last.items())


class StreamProgress:
    """What one process of a stream knows beside the offsets that Spark keeps."""

    def __init__(self, options: SourceOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self.ends = Ends(
            options.selection, options.name_server, clock, waits_for_topic=options.waits_for_topic,
            absence_level=options.absence_level,
        )  # fmt: skip
        self._taken_away = TakenAway(options.selection, clock, fails=options.fail_on_data_loss)
        self._same: dict[MessageQueue, object] = {}
        """Over which connection each queue was last seen to be the one of the checkpoint."""
        self._absent: dict[tuple[str, str], bool] = {}
        """Topics, with their brokers, that the checkpoint has and that have no queue to read; whether they are there.
        """
        self._target: QueueOffsets | None = None
        self._turns = Turns()
        self._has_told_changes = False
        least = options.min_offsets_per_trigger
        self._few_rows = None if least is None else FewRows(least, options.max_trigger_delay.total_seconds())

    async def _patiently(self, what: str, function: Callable[[], Awaitable[ResultT]]) -> ResultT:
        return await patiently(self._clock, what, function, level=self._options.absence_level)

    async def aim(self, admin: Admin) -> None:
        """From now on read up to the ends of this moment, of all queues (the trigger available-now)."""
        what = f"asking where {self._options.selection} ends"
        self._target = await self._patiently(what, lambda: self.ends.ask_all(admin))

    async def next(self, admin: Admin, start: StreamOffset, *, limited: bool = True) -> StreamOffset:
        """The end of the next batch; ``start`` itself when there is none.

        When it reads up to what :meth:`aim` has found, ``start`` means that all is read: what does not answer before
        that is waited for, and its error raised.
        """
        if self._target is None:
            return await self._next(admin, start, limited)

        async def ask() -> StreamOffset:
            end = await self._next(admin, start, limited)
            if end == start and (left := self._left(end)):
                raise ClientError(f"{len(left)} queues do not answer, such as {in_words(min(left))}")
            return end

        return await self._patiently(f"reading {self._options.selection} to its end", ask)

    def _left(self, end: StreamOffset) -> list[MessageQueue]:
        """The queues that are not read up to where they ended."""
        known = {queue: progress.next for queue, progress in end.queues.items()}
        return [queue for queue, target in (self._target or {}).items() if known.get(queue, -1) < target]

    async def _next(self, admin: Admin, start: StreamOffset, limited: bool) -> StreamOffset:
        try:
            return await self._planned(admin, start, limited)
        except BrokerError as refusal:
            # What the route has for some seconds more: the rest is read when that is known.
            if not may_be_closed(refusal) or not await self.ends.has_lost_queues(admin):
                raise
            return start

    async def _planned(self, admin: Admin, start: StreamOffset, limited: bool) -> StreamOffset:
        self._check_ownership(start)
        self._tell_changed_options(start)
        self.ends.seen = self.ends.seen or bool(start.queues)
        if self._target is None:
            last = await self.ends.ask(admin, patient=not start.initial)
        else:
            last = dict(self._target)
        connections = {queue: admin.connection_to(queue) for queue in last}
        present = dict.fromkeys(self.ends.away, 0) | last
        await self._tell_absent(admin, start, present)
        await self._taken_away.look(admin, start, present)
        for queue in self.ends.away:
            self._same.pop(queue, None)  # whoever comes back in its place has to show who it is
        unsure = [
            queue
            for queue, end in last.items()
            if queue in start.queues and (not self._seen(admin, queue) or end < start.queues[queue].next)
        ]
        silent = await self.check(admin, {queue: start.queues[queue] for queue in unsure})
        backlog = await self._backlog(admin, start, {q: end for q, end in last.items() if q not in silent})
        moved = backlog.last if not limited else await self._limit(admin, backlog)
        return await self._with_witnesses(admin, start, backlog.first, moved, connections)

    async def _tell_absent(self, admin: Admin, start: StreamOffset, present: Collection[MessageQueue]) -> None:
        """Tell, once each time, what has no queue to read: it may not be read, was deleted, or its broker has gone.

        Which of the last two it is, and often whether anything was unread, nobody can know: it is no reason to end.
        """
        if not present:  # that is told where it is asked for
            return
        there = {(queue.topic, queue.broker_name) for queue in present}
        absent = {(queue.topic, queue.broker_name) for queue in start.queues} - there
        new = absent - self._absent.keys()
        closing = await gather(partial(_closed_at, admin), {topic for topic, _ in new})
        closed = {(topic, broker): broker in at for topic, broker in new if (at := closing[topic]) is not None}
        for topic, broker in sorted(closed):
            ends = self.ends.last
            unread = sum(
                max(0, ends.get(queue, 0) - progress.next)
                for queue, progress in start.queues.items()
                if (queue.topic, queue.broker_name) == (topic, broker)
            )
            known = (
                f"{unread} messages of it were not read" if unread else "whether it has unread messages is not known"
            )
            if closed[topic, broker]:
                _log.warning(
                    "topic %s may not be read at broker %s any more (by its permission, or readQueueNums); %s, and the "
                    "rest is read on without it until it may", topic, broker, known,
                )  # fmt: skip
                continue
            _log.warning(
                "topic %s of broker %s, which was read before, has no route: the broker is away, or the topic was "
                "deleted there; %s, and the rest is read on without it until it is back", topic, broker, known,
            )  # fmt: skip
        for topic, broker in sorted(self._absent.keys() - absent):
            how = "may be read" if self._absent[topic, broker] else "has a route"
            _log.warning("topic %s of broker %s %s again, and is read on", topic, broker, how)
        self._absent = {each: is_closed for each, is_closed in (self._absent | closed).items() if each in absent}

    def _seen(self, admin: Admin, queue: MessageQueue) -> bool:
        """Whether the queue was seen to be the same one, by the process of the broker that is asked now."""
        return queue in self._same and self._same[queue] is admin.connection_to(queue)

    def _is_same(self, queues: Iterable[MessageQueue], connections: Mapping[MessageQueue, object]) -> None:
        """``connections`` are those of before the queues were looked at."""
        self._same |= {queue: connections.get(queue) for queue in queues}

    async def check(self, admin: Admin, offsets: Mapping[MessageQueue, QueueProgress]) -> Collection[MessageQueue]:
        """Raise CheckpointError when a queue is another than it was; those that do not answer come back."""
        connections = {queue: admin.connection_to(queue) for queue in offsets}
        others: dict[MessageQueue, str] = {}
        answers, silent = await ask_each(lambda queue: self._look(admin, queue, offsets[queue], others), offsets)
        if others:
            raise another_store(others, self._options.name_server)
        self._is_same(answers, connections)
        return silent.keys()

    async def _look(
        self, admin: Admin, queue: MessageQueue, progress: QueueProgress, others: dict[MessageQueue, str]
    ) -> None:
        """Note in ``others`` what is otherwise in a queue than it was; nothing, once another one is known to be."""
        if not others and (found := await difference(admin, queue, progress, self._clock)) is not None:
            others[queue] = found

    async def check_end(self, admin: Admin, start: StreamOffset, end: StreamOffset) -> list[QueueRange]:
        """What a batch reads, whose queues are checked so; an earlier process may have planned it.

        Brokers that are away are waited for; queues that were taken away meanwhile are refused, or left out and told.

        Of those queues alone that it reads: one of a broker that is away, or that the topic has no more, may be among
        the others for long, and is looked at when it has grown.
        """
        self._check_ownership(end)
        ranges = [each for each in ranges_between(start, end) if each]
        if any(not self._seen(admin, each.queue) for each in ranges):
            what = f"asking for the queues of {self._options.selection}"
            planned = ranges
            ranges = await self._patiently(what, lambda: self._taken_away.left_of(admin, planned))
        unsure = {each.queue: end.queues[each.queue] for each in ranges if not self._seen(admin, each.queue)}
        connections = {queue: admin.connection_to(queue) for queue in unsure}

        others: dict[MessageQueue, str] = {}

        async def ask(queue: MessageQueue) -> None:
            await self._patiently(f"looking at {queue}", lambda: self._look(admin, queue, unsure[queue], others))

        answers = await gather(ask, unsure)
        if others:
            raise another_store(others, self._options.name_server)
        self._is_same(answers, connections)
        return ranges

    async def _backlog(self, admin: Admin, start: StreamOffset, last: QueueOffsets) -> _Backlog:
        places = self._options.stream_start if start.start is None else begun_at(start.start)
        new = [queue for queue in last if queue not in start.queues]
        if start.initial and places.has(PlaceKind.LATEST) and self.ends.away:
            # Where these end now cannot be known later.
            what = f"asking where {self._options.selection} ends"
            late = await self._patiently(what, lambda: gather(admin.max_offset, self.ends.away))
            last, new = last | late, [*new, *late]
        if start.initial and self.ends.complete and (unknown := sorted(places.named.keys() - last.keys())):
            raise ValueError(
                "option startingOffsets names queues that the topic does not have: " + ", ".join(map(in_words, unknown))
            )

        async def first_of(queue: MessageQueue) -> int:
            wanted = places.of(queue) if start.initial else places.of_new(queue, start.since_ms)
            if wanted.kind is PlaceKind.LATEST:
                return last[queue]
            found = await resolve(admin, wanted, queue, self._options.group)
            return within("startingOffsets", wanted, queue, found, last[queue])

        firsts, _ = await ask_each(first_of, new)  # one that does not answer appears in a later batch
        first = {queue: progress.next for queue, progress in start.queues.items()} | firsts
        known = {queue: max(end, first[queue]) for queue, end in last.items() if queue in first}
        return _Backlog(first, {queue: known.get(queue, offset) for queue, offset in first.items()})

    async def _limit(self, admin: Admin, backlog: _Backlog) -> QueueOffsets:
        options, last = self._options, backlog.last
        few = self._few_rows if self._target is None and backlog.rows else None
        if few is not None and few.waits(backlog.rows, self._clock.monotonic()):
            return dict(backlog.first)
        if options.max_offsets_per_trigger is not None:
            last = limit_rows(backlog.first, last, options.max_offsets_per_trigger, self._turns)
        if options.max_bytes_per_trigger is not None:
            waiting = [queue for queue, end in last.items() if end > backlog.first[queue]]
            sizes, away = await ask_each(lambda queue: row_bytes(admin, queue, backlog.first[queue]), waiting)
            last = {queue: backlog.first[queue] if queue in away else end for queue, end in last.items()}
            last = limit_bytes(backlog.first, last, sizes, options.max_bytes_per_trigger, self._turns)
        self._turns.note(backlog.first, backlog.last, last)
        return last

    async def _with_witnesses(
        self,
        admin: Admin,
        start: StreamOffset,
        first: QueueOffsets,
        last: QueueOffsets,
        connections: Mapping[MessageQueue, object],
    ) -> StreamOffset:
        changed = [queue for queue, end in last.items() if queue not in start.queues or end != start.queues[queue].next]
        others: dict[MessageQueue, str] = {}

        async def moved(queue: MessageQueue) -> QueueProgress:
            witness = await witness_before(admin, queue, last[queue])
            if (before := start.queues.get(queue)) is not None:
                # The topic may have been made anew, over the same connection. Asked last: then both are of one queue.
                await self._look(admin, queue, before, others)
                return replace(before, next=last[queue], witness=witness)
            return QueueProgress(first[queue], last[queue], witness, await self._stood(admin, queue, first[queue]))

        found, _ = await ask_each(moved, changed)
        if others:
            raise another_store(others, self._options.name_server)
        # A witness counts that is of the process which was seen to be the same; else the queue moves in a later batch.
        found = {q: progress for q, progress in found.items() if q not in start.queues or self._seen(admin, q)}
        self._is_same(found, connections)
        queues = {**start.queues, **found}
        if queues == start.queues and not start.initial:
            return start
        if not start.initial:
            return replace(start, queues=queues, tags=self._options.tags_text)
        places = self._options.stream_start
        return StreamOffset(
            queues,
            self._options.group,
            since_ms=self._clock.time_ms() if places.has(PlaceKind.LATEST) else None,
            namespace=self._options.servers.names_are_of,
            start=text_of(places),
            tags=self._options.tags_text,
        )

    def _check_ownership(self, offset: StreamOffset) -> None:
        options = self._options
        check_ownership(offset, options.selection, options.group, options.servers.names_are_of)

    def _tell_changed_options(self, start: StreamOffset) -> None:
        """Tell, once, what a checkpoint makes of options that were changed since."""
        if self._has_told_changes:
            return
        self._has_told_changes = True
        for change in changed_options(start, self._options.stream_start, self._options.tags_text):
            _log.warning("%s: %s", self._options.selection, change)

    async def _stood(self, admin: Admin, queue: MessageQueue, first: int) -> int | None:
        """How far the group is already, where that is beyond ``first``."""
        if self._options.group is None:
            return None
        committed = await admin.committed(self._options.group, queue)
        return committed if committed is not None and committed > first else None


def ranges_between(start: StreamOffset, end: StreamOffset) -> list[QueueRange]:
    """What the batch between two offsets reads; the end knows where queues begin that the start does not know."""
    begin = {queue: progress.first for queue, progress in end.queues.items()}
    begin |= {queue: progress.next for queue, progress in start.queues.items()}
    return [QueueRange(queue, begin[queue], end.queues[queue].next) for queue in sorted(end.queues)]


async def _closed_at(admin: Admin, topic: str) -> Collection[str] | None:
    """The brokers that have a topic, and of it no queue that may be read; None: nobody says."""
    try:
        brokers = await admin.queues_on_brokers(topic)
    except RocketBoxError as error:
        return None if may_pass(error) else ()
    without = (name for name, queues in brokers.items() if not queues.read_queue_nums)
    return {*unreadable_at(brokers), *without}
