"""Asking producers about transactions of which nothing was heard: when, whom, how often, and what is given up.

Every ``transactionCheckInterval`` there is a round. A half message that is due, ``transactionTimeOut`` after it was
sent or after as many seconds as it says itself, is stored once more with a further check counted; when that is durable
one producer of its group is asked (39), with each check the next of those that are connected. Who is not there is not
asked: the check counts all the same. With access control only who may send to the message's topic is asked, since the
question holds the message, and anybody may say to be a producer of any group (Apache's broker asks whoever says so).
After ``transactionCheckMax`` checks, or when it is older than messages are kept, it is given up. How each step is
stored is ``half_messages``' part, what producers answer ``handlers.transactions``'.

Source: Apache RocketMQ 5.x ``TransactionalMessageServiceImpl.check``, ``AbstractTransactionalMessageCheckListener``,
``ProducerManager.getAvailableChannel``. Unlike there ages go by this broker's clock alone: a producer whose clock is
wrong is not asked at once, or never. And a transaction comes to all producers, there perhaps to the same one each time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from weakref import WeakSet

from rocketbox.access.control import AccessControl
from rocketbox.access.resources import Action, topic_need
from rocketbox.broker.clients import ClientChannel, ProducerTable
from rocketbox.broker.half_messages import HalfMessages
from rocketbox.broker.open_halves import Half
from rocketbox.broker.options import BrokerOptions
from rocketbox.broker.property_text import find_property
from rocketbox.broker.store.message_store import MessageStore
from rocketbox.broker.transaction_records import check_request
from rocketbox.clock import Clock
from rocketbox.errors import (
    ConnectionClosedError,
    InvalidMessageError,
    RemoteProtocolError,
    StoreError,
    StoreFailedError,
    StoreStalledError,
)
from rocketbox.message import MessageExt
from rocketbox.protocol.codes import TRANS_HALF_TOPIC
from rocketbox.protocol.stored_message import decode_message
from rocketbox.rare_log import RareLog
from rocketbox.remoting.connection import Connection
from rocketbox.safe_repr import said_by_a_peer

__all__ = ["TransactionChecks"]

_log = logging.getLogger(__name__)

BATCH = 32  # half messages that are checked together
MOVED_AFTER = 600.0  # seconds: one that is immune for longer is moved to the end of its queue, which it holds up


class TransactionChecks:
    """Checks of one broker's transactions; :meth:`run` is its task."""

    def __init__(
        self,
        halves: HalfMessages,
        store: MessageStore,
        producers: ProducerTable[Connection],
        options: BrokerOptions,
        clock: Clock,
        access: AccessControl | None = None,
    ) -> None:
        self._halves = halves
        self._store = store
        self._producers = producers
        self._broker_name = options.broker_name
        self._interval = options.transaction_check_interval / 1000
        self._most = options.transaction_check_max
        self._longest = options.store.file_reserved_ms / 1000
        self._clock = clock
        self._access = access
        self._turn = 0
        self._unread: WeakSet[Half] = WeakSet()  # of which the log has told
        self._log = RareLog(_log)
        self.asked = 0
        """How often a producer was asked, in this run."""
        self.unasked = 0
        """How often there was none to ask, or none that reads."""

    async def run(self) -> None:
        """A round every ``transactionCheckInterval``, for ever."""
        while True:
            await self._clock.sleep(self._interval)
            try:
                await self.round()
            except StoreFailedError as error:
                _log.error("transactions are not checked any more: %s", error)
                return
            except (StoreError, OSError) as error:  # no room now, or a file that cannot be read: the next round tries
                _log.debug("the checks of transactions wait: %s", error)

    async def round(self) -> None:
        """Check what is due. Raises StoreError, OSError when nothing can be stored: the rest waits for the next round.

        A half that cannot be read is passed over, and waits alone.
        """
        await self._halves.read_again()
        now = self._clock.monotonic()
        due = self._halves.due(now, now - self._longest)
        for start in range(0, len(due), BATCH):
            await self._check(due[start : start + BATCH])
        for half in self._halves.doubtful():  # not due yet: until then, a stop would not be one in order
            await self._open_message(half)
        moved = self._halves.immune(now - MOVED_AFTER)
        for start in range(0, len(moved), BATCH):
            await self._move(moved[start : start + BATCH])
        self._halves.commit_offsets()

    async def _check(self, halves: Sequence[Half]) -> None:
        checked: list[tuple[Half, MessageExt]] = []
        end, refused = 0, None
        for half in halves:
            message = await self._open_message(half)
            if message is None:
                continue
            try:
                ages = self._halves.ages
                is_old = await ages.is_older(half, message, self._longest)
                is_over = half.checks >= self._most or (is_old and ages.is_seen(half, self._longest))
                is_due = is_over or is_old or await ages.is_due(half, message)
            except StoreFailedError:
                raise
            except (StoreError, OSError) as error:
                self._not_read(half, error)
                continue
            if not is_due or not self._halves.is_open(half):
                continue  # it has ended meanwhile, or its sender's clock is wrong
            try:
                if is_over:
                    end = self._halves.give_up(half, message)
                    self._log.tell(
                        logging.ERROR, self._clock.monotonic(), "given up",
                        "transaction %s of topic %s is given up after %d checks: its message is kept in "
                        "TRANS_CHECK_MAX_TIME_TOPIC and reaches nobody", said_by_a_peer(message.msg_id),
                        said_by_a_peer(
                            (find_property(message.raw_properties, b"REAL_TOPIC") or b"").decode(errors="replace")
                        ),
                        half.checks,
                    )  # fmt: skip
                else:
                    end = self._halves.renew(half, message, checked=True)
                    checked.append((half, message))
            except InvalidMessageError as error:
                self._not_stored_again(half, error)
            except StoreError as error:  # those before it are checked all the same: that is in the log
                refused = error
                break
        await self._durable(end)
        for half, message in checked:
            if self._halves.is_open(half):
                self._ask(half, message)
        if refused is not None:
            raise refused

    async def _move(self, halves: Sequence[Half]) -> None:
        end = 0
        for half in halves:
            message = await self._open_message(half)
            if message is None:
                continue
            try:
                end = self._halves.renew(half, message, checked=False)
            except InvalidMessageError as error:
                self._not_stored_again(half, error)
        await self._durable(end)

    async def _open_message(self, half: Half) -> MessageExt | None:
        """The half as it lies in the log; None where it has ended, perhaps before the start, or cannot be had now."""
        try:
            message = await self._read(half)
            if message is None or await self._halves.has_ended_after_all(half, message):
                return None
        except StoreFailedError:
            raise
        except (StoreError, OSError) as error:
            self._not_read(half, error)
            return None
        return message

    def _not_read(self, half: Half, error: Exception) -> None:
        """It may be read in the next round: a transaction is not given up for that."""
        if half not in self._unread:
            self._unread.add(half)
            self._log.tell(
                logging.ERROR, self._clock.monotonic(), "unread",
                "half message %d cannot be read, and its check waits: %s", half.queue_offset, error,
            )  # fmt: skip

    def _not_stored_again(self, half: Half, error: InvalidMessageError) -> None:
        """It was stored before, but a foreign store may hold anything."""
        self._log.tell(
            logging.ERROR, self._clock.monotonic(), "invalid",
            "half message %d cannot be stored again, and is not checked: %s", half.queue_offset, error,
        )  # fmt: skip

    async def _durable(self, end: int) -> None:
        """Return when the log is safe up to there. Raises StoreError when some of it was taken back."""
        while True:
            try:
                await self._store.durable(end)
                return
            except (TimeoutError, StoreStalledError):
                _log.warning("checks of transactions wait for a slow disk")

    async def _read(self, half: Half) -> MessageExt | None:
        """The half as it lies in the log; None when it has ended meanwhile, or cannot be had."""
        if half.log_offset >= self._store.max_commit_log_offset:
            return None  # not written yet
        record = await self._store.read_record(half.log_offset)
        if not self._halves.is_open(half):
            return None
        message = None
        if record is not None:
            try:
                message = decode_message(record, decompress=False)[0]
            except RemoteProtocolError as error:
                _log.debug("half message %d: %s", half.queue_offset, error)
        if message is None or message.topic != TRANS_HALF_TOPIC or message.queue_offset != half.queue_offset:
            if half.log_offset < self._store.min_commit_log_offset:
                self._halves.forget(half)
            self._log.tell(
                logging.ERROR, self._clock.monotonic(), "missing",
                "half message %d is not where it was put, at %d of the commit log: its transaction cannot end",
                half.queue_offset, half.log_offset,
            )  # fmt: skip
            return None
        return message

    def _ask(self, half: Half, message: MessageExt) -> None:
        """Ask one producer of the group; one that is gone, or reads nothing, is not asked."""
        group = (find_property(message.raw_properties, b"PGROUP") or b"").decode(errors="replace")
        members = [
            each
            for each, channel in self._producers.channels(group).items()
            if not each.closed and not each.congested and self._may_know(each, channel, message)
        ]
        if not members:
            self.unasked += 1
            self._log.tell(
                logging.WARNING, self._clock.monotonic(), "nobody",
                "transaction %s waits for its end, and no producer of group %r is connected that could be asked, and "
                "may send to its topic (check %d of %d)", said_by_a_peer(message.msg_id), group[:100], half.checks,
                self._most,
            )  # fmt: skip
            return
        if half.turn is None:
            self._turn += 1
            half.turn = self._turn
        # By its own checks, so that it comes to all of them: one may have no checker, and know nothing.
        member = members[(half.turn + half.checks) % len(members)]
        try:
            request = check_request(message, half.queue_offset, half.log_offset, half.checks, self._broker_name)
            member.send_oneway(request)
        except InvalidMessageError as error:
            self.unasked += 1
            self._log.tell(
                logging.ERROR, self._clock.monotonic(), "unreadable",
                "nobody can be asked about half message %d: %s", half.queue_offset, error,
            )  # fmt: skip
        except ConnectionClosedError:
            self.unasked += 1
        else:
            self.asked += 1

    def _may_know(self, connection: Connection, channel: ClientChannel, message: MessageExt) -> bool:
        """Whether a producer's user may send what the half message is, and so may see it."""
        if self._access is None:
            return True
        topic = (find_property(message.raw_properties, b"REAL_TOPIC") or b"").decode(errors="replace")
        return self._access.may_still(connection, channel.access_key, (topic_need(topic, Action.PUB),))
