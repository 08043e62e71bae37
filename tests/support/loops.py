"""The event loops that whole-system tests run under: the two of all tests, and uvloop, which users may have as well.

``from tests.support.loops import anyio_backend as anyio_backend`` in a module takes the place of that of all.
"""

from __future__ import annotations

import asyncio
import sys
from importlib.util import find_spec

import pytest

__all__ = ["ASYNCIO_LOOPS", "UVLOOP", "anyio_backend", "needs_uvloop"]

UVLOOP = ("asyncio", {"use_uvloop": True})
needs_uvloop = pytest.mark.skipif(find_spec("uvloop") is None, reason="uvloop is not installed (Windows has none)")


def _loop_of_eager_tasks() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    if sys.version_info >= (3, 12):
        loop.set_task_factory(asyncio.eager_task_factory)
    return loop


EAGER = ("asyncio", {"loop_factory": _loop_of_eager_tasks})
needs_eager_tasks = pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
ASYNCIO_LOOPS = (
    "asyncio",
    pytest.param(UVLOOP, id="uvloop", marks=needs_uvloop),
    pytest.param(EAGER, id="eager tasks", marks=needs_eager_tasks),
)
"""Those that a harness runs under, for ``pytest.mark.parametrize("anyio_backend", ASYNCIO_LOOPS)``."""


@pytest.fixture(params=["asyncio", pytest.param(UVLOOP, id="uvloop", marks=needs_uvloop), "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> object:
    backend: object = request.param
    return backend
