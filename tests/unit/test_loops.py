"""Which loop runs, and which one is chosen."""

from __future__ import annotations

from importlib.util import find_spec

import anyio
import pytest

from rocketbox.loops import loop_name, loop_options
from tests.support.loops import UVLOOP
from tests.support.loops import anyio_backend as anyio_backend

pytestmark = pytest.mark.anyio


async def test_the_loop_that_runs_is_called_by_its_name(anyio_backend: object) -> None:
    assert loop_name() == ("uvloop" if anyio_backend == UVLOOP else anyio_backend)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_uvloop_is_used_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_in_thread() -> str:
        async def ask() -> str:
            return loop_name()

        return anyio.run(ask, backend_options=loop_options())

    installed = find_spec("uvloop") is not None
    assert await anyio.to_thread.run_sync(run_in_thread) == ("uvloop" if installed else "asyncio")
    monkeypatch.setattr("rocketbox.loops.find_spec", lambda name: None)
    assert await anyio.to_thread.run_sync(run_in_thread) == "asyncio"
