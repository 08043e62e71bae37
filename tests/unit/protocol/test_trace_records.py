"""Trace records as Apache's clients write them: the bodies of 5.5.0, and what must not break its reader."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketbox.errors import RemoteProtocolError
from rocketbox.message import LocalTransactionState
from rocketbox.protocol.trace_records import (
    ConsumeCode,
    EndTransactionRecord,
    PubRecord,
    RecallRecord,
    SubAfterRecord,
    SubBeforeRecord,
    TracedType,
    TraceRecord,
    decode_trace_records,
)

PUB = PubRecord(
    timestamp_ms=1795227676470, region_id="DefaultRegion", group="PGtrace", topic="T3a", msg_id="ID1", tags="TagA",
    keys="k1 k2", store_host="127.0.0.1:10911", body_length=3, cost_ms=1806, type=TracedType.NORMAL,
    offset_msg_id="OFFSETID1", success=True,
)  # fmt: skip
BEFORE = SubBeforeRecord(
    timestamp_ms=1795227832741, region_id="DefaultRegion", group="Gtrace", request_id="REQID", msg_id="ID1",
    retry_times=0, keys=None,
)  # fmt: skip
AFTER = SubAfterRecord(
    timestamp_ms=1795227832741, region_id="", group="Gtrace", request_id="REQID", msg_id="ID1", cost_ms=67,
    success=True, keys=None, code=ConsumeCode.SUCCESS,
)  # fmt: skip
END = EndTransactionRecord(
    timestamp_ms=1795227851966, region_id="DefaultRegion", group="PGtracetx", topic="T3a", msg_id="ID", tags="A",
    keys=None, store_host="127.0.0.1:10911", transaction_id="ID", state=LocalTransactionState.COMMIT, from_check=False,
)  # fmt: skip
RECALL = RecallRecord(
    timestamp_ms=1795227851966, region_id="DefaultRegion", group="PG", topic="T", msg_id="ID", success=False
)

WRITTEN_BY_JAVA: list[tuple[TraceRecord, str]] = [
    (PUB, "Pub|1795227676470|DefaultRegion|PGtrace|T3a|ID1|TagA|k1 k2|127.0.0.1:10911|3|1806|0|OFFSETID1|true;"),
    (BEFORE, "SubBefore|1795227832741|DefaultRegion|Gtrace|REQID|ID1|0|null;"),
    (AFTER, "SubAfter|REQID|ID1|67|true|null|0|1795227832741|Gtrace;"),
    (
        END,
        "EndTransaction|1795227851966|DefaultRegion|PGtracetx|T3a|ID|A|null|127.0.0.1:10911|2|ID|COMMIT_MESSAGE|false;",
    ),
    (RECALL, "Recall|1795227851966|DefaultRegion|PG|T|ID|false;"),
]


def plain(text: str) -> str:
    """With the separators that can be read."""
    return text.replace("\x01", "|").replace("\x02", ";")


def real(text: str) -> bytes:
    return text.replace("|", "\x01").replace(";", "\x02").encode()


@pytest.mark.parametrize(("record", "text"), WRITTEN_BY_JAVA, ids=lambda each: getattr(each, "kind", ""))
def test_a_record_is_written_as_apaches_client_writes_it(record: TraceRecord, text: str) -> None:
    assert plain(record.encode()) == text
    assert decode_trace_records(real(text)) == [record]


def test_records_stand_one_after_another() -> None:
    body = "".join(record.encode() for record, _ in WRITTEN_BY_JAVA).encode()
    assert decode_trace_records(body) == [record for record, _ in WRITTEN_BY_JAVA]


def test_in_a_cloud_the_end_of_a_call_names_no_group() -> None:
    assert plain(AFTER.encode(cloud=True)) == "SubAfter|REQID|ID1|67|true|null|0|;"
    (read,) = decode_trace_records(AFTER.encode(cloud=True).encode())
    assert isinstance(read, SubAfterRecord)
    assert (read.group, read.timestamp_ms, read.code) == ("", 0, ConsumeCode.SUCCESS)


def test_older_and_newer_clients_records_are_read() -> None:
    without_offset_id = "Pub|1|R|G|T|ID|null|null|h:1|3|4|3|true;"
    with_client_host = "Pub|1|R|G|T|ID|null|null|h:1|3|4|3|OFFSET|true|192.0.2.1;"
    first, second = decode_trace_records(real(without_offset_id + with_client_host))
    assert isinstance(first, PubRecord)
    assert isinstance(second, PubRecord)
    assert (first.offset_msg_id, first.success, first.type) == (None, True, TracedType.DELAY)
    assert (second.offset_msg_id, second.success) == ("OFFSET", True)


def test_a_separator_in_a_field_breaks_no_record() -> None:
    record = BEFORE.encode().replace("ID1", "x")
    torn = SubBeforeRecord(
        timestamp_ms=1, region_id="a\x02b", group="G", request_id="R", msg_id="I\x01D", retry_times=0, keys="k\x01\x02"
    )
    _, read = decode_trace_records((record + torn.encode()).encode())
    assert isinstance(read, SubBeforeRecord)
    assert (read.region_id, read.msg_id, read.keys) == ("a b", "I D", "k  ")


def test_kinds_that_are_not_known_are_left_out() -> None:
    assert decode_trace_records(real("Later|1|2;" + RECALL.encode())) == [RECALL]
    assert decode_trace_records(b"") == []


@pytest.mark.parametrize(
    "text", ["Pub|x;", "Pub|1|R|G|T|ID|null|null|h:1|3|4|9|O|true;", "SubAfter|R|ID|1|true|null|7;", "EndTransaction;"]
)
def test_a_garbled_record_is_told(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="a trace record is garbled"):
        decode_trace_records(real(text))


@given(st.binary(max_size=200), st.sampled_from([each for _, each in WRITTEN_BY_JAVA]), st.integers(0, 120))
def test_garbage_raises_nothing_else(garbage: bytes, text: str, at: int) -> None:
    whole = real(text)
    for body in (garbage, whole[:at] + garbage + whole[at:]):
        with contextlib.suppress(RemoteProtocolError):
            decode_trace_records(body)
