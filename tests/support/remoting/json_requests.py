"""Requests with a header in JSON for readers that go by the bytes of the one before: both ways must say the same."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Protocol

from rocketbox.errors import RemoteProtocolError
from rocketbox.protocol.command import RemotingCommand, decode_command
from rocketbox.protocol.headers import HeaderError

__all__ = ["Reader", "almost", "json_request", "read_json"]


class Reader(Protocol):
    """What reads requests of one code."""

    def read(self, request: RemotingCommand, /) -> object:
        """What stands in the header."""


def json_request(header: bytes, body: bytes = b"") -> RemotingCommand:
    return decode_command(len(header).to_bytes(4, "big") + header + body)


def read_json(reader: Reader, header: bytes, *, plain: bool) -> object:
    """What is read, or the type of the error; ``plain`` has it read by names."""
    try:
        request = json_request(header)
        if plain:
            _ = request.ext_fields  # parsed: read goes by names
        return reader.read(request)
    except (RemoteProtocolError, HeaderError) as error:
        return type(error)


def almost(header: bytes, pieces: Sequence[bytes], *, count: int) -> Iterator[bytes]:
    """So many headers that differ from this one by a piece or two, anywhere in it."""
    chance = random.Random(9)
    for _ in range(count):
        other = bytearray(header)
        for _ in range(chance.choice([1, 1, 2])):
            at = chance.randrange(len(other))
            other[at : at + chance.randrange(4)] = chance.choice(pieces)
        yield bytes(other)
