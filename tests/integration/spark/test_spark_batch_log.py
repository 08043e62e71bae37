"""What stands beside Spark's own files in a checkpoint: how often a batch was tried."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_attempts_are_kept_whole_and_what_cannot_be_read_counts_as_one(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from rocketbox.spark.batch_log import BatchLog, PlannedBatch

    folder = tmp_path / "check point"
    log, planned = BatchLog(spark, f"file:{folder}"), PlannedBatch(7, None, done=False)
    assert log.attempts(planned) == 1
    log.note(7, 2)
    log.note(7, 3)
    assert log.attempts(planned) == 3
    assert log.attempts(PlannedBatch(8, None, done=False)) == 1
    file = folder / "rocketbox" / "attempts.json"
    assert [each.name for each in file.parent.iterdir() if not each.name.startswith(".")] == [file.name]
    by_hand = [f'{{"batch": 7, "attempts": {text}}}' for text in ("1e999", "-2", "null", "true")]
    for torn in ("", "{", "[]", '{"batch": 7}', "[" * 100_000, *by_hand):
        file.write_text(torn)
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        with caplog.at_level(logging.WARNING, "rocketbox.spark.batch_log"):
            assert log.attempts(planned) == 1
        assert "batch 7 counts as tried once" in caplog.records[-1].getMessage()
