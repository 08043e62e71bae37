"""A converter of the user's decides which types are payloads; what cannot be known before the start is not refused."""

from __future__ import annotations

from types import ModuleType

import pytest

from rocketbox.autoconfigure.assembly import Assembly
from rocketbox.autoconfigure.loading import Launch
from rocketbox.autoconfigure.push_listening import check_payloads
from rocketbox.errors import ConfigurationError
from rocketbox.template import MessageConverter
from tests.support.framework.services import ServiceMaker

HEAD = """
from rocketbox import JsonMessageConverter, PayloadError, RocketBox, RocketMQTemplate, bean, rocketmq_listener

app = RocketBox("flight-desk", scan=[__name__])

class Track:  # nothing that pydantic could read
    def __init__(self, points):
        self.points = points

class Desk: ...

class Packed:
    def to_body(self, payload):
        return b",".join(b"%d" % point for point in payload.points)

    def from_body(self, body, type_):
        return Track([int(point) for point in body.split(b",")])

    def check(self, type_):
        if type_ is not Track:
            raise PayloadError(f"no body can be read as {type_.__name__}")
"""

BEAN = """
@bean
def packed() -> Packed:
    return Packed()
"""

LISTENER = """
@rocketmq_listener(topic="tracks", consumer_group="desk")
async def on_track(track: Track) -> None: ...
"""

SETTINGS = "rocketmq: {name-server: ns:9876, producer.group: desk}\n"


def look(module: ModuleType) -> Assembly:
    assembly: Assembly = module.app.look()
    return assembly


def test_a_class_that_ours_cannot_read_is_refused_without_one(service: ServiceMaker) -> None:
    (finding,) = look(service(HEAD + LISTENER, SETTINGS)).findings
    assert "parameter 'track' of type Track, which is neither a payload nor a bean" in finding.what


def test_a_class_that_ours_cannot_read_may_be_a_payload_of_a_converter_of_the_users(service: ServiceMaker) -> None:
    module = service(HEAD + BEAN + LISTENER, SETTINGS)
    assembly = look(module)
    assert assembly.findings == []
    (plan,) = assembly.plans
    assert plan.functions[0].signature.payload is module.Track
    check_payloads(assembly.plans, module.Packed())


def test_the_users_converter_refuses_at_the_start_what_it_cannot_read(service: ServiceMaker) -> None:
    source = (LISTENER + LISTENER.replace("desk", "lake").replace("on_track", "to_lake")).replace(
        "track: Track", "track: Desk"
    )
    module = service(HEAD + BEAN + source, SETTINGS)
    assembly = look(module)
    assert assembly.findings == []
    with pytest.raises(ConfigurationError) as caught:
        check_payloads(assembly.plans, module.Packed())
    first, second = caught.value.findings  # of both listeners, together
    assert first.what == (
        "listener on_track takes a payload in parameter 'track' that cannot be read: no body can be read as Desk"
    )
    assert first.where == f"{module.__name__}.py:26"
    assert first.fix == "take what Packed can read, or return a bean of that type"
    assert second.where == f"{module.__name__}.py:29"


def test_what_looks_like_a_second_payload_is_told_to_be_no_bean(service: ServiceMaker) -> None:
    (finding,) = look(service(HEAD + BEAN + LISTENER.replace("Track)", "Track, desk: Desk)"), SETTINGS)).findings
    assert finding.what == "listener on_track has more than one payload: track: Track and desk: Desk"
    assert "what is to be injected must be a bean" in str(finding.fix)


def test_a_bean_that_was_left_out_is_not_taken_for_a_payload(service: ServiceMaker) -> None:
    source = LISTENER.replace("Track)", "Track, template: RocketMQTemplate)")
    (finding,) = look(service(HEAD + BEAN + source, "rocketmq.name-server: ns:9876\n")).findings
    assert finding.what.startswith("parameter template of listener on_track needs a bean of type RocketMQTemplate")


def test_an_object_that_takes_the_converters_place_is_asked_at_once(service: ServiceMaker) -> None:
    module = service(HEAD + LISTENER.replace("track: Track", "track: dict"), SETTINGS)
    assembly = module.app._look(Launch(beans={MessageConverter: module.Packed()}))
    (finding,) = assembly.findings
    assert finding.what.endswith("cannot be read: no body can be read as dict")
