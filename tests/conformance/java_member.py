"""The program ``Member`` of ``java/``: a push consumer of Apache's Java client that joins, and leaves when told to."""

from __future__ import annotations

import subprocess
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from rocketbox.clock import RealClock
from tests.conformance.apache import NEWEST, java
from tests.conformance.java_load import build

__all__ = ["JavaMember"]

SECONDS = 60


class JavaMember:
    """One run of it. ``events`` are (when, "begins" or "ends", body), in the time of this process."""

    def __init__(
        self, name_server: str, topic: str, group: str, *, orderly: bool, handler_ms: int, version: str = NEWEST
    ) -> None:
        mode = "orderly" if orderly else "concurrent"
        self._arguments = [name_server, topic, group, mode, str(handler_ms)]
        self._version = version
        self._clock = RealClock()
        self._joined, self._ended = threading.Event(), threading.Event()
        self.events: list[tuple[float, str, str]] = []

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory()
        folder = self._folder.name
        with Path(folder, "errors").open("wb") as errors:
            self._process = subprocess.Popen(
                [
                    *(java(), "-Xmx256m", "-XX:+UseSerialGC", f"-Duser.home={folder}"),
                    *("-cp", build(self._version), "rocketbox.Member", *self._arguments),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._reader.join(SECONDS)
        self._process.wait(SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._folder.cleanup()

    def wait_until_joined(self) -> None:
        assert self._joined.wait(SECONDS), Path(self._folder.name, "errors").read_text()

    def leave(self) -> None:
        """Return when it has left its group as Java's clients do."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._ended.wait(SECONDS)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            sign, _, body = line.strip().partition(" ")
            if sign == "joined":
                self._joined.set()
            elif sign == "left":
                self._ended.set()
            elif sign in {">", "<"}:
                self.events.append((self._clock.monotonic(), "begins" if sign == ">" else "ends", body))
