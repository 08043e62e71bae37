"""For how long transactions are open, and when they may be checked for the first time, by this broker's clock.

Of those that were open at the start only their records know. A copy of a half message keeps the time of birth alone,
which is the sender's; so the first half is read, to which the copies lead, but not before somebody wants to know.
"""

from __future__ import annotations

import logging

from rocketbox.broker.open_halves import Half
from rocketbox.broker.options import BrokerOptions
from rocketbox.broker.store.message_store import MessageStore
from rocketbox.broker.store.retention import largest_step_ms
from rocketbox.broker.transaction_records import check_times, immunity_seconds, is_copy, takes_place_of
from rocketbox.clock import Clock
from rocketbox.errors import RemoteProtocolError
from rocketbox.message import MessageExt
from rocketbox.protocol.stored_message import StoredMessage, decode_message
from rocketbox.rare_log import RareLog
from rocketbox.safe_repr import said_by_a_peer

__all__ = ["HalfAges"]


class HalfAges:
    """Those of the transactions of one broker."""

    def __init__(self, store: MessageStore, options: BrokerOptions, clock: Clock, log: RareLog) -> None:
        self._store = store
        self._clock = clock
        self._log = log
        self._immunity = options.transaction_time_out / 1000
        self._largest_step_ms = largest_step_ms(options.store.file_reserved_ms)
        self._started = clock.monotonic(), clock.time_ms()  # whatever the time of day becomes meanwhile

    def believe_clock(self) -> None:
        """Where the clock is far ahead of the newest message, it may have jumped: a stop for as long looks the same.

        Then no time has passed since that message, so that no transaction is given up, before anybody was asked, for an
        age that it may not have; retention does not believe such a clock either.
        """
        newest, (then, then_ms) = self._store.last_timestamp_ms, self._started
        if newest and then_ms - newest > self._largest_step_ms:
            self._started = then, newest

    def begun_now(self, message: StoredMessage, queue_offset: int, log_offset: int, by: str) -> Half:
        """The transaction of a half message that was put just now."""
        seconds, now = immunity_seconds(message.properties), self._clock.monotonic()
        return Half(
            queue_offset, log_offset, begun=now, due=now + self._wait(seconds), placed=now,
            is_immune=seconds is not None, by=by,
        )  # fmt: skip

    def begun_before(self, message: MessageExt) -> Half:
        """The transaction of a half message that was open at the start."""
        text = message.raw_properties
        now, since_ms, has_moved = self._clock.monotonic(), message.store_timestamp_ms, is_copy(message)
        own, checks = immunity_seconds(text), check_times(text)
        if has_moved:
            since_ms = min(message.born_timestamp_ms, since_ms)
        then, then_ms = self._started
        age = max(0.0, now - then + (then_ms - since_ms) / 1000)
        wait = 0.0 if checks or has_moved else max(0.0, self._wait(own) - age)
        return Half(
            message.queue_offset, message.commit_log_offset, begun=now - age, due=now + wait, placed=now,
            is_immune=own is not None, is_age_known=not has_moved, checks=checks,
        )  # fmt: skip

    async def is_older(self, half: Half, message: MessageExt, seconds: float) -> bool:
        """Whether a transaction is open for longer than that; ``message`` is its half.

        Raises StoreError, OSError when its first half has to be read for that, and cannot be.
        """
        now = self._clock.monotonic()
        if now - half.begun > seconds:
            await self.find(half, message)
        return now - half.begun > seconds

    def is_seen(self, half: Half, seconds: float) -> bool:
        """Whether this run has seen by itself that a transaction is open for longer than that, or somebody was asked.

        Else its age is what the times of records say, which may be wrong: somebody is asked before it is given up.
        """
        return half.checks > 0 or self._clock.monotonic() - max(half.begun, self._started[0]) > seconds

    async def is_due(self, half: Half, message: MessageExt) -> bool:
        """Whether a transaction whose ``due`` has come may be checked; ``message`` is its half.

        Raises StoreError, OSError when its first half has to be read for that, and cannot be.
        """
        if not half.checks:
            await self.find(half, message)
        return half.due <= self._clock.monotonic()

    async def find(self, half: Half, message: MessageExt) -> None:
        """Find when a transaction began that was open at the start, and when it is due if it was not checked yet."""
        if half.is_age_known:
            return
        stored_ms = await self._first_stored_ms(message)
        if stored_ms is not None:
            then, then_ms = self._started
            half.begun = then - max(0.0, (then_ms - stored_ms) / 1000)
        if not half.checks:
            half.due = half.begun + self._wait(immunity_seconds(message.raw_properties))
        half.is_age_known = True

    def _wait(self, own: float | None) -> float:
        """The seconds until the first check; ``own`` are those that the message says itself."""
        return self._immunity if own is None else own

    async def _first_stored_ms(self, message: MessageExt) -> int | None:
        """When the first half of a transaction was stored, to which its copies lead; None: it is gone by age.

        Apache's copies lead nowhere, and what is damaged or cannot be read no farther: then it is when the oldest copy
        was stored that is found.
        """
        first = self._store.min_commit_log_offset
        while is_copy(message) and (offset := message.prepared_transaction_offset) < message.commit_log_offset:
            if 0 < offset < first:
                return None
            try:
                record = await self._store.read_record(offset)
                if record is None:
                    break
                before = decode_message(record, decompress=False)[0]
            except (OSError, RemoteProtocolError) as error:  # it is found once: nobody waits for a bad sector
                self._log.tell(
                    logging.WARNING, self._clock.monotonic(), "age",
                    "since when transaction %s is open is not known, for its first half message cannot be read; its "
                    "time is reckoned from when a copy of it was stored: %s", said_by_a_peer(message.msg_id), error,
                )  # fmt: skip
                break
            if not takes_place_of(message, before):
                break
            message = before
        return message.store_timestamp_ms
