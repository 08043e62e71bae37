"""Fixtures of tests that run the parts together."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.framework.services import ServiceMaker


@pytest.fixture
def service(service: ServiceMaker, monkeypatch: pytest.MonkeyPatch) -> ServiceMaker:
    """That of all tests; clients ask for the route of a new topic every 50 ms, not every second: each test has some."""
    from rocketbox.autoconfigure import properties
    from rocketbox.client import ClientOptions

    monkeypatch.setattr(properties, "ClientOptions", partial(ClientOptions, missing_route_interval=0.05))
    return service
