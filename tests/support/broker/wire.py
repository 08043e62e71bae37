"""Embedded servers on free ports, and requests to them made by hand, field by field as the protocol has them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rocketbox.clock import RealClock
from rocketbox.embedded import EmbeddedOptions, EmbeddedServers
from rocketbox.message import MessageExt
from rocketbox.protocol.codes import RequestCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.stored_message import decode_messages
from rocketbox.remoting.client import RemotingClient
from rocketbox.storage.file_system import Storage
from tests.support.waiting import PATIENCE

SMALL_FILES: Mapping[str, object] = {
    "mapped-file-size-commit-log": "4MB",
    "mapped-file-size-consume-queue": 20_000,
    "max-hash-slot-num": 1000,
    "max-index-num": 4000,
    "max-message-size": "1MB",
    "allocate-ahead": 0,
}


def small_options(directory: Path, **settings: object) -> EmbeddedOptions:
    """Free ports and small files; settings are Apache's, in snake_case."""
    return EmbeddedOptions(data_dir=directory, port=0, name_server_port=0, broker={**SMALL_FILES, **settings})


class Wire:
    """A client that speaks to the servers without any help."""

    def __init__(self, servers: EmbeddedServers, client: RemotingClient) -> None:
        self.servers = servers
        self.client = client

    @property
    def broker_address(self) -> str:
        return self.servers.broker_address

    async def broker(self, code: int, fields: Mapping[str, object] | None = None, body: bytes = b"") -> RemotingCommand:
        """Ask the broker."""
        return await self._ask(self.broker_address, code, fields, body)

    async def name_server(
        self, code: int, fields: Mapping[str, object] | None = None, body: bytes = b""
    ) -> RemotingCommand:
        """Ask the name server."""
        return await self._ask(self.servers.name_server_address, code, fields, body)

    async def _ask(self, address: str, code: int, fields: Mapping[str, object] | None, body: bytes) -> RemotingCommand:
        ext = {name: str(value) for name, value in (fields or {}).items() if value is not None}
        return await self.client.request(address, RemotingCommand.request(code, ext, body), timeout=130)

    async def route(self, topic: str) -> dict[str, Any] | None:
        """The route of a topic, None when there is none."""
        response = await self.name_server(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        if response.code == 17:
            return None
        assert response.code == 0, response.remark
        found: dict[str, Any] = json.loads(response.body)
        return found

    async def send(
        self, topic: str, body: bytes = b"hello", *, queue: int = 0, properties: str = "", **fields: object
    ) -> RemotingCommand:
        """Send one message with a V2 header; further fields by their letters."""
        return await self.broker(
            RequestCode.SEND_MESSAGE_V2,
            {
                "a": "group", "b": topic, "c": "TBW102", "d": 4, "e": queue, "f": 0, "g": 1_700_000_000_000, "h": 0,
                "i": properties or None, "j": 0, "k": "false", "m": "false", **fields,
            },
            body,
        )  # fmt: skip

    async def pull(
        self,
        topic: str,
        offset: int = 0,
        *,
        queue: int = 0,
        group: str = "readers",
        expression: str | None = "*",
        suspend_ms: int | None = None,
        commit: int | None = None,
        **fields: object,
    ) -> RemotingCommand:
        """Pull up to 32 messages; with an expression the heartbeat's subscription does not matter."""
        flag = (1 if commit is not None else 0) | (2 if suspend_ms is not None else 0)
        return await self.broker(
            RequestCode.PULL_MESSAGE,
            {
                "consumerGroup": group, "topic": topic, "queueId": queue, "queueOffset": offset, "maxMsgNums": 32,
                "sysFlag": flag | (4 if expression is not None else 0), "commitOffset": commit or 0,
                "suspendTimeoutMillis": suspend_ms or 0, "subscription": expression, "subVersion": 0,
                "expressionType": "TAG", **fields,
            },
        )  # fmt: skip

    async def messages(self, topic: str, *, queue: int = 0, group: str = "readers", first: int = 0) -> list[MessageExt]:
        """All that a queue holds from an offset on."""
        found: list[MessageExt] = []
        while (response := await self.pull(topic, first + len(found), queue=queue, group=group)).code == 0:
            found += decode_messages(response.body)
        return found

    async def heartbeat(
        self,
        group: str,
        subscriptions: Mapping[str, str],
        *,
        client_id: str = "client",
        model: str = "CLUSTERING",
        version: int = 1,
        kind: str = "TAG",
        client: RemotingClient | None = None,
    ) -> RemotingCommand:
        """Say that a consumer of a group is there; subscriptions are expressions by topic."""
        beat = {
            "clientID": client_id,
            "producerDataSet": [{"groupName": "producers"}],
            "consumerDataSet": [
                {
                    "groupName": group,
                    "consumeType": "CONSUME_PASSIVELY",
                    "messageModel": model,
                    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                    "subscriptionDataSet": [
                        {
                            "topic": topic,
                            "subString": expression,
                            "tagsSet": [],
                            "codeSet": [] if expression == "*" else [java_hash(tag) for tag in expression.split("||")],
                            "subVersion": version,
                            "expressionType": kind,
                            "classFilterMode": False,
                        }
                        for topic, expression in subscriptions.items()
                    ],
                    "unitMode": False,
                }
            ],
        }
        request = RemotingCommand.request(RequestCode.HEART_BEAT, None, json.dumps(beat).encode())
        return await (client or self.client).request(self.broker_address, request, timeout=PATIENCE)


def java_hash(text: str) -> int:
    """Java's String.hashCode of ASCII text, on its own."""
    value = 0
    for character in text.strip():
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


@asynccontextmanager
async def embedded(directory: Path, storage: Storage | None = None, **settings: object) -> AsyncIterator[Wire]:
    """Servers and a client for them."""
    async with (
        EmbeddedServers(small_options(directory, **settings), storage=storage) as servers,
        RemotingClient(clock=RealClock()) as client,
    ):
        yield Wire(servers, client)
