"""Checkpoints: what is a folder of this machine, and what Spark is told of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketbox.spark.paths import checkpoint_location, local_folder, scheme_of


def test_a_checkpoint_on_this_machine_is_known_by_its_path_or_uri() -> None:
    assert local_folder("/data/x") == Path("/data/x")
    assert local_folder("file:/data/x") == local_folder("file:///data/x") == Path("/data/x")
    assert local_folder("x") == Path.cwd() / "x"


@pytest.mark.parametrize("checkpoint", ["s3a://bucket/x", "hdfs:/data/x", "hdfs://nn:8020/x", "abfss://a@b/c"])
def test_one_of_another_file_system_is_left_to_it(checkpoint: str) -> None:
    assert local_folder(checkpoint) is None
    assert checkpoint_location(checkpoint) == checkpoint
    assert scheme_of(checkpoint) == checkpoint.partition(":")[0]


@pytest.mark.parametrize("folder", ["/home/jürgen/my app/ck", "/data/100%/a%20b", "/data/plain"])
def test_what_is_odd_in_a_path_is_told_to_spark_as_it_is(folder: str) -> None:
    assert checkpoint_location(folder) == f"file:{folder}"
    assert checkpoint_location(f"file:{folder}") == checkpoint_location(f"file://{folder}") == f"file:{folder}"
    assert local_folder(checkpoint_location(folder)) == Path(folder)
