"""The programs of ``java/``: built with Maven against a version of Apache's Java client, run as a process.

Conformance runs it to see the Java client at work on our broker, the benchmarks to compare brokers.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.conformance.apache import NEWEST, ROOT, java, maven

__all__ = ["JavaLoad", "LoadResult", "build"]

SOURCE = Path(__file__).with_name("java")
PROGRAMS = SOURCE / "src" / "main" / "java" / "rocketbox"
BUILT = ROOT / ".rocketbox" / "java"
SECONDS = 600


class LoadResult(dict[str, float]):
    """What the program says at its end: ``messages``, ``seconds``, ``failures``."""


def build(version: str = NEWEST) -> str:
    """The class path of the programs with the client of a version; built once for each state of its source."""
    sources = [*sorted(PROGRAMS.glob("*.java")), SOURCE / "pom.xml"]
    state = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    folder = BUILT / f"{version}-{state}"
    if not folder.exists():
        print(f"building the Java programs with the client {version} into {folder}", flush=True)
        BUILT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILT) as scratch:
            maven(
                *("-f", str(SOURCE / "pom.xml"), f"-Drocketmq.version={version}", f"-DoutputDirectory={scratch}"),
                *("package", "dependency:copy-dependencies", "-DincludeScope=runtime"),
            )
            Path(scratch, "build", "load-1.jar").rename(Path(scratch, "load.jar"))
            jars = Path(scratch, "jars")
            jars.mkdir()
            for jar in Path(scratch).glob("*.jar"):
                jar.rename(jars / jar.name)
            try:
                jars.rename(folder)
            except OSError:
                if not folder.exists():  # else another run was quicker
                    raise
    return str(folder / "*")


class JavaLoad:
    """One run of the program; entering starts it, leaving kills what is left of it."""

    def __init__(self, *arguments: object, version: str = NEWEST, prefix: Sequence[str] = ()) -> None:
        self._version = version
        self._prefix = prefix
        self._arguments = [str(argument) for argument in arguments]

    @classmethod
    def producer(
        cls, name_server: str, topic: str, messages: int, *, warm_up: int = 1, in_flight: int = 256,
        body_bytes: int = 1024, version: str = NEWEST, prefix: Sequence[str] = (),
    ) -> Self:  # fmt: skip
        """``send(message, callback)`` behind a semaphore of ``in_flight``; messages have a tag and a key."""
        return cls(
            *("produce", name_server, topic, warm_up, messages, in_flight, body_bytes), version=version, prefix=prefix
        )

    @classmethod
    def one_way(
        cls, name_server: str, topic: str, messages: int, *, warm_up: int = 1, body_bytes: int = 1024,
        version: str = NEWEST, prefix: Sequence[str] = (),
    ) -> Self:  # fmt: skip
        """``sendOneway(message)``, and one answered send behind all of them; its failures are those refused here."""
        return cls("oneway", name_server, topic, warm_up, messages, body_bytes, version=version, prefix=prefix)

    @classmethod
    def consumer(
        cls, name_server: str, topic: str, messages: int, *, warm_up: int = 1, group: str = "load",
        version: str = NEWEST, prefix: Sequence[str] = (),
    ) -> Self:  # fmt: skip
        """A push consumer from the first offset; its failures are messages without a body."""
        return cls("consume", name_server, topic, warm_up, messages, group, version=version, prefix=prefix)

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory()
        folder = self._folder.name
        with Path(folder, "errors").open("wb") as errors:
            self.process = subprocess.Popen(
                [
                    *(*self._prefix, java(), "-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", f"-Duser.home={folder}"),
                    *("-cp", build(self._version), "rocketbox.Load", *self._arguments),
                ],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._watchdog = threading.Timer(SECONDS, self.process.kill)
        self._watchdog.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watchdog.cancel()
        self.process.kill()
        self.process.communicate()
        self._folder.cleanup()

    def wait_until_warm(self) -> None:
        """Return when the warm-up is through and what is measured has begun."""
        self._line("warm")

    def result(self) -> LoadResult:
        """What came out of what was measured."""
        return LoadResult(self._line("messages"))

    def _line(self, wanted: str) -> dict[str, float]:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            if text.startswith("{"):
                line: dict[str, float] = json.loads(text)
                if wanted in line:
                    return line
        raise RuntimeError(f"the Java load program ended:\n{Path(self._folder.name, 'errors').read_text()}")
