"""The programs of ``java/``: built with Maven against a version of Apache's Java client; the loads run as a process.

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

__all__ = ["JavaLoads", "LoadResult", "build"]

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


class JavaLoads:
    """A process of the program, which runs one load after another; entering starts it, leaving kills what is left.

    A load begins with ``produce``, ``send_one_way`` or ``consume``, and each sends or consumes ``messages`` behind a
    ``warm_up``. The process stays as warm as the loads before have made it.
    """

    def __init__(self, *, version: str = NEWEST, prefix: Sequence[str] = ()) -> None:
        self._version = version
        self._prefix = prefix

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory()
        folder = self._folder.name
        with Path(folder, "errors").open("wb") as errors:
            self.process = subprocess.Popen(
                [
                    *(*self._prefix, java(), "-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", f"-Duser.home={folder}"),
                    *("-cp", build(self._version), "rocketbox.Load"),
                ],
                stdin=subprocess.PIPE,
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

    def consume(self, name_server: str, topic: str, messages: int, *, warm_up: int = 1, group: str = "load") -> None:
        """A push consumer from the first offset; its failures are messages without a body."""
        self._begin("consume", name_server, topic, warm_up, messages, group)

    def _begin(self, *words: object) -> None:
        self._watchdog.cancel()
        self._watchdog = threading.Timer(SECONDS, self.process.kill)
        self._watchdog.start()
        assert self.process.stdin is not None
        print(*words, file=self.process.stdin, flush=True)

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
        assert self.process.stdout is not None
        for text in self.process.stdout:
            if text.startswith("{"):
                line: dict[str, float] = json.loads(text)
                if wanted in line:
                    return line
        raise RuntimeError(f"the Java load program ended:\n{Path(self._folder.name, 'errors').read_text()}")
