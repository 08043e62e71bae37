"""The loop that a harness runs under, if a test says no other, and a short end for those who hold it up."""

from __future__ import annotations

import pytest

from rocketbox.testing import pace


@pytest.fixture
def anyio_backend() -> object:
    return "asyncio"


@pytest.fixture
def short_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop that does not come to its end has less virtual time: all timers of the service run in it. Three times what
    the client's stop takes at most."""
    monkeypatch.setattr("rocketbox.testing.service_end.LONGEST_STOP", 60.0)


@pytest.fixture
def short_end(monkeypatch: pytest.MonkeyPatch, short_stop: None) -> None:
    """Those who swallow cancellations have less time: they are cancelled again in each turn of the loop."""
    monkeypatch.setattr("rocketbox.testing.service_end.PATIENCE_AT_THE_END", 0.2)
    monkeypatch.setattr(pace, "ENDLESS", 3)
