"""What the listeners of the flight desk do with single departures, on virtual time; whole jobs are run elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")  # a module of the service has Spark in it

from rocketbox import SendResult
from rocketbox.testing import Harness, Outcome
from starter_examples.flight_desk.app import app, audit, on_departure
from starter_examples.flight_desk.lake import to_lake
from starter_examples.flight_desk.ledger import Ledger
from starter_examples.flight_desk.model import Alert, Departure

RUN = "7"


def departure(row: int, carrier: str = "UA", flight: int = 1545, **changed: Any) -> Departure:
    said = {"origin": "EWR", "dest": "IAH", "scheduled": "2013-01-01T05:15", "departure_time": 517, "delay_minutes": 2}
    return Departure(**{**said, "row": row, "carrier": carrier, "flight": flight, **changed})


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger()
    ledger.run = RUN
    return ledger


@pytest.fixture
async def harness(ledger: Ledger, anyio_backend: str) -> AsyncIterator[Harness]:
    async with Harness(app, beans={Ledger: ledger}) as harness:
        yield harness


Send = Callable[..., Any]


@pytest.fixture
def send(harness: Harness) -> Send:
    async def send(each: Departure) -> SendResult:
        return await harness.send(
            f"departures:{each.carrier}", each, keys=each.key, hash_key=each.key, headers={"run": RUN}
        )

    return send


@pytest.mark.anyio
async def test_an_alert_follows_a_late_departure_and_no_other(harness: Harness, ledger: Ledger, send: Send) -> None:
    ledger.may_stumble(RUN)  # the one of the run was another
    for row, delay in enumerate((45, 46, -3), start=1):
        await send(departure(row, delay_minutes=delay))
    await harness.drain()
    assert harness.sent("alerts").one(Alert) == Alert(
        run=RUN, row=2, flight="UA1545", origin="EWR", dest="IAH", delay_minutes=46
    )
    assert ledger.desk_rows == {1, 2, 3}


@pytest.mark.anyio
async def test_the_first_alert_of_a_run_stumbles_and_comes_a_second_later(
    harness: Harness, ledger: Ledger, send: Send
) -> None:
    await send(departure(1, delay_minutes=90))
    await harness.drain()
    assert not harness.sent("alerts")
    await harness.advance("1s")
    assert [(call.attempt, call.outcome) for call in harness.calls(on_departure)] == [
        (1, Outcome.COMES_BACK),
        (2, Outcome.CONSUMED),
    ]
    (sent,) = harness.sent("alerts")
    assert sent.at == 1.0 if harness.is_virtual else sent.at > 1.0
    assert ledger.desk_redelivered == 1


@pytest.mark.anyio
async def test_a_cancelled_departure_is_rejected(harness: Harness, send: Send) -> None:
    await send(departure(1, departure_time=None, delay_minutes=None))
    await harness.drain()
    (letter,) = harness.dead_letters("desk")
    assert str(letter.why) == "UA1545 of 2013-01-01T05:15 has no departure time"
    assert letter.payload(Departure).row == 1


@pytest.mark.anyio
async def test_the_desk_looks_at_three_airlines_and_the_audit_at_all(
    harness: Harness, ledger: Ledger, send: Send
) -> None:
    for row, carrier in enumerate(("UA", "B6", "AA", "DL", "EV"), start=1):
        await send(departure(row, carrier))
    await harness.drain()
    assert ledger.desk_rows == {1, 3, 4}
    assert ledger.audit_rows == {1, 2, 3, 4, 5}


@pytest.mark.anyio
async def test_the_audit_sees_each_flight_in_order_and_each_row_once(
    harness: Harness, ledger: Ledger, send: Send
) -> None:
    for row in range(1, 41):
        await send(departure(row, flight=row % 4))
    await harness.drain()
    assert ledger.audit_rows == set(range(1, 41))
    assert ledger.out_of_order == []
    if harness.is_virtual:  # only a broker in memory delivers a message again when it is asked to
        await harness.redeliver(harness.calls(audit)[0])
        await harness.drain()
        assert ledger.audit_rows == set(range(1, 41))
        assert ledger.audit_redelivered == 1


@pytest.mark.spark
@pytest.mark.anyio
async def test_the_lake_keeps_a_batch_that_comes_again_once(ledger: Ledger, tmp_path: Path) -> None:
    async with Harness(app, beans={Ledger: ledger}, settings={"lake.path": str(tmp_path / "lake")}) as harness:
        for row in (1, 2):
            await harness.send("departures", departure(row), headers={"run": RUN})
        sent = harness.sent("departures")
        from rocketbox.spark.java import JavaNotFoundError

        try:
            await harness.batch(to_lake, sent)
        except JavaNotFoundError as error:
            pytest.skip(str(error))
        await harness.batch(to_lake, batch_id=0)
        assert ledger.lake_rows == 4, "each attempt has found its two rows"
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(tmp_path / "lake")
    assert sorted(table["row"].to_pylist()) == [1, 2]
    assert set(table["run"].to_pylist()) == {RUN}
