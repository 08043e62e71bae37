"""The hashes under which keys stand in the index: Java's of ``topic#key``, made positive; one by one, or many at once.

Source: Apache RocketMQ 5.5 ``IndexFile.indexKeyHashMethod``, ``IndexService.buildKey``; ``java.lang.String.hashCode``.
"""

from __future__ import annotations

import operator
import struct
import sys
from array import array
from collections.abc import Sequence
from itertools import repeat

__all__ = ["hash_alike", "hash_key", "hash_keys", "hash_prefix"]

_POWERS = [1]  # of 31, modulo 2**32
_LANE = 8  # characters that are hashed at once
_P8 = pow(31, _LANE, 1 << 32)
_heads: dict[bytes, tuple[int, int]] = {}  # by all but the last 8 characters: their hash, times _P8; the whole's power
_SHORTEST_ID = 32  # bytes of a key that most likely is a UNIQ_KEY


def _hash(text: bytes, start: int = 0) -> int:
    """Java's String.hashCode of a text (UTF-8) behind one whose hash is ``start``; modulo 2**32, not signed."""
    units: bytes | array[int]
    if text.isascii():
        units = text
    else:
        utf16 = text.decode("utf-8", "replace").encode("utf-16-le" if sys.byteorder == "little" else "utf-16-be")
        units = array("H", utf16)
    count = len(units)
    power = _power(count)
    # 31**(n-1-i) for unit i: the units in reverse order meet the powers from 0 on; map keeps the loop in C
    value: int = start * power + sum(map(operator.mul, reversed(units), _POWERS))
    return value & 0xFFFFFFFF


def _power(count: int) -> int:
    """31**count, modulo 2**32."""
    while len(_POWERS) <= count:
        _POWERS.append(_POWERS[-1] * 31 & 0xFFFFFFFF)
    return _POWERS[count]


_power(_LANE)


def hash_prefix(text: str) -> int:
    """What :func:`hash_key` takes as ``prefix``: the hash of a key's first characters."""
    return _hash(text.encode("utf-8", "replace"))  # as a message's own text is when it is sent


def hash_key(prefix: int, key: bytes) -> int:
    """Apache's hash of a key (UTF-8) whose first characters have the hash ``prefix``: Java's, made positive."""
    return _positive(_hash(key, prefix))


def hash_keys(keys: Sequence[tuple[int, bytes]]) -> list[int]:
    """As :func:`hash_key` of many: (prefix, key) each.

    Fast path: of most keys the last eight characters are hashed together, as lanes of one long number. What is before
    them is, in the ids of one process, the same for a minute, and is looked up. Costs 0.4 us a key, one by one 0.9
    (benchmark "java client: send, 256 in flight").
    """
    joined = b"".join([key[-_LANE:] if len(key) >= _LANE else key.rjust(_LANE, b"\0") for _, key in keys])
    if not joined.isascii():
        return [hash_key(prefix, key) for prefix, key in keys]
    found = []
    for (prefix, key), tail in zip(keys, _hash_lanes(joined), strict=True):
        size = len(key)
        if size <= _LANE:
            value = prefix * _POWERS[size] + tail
        elif size >= _SHORTEST_ID and key.isascii():
            head = key[:-_LANE]
            known = _heads.get(head)
            if known is None:
                if len(_heads) > 1000:
                    _heads.clear()
                known = _heads[head] = (_hash(head) * _P8, _power(size))
            value = prefix * known[1] + known[0] + tail
        else:
            value = _hash(key, prefix)
        found.append(_positive(value & 0xFFFFFFFF))
    return found


def hash_alike(prefix: int, keys: Sequence[bytes]) -> list[int]:
    """As :func:`hash_key` of many keys (one at least) with one prefix.

    Fast path: of ids of one process, or numbered keys, all but the last eight characters are the same; what they add to
    the hash is the same for all. Costs 0.2 us a key (benchmark "java client: send, 256 in flight").
    """
    size = len(keys[0])
    head = keys[0][:-_LANE]
    joined = b"".join([key[-_LANE:] for key in keys] if size >= _LANE else [key.rjust(_LANE, b"\0") for key in keys])
    if (
        not (joined.isascii() and head.isascii())
        or set(map(len, keys)) != {size}
        or (head and not all(map(bytes.startswith, keys, repeat(head))))
    ):
        return hash_keys([(prefix, key) for key in keys])
    start = prefix * _power(size) + _hash(head) * _P8
    return [
        value if (value := start + tail & 0xFFFFFFFF) < 0x80000000 else 0x100000000 - value & 0x7FFFFFFF
        for tail in _hash_lanes(joined)
    ]


def _hash_lanes(text: bytes) -> Sequence[int]:
    """Java's hash of each eight characters (ASCII) of a text, not cut to 32 bits.

    First each two bytes become one number of 16 bits, 31 * a + b; then each two of those one of 32, each two of those
    one of 64: in each step none is larger than its room.
    """
    count = len(text) // _LANE
    value = int.from_bytes(text, "big")
    for bits, factor in ((8, 31), (16, 31**2), (32, 31**4)):
        low = int.from_bytes((((1 << bits) - 1).to_bytes(2 * bits // 8, "big")) * (len(text) * 8 // (2 * bits)), "big")
        value = (value >> bits & low) * factor + (value & low)
    return struct.unpack(f">{count}Q", value.to_bytes(len(text), "big"))


def _positive(value: int) -> int:
    if value < 0x80000000:
        return value
    return 0x100000000 - value if value > 0x80000000 else 0
