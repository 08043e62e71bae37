"""Replies to requests (324, 325): each is handed to the client that asked, which is all who sees it, and stored.

A request names its client by id (REPLY_TO_CLIENT), and so does the reply; the client is where a heartbeat with that id
came from; with access control one of the user who has sent the request (``askers``), and nobody where the broker does
not remember that, as of requests from before its start. It is handed the reply by code
326 and acknowledges it; only then is the replier answered. A client that is not connected here, takes no bytes, or has
``max-unanswered-replies`` to acknowledge still, is not waited for: the replier is told at once that nobody was reached
(code 1, in Apache's words), and may try another broker.

The copy in the reply topic is for people (``store-reply-message-enable``): a failure to store it is logged, and says
nothing about the reply.

Source: Apache RocketMQ 5.x ``ReplyMessageProcessor``, ``Broker2Client.callClient``. Unlike there, no thread waits for
the client, and the stored copy keeps the flags that say how its body is compressed.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Awaitable, Mapping
from functools import partial

from rocketbox.broker.context import BrokerContext
from rocketbox.broker.handlers.born_host import born_host
from rocketbox.broker.handlers.refused import Refused, TopicNotWrittenError
from rocketbox.broker.handlers.send_rules import SendRules
from rocketbox.broker.limits import LimitError
from rocketbox.broker.property_text import add_property, find_property, remove_properties
from rocketbox.broker.put_stage import PutOrigin
from rocketbox.broker.store.putting import PutResult
from rocketbox.errors import InvalidMessageError, LocalProtocolError, RemotingError, StoreError
from rocketbox.protocol.codes import RETRY_PREFIX, RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.headers import HeaderError, ReplyMessageRequestHeader, SendMessageRequestHeader
from rocketbox.protocol.request_reply import PUSH_REPLY_TIME, REPLY_TO_CLIENT
from rocketbox.protocol.send_frames import SendHead
from rocketbox.protocol.stored_message import StoredMessage
from rocketbox.rare_log import RareLog
from rocketbox.remoting.connection import Connection, RequestHandler
from rocketbox.waiters import Waiter, make_waiter

__all__ = ["ReplyHandler"]

_log = logging.getLogger(__name__)

PUSH_TIMEOUT = 10.0  # seconds in which a client acknowledges a reply; Apache's
LONGEST_SHOWN = 100  # characters of a client id that an answer repeats
_UNANSWERED = "broker.unanswered_replies"  # attribute of a connection
_REPLACED_PROPERTIES = frozenset({b"MSG_REGION", b"TRACE_ON", PUSH_REPLY_TIME.encode()})


class ReplyHandler:
    """Hands replies on."""

    def __init__(self, context: BrokerContext) -> None:
        options = context.options
        self._context = context
        self._rules = SendRules(context)
        self._clock = context.clock
        self._stores = options.store_reply_message_enable
        self._most_unanswered = options.max_unanswered_replies
        self._told = RareLog(_log)
        trace = "true" if options.trace_on else "false"
        self._answer_fields = {"MSG_REGION": options.region_id, "TRACE_ON": trace}
        self._added = f"MSG_REGION\x01{options.region_id}\x02TRACE_ON\x01{trace}\x02".encode()

    def codes(self) -> Mapping[int, RequestHandler]:
        return {RequestCode.SEND_REPLY_MESSAGE: self.handle, RequestCode.SEND_REPLY_MESSAGE_V2: self.handle}

    def handle(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        """Hand a reply to who asked, and store it; the answer follows when both are done."""
        try:
            return self._take(connection, request)
        except Refused as refused:
            code, remark = refused.code, refused.remark
        except HeaderError as error:
            code, remark = ResponseCode.SYSTEM_ERROR, str(error)
        except LimitError as error:
            code, remark = error.code, str(error)
        except TopicNotWrittenError as new:
            return self._context.replies.again_when_written(
                self._context.topics, new.topic, partial(self.handle, connection, request),
                ResponseCode.SERVICE_NOT_AVAILABLE, self._answer_fields,
            )  # fmt: skip
        return RemotingCommand.response(code, remark, self._answer_fields)

    def _take(self, connection: Connection, request: RemotingCommand) -> Awaitable[RemotingCommand | None]:
        self._rules.check_room()
        is_v2 = request.code == RequestCode.SEND_REPLY_MESSAGE_V2
        read = SendMessageRequestHeader.decode_v2 if is_v2 else SendMessageRequestHeader.decode
        header = read(request.ext_fields)
        queue_id = self._queue(connection, request, header)
        properties = remove_properties((header.properties or "").encode("utf-8", "replace"), _REPLACED_PROPERTIES)
        properties += self._added
        client = find_property(properties, REPLY_TO_CLIENT.encode())
        if client is None:
            push, remark = None, f"reply message properties[{REPLY_TO_CLIENT}] is null"
        else:
            push, remark = self._push(connection, request, header, properties, client.decode("utf-8", "replace"))
        stored = self._store(connection, request, header, queue_id, properties) if self._stores else None
        request.body = b""  # it is in the output and in the store: what waits is not kept once more
        return self._answer(queue_id, push, remark, stored)

    def _queue(self, connection: Connection, request: RemotingCommand, header: SendMessageRequestHeader) -> int:
        """The queue of the copy; raises for a reply that no topic takes, as for any send."""
        if header.batch or header.topic.startswith(RETRY_PREFIX):
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, "a reply is one message, and for no retry topic")
        _, queue_id = self._rules.place(_head(header), request, connection)
        self._rules.check_size(request.body)
        return queue_id

    def _push(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: SendMessageRequestHeader,
        properties: bytes,
        client: str,
    ) -> tuple[_Push | None, str]:
        """Hand the reply to its client, and what the replier is told if that fails, now or later."""
        shown = client[:LONGEST_SHOWN]
        if self._context.access is not None and not self._context.askers.knows(properties):
            return None, (
                f"push reply message fail, the request of <{shown}> is not known here: it was taken by another broker, "
                "before this one was started, or too many came since (maxRememberedRequests)"
            )
        asker = self._asker(client, properties)
        if asker is None or asker.closed:
            return None, f"push reply message fail, channel of <{shown}> not found."
        fail = f"push reply message to {shown}fail."
        if asker.attributes.get(_UNANSWERED, 0) >= self._most_unanswered or not asker.takes_requests:
            return None, f"{fail} It does not take what it was sent before (maxUnansweredReplies)"
        now = self._clock.time_ms()
        handed = ReplyMessageRequestHeader(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            properties=add_property(properties, PUSH_REPLY_TIME.encode(), b"%d" % now).decode("utf-8", "replace"),
            reconsume_times=header.reconsume_times,
            unit_mode=header.unit_mode,
            born_host=_host_text(born_host(connection)),
            store_host=_host_text(self._context.store.store_host),
            store_timestamp=now,
        )
        command = RemotingCommand.request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, handed.encode(), request.body)
        push = _Push(asker)
        try:
            asker.start(command, push, timeout=PUSH_TIMEOUT)
        except (LocalProtocolError, RemotingError) as error:
            push.set_exception(error)
            _log.debug("a reply could not be handed to %s: %s", asker.remote_address, error)
        return push, fail

    def _asker(self, client: str, properties: bytes) -> Connection | None:
        """Where the client is that asked: one of the user who has sent the request, if that is known."""
        context = self._context
        user = context.askers.user_of(properties)
        if user is None or context.access is None:
            return context.producers.connection_of(client)
        return context.producers.connection_of(client, partial(context.access.has_signed, access_key=user))

    def _store(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: SendMessageRequestHeader,
        queue_id: int,
        properties: bytes,
    ) -> PutResult | None:
        message = StoredMessage(
            header.topic,
            queue_id,
            request.body,
            properties,
            header.flag,
            header.sys_flag,
            header.born_timestamp,
            born_host(connection),
            header.reconsume_times or 0,
        )
        try:
            return self._context.puts.put(message, PutOrigin.SEND)
        except (StoreError, InvalidMessageError) as error:
            self._not_stored(error)
            return None

    def _not_stored(self, error: BaseException) -> None:
        self._told.tell(
            logging.WARNING, self._clock.monotonic(), "store", "the copy of a reply was not stored: %s", error
        )

    async def _answer(
        self, queue_id: int, push: _Push | None, remark: str, stored: PutResult | None
    ) -> RemotingCommand:
        """What the replier is told: whether the reply was taken, and where its copy lies if it has one."""
        flushed = None
        if stored is not None:
            flushed = make_waiter()  # asked for now, not when the client has answered: see MessageStore.when_durable
            self._context.store.when_durable(stored.end_offset, flushed.set_result)
        taken = push is not None and await push.taken
        if stored is not None and flushed is not None and (error := await flushed) is not None:
            self._not_stored(error)
            stored = None
        fields = dict(self._answer_fields)
        if stored is not None:
            fields |= {"msgId": stored.msg_id, "queueId": str(queue_id), "queueOffset": str(stored.queue_offset)}
        elif taken:
            fields |= {"msgId": "0", "queueId": str(queue_id), "queueOffset": "0"}
        if taken:
            return RemotingCommand.response(ResponseCode.SUCCESS, ext_fields=fields)
        return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, remark, fields)


class _Push:
    """A reply on its way to a client; takes its answer. ``taken`` is awaited once: whether the client has it."""

    __slots__ = ("_asker", "taken")

    def __init__(self, asker: Connection) -> None:
        self._asker = asker
        self.taken: Waiter = make_waiter()
        asker.attributes[_UNANSWERED] = asker.attributes.get(_UNANSWERED, 0) + 1

    def done(self) -> bool:
        return False  # whoever waits for it or not, it is counted until it has ended

    def set_result(self, answer: RemotingCommand, /) -> None:
        if answer.code != ResponseCode.SUCCESS:
            _log.debug("%s refuses a reply: code %d, %a", self._asker.remote_address, answer.code, answer.remark)
        self._end(answer.code == ResponseCode.SUCCESS)

    def set_exception(self, error: RemotingError, /) -> None:
        self._end(False)

    def _end(self, taken: bool) -> None:
        self._asker.attributes[_UNANSWERED] -= 1
        if not self.taken.done():  # who waited was cancelled
            self.taken.set_result(taken)


def _head(header: SendMessageRequestHeader) -> SendHead:
    """What the rules of sends want to know of it."""
    return SendHead(
        header.topic,
        header.default_topic,
        header.default_topic_queue_nums,
        header.queue_id,
        header.sys_flag,
        header.flag,
        header.reconsume_times or 0,
        header.max_reconsume_times,
        bool(header.batch),
    )


def _host_text(host: tuple[bytes, int]) -> str:
    """``ip:port`` as Java writes and reads it: an IPv6 address has no brackets."""
    ip, port = host
    return f"{ipaddress.ip_address(ip)}:{port}"
