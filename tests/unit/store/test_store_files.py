"""The parts of the store by themselves: file systems, tables on disk, checkpoint, hashes, settings."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from rocketbox.broker.store.checkpoint import Checkpoint
from rocketbox.broker.store.files import FileRun, OpenFiles, read_data
from rocketbox.broker.store.index_hashes import hash_alike, hash_key, hash_keys, hash_prefix
from rocketbox.broker.store.options import StoreOptions
from rocketbox.broker.store.records import find_keys, find_property
from rocketbox.errors import ConfigurationError
from rocketbox.message import encode_properties
from rocketbox.protocol.tags import java_string_hash
from rocketbox.storage.file_system import RealStorage, Storage
from rocketbox.storage.memory_storage import MemoryStorage


@pytest.fixture(params=["real", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Storage, str]:
    """A file system and a directory in it."""
    return (RealStorage(), str(tmp_path)) if request.param == "real" else (MemoryStorage(), "/some")


# --- storage ---


def test_what_is_written_is_read_and_the_rest_is_zero(place: tuple[Storage, str]) -> None:
    storage, root = place
    storage.make_directories(f"{root}/a/b")
    file = storage.open(f"{root}/a/b/file", create=True)
    file.truncate(1 << 20)
    file.allocate(0, 1 << 16)
    file.write(100_000, [b"one", b"two"])
    file.write(65_530, [bytes(range(20))])
    file.sync()
    assert file.size() == 1 << 20
    assert file.read(99_999, 8) == b"\0onetwo\0"
    assert file.read(65_530, 20) == bytes(range(20))
    assert file.read((1 << 20) - 3, 10) == bytes(3)
    assert file.read(1 << 21, 10) == b""
    assert storage.open(f"{root}/a/b/file").read(100_000, 6) == b"onetwo"
    file.truncate(100_003)
    file.truncate(1 << 20)
    assert file.read(100_000, 6) == b"one\0\0\0"


def test_the_next_data_is_never_missed(place: tuple[Storage, str]) -> None:
    storage, root = place
    storage.make_directories(root)
    file = storage.open(f"{root}/file", create=True)
    file.truncate(10 << 20)
    file.write(5 << 20, [b"data"])
    file.sync()
    found = file.next_data(0)
    assert found is not None
    assert found <= 5 << 20
    assert (file.next_data(5 << 20)) == 5 << 20
    assert file.next_data(9 << 20) is None


@pytest.mark.parametrize(("start", "end"), [(0, 10 << 20), (40, 5_000_040), (3 << 20, (3 << 20) + 7)])
def test_a_sparse_file_is_read_by_its_data(place: tuple[Storage, str], start: int, end: int) -> None:
    storage, root = place
    storage.make_directories(root)
    file = storage.open(f"{root}/file", create=True)
    file.truncate(10 << 20)
    for position in (0, (3 << 20) - 5, 5_000_030, (8 << 20) + 1):
        file.write(position, [bytes(range(1, 20))])
    file.sync()
    pieces = list(read_data(file, start, end))
    whole = bytearray(end - start)
    for position, data in pieces:
        whole[position - start : position - start + len(data)] = data
    assert len(whole) == end - start
    assert whole == file.read(start, end - start)
    assert sum(len(data) for _, data in pieces) <= min(end - start, 5 << 20)  # a piece of 1 MB is read at each place


def test_what_is_allocated_ahead_is_not_read(tmp_path: Path) -> None:
    storage = RealStorage()
    file = storage.open(f"{tmp_path}/file", create=True)
    file.truncate(256 << 20)
    file.allocate(0, 64 << 20)
    file.write(0, [b"x" * 5_000])
    file.sync()
    if file.next_data(1 << 20) is not None:
        pytest.skip("this file system does not tell data from what is allocated")
    assert sum(len(data) for _, data in read_data(file, 4_424, 256 << 20)) <= 1 << 20


def test_a_file_of_a_run_is_read_up_to_its_last_data(place: tuple[Storage, str]) -> None:
    storage, root = place
    run = FileRun(OpenFiles(storage), root, 4 << 20, "file-size")
    storage.make_directories(root)
    run.write(0, b"x" * (4 << 20))
    run.write((6 << 20) + 3, b"end")
    assert run.read_file(0) == run.read(0, 4 << 20)
    content = run.read_file(4 << 20)
    assert content.rstrip(b"\0") == bytes((2 << 20) + 3) + b"end"
    assert len(content) < 4 << 20


def test_names_come_and_go(place: tuple[Storage, str]) -> None:
    storage, root = place
    storage.make_directories(f"{root}/x")
    storage.make_directories(f"{root}/x")
    assert storage.is_directory(f"{root}/x")
    assert storage.list_directory(f"{root}/none") == []
    with pytest.raises(FileNotFoundError):
        storage.open(f"{root}/x/none")
    with pytest.raises(FileNotFoundError):
        storage.open(f"{root}/none/file", create=True)
    for name in "ba":
        storage.open(f"{root}/x/{name}", create=True).write(0, [name.encode()])
    assert storage.list_directory(f"{root}/x") == ["a", "b"]
    storage.rename(f"{root}/x/a", f"{root}/x/b")
    assert storage.open(f"{root}/x/b").read(0, 9) == b"a"
    storage.sync_directory(f"{root}/x")
    storage.remove(f"{root}/x/b")
    assert not storage.exists(f"{root}/x/b")
    assert storage.exists(f"{root}/x")


def test_files_in_use_stay_usable_when_many_others_are_opened(tmp_path: Path) -> None:
    files = OpenFiles(RealStorage(), limit=4)
    held = files.get(str(tmp_path / "held"), create=True)
    for number in range(50):
        files.get(str(tmp_path / str(number)), create=True).write(0, [b"%d" % number])
    held.write(0, [b"still"])
    assert files.get(str(tmp_path / "held")).read(0, 9) == b"still"
    assert files.get(str(tmp_path / "7")).read(0, 9) == b"7"
    del held
    files.close()
    open_files = [Path(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    names = [os.readlink(path) for path in open_files if path.exists()]
    assert not [name for name in names if name.startswith(str(tmp_path))]


def test_cutting_clears_all_behind_and_keeps_the_lengths() -> None:
    storage = MemoryStorage()
    run = FileRun(OpenFiles(storage), "/run", 1000, "some-size")
    run.write(0, bytes([1]) * 2500)
    assert run.starts == [0, 1000, 2000]
    assert run.cut(1500) == 1000
    assert run.starts == [0, 1000]
    assert run.read(1400, 1000) == bytes([1]) * 100 + bytes(500)
    assert run.cut(1500) == 0


# --- checkpoint, hashes, properties, settings ---


def test_a_checkpoint_comes_back_and_its_mark_holds_only_whole() -> None:
    value = Checkpoint(1, 2, 3, 0, 77, 5, True, 1 << 63, 77, 70, 60, 9, 20)
    data = value.encode()
    assert Checkpoint.decode(data) == value
    for offset in range(len(data)):
        wrong = bytearray(data)
        wrong[offset] ^= 1
        found = Checkpoint.decode(bytes(wrong))
        if offset < 108:
            assert not found.marked
        else:  # only where the log begins is not known then
            assert found.marked
            assert found.log_start == -1
    assert Checkpoint.decode(data[:48]) == Checkpoint(1, 2, 3, 0, 77, 5)
    assert Checkpoint.decode(b"") == Checkpoint()


def test_keys_have_javas_hash_made_positive() -> None:
    chance = random.Random(5)
    letters = "abcXYZ0123456789#-_é漢😀"
    for length in [*range(40), 32, 32, 32]:
        for _ in range(20):
            key = "".join(chance.choices(letters, k=length))
            expected = abs(java_string_hash(f"topic#{key}"))
            assert hash_key(hash_prefix("topic#"), key.encode()) == (0 if expected == 1 << 31 else expected)
    key = "7F00000100002A139C18000000000001"
    assert hash_key(hash_prefix("Orders#"), key.encode()) == abs(java_string_hash(f"Orders#{key}"))
    assert hash_key(hash_prefix("polygenelubricants"), b"") == 0  # Java's smallest int, which has no positive


@pytest.mark.parametrize("letters", ["abcXYZ0123456789#-_\x7f\0", "abé漢😀"])
def test_keys_hashed_together_have_the_hashes_they_have_alone(letters: str) -> None:
    chance = random.Random(6)
    keys = [
        (chance.choice([0, hash_prefix("topic#"), 0xFFFFFFFF]), "".join(chance.choices(letters, k=length)).encode())
        for length in [*range(80), *[chance.randrange(80) for _ in range(500)]]
    ]
    assert hash_keys(keys) == [hash_key(prefix, key) for prefix, key in keys]
    assert hash_keys([(0, b"\x7f" * 8), (0, b"")]) == [hash_key(0, b"\x7f" * 8), 0]
    assert hash_keys([]) == []
    for prefix in (0, hash_prefix("topic#"), 0xFFFFFFFF):
        for length in range(40):
            head = "".join(chance.choices(letters, k=length))
            alike = [(head + "".join(chance.choices(letters, k=chance.choice([8, 8, 8, 9])))).encode() for _ in "abcd"]
            assert hash_alike(prefix, alike) == [hash_key(prefix, key) for key in alike]
            short = [key[:length] for key in alike]
            assert hash_alike(prefix, short) == [hash_key(prefix, key) for key in short]
    assert hash_alike(hash_prefix("polygenelubricants"), [b"", b""]) == [0, 0]


def test_properties_are_found_in_the_text_of_all() -> None:
    text = encode_properties({"XTAGS": "no", "KEYS": "a b", "TAGS": "t", "UNIQ_KEY": "u"})
    assert find_keys(text) == (b"t", b"a b", b"u")
    assert find_keys(text.rstrip(b"\x02")) == (b"t", b"a b", b"u")
    assert find_keys(b"") == (None, None, None)
    assert find_property(b"TAGS\x01first\x02TAGS\x01last", b"TAGS") == b"last"
    assert find_property(b"TAGS\x01\x02", b"TAGS") is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mapped_file_size_commit_log", 100),
        ("mapped_file_size_consume_queue", 6_000_001),
        ("max_index_num", 1),
        ("flush_interval_consume_queue", 0),
        ("message_delay_level", "1s five"),
        ("message_delay_level", ""),
        ("message_delay_level", "1s 72h"),
        ("message_delay_level", "3d"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_its_name(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=name.replace("_", "[-_]")):
        StoreOptions(**{name: value})  # type: ignore[arg-type]  # wrong on purpose


def test_a_delay_may_be_as_long_as_messages_are_kept_but_for_an_hour() -> None:
    longest = StoreOptions(message_delay_level="1s 71h")
    assert longest.delay_level_ms[-1] + 3_600_000 == longest.file_reserved_ms
    words = r"(?s)removed before its time.*file-reserved-time of 121h at least"
    with pytest.raises(ConfigurationError, match=words) as failed:
        StoreOptions(message_delay_level="5d 1s", file_reserved_time="4d")
    assert len(failed.value.findings) == 1
    assert StoreOptions(message_delay_level="5d 1s", file_reserved_time="121h").delay_level_ms == (432_000_000, 1_000)
    with pytest.raises(ConfigurationError, match="at least 3h") as failed:  # of which it is told first
        StoreOptions(message_delay_level="2h", file_reserved_time="2h")
    assert len(failed.value.findings) == 1


def test_the_defaults_are_apaches() -> None:
    """Those of MessageStoreConfig, Apache RocketMQ 5.5, but for one: who asks for more than 32 messages has them."""
    options = StoreOptions()
    assert options.mapped_file_size_commit_log == 1 << 30
    assert options.mapped_file_size_consume_queue == 6_000_000
    assert (options.max_hash_slot_num, options.max_index_num) == (5_000_000, 20_000_000)
    assert options.max_message_size == 4 << 20
    assert options.sync_flush_timeout == 5000
    assert options.flush_interval_commit_log == 500
    assert options.flush_interval_consume_queue == 1000
    assert options.flush_consume_queue_thorough_interval == 60_000
    assert options.max_transfer_bytes_on_message_in_memory == 256 << 10
    assert options.max_transfer_count_on_message_in_memory == 1024
    assert options.max_transfer_bytes_on_message_in_disk == 64 << 10
    assert options.max_transfer_count_on_message_in_disk == 8
    assert options.access_message_in_memory_max_ratio == 40
    assert options.max_filter_message_size == 16_000
    assert options.max_msgs_num_batch == 64
    assert (options.file_reserved_time, options.delete_when) == ("72h", "04")
    assert options.disk_max_used_space_ratio == 75
    assert options.disk_space_clean_forcibly_ratio == 85
    assert options.disk_space_warning_level_ratio == 90
    assert options.clean_resource_interval == 10_000
    assert options.delete_commit_log_files_interval == 100
    assert options.index_file_size == 420_000_040
    assert options.delay_level_ms[:5] == (1000, 5000, 10_000, 30_000, 60_000)
    assert options.delay_level_ms[-1] == 7_200_000
