"""An exchange of messages by Apache's Java client: sends, both ways of consuming, a retry and a dead letter of each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import anyio

from rocketbox.client import Admin, ClientOptions, Credentials
from rocketbox.message import MessageQueue
from tests.conformance.apache import QUICK_START, class_path
from tests.conformance.java_program import JavaProgram

__all__ = ["SMALL_AND_QUICK", "exchange"]

TOPICS = ("departures", "gates")
GROUPS = ("board", "gate-board")
MESSAGES = 20
SMALL_AND_QUICK = ("-Xmx256m", *QUICK_START)


def exchange(
    name_server: str,
    version: str,
    administrator: ClientOptions,
    client: ClientOptions,
    *,
    keys: Credentials | None = None,
    options: Sequence[str] = (),
) -> None:
    """Let the Java client of a version send, consume in order and at once, and fail twice and give up in both ways.

    ``administrator`` makes the topics, ``client`` looks at the dead letters; ``keys`` and Java's ``options`` are the
    Java client's.
    """
    anyio.run(_make_topics, name_server, administrator)
    arguments = [name_server, *TOPICS, *GROUPS, str(MESSAGES)]
    jars: list[str] = []
    if keys is not None:
        arguments += [keys.access_key, keys.secret_key]
        # Of 4.9.7 the hook is among the servers' jars; with their logging library what is logged would be told too.
        servers = Path(class_path(version)).parent.glob("*.jar") if version.startswith("4.") else ()
        jars = [str(jar) for jar in servers if not jar.name.startswith("logback-")]
    with JavaProgram(
        "rocketbox.Exchange", *arguments,
        options=(*SMALL_AND_QUICK, "-Drocketmq.client.rebalance.waitInterval=1000", *options),
        version=version, jars=jars,
    ) as java:  # fmt: skip
        told = java.told.read().splitlines()
        assert told[:1] == ["sent"], java.errors
        assert told[-1] == "done", (told, java.errors)
    assert sorted(line for line in told if line.startswith(">")) == sorted(
        [*(f"> plain {number} 0" for number in range(MESSAGES)), "> failing 0", "> failing 1"]
    )
    assert [line for line in told if line.startswith("=")] == [
        *(f"= ordered {number}" for number in range(MESSAGES)), "= failing", "= failing",
    ]  # fmt: skip
    for group in GROUPS:
        assert anyio.run(_dead_letters, name_server, client, group) == 1, group


async def _make_topics(name_server: str, options: ClientOptions) -> None:
    async with Admin(name_server=name_server, client_options=options) as admin:
        for topic in TOPICS:
            await admin.create_topic(topic, queues=2)


async def _dead_letters(name_server: str, options: ClientOptions, group: str) -> int:
    """How many there are of the group, as its own user sees it."""
    async with Admin(name_server=name_server, client_options=options) as admin:
        return await admin.max_offset(MessageQueue(f"%DLQ%{group}", "broker-a", 0))
