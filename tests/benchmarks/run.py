"""What a scenario is told, and what it measures."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass, field
from pathlib import Path

from rocketbox.client import ClientOptions, Credentials, TlsOptions
from rocketbox.message import Message
from rocketbox.protocol.stored_message import StoredMessage

__all__ = ["BATCH", "BODY", "Run"]

BODY = b"x" * 1024
BATCH = 32
QUEUES = 4


@dataclass
class Run:
    """What a scenario is told, and what it measures; the clock runs from ``start`` to ``stop``."""

    name_server: str
    broker: str
    topic: str
    messages: int
    directory: str
    """An empty one, for scenarios that write files."""
    ca_file: str = ""
    """Of servers that speak TLS with those who want it."""
    encrypted: bool = False
    """Whether the client wants it."""
    filled: bool = False
    """Whether the topic has the messages already that are to be consumed."""
    seconds: float = 0.0
    cpu: float = 0.0
    latencies: list[float] = field(default_factory=list)

    def start(self) -> None:
        self._wall, self._cpu = time.perf_counter(), self._used()

    def stop(self) -> None:
        self.seconds, self.cpu = time.perf_counter() - self._wall, self._used() - self._cpu

    def client_options(self, credentials: Credentials | None = None) -> ClientOptions:
        tls = TlsOptions(ca_file=Path(self.ca_file)) if self.encrypted else None
        return ClientOptions(credentials=credentials, tls_enable=self.encrypted, tls=tls)

    @staticmethod
    def _used() -> float:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime

    def message(self, number: int) -> Message:
        return Message(self.topic, BODY, tag="A", keys=(f"k{number}",))

    def stored_message(self, number: int) -> StoredMessage:
        """What the broker makes of :meth:`message`."""
        properties = b"UNIQ_KEY\x01%032X\x02KEYS\x01k%d\x02WAIT\x01true\x02TAGS\x01A\x02" % (number, number)
        return StoredMessage(self.topic, number % QUEUES, BODY, properties)
