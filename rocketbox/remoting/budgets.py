"""What peers may make a server hold, and what is told of those who want more.

Holds the bounds that all connections of a server share (bytes of half frames, bytes that peers do not read), how many
connections each address has, and the counters. Which connection gives way is decided here; ``connection`` and
``intake`` report, ``server`` counts connections.

Source: none; Apache RocketMQ bounds a frame and a connection's idle time only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rocketbox.remoting.connection import Connection

__all__ = ["AddressLimit", "ServerCounters", "SharedBytes", "host_of"]


@dataclass(slots=True)
class ServerCounters:
    """What a server has refused or given up since its start."""

    connections_refused: int = 0
    """Beyond the limit of connections: accepted and closed at once."""
    connections_refused_of_one_address: int = 0
    """Beyond the limit of connections of one address: accepted and closed at once."""
    handshakes_failed: int = 0
    """Connections closed because no TLS came about, or none was spoken where it had to be."""
    handshakes_given_up: int = 0
    """Connections closed because too many were in their TLS handshakes."""
    bodies_refused: int = 0
    """Requests whose body was larger than their code may have."""
    frames_too_slow: int = 0
    """Connections closed because a header or frame did not come to its end in time."""
    half_frames_given_up: int = 0
    """Connections closed because all half frames together were too many bytes."""
    unread_given_up: int = 0
    """Connections closed because what peers do not read was too many bytes."""
    garbage: int = 0
    """Connections closed because what came was not RocketMQ's protocol."""
    unreadable_requests: int = 0
    """Requests whose fields or body could not be understood."""
    failed_requests: int = 0
    """Requests whose handler failed by a fault of this side."""
    failed_hooks: int = 0
    """Requests behind which a hook failed, once for each hook."""
    too_large_answers: int = 0
    """Answers that could not be sent, because a frame may not have so many bytes."""


class SharedBytes:
    """Bytes that connections hold together. Above the limit those that have held theirs the longest give way."""

    def __init__(self, limit: int, gives_way: Callable[[Connection, int], None]) -> None:
        self.limit = limit
        self.total = 0
        self._gives_way = gives_way
        self._held: dict[Connection, int] = {}  # the one that began first stands first

    def set(self, connection: Connection, size: int) -> None:
        """So many bytes are held by connection now; 0 ends it, and its place in the order."""
        self.total += size - self._held.pop(connection, 0) if not size else size - self._held.get(connection, 0)
        if size:
            self._held[connection] = size
        while self.total > self.limit:
            first = next(iter(self._held))
            size = self._held.pop(first)
            self.total -= size
            self._gives_way(first, size)


def host_of(address: str) -> str:
    """The host of ``host:port``, as it stands there."""
    return address.rpartition(":")[0] or address


class AddressLimit:
    """How many connections there are of each address. What is kept of an address goes with the last of them."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._told: set[str] = set()

    def count(self, connection: Connection) -> int:
        """Those of its address."""
        return self._counts.get(host_of(connection.remote_address), 0)

    def add(self, connection: Connection) -> None:
        """Count one more."""
        host = host_of(connection.remote_address)
        self._counts[host] = self._counts.get(host, 0) + 1

    def remove(self, connection: Connection) -> None:
        """It is gone; called once for each that was added."""
        host = host_of(connection.remote_address)
        left = self._counts.pop(host) - 1
        if left:
            self._counts[host] = left
        else:
            self._told.discard(host)

    def is_told(self, connection: Connection) -> bool:
        """Whether its address was told of since the address had its first connection."""
        return host_of(connection.remote_address) in self._told

    def note_told(self, connection: Connection) -> None:
        """Its address is told of now."""
        self._told.add(host_of(connection.remote_address))
