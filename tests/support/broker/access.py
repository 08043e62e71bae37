"""Servers with access control, and clients of several users for them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from rocketbox.protocol.codes import RequestCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.remoting.acl import Credentials, RequestSigner
from rocketbox.remoting.client import RemotingClient
from tests.support.broker.in_memory import BrokerWire, broker_in_memory

ADMIN = Credentials(access_key="administrator", secret_key="secret-of-the-administrator")
ACL_2: dict[str, object] = {
    "authentication-enabled": True,
    "authorization-enabled": True,
    "init-authentication-user": json.dumps({"username": ADMIN.access_key, "password": ADMIN.secret_key}),
}


def keys_of(name: str) -> Credentials:
    """Those that a user of this name is given in tests."""
    return Credentials(access_key=name, secret_key=f"secret-of-{name}")


class UserWires:
    """A broker with access control, and a wire to it for each user."""

    def __init__(self, anybody: BrokerWire, stack: AsyncExitStack) -> None:
        self.unsigned = anybody
        self.broker = anybody.running
        self._stack = stack

    async def wire(self, credentials: Credentials) -> BrokerWire:
        """A client that signs as this user."""
        client = await self._stack.enter_async_context(
            RemotingClient(clock=self.broker._clock, network=self.unsigned.network, hooks=[RequestSigner(credentials)])
        )
        return BrokerWire(self.broker, client, self.unsigned.network)

    async def new_user(self, admin: BrokerWire, name: str, *entries: tuple[str, str, str], **more: str) -> BrokerWire:
        """A wire of a user who is made now; entries are resource, actions with commas, and decision."""
        user = keys_of(name)
        made = await admin.broker(
            RequestCode.AUTH_CREATE_USER,
            {"username": name},
            json.dumps({"username": name, "password": user.secret_key, "userType": "Normal", **more}).encode(),
        )
        assert made.code == 0, made.remark
        for resource, actions, decision in entries:
            answer = await put_policy(admin, name, resource, actions, decision)
            assert answer.code == 0, answer.remark
        return await self.wire(user)


async def put_policy(
    admin: BrokerWire,
    name: str,
    resource: str,
    actions: str,
    decision: str = "Allow",
    *,
    source_ips: tuple[str, ...] = (),
    policy: str | None = None,
) -> RemotingCommand:
    """Add one entry to a user's policies."""
    entry = {
        "resource": resource,
        "actions": actions.split(","),
        "sourceIps": list(source_ips),
        "decision": decision,
    }
    acl = {"subject": f"User:{name}", "policies": [{"policyType": policy, "entries": [entry]}]}
    return await admin.broker(RequestCode.AUTH_CREATE_ACL, {"subject": f"User:{name}"}, json.dumps(acl).encode())


@asynccontextmanager
async def broker_with_access(settings: dict[str, object] | None = None, **arguments: Any) -> AsyncIterator[UserWires]:
    """A broker in memory, with ACL 2.0 unless settings say something else."""
    async with (
        broker_in_memory(settings=ACL_2 if settings is None else settings, **arguments) as anybody,
        AsyncExitStack() as stack,
    ):
        yield UserWires(anybody, stack)
