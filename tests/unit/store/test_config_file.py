"""Tables on disk: replaced whole or not at all, and what was changed behind our back is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketbox.broker.store.config_file import ConfigFile
from rocketbox.errors import StoreError
from rocketbox.storage.file_system import RealStorage, Storage
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.file_rights import bound_to_file_modes

PATH = Path("/config/topics.json")
APACHES = b'{\n\t"dataVersion":{"counter":1},\n\t"topicConfigTable":{}\n}'


@pytest.fixture(params=["memory", "disk"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Storage, str]:
    return (RealStorage(), str(tmp_path)) if request.param == "disk" else (MemoryStorage(), "/root")


def put(storage: Storage, path: str, data: bytes) -> None:
    """Write a file as somebody else would."""
    file = storage.open(path, create=True)
    file.truncate(0)
    file.write(0, [data])
    file.close()


def content(storage: Storage, path: str) -> bytes:
    file = storage.open(path)
    return file.read(0, file.size())


def test_a_table_is_replaced_and_the_one_before_is_kept(place: tuple[Storage, str]) -> None:
    storage, root = place
    file = ConfigFile(Path(root) / "config" / "topics.json", storage)
    assert file.load() is None
    file.persist([b'{"a"', b":1}"])
    file.persist([b'{"a":2}'])
    assert file.load() == '{"a":2}'
    assert storage.list_directory(f"{root}/config") == ["topics.json", "topics.json.bak", "topics.json.crc"]
    storage.remove(f"{root}/config/topics.json")
    assert file.load() == '{"a":1}'


@pytest.mark.parametrize("damaged", [b"", b"{", b'{"a":', b"[1]", b"\0\0\0", bytes(4096), b"\xff", b"[" * 100_000])
def test_a_damaged_table_falls_back_and_two_damaged_ones_are_refused(damaged: bytes) -> None:
    storage = MemoryStorage()
    file = ConfigFile(PATH, storage)
    file.persist([b'{"a":{0:1}}'])
    file.persist([b'{"a":{0:2}}'])
    put(storage, str(PATH), damaged)
    assert ConfigFile(PATH, storage).load() == '{"a":{0:1}}'
    put(storage, f"{PATH}.bak", damaged)
    with pytest.raises(StoreError, match=r"topics\.json .* nor .*topics\.json\.bak"):
        ConfigFile(PATH, storage).load()


def test_every_flipped_bit_of_a_table_is_noticed() -> None:
    storage = MemoryStorage()
    file = ConfigFile(PATH, storage)
    file.persist([b'{"a":1}'])
    file.persist([b'{"a":{"t":{"perm":6,"name":"t"}},"b":27}'])
    whole = content(storage, str(PATH))
    for bit in range(8, 8 * len(whole)):  # of the first byte: then it is no table at all, below
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        put(storage, str(PATH), bytes(flipped))
        if flipped.startswith(b'{"'):
            assert ConfigFile(PATH, storage).load() == '{"a":1}', bit
    put(storage, str(PATH), whole)
    assert ConfigFile(PATH, storage).load() == whole.decode()


def test_a_table_cut_at_any_byte_is_noticed() -> None:
    storage = MemoryStorage()
    file = ConfigFile(PATH, storage)
    file.persist([b'{"a":1}'])
    file.persist([b'{"a":{"t":{"perm":6,"name":"t"}},"b":27}\n'])
    whole = content(storage, str(PATH))
    for size in range(len(whole)):
        put(storage, str(PATH), whole[:size])
        assert ConfigFile(PATH, storage).load() == '{"a":1}', size


def test_what_an_apache_broker_wrote_needs_no_checksum() -> None:
    storage = MemoryStorage()
    ConfigFile(PATH, storage).persist([b'{"a":1}'])
    put(storage, str(PATH), APACHES)
    file = ConfigFile(PATH, storage)
    assert file.load() == APACHES.decode()
    file.persist([b'{"a":3}'])
    assert ConfigFile(PATH, storage).load() == '{"a":3}'
    assert content(storage, f"{PATH}.bak") == APACHES


def test_a_table_edited_by_hand_is_refused_with_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    storage = MemoryStorage()
    ConfigFile(PATH, storage).persist([b'{"a":1}'])
    put(storage, str(PATH), b'{"a":2}')
    with pytest.raises(StoreError, match=r"edited it by hand, remove /config/topics\.json\.crc"):
        ConfigFile(PATH, storage).load()
    assert ConfigFile(PATH, storage).problems() == ["/config/topics.json: it does not match its checksum"]
    storage.remove(f"{PATH}.crc")
    assert ConfigFile(PATH, storage).load() == '{"a":2}'


def test_a_damaged_table_is_kept_and_never_takes_the_place_of_the_sound_one() -> None:
    storage = MemoryStorage()
    file = ConfigFile(PATH, storage)
    file.persist([b'{"a":1}'])
    file.persist([b'{"a":2}'])
    put(storage, str(PATH), b'{"a":7}')
    after = ConfigFile(PATH, storage)
    assert after.load() == '{"a":1}'
    after.persist([b'{"a":3}'])
    assert content(storage, f"{PATH}.damaged") == b'{"a":7}'
    assert content(storage, f"{PATH}.bak") == b'{"a":1}'
    assert ConfigFile(PATH, storage).load() == '{"a":3}'


@pytest.mark.parametrize("sums", [b"", b"garbage", b"1:2 #00000000", b"\xff" * 256])
def test_damaged_checksums_make_no_table_unusable(sums: bytes) -> None:
    storage = MemoryStorage()
    ConfigFile(PATH, storage).persist([b'{"a":1}'])
    put(storage, f"{PATH}.crc", sums)
    file = ConfigFile(PATH, storage)
    assert file.load() == '{"a":1}'
    file.persist([b'{"a":2}'])
    assert ConfigFile(PATH, storage).load() == '{"a":2}'
    put(storage, str(PATH), b'{"a":9}')
    assert ConfigFile(PATH, storage).load() == '{"a":1}'


class CrashError(Exception):
    """The process ends here."""


class Crashing(MemoryStorage):
    """Ends the process at a call, once ``left`` calls have been made; below 0 never."""

    left = -1

    def record(self, name: str, path: str, offset: int = 0, size: int = 0) -> None:
        if self.left == 0:
            raise CrashError
        self.left -= 1
        super().record(name, path, offset, size)


def crashing_copy(storage: MemoryStorage, left: int) -> Crashing:
    copy = Crashing()
    copy.__dict__.update({**storage.copy().__dict__, "left": left})
    return copy


@pytest.mark.parametrize("versions", [0, 1, 2, 5])
def test_a_crash_in_the_middle_of_a_replacement_leaves_the_old_or_the_new_table(versions: int) -> None:
    storage = MemoryStorage()
    before = ConfigFile(PATH, storage)
    for number in range(versions):
        before.persist([b'{"a":%d}' % number])
    old = before.load()
    for steps in range(20):
        crashing = crashing_copy(storage, steps)
        file = ConfigFile(PATH, crashing)
        file.load()
        try:
            file.persist([b'{"a":99}'])
        except CrashError:
            crashing.left = -1
            after = ConfigFile(PATH, crashing)
            assert after.load() in {old, '{"a":99}'}
            assert after.problems() == []
            after.persist([b'{"a":100}'])
            assert ConfigFile(PATH, crashing).load() == '{"a":100}'
        else:
            break
    assert steps > 5


def test_replacements_that_fail_again_and_again_leave_the_old_table_usable() -> None:
    storage = MemoryStorage()
    file = ConfigFile(PATH, storage)
    file.persist([b'{"a":1}'])
    file.persist([b'{"a":2}'])
    for steps in [3, 4, 5, 6, 7] * 3:
        crashing = crashing_copy(storage, steps)
        file = ConfigFile(PATH, crashing)
        crashing.left = -1
        current = file.load()
        for number in range(5):
            crashing.left = steps
            try:
                file.persist([b'{"a":%d}' % (100 * steps + number)])
            except CrashError:
                crashing.left = -1
                after = ConfigFile(PATH, crashing.copy())
                assert after.problems() == []
                found = after.load()
                assert found in {current, f'{{"a":{100 * steps + number}}}'}
                current = found
            else:
                current = file.load()


def test_a_table_that_may_not_be_read_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    file = ConfigFile(path, RealStorage())
    file.persist([b'{"a":1}'])
    path.chmod(0)
    with bound_to_file_modes(), pytest.raises(StoreError, match="Permission denied"):
        ConfigFile(path, RealStorage()).load()


def test_a_damaged_checksum_file_takes_no_table_with_it(caplog: pytest.LogCaptureFixture) -> None:
    storage = MemoryStorage()
    table = ConfigFile(Path(PATH), storage)
    table.persist([b'{"a": 1}'])
    table.persist([b'{"a": 2}'])
    for block in (b"", b"\xff" * 256, b"8:00000000 #1234", storage.open(f"{PATH}.crc").read(0, 255) + b"\x0b"):
        storage.open(f"{PATH}.crc").truncate(0)
        put(storage, f"{PATH}.crc", block)
        fresh = ConfigFile(Path(PATH), storage)
        (problem,) = fresh.problems()
        assert problem == f"{PATH}.crc: it does not match its own checksum; the table is used unchecked"
        caplog.clear()
        assert fresh.load() == '{"a": 2}'
        assert "the table is used unchecked" in caplog.text
        fresh.persist([b'{"a": 2}'])
        assert fresh.problems() == []
        assert not storage.exists(f"{PATH}.damaged")
