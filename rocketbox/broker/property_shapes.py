"""Which properties a text has, by the names in it: of thousands of messages they are the same, and are looked at once.

A text is ordinary when its properties are whole, and no name means that the broker has to do something with the
message. Of such a text the keys are found by their place among the names; of a name that comes twice the last counts,
as everywhere. What is to be done with others is the handlers' part.

Fast path: one look at the names instead of a search for each that might be there, 1.2 us instead of 4 (benchmark "java
client: send, 256 in flight").

Source: Apache RocketMQ 5.x ``MessageDecoder`` (``name 0x01 value 0x02`` for each property).
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from rocketbox.broker.store.records import RecordKeys

__all__ = ["PropertyShapes"]

MOST_PROPERTIES: Final = 64  # of an ordinary text
MOST_SHAPES: Final = 1_000
MOST_BYTES: Final = 1_000  # of the names of one
_SIGNS = b"\x01\x02" * MOST_PROPERTIES
_ALL_ELSE = bytes(set(range(256)) - {1, 2})
_MISSING = -1  # behind the last sign is nothing

_Places = tuple[int, int, int, int]  # of the values of TAGS, KEYS, UNIQ_KEY and WAIT


class PropertyShapes:
    """``special`` are the names, ``special_prefixes`` what names begin with, that make a text not ordinary."""

    def __init__(self, special: Set[bytes], special_prefixes: tuple[bytes, ...] = ()) -> None:
        self._special = special
        self._special_prefixes = special_prefixes
        self._places: dict[tuple[bytes, ...], _Places | None] = {}

    def keys_of(self, text: bytes) -> RecordKeys | None:
        """TAGS, KEYS and UNIQ_KEY of an ordinary text that ends with 0x02; None of any other.

        Ordinary is also that there is a UNIQ_KEY, and that the sender waits for the disk.
        """
        signs = text.translate(None, _ALL_ELSE)
        parts = text.replace(b"\x01", b"\x02").split(b"\x02")
        if parts[_MISSING] or signs != _SIGNS[: len(parts) - 1]:
            return None
        names = tuple(parts[:-1:2])
        try:
            places = self._places[names]
        except KeyError:
            places = self._look_at(names)
        if places is None:
            return None
        tags, keys, unique, wait = places
        if parts[wait] == b"false" or not parts[unique]:
            return None
        return parts[tags] or None, parts[keys] or None, parts[unique]

    def _look_at(self, names: tuple[bytes, ...]) -> _Places | None:
        places: _Places | None = None
        if (
            b"UNIQ_KEY" in names
            and all(names)
            and self._special.isdisjoint(names)
            and not any(name.startswith(self._special_prefixes) for name in names)
        ):
            at = {name: 2 * number + 1 for number, name in enumerate(names)}
            places = (
                at.get(b"TAGS", _MISSING), at.get(b"KEYS", _MISSING), at[b"UNIQ_KEY"], at.get(b"WAIT", _MISSING)
            )  # fmt: skip
        if sum(map(len, names)) <= MOST_BYTES:
            if len(self._places) >= MOST_SHAPES:  # somebody puts something of each message into its names
                self._places.clear()
            self._places[names] = places
        return places
