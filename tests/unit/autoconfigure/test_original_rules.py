"""The rules of rocketmq-spring's auto-configuration: what is built when, what wins, and what is said when it is not."""

from __future__ import annotations

import pytest

from rocketbox.autoconfigure.assembly import Assembly, AssemblyError
from rocketbox.autoconfigure.service import of_cluster
from rocketbox.client import LitePullConsumerOptions, MQClientInstance, Producer
from rocketbox.errors import ConfigurationError, Finding
from rocketbox.local_servers import LocalServers
from rocketbox.template import MessageConverter, RocketMQTemplate
from tests.support.framework.services import ServiceMaker

HEAD = """
from typing import Annotated
from rocketbox import (
    BlockingRocketMQTemplate, JsonMessageConverter, Qualifier, RocketBox, RocketMQTemplate, bean, primary,
    rocketmq_listener, send_to,
)
from rocketbox.client import MQClientInstance, Producer

app = RocketBox("flight-desk", scan=[__name__])

class Desk: ...
"""

TYPES = (LocalServers, MQClientInstance, Producer, RocketMQTemplate, MessageConverter, LitePullConsumerOptions)


def built(assembly: Assembly, cluster: str | None = None) -> set[str]:
    return {type_.__name__ for type_ in TYPES if assembly.container.has(of_cluster(type_, cluster))}


def without_lines(findings: list[Finding], module: object) -> list[str]:
    name = getattr(module, "__name__", "")
    texts = []
    for finding in findings:
        where = (finding.where or "").replace(name, "service")
        texts.append(f"{finding.what} | {where.partition(':')[0]} | {finding.fix}")
    return texts


CONVERTER = {"MessageConverter"}
CLIENT = {*CONVERTER, "MQClientInstance"}
SENDS = {*CLIENT, "Producer", "RocketMQTemplate"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("", CONVERTER),
        ("rocketmq.producer.group: desk", CONVERTER),
        ("rocketmq.pull-consumer: {group: desk, topic: departures}", CONVERTER),
        ("rocketmq.name-server: ns:9876", CLIENT),
        ("rocketmq: {name-server: ns:9876, producer.group: desk}", SENDS),
        ("rocketmq: {name-server: embedded, producer.group: desk}", {*SENDS, "LocalServers"}),
        ("rocketmq: {name-server: ns:9876, pull-consumer.group: desk}", CLIENT),
        (
            "rocketmq: {name-server: ns:9876, pull-consumer: {group: desk, topic: departures}}",
            {*CLIENT, "LitePullConsumerOptions"},
        ),
        ("rocketmq: {enabled: false, name-server: embedded, producer.group: desk}", CONVERTER),
        ("rocketmq: {enabled: no, name-server: embedded, producer.group: desk}", CONVERTER),
        ("rocketmq: {enabled: 0, name-server: embedded, producer.group: desk}", CONVERTER),
        ("rocketmq: {enabled: yes, name-server: ns:9876, producer.group: desk}", SENDS),
        ("rocketmq: {name-server: false, producer.group: desk}", CONVERTER),
    ],
)
def test_what_is_built_follows_from_name_server_and_groups(
    service: ServiceMaker, settings: str, expected: set[str]
) -> None:
    assert built(service(HEAD, settings + "\n").app.look()) == expected


def test_a_cluster_is_built_by_its_own_keys(service: ServiceMaker) -> None:
    settings = """
        rocketmq:
          name-server: ns:9876
          clusters:
            audit: {name-server: audit-ns:9876, producer.group: desk}
            lake: {name-server: lake-ns:9876}
            mill: {producer.group: desk}
    """
    look = service(HEAD, settings).app.look()
    own = {"MQClientInstance", "Producer", "RocketMQTemplate"}
    assert built(look) == CLIENT
    assert [built(look, cluster) & own for cluster in ("audit", "lake", "mill")] == [own, {"MQClientInstance"}, set()]


# --- what is absent and not needed ------------------------------------------------------------------------------------


def test_without_a_name_server_a_warning_names_the_key_and_what_is_skipped(service: ServiceMaker) -> None:
    look = service(HEAD, "rocketmq.producer.group: desk\n").app.look()
    assert look.findings == []
    assert look.warnings == [
        Finding(
            "rocketmq.name-server is not set, so that the beans of RocketMQ are skipped: client_instance, "
            "client_instances, producer, rocketmq_template, blocking_rocketmq_template, pull_consumer_options, "
            "needed_topics",
            None,
            "set rocketmq.name-server to an address, or to embedded",
        )
    ]


def test_without_a_producer_group_a_warning_says_that_there_is_no_template(service: ServiceMaker) -> None:
    look = service(HEAD, "rocketmq.name-server: ns:9876\n").app.look()
    assert look.findings == []
    assert [warning.fix for warning in look.warnings] == ["set rocketmq.producer.group"]
    assert look.warnings[0].what.startswith("there is no RocketMQTemplate: ")


def test_a_service_that_only_listens_is_not_warned_of_the_template_and_the_report_tells_why(
    service: ServiceMaker,
) -> None:
    look = service(HEAD + LISTENER, "rocketmq.name-server: ns:9876\n").app.look()
    assert (look.findings, look.warnings) == ([], [])
    assert "rocketmq.producer.group is not set" in look.container.report.render()


def test_an_own_client_needs_no_name_server(service: ServiceMaker) -> None:
    own = "\n@bean\ndef mine() -> MQClientInstance:\n    return MQClientInstance('mine:9876')\n"
    look = service(HEAD + own + LISTENER, "").app.look()
    assert look.findings == []
    assert [plan.group for plan in look.plans] == ["desk"]
    assert look.warnings == []


def test_a_further_cluster_without_a_name_server_is_told(service: ServiceMaker) -> None:
    settings = "rocketmq: {name-server: ns:9876, producer.group: desk, clusters: {audit: {producer.group: desk}}}\n"
    look = service(HEAD, settings).app.look()
    assert look.findings == []
    (warning,) = look.warnings
    assert warning.what.startswith("rocketmq.clusters.audit.name-server is not set, so that the beans of RocketMQ are")
    assert warning.what.endswith(
        ": client_instance [audit], client_instances [audit], producer [audit], rocketmq_template [audit], "
        "blocking_rocketmq_template [audit], "
        "pull_consumer_options [audit], needed_topics [audit]"
    )


def test_a_pull_consumer_that_nobody_needs_is_in_the_report_only(service: ServiceMaker) -> None:
    look = service(HEAD, "rocketmq: {name-server: ns:9876, producer.group: desk}\n").app.look()
    assert (look.findings, look.warnings) == ([], [])
    assert "pull_consumer_options" in [entry.name for entry in look.container.report.negative]


@pytest.mark.parametrize(
    "switch", ["rocketmq.enabled: false", "rocketmq.enabled: off", "rocketmq.name-server: 'false'"]
)
def test_nothing_is_said_when_rocketmq_is_switched_off(service: ServiceMaker, switch: str) -> None:
    settings = f"{switch}\nrocketmq.clusters.audit: {{producer.group: desk}}\n"
    look = service(HEAD + LISTENER, settings).app.look()
    assert (look.findings, look.warnings, look.plans) == ([], [], [])


# --- what is absent and needed ----------------------------------------------------------------------------------------

LISTENER = """
@rocketmq_listener(topic="departures", consumer_group="desk")
async def on_departure(departure: str) -> None: ...
"""

SENDER = LISTENER.replace("async def", '@send_to("alerts")\nasync def').replace("-> None", "-> str")

NEEDS = {
    "listener": LISTENER,
    "listener of a cluster": LISTENER.replace('group="desk"', 'group="desk", cluster="audit"'),
    "send_to": SENDER,
    "send_to of a cluster": SENDER.replace('"alerts"', '"alerts", cluster="audit"'),
    "handler": LISTENER.replace("departure: str", "departure: str, template: RocketMQTemplate"),
    "handler of a cluster": LISTENER.replace(
        "departure: str", 'departure: str, template: Annotated[RocketMQTemplate, Qualifier("audit")]'
    ),
    "bean": """
@bean
def desk(template: RocketMQTemplate) -> Desk:
    return Desk()
""",
    "bean of a cluster": """
@bean
def desk(producer: Annotated[Producer, Qualifier("audit")]) -> Desk:
    return Desk()
""",
    "hook": """
@app.on_startup
async def begin(template: RocketMQTemplate) -> None: ...
""",
    "hook of a cluster": """
@app.on_startup
async def begin(template: Annotated[RocketMQTemplate, Qualifier("audit")]) -> None: ...
""",
}

NO_CLIENT = "client_instance was not built because rocketmq.name-server is not set"
NO_PRODUCER = (
    "rocketmq_template was not built because nothing provides Producer: producer was not built because "
    "rocketmq.producer.group is not set"
)
SET_NAME_SERVER = "set {}.name-server to an address, or to embedded"
SET_GROUP = "set {}.producer.group"


def _of_audit(text: str) -> str:
    for name in ("client_instance", "producer", "rocketmq_template"):
        text = text.replace(f"{name} was", f"{name} [audit] was")
    return text.replace("rocketmq.", "rocketmq.clusters.audit.").replace("rocketmq.clusters.audit.clusters", "rocketmq")


@pytest.mark.parametrize(
    ("need", "settings", "expected"),
    [
        (
            "listener",
            "",
            f"listener on_departure needs a bean of type MQClientInstance, and there is none: {NO_CLIENT} | service.py "
            f"| {SET_NAME_SERVER.format('rocketmq')}",
        ),
        (
            "listener of a cluster",
            "rocketmq.clusters.audit.producer.group: desk",
            "listener on_departure needs a bean of type MQClientInstance named 'audit', and there is none: "
            f"{_of_audit(NO_CLIENT)} | service.py | {SET_NAME_SERVER.format('rocketmq.clusters.audit')}",
        ),
        (
            "send_to",
            "rocketmq.name-server: ns:9876",
            "@send_to('alerts') of listener on_departure needs a bean of type RocketMQTemplate, and there is none: "
            f"{NO_PRODUCER} | service.py | {SET_GROUP.format('rocketmq')}",
        ),
        (
            "send_to of a cluster",
            "rocketmq: {name-server: ns:9876, clusters.audit.name-server: ns:9876}",
            "@send_to('alerts') of listener on_departure needs a bean of type RocketMQTemplate named 'audit', and "
            f"there is none: {_of_audit(NO_PRODUCER)} | service.py | {SET_GROUP.format('rocketmq.clusters.audit')}",
        ),
        (
            "handler",
            "rocketmq.name-server: ns:9876",
            "parameter template of listener on_departure needs a bean of type RocketMQTemplate, and there is none: "
            f"{NO_PRODUCER} | service.py | {SET_GROUP.format('rocketmq')}",
        ),
        (
            "handler of a cluster",
            "rocketmq: {name-server: ns:9876, clusters.audit.name-server: ns:9876}",
            "parameter template of listener on_departure needs a bean of type RocketMQTemplate named 'audit', and "
            f"there is none: {_of_audit(NO_PRODUCER)} | service.py | {SET_GROUP.format('rocketmq.clusters.audit')}",
        ),
        (
            "bean",
            "rocketmq.name-server: ns:9876",
            "parameter template of bean desk needs a bean of type RocketMQTemplate, and there is none: "
            f"{NO_PRODUCER} | service.py | {SET_GROUP.format('rocketmq')}",
        ),
        (
            "bean of a cluster",
            "rocketmq.clusters.audit.name-server: ns:9876",
            "parameter producer of bean desk needs a bean of type Producer named 'audit', and there is none: producer "
            "[audit] was not built because rocketmq.clusters.audit.producer.group is not set | service.py | "
            f"{SET_GROUP.format('rocketmq.clusters.audit')}",
        ),
        (
            "hook",
            "rocketmq.name-server: ns:9876",
            "parameter template of startup hook begin needs a bean of type RocketMQTemplate, and there is none: "
            f"{NO_PRODUCER} | service.py | {SET_GROUP.format('rocketmq')}",
        ),
        (
            "hook of a cluster",
            "rocketmq.clusters.audit.name-server: ns:9876",
            "parameter template of startup hook begin needs a bean of type RocketMQTemplate named 'audit', and there "
            f"is none: {_of_audit(NO_PRODUCER)} | service.py | {SET_GROUP.format('rocketmq.clusters.audit')}",
        ),
        (
            "hook",
            "rocketmq: {enabled: false, name-server: ns:9876, producer.group: desk}",
            "parameter template of startup hook begin needs a bean of type RocketMQTemplate, and there is none: "
            "rocketmq_template was not built because nothing provides Producer: producer was not built because "
            "rocketmq.enabled is false | service.py | set rocketmq.enabled to true",
        ),
    ],
)
def test_what_somebody_needs_is_refused_with_condition_and_key(
    service: ServiceMaker, need: str, settings: str, expected: str
) -> None:
    module = service(HEAD + NEEDS[need], settings + "\n")
    look = module.app.look()
    assert without_lines(look.findings, module) == [expected]
    with pytest.raises(AssemblyError) as caught:
        look.check()
    assert caught.value.report is None  # the one line that mends it says more


def test_the_report_stands_behind_what_no_setting_mends(service: ServiceMaker) -> None:
    settings = (
        "rocketmq: {name-server: ns:9876, producer.group: desk}\nrocketbox.autoconfigure.exclude: rocketmq_template\n"
    )
    with pytest.raises(AssemblyError) as caught:
        service(HEAD + NEEDS["hook"], settings).app.look().check()
    assert "CONDITIONS REPORT" in str(caught.value.report)


@pytest.mark.parametrize("need", ["bean", "hook"])
def test_an_optional_bean_may_be_absent(service: ServiceMaker, need: str) -> None:
    source = NEEDS[need].replace("template: RocketMQTemplate", "template: RocketMQTemplate | None")
    look = service(HEAD + source, "rocketmq.name-server: ns:9876\n").app.look()
    assert look.findings == []


# --- blank values -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blank", ["", "   "])
@pytest.mark.parametrize(
    "key",
    [
        "rocketmq.name-server",
        "rocketmq.producer.group",
        "rocketmq.pull-consumer.group",
        "rocketmq.pull-consumer.topic",
        "rocketmq.consumer.group",
        "rocketmq.consumer.topic",
        "rocketmq.clusters.audit.name-server",
        "rocketmq.clusters.audit.producer.group",
        "rocketmq.consumer.listeners.desk.topic",
        "rocketmq.consumer.listeners.desk.selector-expression",
    ],
)
def test_a_blank_value_is_refused_with_its_key(service: ServiceMaker, key: str, blank: str) -> None:
    module = service(HEAD, f"{key}: '{blank}'\n")
    with pytest.raises(ConfigurationError) as caught:
        module.app.look()
    (finding,) = caught.value.findings
    assert finding.what.startswith(f"{key} is empty")
    assert finding.where == f"rocketbox.yaml:1:{len(key) + 3}"


# --- what is the user's wins ------------------------------------------------------------------------------------------

OWN = {
    "producer": (
        "Producer",
        "producer",
        """
@bean
def {name}(instance: MQClientInstance) -> Producer:
    return Producer("mine", instance=instance)
""",
    ),
    "template": (
        "RocketMQTemplate",
        "rocketmq_template",
        """
class Mine(RocketMQTemplate): ...

@bean
def {name}(producer: Producer) -> Mine:
    return Mine(producer)
""",
    ),
    "converter": (
        "MessageConverter",
        "message_converter",
        """
class Mine(JsonMessageConverter): ...

@bean
def {name}() -> Mine:
    return Mine()
""",
    ),
    "client": (
        "MQClientInstance",
        "client_instance",
        """
@bean
def {name}() -> MQClientInstance:
    return MQClientInstance("mine:9876")
""",
    ),
}


@pytest.mark.parametrize("name", ["mine", "producer", "rocketmq_template", "desk"])
@pytest.mark.parametrize("what", OWN)
def test_the_users_own_wins_under_whatever_name(service: ServiceMaker, what: str, name: str) -> None:
    type_name, automatic, source = OWN[what]
    module = service(
        HEAD + source.format(name=name) + LISTENER, "rocketmq: {name-server: ns:9876, producer.group: desk}\n"
    )
    look = module.app.look()
    assert (look.findings, look.warnings) == ([], [])
    assert built(look) == SENDS
    (left_out,) = [entry for entry in look.container.report.negative if entry.name == automatic]
    assert left_out.verdicts[0].reason == f"{type_name} is provided already, by {name}"


def test_two_converters_are_one_too_many_for_a_listener(service: ServiceMaker) -> None:
    converters = OWN["converter"][2].format(name="one") + OWN["converter"][2].format(name="two")
    module = service(HEAD + converters + LISTENER, "rocketmq.name-server: ns:9876\n")
    (finding,) = module.app.look().findings
    assert finding.what.startswith(
        "listener on_departure needs one bean of type MessageConverter, and there are 2: one"
    )


def test_two_templates_are_one_too_many_for_a_handler(service: ServiceMaker) -> None:
    two = OWN["template"][2].format(name="one") + OWN["template"][2].format(name="two").replace("class Mine", "class Y")
    handler = LISTENER.replace("departure: str", "departure: str, template: RocketMQTemplate")
    module = service(HEAD + two + handler, "rocketmq: {name-server: ns:9876, producer.group: desk}\n")
    (finding,) = module.app.look().findings
    assert finding.what.startswith(
        "parameter template of listener on_departure needs one bean of type RocketMQTemplate, and there are 2: one ("
    )


def test_of_two_templates_none_is_made_for_blocking_code_unless_one_is_primary(service: ServiceMaker) -> None:
    two = OWN["template"][2].format(name="one") + OWN["template"][2].format(name="two").replace("class Mine", "class Y")
    settings = "rocketmq: {name-server: ns:9876, producer.group: desk}\n"
    by_name = LISTENER.replace(
        "departure: str", 'departure: str, template: Annotated[RocketMQTemplate, Qualifier("two")]'
    )
    assert service(HEAD + two + by_name, settings).app.look().findings == []
    blocking = LISTENER.replace("departure: str", "departure: str, template: BlockingRocketMQTemplate")
    blocking = blocking.replace("async def", "def")
    (finding,) = service(HEAD + two + blocking, settings).app.look().findings
    assert "there are 2 of RocketMQTemplate: one, two" in finding.what
    primary = HEAD + two.replace("@bean", "@primary\n@bean", 1) + blocking
    assert service(primary, settings).app.look().findings == []


# --- order ------------------------------------------------------------------------------------------------------------


def test_converters_come_before_rocketmq(service: ServiceMaker) -> None:
    look = service(HEAD, "rocketmq: {name-server: ns:9876, producer.group: desk}\n").app.look()
    names = [bean.name for bean in look.container.planned.taken if bean.module == "rocketbox.autoconfigure.rocketmq"]
    assert names == [
        "awaited_servers", "message_converter", "client_instance", "client_instances", "producer", "rocketmq_template",
        "blocking_rocketmq_template",
    ]  # fmt: skip
    started = [bean.name for bean in look.container.planned.order if bean.name in names]
    assert started == names
