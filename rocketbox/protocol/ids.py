"""Message ids: the one a client makes (UNIQ_KEY) and the one that names the broker and the place (offset id).

UNIQ_KEY is upper-case hex of: ip 4 or 16 bytes, process id 2, a number of the process 4, ms since the month began 4,
counter 2. The first three are fixed for a process and made anew after a fork.

Source: Apache RocketMQ 5.x ``MessageClientIDSetter``, ``MessageDecoder.decodeMessageId``.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from itertools import count
from typing import Protocol

from rocketbox.errors import InvalidMessageError

__all__ = ["UniqIdGenerator", "parse_offset_msg_id"]

LOOPBACK = b"\x7f\x00\x00\x01"
_PROCESS = struct.Struct(">HI")
_TIME_AND_COUNTER = struct.Struct(">IH")


class RandomBits(Protocol):
    """Where random numbers come from (``Clock.random``)."""

    def getrandbits(self, bits: int, /) -> int: ...


class UniqIdGenerator:
    """Makes ids that no other process makes: ``time_ms`` is asked for each of them, ``random`` once a process.

    ``ip`` are the 4 or 16 bytes of this machine's address.
    """

    def __init__(self, time_ms: Callable[[], int], random: RandomBits, ip: bytes = LOOPBACK) -> None:
        self._time_ms = time_ms
        self._random = random
        self._ip = ip
        self._month_start = self._next_month = 0
        self._begin_process()

    def _begin_process(self) -> None:
        self._pid = os.getpid()
        # A forked child has its parent's random state; its process id keeps the two apart.
        number = self._random.getrandbits(32) ^ (self._pid * 0x9E37_79B1 & 0xFFFF_FFFF)
        self._prefix = (self._ip + _PROCESS.pack(self._pid & 0xFFFF, number)).hex().upper()
        self._counter = count(self._random.getrandbits(16))

    def next(self) -> str:
        """A new id: 32 characters with an IPv4 address, 56 with an IPv6 one."""
        if os.getpid() != self._pid:
            self._begin_process()
        now = self._time_ms()
        if not self._month_start <= now < self._next_month:
            self._begin_month(now)
        tail = _TIME_AND_COUNTER.pack((now - self._month_start) & 0xFFFF_FFFF, next(self._counter) & 0xFFFF)
        return self._prefix + tail.hex().upper()

    def _begin_month(self, now: int) -> None:
        year, month = time.localtime(now / 1000)[:2]
        self._month_start = int(time.mktime((year, month, 1, 0, 0, 0, 0, 0, -1)) * 1000)
        self._next_month = int(time.mktime((year, month + 1, 1, 0, 0, 0, 0, 0, -1)) * 1000)


def parse_offset_msg_id(msg_id: str) -> tuple[bytes, int, int]:
    """(ip of 4 or 16 bytes, port, commit-log offset) of an offset id of 32 or 56 characters.

    Raises InvalidMessageError for other text.
    """
    try:
        data = bytes.fromhex(msg_id)
    except ValueError:
        data = b""
    if len(data) not in (16, 28):
        raise InvalidMessageError(f"{msg_id!r} is not an offset message id of 32 or 56 hexadecimal digits")
    port, offset = struct.unpack(">iq", data[-12:])
    return data[:-12], port, offset
