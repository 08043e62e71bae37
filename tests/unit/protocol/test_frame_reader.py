"""The frame reader's buffer, and the two ways to read a JSON header: the careful scan and the whole parse."""

from __future__ import annotations

import json
import os
import random
import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rocketbox.errors import RemoteProtocolError
from rocketbox.protocol.codes import SerializeType
from rocketbox.protocol.command import RemotingCommand, decode_command, encode_command
from rocketbox.protocol.framing import (
    BUFFER_BYTES,
    LARGE_BUFFER_BYTES,
    READS_ALONE,
    BodyLimits,
    BufferPool,
    FrameReader,
)
from rocketbox.protocol.ids import UniqIdGenerator


def receive(reader: FrameReader, data: bytes, largest: int) -> list[RemotingCommand]:
    """Hand data over as a transport that reads into the reader's own buffer, at most ``largest`` bytes at a time."""
    found = []
    while data:
        room = reader.get_buffer()
        size = min(len(room), len(data), largest)
        assert size > 0
        room[:size] = data[:size]
        data = data[size:]
        found += reader.buffer_updated(size)
    return found


@given(
    st.lists(st.sampled_from([0, 1, 100, 4_000, BUFFER_BYTES - 40, BUFFER_BYTES, 3 * BUFFER_BYTES]), max_size=6),
    st.sampled_from([999, 4_096, BUFFER_BYTES, 10**9]),
)
def test_frames_of_all_sizes_come_out_of_the_readers_own_buffer(sizes: list[int], largest: int) -> None:
    bodies = [bytes([number]) * size for number, size in enumerate(sizes)]
    frames = [encode_command(RemotingCommand.request(10, {"b": "T"}, body), at) for at, body in enumerate(bodies)]
    reader = FrameReader()
    found = receive(reader, b"".join(frames), largest)
    assert [(one.opaque, one.body, one.ext_fields["b"]) for one in found] == [
        (at, body, "T") for at, body in enumerate(bodies)
    ]
    assert reader.buffered_bytes == 0
    assert not reader.in_frame


def test_a_frame_may_be_as_large_as_the_limit_and_no_byte_larger() -> None:
    frame = encode_command(RemotingCommand.request(10, {"b": "T"}, bytes(50)), 1)
    (command,) = FrameReader(max_frame_bytes=len(frame)).feed(frame)
    assert command.body == bytes(50)
    size = len(frame) - 4  # without the number itself
    with pytest.raises(RemoteProtocolError, match=f"announces {size} bytes; 4 to {size - 1} are allowed"):
        FrameReader(max_frame_bytes=len(frame) - 1).feed(frame)


@pytest.mark.parametrize("size", [-1, -(2**31), 0, 3])
def test_a_size_that_no_frame_has_is_refused_by_its_four_bytes(size: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"a frame announces {size} bytes; 4 to "):
        FrameReader().feed(struct.pack(">i", size))


def test_an_ext_field_without_a_name_or_a_value_is_none() -> None:
    def field(name: bytes, value: bytes) -> bytes:
        return struct.pack(">H", len(name)) + name + struct.pack(">i", len(value)) + value

    fields = field(b"", b"x") + field(b"a", b"") + field(b"b", b"y") + field(b"", b"")
    header = struct.pack(">hBhiii", 10, 0, 513, 7, 0, 0) + struct.pack(">i", len(fields)) + fields
    command = decode_command((len(header) | 1 << 24).to_bytes(4, "big") + header)
    assert command.ext_fields == {"b": "y"}


def test_what_is_held_grows_with_what_came_not_with_what_was_announced() -> None:
    frame = encode_command(RemotingCommand.request(10, {"b": "T"}, bytes(16_000_000)), 1)
    reader = FrameReader()
    at = 0
    tracemalloc.start()
    try:
        for end in (100, 5_000, 500_000):
            assert reader.feed(frame[at:end]) == []
            at = end
            assert tracemalloc.get_traced_memory()[0] < 2 * end + 20_000
    finally:
        tracemalloc.stop()
    (command,) = reader.feed(frame[at:])
    assert len(command.body) == 16_000_000
    assert reader.buffered_bytes == 0


def test_a_long_frame_is_held_once_while_it_comes_and_once_when_it_is_here() -> None:
    size = 8_000_000
    frame = encode_command(RemotingCommand.request(10, None, bytes(size)), 1)
    reader = FrameReader()
    receive(reader, frame[:100_000], 65_536)
    tracemalloc.start()
    try:
        found = receive(reader, frame[100_000:], 65_536)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(found[0].body) == size
    assert peak < len(frame) * 2 + size * 1.3, "the test's own slices of the frame, and the body"


def test_a_reader_without_half_a_frame_holds_no_buffer() -> None:
    pool = BufferPool()
    frame = encode_command(RemotingCommand.request(34), 1)
    readers = [FrameReader(pool=pool) for _ in range(1_000)]
    tracemalloc.start()
    try:
        for reader in readers:
            assert len(receive(reader, frame, 10**9)) == 1
            assert receive(reader, frame[:5], 10**9) == []
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1_000 * 200 + 2 * BUFFER_BYTES


class PoisonedPool(BufferPool):
    """Whoever looks into a buffer that was given back sees nothing but this."""

    def give_back(self, buffer: memoryview) -> None:
        buffer[:] = b"\xee" * len(buffer)
        super().give_back(buffer)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 1),
            st.sampled_from([0, 1, 100, 4_000, BUFFER_BYTES - 40, BUFFER_BYTES, 3 * BUFFER_BYTES]),
            st.sampled_from(list(SerializeType)),
        ),
        max_size=8,
    ),
    st.sampled_from([999, 4_096, 10**9]),
)
@example([(0, 3 * BUFFER_BYTES, SerializeType.JSON), (1, 3 * BUFFER_BYTES, SerializeType.ROCKETMQ)], 4_096)
def test_nothing_that_was_read_lies_in_a_buffer_that_others_receive_into(
    wanted: list[tuple[int, int, SerializeType]], largest: int
) -> None:
    """Two connections share the buffers and take turns; what came is looked at when all of them are given back."""
    pool = PoisonedPool()
    readers = [FrameReader(pool=pool, most_frames=9_999) for _ in range(2)]
    data = [b"", b""]
    sent: list[list[tuple[int, str, bytes]]] = [[], []]
    found: list[list[RemotingCommand]] = [[], []]
    for number, (of, size, kind) in enumerate(wanted):
        body, topic = bytes([number]) * size, f"topic-{number}"
        data[of] += encode_command(RemotingCommand.request(10, {"b": topic}, body), number, serialization=kind)
        sent[of].append((number, topic, body))
    while any(data):
        for of in (0, 1):
            found[of] += receive(readers[of], data[of][:largest], largest)
            data[of] = data[of][largest:]
    assert [[(each.opaque, each.ext_fields["b"], bytes(each.body)) for each in one] for one in found] == sent
    assert all(type(each.body) is bytes for one in found for each in one)


def fill(reader: FrameReader, body: bytes) -> int:
    """Have the reader receive as much as it has room for, of frames with that body; how much room that was."""
    frame = encode_command(RemotingCommand.request(34, body=body), 1)
    room = reader.get_buffer()
    data = (frame * (len(room) // len(frame) + 1))[: len(room)]
    room[:] = data
    reader.buffer_updated(len(data))
    reader.drop()
    return len(data)


def test_a_reader_that_alone_has_read_much_and_fills_its_buffer_gets_a_large_one() -> None:
    pool = BufferPool()
    reader, client = (FrameReader(pool=pool, most_frames=most) for most in (9_999, None))
    rooms = [fill(reader, bytes(1_000)) for _ in range(READS_ALONE + 3)]
    assert rooms == [BUFFER_BYTES] * (READS_ALONE + 1) + [LARGE_BUFFER_BYTES] * 2
    assert receive(reader, b"\0", 1) == []
    reader.drop()
    assert fill(reader, bytes(1_000)) == BUFFER_BYTES, "the read before brought little"
    held = reader.get_buffer()
    assert len(held) == LARGE_BUFFER_BYTES
    reader.release()
    assert reader.get_buffer() is held, "it was given back"
    reader.release()
    assert {fill(client, bytes(1_000)) for _ in range(READS_ALONE + 3)} == {BUFFER_BYTES}


@pytest.mark.parametrize("reads_between", [1, 2, 10, READS_ALONE])
def test_beside_one_who_writes_now_and_then_no_reader_gets_a_large_buffer(reads_between: int) -> None:
    pool = BufferPool()
    reader, other = FrameReader(pool=pool, most_frames=9_999), FrameReader(pool=pool, most_frames=9_999)
    rooms = set()
    for _ in range(3):
        rooms |= {fill(reader, bytes(1_000)) for _ in range(reads_between)}
        assert receive(other, b"\0", 1) == []
        other.drop()
    assert rooms == {BUFFER_BYTES}


@pytest.mark.parametrize("largest", [7, 100, 10**9])
def test_no_more_frames_are_returned_at_once_than_are_wanted_and_none_is_lost(largest: int) -> None:
    frames = [encode_command(RemotingCommand.request(34, body=b"x" * (at % 50)), at) for at in range(1_000)]
    data, reader = b"".join(frames), FrameReader(most_frames=10)
    found: list[RemotingCommand] = []
    while data:
        room = reader.get_buffer()
        size = min(len(room), len(data), largest)
        room[:size] = data[:size]
        data = data[size:]
        some = reader.buffer_updated(size)
        while some or reader.has_more:
            assert len(some) <= 10
            found += some
            some = reader.go_on() if reader.has_more else []
    assert [(one.opaque, one.body) for one in found] == [(at, b"x" * (at % 50)) for at in range(1_000)]
    assert reader.frames == 1_000
    assert not reader.in_frame


def test_it_is_known_whether_a_header_is_awaited() -> None:
    for size in (1_000, 100_000):
        frame = encode_command(RemotingCommand.request(10, {"b": "T"}, bytes(size)), 1)
        header_end = len(frame) - size
        reader = FrameReader()
        awaited: list[tuple[int, bool, bool]] = []
        for at in (3, 7, header_end - 1, header_end, len(frame) - 1, len(frame)):
            reader.feed(frame[(awaited[-1][0] if awaited else 0) : at])
            awaited.append((at, reader.awaits_header, reader.in_frame))
        assert [(waits, inside) for _, waits, inside in awaited] == [
            (True, True), (True, True), (True, True), (False, True), (False, True), (False, False),
        ]  # fmt: skip


@pytest.mark.parametrize("largest", [700, 65_536, 10**9])
def test_bodies_above_the_limit_of_their_code_pass_without_being_kept(largest: int) -> None:
    sizes = {1: (34, 1_000), 2: (10, 1_000_000), 3: (34, 3_000_000), 4: (34, 20_000), 5: (34, 100), 6: (10, 50_000)}
    stream = b"".join(
        encode_command(RemotingCommand.request(code, {"a": "b"}, bytes(size)), opaque)
        for opaque, (code, size) in sizes.items()
    )
    stream += encode_command(RemotingCommand.response(34, body=bytes(90_000)), 7)
    reader = FrameReader(body_limits=BodyLimits(1_000_000, {34: 1_000}))
    found = receive(reader, stream, largest)
    assert [(one.opaque, len(one.body)) for one in found] == [
        (1, 1_000), (2, 1_000_000), (5, 100), (6, 50_000), (7, 90_000),
    ]  # fmt: skip
    assert [(one.request.opaque, one.size, one.limit) for one in reader.refused] == [
        (3, 3_000_000, 1_000), (4, 20_000, 1_000),
    ]  # fmt: skip
    assert reader.frames == 7


def test_a_body_above_its_limit_is_refused_as_soon_as_its_header_is_here() -> None:
    frame = encode_command(RemotingCommand.request(34, {"a": "b"}, bytes(3_000_000)), 9)
    reader = FrameReader(body_limits=BodyLimits(1_000))
    reader.feed(frame[: len(frame) - 3_000_000])
    assert [one.request.opaque for one in reader.refused] == [9]
    reader.feed(frame[len(frame) - 3_000_000 : -1])
    assert (reader.buffered_bytes < 1_000, reader.in_frame) == (True, True)
    assert reader.feed(frame[-1:]) == []
    assert not reader.in_frame


def test_whole_frames_before_a_half_one_are_not_held_back() -> None:
    frame = encode_command(RemotingCommand.request(34), 1)
    reader = FrameReader()
    assert len(reader.feed(frame + frame + frame[:-1])) == 2
    assert reader.buffered_bytes == len(frame) - 1
    assert len(reader.feed(memoryview(frame)[-1:])) == 1


# --- JSON headers ------------------------------------------------------------------------------------------------

# Names and values that look like the header's own members.
TRICKY = st.sampled_from(
    [
        "opaque", "flag", ',"flag":7', '"opaque":9', '},"flag":1,"language":"JAVA","opaque":3,"version":1}', "\\",
        '\\"', '"', "}", "{", "remark", ',"flag":1,"language":"JAVA","opaque":5,"version":3}',
    ]
)  # fmt: skip
VALUES = TRICKY | st.text(max_size=8) | st.integers(-9, 9) | st.dictionaries(TRICKY, TRICKY, max_size=2)


def java_header(code: int, ext: dict[str, Any] | None, flag: int, opaque: int, remark: str | None) -> dict[str, Any]:
    members = {"code": code, "extFields": ext, "flag": flag, "language": "JAVA", "opaque": opaque, "remark": remark}
    members |= {"serializeTypeCurrentRPC": "JSON", "version": 513}
    return {name: value for name, value in members.items() if value is not None}


@given(
    st.integers(0, 2**31 - 1), st.none() | st.dictionaries(TRICKY, VALUES, max_size=4), st.integers(0, 3),
    st.integers(-(2**31), 2**31 - 1), st.none() | TRICKY | st.text(max_size=9), st.booleans(),
    st.sets(st.integers(0, 7)),
)  # fmt: skip
@example(1, {"flag": 1, "language": "X", "opaque": 5}, 0, 9, None, True, {3, 4})
@example(1, {"a": "b", "flag": 1, "language": "X", "opaque": 5, "version": 3}, 0, 9, None, True, {2})
def test_code_opaque_and_flag_are_those_of_the_whole_parse(
    code: int, ext: dict[str, Any] | None, flag: int, opaque: int, remark: str | None, ascii_only: bool, drop: set[int]
) -> None:
    header = java_header(code, ext, flag, opaque, remark)
    for position in sorted(drop, reverse=True):
        if position < len(header) and len(drop) < 3:
            del header[list(header)[position]]
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=ascii_only).encode("utf-8", "replace")
    command = decode_command(len(text).to_bytes(4, "big") + text)
    expected = (header.get("code", 0), header.get("opaque", 0), header.get("flag", 0))
    assert (command.code, command.opaque, command.flag) == expected
    assert command.remark == json.loads(text).get("remark")
    assert command.ext_fields.keys() == json.loads(text).get("extFields", {}).keys()


def test_headers_that_are_almost_as_the_one_before_are_read_for_what_they_are() -> None:
    chance = random.Random(8)
    pieces = [
        b'"opaque":',
        b',"flag":',
        b"7",
        b"-",
        b"0",
        b" ",
        b",",
        b":",
        b'"',
        b"\\",
        b"}",
        b'"code":9',
        b"12345678901",
    ]
    accepted = 0
    for number in range(4_000):
        before = json.dumps(java_header(310, {"a": "b"}, 0, 5 + number, None), separators=(",", ":")).encode()
        assert decode_command(len(before).to_bytes(4, "big") + before).opaque == 5 + number
        text = bytearray(before)
        for _ in range(chance.choice([1, 1, 2])):
            at = chance.randrange(len(text))
            text[at : at + chance.randrange(4)] = chance.choice(pieces)
        try:
            values = json.loads(text)
        except ValueError:
            values = None
        try:
            command = decode_command(len(text).to_bytes(4, "big") + bytes(text))
            _ = command.ext_fields
        except RemoteProtocolError:
            continue
        assert values is not None
        expected = [int(values.get(name) or 0) for name in ("code", "opaque", "flag")]
        assert [command.code, command.opaque, command.flag] == expected, bytes(text)
        accepted += 1
    assert accepted > 100
    for opaque in (b"05", b"00", b"", b"5.", b"5e1", b"+5"):
        assert decode_command(len(before).to_bytes(4, "big") + before).opaque
        text = bytearray(before.replace(b'"opaque":4004', b'"opaque":' + opaque))
        with pytest.raises(RemoteProtocolError):
            decode_command(len(text).to_bytes(4, "big") + bytes(text))


def test_a_header_as_java_writes_it_is_not_parsed_before_it_is_asked_for() -> None:
    header = java_header(0, {"msgId": "A", "queueId": "1"}, 1, 77, 'not "set" any response code')
    text = json.dumps(header, separators=(",", ":")).encode()
    command = decode_command(len(text).to_bytes(4, "big") + text + b"body")
    assert command.raw_header == text
    assert (command.code, command.opaque, command.flag, command.body) == (0, 77, 1, b"body")
    assert (command.raw_header, command.ext_fields["msgId"]) == (text, "A")
    assert command.raw_header is None


def test_what_we_write_is_read_without_being_parsed() -> None:
    for serialization in SerializeType:
        frame = encode_command(RemotingCommand.request(310, {"i": "a\x01b\x02"}), 5, serialization=serialization)
        assert decode_command(frame[4:]).raw_header is not None


def test_ext_fields_that_are_garbled_say_so_when_they_are_asked_for() -> None:
    text = b'{"code":0,"extFields":{"a":,},"flag":1,"language":"JAVA","opaque":7,"version":513}'
    command = decode_command(len(text).to_bytes(4, "big") + text)
    assert command.opaque == 7
    with pytest.raises(RemoteProtocolError):
        _ = command.ext_fields


# --- ids ---------------------------------------------------------------------------------------------------------


def test_generator_of_a_fork_makes_other_ids_from_the_same_random_state(monkeypatch: pytest.MonkeyPatch) -> None:
    now, pid = 1_700_000_000_000, os.getpid()
    before = UniqIdGenerator(random.Random(1)).next(now)
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    child = UniqIdGenerator(random.Random(1)).next(now)
    assert int(child[8:12], 16) == (pid + 1) & 0xFFFF
    assert child[12:20] != before[12:20]
