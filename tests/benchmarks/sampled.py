"""``python -m tests.benchmarks.sampled FILE ARGUMENTS...``: the ``rocketbox`` command under a sampling profiler.

A timer of the process' own CPU time interrupts the main thread, where the loop runs, each millisecond; where it was is
counted. Unlike a tracing profiler that costs each function the same share, so small functions are not made to look
large. Sending SIGUSR1 forgets what was counted (a warm-up); the table is written to FILE at the end.
"""

from __future__ import annotations

import collections
import signal
import sys
from pathlib import Path
from types import CodeType, FrameType

from rocketbox.cli.app import main as rocketbox

__all__ = ["main"]

INTERVAL = 0.001  # seconds of CPU time
SHOWN = 45


class Sampler:
    """Counts in which function the main thread is, and through which ones it came there."""

    def __init__(self) -> None:
        self.samples = 0
        self.own: collections.Counter[CodeType] = collections.Counter()
        self.through: collections.Counter[CodeType] = collections.Counter()

    def start(self) -> None:
        signal.signal(signal.SIGPROF, self._sample)
        signal.signal(signal.SIGUSR1, self._forget)
        signal.setitimer(signal.ITIMER_PROF, INTERVAL, INTERVAL)

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _forget(self, _number: int, _frame: FrameType | None) -> None:
        self.samples = 0
        self.own.clear()
        self.through.clear()

    def _sample(self, _number: int, frame: FrameType | None) -> None:
        if frame is None:
            return
        self.samples += 1
        self.own[frame.f_code] += 1
        seen = set()
        place: FrameType | None = frame
        while place is not None:
            if place.f_code not in seen:
                seen.add(place.f_code)
                self.through[place.f_code] += 1
            place = place.f_back

    def table(self) -> str:
        """Own and whole share of each function, by own share."""
        lines = [f"{self.samples} samples of {INTERVAL * 1000:g} ms CPU", "  own %  whole %  function"]
        for code, own in self.own.most_common(SHOWN):
            name = f"{'/'.join(Path(code.co_filename).parts[-2:])}:{code.co_firstlineno} {code.co_qualname}"
            lines.append(f"{own / self.samples:7.1%} {self.through[code] / self.samples:8.1%}  {name}")
        return "\n".join(lines) + "\n"


def main() -> None:
    path = sys.argv.pop(1)
    sampler = Sampler()
    sampler.start()
    try:
        rocketbox()
    finally:
        sampler.stop()
        Path(path).write_text(sampler.table())


if __name__ == "__main__":
    main()
