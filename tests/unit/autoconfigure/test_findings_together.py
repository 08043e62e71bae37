"""What is wrong in settings and what is wrong in listeners is told at once, and nothing that only follows from it."""

from __future__ import annotations

import pytest

from rocketbox.errors import ConfigurationError
from tests.support.framework.services import ServiceMaker

LISTENERS = """
    from typing import Annotated

    from rocketbox import Qualifier, RocketBox, RocketMQTemplate, bean, rocketmq_listener, send_to

    class Desk:
        def __init__(self, template: RocketMQTemplate) -> None:
            self.template = template

    @bean
    def desk(template: RocketMQTemplate) -> Desk:
        return Desk(template)

    @rocketmq_listener(topic="departures", consumer_group="desk", consume_timeout="15")
    async def no_unit(departure: str) -> None: ...

    @rocketmq_listener(topic="departures", consumer_group="audit")
    @send_to("alerts")
    async def fine(departure: str, template: RocketMQTemplate, desk: Desk) -> str:
        return departure

    @rocketmq_listener(topic="departures", consumer_group="lake")
    async def two(first: str, second: str) -> None: ...

    app = RocketBox("flight-desk", scan=[__name__])
"""


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ("rocketmq: {name-serve: embedded, producer: {group: desk}}", "unknown key rocketmq.name-serve"),
        ("rocketmq: {name-server: '${NOBODY}', producer: {group: desk}}", "rocketmq.name-server needs ${NOBODY}"),
        ("rocketmq: {name-server: embedded, producer: {group: desk, send-message-timeout: soon}}", "'soon'"),
        ("rocketmq: {name-server: embedded, producer: {group: '', max-message-size: 1MB}}", "rocketmq.producer.group"),
        ("rocketmq: {name-server: embedded}\nrocketbox: {embedded: {port: 70000}}", "rocketbox.embedded.port"),
    ],
)
@pytest.mark.anyio
async def test_wrong_settings_do_not_hide_wrong_listeners(service: ServiceMaker, settings: str, wrong: str) -> None:
    module = service(LISTENERS, settings)
    with pytest.raises(ConfigurationError) as caught:
        await module.app.__aenter__()
    first, *others = [finding.what for finding in caught.value.findings]
    assert wrong in first
    assert len(others) == 2, others
    assert others[0].startswith("consume_timeout of listener no_unit is '15'")
    assert others[1].startswith("listener two has more than one payload")


@pytest.mark.anyio
async def test_settings_that_lack_values_are_told_alone(service: ServiceMaker) -> None:
    source = LISTENERS.replace(
        "class Desk:",
        """from pydantic import BaseModel
    from rocketbox import configuration_properties

    @configuration_properties("desk")
    class DeskProperties(BaseModel):
        threshold_minutes: int

    class Desk:""",
    )
    with pytest.raises(ConfigurationError) as caught:
        await service(source, "rocketmq: {name-server: embedded}").app.__aenter__()
    (finding,) = caught.value.findings
    assert "desk.threshold-minutes" in finding.what


def test_what_one_missing_setting_leaves_out_is_told_once_for_all_who_need_it(service: ServiceMaker) -> None:
    source = """
from rocketbox import RocketBox, RocketMQTemplate, bean, rocketmq_listener
from rocketbox.client import Producer

app = RocketBox("desk", scan=[__name__])

@bean
def one(template: RocketMQTemplate) -> dict:
    return {}

@bean
def two(template: RocketMQTemplate, producer: Producer) -> set:
    return set()

@app.on_startup
async def begin(template: RocketMQTemplate) -> None: ...

@app.every("5m")
async def look(template: RocketMQTemplate) -> None: ...
"""
    module = service(source, "")
    (finding,) = module.app.look().findings
    assert finding.what == (
        "parameter template of bean one, parameter template of bean two, parameter producer of bean two and 2 more "
        "need beans of types RocketMQTemplate and Producer, and there are none: rocketmq_template was not built "
        "because nothing provides Producer: producer was not built because rocketmq.name-server is not set"
    )
    assert finding.where == ", ".join(f"{module.__name__}.py:{line}" for line in (6, 10, 14, 17))
    assert finding.fix == "set rocketmq.name-server to an address, or to embedded"


def test_what_one_setting_leaves_out_for_two_causes_is_told_twice(service: ServiceMaker) -> None:
    source = """
from rocketbox import RocketBox, bean
from rocketbox.boot.conditions import Verdict

app = RocketBox("desk", scan=[__name__])

class Night: ...
class Day: ...

class Refuses:
    def __init__(self, why: str) -> None:
        self.why = why

    def evaluate(self, context) -> Verdict:
        return Verdict(False, self.why, "desk.mode", "set desk.mode")

@bean(Refuses("desk.mode is day"))
def night() -> Night:
    return Night()

@bean(Refuses("desk.mode names no gate"))
def day() -> Day:
    return Day()

@app.on_startup
async def begin(night: Night) -> None: ...

@app.on_startup
async def go_on(day: Day) -> None: ...

@app.on_startup
async def end(day: Day) -> None: ...
"""
    told = [finding.what for finding in service(source, "").app.look().findings]
    assert told == [
        "parameter night of startup hook begin needs a bean of type Night, and there is none: night was not built "
        "because desk.mode is day",
        "parameter day of startup hook go_on and parameter day of startup hook end need a bean of type Day, and there "
        "is none: day was not built because desk.mode names no gate",
    ]


@pytest.mark.parametrize(
    "written", ["rocketmq.name-server: [a:9876, 'b:9876']", "rocketmq: {name-server: [a:9876, b:9876]}"]
)
def test_a_list_of_name_servers_is_told_as_the_text_that_it_would_be(service: ServiceMaker, written: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        service('from rocketbox import RocketBox\napp = RocketBox("desk", scan=[__name__])\n', written).app.check()
    (finding,) = caught.value.findings
    assert finding.what == "rocketmq.name-server takes text, and a list is written there"
    assert finding.fix == "write rocketmq.name-server: a:9876;b:9876"


def test_a_list_that_is_no_list_of_texts_is_not_written_out(service: ServiceMaker) -> None:
    source = 'from rocketbox import RocketBox\napp = RocketBox("desk", scan=[__name__])\n'
    with pytest.raises(ConfigurationError) as caught:
        service(source, "rocketmq.clusters.audit.name-server: [{a: 9876}]").app.check()
    (finding,) = caught.value.findings
    assert finding.fix == "write rocketmq.clusters.audit.name-server: ..."
