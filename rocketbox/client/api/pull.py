"""Pulling messages from a queue (codes 11 and 361).

Source: Apache RocketMQ 5.x ``MQClientAPIImpl.pullMessage``, ``processPullResponse``, ``PullResult``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from rocketbox.client.api.answers import ask
from rocketbox.client.api.stored_names import unwrap_names
from rocketbox.message import MessageExt
from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.compression import MAX_BODY_BYTES
from rocketbox.protocol.headers import PullMessageRequestHeader, PullMessageResponseHeader
from rocketbox.protocol.stored_message import decode_messages, decode_some_messages
from rocketbox.remoting.client import RemotingClient

__all__ = ["PullResult", "PullStatus", "PulledRecords", "pull_message", "pull_records"]


class PullStatus(Enum):
    """How a pull ended; each of them says at ``next_begin_offset`` where to go on."""

    FOUND = ResponseCode.SUCCESS
    NO_NEW_MSG = ResponseCode.PULL_NOT_FOUND
    NO_MATCHED_MSG = ResponseCode.PULL_RETRY_IMMEDIATELY
    OFFSET_ILLEGAL = ResponseCode.PULL_OFFSET_MOVED


_STATUS = {int(status.value): status for status in PullStatus}
_ALSO = tuple(code for code in _STATUS if code != ResponseCode.SUCCESS)


@dataclass(frozen=True, slots=True)
class PullResult:
    """What a pull brought. ``min_offset`` and ``max_offset`` are the queue's at that moment."""

    status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    messages: Sequence[MessageExt] = ()
    suggest_which_broker_id: int = 0


@dataclass(frozen=True, slots=True)
class PulledRecords:
    """The same, with the messages as they are stored: their records back to back, as they came."""

    status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    records: bytes = b""
    suggest_which_broker_id: int = 0


async def pull_records(
    remoting: RemotingClient, address: str, header: PullMessageRequestHeader, *, timeout: float
) -> PulledRecords:
    """Ask for messages; with the SUSPEND flag the broker waits ``suspend_timeout_millis`` for one to come.

    A tag expression is matched by hash on the broker: who pulls must compare the tags themselves. What is stored has
    names as servers know them (``RemotingClient.namespace``).
    """
    if namespace := remoting.namespace:
        header = replace(
            header, consumer_group=namespace.wrap(header.consumer_group), topic=namespace.wrap(header.topic)
        )
    command = RemotingCommand.request(RequestCode.PULL_MESSAGE, header.encode())
    answer = await ask(remoting, address, command, timeout=timeout, also=_ALSO)
    found = PullMessageResponseHeader.decode(answer.ext_fields)
    status = _STATUS[answer.code]
    return PulledRecords(
        status,
        found.next_begin_offset,
        found.min_offset,
        found.max_offset,
        answer.body if status is PullStatus.FOUND else b"",
        found.suggest_which_broker_id,
    )


async def pull_message(
    remoting: RemotingClient,
    address: str,
    header: PullMessageRequestHeader,
    *,
    timeout: float,
    decompress: bool = True,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> PullResult:
    """The same, decoded: of compressed messages as many as unpack to little more than ``max_body_bytes`` together."""
    found = await pull_records(remoting, address, header, timeout=timeout)
    next_begin_offset = found.next_begin_offset
    if decompress:
        messages, is_all = decode_some_messages(
            found.records, header.bname or "", max_body_bytes=max_body_bytes, below=next_begin_offset
        )
        if not is_all:
            next_begin_offset = messages[-1].queue_offset + 1
    else:
        messages = decode_messages(found.records, header.bname or "", decompress=False)
    if remoting.namespace:
        unwrap_names(messages, remoting.namespace)
    return PullResult(
        found.status,
        next_begin_offset,
        found.min_offset,
        found.max_offset,
        messages,
        found.suggest_which_broker_id,
    )
