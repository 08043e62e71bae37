"""The loop that a harness runs under, if a test says no other."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> object:
    return "asyncio"
