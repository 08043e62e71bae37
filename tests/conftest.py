"""Fixtures for all tests."""

from __future__ import annotations

import hypothesis  # not after a service ran here: it looks at what the collector then passes over
import pytest

from tests.canary import pytest_configure, pytest_runtest_makereport
from tests.side_by_side import pytest_xdist_make_scheduler

__all__ = ["anyio_backend", "pytest_configure", "pytest_runtest_makereport", "pytest_xdist_make_scheduler"]

hypothesis.settings.register_profile("rocketbox", deadline=None)  # a busy machine is no fault
hypothesis.settings.load_profile("rocketbox")


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Coroutine tests run twice: under asyncio, which users have, and under trio, which takes the anyio driver."""
    backend: str = request.param
    return backend
