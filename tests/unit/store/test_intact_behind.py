"""Records behind a damaged one, which prove that it was synced: none is missed, wherever a piece that is read ends."""

from __future__ import annotations

import pytest

from rocketbox.broker.store import log_scan
from rocketbox.broker.store.files import FileRun, OpenFiles
from rocketbox.broker.store.log_scan import intact_behind
from tests.support.store.store_tools import LOG, ROOT, killed, message, overwrite

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


async def test_intact_records_are_found_wherever_the_border_of_a_piece_cuts_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage, places = await killed(*[message(number, size=20 + number) for number in range(12)])
    overwrite(storage, LOG, places[2] + 30, b"damaged")
    run = FileRun(OpenFiles(storage), f"{ROOT}/commitlog", 4096, "")
    run.load()
    behind = places[3:-1]
    for size in range(100, 400):
        monkeypatch.setattr(log_scan, "WINDOW", size)
        assert sorted({offset for offset, _ in intact_behind(run, places[2])}) == behind, size
    overwrite(storage, LOG, places[-2] + 30, b"damaged")
    assert sorted({offset for offset, _ in intact_behind(run, places[2])}) == behind[:-1]
