"""The small services that send, with their hooks, on virtual time."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from rocketbox.testing import Harness
from starter_examples.sending import batches, compressed, ordered, recalled, styles

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_what_was_sent_in_any_way_is_archived_with_its_tag_and_headers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with Harness(styles.app) as harness:
        await harness.drain()
        assert sorted(capsys.readouterr().out.splitlines()) == [
            "archived AA AA1141 of nowhere",
            "archived AA AA1142 of nowhere",
            "archived AA AA1143 of nowhere",
            "archived UA UA1545 of JFK",
        ]
        assert sorted(" ".join(sent.keys) for sent in harness.sent("archive")) == ["", "", "", "UA1545"]


async def test_the_steps_of_an_order_come_in_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    async with Harness(ordered.app) as harness:
        await harness.drain()
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 12
        for order in ("1", "2", "3"):
            assert [line.split()[2] for line in lines if line.split()[1] == order] == list(ordered.STEPS)


async def test_a_recalled_reminder_never_comes(capsys: pytest.CaptureFixture[str]) -> None:
    async with Harness(recalled.app) as harness:
        await harness.drain()
        assert capsys.readouterr().out.splitlines() == ["order 2 is paid"]
        await harness.advance(timedelta(seconds=5))
        await harness.drain()
        assert capsys.readouterr().out.splitlines() == ["order 1 is not paid yet"]
        await harness.advance(timedelta(minutes=5))
        assert capsys.readouterr().out == ""


async def test_a_batch_is_stored_together_and_handled_in_batches(capsys: pytest.CaptureFixture[str]) -> None:
    async with Harness(batches.app) as harness:
        await harness.drain()
        first, *calls = capsys.readouterr().out.splitlines()
        assert first == "stored 200 in 1 queue"
        sizes = [int(line.split()[1]) for line in calls]
        assert sum(sizes) == 200
        assert max(sizes) <= 50


async def test_a_text_comes_as_it_was_and_is_stored_small(capsys: pytest.CaptureFixture[str]) -> None:
    async with Harness(compressed.app) as harness:
        await harness.drain()
        told = re.fullmatch(r"2600000 characters, stored in (\d+) bytes\n", capsys.readouterr().out)
        assert told is not None
        assert int(told[1]) < 20_000
