"""Compressed bodies: there and back in each way, bounded, and never more than an error of the protocol."""

from __future__ import annotations

import random
import tracemalloc
import zlib

import pytest

from rocketbox.errors import CodecMissingError, RemoteProtocolError
from rocketbox.message import Compression
from rocketbox.protocol import compression as module
from rocketbox.protocol.codes import MessageSysFlag
from rocketbox.protocol.compression import compress, level_problem, sys_flag_of, unpack
from rocketbox.protocol.stored_message import (
    StoredMessage,
    decode_message,
    decode_messages,
    decode_some_messages,
    encode_stored_message,
)

WAYS = [Compression.ZLIB, Compression.LZ4, Compression.ZSTD]
TEXT = b"all work and no play " * 1000
COMPRESSED = int(MessageSysFlag.COMPRESSED)


def record(body: bytes, sys_flag: int, offset: int = 0) -> bytes:
    return encode_stored_message(StoredMessage("t", 0, body, sys_flag=sys_flag, queue_offset=offset))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("level", [1, 5, 9])
def test_what_is_compressed_is_unpacked(way: Compression, level: int) -> None:
    packed = compress(TEXT, way, level)
    assert len(packed) < len(TEXT) / 10
    message, _ = decode_message(record(packed, sys_flag_of(way)))
    assert message.body == TEXT
    assert not message.sys_flag & COMPRESSED
    assert decode_message(record(packed, sys_flag_of(way)), decompress=False)[0].body == packed


def test_flags_are_apaches() -> None:
    assert {way.name: sys_flag_of(way) for way in Compression} == {"NONE": 0, "ZLIB": 769, "LZ4": 257, "ZSTD": 513}


def test_lz4_blocks_are_independent_for_java_reads_no_others() -> None:
    flags = compress(TEXT, Compression.LZ4, 5)[4]
    assert flags & 0b0010_0000, f"FLG byte {flags:08b}"


def test_levels_are_those_of_the_way() -> None:
    assert level_problem(Compression.ZLIB, 10) == "ZLIB has the levels 1 to 9"
    assert level_problem(Compression.ZSTD, 23) == "ZSTD has the levels 1 to 22"
    assert level_problem(Compression.ZLIB, 0) is not None
    assert [level_problem(way, 9) for way in Compression] == [None] * 4
    assert level_problem(Compression.LZ4, 22) is None


@pytest.mark.parametrize("way", WAYS)
def test_a_body_as_large_as_may_be_is_unpacked_and_one_byte_more_is_not(way: Compression) -> None:
    packed = compress(b"x" * 50_000, way, 5)
    assert len(unpack(packed, sys_flag_of(way), 50_000)) == 50_000
    with pytest.raises(RemoteProtocolError, match="larger than 49999 bytes"):
        unpack(packed, sys_flag_of(way), 49_999)


@pytest.mark.parametrize("way", WAYS)
def test_a_bomb_takes_no_more_memory_than_the_bound(way: Compression) -> None:
    most = 4 << 20
    bomb = compress(bytes(64 << 20), way, 9)
    assert len(bomb) < 300_000
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match=f"larger than {most} bytes"):
            unpack(bomb, sys_flag_of(way), most)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * most


@pytest.mark.parametrize("way", WAYS)
def test_what_is_cut_off_or_garbled_is_an_error_of_the_protocol(way: Compression) -> None:
    chance = random.Random(5)
    packed = compress(TEXT, way, 5)
    for cut in range(0, len(packed), 7):
        with pytest.raises(RemoteProtocolError, match=way.name):
            unpack(packed[:cut], sys_flag_of(way), 1 << 20)
    for _ in range(300):
        damaged = bytearray(packed)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        try:
            unpack(bytes(damaged), sys_flag_of(way), 1 << 20)
        except RemoteProtocolError:
            continue


@pytest.mark.parametrize("way", [Compression.LZ4, Compression.ZSTD])
def test_a_codec_that_is_not_installed_is_named_with_its_extra(
    way: Compression, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = record(compress(TEXT, way, 5), sys_flag_of(way))
    monkeypatch.setattr(module, "_LIBRARIES", {way: lambda: None})
    extra = rf"rocketbox\[{way.name.lower()}\]"
    with pytest.raises(CodecMissingError, match=rf"{way.name}, which cannot be read here: install {extra}"):
        decode_message(packed)
    with pytest.raises(CodecMissingError, match=extra):
        compress(TEXT, way, 5)
    assert not module.is_available(way)


def test_a_way_that_nobody_knows_is_named() -> None:
    with pytest.raises(CodecMissingError, match="type 4"):
        decode_message(record(b"packed", COMPRESSED | 0x400))


def test_many_bodies_that_claim_to_be_large_are_unpacked_in_parts() -> None:
    packed = zlib.compress(bytes(40_000))
    records = b"".join(record(packed, 0x301, offset) for offset in range(9))
    taken = []
    start = 0
    while True:
        rest = records[start * (len(records) // 9) :]
        messages, is_all = decode_some_messages(rest, max_body_bytes=100_000)
        taken.append([message.queue_offset for message in messages])
        start = messages[-1].queue_offset + 1
        if is_all:
            break
    assert taken == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert len(decode_messages(records)) == 9


def test_one_body_is_unpacked_even_where_there_is_room_for_no_second_one() -> None:
    records = record(zlib.compress(bytes(1000)), 0x301) + record(b"plain", 0, 1)
    messages, is_all = decode_some_messages(records, max_body_bytes=1000)
    assert ([message.queue_offset for message in messages], is_all) == ([0], False)
