"""Families of handlers say which requests they answer; nobody answers another's."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from rocketbox.broker.context import join_codes
from rocketbox.protocol.codes import RequestCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.remoting.connection import Connection, RequestHandler


class Family:
    def __init__(self, *codes: int) -> None:
        self._codes = codes

    def codes(self) -> Mapping[int, RequestHandler]:
        return dict.fromkeys(self._codes, self.handle)

    def handle(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response(remark=str(self._codes))


class Twin(Family):
    pass


def test_the_codes_of_all_families_are_joined() -> None:
    one, two = Family(10, 310), Family(11)
    assert join_codes([one, two]) == {10: one.handle, 310: one.handle, 11: two.handle}


def test_a_code_that_two_families_answer_is_refused_with_both_named() -> None:
    with pytest.raises(ValueError, match="request code 11 is answered by Family and by Twin"):
        join_codes([Family(10, 11), Twin(RequestCode.PULL_MESSAGE)])
