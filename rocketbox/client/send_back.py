"""The way back to the broker for a message that was not consumed: to the group's retry topic, or its dead-letter topic.

First the broker that has the message is asked to copy it (code 36); when it cannot, the message is sent to the retry
topic like a new one, to any broker of it, as it came: whatever a handler made of its body and properties.

A delay that is none of the levels is no matter for the broker's copy: such a message is sent from the start. So is one
that says to have been sent to another topic than it lies in: the copy would keep that, and come back to the handler of
the other topic, or to none, or be taken for one of its dead letters. Dead letters say so, and others whose senders have
written it (Java's client has both come back so).

A user who may consume for the group may do both, with ACL 1.0 and 2.0. The second is sent in the consumer group's name:
ACL 1.0 looks for the permission on the group that sends (Java's client sends it as CLIENT_INNER_PRODUCER, which takes
one more). Where both are refused, the message stays here, uncommitted, and is handled again every 5 s.

Source: Apache RocketMQ 5.x ``DefaultMQPushConsumerImpl.sendMessageBack``.
"""

from __future__ import annotations

import logging
import zlib
from contextlib import suppress
from datetime import timedelta

from rocketbox.client.api.groups import send_message_back
from rocketbox.client.delays import milliseconds
from rocketbox.client.instance import MQClientInstance
from rocketbox.client.outcomes import DEAD_LETTER
from rocketbox.client.sending import Sender
from rocketbox.errors import AccessDeniedError, NotDurableError, RocketBoxError
from rocketbox.message import Compression, MessageExt, Property, decode_properties
from rocketbox.protocol.codes import DLQ_PREFIX, MessageSysFlag, retry_topic
from rocketbox.protocol.compression import sys_flag_of
from rocketbox.rare_log import RareLog
from rocketbox.safe_repr import one_line

__all__ = ["DEFAULT_MAX_RECONSUME_TIMES", "FIRST_RETRY_LEVEL", "SendBack"]

_log = logging.getLogger(__name__)

DEFAULT_MAX_RECONSUME_TIMES = 16
_DOING = "giving failed messages back"
_NOTHING = zlib.compress(b""), sys_flag_of(Compression.ZLIB)  # an empty body that goes to and fro as any other
MOST_TIMES = 2**31 - 1  # that a record, or an int of Java, can say; a sender may have written as many
SEND_BACK_TIMEOUT = 5.0  # seconds
FIRST_RETRY_LEVEL = 3  # 10 s; one level more with each return


class SendBack:
    """Sends messages of one group back."""

    def __init__(self, group: str, instance: MQClientInstance) -> None:
        self._group = group
        self._instance = instance
        self._sender = Sender(group, instance)
        self._told = RareLog(_log)

    async def send_back(
        self, message: MessageExt, delay_level: int, max_reconsume_times: int, delay: timedelta | None = None
    ) -> bool:
        """Whether the message is safe at a broker again; False when no broker took it, of which the log tells.

        ``delay_level`` 0 lets the broker decide, -1 means the dead-letter topic; ``max_reconsume_times`` -1 means 16.
        ``delay`` is what is wanted in truth, where that is none of the levels: brokers from 5.0 on keep to it.
        """
        most = DEFAULT_MAX_RECONSUME_TIMES if max_reconsume_times < 0 else max_reconsume_times
        instance = self._instance
        refusals = instance.refusals(self._group)
        if refusals.rest(_DOING):
            return False
        if delay is not None and await self._send_for(message, delay, most):
            return True
        if _is_taken_for_another(message, delay_level):
            is_sent = await self._send_again(message, delay_level, most)
            if is_sent:
                refusals.allowed(_DOING)
            return is_sent
        try:
            await send_message_back(
                instance.remoting,
                instance.broker_address(message.broker_name),
                self._group,
                message,
                delay_level=delay_level,
                max_reconsume_times=most,
                timeout=SEND_BACK_TIMEOUT,
            )
        except AccessDeniedError as error:
            refusals.refused(_DOING, error)
            return await self._send_again(message, delay_level, most)
        except RocketBoxError as error:
            self._told.tell(
                logging.WARNING, instance.clock.monotonic(), "not taken back",
                "group %s: %s did not take message %s back, it is sent to the retry topic: %s",
                self._group, message.broker_name, one_line(message.msg_id), error,
            )  # fmt: skip
            return await self._send_again(message, delay_level, most)
        refusals.allowed(_DOING)
        return True

    async def _send_for(self, message: MessageExt, delay: timedelta, most: int) -> bool:
        """Send it to the retry topic with a delay to the millisecond; False, the reason told, if it goes by levels."""
        properties = self._properties(message)
        properties.pop(Property.DELAY, None)
        properties["TIMER_DELAY_MS"] = str(milliseconds(delay))
        properties[Property.RECONSUME_TIME] = str(min(message.reconsume_times + 1, MOST_TIMES))
        properties[Property.MAX_RECONSUME_TIMES] = str(most)
        try:
            await self._send(message, properties, timed=True)
        except RocketBoxError as error:
            _log.debug(
                "group %s: message %s goes back by a delay level: %s", self._group, one_line(message.msg_id), error
            )
            return False
        return True

    async def _send(self, message: MessageExt, properties: dict[str, str], *, timed: bool = False) -> None:
        body, packing = message.received_body, _packing(message)
        if not body:  # which no broker takes
            body, packing = _NOTHING
        with suppress(NotDurableError):  # it is stored, as safely as that broker can
            await self._sender.send_prepared(
                retry_topic(self._group),
                body,
                properties,
                flag=message.flag,
                sys_flag=packing,
                timed=timed,
                timeout=SEND_BACK_TIMEOUT,
            )

    @staticmethod
    def _properties(message: MessageExt) -> dict[str, str]:
        """What a message has when it is sent to the retry topic; times of earlier deliveries are not among it."""
        properties = {
            name: value.replace("\x01", " ")  # where a sender has written what no client writes
            for name, value in decode_properties(message.raw_properties).items()
            if not name.startswith("TIMER_") and name != Property.TRAN_MSG
        }
        properties.setdefault(Property.ORIGIN_MESSAGE_ID, message.msg_id)
        if message.topic.startswith(DLQ_PREFIX) and Property.RETRY_TOPIC in properties:
            properties.setdefault(Property.DLQ_ORIGIN_TOPIC, properties[Property.RETRY_TOPIC])
        properties[Property.RETRY_TOPIC] = message.topic
        return properties

    async def _send_again(self, message: MessageExt, delay_level: int, most: int) -> bool:
        properties = self._properties(message)
        # One more than allowed is how a message that is sent, not sent back, reaches the dead-letter topic.
        tries = most + 1 if delay_level == DEAD_LETTER else message.reconsume_times + 1
        properties[Property.RECONSUME_TIME] = str(min(tries, MOST_TIMES))
        properties[Property.MAX_RECONSUME_TIMES] = str(most)
        level = delay_level if delay_level > 0 else FIRST_RETRY_LEVEL + message.reconsume_times
        properties[Property.DELAY] = str(min(level, MOST_TIMES))
        try:
            await self._send(message, properties)
        except AccessDeniedError as error:
            self._instance.refusals(self._group).refused(_DOING, error)
            return False
        except RocketBoxError as error:
            self._told.tell(
                logging.WARNING, self._instance.clock.monotonic(), "not sent",
                "group %s: message %s could not be sent back at all, it is handled again here: %s",
                self._group, one_line(message.msg_id), error,
            )  # fmt: skip
            return False
        return True


def _is_taken_for_another(message: MessageExt, delay_level: int) -> bool:
    """Whether a copy of the message would say that it was in another topic than it was.

    A dead letter that is buried once more may: nobody handles that as one of its first topic.
    """
    if message.properties.get(Property.RETRY_TOPIC) in (None, message.topic):
        return False
    return delay_level != DEAD_LETTER or not message.topic.startswith(DLQ_PREFIX)


def _packing(message: MessageExt) -> int:
    """The flags that say how the body is compressed; none where it was unpacked when it came."""
    packed = message.sys_flag & MessageSysFlag.COMPRESSED
    return message.sys_flag & (MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_MASK) if packed else 0
