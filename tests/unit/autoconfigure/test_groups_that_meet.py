"""Groups of one name in two clusters of the settings that are the same servers: found before anything starts."""

from __future__ import annotations

import pytest

from tests.support.framework.services import ServiceMaker

SERVICE = """
from rocketbox import RocketBox, rocketmq_listener
app = RocketBox("desk", scan=[__name__])

@rocketmq_listener(topic="departures", consumer_group="desk", selector_expression="UA || AA")
async def on_departure(body: bytes) -> None: ...

@rocketmq_listener(topic="TOPIC", consumer_group="desk", selector_expression="TAGS", cluster="audit"MORE)
async def on_more(body: bytes) -> None: ...
"""


def told(
    service: ServiceMaker, main: str, audit: str, *, topic: str = "arrivals", tags: str = "*", more: str = ""
) -> list[str]:
    source = SERVICE.replace("TOPIC", topic).replace("TAGS", tags).replace("MORE", more)
    settings = f'rocketmq:\n  name-server: "{main}"\n  clusters:\n    audit: {{name-server: "{audit}"}}\n'
    return [finding.what for finding in service(source, settings).app.look().findings]


@pytest.mark.parametrize(
    ("main", "audit", "shared"),
    [
        ("ns:9876", "ns:9876", "ns:9876"),
        ("ns:9876;other:9876", "third:1, other:9876", "other:9876"),
        ("http://names.example.org/list?token=t0k3n", "http://names.example.org/list?token=t0k3n",
         "http://names.example.org/list"),
    ],
)  # fmt: skip
def test_one_group_with_two_subscriptions_on_one_server_is_a_finding(
    service: ServiceMaker, main: str, audit: str, shared: str
) -> None:
    assert told(service, main, audit) == [
        "group desk of cluster audit and that of the main cluster (rocketmq) are one group, for both have the name "
        f"server {shared}, and they subscribe different things (departures:UA || AA; arrivals:*): members share the "
        "queues, and each would leave out what lies in those of the other"
    ]
    assert len(told(service, main, audit, topic="departures")) == 1


def test_other_servers_the_same_subscription_or_another_namespace_are_right(service: ServiceMaker) -> None:
    assert told(service, "ns:9876", "ns:9877") == []
    assert told(service, "ns:9876", "ns:9876", topic="departures", tags="AA||UA") == []
    assert told(service, "ns:9876", "ns:9876", more=', namespace="other"') == []
