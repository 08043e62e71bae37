"""Half messages: which transactions are open, and each step of them as it is stored.

A half message that is done with has a mark in the log (``transaction_records``). What takes its place, the committed
message, a copy that is checked, what is given up, is put together with the mark: in front of it, with nothing between
them. So a crash may leave the one without the other in one place only, at the very end of the log, and the next start
looks there, before anything else is put, and writes the mark that is missing. At every moment a transaction is open,
or committed, or rolled back, or given up, and one of them alone:

    open --------> committed      message + mark
         \\------> rolled back    mark
         \\------> given up       message in TRANS_CHECK_MAX_TIME_TOPIC + mark
         \\------> open           copy + mark of the half before it: it was checked, or moved

What is open stands in a table in memory (``open_halves``). It is read at the start from where the offsets of
CID_RMQ_SYS_TRANS are, which are committed when the log holds everything before them. How old transactions are is
``half_ages``' part, when checks are due ``transaction_checks``', what is done about records that cannot be read then
``half_reading``'s.

Source: Apache RocketMQ 5.x ``TransactionalMessageServiceImpl``, ``EndTransactionProcessor``. Unlike there: a second end
of a transaction does nothing (there a second commit stores the message again); an end that comes late, with the place
of a half that was checked since, counts, also over a restart; and a kill never has a transaction checked that has
ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from math import inf

from rocketbox.broker.half_ages import HalfAges
from rocketbox.broker.half_reading import UNREADABLE, copies_of, has_successor, is_copy_of, read_one, read_queue
from rocketbox.broker.limits import LimitError, PeerShares
from rocketbox.broker.offsets import OffsetTable
from rocketbox.broker.open_halves import Half, OpenHalves
from rocketbox.broker.options import BrokerOptions
from rocketbox.broker.put_stage import PutOrigin, PutStage
from rocketbox.broker.store.message_store import MessageStore
from rocketbox.broker.store.putting import PutResult
from rocketbox.broker.topics import TopicTable
from rocketbox.broker.transaction_records import (
    committed,
    copy_of_half,
    done_offsets,
    given_up,
    half_of,
    is_copy,
    mark_of_done,
    takes_place_of,
)
from rocketbox.broker.unparking import in_queue_there_is, real_topic
from rocketbox.clock import Clock
from rocketbox.errors import (
    InvalidMessageError,
    RemoteProtocolError,
    StoreError,
    StoreFullError,
    StoreStalledError,
)
from rocketbox.message import MessageExt
from rocketbox.protocol.codes import (
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    TRANSACTION_GROUP,
)
from rocketbox.protocol.ids import UniqIdGenerator
from rocketbox.protocol.stored_message import StoredMessage, decode_message
from rocketbox.rare_log import RareLog
from rocketbox.safe_repr import said_by_a_peer

__all__ = ["HalfMessages"]

_log = logging.getLogger(__name__)

BESIDE_A_HALF = 1024  # bytes, beside body and properties: the heads of its record and of the mark of its end


class HalfMessages:
    """The open transactions of one broker."""

    def __init__(
        self,
        store: MessageStore,
        puts: PutStage,
        topics: TopicTable,
        offsets: OffsetTable,
        options: BrokerOptions,
        clock: Clock,
    ) -> None:
        self._store = store
        self._puts = puts
        self._topics = topics
        self._offsets = offsets
        self._clock = clock
        self._file_size = options.store.mapped_file_size_commit_log
        self._shares = PeerShares(
            options.max_half_messages, options.max_half_messages_per_address, "max-half-messages", "half messages",
            "open", soon=True,
        )  # fmt: skip
        self._open = OpenHalves()
        self._copies: set[Half] = set()  # that were open at the start: where they lay before is in the log alone
        self._owed: list[int] = []  # marks that a crash has cut off, while the disk takes none
        self._leaving: list[int] = []  # places that halves have left for copies that are not durable yet
        self._mark_read = (0, 0)  # marks before the first number are of halves before the second
        self._unread: dict[int, Exception] = {}  # half messages that could not be read at the start, and why
        self._lacks_marks = False
        self._is_loaded = False
        store.looks_again.append(lambda: self._is_to_look_again)
        self._uniq_ids = UniqIdGenerator(clock.random)
        self._log = RareLog(_log)
        self.ages = HalfAges(store, options, clock, self._log)
        self.committed = self.rolled_back = self.given_up = self.dropped = self.marked_again = 0
        """How many were ended so in this run; dropped: committed for a topic that is deleted; marked_again: they had
        ended before, which could not be read."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def refused(self) -> int:
        """How many half messages were refused because too many are open."""
        return self._shares.refused

    def find(self, queue_offset: int, log_offset: int) -> Half | None:
        """The open transaction whose half message is, or was, at an offset of its queue and one of the commit log."""
        return self._open.find(queue_offset, log_offset)

    @property
    def lacks_places(self) -> bool:
        """Whether :meth:`find_from_before` may find what :meth:`find` does not."""
        return bool(self._copies)

    async def find_from_before(self, queue_offset: int, log_offset: int) -> Half | None:
        """As :meth:`find`, for a place where a half message lay before the start; without an index there is none.

        Raises StoreError, OSError while that cannot be found out.
        """
        if not self._copies:
            return None
        try:
            message = await read_one(self._store, TRANS_HALF_TOPIC, queue_offset)
        except RemoteProtocolError:
            return None
        if message is None or message.commit_log_offset != log_offset:
            return None
        for copy in await copies_of(self._store, message):
            half = self._open.at(copy.queue_offset)
            if half is None or half not in self._copies or half.log_offset != copy.commit_log_offset:
                continue
            if await is_copy_of(self._store, copy, message):
                self._open.remember(half, queue_offset, log_offset)
                await self.ages.find(half, copy)
                return self.find(queue_offset, log_offset)
        return None

    def is_open(self, half: Half) -> bool:
        """Whether it has not ended meanwhile."""
        return not half.ending and self._open.has(half)

    def due(self, now: float, begun_before: float = -inf) -> list[Half]:
        """Those that may be checked, or have begun before that, in the order of their queue."""
        found = [half for half in self._open if half.due <= now or half.begun < begun_before]
        return sorted(found, key=lambda half: half.queue_offset)

    def doubtful(self) -> list[Half]:
        """Those that may have ended, which nobody has looked up yet."""
        return [half for half in self._open if half.is_doubtful]

    def immune(self, placed_before: float) -> list[Half]:
        """Those that lie in one place for long because they are not to be checked yet."""
        return [half for half in self._open if half.placed < placed_before]

    async def has_ended_after_all(self, half: Half, message: MessageExt) -> bool:
        """Whether a doubtful transaction has ended, or a copy of it counts, which gets it another mark.

        ``message`` is the half that counts, as it lies in the log; what was there before has that for its successor.
        Raises StoreError, OSError while that cannot be found out, or the mark not be put.
        """
        if half.is_doubtful:
            has_ended = await has_successor(self._store, message)
            if half.log_offset != message.commit_log_offset:  # it was found to be open meanwhile, and was moved
                return not self.is_open(half)
            if not has_ended:
                half.is_doubtful = False
            elif self.is_open(half):
                self._end(half, None, "marked_again")
        return not self.is_open(half)

    # --- steps -------------------------------------------------------------------------------------------------------

    def put(self, message: StoredMessage, uniq_key: bytes, by: str) -> PutResult:
        """Begin a transaction; ``by`` is the address of who asks.

        Raises as a put does, LimitError, and InvalidMessageError for a message that would leave no room for its end.
        """
        self._shares.check(by)
        stored = half_of(message, uniq_key)
        size = len(stored.body) + len(stored.properties) + BESIDE_A_HALF
        if size > self._file_size:
            raise InvalidMessageError(
                f"a half message and its end, which lie in one file, would take {size} bytes of a commit-log file of "
                f"{self._file_size}; send less at once, or raise mapped-file-size-commit-log (for a new store)"
            )
        result = self._puts.put(stored, PutOrigin.SEND)
        half = self.ages.begun_now(message, result.queue_offset, result.commit_log_offset, by)
        if (gone := self._open.at(half.queue_offset)) is not None:  # taken back, and nobody was told
            self.forget(gone)
        self._open.add(half)
        self._shares.add(by)

        def settled(error: BaseException | None) -> None:
            if isinstance(error, StoreFullError) and self._open.has(half):
                self.forget(half)

        self._when_settled(result.end_offset, settled)
        return result

    def commit(self, half: Half, message: MessageExt) -> int:
        """Store what consumers get; ``message`` is the half as it was read. Where the end stands in the log.

        Raises as a put does, InvalidMessageError for a half that does not say where it is to go: nothing has changed.
        """
        topic, _ = real_topic(message)
        config = self._topics.get(topic)
        if config is None and self._store.was_deleted(topic):
            self._log.tell(
                logging.WARNING, self._clock.monotonic(), "deleted",
                "transaction %s is committed, and its message dropped: topic %s was deleted",
                said_by_a_peer(message.msg_id), topic,
            )  # fmt: skip
            return self._end(half, None, "dropped")
        for_consumers = in_queue_there_is(committed(message, half.log_offset), config)
        return self._end(half, (for_consumers, PutOrigin.COMMIT), "committed")

    def roll_back(self, half: Half) -> int:
        """Nobody gets the message. Where the end stands in the log. Raises as a put does: nothing has changed."""
        return self._end(half, None, "rolled_back")

    def pass_over(self) -> None:
        """Roll back all that are open, whoever has begun them. Raises as a put does."""
        for half in self._open:
            self.roll_back(half)

    def give_up(self, half: Half, message: MessageExt) -> int:
        """Keep the message aside, for nobody could tell what became of its transaction. As :meth:`commit`."""
        self.show_given_up()
        return self._end(half, (given_up(message), PutOrigin.DELIVERY), "given_up")

    def show_given_up(self) -> None:
        """Have the topic of what is given up known, so that it can be read."""
        try:
            self._topics.create_for_group(TRANS_CHECK_MAX_TIME_TOPIC, 1)
        except LimitError as error:  # the messages are stored all the same; the next one tries again
            self._log.tell(
                logging.ERROR, self._clock.monotonic(), "topic", "what is given up cannot be read now: %s", error
            )

    def renew(self, half: Half, message: MessageExt, *, checked: bool) -> int:
        """Store a copy of the half, which counts from now on: one that is checked once more, or was only moved.

        Where the copy's mark stands in the log. Raises as a put does.
        """
        checks = half.checks + 1 if checked else None
        copy, mark = self._put_together(half, (copy_of_half(message, checks=checks), PutOrigin.DELIVERY))
        place, before = (half.queue_offset, half.log_offset), (half.checks, half.placed, half.is_told)
        self._open.move(half, copy.queue_offset, copy.commit_log_offset)
        half.checks = half.checks if checks is None else checks
        half.placed, half.is_told = self._clock.monotonic(), checked
        self._leaving.append(place[0])

        def settled(error: BaseException | None) -> None:
            if error is None:
                self._leaving.remove(place[0])
            elif isinstance(error, StoreFullError):
                self._leaving.remove(place[0])
                if self._open.at(copy.queue_offset) is half:
                    self._open.move_back(half, *place)
                    half.checks, half.placed, half.is_told = before

        self._when_settled(mark.end_offset, settled)
        return mark.end_offset

    def forget(self, half: Half) -> None:
        """It is open no more: it has ended, or its record is gone from the log."""
        self._copies.discard(half)
        if self._open.remove(half):
            self._shares.add(half.by, -1)

    def _end(self, half: Half, instead: tuple[StoredMessage, PutOrigin] | None, count: str) -> int:
        *_, mark = self._put_together(half, instead)
        half.ending = True

        def settled(error: BaseException | None) -> None:
            if error is None:
                setattr(self, count, getattr(self, count) + 1)
                self.forget(half)
            elif isinstance(error, StoreFullError):  # all of it was taken back
                half.ending = False

        self._when_settled(mark.end_offset, settled)
        return mark.end_offset

    def _put_together(self, half: Half, instead: tuple[StoredMessage, PutOrigin] | None) -> list[PutResult]:
        mark = (self._mark(half.queue_offset), PutOrigin.DELIVERY)
        return self._puts.put_together([mark] if instead is None else [instead, mark])

    def _mark(self, queue_offset: int) -> StoredMessage:
        now = self._clock.time_ms()
        return mark_of_done(queue_offset, now, self._store.store_host, self._uniq_ids.next(now))

    def _when_settled(self, end_offset: int, told: Callable[[BaseException | None], None]) -> None:
        """Have ``told`` called when what was put just now is durable, or was taken back, or never will be durable."""

        def flushed(error: BaseException | None) -> None:
            if isinstance(error, TimeoutError | StoreStalledError):  # it is in the log still, and waits for the disk
                self._store.when_durable(end_offset, flushed)
            else:
                told(error)

        self._store.when_durable(end_offset, flushed)

    # --- offsets ----------------------------------------------------------------------------------------------------

    def commit_offsets(self) -> None:
        """Note how far half messages and marks are done with, and that is durable."""
        end = self._store.max_offset(TRANS_HALF_TOPIC, 0)
        first = min(self._open.first(end), min(self._unread, default=end), min(self._leaving, default=end), end)
        marks, halves = self._mark_read
        if self._keep(TRANS_HALF_TOPIC, first) and first >= halves:
            self._keep(TRANS_OP_HALF_TOPIC, marks)
            self._mark_read = self._store.max_offset(TRANS_OP_HALF_TOPIC, 0), end

    def _keep(self, topic: str, offset: int) -> bool:
        """Whether the offset is kept now. Marks that are not read again are those of halves that are not, either."""
        known = self._offsets.get(TRANSACTION_GROUP, topic, 0)
        if known is None or known < offset:
            try:
                self._offsets.commit(TRANSACTION_GROUP, topic, 0, offset)
            except LimitError as error:  # the next start reads more of them
                self._log.tell(logging.WARNING, self._clock.monotonic(), "offsets", "%s", error)
                return False
        return True

    def _first_of(self, topics: Sequence[str]) -> list[int]:
        """From where on queues are read, by the offsets that are kept.

        Where one is behind the end of its queue they are of another log, or of one that has lost its end: all is read,
        which is right and slower. They are not kept, for the queue may grow past them.
        """
        kept = [self._offsets.get(TRANSACTION_GROUP, topic, 0) or 0 for topic in topics]
        if any(offset > self._store.max_offset(topic, 0) for topic, offset in zip(topics, kept, strict=True)):
            kept = [0] * len(topics)
            for topic in topics:
                if self._offsets.get(TRANSACTION_GROUP, topic, 0) is not None:
                    self._offsets.commit(TRANSACTION_GROUP, topic, 0, 0)
        return [max(self._store.min_offset(topic, 0), offset) for topic, offset in zip(topics, kept, strict=True)]

    # --- start -------------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Find what is open, and write the mark that a crash may have cut off. Nothing else is put before.

        What cannot be read is told, and keeps nothing else from being found (``half_reading``).
        """
        self.ages.believe_clock()
        first, first_mark = self._first_of((TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC))
        self._mark_read = (first_mark, first)
        done: set[int] = set()
        unread_marks: dict[int, Exception] = {}
        async for mark in read_queue(self._store, TRANS_OP_HALF_TOPIC, self._mark_read[0], (), unread_marks):
            done.update(offset for offset in done_offsets(mark) if offset >= first)
        # After a crash one may be missing: of the last end, or of one before an earlier crash, which no start has seen.
        self._lacks_marks = bool(unread_marks) or self._is_after_crash
        async for message in read_queue(self._store, TRANS_HALF_TOPIC, first, done, self._unread):
            self._take_in(message)
        self._tell_unread(unread_marks)
        if self._is_after_crash and self._store.report is not None:
            await self._finish_cut_off(self._store.report.last_record)
        self._is_loaded = True
        if self._open:
            _log.info("%d transactions are open", len(self._open))
        self._store.on_state_change.append(self._write_owed)

    @property
    def _is_after_crash(self) -> bool:
        return self._store.report is not None and not self._store.report.clean

    @property
    def _is_to_look_again(self) -> bool:
        """Whether this start has not done all that a crash makes necessary yet, so that the next one has to, too."""
        return self._is_after_crash and bool(
            not self._is_loaded or self._owed or self._unread or any(half.is_doubtful for half in self._open)
        )

    def end(self) -> None:
        """The store is about to be closed."""
        if self._write_owed in self._store.on_state_change:
            self._store.on_state_change.remove(self._write_owed)

    def _tell_unread(self, marks: dict[int, Exception]) -> None:
        if marks:
            offset, error = next(iter(marks.items()))
            _log.error(
                "%d marks of transactions that are done with cannot be read, the first is message %d of %s (%s): what "
                "is open is looked up by its key before it ends, and what was rolled back may be checked again",
                len(marks), offset, TRANS_OP_HALF_TOPIC, error,
            )  # fmt: skip
        if self._unread:
            offset, error = next(iter(self._unread.items()))
            _log.error(
                "%d half messages cannot be read, and their transactions wait; the first is message %d of %s (%s)",
                len(self._unread), offset, TRANS_HALF_TOPIC, error,
            )  # fmt: skip

    async def read_again(self) -> None:
        """Look for the half messages that could not be read at the start. Raises StoreError."""
        for offset in list(self._unread):
            try:
                message = await read_one(self._store, TRANS_HALF_TOPIC, offset)
            except UNREADABLE as error:
                _log.debug("half message %d cannot be read: %s", offset, error)
                continue
            del self._unread[offset]
            if message is not None:
                self._take_in(message)
            elif offset >= self._store.min_offset(TRANS_HALF_TOPIC, 0):
                _log.error("half message %d is damaged: if its transaction was open, it is lost", offset)

    def _take_in(self, message: MessageExt) -> None:
        """A half message that no mark speaks of is open."""
        half = self.ages.begun_before(message)
        half.is_doubtful = self._lacks_marks
        if is_copy(message):
            self._copies.add(half)
        self._open.add(half)
        self._shares.add("")

    async def _finish_cut_off(self, last_record: int) -> None:
        """Write the mark that belongs behind the last record, if it has taken the place of a half that is open."""
        try:
            record = await self._store.read_record(last_record)
            if record is None:
                return
            last = decode_message(record, decompress=False)[0]
            prepared = last.prepared_transaction_offset
            half = self._open.at_log_offset(prepared)
            if half is None or prepared == last_record or (before := await self._store.read_record(prepared)) is None:
                return
            if not takes_place_of(last, decode_message(before, decompress=False)[0]):
                return
        except (OSError, RemoteProtocolError) as error:
            _log.error("the last record, or the half message that it names, cannot be read: %s", error)
            return
        self.forget(half)
        self._owed.append(half.queue_offset)
        self._write_owed()

    def _write_owed(self) -> None:
        """Write what is owed, as soon as the store takes it: before it takes anything else."""
        owed, self._owed = self._owed, []
        for number, queue_offset in enumerate(owed):
            try:
                result = self._puts.put_together([(self._mark(queue_offset), PutOrigin.DELIVERY)])[-1]
            except StoreError as error:
                _log.debug("the mark of half message %d waits: %s", queue_offset, error)
                self._owed += owed[number:]
                return

            def settled(error: BaseException | None, queue_offset: int = queue_offset) -> None:
                if isinstance(error, StoreFullError):
                    self._owed.append(queue_offset)

            self._when_settled(result.end_offset, settled)
