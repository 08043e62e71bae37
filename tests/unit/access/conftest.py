"""A broker in memory with users and policies, for the tests of access control."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.broker.access import ADMIN, UserWires, broker_with_access
from tests.support.broker.in_memory import BrokerWire


@pytest.fixture
async def users() -> AsyncIterator[UserWires]:
    async with broker_with_access() as wires:
        yield wires


@pytest.fixture
async def admin(users: UserWires) -> BrokerWire:
    return await users.wire(ADMIN)
