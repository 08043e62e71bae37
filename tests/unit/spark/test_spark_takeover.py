"""Who may go on from a checkpoint, and by which name a driver holds its lease."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from rocketbox.clock import RealClock
from rocketbox.message import MessageQueue
from rocketbox.spark.checkpoint import QueueProgress
from rocketbox.spark.driver_id import driver_id
from rocketbox.spark.takeover import not_shared
from rocketbox.storage.file_system import RealStorage

Q0, Q1 = MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)


def at(offset: int, *, stood: int | None = None) -> QueueProgress:
    return QueueProgress(0, offset, None, stood)


@pytest.mark.parametrize(
    ("end", "committed", "took_over"),
    [
        (None, {Q0: None, Q1: None}, True),  # nobody has read anything
        (None, {Q0: 7, Q1: 3}, False),  # the first driver of a group that somebody read before
        (None, {Q0: 0, Q1: None}, True),
        ({Q0: at(7), Q1: at(3)}, {Q0: 7, Q1: 3}, True),
        ({Q0: at(9), Q1: at(3)}, {Q0: 7, Q1: 3}, True),  # the mirror is a batch behind
        ({Q0: at(9)}, {Q0: 7, Q1: None}, False),
        ({Q0: at(9)}, {Q0: 7, Q1: 3}, False),  # a queue that was away when its batches were planned
        ({Q0: at(9, stood=50)}, {Q0: 50}, False),  # it reads again what its group had read before it began
    ],
)
def test_a_checkpoint_that_knows_what_the_group_has_read_is_gone_on_with(
    end: Mapping[MessageQueue, QueueProgress] | None, committed: Mapping[MessageQueue, int | None], took_over: bool
) -> None:
    assert not_shared("ck", "g", "app.py:3", end=end, committed=committed, took_over=took_over) is None


@pytest.mark.parametrize("took_over", [True, False])
def test_a_checkpoint_that_lags_behind_the_group_is_refused(took_over: bool) -> None:
    error = not_shared("ck", "g", "app.py:3", end={Q0: at(9), Q1: at(2)}, committed={Q0: 9, Q1: 3}, took_over=took_over)
    assert error is not None
    (finding,) = error.findings
    assert finding.what == (
        "the checkpoint is not shared: group g has read T a/1 up to 3, which ck does not know (it ends at 2 there); "
        "from it messages would come again"
    )
    assert finding.where == "app.py:3"


def test_a_group_that_others_have_moved_on_since_is_seen_also_by_who_reads_again() -> None:
    error = not_shared("ck", "g", "x", end={Q0: at(9, stood=50)}, committed={Q0: 51}, took_over=False)
    assert error is not None
    assert "has read T a/0 up to 51, which ck does not know (it ends at 9 there)" in error.findings[0].what


def test_a_replica_with_an_empty_checkpoint_does_not_take_over() -> None:
    error = not_shared("ck", "g", "app.py:3", end=None, committed={Q0: 9}, took_over=True)
    assert error is not None
    assert "which ck does not know (it is empty)" in error.findings[0].what


def test_a_driver_that_comes_again_on_its_checkpoint_has_the_same_name(tmp_path: Path) -> None:
    storage, clock = RealStorage(), RealClock()
    with driver_id(storage, clock, tmp_path) as first, driver_id(storage, clock, tmp_path) as beside:
        assert beside != first  # as in another process: the first one lives
    with driver_id(storage, clock, tmp_path) as again:
        assert again == first
    with driver_id(storage, clock, tmp_path / "another") as other:
        assert other != first
    with driver_id(storage, clock, None) as one, driver_id(storage, clock, None) as two:
        assert one != two


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is the address of a network card")
def test_a_machine_of_the_same_name_has_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder may be on a file system that both mount, and that has no locks."""
    with driver_id(RealStorage(), RealClock(), tmp_path) as here:
        pass
    boot = tmp_path / "boot_id"
    boot.write_text("of another machine\n")
    monkeypatch.setattr("rocketbox.spark.driver_id.BOOT_ID", boot)
    with driver_id(RealStorage(), RealClock(), tmp_path) as there:
        assert there != here
    monkeypatch.setattr("rocketbox.spark.driver_id.BOOT_ID", tmp_path / "none")
    with driver_id(RealStorage(), RealClock(), tmp_path) as elsewhere:
        assert elsewhere not in (here, there)


def test_who_goes_on_with_a_copy_of_a_checkpoint_is_another_driver(tmp_path: Path) -> None:
    with driver_id(RealStorage(), RealClock(), tmp_path / "one") as first:
        pass
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    with driver_id(RealStorage(), RealClock(), tmp_path / "copy") as other:
        assert other != first
