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
LANES = "rocketbox/client/lanes.py"
STORE = "rocketbox/broker/store"
PROTOCOL = "rocketbox/protocol"

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
        "return max( -1.0, min(pause, self.deadline - self.now))",
    ): "the time is over then: to sleep for less than nothing is not to sleep, and no try follows",
    (f"{STORE}/consume_queue.py", "self.changes += 1", "self.changes += 0"): (
        "of `remove_files`, behind which nobody reads the queue any more: its other places are killed"
    ),
    (f"{STORE}/checkpoint.py", "checksums_from: int = -1", "checksums_from: int = - 2"): (
        "any negative number says that checksums are not needed"
    ),
    (f"{STORE}/index_file.py", "number, seen = table[slot], 0", "number, seen = table[slot], 1"): (
        "a bound of the steps along a chain that leads in circles; one that leads back has fewer"
    ),
    (f"{STORE}/reading.py", "if offset > end:", "if offset >= end:"): ("the end itself has returned two lines before"),
    (f"{STORE}/config_file.py", "wrong[0], self.path, path, self.path,", "wrong[ -1], self.path, path, self.path,"): (
        "there is one: the second of two files is being used"
    ),
    (
        f"{STORE}/index_file.py",
        "if number >= self._tail_start and (number - self._tail_start) * ENTRY_BYTES < len(self._tail):",
        "if number >= self._tail_start and (number - self._tail_start) // ENTRY_BYTES < len(self._tail):",
    ): ("no number is behind the tail while there is one: who asks has looked at the count"),
    (f"{STORE}/verify.py", "STEP = 1 << 20", "STEP = 2 << 20"): ("a figure that was chosen"),
    (f"{STORE}/index_feed.py", "self._indexed = self._indexed_count = 0", "self._indexed = self._indexed_count = -1"): (
        "one byte and one record of what a slice may hold"
    ),
    (
        f"{STORE}/consume_queue.py",
        "blocks = (0, -(-high * UNIT // BLOCK))",
        "blocks = ( 1, -(-high * UNIT // BLOCK))",
    ): ("a block more is read of a file without data: the end is found all the same"),
    (
        f"{STORE}/consume_queue.py",
        "high = min(high, blocks[0] * BLOCK // UNIT + 1)",
        "high = min(high, blocks[ 1] * BLOCK // UNIT + 1)",
    ): ("the search ends when both are equal"),
    (f"{STORE}/consume_queue.py", "return next(self.units(offset, 1))", "return next(self.units(offset, 2))"): (
        "the first of two is the same one"
    ),
    (f"{STORE}/putting.py", "self.last_timestamp = 0", "self.last_timestamp = 1"): (
        "the first millisecond of 1970: no message is older"
    ),
    (
        f"{STORE}/index_file.py",
        "entry = _ENTRY.unpack(data) if len(data) == ENTRY_BYTES else (0, 0, 0, 0)",
        "entry = _ENTRY.unpack(data) if len(data) == ENTRY_BYTES else (0, 1, 0, 0)",
    ): ("an index file has its full length from the beginning, so that no entry is cut off"),
    (f"{STORE}/store_repair.py", "index_msg_timestamp=0,", "index_msg_timestamp= 1,"): (
        "with either the next start builds the index again from where the log begins"
    ),
    (f"{STORE}/dispatcher.py", "MOST_UNWRITTEN = 4_000_000", "MOST_UNWRITTEN = 4000001"): ("a figure that was chosen"),
    (WORKERS, "self.taken += 1", "self.taken += 0"): (
        "a fast path: of two workers at one queue each takes other messages, and no slice becomes longer"
    ),
    (WORKERS, "self.taken = 0", "self.taken = -1"): "it is compared with what it was before, wherever it began",
    (LANES, "self.one_broker = len(self.brokers) == 1", "self.one_broker = len(self.brokers) == 0"): (
        "a shortcut: where there is one broker a try has all of the time as well"
    ),
    (
        CONSUME,
        "await self._clock.sleep(max(left, min(max(limit / 20, 0.05), 30.0)))",
        "await self._clock.sleep(max(left, min(max(limit / 20, 0.05), 31.0)))",
    ): "a figure that was chosen: how late it may be seen that a handler takes more than ten minutes",
    (
        "rocketbox/client/handler_threads.py",
        "step = min(max(limit / 20, 0.05), 30.0)",
        "step = min(max(limit / 20, 0.05), 31.0)",
    ): "a figure that was chosen: how late it may be seen that threads hang for more than ten minutes",
    (f"{PROTOCOL}/loose_json.py", "self._work += 1", "self._work += 2"): (
        "a text is read in more steps, which are shorter"
    ),
    (
        f"{PROTOCOL}/registration_bodies.py",
        "MAX_UNPACKED_BYTES = 64 * 1024 * 1024",
        "MAX_UNPACKED_BYTES = 63 * 1024 * 1024",
    ): ("a figure that was chosen; tests hold the reading to whatever it is"),
    (f"{PROTOCOL}/loose_json.py", "if start + at_once < len(values):", "if start - at_once < len(values):"): (
        "one step more, behind the last value"
    ),
    (
        f"{PROTOCOL}/command.py",
        "if not few or sum(map(len, ends.split(b'\"')[::2])) > _MOST_BYTES_BESIDE_TEXTS:",
        "if not few or sum(map(len, ends.split(b'\"')[::2])) >= _MOST_BYTES_BESIDE_TEXTS:",
    ): ("one byte of a figure that was chosen"),
    (
        f"{PROTOCOL}/ids.py",
        "self._next_month = int(time.mktime((year, month + 1, 1, 0, 0, 0, 0, 0, -1)) * 1000)",
        "self._next_month = int(time.mktime((year, month + 1, 0, 0, 0, 0, 0, 0, -1)) * 1000)",
    ): ("on the last day of a month its beginning is looked up with each id: the ids are the same"),
    (
        f"{PROTOCOL}/send_pieces.py",
        "if born_at < 0 or properties_at < 0 or start > len(header) or any(header[_REMARK_SIZE]):",
        "if born_at < 0 or properties_at < 0 or start >= len(header) or any(header[_REMARK_SIZE]):",
    ): ("a shortcut: what it leaves out is read by names, to the same end"),
    (f"{PROTOCOL}/command.py", "_MAX_SEEN_BYTES = 1000", "_MAX_SEEN_BYTES = 1001"): ("a figure that was chosen"),
    (f"{PROTOCOL}/loose_json.py", "self._containers = 0", "self._containers = -1"): (
        "one more of a figure that was chosen"
    ),
    (
        f"{PROTOCOL}/command.py",
        'opaque_at = header.rfind(b":", 0, opaque_end) + 1',
        'opaque_at = header.rfind(b":", -1, opaque_end) + 1',
    ): ("a fast path: the next lines read the same"),
    (
        f"{PROTOCOL}/ids.py",
        "self._next_month = int(time.mktime((year, month + 1, 1, 0, 0, 0, 0, 0, -1)) * 1000)",
        "self._next_month = int(time.mktime((year, month + 1, 1, 0, 0, 0, 0, 0, +1)) * 1000)",
    ): ("in the last hour of a month its beginning is looked up with each id: the ids are the same"),
    (f"{PROTOCOL}/loose_json.py", "_SHOWN = 40", "_SHOWN = 39"): ("a figure that was chosen"),
    (f"{PROTOCOL}/kept_heads.py", "MAX_KEY = 4_096", "MAX_KEY = 4097"): ("a figure that was chosen"),
    (
        f"{PROTOCOL}/send_frames.py",
        "_number(fields, most_times, 0) if most_times in fields else None,",
        "_number(fields, most_times, -1) if most_times in fields else None,",
    ): ("the field is there: the default is never taken"),
    (f"{PROTOCOL}/send_frames.py", "if found is not None:", "if not found is not None:"): (
        "a fast path: what it does not find is read by names, to the same end"
    ),
    (
        f"{PROTOCOL}/stored_message.py",
        "if fields[16] >= 0 and body_end < end:",
        "if fields[16] > 0 and body_end < end:",
    ): ("a fast path: an empty body is read by the ordinary way, to the same end"),
    (f"{PROTOCOL}/loose_json.py", "self._at = 0", "self._at = -1"): (
        "regular expressions begin at 0 then, and the next place is theirs"
    ),
    (PULL_PLAN, "STRETCH_BYTES = 2 * 1024 * 1024", "STRETCH_BYTES = 3 * 1024 * 1024"): ("a figure that was chosen"),
    (PULL_PLAN, "STRETCH_PULLS = 2", "STRETCH_PULLS = 3"): ("a figure that was chosen"),
    (
        PULL_PLAN,
        "enough = self._ready_rows >= ROWS_PER_RECORD_BATCH or self._ready_bytes >= BYTES_PER_RECORD_BATCH",
        "enough = self._ready_rows >= ROWS_PER_RECORD_BATCH or self._ready_bytes > BYTES_PER_RECORD_BATCH",
    ): ("one byte of a figure that was chosen"),
    (PULL_PLAN, "if self._in_flight >= PULLS_IN_FLIGHT:", "if self._in_flight > PULLS_IN_FLIGHT:"): (
        "there are as many who pull, each one at a time"
    ),
    (PROPERTY_COLUMNS, "_NO_BYTES = np.empty(0, np.uint8)", "_NO_BYTES = np.empty( 1, np.uint8)"): (
        "a byte without meaning, which is no separator"
    ),
    (PROPERTY_COLUMNS, "return False", "return True"): ("the long way for nothing: none of no numbers comes twice"),
    (PROPERTY_COLUMNS, "if numbers.max() < MOST_COUNTED:", "if numbers.max() <= MOST_COUNTED:"): (
        "a figure that was chosen"
    ),
    (
        PULL_PLAN,
        "pulls = min(STRETCH_PULLS, STRETCH_BYTES // max(1, self._pull_bytes), left // (step * PULLS_IN_FLIGHT))",
        "pulls = min(STRETCH_PULLS, STRETCH_BYTES // max(1, self._pull_bytes), left * (step * PULLS_IN_FLIGHT))",
    ): ("how the end of a range is shared out: the rows and the bound on what is held are the same"),
    (
        RECORD_COLUMNS,
        'data = pulled[0].data if len(pulled) == 1 else b"".join([pull.data for pull in pulled])',
        'data = pulled[0].data if len(pulled) == 0 else b"".join([pull.data for pull in pulled])',
    ): ("a fast path: bytes that are joined with nothing are the same"),
}
