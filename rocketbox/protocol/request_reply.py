"""Requests and replies among messages: the properties by which they find each other, and the topic of replies.

A request is a message like any other with three more properties. Its reply goes to the topic of the cluster that has
the request, by code 325; the broker hands it to the client that the request names, by code 326.

    request  CORRELATION_ID  REPLY_TO_CLIENT (client id)  TTL (ms)       and CLUSTER, which its broker adds
    reply    the same three, MSG_TYPE=reply                              and PUSH_REPLY_TIME, ARRIVE_TIME on the way

Ours are two further properties: a request says by one that its sender understands errors as answers, and a reply by the
other that it is one. Java's clients know neither: they never get such a reply, for their requests do not ask for it.

Source: Apache RocketMQ 5.x ``MessageUtil``, ``MessageConst``, ``MixAll.getReplyTopic``, ``CorrelationIdUtil``.
"""

from __future__ import annotations

import ipaddress
from typing import Final

from rocketbox.message import MessageExt
from rocketbox.protocol.codes import MessageSysFlag
from rocketbox.protocol.compression import unpack
from rocketbox.protocol.headers import ReplyMessageRequestHeader

__all__ = [
    "ARRIVE_TIME",
    "CORRELATION_ID",
    "ERROR_CLASS",
    "MESSAGE_TYPE",
    "PUSH_REPLY_TIME",
    "REPLY",
    "REPLY_TOPIC_SUFFIX",
    "REPLY_TO_CLIENT",
    "TAKES_ERRORS",
    "TTL",
    "asks_for_reply",
    "message_of_reply",
    "reply_topic",
]

CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
TTL: Final = "TTL"
REPLY_TOPIC_SUFFIX: Final = "_REPLY_TOPIC"
MESSAGE_TYPE: Final = "MSG_TYPE"
REPLY: Final = "reply"  # the MSG_TYPE of one
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
ARRIVE_TIME: Final = "ARRIVE_TIME"
TAKES_ERRORS: Final = "ROCKETBOX_TAKES_ERRORS"
ERROR_CLASS: Final = "ROCKETBOX_ERROR_CLASS"

_REPLY_TO_CLIENT = b"REPLY_TO_CLIENT\x01"


def reply_topic(cluster: str) -> str:
    """The topic to which replies of a cluster are sent; its brokers make it for themselves."""
    return cluster + REPLY_TOPIC_SUFFIX


def message_of_reply(header: ReplyMessageRequestHeader, body: bytes, max_body_bytes: int) -> MessageExt:
    """A reply that was handed over (326), as a message: it has no place in a queue and no size of a record.

    Raises RemoteProtocolError when its body cannot be unpacked to at most ``max_body_bytes``.
    """
    sys_flag = header.sys_flag
    if sys_flag & MessageSysFlag.COMPRESSED:
        body = unpack(body, sys_flag, max_body_bytes)
        sys_flag &= ~MessageSysFlag.COMPRESSED
    fields = (
        0, 0, 0, header.queue_id, header.flag, 0, 0, int(sys_flag), header.born_timestamp, *_host(header.born_host),
        header.store_timestamp, *_host(header.store_host), header.reconsume_times or 0, 0, len(body),
    )  # fmt: skip
    return MessageExt(fields, body, header.topic, (header.properties or "").encode("utf-8", "replace"))


def _host(text: str) -> tuple[bytes, int]:
    """IP and port of ``ip:port``, of an IPv6 address with brackets or, as Java has it, without."""
    host, _, port = text.rpartition(":")
    try:
        return ipaddress.ip_address(host.strip("[]/").partition("%")[0]).packed, int(port)
    except ValueError:
        return bytes(4), 0


def asks_for_reply(raw_properties: bytes) -> bool:
    """Whether a message with this property text is a request, at a glance."""
    return _REPLY_TO_CLIENT in raw_properties
