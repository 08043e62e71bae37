"""The numbers of the protocol are Apache's, and bits of flags say what they say there."""

from __future__ import annotations

import json
from enum import IntEnum
from pathlib import Path

import pytest

from rocketbox.protocol import codes
from rocketbox.protocol.codes import (
    LanguageCode,
    MessageSysFlag,
    PermName,
    PullSysFlag,
    RequestCode,
    ResponseCode,
    SerializeType,
)
from rocketbox.protocol.command import RemotingCommand

APACHES = json.loads((Path(__file__).parents[2] / "data" / "codes-5.5.0.json").read_text())
KINDS = (RequestCode, ResponseCode, LanguageCode, SerializeType, MessageSysFlag, PullSysFlag, PermName)


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_apaches(kind: type[IntEnum]) -> None:
    assert {name: int(member) for name, member in kind.__members__.items()} == APACHES[kind.__name__]


def test_versions_are_apaches_ordinals() -> None:
    versions = APACHES["MQVersion"]
    ours = {
        "V" + name.removeprefix("VERSION_"): number for name, number in vars(codes).items() if name[:8] == "VERSION_"
    }
    assert ours == {name: versions[name] for name in ours}
    assert set(ours) == {"V3_4_9", "V4_9_4", "V4_9_7", "V5_0_0", "V5_5_0"}
    assert versions["V5_3_3"] == codes.CLIENT_VERSION


def test_the_largest_code_of_the_binary_header_is_that_of_a_signed_short() -> None:
    assert codes.MAX_BINARY_CODE == 2**15 - 1
    assert codes.MASTER_ID == 0


@pytest.mark.parametrize(
    ("flag", "response", "oneway"),
    [(0, False, False), (1, True, False), (2, False, True), (3, True, True), (4, False, False)],
)
def test_the_first_bit_says_response_and_the_second_one_way(flag: int, response: bool, oneway: bool) -> None:
    command = RemotingCommand(0, flag=flag)
    assert (command.is_response, command.is_oneway) == (response, oneway)
