"""The ends of transactions (37): commits and rollbacks, from producers by themselves or because they were asked.

Clients send them one-way, as Apache's do; who asks for an answer gets it when the end is durable.

Source: Apache RocketMQ 5.x ``EndTransactionProcessor``.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping

from rocketbox.access.resources import Action, topic_need
from rocketbox.broker.context import BrokerContext
from rocketbox.broker.durable_replies import code_of
from rocketbox.broker.handlers.refused import Refused
from rocketbox.broker.open_halves import Half
from rocketbox.broker.property_text import find_property
from rocketbox.broker.unparking import real_topic
from rocketbox.errors import InvalidMessageError, RemoteProtocolError, StoreError
from rocketbox.message import MessageExt
from rocketbox.protocol.codes import TRANS_HALF_TOPIC, MessageSysFlag, RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.headers import EndTransactionRequestHeader
from rocketbox.protocol.stored_message import decode_message
from rocketbox.remoting.connection import Connection, RequestHandler

__all__ = ["TransactionHandler"]

_log = logging.getLogger(__name__)

UNKNOWN = 0
ENDS = (int(MessageSysFlag.TRANSACTION_COMMIT), int(MessageSysFlag.TRANSACTION_ROLLBACK))


class TransactionHandler:
    """Answers code 37."""

    def __init__(self, context: BrokerContext) -> None:
        self._halves = context.halves
        self._store = context.store
        self._replies = context.replies
        self._refusal = context.refusal
        self._clock = context.clock

    def codes(self) -> Mapping[int, RequestHandler]:
        return {RequestCode.END_TRANSACTION: self.handle}

    def handle(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        """End the transaction whose half message the header names."""
        header = EndTransactionRequestHeader.decode(request.ext_fields)
        if header.commit_or_rollback == UNKNOWN:
            _log.debug("transaction %a is not decided yet: %a", header.msg_id, request.remark)
            return RemotingCommand.response()
        if header.commit_or_rollback not in ENDS:
            return RemotingCommand.response(
                ResponseCode.SYSTEM_ERROR, f"commitOrRollback is {header.commit_or_rollback}, which is no end"
            )
        half = self._halves.find(header.tran_state_table_offset, header.commit_log_offset)
        record = self._store.read_from_memory(header.commit_log_offset)
        if record is None or (self._halves.lacks_places if half is None else half.is_doubtful):
            return self._end_from_disk(connection, request, header)
        return self._take(connection, request, header, record)

    async def _end_from_disk(
        self, connection: Connection, request: RemotingCommand, header: EndTransactionRequestHeader
    ) -> RemotingCommand | None:
        """End one whose half must be read from a file first, or looked up; not for an offset that is no open half's."""
        place = header.tran_state_table_offset, header.commit_log_offset
        record = self._store.read_from_memory(header.commit_log_offset)
        try:
            half = self._halves.find(*place) or await self._halves.find_from_before(*place)
            if half is not None:
                record = await self._store.read_record(header.commit_log_offset)
            if half is not None and half.is_doubtful and record is not None:
                counts = await self._store.read_record(half.log_offset)
                if counts is None:
                    return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, "the half message that counts is gone")
                if await self._halves.has_ended_after_all(half, decode_message(counts, decompress=False)[0]):
                    await self._halves.find_from_before(*place)  # a copy of it may be open
        except (StoreError, OSError, RemoteProtocolError) as error:  # it is open still, and will be checked
            return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, str(error))
        return self._take(connection, request, header, record)

    def _take(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: EndTransactionRequestHeader,
        record: bytes | None,
    ) -> RemotingCommand | None:
        try:
            return self._end(connection, request, header, record)
        except Refused as refused:
            _log.debug("transaction %a does not end now: %s", header.msg_id, refused.remark)
            return refused.response()
        except (InvalidMessageError, RemoteProtocolError) as error:
            return RemotingCommand.response(ResponseCode.MESSAGE_ILLEGAL, str(error))
        except StoreError as error:  # it is open still, and will be checked
            return RemotingCommand.response(code_of(error), str(error))

    def _end(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: EndTransactionRequestHeader,
        record: bytes | None,
    ) -> RemotingCommand | None:
        if self._replies.is_full:
            raise Refused(ResponseCode.SYSTEM_BUSY, f"broker busy, {self._replies.waiting} requests wait for the disk")
        message = None if record is None else decode_message(record, decompress=False)[0]
        if message is not None:
            is_half = message.topic == TRANS_HALF_TOPIC
            topic = real_topic(message)[0] if is_half else message.topic
            refusal = self._refusal(connection, request, (topic_need(topic, Action.PUB),))
            if refusal is not None:
                return refusal
        if message is None or message.topic != TRANS_HALF_TOPIC:
            raise Refused(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
        self._check_half(header, message)
        half = self._half(header)
        if header.commit_or_rollback == MessageSysFlag.TRANSACTION_COMMIT:
            end_offset = self._halves.commit(half, message)
        else:
            end_offset = self._halves.roll_back(half)
        self._replies.answer(connection, request, RemotingCommand.response(), end_offset)
        return None

    @staticmethod
    def _check_half(header: EndTransactionRequestHeader, message: MessageExt) -> None:
        if find_property(message.raw_properties, b"PGROUP") != header.producer_group.encode(errors="replace"):
            raise Refused(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        said = {each.encode(errors="replace") for each in (header.transaction_id, header.msg_id) if each}
        if said and (known := find_property(message.raw_properties, b"UNIQ_KEY")) and known not in said:
            # That one is lost, as by a power failure while the disk is not waited for, and another has its place.
            raise Refused(ResponseCode.SYSTEM_ERROR, "The half message there is of another transaction")
        if message.queue_offset != header.tran_state_table_offset:
            raise Refused(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
        if message.commit_log_offset != header.commit_log_offset:
            raise Refused(ResponseCode.SYSTEM_ERROR, "The commit log offset wrong")

    def _half(self, header: EndTransactionRequestHeader) -> Half:
        half = self._halves.find(header.tran_state_table_offset, header.commit_log_offset)
        if half is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                "the transaction has ended before, or its half message is not known by this place; nothing was done",
            )
        late = half.checks > 0 or self._clock.monotonic() > half.due
        if half.is_immune and late and not header.from_transaction_check:
            raise Refused(
                ResponseCode.ILLEGAL_OPERATION,
                "it comes later than CHECK_IMMUNITY_TIME_IN_SECONDS of the message; the answer to a check ends it",
            )
        return half
