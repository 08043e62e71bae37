"""The programs of ``java/`` and ``spring/``: built with Maven against a version of Apache's Java client, or of
rocketmq-spring, each run as a process.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from tests.conformance.apache import NEWEST, ROOT, java, maven

__all__ = ["SPRING", "JavaProgram", "build"]

SOURCE = Path(__file__).with_name("java")
SPRING = Path(__file__).with_name("spring")
BUILT = ROOT / ".rocketbox" / "java"


def build(version: str = NEWEST, project: Path = SOURCE) -> str:
    """The class path of a project's programs with the library of a version; built once for each state of its source."""
    sources = [*sorted(project.glob("src/main/java/rocketbox/*.java")), project / "pom.xml"]
    state = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    folder = BUILT / f"{version}-{state}"  # its own for each project: their sources differ
    if not folder.exists():
        print(f"building the programs of {project.name}/ with version {version} into {folder}", flush=True)
        BUILT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILT) as scratch:
            maven(
                *("-f", str(project / "pom.xml"), f"-Drocketmq.version={version}", f"-DoutputDirectory={scratch}"),
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


class JavaProgram:
    """A process of one of them; entering starts it, leaving kills what is left.

    ``name`` and its ``arguments`` follow Java's own ``options``; ``prefix`` is a command that runs it,
    ``jars`` are class paths beside the client's. ``version`` is that of the library that ``project`` is built with.
    """

    def __init__(
        self,
        name: str,
        *arguments: str,
        options: Sequence[str] = (),
        prefix: Sequence[str] = (),
        version: str = NEWEST,
        jars: Sequence[str] = (),
        project: Path = SOURCE,
    ) -> None:
        self._command = [name, *arguments]
        self._options = options
        self._prefix = prefix
        self._version = version
        self._jars = jars
        self._project = project

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory()
        folder = self._folder.name
        with Path(folder, "errors").open("wb") as errors:
            self.process = subprocess.Popen(
                [
                    *(*self._prefix, java(), *self._options, "-XX:+UseSerialGC", f"-Duser.home={folder}"),
                    *("-cp", os.pathsep.join([build(self._version, self._project), *self._jars]), *self._command),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # a line that it did not read any more
                pipe.close()
        self._folder.cleanup()

    @property
    def told(self) -> IO[str]:
        """What it writes."""
        assert self.process.stdout is not None
        return self.process.stdout

    @property
    def errors(self) -> str:
        """What it has written to the standard error so far."""
        return Path(self._folder.name, "errors").read_text()

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)

    def tell_end(self) -> None:
        """No line follows."""
        assert self.process.stdin is not None
        self.process.stdin.close()
