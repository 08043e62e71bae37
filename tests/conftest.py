"""Fixtures for all tests, and the plugins of pytest that they run under."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis  # not after a service ran here: it looks at what the collector then passes over
import pytest

from tests.support.canary import pytest_configure, pytest_runtest_makereport
from tests.support.golden import pytest_sessionstart
from tests.support.side_by_side import pytest_xdist_make_scheduler

if TYPE_CHECKING:
    from tests.support.framework.services import ServiceMaker

__all__ = [
    "anyio_backend",
    "pytest_configure",
    "pytest_runtest_makereport",
    "pytest_sessionstart",
    "pytest_xdist_make_scheduler",
    "service",
]

hypothesis.settings.register_profile("rocketbox", deadline=None)  # a busy machine is no fault
hypothesis.settings.load_profile("rocketbox")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell, whose children ignore it, too
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Coroutine tests run twice: under asyncio, which users have, and under trio, which takes the anyio driver."""
    backend: str = request.param
    return backend


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceMaker]:
    """Makes a module of a service from its source, with ``rocketbox.yaml`` beside it."""
    from tests.support.framework.services import service_maker  # other tests need not load the framework

    yield from service_maker(tmp_path, monkeypatch)
