"""Message ids: the one a client makes (UNIQ_KEY) and the one that names the broker and the place (offset id).

UNIQ_KEY is upper-case hex of: ip 4 or 16 bytes, process id 2, a number of the process 4, ms since the month began 4,
counter 2. The first three are those of a process. Whenever the counter begins anew the time goes on, if need be ahead
of the clock: of more than 65,536 messages at one time, as in a large batch, no two have one id.

Source: Apache RocketMQ 5.x ``MessageClientIDSetter``, ``MessageDecoder.decodeMessageId``. There each message of a batch
has a time of its own.
"""

from __future__ import annotations

import os
import struct
import time
from itertools import count
from typing import Protocol

from rocketbox.errors import InvalidMessageError

__all__ = ["UniqIdGenerator", "parse_offset_msg_id"]

LOOPBACK = b"\x7f\x00\x00\x01"
_PROCESS = struct.Struct(">HI")


class RandomBits(Protocol):
    """Where random numbers come from (``Clock.random``)."""

    def getrandbits(self, bits: int, /) -> int: ...


class UniqIdGenerator:
    """Makes ids that no other process makes; ``random`` is asked once. It belongs to the process that made it: a fork
    makes a new one.

    ``ip`` are the 4 or 16 bytes of this machine's address.
    """

    def __init__(self, random: RandomBits, ip: bytes = LOOPBACK) -> None:
        process = os.getpid()
        # A fork has its parent's random state; its process id keeps the two apart.
        number = random.getrandbits(32) ^ (process * 0x9E37_79B1 & 0xFFFF_FFFF)
        self._prefix = (ip + _PROCESS.pack(process & 0xFFFF, number)).hex().upper()
        self._counter = count(random.getrandbits(16))
        self._month_start = self._next_month = 0
        self._least = self._latest = 0  # the earliest time of this round of the counter, and the latest of any
        self._begin = 0  # from then on, and in this month, an id has the time of the clock
        self._now = -1  # that of the last id
        self._head = ""  # of the ids at that time: all but the counter

    def next(self, now: int) -> str:
        """A new id at that time, in ms: 32 characters with an IPv4 address, 56 with an IPv6 one."""
        number = next(self._counter) & 0xFFFF
        if now != self._now or not number:
            self._head = self._prefix + self._digits_of(number, now)
            self._now = now
        # Two fifths of the time of all of it anew, by format specifiers (benchmark "batch of 32").
        return self._head + "%04X" % number  # noqa: UP031 - an f-string takes a tenth of a microsecond more

    def _digits_of(self, number: int, now: int) -> str:
        """The time in an id."""
        if not number or not self._begin <= now < self._next_month:
            now = self._time_of(number, now)
        if now > self._latest:
            self._latest = now
        return f"{now - self._month_start & 0xFFFF_FFFF:08X}"

    def _time_of(self, number: int, now: int) -> int:
        """The time that an id has at that of the clock, where this is not sure to be it."""
        if not number:
            self._least = self._latest + 1
        now = max(now, self._least)
        if not self._month_start <= now < self._next_month:
            self._begin_month(now)
        self._begin = max(self._least, self._month_start)
        return now

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
