"""Record batches made of stored records: the same rows as by way of single messages, whatever the records hold."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

import pyarrow as pa

from rocketbox.errors import RemoteProtocolError
from rocketbox.message import MessageQueue, encode_properties
from rocketbox.protocol.codes import MessageSysFlag, RequestCode
from rocketbox.protocol.framing import FrameReader
from rocketbox.protocol.stored_message import StoredMessage, decode_messages, encode_batch, encode_stored_message
from rocketbox.spark import record_columns
from rocketbox.spark.columns import COLUMNS, ERROR
from rocketbox.spark.missing import MissingOffsets
from rocketbox.spark.record_columns import Pulled, RecordDecoder, arrow_schema, record_starts, unreadable_record
from tests.benchmarks.spark_rows import to_record_batch

QUEUE = MessageQueue("orders", "broker-a", 3)
FRAMES = Path(__file__).parents[2] / "data" / "frames" / "java-5.5.0.jsonl"
COMPRESSED = int(MessageSysFlag.COMPRESSED)
INNER_BATCH = int(MessageSysFlag.NEED_UNWRAP | MessageSysFlag.INNER_BATCH)
FOR_EVER = 2**62


def stored(offset: int = 0, body: bytes = b"body", properties: bytes = b"", **fields: Any) -> bytes:
    fields = {"born_timestamp_ms": 1_795_000_000_000, "store_timestamp_ms": 1_795_000_000_001, **fields}
    fields.setdefault("topic", "orders")
    return encode_stored_message(
        StoredMessage(queue_id=3, body=body, properties=properties, queue_offset=offset, **fields)
    )


def pulled(*records: bytes, start: int = 0, end: int = FOR_EVER, next_begin_offset: int | None = None) -> Pulled:
    data = b"".join(records)
    return Pulled(QUEUE, start, end, data, record_starts(data), next_begin_offset=next_begin_offset)


def batches(pulls: Sequence[Pulled], columns: Sequence[str] = tuple(COLUMNS), tags: Sequence[str] = ()) -> list[Any]:
    found = list(RecordDecoder(columns, tags).record_batches(pulls))
    for batch in found:
        assert batch.schema.equals(arrow_schema(columns), check_metadata=True)
        batch.validate(full=True)
    return found


def rows(*records: bytes, columns: Sequence[str] = tuple(COLUMNS), tags: Sequence[str] = ()) -> list[dict[str, Any]]:
    return [row for batch in batches([pulled(*records)], columns, tags) for row in batch.to_pylist()]


def by_rows(data: bytes) -> Any:
    """What the path by single messages makes of the same records."""
    return to_record_batch(decode_messages(data, QUEUE.broker_name))


def assert_equal_rows(pulls: Sequence[Pulled]) -> None:
    found = batches(pulls)
    table = pa.Table.from_batches(found, arrow_schema(tuple(COLUMNS)))
    assert table.column(ERROR).null_count == len(table)
    assert table.drop_columns([ERROR]).to_pylist() == [row for pull in pulls for row in by_rows(pull.data).to_pylist()]


names = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=6)
times = st.integers(record_columns.FIRST_MS, record_columns.LAST_MS)
hosts = st.tuples(st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16), st.integers(0, 2**31 - 1))
known = st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "WAIT", "run"])
clean = st.dictionaries(known | names, names | st.sampled_from(["k1", "k1 k2", " k\x1f\xa0", "A"]), max_size=5)
properties = clean.map(encode_properties) | st.lists(
    st.sampled_from(
        [b"KEYS", b"TAGS", b"UNIQ_KEY", b"\x01", b"\x02", b"a", b" ", b"\xff", "\u00e4".encode()[:1], b"\x85"]
    ),
    max_size=12,
).map(b"".join)


@st.composite
def record(draw: st.DrawFn) -> bytes:
    body = draw(st.binary(max_size=40))
    flags = draw(
        st.sampled_from([0, 2, 4, 8, 0xC, COMPRESSED, COMPRESSED | 0x300, INNER_BATCH, INNER_BATCH | COMPRESSED])
    )
    if flags & INNER_BATCH == INNER_BATCH:
        body = encode_batch(draw(st.lists(st.tuples(st.integers(0, 9), st.binary(max_size=9), properties), max_size=3)))
    return encode_stored_message(
        StoredMessage(
            topic=draw(names | st.sampled_from(["orders", "t" * 127, "t" * 128, "t" * 300])),
            queue_id=draw(st.integers(0, 2**31 - 1)),
            body=zlib.compress(body) if flags & COMPRESSED else body,
            properties=draw(properties),
            flag=draw(st.integers(-(2**31), 2**31 - 1)),
            sys_flag=flags,
            born_timestamp_ms=draw(times),
            born_host=draw(hosts),
            reconsume_times=draw(st.integers(-(2**31), 2**31 - 1)),
            prepared_transaction_offset=draw(st.integers(-(2**63), 2**63 - 1)),
            queue_offset=draw(st.integers(0, 2**61)),
            commit_log_offset=draw(st.integers(0, 2**61)),
            store_timestamp_ms=draw(times),
            store_host=draw(hosts),
        ),
        property_crc=draw(st.booleans()),
    )


@settings(max_examples=80)
@given(st.lists(st.lists(record(), max_size=6), min_size=1, max_size=4))
@example(
    [
        [
            stored(0, properties=b"a\x011"),
            stored(1, properties=b"\x02b\x012\x02"),
            stored(2),
            stored(3, properties=b"c\x013"),
        ]
    ]
)
@example(
    [
        [
            stored(0, properties=b"KEYS\x01a\x02KEYS\x01b\x02x\x01\x02\x01y\x02z\x02"),
            stored(1, properties=b"KEYS\x01c\x01d"),
        ]
    ]
)
def test_rows_are_those_of_single_messages(pulls: list[list[bytes]]) -> None:
    assert_equal_rows([pulled(*records) for records in pulls])


def test_a_property_without_a_value_is_none_however_well_formed_the_others_are() -> None:
    (row,) = rows(stored(0, properties=b"a\x01\x02b\x011\x02"))
    assert row["properties"] == [("b", "1")]


@pytest.mark.parametrize("keys", ["a b", " a  b ", "a\tb", "a\u00a0b", "\u3000a", "a", "\u00e4\u00f6", "\u2028"])
def test_keys_are_the_words_of_their_property(keys: str) -> None:
    text = encode_properties({"KEYS": keys})
    assert [row["keys"] for row in rows(stored(0, properties=text), stored(1))] == [keys.split(), []]


def test_recorded_answers_of_apache_become_the_same_rows() -> None:
    found = 0
    for line in FRAMES.read_text().splitlines():
        frame = json.loads(line)
        if frame.get("answers") in (RequestCode.PULL_MESSAGE, RequestCode.QUERY_MESSAGE) and frame["bodyLen"]:
            (command,) = FrameReader().feed(bytes.fromhex(frame["hex"]))
            assert_equal_rows([pulled(command.body)])
            found += 1
    assert found >= 3


def test_only_offsets_that_were_asked_for_are_rows() -> None:
    batch = encode_batch([(0, b"%d" % number, b"") for number in range(5)])
    data = [stored(2), stored(3, batch, sys_flag=INNER_BATCH), stored(8), stored(9)]
    (found,) = batches([pulled(*data, start=4, end=9), pulled(stored(1), stored(9), start=9, end=10)], ["queue_offset"])
    assert found.column(0).to_pylist() == [4, 5, 6, 7, 8, 9]


def test_chosen_columns_come_in_their_order() -> None:
    record = stored(7, b"x", b"TAGS\x01A\x02KEYS\x01k\x02")
    assert rows(record, columns=["tag", "queue_offset", "body"]) == [{"tag": "A", "queue_offset": 7, "body": b"x"}]
    for name in COLUMNS:
        assert rows(record, columns=[name]) == [{name: rows(record)[0][name]}]


def test_messages_with_another_tag_of_the_same_hash_are_left_out() -> None:
    records = [stored(offset, properties=b"TAGS\x01%s\x02" % tag) for offset, tag in enumerate([b"Aa", b"BB", b"Aa"])]
    assert [row["queue_offset"] for row in rows(*records, stored(3), tags=["Aa", "C"])] == [0, 2]
    assert rows(*records, columns=["queue_offset"], tags=["BB"]) == [{"queue_offset": 1}]
    assert rows(*records, tags=["C"]) == []


def test_a_body_that_cannot_be_unpacked_is_null_and_says_why() -> None:
    good = stored(0, zlib.compress(b"good"), sys_flag=COMPRESSED)
    broken = stored(1, b"no zlib", b"TAGS\x01A\x02", sys_flag=COMPRESSED)
    cut = stored(2, zlib.compress(b"x" * 500)[:-6], sys_flag=COMPRESSED)
    codec = stored(3, b"what", sys_flag=COMPRESSED | 0x400)
    plain = stored(4, b"plain")
    found = rows(good, broken, cut, codec, plain)
    assert [row["body"] for row in found] == [b"good", None, None, None, b"plain"]
    assert [row["queue_offset"] for row in found] == [0, 1, 2, 3, 4]
    assert (found[1]["tag"], found[1]["born_timestamp"]) == ("A", found[0]["born_timestamp"])
    errors = [row[ERROR] for row in found]
    assert errors[0] is errors[4] is None
    assert "compressed with ZLIB cannot be read" in errors[1]
    assert "cut off" in errors[2]
    assert "type 4" in errors[3]
    # Who does not look at bodies does not unpack them.
    assert {row[ERROR] for row in rows(good, broken, cut, codec, columns=["queue_offset", ERROR])} == {None}


def test_what_is_wrong_with_a_record_stands_in_its_row_when_records_before_it_were_not_asked_for() -> None:
    records = [stored(offset) for offset in range(5)]
    records[3] = stored(3, b"no zlib", sys_flag=COMPRESSED)
    (batch,) = batches([pulled(*records, start=2)])
    assert [(row["queue_offset"], row["body"], row[ERROR] is None) for row in batch.to_pylist()] == [
        (2, b"body", True), (3, None, False), (4, b"body", True),
    ]  # fmt: skip


def test_what_says_to_be_an_inner_batch_and_has_not_the_places_is_one_row() -> None:
    body = encode_batch([(0, b"%d" % number, b"") for number in range(5)])
    found = rows(stored(5, body, sys_flag=INNER_BATCH), stored(6))
    assert [(row["queue_offset"], row["body"]) for row in found] == [(5, body), (6, b"body")]
    assert len(rows(stored(5, body, sys_flag=INNER_BATCH), stored(10))) == 6


@pytest.mark.parametrize(("behind", "offsets"), [(6, [5]), (9, [5]), (10, [5, 6, 7]), (11, [5, 6, 7])])
def test_what_says_to_be_an_inner_batch_is_the_same_rows_wherever_its_pull_ends(
    behind: int, offsets: list[int]
) -> None:
    """What is wanted of a pull may end within a batch, where the pull itself never does."""
    body = encode_batch([(0, b"%d" % number, b"") for number in range(5)])
    last = pulled(stored(4), stored(5, body, sys_flag=INNER_BATCH), start=5, end=8, next_begin_offset=behind)
    more = pulled(stored(20), next_begin_offset=21)
    (batch,) = batches([last, more], ["queue_offset", "body"])
    assert [row["queue_offset"] for row in batch.to_pylist()] == [*offsets, 20]
    assert batch.to_pylist()[0]["body"] == (b"0" if len(offsets) > 1 else body)


def test_a_broken_inner_batch_is_one_row() -> None:
    found = rows(stored(5, b"\x00\x00", sys_flag=INNER_BATCH), stored(6))
    assert [(row["queue_offset"], row["body"]) for row in found] == [(5, None), (6, b"body")]
    assert "cut off" in found[0][ERROR]


@pytest.mark.parametrize("time", [2**62, -(2**62), record_columns.LAST_MS + 1, record_columns.FIRST_MS - 1])
@pytest.mark.parametrize("which", ["born", "store"])
def test_a_time_that_is_none_is_null_and_says_so(time: int, which: str) -> None:
    found = rows(stored(0), stored(1, b"body", b"", **{f"{which}_timestamp_ms": time}), stored(2))
    assert [row["body"] for row in found] == [b"body", None, b"body"]
    assert found[1][f"{which}_timestamp"] is None
    assert f"the {which} timestamp {time}" in found[1][ERROR]
    assert [row[ERROR] for row in found[::2]] == [None, None]


def test_the_first_and_the_last_time_are_times() -> None:
    found = rows(
        stored(0, born_timestamp_ms=record_columns.FIRST_MS, store_timestamp_ms=record_columns.LAST_MS), stored(1)
    )
    first, last = (
        found[0][f"{which}_timestamp"].isoformat(timespec="microseconds")[:26] for which in ("born", "store")
    )
    assert (first, found[0][ERROR]) == ("0001-01-01T00:00:00.000000", None)
    assert last == "9999-12-31T23:59:59.999000", "a millisecond more is another year"


def test_an_offset_without_a_message_is_missed_though_the_pull_brought_more_than_was_wanted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    missing, pull = MissingOffsets(), pulled(stored(10), stored(12), stored(13), stored(14))
    missing.note(QUEUE, pull.data, pull.starts, 10, 13)
    missing.tell()
    assert "no message at 1 of its offsets, from 11 to 11" in caplog.text


def test_a_topic_that_is_no_text_is_replaced_and_told() -> None:
    record = bytearray(stored(1))
    record[record.index(b"orders")] = 0xFF
    found = rows(stored(0), bytes(record))
    assert [row["topic"] for row in found] == ["orders", "\ufffdrders"]
    assert "not UTF-8" in found[1][ERROR]


BODY_SIZE_AT = 84


@pytest.mark.parametrize(
    ("at", "value"),
    [(BODY_SIZE_AT, -1), (BODY_SIZE_AT, 5), (BODY_SIZE_AT, 3), (BODY_SIZE_AT, 2**31 - 1), (BODY_SIZE_AT, -(2**31))],
)
@pytest.mark.parametrize("places", [[0], [1], [2], [0, 1, 2]])
def test_a_record_whose_parts_do_not_fit_is_a_row_of_what_is_known(at: int, value: int, places: list[int]) -> None:
    records = [bytearray(stored(offset, properties=b"TAGS\x01A\x02")) for offset in range(3)]
    for place in places:
        records[place][at : at + 4] = value.to_bytes(4, "big", signed=True)
    for tags in ((), ("A",)):
        found = rows(*map(bytes, records), tags=tags)
        assert [row["queue_offset"] for row in found] == [0, 1, 2]
        for row in found:
            if row["queue_offset"] in places:
                with pytest.raises(RemoteProtocolError) as expected:
                    decode_messages(bytes(records[row["queue_offset"]]))
                assert row[ERROR] == str(expected.value)
                told = {name: value for name, value in row.items() if value is not None and name != ERROR}
                assert told == {
                    "topic": "orders", "broker_name": "broker-a", "queue_id": 3, "queue_offset": row["queue_offset"]
                }  # fmt: skip
            else:
                assert (row["body"], row["tag"], row[ERROR]) == (b"body", "A", None)


@pytest.mark.parametrize("hosts", [0x10, 0x20, 0x30])
def test_a_record_that_is_too_short_for_its_hosts_is_a_row_as_well(hosts: int) -> None:
    shortest = bytearray(stored(1, b"", topic=""))
    shortest[36:40] = hosts.to_bytes(4, "big")
    found = rows(stored(0), bytes(shortest))
    assert [(row["queue_offset"], row["body"]) for row in found] == [(0, b"body"), (1, None)]
    assert "byte" in found[1][ERROR]


@settings(max_examples=80)
@given(st.lists(record(), min_size=1, max_size=3), st.data())
def test_garbage_within_a_record_never_ends_a_batch(records: list[bytes], data: st.DataObject) -> None:
    number = data.draw(st.integers(0, len(records) - 1))
    at = data.draw(st.integers(8, len(records[number]) - 1))
    garbage = bytearray(records[number])
    written = data.draw(st.binary(min_size=1, max_size=min(8, len(garbage) - at)))
    garbage[at : at + len(written)] = written
    whole = [*records[:number], bytes(garbage), *records[number + 1 :]]
    found = batches([pulled(*whole, start=-FOR_EVER * 2, end=FOR_EVER * 2 - 1)])
    try:
        decode_messages(b"".join(whole))
    except RemoteProtocolError:
        assert any(row[ERROR] for batch in found for row in batch.to_pylist())


def test_a_message_of_which_only_the_offset_is_known_is_a_row() -> None:
    data = unreadable_record(12)
    lost = Pulled(QUEUE, 12, 13, data, record_starts(data), "it was cut off")
    (found,) = batches([pulled(stored(11)), lost, pulled(stored(13))])
    row = found.to_pylist()[1]
    assert (row["queue_offset"], row["queue_id"], row["topic"], row[ERROR]) == (12, 3, "orders", "it was cut off")
    assert row["body"] is row["born_timestamp"] is row["msg_id"] is None


@pytest.mark.parametrize("cut", [1, 20, 90])
def test_records_that_do_not_fill_their_buffer_are_refused(cut: int) -> None:
    data = stored(0) + stored(1)
    assert record_starts(data) == [0, len(data) // 2]
    assert record_starts(b"") == []
    with pytest.raises(RemoteProtocolError, match=f"no whole message at byte {len(data) // 2} of {len(data) - cut}"):
        record_starts(data[:-cut])
    with pytest.raises(RemoteProtocolError, match="no whole message at byte 0"):
        record_starts(data[:4] + b"none" + data[8:])


def test_what_bodies_unpack_to_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_columns, "BYTES_PER_RECORD_BATCH", 10_000)
    monkeypatch.setattr(record_columns, "MAX_BODY_BYTES", 50_000)
    packed = [stored(offset, zlib.compress(b"x" * 4_000), sys_flag=COMPRESSED) for offset in range(9)]
    bomb = stored(9, zlib.compress(b"x" * 50_001), sys_flag=COMPRESSED)
    found = batches([pulled(*packed, bomb, stored(10))])
    assert [batch.num_rows for batch in found] == [2, 2, 2, 2, 3]
    row = found[-1].to_pylist()[1]
    assert row["body"] is None
    assert "larger than 50000 bytes" in row[ERROR]
