"""``rocketbox store repair`` of several damages at once: a mended store, or an error that says what to do, soon."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from rocketbox.broker.store.config_file import ConfigFile
from rocketbox.broker.store.files import FileRun, OpenFiles
from rocketbox.broker.store.log_walk import Gap, walk_log
from rocketbox.broker.store.message_store import MessageStore
from rocketbox.broker.store.options import StoreOptions
from rocketbox.broker.store.store_repair import RepairStep, plan_repair
from rocketbox.broker.store.timer_file import TimerFile
from rocketbox.protocol.codes import TRANS_OP_HALF_TOPIC
from rocketbox.protocol.stored_message import StoredMessage, encode_stored_message
from rocketbox.storage.file_system import RealStorage
from tests.support.broker.open_transactions import open_transactions
from tests.support.store.store_command import rocketbox
from tests.support.store.store_tools import ManualClock, message, number_of, put_all

ALL = os.environ.get("ROCKETBOX_TESTS") == "all"
FILE = 4096
OPTIONS = StoreOptions(
    mapped_file_size_commit_log=FILE,
    mapped_file_size_consume_queue=200,
    max_hash_slot_num=16,
    max_index_num=64,
    allocate_ahead=0,
)
SETTINGS = ["--max-hash-slot-num=16", "--max-index-num=64"]
COUNT = 40
"""Messages in both queues together."""


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A store that was stopped, and what it was a moment before."""
    stopped, killed = tmp_path_factory.mktemp("stores") / "stopped", tmp_path_factory.mktemp("stores") / "killed"

    async def fill() -> None:
        clock = ManualClock()
        async with MessageStore(stopped, OPTIONS, clock=clock) as store:
            for number in range(COUNT):
                await put_all(store, message(number, queue_id=number % 2, size=size_of(number)))
                clock.now_ms += 1000
            for _ in range(3):
                await clock.advance(11)
            shutil.copytree(stopped, killed)

    anyio.run(fill)
    for root in (stopped, killed):
        (root / "config").mkdir(exist_ok=True)
        table = ConfigFile(root / "config" / "topics.json", RealStorage())
        table.persist([b'{"a":1}'])
        table.persist([b'{"a":2}'])
        for number in (1, 2):
            TimerFile(str(root / "config"), RealStorage()).save(number, 1, 1, [array("q", [1, 0]).tobytes()])
    return [stopped, killed]


def size_of(number: int) -> int:
    return number * 37 % 500 + 20


def log_file(root: Path, number: int) -> Path:
    return root / "commitlog" / f"{number * FILE:020d}"


def intact(root: Path) -> set[int]:
    """The messages whose records are whole in files of the log that have their names."""
    numbers = set()
    for path in (root / "commitlog").iterdir():
        if re.fullmatch(r"\d{20}", path.name) and int(path.name) % FILE == 0 and path.stat().st_size > 90:
            run = FileRun(OpenFiles(RealStorage()), str(root / "commitlog"), FILE, "")
            run.starts = [int(path.name)]
            steps = [step for step in walk_log(run, int(path.name)) if not isinstance(step, Gap)]
            numbers |= {number_of(record) for _, record in steps}
    return numbers


def served(root: Path) -> set[int]:
    """The messages that consumers get; and one more can be put."""
    found: set[int] = set()

    async def read() -> None:
        async with MessageStore(root, OPTIONS, clock=ManualClock()) as store:
            for queue_id in (0, 1):
                offset, end = store.min_offset("orders", queue_id), store.max_offset("orders", queue_id)
                while offset < end:
                    result = store.get("orders", queue_id, offset)
                    found.update(map(number_of, result.records))
                    assert result.next_begin_offset > offset
                    offset = result.next_begin_offset
            await put_all(store, message(999))

    anyio.run(read)
    return found


def kept_in_torn(root: Path, number: int) -> bool:
    body = (b"%d " % number).ljust(size_of(number), b".")
    torn = root / "torn"
    return torn.exists() and any(body in path.read_bytes() for path in torn.iterdir())


def check_repair(root: Path, *, mended: bool = False) -> str:
    """Repair it: a sound store that serves all that was intact, or has it in torn; or an error to act on.

    Returns what was printed.
    """
    before = intact(root)
    assert rocketbox("check", "--data-dir", root, *SETTINGS).exit_code in {0, 1}
    result = rocketbox("repair", "--data-dir", root, "--yes", *SETTINGS)
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    if result.exit_code:
        assert not mended, result.output
        assert "attempts" not in result.output
        assert "Errno" not in result.output
        assert str(root) in result.output  # a file is named
        return result.output
    after = rocketbox("check", "--data-dir", root, *SETTINGS)
    assert after.exit_code == 0, after.output
    missing = before - served(root)
    assert [number for number in missing if not kept_in_torn(root, number)] == []
    return result.output


# --- each by itself ---

FAR = 9 * 10**19 // FILE * FILE
CASES: dict[str, list[Callable[[Path], object]]] = {
    "an empty file far ahead": [lambda root: (root / "commitlog" / f"{FAR:020d}").touch()],
    "a file of zeros far ahead": [lambda root: (root / "commitlog" / f"{FAR:020d}").write_bytes(bytes(FILE))],
    "a file of zeros a little ahead": [lambda root: log_file(root, 20).write_bytes(bytes(FILE))],
    "a copy far ahead": [lambda root: shutil.copy(log_file(root, 1), root / "commitlog" / f"{FAR:020d}")],
    "a file renamed far ahead": [lambda root: log_file(root, 1).rename(root / "commitlog" / f"{FAR:020d}")],
    "a file renamed off the grid": [lambda root: log_file(root, 1).rename(root / "commitlog" / f"{FILE + 5:020d}")],
    "a missing file and a stray one": [
        lambda root: log_file(root, 1).unlink(),
        lambda root: (root / "commitlog" / f"{FILE + 5:020d}").write_bytes(b"stray"),
    ],
    "a file far ahead and the checkpoint gone": [
        lambda root: shutil.copy(log_file(root, 1), root / "commitlog" / f"{FAR:020d}"),
        lambda root: (root / "checkpoint").unlink(),
    ],
    "the checkpoint gone and a record damaged": [
        lambda root: (root / "checkpoint").unlink(),
        lambda root: flip(log_file(root, 1), 700),
    ],
    "the checkpoint and the lock gone and the end damaged": [
        lambda root: (root / "checkpoint").unlink(),
        lambda root: (root / "lock").unlink(),
        lambda root: flip(max((root / "commitlog").iterdir()), 60),
    ],
    "a queue's file far ahead": [
        lambda root: shutil.copy(
            root / "consumequeue/orders/0" / f"{0:020d}", root / "consumequeue/orders/0" / f"{4 * 10**18:020d}"
        )
    ],
    "the checksum of a record gone and an index file damaged": [
        lambda root: tear_checksum(log_file(root, 1)),
        lambda root: os.truncate(min((root / "index").iterdir()), 0),
    ],
    "the first file of the log gone": [lambda root: log_file(root, 0).unlink()],
    "the lock damaged and the last file of the log gone": [
        lambda root: flip(root / "lock", 12),
        lambda root: max((root / "commitlog").iterdir()).unlink(),
    ],
    "the checkpoint and a queue's first file gone": [
        lambda root: (root / "checkpoint").unlink(),
        lambda root: (root / "consumequeue/orders/1" / f"{0:020d}").unlink(),
    ],
    "two files of the log exchanged": [
        lambda root: log_file(root, 1).rename(root / "commitlog" / "x"),
        lambda root: log_file(root, 2).rename(log_file(root, 1)),
        lambda root: (root / "commitlog" / "x").rename(log_file(root, 2)),
    ],
}


def flip(path: Path, position: int, bit: int = 3) -> None:
    data = bytearray(path.read_bytes())
    data[position % len(data)] ^= 1 << bit
    path.write_bytes(data)


def tear_checksum(path: Path) -> None:
    """Have the last record of a file end with something else: it is as whole as one that never had a checksum."""
    data = path.read_bytes()
    at = data.rindex(b"__CRC32#")
    path.write_bytes(data[:at] + bytes(5) + b"old bytes here." + data[at + 20 :])


@pytest.mark.parametrize("which", [0, 1], ids=["stopped", "killed"])
@pytest.mark.parametrize("case", CASES)
def test_a_store_is_mended(stores: list[Path], tmp_path: Path, case: str, which: int) -> None:
    root = tmp_path / "store"
    shutil.copytree(stores[which], root)
    for damage in CASES[case]:
        damage(root)
    check_repair(root, mended=True)


def test_a_renamed_file_of_the_log_is_put_back_and_nothing_is_lost(stores: list[Path], tmp_path: Path) -> None:
    root = tmp_path / "store"
    shutil.copytree(stores[0], root)
    stray = root / "commitlog" / f"{FAR:020d}"
    log_file(root, 1).rename(stray)
    assert f"rename {stray} to {log_file(root, 1)}" in check_repair(root, mended=True)
    assert set(range(COUNT)) <= served(root)


def test_a_damaged_copy_of_what_waits_is_set_aside_and_the_one_before_is_used(
    stores: list[Path], tmp_path: Path
) -> None:
    root = tmp_path / "store"
    shutil.copytree(stores[0], root)
    path = root / "config" / "timers.bin"
    flip(path, 9)
    assert f"table: {path}:0: its head does not match its checksum" in (
        rocketbox("check", "--data-dir", root, *SETTINGS).output
    )
    assert f"set {path} aside" in check_repair(root, mended=True)
    state, wrong = TimerFile(str(root / "config"), RealStorage()).load()
    assert state is not None
    assert (state.next_offset, wrong) == (1, [])


def test_a_transaction_whose_end_was_cut_off_has_ended_also_when_a_repair_came_before_the_broker(
    tmp_path: Path,
) -> None:
    root = tmp_path / "store"

    async def committed_without_its_mark() -> None:
        async with open_transactions(RealStorage(), OPTIONS, root=str(tmp_path / "running")) as run:
            for name in ("before", "cut off"):
                await run.store.durable(run.begin(name))
                await run.store.durable(run.end(name, commit=True))
            shutil.copytree(tmp_path / "running", root)
            mark = run.messages(TRANS_OP_HALF_TOPIC)[-1]
        data = log_file(root, 0).read_bytes()
        log_file(root, 0).write_bytes(data[: mark.commit_log_offset].ljust(len(data), b"\0"))

    async def states() -> tuple[list[str], list[str]]:
        async with open_transactions(RealStorage(), OPTIONS, root=str(root)) as run:
            return run.open_names(), run.names()

    anyio.run(committed_without_its_mark)
    repaired = rocketbox("repair", "--data-dir", root, "--yes", *SETTINGS)
    assert (repaired.exit_code, "cut the log off" in repaired.output) == (0, True), repaired.output
    for _ in range(2):
        assert anyio.run(states) == ([], ["before", "cut off"])


def test_from_its_check_to_its_last_step_a_repair_has_the_directory_for_itself(
    stores: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a broker stored between the two would be cut off by a plan that does not know of it."""
    root = tmp_path / "store"
    shutil.copytree(stores[0], root)
    flip(log_file(root, 1), 700)
    others: list[str] = []
    open_it = "import sys; from rocketbox.storage.file_system import RealStorage; RealStorage().lock(sys.argv[1])"

    def plan_while_a_broker_starts(*arguments: Any) -> list[RepairStep]:
        started = subprocess.run(
            [sys.executable, "-c", open_it, str(root / "lock")], capture_output=True, text=True, check=False
        )
        others.append(started.stderr)
        return plan_repair(*arguments)

    monkeypatch.setattr("rocketbox.cli.store.plan_repair", plan_while_a_broker_starts)
    check_repair(root, mended=True)
    assert others
    assert all("StoreLockedError" in other for other in others)


def test_files_of_two_stores_are_refused_naming_both(stores: list[Path], tmp_path: Path) -> None:
    root, other = tmp_path / "store", tmp_path / "other"
    shutil.copytree(stores[0], root)
    far = FILE << 30
    write_log(other, far)
    shutil.copy(other / "commitlog" / f"{far:020d}", root / "commitlog")
    for command in (["check"], ["repair", "--yes"]):
        result = rocketbox(*command, "--data-dir", root, *SETTINGS)
        assert result.exit_code == 1
        assert "are missing between" in result.output
        assert str(max((root / "commitlog").iterdir())) in result.output
        assert "Move those that do not belong here" in result.output


def write_log(root: Path, start: int) -> None:
    """A log of one record that begins far away."""
    (root / "commitlog").mkdir(parents=True)
    record = encode_stored_message(
        StoredMessage("orders", 0, b"far", b""), property_crc=True, place=(0, start, 1, (b"\x7f\0\0\x01", 10911))
    )
    (root / "commitlog" / f"{start:020d}").write_bytes(record.ljust(FILE, b"\0"))


# --- any two at once ---


def damaged(root: Path, rng: random.Random) -> str:
    """Damage one file of any kind in any way; what was done."""
    kinds: dict[str, list[Path]] = {}
    for path in sorted(root.rglob("*")):
        if path.is_file():
            kinds.setdefault(path.relative_to(root).parts[0], []).append(path)
    kind = rng.choice(sorted(kinds))
    path = rng.choice(kinds[kind])
    unit = FILE if kind == "commitlog" else 400
    size, width = path.stat().st_size, len(path.name)
    operations = ["remove", "truncate", "extend", "flip", "zeros"]
    if path.name.isdigit():
        operations += ["rename", "copy", "stray"]
    operation = rng.choice(operations)
    numbers = [int(path.name) + unit * rng.randrange(1, 9), int(path.name) + 7] if path.name.isdigit() else []
    numbers += [10 ** (width - 1), 9 * 10 ** (width - 1) // unit * unit]
    target = path.with_name(f"{rng.choice(numbers):0{width}d}")
    if operation == "remove":
        path.unlink()
    elif operation == "truncate":
        os.truncate(path, rng.randrange(size + 1))
    elif operation == "extend":
        os.truncate(path, size + rng.choice([1, 20, 400, FILE]))
    elif operation == "flip" and size:
        flip(path, rng.randrange(size), rng.randrange(8))
    elif operation == "zeros":
        start = rng.randrange(size + 1)
        with path.open("r+b") as file:
            file.seek(start)
            file.write(bytes(min(size - start, rng.randrange(2000))))
    elif operation == "rename":
        path.rename(target)
    elif not target.exists():
        target.write_bytes(path.read_bytes() if operation == "copy" else bytes(rng.choice([0, 5, unit])))
    return f"{operation} {path.relative_to(root)}"


@pytest.mark.parametrize("part", range(4))
def test_any_two_damages_end_in_a_sound_store_or_an_error_to_act_on(
    stores: list[Path], tmp_path: Path, part: int
) -> None:
    count = 100 if ALL else 4
    for seed in range(part * count, (part + 1) * count):
        rng = random.Random(seed)
        root = tmp_path / str(seed)
        shutil.copytree(rng.choice(stores), root)
        what = [damaged(root, rng) for _ in range(2)]
        try:
            check_repair(root)
        except BaseException as error:
            error.add_note(f"seed {seed}: {what}")
            raise
        shutil.rmtree(root)
