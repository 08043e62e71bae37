"""Fixtures for all tests."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Coroutine tests run twice: under asyncio, which users have, and under trio, which takes the anyio driver."""
    backend: str = request.param
    return backend
