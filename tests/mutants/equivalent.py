"""Mutants that no test can notice, with the reason: (module, line as it is, line as the mutant has it) -> why.

Comments of lines are left out.
"""

from __future__ import annotations

__all__ = ["EQUIVALENT"]

PULL_PLAN = "rocketbox/spark/pull_plan.py"
PROPERTY_COLUMNS = "rocketbox/spark/property_columns.py"
RECORD_COLUMNS = "rocketbox/spark/record_columns.py"
FRAMING = "rocketbox/protocol/framing.py"
WORKERS = "rocketbox/client/workers.py"
CONSUME = "rocketbox/client/consume.py"
TRIES = "rocketbox/client/tries.py"

EQUIVALENT: dict[tuple[str, str, str], str] = {
    (
        PULL_PLAN,
        "self._pull_bytes = max(len(data), self._pull_bytes * 7 // 8)",
        "self._pull_bytes = max(len(data), self._pull_bytes * 6 // 8)",
    ): "how fast an estimate shrinks: the rows and the bound on what is held are the same",
    (PULL_PLAN, "self._held = 0", "self._held = -1"): "one byte of the 8 MiB that may be held",
    (PULL_PLAN, "HELD_BYTES = 8 * 1024 * 1024", "HELD_BYTES = 7 * 1024 * 1024"): (
        "a figure that was chosen; tests hold the plan to whatever it is"
    ),
    (
        PULL_PLAN,
        "FIRST_PULL_BYTES = 256 * 1024",
        "FIRST_PULL_BYTES = 257 * 1024",
    ): "an estimate that holds until the first answer",
    (PROPERTY_COLUMNS, "if code < 0:", "if code < -1:"): (
        "a shortcut: without it no pair has the code -1, and the column is null in each row as well"
    ),
    (PROPERTY_COLUMNS, "FIRST_NOT_ASCII = 0x80", "FIRST_NOT_ASCII = 129"): (
        "a character that is not ASCII begins with a byte from 0xC2 on"
    ),
    (
        RECORD_COLUMNS,
        "written.run(data[starts[run] : ends[row - 1]], starts[run:row] - starts[run], records.pulls[run:row])",
        "written.run(data[starts[run] : ends[row - 0]], starts[run:row] - starts[run], records.pulls[run:row])",
    ): "copies the record behind the run as well, where nothing points to",
    (FRAMING, "self._filled = False", "self._filled = True"): (
        "a large buffer also needs several reads before it, and each of them says this anew"
    ),
    (
        PULL_PLAN,
        "self._pull_bytes = max(len(data), self._pull_bytes * 7 // 8)",
        "self._pull_bytes = max(len(data), self._pull_bytes * 7 // 9)",
    ): "how fast an estimate shrinks: the rows and the bound on what is held are the same",
    (PULL_PLAN, "HELD_BYTES = 8 * 1024 * 1024", "HELD_BYTES = 8 * 1025 * 1024"): (
        "a figure that was chosen; tests hold the plan to whatever it is"
    ),
    (
        PROPERTY_COLUMNS,
        "row_ends = np.frombuffer(ends, np.int32)[1 : len(texts) + 1].astype(np.int64)",
        "row_ends = np.frombuffer(ends, np.int32)[1 : len(texts) + 2].astype(np.int64)",
    ): "Arrow's copy by places leaves a buffer of exactly so many offsets: there is none behind to take",
    (
        FRAMING,
        "POOLED_BUFFERS = 4",
        "POOLED_BUFFERS = 5",
    ): "how many buffers wait to be used again: the frames are the same",
    (WORKERS, "if self._line and not self._waking:", "if self._line or not self._waking:"): (
        "wakes a worker too many, who finds nothing and waits again"
    ),
    (WORKERS, "if now - self._last_ended > OTHERS_RAN:", "if now - self._last_ended >= OTHERS_RAN:"): (
        "half a millisecond to the bit: a figure that was chosen"
    ),
    (
        CONSUME,
        "if not in_line or workers.taken != taken or not queue.waiting or not workers.another(worker):",
        "if not not in_line or workers.taken != taken or not queue.waiting or not workers.another(worker):",
    ): "a fast path: a worker that leaves a queue in line finds it there again",
    (
        TRIES,
        "return max(0.0, min(pause, self.deadline - self.now))",
        "return max(-1.0, min(pause, self.deadline - self.now))",
    ): "the time is over then: to sleep for less than nothing is not to sleep, and no try follows",
}
