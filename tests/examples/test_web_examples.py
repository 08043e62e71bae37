"""The desk in FastAPI and in Flask: a request becomes a message, and is handled."""

from __future__ import annotations

import pytest

from rocketbox.testing import Harness
from starter_examples.web.desk import app, on_departure

pytest.importorskip("fastapi")
pytest.importorskip("flask")
pytest.importorskip("httpx")

from httpx import ASGITransport, AsyncClient

from starter_examples.web.fastapi_desk import api
from starter_examples.web.flask_desk import web


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_endpoints_of_fastapi_send_by_the_template_and_in_threads_by_the_blocking_one() -> None:
    async with Harness(app) as harness, AsyncClient(transport=ASGITransport(api), base_url="http://test") as client:
        for path in ("departures/UA1545", "late-departures/AA1141"):
            assert (await client.post(path)).status_code == 200
        await harness.advance("2s")
        assert [call.payload.flight for call in harness.calls(on_departure)] == ["UA1545", "AA1141"]
        assert (await client.get("ready")).json()["ready"] is True


def test_a_view_of_flask_sends_from_its_thread() -> None:
    with Harness(app) as harness:
        response = web.test_client().post("/departures/UA1545")
        assert response.status_code == 200
        harness.blocking.drain()
        assert [call.payload.flight for call in harness.calls(on_departure)] == ["UA1545"]
        assert response.text == harness.calls(on_departure)[0].messages[0].msg_id
