"""Apache's mqadmin as one process for many commands: each start of it, and each end, takes seconds."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from tests.conformance.apache import class_path, home
from tests.conformance.java_exchange import SMALL_AND_QUICK
from tests.conformance.java_program import JavaProgram

__all__ = ["JavaTools"]

DONE = "-- done"


class JavaTools:
    """The tools of a version, for the servers of a name server; ``folder`` holds their settings.

    Called with a command and its words, it returns what mqadmin prints for it.
    """

    def __init__(self, folder: Path, version: str, name_server: str) -> None:
        home(folder)
        self._name_server = name_server
        options = (*SMALL_AND_QUICK, f"-Drocketmq.home.dir={folder}")
        self._program = JavaProgram("rocketbox.Tools", options=options, version=version, jars=[class_path(version)])

    def __enter__(self) -> Self:
        self._program.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._program.__exit__(kind, error, trace)

    def __call__(self, command: str, *arguments: str) -> str:
        self._program.tell("\t".join((command, *arguments, "-n", self._name_server)))
        lines: list[str] = []
        for line in self._program.told:
            if line.rstrip("\n") == DONE:
                return "".join(each for each in lines if "|-" not in each)  # without the logging library's own start
            lines.append(line)
        raise RuntimeError(f"mqadmin ended at {command}:\n{''.join(lines)}{self._program.errors}")
