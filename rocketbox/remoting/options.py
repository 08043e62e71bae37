"""What can be set about connections: limits, times, and how headers are written.

What a peer may make a server hold is bounded here for every connection and for all together; ``budgets`` says who gives
way.

Source: Apache RocketMQ 5.x ``NettyClientConfig``, ``NettyServerConfig``, ``NettySystemConfig`` (the defaults).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from rocketbox.protocol.codes import CLIENT_VERSION, LanguageCode, SerializeType
from rocketbox.protocol.framing import MAX_FRAME_BYTES, MAX_HEADER_BYTES, BodyLimits
from rocketbox.remoting.read_turns import PAUSE

__all__ = ["RemotingOptions"]


@dataclass(frozen=True, kw_only=True)
class RemotingOptions:
    """Settings of a RemotingClient or RemotingServer and all its connections. Times are in seconds."""

    serialization: SerializeType = SerializeType.ROCKETMQ
    """How headers of requests are written; answers go out as their request came in."""
    language: int = int(LanguageCode.PYTHON)
    version: int = CLIENT_VERSION
    connect_timeout: float = 3.0
    idle_timeout: float = 120.0
    """A connection that was neither read nor written for so long, and awaits nothing, is closed."""
    silence_timeout: float = 10.0
    """A connection is given up when a request times out and nothing at all has come in for so long; or cannot even be
    written in time, and nothing was taken for so long either."""
    close_timeout: float = 1.0
    """How long a stop waits for what is written already to leave."""
    sweep_interval: float = 0.1
    """How often deadlines are looked at: how late a timeout may be reported."""
    max_requests_in_flight: int = 65_535
    """For each connection; further requests wait for a place, at most their timeout."""
    max_running_handlers: int = 1_024
    """For each connection: asynchronous handlers at work. A server stops reading then, a client answers 'busy'."""
    max_unwritten_bytes: int = 1_048_576
    """For each connection: above it requests wait, and a server stops reading, until the peer has taken some. What one
    turn of the loop writes may come on top, up to as much again; a server stops already when its socket is full."""
    max_frame_bytes: int = MAX_FRAME_BYTES
    max_header_bytes: int = MAX_HEADER_BYTES

    # What follows is a server's, about the peers that connect to it.
    max_connections: int = 10_000
    """Of one server; never more than half of the file descriptors that the process may have, less a reserve for files.
    Further ones are accepted and closed at once."""
    max_connections_per_address: int | None = None
    """Those of one address; None: half of all that there may be."""
    max_handshakes: int = 1_000
    """Connections that have not spoken their first byte, or are in their TLS handshakes. They count as connections;
    above it the oldest is given up."""
    header_timeout: float = 10.0
    """A connection is closed when the header of a frame, or a TLS handshake, takes longer to come."""
    frame_timeout: float = 60.0
    """The same for a whole frame."""
    max_half_frame_bytes: int = 67_108_864
    """Of all connections together: what has come of frames that are not complete. Above it the oldest is given up."""
    max_unread_bytes: int = 33_554_432
    """Of all connections together: what waits for peers that do not read. Above it the one that has not read for the
    longest time is given up."""
    max_request_body: int = MAX_FRAME_BYTES
    """The most bytes of a request's body, where ``max_request_bodies`` does not name its code."""
    max_request_bodies: Mapping[int, int] = field(default_factory=dict)
    """The most bytes of a request's body, by code. Larger ones are answered with the number and are not kept."""
    read_pause: float = PAUSE
    """How long requests with large answers pause between their turns while others are answered (``read_turns``)."""

    @cached_property
    def body_limits(self) -> BodyLimits:
        """How many bytes the body of a request to a server may have."""
        return BodyLimits(self.max_request_body, self.max_request_bodies)
