"""``rocketbox store``: what it prints, its status, and that it changes nothing that it was not asked to change."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest

from rocketbox.broker.store.message_store import MessageStore
from rocketbox.broker.store.options import StoreOptions
from rocketbox.protocol.stored_message import StoredMessage
from tests.support.store.store_command import rocketbox
from tests.support.store.store_tools import ManualClock, found_by_key, message, number_of, put_all

OPTIONS = StoreOptions(
    mapped_file_size_commit_log=65_536,
    mapped_file_size_consume_queue=400,
    max_hash_slot_num=16,
    max_index_num=64,
    allocate_ahead=0,
)
SETTINGS = ["--max-hash-slot-num=16", "--max-index-num=64"]  # all other sizes are those of the files
START = 1_700_000_000_000


def filled(root: Path, messages: list[StoredMessage] | None = None) -> list[int]:
    """A store with one message a second; returns where the records begin."""
    clock, places = ManualClock(), []

    async def fill() -> None:
        async with MessageStore(root, OPTIONS, clock=clock) as store:
            for each in messages or [message(number) for number in range(30)]:
                places.append((await put_all(store, each))[0])
                clock.now_ms += 1000

    anyio.run(fill)
    return places


def digest(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def damage(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 4]))


def first_log_file(root: Path) -> Path:
    return root / "commitlog" / f"{0:020d}"


# --- check ---


def test_a_sound_store_has_status_0(tmp_path: Path) -> None:
    filled(tmp_path)
    before = digest(tmp_path)
    result = rocketbox("check", "--data-dir", tmp_path, *SETTINGS)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == "sound"
    assert digest(tmp_path) == before


def test_what_is_wrong_is_named_with_file_and_place(tmp_path: Path) -> None:
    places = filled(tmp_path)
    queue = tmp_path / "consumequeue" / "orders" / "0" / f"{0:020d}"
    damage(first_log_file(tmp_path), places[7] + 100)
    damage(queue, 59)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text('{"dataVersion"')
    before = digest(tmp_path)
    result = rocketbox("check", "--data-dir", tmp_path, *SETTINGS)
    assert result.exit_code == 1
    assert f"log: {first_log_file(tmp_path)}:{places[7]}: " in result.stdout
    assert f"queue: {queue}:40: entry 2 of orders/0 says" in result.stdout
    assert f"table: {tmp_path}/config/topics.json" in result.stdout
    assert "things are wrong" in result.stdout
    assert digest(tmp_path) == before


def test_many_findings_in_one_file_are_counted(tmp_path: Path) -> None:
    filled(tmp_path)
    queue = tmp_path / "consumequeue" / "orders" / "0" / f"{0:020d}"
    queue.write_bytes(b"\7" * 400)
    (tmp_path / "consumequeue" / "orders" / "0" / f"{400:020d}").write_bytes(b"\7" * 400)
    result = rocketbox("check", "--data-dir", tmp_path, *SETTINGS)
    assert f"queue: {queue}: 10 more" in result.stdout
    assert "31 things are wrong" in result.stdout  # 30 entries, and what stands behind the last


def test_a_directory_in_use_is_refused_unless_only_read(tmp_path: Path) -> None:
    filled(tmp_path)
    script = (
        "import fcntl, os, sys; fd = os.open(sys.argv[1], os.O_RDWR); fcntl.lockf(fd, fcntl.LOCK_EX, 1);"
        "print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        for command in (["check"], ["export", "--to", tmp_path / "out"]):
            result = rocketbox(*command, "--data-dir", tmp_path, *SETTINGS)
            assert result.exit_code == 1
            assert "is in use by a broker; stop it, or give --read-only" in result.output
            result = rocketbox(*command, "--data-dir", tmp_path, "--read-only", *SETTINGS)
            assert result.exit_code == 0, result.output
        holder.communicate()


def test_a_broker_of_this_process_keeps_its_lock(tmp_path: Path) -> None:
    async def run() -> None:
        async with MessageStore(tmp_path, OPTIONS) as store:
            await put_all(store, message(0))
            assert rocketbox("check", "--data-dir", tmp_path, *SETTINGS).exit_code == 1
            assert rocketbox("check", "--data-dir", tmp_path, "--read-only", *SETTINGS).exit_code == 0
            script = "import fcntl, os, sys; fcntl.lockf(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX | 4, 1)"
            taken = await anyio.run_process([sys.executable, "-c", script, str(tmp_path / "lock")], check=False)
            assert b"Error" in taken.stderr

    anyio.run(run)


@pytest.mark.parametrize("command", [["check"], ["export", "--to", "out"]])
def test_what_is_no_store_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    result = rocketbox(*command, "--data-dir", tmp_path / "nowhere")
    assert result.exit_code == 1
    assert "holds no store" in result.output
    assert os.listdir(tmp_path) == []


def test_a_setting_that_is_misspelt_is_refused(tmp_path: Path) -> None:
    filled(tmp_path)
    result = rocketbox("check", "--data-dir", tmp_path, "--max-index-nums=3")
    assert result.exit_code == 1
    assert "did you mean --max-index-num?" in result.output


# --- export ---


def exported(root: Path, *arguments: object) -> list[dict[str, object]]:
    to = root.parent / f"{root.name}.jsonl"
    result = rocketbox("export", "--data-dir", root, "--to", to, "--force", *arguments, *SETTINGS)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in to.read_text("utf-8").splitlines()]


def test_every_message_is_a_line(tmp_path: Path) -> None:
    texts = [StoredMessage("flüge", 1, "grüß".encode(), b"TAGS\x01a\x02KEYS\x01k1 k2", flag=5)]
    bytes_ = [StoredMessage("orders", 0, b"\xff\x00", b"") for _ in range(2)]
    places = filled(tmp_path / "store", texts + bytes_)
    first, second, third = exported(tmp_path / "store")
    assert (first["topic"], first["queue_id"], first["flag"]) == ("flüge", 1, 5)
    assert (first["body"], first["body_encoding"]) == ("grüß", "text")
    assert first["properties"] == {"TAGS": "a", "KEYS": "k1 k2"}
    assert first["store_timestamp_ms"] == START
    assert (second["body_encoding"], base64.b64decode(str(second["body"]))) == ("base64", b"\xff\x00")
    assert [second["queue_offset"], third["queue_offset"]] == [0, 1]
    assert [each["commit_log_offset"] for each in (first, second, third)] == places


def test_messages_are_chosen_by_topic_time_and_offset(tmp_path: Path) -> None:
    store = tmp_path / "store"
    filled(store, [message(number, topic=("a", "b", "c")[number % 3]) for number in range(30)])

    def numbers(*arguments: object) -> list[int]:
        return [int(str(each["body"]).split()[0]) for each in exported(store, *arguments)]

    assert numbers("--topic", "a", "--topic=c") == [number for number in range(30) if number % 3 != 1]
    assert numbers("--offset=8:") == list(range(24, 30))
    assert numbers("--offset=:1") == [0, 1, 2]
    assert numbers("--from", START + 20_000, "--until", START + 22_000) == [20, 21]
    local = datetime.fromtimestamp(START // 1000 + 25, UTC).astimezone()
    assert numbers("--from", local.replace(tzinfo=None).isoformat()) == [25, 26, 27, 28, 29]
    assert numbers("--from", local.isoformat()) == [25, 26, 27, 28, 29]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--from=soon"], "--from is 'soon', which is no time"),
        (["--offset=7"], "write FIRST:END"),
    ],
)
def test_a_choice_that_means_nothing_is_refused(tmp_path: Path, arguments: list[str], says: str) -> None:
    filled(tmp_path / "store", [message(0)])
    result = rocketbox("export", "--data-dir", tmp_path / "store", "--to", tmp_path / "out", *arguments)
    assert result.exit_code == 1
    assert says in result.output
    assert not (tmp_path / "out").exists()


def test_a_damaged_store_is_exported_but_for_what_cannot_be_read(tmp_path: Path) -> None:
    store, to = tmp_path / "store", tmp_path / "out"
    places = filled(store)
    damage(first_log_file(store), places[7] + 100)
    before = digest(store)
    result = rocketbox("export", "--data-dir", store, "--to", to, *SETTINGS)
    assert result.exit_code == 1
    assert f"left out: {places[8] - places[7]} bytes at {first_log_file(store)}:{places[7]}" in result.stderr
    assert [json.loads(line)["queue_offset"] for line in to.read_text().splitlines()] == [*range(7), *range(8, 30)]
    assert digest(store) == before


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    store, to = tmp_path / "store", tmp_path / "out"
    filled(store)
    to.write_text("precious")
    result = rocketbox("export", "--data-dir", store, "--to", to, *SETTINGS)
    assert result.exit_code == 1
    assert "give another file, or --force" in result.output
    assert to.read_text() == "precious"
    assert rocketbox("export", "--data-dir", store, "--to", to, "--force", *SETTINGS).exit_code == 0
    assert len(to.read_text().splitlines()) == 30


def test_messages_may_go_to_stdout(tmp_path: Path) -> None:
    filled(tmp_path, [message(0), message(1)])
    result = rocketbox("export", "--data-dir", tmp_path, "--to", "-", *SETTINGS)
    assert [json.loads(line)["queue_offset"] for line in result.stdout.splitlines()] == [0, 1]


# --- repair ---


def repaired(root: Path) -> None:
    """Repair it; then it must be sound, and open."""
    result = rocketbox("repair", "--data-dir", root, "--yes", *SETTINGS)
    assert result.exit_code == 0, result.output
    assert rocketbox("check", "--data-dir", root, *SETTINGS).exit_code == 0


def numbers_in(root: Path, topic: str = "orders") -> list[int]:
    """The messages that a consumer gets, and that the store goes on with the offset it had."""
    found: list[int] = []

    async def read() -> None:
        async with MessageStore(root, OPTIONS, clock=ManualClock()) as store:
            offset, end = store.min_offset(topic, 0), store.max_offset(topic, 0)
            while offset < end:
                result = store.get(topic, 0, offset)
                found.extend(number_of(record) for record in result.records)
                offset = result.next_begin_offset
            await put_all(store, message(99))
            assert await found_by_key(store, "k99") == [99]

    anyio.run(read)
    return found


def test_the_steps_of_a_repair_are_printed_and_nothing_is_done(tmp_path: Path) -> None:
    places = filled(tmp_path)
    damage(first_log_file(tmp_path), places[7] + 100)
    before = digest(tmp_path)
    result = rocketbox("repair", "--data-dir", tmp_path, *SETTINGS)
    assert result.exit_code == 1
    assert f"1. copy {places[8] - places[7]} bytes at {first_log_file(tmp_path)}:{places[7]} to " in result.stdout
    assert "nothing was changed; rocketbox store repair --yes does all of this" in result.stdout
    assert digest(tmp_path) == before


def test_a_sound_store_has_nothing_to_repair(tmp_path: Path) -> None:
    filled(tmp_path)
    before = digest(tmp_path)
    assert "nothing to do" in rocketbox("repair", "--data-dir", tmp_path, *SETTINGS).stdout
    assert digest(tmp_path) == before


@pytest.mark.parametrize("which", [0, 7, 28])
def test_a_damaged_record_is_replaced_and_all_others_are_there(tmp_path: Path, which: int) -> None:
    places = filled(tmp_path)
    path = first_log_file(tmp_path)
    damage(path, places[which] + 60)
    damaged = path.read_bytes()[places[which] : places[which + 1]]
    repaired(tmp_path)
    copies = [
        each.read_bytes() for each in (tmp_path / "torn").iterdir() if each.name.startswith(f"{places[which]:020d}")
    ]
    assert copies == [damaged]
    assert numbers_in(tmp_path) == [number for number in range(30) if number != which]


def test_a_log_that_lost_its_end_is_cut_there(tmp_path: Path) -> None:
    places = filled(tmp_path)
    with first_log_file(tmp_path).open("r+b") as file:
        file.seek(places[25] + 10)
        file.write(bytes(3000))
    repaired(tmp_path)
    assert numbers_in(tmp_path) == list(range(25))


def test_a_missing_file_of_the_log_is_replaced_by_an_empty_one(tmp_path: Path) -> None:
    filled(tmp_path, [message(number, size=20_000) for number in range(10)])
    (tmp_path / "commitlog" / f"{65_536:020d}").unlink()
    repaired(tmp_path)
    assert numbers_in(tmp_path) == [0, 1, 2, 6, 7, 8, 9]


def test_a_log_file_that_was_cut_short_is_completed(tmp_path: Path) -> None:
    filled(tmp_path, [message(number, size=20_000) for number in range(10)])
    os.truncate(first_log_file(tmp_path), 30_000)
    repaired(tmp_path)
    assert numbers_in(tmp_path) == [0, *range(3, 10)]


def test_queues_index_and_tables_are_mended(tmp_path: Path) -> None:
    filled(tmp_path)
    queue = tmp_path / "consumequeue" / "orders" / "0" / f"{0:020d}"
    sound = queue.read_bytes()
    queue.write_bytes(b"\7" * 400)
    index = sorted((tmp_path / "index").iterdir())
    damage(index[0], 40 + 64 + 25)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text('{"dataVersion"')
    repaired(tmp_path)
    assert queue.read_bytes() == sound
    assert sorted(each.name.rpartition("-")[0] for each in (tmp_path / "torn").iterdir()) == sorted(
        [
            "checkpoint",
            "config-topics.json",
            f"consumequeue-orders-0-{0:020d}",
            *[f"index-{each.name}" for each in index],
        ]
    )
    assert numbers_in(tmp_path) == list(range(30))


def test_an_index_file_that_was_cut_short_is_set_aside_with_the_others(tmp_path: Path) -> None:
    filled(tmp_path)
    index = sorted((tmp_path / "index").iterdir())
    with index[0].open("r+b") as file:
        file.truncate(751)
    assert rocketbox("repair", "--data-dir", tmp_path, "--yes", *SETTINGS).exit_code == 0
    assert rocketbox("check", "--data-dir", tmp_path, *SETTINGS).exit_code == 0
    assert {f"index-{each.name}" for each in index} <= {
        each.name.rpartition("-")[0] for each in (tmp_path / "torn").iterdir()
    }


def test_a_queue_file_of_another_length_is_mended(tmp_path: Path) -> None:
    filled(tmp_path, [message(number, queue_id=number % 2) for number in range(30)])
    queue = tmp_path / "consumequeue" / "orders" / "0" / f"{0:020d}"
    with queue.open("r+b") as file:
        file.truncate(277)
    assert rocketbox("check", "--data-dir", tmp_path, *SETTINGS).exit_code == 1
    assert rocketbox("repair", "--data-dir", tmp_path, "--yes", *SETTINGS).exit_code == 0
    assert rocketbox("check", "--data-dir", tmp_path, *SETTINGS).exit_code == 0
    assert queue.stat().st_size == 400
