"""Profiles that somebody asked for: refused when nobody knows them; a warning where they run the embedded servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketbox.errors import ConfigurationError
from tests.support.framework.services import ServiceMaker

SOURCE = """
from rocketbox import RocketBox, any_of, bean, not_, on_profile, on_property

app = RocketBox("desk", scan=[__name__])

class Desk: ...

@bean(any_of(on_property("desk.open"), not_(on_profile("!prod"))))
def desk() -> Desk:
    return Desk()
"""
EMBEDDED = "rocketmq: {name-server: embedded, producer: {group: desk}}\n"
WARNING = "the embedded servers run under profile prod: nothing that profile says names another name server"


def test_a_profile_that_nobody_knows_is_refused(service: ServiceMaker) -> None:
    module = service(SOURCE, EMBEDDED)
    with pytest.raises(ConfigurationError) as caught:
        module.app.check(profiles=["prdo"])
    (finding,) = caught.value.findings
    assert finding.what == "profile prdo is asked for, and no file, document, group or condition knows it"
    assert "did you mean prod?" in (finding.fix or "")


def test_a_profile_that_only_a_condition_knows_is_not_refused(service: ServiceMaker) -> None:
    assert service(SOURCE, EMBEDDED).app.check(profiles=["prod"]).settings.profiles == ("prod",)


def test_embedded_servers_under_a_profile_somebody_asked_for_are_a_warning(service: ServiceMaker) -> None:
    module = service(SOURCE, EMBEDDED)
    (warning,) = module.app.check(profiles=["prod"]).warnings
    assert (warning.what, warning.where) == (WARNING, "--profile")
    assert module.app.check().warnings == []


@pytest.mark.parametrize(
    ("settings", "arguments"),
    [
        (EMBEDDED, ("--rocketmq.name-server=embedded",)),
        ("---\nrocketbox.config.activate.on-profile: prod\n" + EMBEDDED, ()),
        ("rocketmq: {enabled: false, name-server: embedded, producer: {group: desk}}\n", ()),
        ("rocketmq: {name-server: 'ns:9876', producer: {group: desk}}\n", ()),
    ],
)
def test_embedded_servers_that_the_profile_or_the_start_wants_are_no_warning(
    service: ServiceMaker, settings: str, arguments: tuple[str, ...]
) -> None:
    assert service(SOURCE, settings).app.check(profiles=["prod"], arguments=arguments).warnings == []


def test_embedded_servers_that_the_file_of_the_profile_wants_are_no_warning(
    service: ServiceMaker, tmp_path: Path
) -> None:
    (tmp_path / "rocketbox-prod.yml").write_text(EMBEDDED)
    assert service(SOURCE, EMBEDDED).app.check(profiles=["prod"]).warnings == []


@pytest.mark.parametrize(
    ("name_server", "fix"),
    [
        ("tcp://ns1:9876", "write ns1:9876, without what stands before it"),
        ("rocketmq://ns1:9876;ns2:9876", "write ns1:9876, without what stands before it"),
        ("embeded", "did you mean embedded? else write host:port"),
        ("localhost", "write host:port"),
    ],
)
def test_a_name_server_that_is_no_address_is_refused_with_what_to_write(
    service: ServiceMaker, name_server: str, fix: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        service(SOURCE, f"rocketmq: {{name-server: '{name_server}'}}\n").app.check()
    (finding,) = caught.value.findings
    assert finding.what == f"rocketmq.name-server: name server '{name_server.partition(';')[0]}' is no address"
    assert (finding.fix or "").startswith(fix)
