"""Hooks that a broker is given stand around all its handlers."""

from __future__ import annotations

import pytest

from rocketbox.broker.extensions import BrokerExtensions
from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.remoting.connection import Connection
from tests.support.broker.in_memory import broker_in_memory

pytestmark = pytest.mark.anyio


class Doorman:
    """A toy: turns sends to one topic away, and notes how every request ended."""

    def __init__(self) -> None:
        self.ended: list[tuple[int, int]] = []

    def before(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        if request.ext_fields.get("b") == "private":
            return RemotingCommand.response(ResponseCode.NO_PERMISSION, "not for you")
        return None

    def after(self, connection: Connection, request: RemotingCommand, code: int, frame_bytes: int) -> None:
        assert frame_bytes > 0
        self.ended.append((request.code, code))


async def test_a_hook_sees_every_request_of_the_broker_and_may_answer_it() -> None:
    doorman = Doorman()
    async with broker_in_memory(extensions=BrokerExtensions(hooks=[doorman])) as wire:
        assert (await wire.send("t")).code == 0
        refused = await wire.send("private")
        assert (refused.code, refused.remark) == (ResponseCode.NO_PERMISSION, "not for you")
        assert (await wire.pull("t")).code == 0
        assert (await wire.pull("private")).code == ResponseCode.TOPIC_NOT_EXIST
    send, pull = int(RequestCode.SEND_MESSAGE_V2), int(RequestCode.PULL_MESSAGE)
    assert doorman.ended == [(send, 0), (send, ResponseCode.NO_PERMISSION), (pull, 0), (pull, 17)]
