"""Services for tests: written to a folder as a user writes them, module and YAML; imported from there, or run by the
command ``rocketbox``."""

from __future__ import annotations

import importlib
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.canary import look

__all__ = ["SETTINGS", "Service", "ServiceMaker", "send_until_it_ends", "service_maker"]

SETTINGS = """
rocketmq:
  name-server: embedded
  producer: {group: desk}
rocketbox:
  embedded: {port: 0, name-server-port: 0, data-dir: %(folder)s/store, mapped-file-size-commit-log: 1MB}
"""

SECONDS = 240  # that a command may take on a slow machine; what hangs is ended

_numbers = itertools.count(1)

ServiceMaker = Callable[..., ModuleType]


def service_maker(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceMaker]:
    """Makes a module of its own name from source, with ``rocketbox.yaml`` beside it; forgets them at the end.

    Tests have it as the fixture ``service``.
    """
    made: list[str] = []
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))

    def make(source: str, settings: str | None = SETTINGS) -> ModuleType:
        name = f"service_{next(_numbers)}"
        made.append(name)
        (folder / f"{name}.py").write_text(textwrap.dedent(source).lstrip("\n"))
        if settings is not None:
            (folder / "rocketbox.yaml").write_text(textwrap.dedent(settings).lstrip("\n") % {"folder": folder})
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield make
    for name in made:
        sys.modules.pop(name, None)


class Service:
    """A running ``rocketbox`` command; lines of stdout and stderr are collected together."""

    def __init__(self, folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rocketbox", *arguments],
            cwd=folder,
            # Unbuffered, the pieces of a print would be torn apart by what a thread logs meanwhile.
            env={**os.environ, "PYTHONUNBUFFERED": "", **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.output = ""
        self._watchdog = threading.Timer(SECONDS, self.process.kill)
        self._watchdog.start()

    def wait_for(self, text: str, times: int = 1) -> None:
        """Return when a text has been printed, so many times since the beginning."""
        assert self.process.stdout is not None
        while self.output.count(text) < times:
            line = self.process.stdout.readline()
            assert line, f"{text!r} was not printed {times} times:\n{self.output}"
            self.output += line

    def finish(self) -> int:
        """Its exit code, when it and all its children have ended."""
        try:
            self.output += self.process.communicate()[0]
        finally:
            self._watchdog.cancel()
        look(self.output, "the output of a service")
        return self.process.returncode


def send_until_it_ends(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """What comes within 0.2 s of the first signal is its echo, so it is sent as somebody does who loses patience."""
    for _ in range(100):
        process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
            return
