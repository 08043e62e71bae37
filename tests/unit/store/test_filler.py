"""What a repair puts in the place of damaged bytes: it is of exactly their size, and is read over."""

from __future__ import annotations

from rocketbox.broker.store.filler import SMALLEST_FILLER, filler_record, is_filler
from rocketbox.broker.store.records import CHECKSUM_BYTES, check_record, parse_record


def test_a_filler_of_any_size_has_that_size_and_is_whole() -> None:
    for size in range(SMALLEST_FILLER, SMALLEST_FILLER + CHECKSUM_BYTES + 40):
        record = filler_record(5000, size, 1_700_000_000_000)
        assert len(record) == size
        has_checksum = size >= SMALLEST_FILLER + CHECKSUM_BYTES
        assert check_record(record, 5000, needs_checksum=has_checksum) is None, size
        assert is_filler(record)
        assert parse_record(record).stored == 1_700_000_000_000
