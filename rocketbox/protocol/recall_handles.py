"""Recall handles: what a broker answers to the send of a timer message, and by which the message is called back.

URL-safe base64 of ``v1 <topic> <broker name> <time, epoch ms> <UNIQ_KEY>``. The time is that of delivery as the broker
counts it: rounded to its precision.

Source: Apache RocketMQ 5.3 ``RecallMessageHandle``.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

__all__ = ["RecallHandle", "decode_recall_handle", "encode_recall_handle"]

MOST_CHARACTERS = 4096  # a topic, a broker's name and an id take some hundred
_VERSION = "v1"


@dataclass(frozen=True, slots=True)
class RecallHandle:
    """What a handle says. ``topic`` is named as servers know it; ``time_ms`` is when the message is delivered."""

    topic: str
    broker_name: str
    time_ms: int
    msg_id: str


def encode_recall_handle(handle: RecallHandle) -> str:
    """The handle's text, with its padding."""
    parts = (_VERSION, handle.topic, handle.broker_name, str(handle.time_ms), handle.msg_id)
    return base64.urlsafe_b64encode(" ".join(parts).encode()).decode()


def decode_recall_handle(text: str) -> RecallHandle:
    """What a handle says. Raises ValueError for a text that is none."""
    if not text or len(text) > MOST_CHARACTERS or not text.isascii():
        raise ValueError("recall handle is invalid")
    try:
        raw = base64.b64decode(text.encode() + b"=" * (-len(text) % 4), altchars=b"-_", validate=True).decode()
        version, topic, broker_name, time, msg_id, *_ = raw.split(" ")
        if version != _VERSION or not (topic and broker_name and msg_id) or not time.isdecimal():
            raise ValueError(raw)
        return RecallHandle(topic, broker_name, int(time), msg_id)
    except (ValueError, binascii.Error) as error:
        raise ValueError("recall handle is invalid") from error
