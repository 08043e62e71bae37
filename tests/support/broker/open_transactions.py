"""The transactions of a broker on a store alone: no sockets, a clock that stands still, a producer that remembers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from rocketbox.broker.half_messages import HalfMessages
from rocketbox.broker.offsets import OffsetTable
from rocketbox.broker.open_halves import Half
from rocketbox.broker.options import BrokerOptions
from rocketbox.broker.put_stage import PutStage
from rocketbox.broker.store.message_store import MessageStore
from rocketbox.broker.store.options import StoreOptions
from rocketbox.broker.topics import TopicTable
from rocketbox.broker.transaction_checks import TransactionChecks
from rocketbox.message import MessageExt
from rocketbox.protocol.codes import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.stored_message import StoredMessage, decode_message
from rocketbox.storage.file_system import Storage
from tests.support.broker.table_tools import table_file, text_of
from tests.support.clocks import VirtualClock

__all__ = ["OpenTransactions", "offsets_text", "open_transactions"]

ROOT = "/store"
TOPIC = "orders"


class _Member:
    """A connected producer."""

    closed = congested = False

    def __init__(self) -> None:
        self.asked: list[RemotingCommand] = []

    def send_oneway(self, command: RemotingCommand) -> None:
        self.asked.append(command)


class _Members:
    """The table of producers: one group, at first of one member."""

    def __init__(self) -> None:
        self.member = _Member()
        self.all = [self.member]

    def join(self) -> _Member:
        """One more member of the group."""
        self.all.append(_Member())
        return self.all[-1]

    def channels(self, group: str) -> dict[Any, None]:
        return dict.fromkeys(self.all) if group == "payers" else {}


@dataclass
class OpenTransactions:
    """A broker's transactions, and what a test does to them."""

    clock: VirtualClock
    store: MessageStore
    halves: HalfMessages
    checks: TransactionChecks
    offsets: OffsetTable
    members: _Members = field(default_factory=_Members)

    def begin(
        self, name: str, properties: str = "", *, by: str = "10.0.0.1:1", body: bytes = b"", born_ms: int | None = None
    ) -> int:
        """Put a half message; where it ends in the log. ``born_ms`` is by its sender's clock."""
        text = f"UNIQ_KEY\x01{name}\x02TRAN_MSG\x01true\x02PGROUP\x01payers\x02{properties}"
        born = self.clock.time_ms() if born_ms is None else born_ms
        message = StoredMessage(TOPIC, 0, body or f"body of {name}".encode(), text.encode(), born_timestamp_ms=born)
        return self.halves.put(message, name.encode(), by).end_offset

    def open_names(self) -> list[str]:
        """Which transactions are open, by the name in the record of each half that counts, if that is written."""
        return [self.read(half.log_offset).msg_id for half in self._written()]

    def _written(self) -> list[Half]:
        end = self.store.max_commit_log_offset
        return [half for half in self.halves.due(float("inf")) if half.log_offset < end]

    def read(self, log_offset: int) -> MessageExt:
        record = self.store.read(log_offset)
        assert record is not None, f"no record at {log_offset}"
        return decode_message(record)[0]

    def end(self, name: str, *, commit: bool) -> int:
        """End an open transaction; where that stands in the log."""
        for half in self._written():
            message = self.read(half.log_offset)
            if message.msg_id == name:
                return self.halves.commit(half, message) if commit else self.halves.roll_back(half)
        raise AssertionError(f"{name} is not open")

    def names(self, topic: str = TOPIC) -> list[str]:
        """The messages of a topic's first queue."""
        return [each.msg_id for each in self.messages(topic)]

    def messages(self, topic: str = TOPIC) -> list[MessageExt]:
        found: list[MessageExt] = []
        while records := self.store.get(topic, 0, len(found)).records:
            found += [decode_message(record)[0] for record in records]
        return found

    def asked(self, member: _Member) -> list[str]:
        """The transactions that a member of the group was asked about."""
        return [request.ext_fields["msgId"] for request in member.asked]

    def given_up(self) -> list[str]:
        return self.names(TRANS_CHECK_MAX_TIME_TOPIC)

    def halves_stored(self) -> list[str]:
        return self.names(TRANS_HALF_TOPIC)


@asynccontextmanager
async def open_transactions(
    storage: Storage,
    options: StoreOptions,
    *,
    clock: VirtualClock | None = None,
    offsets: str | None = None,
    root: str = ROOT,
    **settings: Any,
) -> AsyncIterator[OpenTransactions]:
    """``offsets`` is the text of consumerOffset.json as it was written last, ``settings`` are the broker's."""
    clock = clock or VirtualClock()
    broker = BrokerOptions(store_path_root_dir=Path(root), store=options, **settings)
    topics = TopicTable(broker, clock, table_file(clock), lambda topic: None)
    table = OffsetTable(clock, table_file(clock), most=broker.max_offsets)
    async with MessageStore(root, options, clock=clock, storage=storage) as store:
        if offsets is not None:
            table.load(offsets)
        if store.report is not None and not store.report.clean:
            table.bring_back(store.max_offset)
        halves = HalfMessages(store, PutStage(store, []), topics, table, broker, clock)
        await halves.load()
        members = _Members()
        checks = TransactionChecks(halves, store, cast(Any, members), broker, clock)
        yield OpenTransactions(clock, store, halves, checks, table, members)
        halves.end()


def offsets_text(run: OpenTransactions) -> str:
    """What consumerOffset.json would hold now."""
    return text_of(run.offsets)
