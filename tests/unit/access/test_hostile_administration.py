"""Requests of users and policies with anything in fields and bodies: refused, with nothing of ours in the answer."""

from __future__ import annotations

import json
import re

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rocketbox.protocol.codes import RequestCode
from rocketbox.protocol.command import RemotingCommand
from tests.support.broker.access import ADMIN, broker_with_access
from tests.support.broker.in_memory import BrokerWire
from tests.support.waiting import PATIENCE

CODES = [code for code in RequestCode if 3001 <= code <= 3010]
LEAKS = re.compile(
    r"Traceback|File \"|\.py\b|secret-of|\b(?:Key|Value|Type|Attribute|Index|Unicode\w*|Assertion|OS|Runtime)Error\b"
)
TEXTS = st.sampled_from(
    ["", " ", "desk", "User:desk", "User:administrator", "User:", "Topic:T", "Topic:*", "*", "Group:%RETRY%g", "Custom",
     "Default", "x" * 70_000, "é\u2028\x00\x1b[2J", "{code}", "Super", "Normal", "enable", "Allow", "Deny",
     "Any", "All"]
)  # fmt: skip
FIELDS = st.dictionaries(
    st.sampled_from(["username", "filter", "subject", "resource", "policyType", "subjectFilter", "resourceFilter"]),
    TEXTS,
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["username", "password", "userType", "userStatus", "subject", "policies", "policyType",
                         "entries", "resource", "actions", "sourceIps", "decision"]),
        inner,
    ),
    max_leaves=12,
)  # fmt: skip
BODIES = st.binary(max_size=20) | VALUES.map(lambda value: json.dumps(value).encode())


async def ask(wire: BrokerWire, code: int, fields: dict[str, str], body: bytes) -> None:
    with anyio.fail_after(PATIENCE):
        request = RemotingCommand.request(code, fields, body)
        answer = await wire.client.request(wire.broker_address, request, timeout=PATIENCE)
    assert not LEAKS.search(answer.remark or ""), (fields, body, answer.remark)
    assert len(answer.remark or "") <= 1_000
    assert b"secret-of" not in answer.body


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(requests=st.lists(st.tuples(st.sampled_from(CODES), FIELDS, BODIES), min_size=8, max_size=25))
def test_anything_is_refused_or_done(
    requests: list[tuple[int, dict[str, str], bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()

    async def ask_all() -> None:
        async with broker_with_access() as users:
            admin = await users.wire(ADMIN)
            await users.new_user(admin, "desk", ("Topic:T", "Pub", "Allow"))
            for code, fields, body in requests:
                if fields.get("username") != ADMIN.access_key:
                    await ask(admin, code, fields, body)
            assert users.broker.server.counters.failed_requests == 0
            assert (await admin.send("T")).code == 0

    anyio.run(ask_all)
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
