"""The job gives up when nothing moves, and says what is missing."""

from __future__ import annotations

from typing import cast

import anyio
import pytest
from rich.console import Console

from rocketbox import RocketBox
from starter_examples.flight_desk import job
from starter_examples.flight_desk.data import expect, read_departures
from starter_examples.flight_desk.ledger import Ledger
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio


class WithoutSpark:
    """As much of an application as the progress bars look at."""

    def __init__(self) -> None:
        self.listeners: dict[str, object] = {}


async def test_a_job_in_which_nothing_moves_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "STALLED_AFTER", 1.0)
    ledger = Ledger()
    expected = expect(read_departures(100), 45)
    app = cast(RocketBox, WithoutSpark())
    with job.progress_of(app, Console(quiet=True), ledger, expected, lake=False) as bars:

        async def move_for_a_while() -> None:
            for _ in range(40):
                await anyio.sleep(0.03)
                ledger.saw_sent()

        async def stand_by_and_start() -> None:
            for number in range(35):
                await anyio.sleep(0.1)
                states.append(number)

        states = [-1]
        async with anyio.create_task_group() as group:
            group.start_soon(move_for_a_while)
            group.start_soon(stand_by_and_start)
            with anyio.fail_after(PATIENCE):
                (problem,) = await job.wait_until_done(ledger, bars, lambda: states[-1])
    assert ledger.sent == 40  # not given up while something moved
    assert states[-1] == 34  # nor while the lake went on from one state to the next
    assert problem.startswith("nothing has moved for")
    assert f"sent: 40 of 100, desk: 0 of {expected.desk}, audit: 0 of 100" in problem
