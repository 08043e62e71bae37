"""Connections without sockets: a test moves their bytes by hand."""

from __future__ import annotations

from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.framing import FrameReader
from rocketbox.remoting.connection import Connection
from rocketbox.remoting.server import RemotingServer
from rocketbox.waiters import make_waiter

__all__ = ["Peer", "RecordingDriver"]


class RecordingDriver:
    """Moves no bytes; the test does, by hand."""

    def __init__(self) -> None:
        self.waiter = make_waiter
        self.flushes = 0
        self.reading = True
        self.state = "open"

    def schedule_flush(self) -> None:
        self.flushes += 1

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.state = "closed"

    def abort(self) -> None:
        self.state = "aborted"


class Peer:
    """A connection to a server, from the other side."""

    def __init__(self, server: RemotingServer, port: int, host: str = "127.0.0.2") -> None:
        self.driver = RecordingDriver()
        self.connection: Connection = server._opened(self.driver, ("127.0.0.1", 1), (host, port))

    def send(self, data: bytes) -> None:
        self.connection.received(data)

    def read(self) -> list[RemotingCommand]:
        data = self.connection.take_output()
        self.connection.flushed(len(data))
        return FrameReader().feed(data)

    @property
    def open(self) -> bool:
        return not self.connection.closed
