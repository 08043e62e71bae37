"""docs/reference/store-format.md says what the code does: its constants, and the bytes of its worked example."""

from __future__ import annotations

import importlib
import re
import struct
from pathlib import Path

import anyio
import pytest

from rocketbox.broker.store.message_store import MessageStore
from rocketbox.broker.store.options import StoreOptions
from rocketbox.protocol.stored_message import StoredMessage
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.store.store_tools import ROOT, ManualClock, contents

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "store-format.md").read_text("utf-8")
BLOCK = re.compile(r"```hex (?P<file>\S+)\n(?P<dump>.*?)```", re.DOTALL)
CONSTANT = re.compile(r"^\| `(?P<module>[\w.]+):(?P<name>\w+)` \| `(?P<value>[^`]+)` \|", re.MULTILINE)
OPTIONS = StoreOptions(
    mapped_file_size_commit_log=512,
    mapped_file_size_consume_queue=60,
    max_hash_slot_num=4,
    max_index_num=16,
    allocate_ahead=0,
)


def example() -> MemoryStorage:
    """The store of the worked example: four messages, stopped in order."""
    storage, clock = MemoryStorage(), ManualClock()

    async def run() -> None:
        async with MessageStore(ROOT, OPTIONS, clock=clock, storage=storage) as store:
            for _ in range(4):
                properties = b"UNIQ_KEY\x01A1\x02KEYS\x01k1\x02TAGS\x01new\x02"
                host = (b"\x7f\0\0\1", 50_000)
                await store.durable(
                    store.put(
                        StoredMessage("orders", 1, b"hello", properties, born_timestamp_ms=clock.now_ms, born_host=host)
                    ).end_offset
                )

    anyio.run(run)
    return storage


@pytest.fixture(scope="module")
def storage() -> MemoryStorage:
    return example()


@pytest.mark.parametrize("block", list(BLOCK.finditer(PAGE)), ids=lambda block: str(block["file"]))
def test_the_bytes_of_the_example_are_what_the_store_writes(storage: MemoryStorage, block: re.Match[str]) -> None:
    path = block["file"]
    if path.startswith("index/"):
        path = f"index/{storage.list_directory(f'{ROOT}/index')[0]}"  # its name is a local time
    shown = [re.match(r"([0-9a-f]{8})  ((?:[0-9a-f]{2} ?)+)", line) for line in block["dump"].splitlines()]
    data = contents(storage, f"{ROOT}/{path}")
    for line in shown:
        assert line is not None
        position, expected = int(line[1], 16), bytes.fromhex(line[2])
        assert data[position : position + len(expected)].hex(" ") == expected.hex(" ")


def test_each_kind_of_file_has_an_example() -> None:
    kinds = {block["file"].partition("/")[0] for block in BLOCK.finditer(PAGE)}
    assert kinds == {"commitlog", "consumequeue", "index", "checkpoint", "lock"}


def test_the_constants_are_those_of_the_code() -> None:
    found = list(CONSTANT.finditer(PAGE))
    assert len(found) >= 15
    for constant in found:
        value = getattr(importlib.import_module(f"rocketbox.{constant['module']}"), constant["name"])
        if isinstance(value, struct.Struct):
            value = value.format
        if isinstance(value, bytes):
            value = value.rstrip(b"\x01").decode()
        text = constant["value"]
        assert value == (int(text, 0) if text[0].isdigit() else text), constant["name"]
