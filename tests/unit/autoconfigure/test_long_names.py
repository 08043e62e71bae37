"""Names that are too long with a namespace before them: found before anything starts."""

from __future__ import annotations

import pytest

from tests.support.framework.services import ServiceMaker

NAMESPACE = "team"
LONG_GROUP, LONG_TOPIC = "g" * 116, "t" * 123  # with "team%" they have 121 and 128 characters
SERVICE = """
from rocketbox import RocketBox, rocketmq_listener, send_to
app = RocketBox("desk", scan=[__name__])

@rocketmq_listener(topic="{topic}", consumer_group="{group}"{more})
@send_to("{reply}:tag")
async def on_departure(body: bytes) -> bytes: ...
"""


def told(
    service: ServiceMaker, settings: str, *, topic: str = "t", group: str = "g", reply: str = "r", more: str = ""
) -> list[str]:
    source = SERVICE.format(topic=topic, group=group, reply=reply, more=more)
    settings = f"rocketmq:\n  name-server: ns:9876\n  {settings}\n"
    return [finding.what for finding in service(source, settings).app.look().findings]


@pytest.mark.parametrize(
    ("group", "more", "names", "what"),
    [
        ("p", "", {"group": LONG_GROUP}, f"listener group {LONG_GROUP}: consumer group"),
        ("p", "", {"topic": LONG_TOPIC}, "listener group g: topic"),
        ("p", "", {"reply": LONG_TOPIC}, "send_to of listener on_departure: topic"),
        (LONG_GROUP, "", {}, "rocketmq.producer.group: producer group"),
        ("p", f"topics: {{{LONG_TOPIC}: {{}}}}", {}, f"rocketmq.topics.{LONG_TOPIC}: topic"),
    ],
)
def test_a_name_that_is_too_long_with_its_namespace_is_a_finding(
    service: ServiceMaker, group: str, more: str, names: dict[str, str], what: str
) -> None:
    plain = f"producer.group: {group}\n  {more}"
    assert told(service, plain, **names) == []
    (found,) = told(service, f"{plain}\n  namespace: {NAMESPACE}", **names)
    assert found.startswith(what)
    assert f"with namespace {NAMESPACE} before it" in found


def test_the_namespace_of_the_group_itself_counts(service: ServiceMaker) -> None:
    (found,) = told(service, "producer.group: p", group=LONG_GROUP, more=f", namespace={NAMESPACE!r}")
    assert found.startswith(f"listener group {LONG_GROUP}: ")
    settings = f"producer: {{group: {LONG_GROUP}}}\n  consumer.namespace: {NAMESPACE}"
    assert told(service, settings) == []


def test_what_is_too_long_by_itself_is_told_once(service: ServiceMaker) -> None:
    (found,) = told(service, f"producer.group: p\n  namespace: {NAMESPACE}", group="g" * 121)
    assert "with namespace" not in found
