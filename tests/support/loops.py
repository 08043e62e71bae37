"""The event loops that whole-system tests run under: the two of all tests, and uvloop, which users may have as well.

``from tests.support.loops import anyio_backend as anyio_backend`` in a module takes the place of that of all.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest

__all__ = ["UVLOOP", "anyio_backend", "needs_uvloop"]

UVLOOP = ("asyncio", {"use_uvloop": True})
needs_uvloop = pytest.mark.skipif(find_spec("uvloop") is None, reason="uvloop is not installed (Windows has none)")


@pytest.fixture(params=["asyncio", pytest.param(UVLOOP, id="uvloop", marks=needs_uvloop), "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> object:
    backend: object = request.param
    return backend
