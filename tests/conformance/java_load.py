"""The program ``Load`` of ``java/``: sends or consumes by Apache's Java client, one load after another.

Conformance runs it to see the Java client at work on our broker, the benchmarks to compare brokers.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from tests.conformance.apache import NEWEST
from tests.conformance.java_program import JavaProgram

__all__ = ["JavaLoads", "LoadResult"]

SECONDS = 600


class LoadResult(dict[str, float]):
    """What the program says at its end: ``messages``, ``seconds``, ``failures``."""


class JavaLoads:
    """A process of the program, which runs one load after another; entering starts it, leaving kills what is left.

    A load begins with ``produce``, ``send_one_way``, ``send_from_threads`` or ``consume``, and each sends or consumes
    ``messages`` behind a ``warm_up``. The process stays as warm as the loads before have made it.
    """

    def __init__(self, *, version: str = NEWEST, prefix: Sequence[str] = (), options: Sequence[str] = ()) -> None:
        heap = ("-Xms256m", "-Xmx512m")
        self._program = JavaProgram("rocketbox.Load", options=(*heap, *options), prefix=prefix, version=version)

    def __enter__(self) -> Self:
        self._program.__enter__()
        self.process = self._program.process
        self._watchdog = threading.Timer(SECONDS, self.process.kill)
        self._watchdog.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watchdog.cancel()
        self._program.__exit__(kind, error, trace)

    def produce(
        self, name_server: str, topic: str, messages: int, *, warm_up: int = 1, in_flight: int = 256,
        body_bytes: int = 1024,
    ) -> None:  # fmt: skip
        """``send(message, callback)`` behind a semaphore of ``in_flight``; messages have a tag and a key."""
        self._begin("produce", name_server, topic, warm_up, messages, in_flight, body_bytes)

    def send_one_way(
        self, name_server: str, topic: str, messages: int, *, warm_up: int = 1, body_bytes: int = 1024
    ) -> None:
        """``sendOneway(message)``, and one answered send behind all of them; its failures are those refused here."""
        self._begin("oneway", name_server, topic, warm_up, messages, body_bytes)

    def send_from_threads(
        self, kind: str, name_server: str, topic: str, messages: int, *, warm_up: int = 1, threads: int = 64,
        body_bytes: int = 1024,
    ) -> None:  # fmt: skip
        """Threads that each wait for their own: ``blocking`` sends, ``transactions`` or ``requests``."""
        self._begin(kind, name_server, topic, warm_up, messages, threads, body_bytes)

    def consume(self, name_server: str, topic: str, messages: int, *, warm_up: int = 1, group: str = "load") -> None:
        """A push consumer from the first offset; its failures are messages without a body."""
        self._begin("consume", name_server, topic, warm_up, messages, group)

    def _begin(self, *words: object) -> None:
        self._watchdog.cancel()
        self._watchdog = threading.Timer(SECONDS, self.process.kill)
        self._watchdog.start()
        self._program.tell(" ".join(map(str, words)))

    def wait_until_warm(self) -> None:
        """Return when the warm-up is through and what is measured has begun."""
        self._line("warm")

    def result(self) -> LoadResult:
        """What came out of what was measured."""
        return LoadResult(self._line("messages"))

    def wait_until_idle(self) -> None:
        """Return when the load is over and its client has stopped: then the process does nothing."""
        self._line("idle")

    def _line(self, wanted: str) -> dict[str, float]:
        for text in self._program.told:
            if text.startswith("{"):
                line: dict[str, float] = json.loads(text)
                if wanted in line:
                    return line
        raise RuntimeError(f"the Java load program ended:\n{self._program.errors}")
