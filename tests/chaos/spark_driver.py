"""A Spark driver for faults: ``spark_service`` as a process, with its Java and Python processes, and what it notes."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.support.process_tree import command_of, descendants_of, end_at_once, members_of

__all__ = ["GROUP", "PATIENCE", "Driver", "Plan"]

ROOT = Path(__file__).parents[2]
GROUP = "lake"
PATIENCE = 300.0  # seconds in which anything comes, on a machine that has much else to do
LONGEST_STOP = 120.0
CONF = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",  # Java's second compiler only pays in longer runs
    "spark.driver.memory": "512m",
}
_numbers = itertools.count()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run of the service does: it writes to ``lake``, and waits before each batch while ``hold`` is there.

    ``die_behind`` is the batch between whose write and commit it ends itself by kill -9. ``once=False`` is a sink that
    appends, which a checker must notice. ``confirm_interval`` is that of the lease, for those who cannot wait.
    """

    topic: str
    lake: str
    notes: str
    hold: str
    die_behind: int = -1
    once: bool = True
    confirm_interval: float | None = None


class Driver:
    """One run of the service in ``folder``, whose listener is told ``options``. It starts when it is made."""

    def __init__(self, folder: Path, name_server: str, options: Mapping[str, object], **plan: Any) -> None:
        number = next(_numbers)
        place = folder / f"driver {number}"
        place.mkdir()
        self.output = place / "output.log"
        self._notes = place / "notes"
        self._notes.touch()
        settings = {
            "rocketmq": {"name-server": name_server, "consumer": {"listeners": {GROUP: dict(options)}}},
            "rocketbox": {"spark": {"conf": CONF}},
        }
        (place / "rocketbox.yaml").write_text(json.dumps(settings))
        command = [sys.executable, "-m", "tests.chaos.spark_service"]
        command.append(json.dumps(asdict(Plan(notes=str(self._notes), **plan))))
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                cwd=place,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    # --- what it has done --------------------------------------------------------------------------------------------

    @property
    def notes(self) -> list[list[Any]]:
        """What it has noted so far; a line that is being written is left out."""
        text = self._notes.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def count(self, *words: object) -> int:
        """How many notes begin with these words."""
        return sum(note[: len(words)] == list(words) for note in self.notes)

    @property
    def status(self) -> tuple[str, str | None]:
        """The listener's state, and why it is so."""
        told = [(note[1], note[2]) for note in self.notes if note[0] == "is"]
        return told[-1] if told else ("starting", None)

    def wait_for(self, what: Callable[[], object], words: str, seconds: float = PATIENCE) -> None:
        """Return when ``what()`` holds. Raises AssertionError with the end of its output when it ends before that."""
        until = time.monotonic() + seconds
        while not what():
            if self.process.poll() is not None:
                raise AssertionError(f"the driver ended with {self.process.returncode} before {words}\n{self.tail()}")
            if time.monotonic() > until:
                raise AssertionError(
                    f"not within {seconds:.0f} s: {words}; the listener is {self.status}\n{self.tail()}"
                )
            time.sleep(0.02)

    def wait_for_another(self, *words: object, than: int, seconds: float = PATIENCE) -> None:
        """Return when there are more than so many notes that begin with these words."""
        self.wait_for(lambda: self.count(*words) > than, f"it has noted {words} {than + 1} times", seconds)

    def tail(self) -> str:
        """The last lines that it has printed."""
        return "\n".join(self.output.read_text(errors="replace").splitlines()[-25:])

    # --- its processes -----------------------------------------------------------------------------------------------

    def java(self) -> list[int]:
        """Its Java process, when there is one."""
        return [each for each in descendants_of(self.process.pid) if "org.apache.spark" in command_of(each)]

    def workers(self) -> dict[int, str]:
        """The Python processes that Spark has started, with their commands; workers outlive who has forked them."""
        found = {each: command_of(each) for each in members_of(self.process.pid)}
        return {each: command for each, command in found.items() if "python" in command and " -m pyspark" in command}

    def kill(self, *, java: bool = True) -> None:
        """End it by kill -9. Without ``java`` its Java process lives on until it notices, as Spark has it."""
        ended = self.java() if java else []
        end_at_once(self.process.pid)
        self.process.wait()
        for each in ended:
            end_at_once(each)

    def stop(self) -> None:
        """End it in order. Raises AssertionError when its exit status is not 0."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(LONGEST_STOP)
        assert status == 0, f"the driver's stop ended with {status}\n{self.tail()}"

    def clear_away(self) -> None:
        """End whatever is left of it."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
