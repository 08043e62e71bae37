"""``rocketbox spark reset``: a checkpoint is shown, set aside when nobody uses it, and never removed."""

from __future__ import annotations

import fcntl
import json
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from rocketbox.cli.app import app
from rocketbox.clock import RealClock
from rocketbox.errors import ConfigurationError
from rocketbox.message import MessageQueue
from rocketbox.spark.checkpoint import QueueProgress, StreamOffset, Witness, encode_offset
from rocketbox.spark.checkpoint_folder import CheckpointInUseError, begins_anew, in_use, set_aside
from rocketbox.spark.driver_id import driver_id
from rocketbox.storage.file_system import RealStorage
from tests.support.framework.services import ServiceMaker


def checkpoint(folder: Path, *, done: bool = True) -> Path:
    """One as Spark writes it, after two batches."""
    (folder / "offsets").mkdir(parents=True)
    (folder / "commits").mkdir()
    (folder / "metadata").write_text(json.dumps({"id": "6f1b"}))
    for batch in (0, 1):
        progress = QueueProgress(5, 20 + 10 * batch, Witness(1_795_000_000_000, 5120))
        offset = encode_offset(StreamOffset({MessageQueue("orders", "broker-a", 3): progress}, "lake"))
        text = ["v1", json.dumps({"batchWatermarkMs": 0}), json.dumps(offset)]
        (folder / "offsets" / str(batch)).write_text("\n".join(text))
        (folder / "offsets" / f".{batch}.crc").touch()
        if done or batch == 0:
            (folder / "commits" / str(batch)).write_text("v1\n{}")
    return folder


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        app(["spark", "reset", *map(str, arguments)])
    printed = capsys.readouterr()
    code = ended.value.code
    assert isinstance(code, int)
    return code, printed.out + printed.err


def test_without_yes_it_is_shown_and_nothing_is_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = checkpoint(tmp_path / "lake", done=False)
    status, text = run(capsys, "--checkpoint", folder)
    assert status == 1
    assert f"checkpoint {folder}, query 6f1b" in text
    assert "the last batch, 1, is begun and not done: it would come again; with it were read:" in text
    assert "orders, broker-a, queue 3: from 5 up to 30" in text
    assert "with a new query id" in text
    assert "nothing is done: say --yes" in text
    assert sorted(each.name for each in tmp_path.iterdir()) == ["lake"]


def test_with_yes_it_is_set_aside_beside_those_of_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in (1, 2):
        folder = checkpoint(tmp_path / "lake")
        status, text = run(capsys, "--checkpoint", f"file:{folder}" if number == 1 else folder, "--yes")
        assert status == 0
        assert "the last batch, 1, is done" in text
        assert f"it is set aside as {folder}.reset-{number}" in text
        assert sorted(each.name for each in folder.rglob("*")) == ["reset", "rocketbox"]
        assert (tmp_path / f"lake.reset-{number}" / "offsets" / "1").exists()
        shutil.rmtree(folder)


def test_what_begins_anew_knows_that_and_has_the_lease_of_a_killed_driver_at_once(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "lake")
    folder.chmod(0o2770)
    storage, clock = RealStorage(), RealClock()
    with driver_id(storage, clock, folder) as killed:
        assert not begins_anew(folder)
    assert set_aside(folder).exists()
    assert begins_anew(folder)
    assert not begins_anew(tmp_path)
    assert folder.stat().st_mode & 0o7777 == 0o2770
    with driver_id(storage, clock, folder) as again:
        assert again == killed
    assert sorted(each.name for each in tmp_path.iterdir()) == ["lake", "lake.reset-1"]


def test_what_cannot_be_left_ready_for_its_listener_is_left_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be another user's, and the listener could not write to it."""

    def chown(path: object, user: int, group: int) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr("os.chown", chown)
    set_aside(checkpoint(tmp_path / "lake"))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["lake.reset-1"]


def test_one_that_a_listener_uses_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = checkpoint(tmp_path / "lake")
    with in_use(folder), in_use(folder):  # one that stands by holds it as well
        status, text = run(capsys, "--checkpoint", folder, "--yes")
    assert status == 1
    assert f"a Spark listener on this machine uses {folder}: stop it first" in text
    assert folder.exists()


@pytest.mark.parametrize("leaves_one", [True, False])
def test_a_listener_that_starts_while_its_checkpoint_is_set_aside_holds_what_it_finds_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaves_one: bool
) -> None:
    """It held the folder that is away, and the next reset took the one that it used."""
    folder, lock = checkpoint(tmp_path / "lake"), fcntl.flock

    def late(descriptor: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        set_aside(folder)
        if not leaves_one:
            shutil.rmtree(folder)
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with in_use(folder):
        assert (tmp_path / "lake.reset-1").exists()
        with pytest.raises(CheckpointInUseError):
            set_aside(folder)
    assert begins_anew(folder) == leaves_one


def test_of_two_that_set_a_checkpoint_aside_at_once_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one moved what a listener had begun with meanwhile."""
    folder, lock = checkpoint(tmp_path / "lake"), fcntl.flock
    with ExitStack() as stack:

        def late(descriptor: int, how: int) -> None:
            monkeypatch.setattr(fcntl, "flock", lock)
            set_aside(folder)
            stack.enter_context(in_use(folder))
            lock(descriptor, how)

        monkeypatch.setattr(fcntl, "flock", late)
        with pytest.raises(CheckpointInUseError):
            set_aside(folder)
        assert (folder / "rocketbox" / "in-use").exists()


def test_what_is_no_checkpoint_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "photos").mkdir()
    status, text = run(capsys, "--checkpoint", tmp_path / "photos", "--yes")
    assert status == 1
    assert "photos is no checkpoint of a query of Spark" in text
    assert (tmp_path / "photos").exists()
    status, text = run(capsys, "--checkpoint", "s3a://bucket/lake", "--yes")
    assert status == 1
    assert "is not on this machine" in text


def test_offsets_of_another_form_are_shown_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = checkpoint(tmp_path / "lake")
    (folder / "offsets" / "1").write_text('v1\n{}\n{"orders": {"broker-a": {"0": 5}}}')
    _, text = run(capsys, "--checkpoint", folder)
    assert 'offsets that this version cannot read: {"orders": {"broker-a": {"0": 5}}}' in text


SOURCE = """
from pyspark.sql import DataFrame
from rocketbox import RocketBox, rocketmq_spark_listener

app = RocketBox("flight-desk", scan=[__name__])

@rocketmq_spark_listener(topic="departures", consumer_group="lake")
def to_lake(rows: DataFrame) -> None: ...
"""


def test_a_group_names_the_checkpoint_of_its_listener(
    service: ServiceMaker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyspark")
    name = service(SOURCE, "rocketmq.name-server: embedded\nrocketbox.spark.checkpoint: kept\n").__name__
    checkpoint(tmp_path / "kept" / "lake")
    status, text = run(capsys, name, "--group", "lak")
    assert status == 1
    assert "no Spark listener of group 'lak' is planned" in text
    assert "there are: lake" in text
    status, text = run(capsys, name, "--group", "lake", "--yes")
    assert (status, (tmp_path / "kept" / "lake.reset-1").exists()) == (0, True), text


def test_it_must_be_said_which_one_is_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert "say --checkpoint FOLDER, or MODULE:APP and --group GROUP" in run(capsys)[1]
    assert "--group needs the application" in run(capsys, "--group", "lake")[1]


def test_a_checkpoint_that_cannot_be_written_is_told_at_the_start(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    from rocketbox.spark.session import SparkRuntime

    (tmp_path / "file").touch()
    runtime = SparkRuntime("t", {})
    with (
        pytest.raises(ConfigurationError, match="cannot be used"),
        runtime.claim(str(tmp_path / "file" / "lake"), "here:1"),
    ):
        pytest.fail("it must not be held")
    with runtime.claim(str(tmp_path / "lake"), "here:1"):
        assert (tmp_path / "lake" / "rocketbox" / "in-use").exists()
