"""The program ``Member`` of ``java/``: a push consumer of Apache's Java client that joins, and leaves when told to."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rocketbox.clock import RealClock
from tests.conformance.apache import NEWEST
from tests.conformance.java_exchange import SMALL_AND_QUICK
from tests.conformance.java_program import JavaProgram

__all__ = ["JavaMember"]

SECONDS = 60


class JavaMember:
    """One run of it. ``events`` are (when, "begins" or "ends", body), in the time of this process."""

    def __init__(
        self,
        name_server: str,
        topic: str,
        group: str,
        *,
        orderly: bool,
        handler_ms: int,
        version: str = NEWEST,
        options: Sequence[str] = (),
    ) -> None:
        mode = "orderly" if orderly else "concurrent"
        arguments = (name_server, topic, group, mode, str(handler_ms))
        self._program = JavaProgram(
            "rocketbox.Member", *arguments, options=(*SMALL_AND_QUICK, *options), version=version
        )
        self._clock = RealClock()
        self._joined, self._ended = threading.Event(), threading.Event()
        self.events: list[tuple[float, str, str]] = []

    def __enter__(self) -> Self:
        self._program.__enter__()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._program.process.kill()
        self._reader.join(SECONDS)
        self._program.__exit__(kind, error, trace)

    def wait_until_joined(self) -> None:
        assert self._joined.wait(SECONDS), self._program.errors

    def leave(self) -> None:
        """Return when it has left its group as Java's clients do."""
        self._program.tell_end()
        assert self._ended.wait(SECONDS)

    def _read(self) -> None:
        for line in self._program.told:
            sign, _, body = line.strip().partition(" ")
            if sign == "joined":
                self._joined.set()
            elif sign == "left":
                self._ended.set()
            elif sign in {">", "<"}:
                self.events.append((self._clock.monotonic(), "begins" if sign == ">" else "ends", body))
