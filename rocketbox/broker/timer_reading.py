"""Reads timer messages by their places in the queue of rmq_sys_wheel_timer, each by itself where one cannot be read.

Source: none; Apache RocketMQ 5.x ``TimerMessageStore`` reads each by its place in the commit log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rocketbox.blocking import run_blocking
from rocketbox.broker.store.message_store import MessageStore
from rocketbox.broker.store.record_reading import WrongEntryError
from rocketbox.broker.timer_recalls import Entry
from rocketbox.message import MessageExt
from rocketbox.protocol.codes import TIMER_TOPIC
from rocketbox.protocol.stored_message import decode_message

__all__ = ["TimerReader"]

RUN = 32  # messages of neighbouring places that are read at once, and runs that a thread reads at once


class TimerReader:
    """Reads from the files and the memory of a store."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    async def read(self, entries: Iterable[Entry]) -> tuple[dict[int, MessageExt], dict[int, Exception]]:
        """The messages by their offsets, but for those that are gone; and those that cannot be read, and why.

        Raises StoreError.
        """
        found: list[bytes] = []
        unread: dict[int, Exception] = {}
        cold: list[tuple[int, int]] = []
        for begin, count in _runs(entries):
            try:
                result = self._store.get_from_memory(TIMER_TOPIC, 0, begin, count)
            except WrongEntryError:
                result = None
            if result is None or len(result.records) < count:
                cold.append((begin, count))
            else:
                found += result.records
        for at in range(0, len(cold), RUN):
            read, failed = await run_blocking(self.read_runs, cold[at : at + RUN])
            found += read
            unread |= failed
        messages = [decode_message(record, decompress=False)[0] for record in found]
        return {message.queue_offset: message for message in messages}, unread

    def read_runs(self, runs: Sequence[tuple[int, int]]) -> tuple[list[bytes], dict[int, Exception]]:
        """The records of runs of places; and the places that cannot be read, and why. Blocks; in any thread."""
        records: list[bytes] = []
        unread: dict[int, Exception] = {}
        for begin, count in runs:
            try:
                records += self._read_run(begin, count)
            except (OSError, WrongEntryError) as error:  # one of them; an entry that is wrong is mended meanwhile
                if count == 1:
                    unread[begin] = error
                    continue
                for offset in range(begin, begin + count):
                    try:
                        records += self._read_run(offset, 1)
                    except (OSError, WrongEntryError) as failed:
                        unread[offset] = failed
        return records, unread

    def _read_run(self, begin: int, count: int) -> list[bytes]:
        """The records of neighbouring places, but for those that are gone. Blocks; in any thread."""
        records: list[bytes] = []
        end = begin + count
        while begin < end:
            found = self._store.get(TIMER_TOPIC, 0, begin, end - begin)
            records += found.records
            if found.next_begin_offset <= begin:
                break
            begin = found.next_begin_offset
        return records


def _runs(entries: Iterable[Entry]) -> Iterator[tuple[int, int]]:
    """The first offset and the number of neighbouring ones, at most RUN of them."""
    begin = count = 0
    for _, offset in entries:
        if count and offset == begin + count and count < RUN:
            count += 1
            continue
        if count:
            yield begin, count
        begin, count = offset, 1
    if count:
        yield begin, count
