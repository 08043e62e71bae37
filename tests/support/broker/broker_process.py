"""``rocketbox broker`` as a process of its own, for tests that kill it, signal it, or point Java programs at it."""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["BrokerProcess"]

START_SECONDS = 120


class BrokerProcess:
    """Starts on entering, with the addresses from its ready line; is stopped by SIGTERM on leaving."""

    def __init__(self, data_dir: Path, *arguments: str, command: Sequence[str] = ()) -> None:
        """``command`` stands for the program ``rocketbox``: ``taskset`` before it, or a profile around it."""
        self.arguments = [
            *(command or [str(Path(sys.executable).with_name("rocketbox"))]),
            "broker",
            f"--data-dir={data_dir}",
            "--port=0",
            "--name-server-port=0",
            *arguments,
        ]
        self.name_server = ""
        self.broker = ""
        self.errors: list[str] = []

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(self.arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        stdout, stderr = self.process.stdout, self.process.stderr

        def read_stdout() -> None:
            for line in stdout:
                lines.put(line)
            lines.put("")

        self._readers = [
            threading.Thread(target=read_stdout, daemon=True),
            threading.Thread(target=lambda: self.errors.extend(stderr), daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        try:
            ready = lines.get(timeout=START_SECONDS)
        except queue.Empty:
            ready = ""
        if not ready.startswith("ready "):
            self.kill()
            raise AssertionError(f"the broker did not get ready: {ready!r}\n{''.join(self.errors)}")
        addresses = dict(word.split("=") for word in ready.split()[1:])
        self.name_server, self.broker = addresses["name-server"], addresses["broker"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.stop()

    def kill_after(self, seconds: float) -> None:
        """Start it and kill -9 it so long after, whether it is ready by then or not."""
        process = subprocess.Popen(self.arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill(self) -> None:
        """kill -9, and wait until the process is gone."""
        self.process.kill()
        self._finish()

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self._finish()

    def wait(self) -> int:
        """The exit status, when it has ended by itself."""
        return self._finish()

    def _finish(self) -> int:
        status = self.process.wait(120)
        for reader in self._readers:
            reader.join(60)
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()
        return status
