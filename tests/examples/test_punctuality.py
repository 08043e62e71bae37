"""The example of requests and replies, as a user runs it and in the harness."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rocketbox import ReplyError
from rocketbox.testing import Harness
from starter_examples.punctuality.app import Punctuality, app, ask

SECONDS = 120


def test_each_airline_is_answered_or_told_why_not(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "starter_examples.punctuality", "UA", "ZZ", "HA"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert (ran.returncode, ran.stdout.splitlines()) == (
        0,
        [
            "UA: United Air Lines Inc., 4605 departures, 8.3 minutes late on average",
            "ZZ: nobody of the name 'ZZ' flew from New York",
            "HA: Hawaiian Airlines Inc., 31 departures, 54.4 minutes late on average",
        ],
    ), ran.stderr


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.anyio
async def test_in_the_harness_the_answer_of_an_error_is_no_failure_of_the_test(anyio_backend: str) -> None:
    async with Harness(app) as harness:
        assert await ask(harness.template, "UA") == Punctuality("United Air Lines Inc.", 4605, 8.3)
        with pytest.raises(ReplyError, match="UnknownCarrier"):
            await ask(harness.template, "ZZ")
        await harness.drain()
