"""Runs of pytest in processes of their own that need not load rocketbox each: forks of one that has loaded it.

What a run loads takes longer than most runs. The plugin of rocketbox is not loaded before, so each run does that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support import canary

__all__ = ["Done", "PytestRuns", "pytest_runs"]

LOADED = """
import json, os, sys
import pydantic, pytest, rocketbox.application, rocketbox.testing.harness

for line in sys.stdin:
    run = json.loads(line)
    if child := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    for number, file in ((0, os.devnull), (1, run["output"]), (2, run["errors"])):
        os.dup2(os.open(file, os.O_RDWR), number)
    os.chdir(run["folder"])
    os.environ.clear()
    os.environ.update(run["environment"])
    sys.exit(pytest.main(run["arguments"]))
"""


@dataclass(frozen=True)
class Done:
    """A run that has ended: its status, and what it wrote."""

    status: int
    stdout: str
    stderr: str


class PytestRuns:
    """A process that has loaded pytest and rocketbox, to be forked."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, folder: Path, *arguments: str, environment: Mapping[str, str]) -> Done:
        """pytest with these arguments, in that folder and environment."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.NamedTemporaryFile("w+") as output, tempfile.NamedTemporaryFile("w+") as errors:
            said = {
                "folder": str(folder),
                "arguments": ["-q", "-p", "no:cacheprovider", *arguments],
                "environment": dict(environment),
                "output": output.name,
                "errors": errors.name,
            }
            print(json.dumps(said), file=self._process.stdin, flush=True)
            status = self._process.stdout.readline()
            if not status:
                raise RuntimeError(f"the process that is forked has ended with status {self._process.wait()}")
            done = Done(int(status), output.read(), errors.read())
        canary.look(done.stdout, "stdout of a run of pytest")
        canary.look(done.stderr, "stderr of a run of pytest")
        return done


@contextmanager
def pytest_runs() -> Iterator[PytestRuns]:
    """Ended at the end of the block."""
    with subprocess.Popen(
        [sys.executable, "-c", LOADED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    ) as process:
        try:
            yield PytestRuns(process)
        finally:
            process.kill()
