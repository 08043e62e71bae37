"""Reading and changing single properties in the text of all, without making a mapping of it.

A send changes two or three properties of a text it otherwise keeps; taking the text apart and joining it again costs
several times as much (benchmark "send, 256 in flight").

Source: Apache RocketMQ 5.x ``MessageDecoder`` (``name 0x01 value 0x02`` for each property).
"""

from __future__ import annotations

from collections.abc import Container

__all__ = ["add_property", "find_property", "remove_properties", "set_property"]


def find_property(text: bytes, name: bytes) -> bytes | None:
    """The value of a property; None when it is not there."""
    start = text.rfind(b"\x02%b\x01" % name)
    if start >= 0:
        start += len(name) + 2
    elif text.startswith(name + b"\x01"):
        start = len(name) + 1
    else:
        return None
    end = text.find(b"\x02", start)
    return text[start:] if end < 0 else text[start:end]


def add_property(text: bytes, name: bytes, value: bytes) -> bytes:
    """The text with one more property, which is not in it yet."""
    if text and not text.endswith(b"\x02"):
        text += b"\x02"
    return b"%b%b\x01%b\x02" % (text, name, value)


def remove_properties(text: bytes, names: Container[bytes]) -> bytes:
    """The text without those properties."""
    kept = [pair for pair in text.split(b"\x02") if pair and pair.partition(b"\x01")[0] not in names]
    return b"\x02".join(kept) + b"\x02" if kept else b""


def set_property(text: bytes, name: bytes, value: bytes) -> bytes:
    """The text with that property, whether it was in it or not."""
    if find_property(text, name) is not None:
        text = remove_properties(text, (name,))
    return add_property(text, name, value)
