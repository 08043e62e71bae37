"""Parent and child: ``rocketbox run`` in processes under another one, as ``--reload`` and ``--workers`` need it.

A child is a fresh interpreter with the same command line, never a fork: the parent has a loop and threads. It is the
leader of a session, so that Ctrl-C in a terminal reaches the parent alone, which then asks each child once: a second
signal would end it at once. A pair of sockets joins the two. Through it the child says when it is ready; and when the
parent is gone, however it went, the socket closes, and the child stops in order instead of going on unseen.

When to start and stop them is decided in ``cli.workers`` and ``cli.reloading``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import anyio
from anyio.abc import Process

from rocketbox.stop_guard import STOP_CUT_SHORT
from rocketbox.tasks import SupervisedTask, Supervisor

__all__ = ["GRACE", "Child", "Parent", "interpreter"]

_log = logging.getLogger(__name__)

GRACE = 2.0  # seconds that a child has beyond its own time for the stop, to end by itself and to name what held it up
MAX_MESSAGE = 1 << 20  # bytes, of what a child says when it is ready


# --- the parent's half -----------------------------------------------------------------------------------------------


def interpreter() -> list[str]:
    """The beginning of a child's command line: this Python with its options -X and -W, and ``-m rocketbox``."""
    options = [f"-X{name}" if value is True else f"-X{name}={value}" for name, value in sys._xoptions.items()]
    return [sys.executable, *options, *(f"-W{each}" for each in sys.warnoptions), "-m", "rocketbox"]


class Child:
    """A ``rocketbox run`` under this process.

    ``ready`` is set when it has said that it is: ``files`` are its settings files then, ``stop_timeout`` the seconds
    that its stop may take. ``ended`` is set when it has ended: ``status`` is its exit code, 128 + n for an end by
    signal n.
    """

    def __init__(self, name: str, process: Process, channel: socket.socket, tell: Callable[[], object]) -> None:
        self.name = name
        self.pid = process.pid
        self.ready = anyio.Event()
        self.ended = anyio.Event()
        self.files: tuple[Path, ...] = ()
        self.stop_timeout: float | None = None
        self.status = 0
        self.was_asked_to_stop = False
        self._process = process
        self._channel = channel
        self._tell = tell
        self._listener: SupervisedTask | None = None

    @classmethod
    async def start(
        cls, name: str, arguments: Sequence[str], tasks: Supervisor, tell: Callable[[], object], *, label: str = ""
    ) -> Child:
        """Start ``rocketbox`` with these arguments; ``label`` tags its log lines.

        ``tasks`` owns what attends to it; ``tell`` is called when it is ready, and when it has ended.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = await anyio.open_process(
                    [*interpreter(), *arguments, f"--child={theirs.fileno()}:{label}"],
                    stdin=None,
                    stdout=None,
                    stderr=None,
                    start_new_session=True,
                    pass_fds=[theirs.fileno()],
                )
            except BaseException:
                ours.close()
                raise
        ours.setblocking(False)
        child = cls(name, process, ours, tell)
        child._listener = tasks.start(f"{name} ({child.pid}) speaks", child._listen, restart=False)
        tasks.start(f"{name} ({child.pid}) ends", child._wait, restart=False)
        return child

    def ask_to_stop(self) -> None:
        """Let it stop in order, by SIGTERM; only once, a second signal would end it at once."""
        if not self.was_asked_to_stop and not self.ended.is_set():
            self.was_asked_to_stop = True
            self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it now."""
        if not self.ended.is_set():
            self._signal(signal.SIGKILL)

    async def end(self, timeout: float) -> int:
        """End it now, if it has not ended; its exit code. ``timeout`` is what it had for its stop, in seconds."""
        if not self.ended.is_set():
            _log.error("%s has not stopped within %g s and is ended", self.name, timeout)
            self.kill()
            await self.ended.wait()
            self.status = STOP_CUT_SHORT
        return self.status

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended, and nobody has heard of it yet
            self._process.send_signal(number)

    async def _listen(self) -> None:
        text = b""
        while not text.endswith(b"\n") and len(text) < MAX_MESSAGE:
            await anyio.wait_readable(self._channel)
            try:
                part = self._channel.recv(65_536)
            except OSError:
                return
            if not part:
                return
            text += part
        message = json.loads(text)
        self.files = tuple(Path(file) for file in message["files"])
        self.stop_timeout = message["stop-timeout"]
        self.ready.set()
        self._tell()

    async def _wait(self) -> None:
        code = await self._process.wait()
        assert self._listener is not None
        self._listener.cancel()  # its own children may hold the socket, which would then never end
        await self._listener.wait()
        self._channel.close()
        if code == -signal.SIGTERM and self.was_asked_to_stop:
            code = 0  # it was asked before it had begun
        self.status = code if code >= 0 else 128 - code
        self.ended.set()
        self._tell()


# --- the child's half ------------------------------------------------------------------------------------------------


class Parent:
    """The process that started this one, as the hidden option ``--child=DESCRIPTOR:LABEL`` says.

    Making it sets ``label`` as the process name of log records, and begins to watch: when the parent is gone, this
    process gets SIGTERM.
    """

    def __init__(self, option: str) -> None:
        descriptor, _, label = option.partition(":")
        self._channel = socket.socket(fileno=int(descriptor))
        self._channel.set_inheritable(False)
        if label:
            import multiprocessing  # where logging takes the name of a process from

            multiprocessing.current_process().name = label
        threading.Thread(target=self._watch, name="rocketbox-parent", daemon=True).start()

    def tell_ready(self, files: Iterable[Path], stop_timeout: float) -> None:
        """Tell that this process is ready, by which settings files, and how many seconds its stop may take."""
        message = json.dumps({"files": [str(file.resolve()) for file in files], "stop-timeout": stop_timeout})
        with contextlib.suppress(OSError):  # it is gone, which the thread sees as well
            self._channel.sendall(message.encode() + b"\n")

    def _watch(self) -> None:
        with contextlib.suppress(OSError):
            while self._channel.recv(1024):
                continue  # nothing is said in this direction, only the end counts
        os.kill(os.getpid(), signal.SIGTERM)
