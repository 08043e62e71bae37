"""The receiving end of one connection: its frame reader, and what it holds of a frame that is not complete.

What is done with requests and answers is ``connection``'s part; how frames are cut, ``protocol.framing``'s.

Source: Apache RocketMQ 5.x ``NettyDecoder``; the deadlines and the budget of half frames are not Apache's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketbox.protocol.framing import FrameReader, RefusedBody
from rocketbox.remoting.role import Role

if TYPE_CHECKING:
    from rocketbox.remoting.connection import Connection

__all__ = ["FrameWatch", "Intake"]

MOST_FRAMES = 2_048  # that are cut in one turn of the loop, in some milliseconds


class FrameWatch:
    """Whether the frames of one connection come to their end: looked at now and then, costs a frame nothing."""

    __slots__ = ("_begun_at", "_frame_timeout", "_frames", "_header_timeout", "_reader")

    def __init__(self, reader: FrameReader, header_timeout: float, frame_timeout: float) -> None:
        self._reader = reader
        self._header_timeout = header_timeout
        self._frame_timeout = frame_timeout
        self._frames = -1  # how many had come when the one that is under way was first seen
        self._begun_at = 0.0

    def pause(self) -> None:
        """Nothing is read now: what does not come is not the peer's fault."""
        self._frames = -1

    def too_slow(self, now: float) -> str | None:
        """What is late, None when nothing is."""
        reader = self._reader
        if not reader.in_frame:
            self._frames = -1
        elif reader.frames != self._frames:
            self._frames, self._begun_at = reader.frames, now
        elif now - self._begun_at >= self._frame_timeout:
            return f"a frame was not complete within {self._frame_timeout:g} s"
        elif now - self._begun_at >= self._header_timeout and reader.awaits_header:
            return f"the header of a frame was not complete within {self._header_timeout:g} s"
        return None


class Intake:
    """What one connection receives; the limits apply to accepted ones, a client trusts the servers it has chosen."""

    __slots__ = ("_budget", "_counted_frame", "_watch", "counted_bytes", "reader")

    def __init__(self, role: Role) -> None:
        options = role.options
        self.reader = FrameReader(
            options.max_frame_bytes,
            options.max_header_bytes,
            body_limits=options.body_limits if role.accepted else None,
            pool=role.buffers,
            most_frames=MOST_FRAMES if role.accepted else None,
        )
        self.counted_bytes = 0
        self._watch = FrameWatch(self.reader, options.header_timeout, options.frame_timeout) if role.accepted else None
        self._budget = role.half_frames
        self._counted_frame = 0  # how many frames had ended when the one that is counted began

    def count(self, connection: Connection, held: int) -> None:
        """Tell the budget of half frames what its connection holds; it may have another one closed, or this one."""
        if self._budget is None or connection.closed:
            return
        if self.reader.frames != self._counted_frame:  # a younger one than that which was counted last
            self._counted_frame = self.reader.frames
            self._budget.set(connection, 0)
        self.counted_bytes = held
        self._budget.set(connection, held)

    def forget(self, connection: Connection) -> None:
        """The connection is closed: it holds nothing any more."""
        self.reader.drop()
        if self._budget is not None:
            self._budget.set(connection, 0)

    def take_refused(self) -> list[RefusedBody]:
        """The requests whose bodies are too large; each is handed out once."""
        refused, self.reader.refused = self.reader.refused, []
        return refused

    @property
    def is_watching(self) -> bool:
        """Whether half a frame is there, of a peer that is not given all the time it likes."""
        return self._watch is not None and self.reader.in_frame

    def too_slow(self, now: float, *, reading: bool) -> str | None:
        """What is late of a frame that has begun, None when nothing is."""
        if self._watch is None:
            return None
        if not reading:
            self._watch.pause()
            return None
        return self._watch.too_slow(now)
