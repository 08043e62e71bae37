"""Names of clusters: unknown ones, placeholders in them, and beans of the user's that have the same name."""

from __future__ import annotations

import pytest

from rocketbox.autoconfigure.service import of_cluster
from rocketbox.client import Producer
from rocketbox.errors import ConfigurationError, Finding
from rocketbox.template import RocketMQTemplate
from tests.support.framework.services import ServiceMaker

HEAD = """
from typing import Annotated
from pyspark.sql import DataFrame
from rocketbox import (
    Qualifier, RocketBox, RocketMQTemplate, bean, rocketmq_listener, rocketmq_spark_listener, send_to,
)
from rocketbox.client import Producer

app = RocketBox("flight-desk", scan=[__name__])

class Desk: ...
"""

SETTINGS = """
rocketmq:
  name-server: ns:9876
  producer.group: desk
  clusters:
    {}: {{name-server: other:9876, producer.group: desk}}
"""

MARKED = {
    "listener on_departure": """
@rocketmq_listener(topic="departures", consumer_group="desk", cluster="CLUSTER")
async def on_departure(flight: str) -> None: ...
""",
    "send_to of listener on_departure": """
@rocketmq_listener(topic="departures", consumer_group="desk")
@send_to("alerts", cluster="CLUSTER")
async def on_departure(flight: str) -> str: ...
""",
    "Spark listener to_lake": """
@rocketmq_spark_listener(topic="departures", consumer_group="lake", cluster="CLUSTER")
def to_lake(rows: DataFrame) -> None: ...
""",
}


@pytest.mark.parametrize(
    ("written", "fix"), [("audt", "did you mean 'audit'?"), ("lake", "set rocketmq.clusters.lake.name-server")]
)
@pytest.mark.parametrize("who", MARKED)
def test_an_unknown_cluster_is_refused_with_what_was_meant(
    service: ServiceMaker, who: str, written: str, fix: str
) -> None:
    module = service(HEAD + MARKED[who].replace("CLUSTER", written), SETTINGS.format("audit"))
    (finding,) = module.app.look().findings
    assert finding.what == f"{who} names cluster {written!r}, and there is none of that name"
    assert str(finding.where).startswith(f"{module.__name__}.py:")
    assert finding.fix == fix


def test_a_qualifier_that_names_no_cluster_is_refused_with_what_was_meant(service: ServiceMaker) -> None:
    source = """
@rocketmq_listener(topic="departures", consumer_group="desk")
async def on_departure(flight: str, template: Annotated[RocketMQTemplate, Qualifier("audt")]) -> None: ...
"""
    (finding,) = service(HEAD + source, SETTINGS.format("audit")).app.look().findings
    assert (
        "of listener on_departure needs a bean of type RocketMQTemplate named 'audt', and there is none" in finding.what
    )
    assert finding.fix == 'did you mean Annotated[RocketMQTemplate, Qualifier("audit")]?'


@pytest.mark.parametrize("who", MARKED)
def test_the_name_of_a_cluster_may_come_from_the_settings(service: ServiceMaker, who: str) -> None:
    source = HEAD + MARKED[who].replace("CLUSTER", "${desk.cluster}")
    look = service(source, SETTINGS.format("audit") + "desk.cluster: audit\n").app.look()
    assert look.findings == []
    functions = [function for plan in look.plans for function in getattr(plan, "functions", ())]
    replies = [reply.cluster for function in functions for reply in function.replies]
    assert "audit" in [*replies, *(plan.cluster for plan in look.plans)]


# --- names that are those of beans ------------------------------------------------------------------------------------


def test_a_bean_may_have_the_name_of_a_cluster(service: ServiceMaker) -> None:
    source = """
@bean
def audit() -> Desk:
    return Desk()

class Night:
    def __init__(self, desk: Desk, same: Annotated[Desk, Qualifier("audit")]) -> None: ...

@bean
def night(desk: Desk, same: Annotated[Desk, Qualifier("audit")]) -> Night:
    return Night(desk, same)
"""
    module = service(HEAD + source, SETTINGS.format("audit"))
    look = module.app.look()
    assert (look.findings, look.warnings) == ([], [])
    assert look.container.has(module.Desk)


def test_a_template_with_the_name_of_a_cluster_is_that_clusters(service: ServiceMaker) -> None:
    source = """
class Mine(RocketMQTemplate): ...

@bean
def audit(producer: Annotated[Producer, Qualifier("audit")]) -> Mine:
    return Mine(producer)
"""
    module = service(HEAD + source, SETTINGS.format("audit"))
    planned = module.app.look().container.planned
    templates = [bean for bean in planned.taken if bean.provides in (RocketMQTemplate, module.Mine)]
    assert {bean.cluster_name: bean.name for bean in templates} == {"": "rocketmq_template", "audit": "audit"}


@pytest.mark.parametrize("cluster", ["producer", "rocketmq_template", "client_instance"])
def test_a_cluster_may_have_the_name_of_a_bean_of_ours(service: ServiceMaker, cluster: str) -> None:
    look = service(HEAD, SETTINGS.format(cluster)).app.look()
    assert (look.findings, look.warnings) == ([], [])
    for type_ in (Producer, RocketMQTemplate):
        assert look.container.finding(of_cluster(type_, cluster), "it") is None
        assert look.container.finding(type_, "it") is None


def test_the_main_clusters_bean_can_be_asked_for_by_its_name(service: ServiceMaker) -> None:
    look = service(HEAD, SETTINGS.format("audit")).app.look()
    assert look.container.finding(of_cluster(RocketMQTemplate, "rocketmq_template"), "it") is None
    finding = look.container.finding(of_cluster(RocketMQTemplate, "audt"), "it", "here")
    assert finding is not None
    assert "there is none; of this type there is rocketmq_template (" in finding.what
    assert finding.fix == 'did you mean Annotated[RocketMQTemplate, Qualifier("audit")]?'


def test_the_name_of_a_cluster_may_have_dots_in_brackets(service: ServiceMaker) -> None:
    source = MARKED["listener on_departure"].replace("CLUSTER", "eu.prod")
    module = service(HEAD + source, SETTINGS.format("'[eu.prod]'"))
    assert module.app.look().findings == []
    module = service(HEAD + source, SETTINGS.format("'[eu.prod]'").replace("name-server: other:9876, ", ""))
    (finding,) = module.app.look().findings
    assert finding.fix == "set rocketmq.clusters[eu.prod].name-server to an address, or to embedded"


@pytest.mark.parametrize("name", ["''", "' '"])
def test_a_cluster_without_a_name_is_not_taken_for_the_main_one(service: ServiceMaker, name: str) -> None:
    module = service(HEAD, SETTINGS.format(name))
    with pytest.raises(ConfigurationError) as caught:
        module.app.check()
    (finding,) = caught.value.findings
    assert finding.what == "rocketmq.clusters: a cluster needs a name"
    assert finding.where is not None
    assert finding.where.startswith("rocketbox.yaml:5:")


# --- the embedded servers ---------------------------------------------------------------------------------------------


def test_a_cluster_may_use_the_embedded_servers_of_the_main_one_only(service: ServiceMaker) -> None:
    settings = SETTINGS.format("audit").replace("other:9876", "embedded")
    assert service(HEAD, settings).app.look().findings == [
        Finding(
            "rocketmq.clusters.audit.name-server is embedded, and the embedded servers do not run",
            "rocketbox.yaml:5:26",
            "set rocketmq.name-server to embedded, or write an address",
        )
    ]
    assert service(HEAD, settings.replace("ns:9876", "Embedded")).app.look().findings == []


def test_embedded_servers_that_are_excluded_cannot_be_used(service: ServiceMaker) -> None:
    settings = SETTINGS.format("audit").replace("ns:9876", "embedded")
    (finding,) = service(HEAD, settings + "rocketbox.autoconfigure.exclude: embedded_servers\n").app.look().findings
    assert finding.what == "rocketmq.name-server is embedded, and the embedded servers do not run"
    assert finding.fix == "do not exclude embedded_servers, or write an address"


# --- Spark ------------------------------------------------------------------------------------------------------------


def test_a_bean_of_a_spark_listener_may_be_optional(service: ServiceMaker) -> None:
    source = MARKED["Spark listener to_lake"].replace("rows: DataFrame", "rows: DataFrame, desk: Desk | None")
    module = service(HEAD + source.replace("CLUSTER", "audit"), SETTINGS.format("audit"))
    assert module.app.look().findings == []
    source = source.replace("Desk | None", "RocketMQTemplate").replace("CLUSTER", "audit")
    settings = SETTINGS.format("audit").replace("  producer.group: desk\n", "", 1)
    (finding,) = service(HEAD + source, settings).app.look().findings
    assert finding.what.startswith("Spark listener to_lake needs a bean of type RocketMQTemplate, and there is none: ")
    assert finding.fix == "set rocketmq.producer.group"
