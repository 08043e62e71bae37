"""A module of ours as a process of its own, for tests that wait for what it prints and then kill it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio.to_thread

__all__ = ["LinesOf", "running_module"]

HERE = Path(__file__).parents[2]


class LinesOf:
    """A process, and what it prints line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    async def until(self, line: str) -> None:
        """Return when it has printed this line; fails when it ends before."""
        while (found := await anyio.to_thread.run_sync(self._read)) != line:
            assert found is not None, f"the process has ended and did not print {line!r}"

    def _read(self) -> str | None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return line.rstrip("\n") if line else None

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self._process.kill()
        self._process.wait()


@contextmanager
def running_module(name: str, *arguments: str) -> Iterator[LinesOf]:
    """``python -m name arguments``; it is killed on leaving."""
    command = [sys.executable, "-m", name, *arguments]
    with subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield LinesOf(process)
        finally:
            process.kill()
