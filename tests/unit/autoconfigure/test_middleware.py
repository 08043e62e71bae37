"""Middleware beans: which client they reach, and what is said where they reach none."""

from __future__ import annotations

from tests.support.framework.services import ServiceMaker

HEAD = """
from rocketbox import RocketBox, RocketMQTemplate, bean
from rocketbox.client import ClientOptions, ConsumeMiddleware, MQClientInstance, SendMiddleware

app = RocketBox("desk", scan=[__name__])

@bean
def timing() -> ConsumeMiddleware: ...
"""

OWN = """
@bean
def instance() -> MQClientInstance:
    return MQClientInstance("ns:9876")
"""

OWN_WITH_THEM = """
@bean
def instance(middleware: list[ConsumeMiddleware]) -> MQClientInstance:
    return MQClientInstance("ns:9876", options=ClientOptions(consume_middleware=tuple(middleware)))
"""

CIRCLE = """
@bean
def alarm(template: RocketMQTemplate) -> SendMiddleware: ...
"""

SETTINGS = "rocketmq: {name-server: 'ns:9876', producer.group: desk}\n"


def test_a_client_of_the_users_that_leaves_middleware_out_is_told(service: ServiceMaker) -> None:
    (warning,) = service(HEAD + OWN, SETTINGS).app.look().warnings
    assert warning.what == "middleware timing wraps nothing of instance, a client instance of your own"
    assert "consume_middleware=" in warning.fix
    for source in ("", OWN_WITH_THEM):
        assert service(HEAD + source, SETTINGS).app.look().warnings == []


def test_a_middleware_that_takes_the_template_as_a_parameter_is_refused_at_the_start(service: ServiceMaker) -> None:
    findings = service(HEAD + CIRCLE, SETTINGS).app.look().findings
    assert any("alarm" in finding.what and "rocketmq_template" in finding.what for finding in findings)
