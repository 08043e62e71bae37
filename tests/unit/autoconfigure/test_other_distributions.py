"""Auto-configurations of other distributions in an application: settings, beans, order, exclusion, commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from pydantic_settings import BaseSettings
from typer.testing import CliRunner

from rocketbox import RocketBox
from rocketbox.autoconfigure import own_beans
from rocketbox.autoconfigure.loading import settings_models
from rocketbox.boot.definitions import Source
from rocketbox.boot.discovery import GROUP
from rocketbox.cli.app import app as cli
from rocketbox.errors import ConfigurationError, Finding
from tests.support.framework.distributions import Install, distribution_maker
from tests.support.framework.services import ServiceMaker

KIT = """
from pydantic import BaseModel
from rocketbox import RocketMQTemplate
from rocketbox.boot.conditions import on_bean, on_missing_bean, on_property
from rocketbox.boot.marks import bean, configuration_properties

@configuration_properties("audit")
class AuditProperties(BaseModel):
    target: str = "here"

class Auditor:
    def __init__(self, target: str) -> None:
        self.target = target

class Ledger: ...

@bean(on_property("audit.target"), on_missing_bean(Auditor))
def auditor(properties: AuditProperties) -> Auditor:
    return Auditor(properties.target)

@bean(on_bean(RocketMQTemplate), after=["rocketmq_template"])
def ledger(template: RocketMQTemplate) -> Ledger:
    return Ledger()
"""

SERVICE = """
from rocketbox import RocketBox, bean
import sys

app = RocketBox("flight-desk", scan=[__name__], exclude=EXCLUDE)
"""

SENDS = "rocketmq: {name-server: ns:9876, producer.group: desk}\n"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    yield from distribution_maker(tmp_path, monkeypatch)


def source(*exclude: str, more: str = "") -> str:
    return SERVICE.replace("EXCLUDE", repr(exclude)) + more


def test_its_settings_are_bound_and_its_beans_are_built_by_their_conditions(
    install: Install, service: ServiceMaker
) -> None:
    install("audit-kit", "audit_kit", KIT, name="audit")
    look = service(source(), SENDS + "audit.target: there\n").app.look()
    assert (look.findings, look.warnings) == ([], [])
    kit = sys.modules["audit_kit"]
    assert look.settings.get("audit") == kit.AuditProperties(target="there")
    assert look.container.has(kit.Auditor)
    assert look.container.has(kit.Ledger)  # considered after the template, although it was found before it
    text = look.container.report.render()
    assert "  auditor  (audit-kit 1.2, " in text
    assert "audit.target is set" in text
    assert "RocketMQTemplate is provided by rocketmq_template" in text


def test_one_that_lies_beside_the_service_and_is_imported_by_it_is_not_missed_in_its_scan(
    install: Install, service: ServiceMaker
) -> None:
    install("audit-kit", "audit_kit", KIT, name="audit")
    uses = (
        SERVICE.replace("EXCLUDE", "()").replace("import sys", "import audit_kit") + "\n@bean\ndef one() -> int: ...\n"
    )
    look = service(uses, SENDS + "audit.target: there\n").app.look()
    assert (look.findings, look.warnings) == ([], [])


def test_what_the_user_has_wins(install: Install, service: ServiceMaker) -> None:
    install("audit-kit", "audit_kit", KIT, name="audit")
    more = "from audit_kit import Auditor\n@bean\ndef mine() -> Auditor:\n    return Auditor('mine')\n"
    look = service(source(more=more), "audit.target: there\n").app.look()
    assert look.findings == []
    (entry,) = [entry for entry in look.container.report.negative if entry.name == "auditor"]
    assert entry.verdicts[0].reason == "Auditor is provided already, by mine"
    assert entry.origin == "audit-kit 1.2"


def test_it_may_come_before_ours_and_take_the_place_of_a_bean(install: Install, service: ServiceMaker) -> None:
    packed = """
from rocketbox import JsonMessageConverter, MessageConverter, bean
from rocketbox.boot.conditions import on_missing_bean

class Packed(JsonMessageConverter): ...

@bean(on_missing_bean(MessageConverter), before=["message_converter"])
def packed() -> Packed:
    return Packed()
"""
    install("pack-kit", "pack_kit", packed)
    look = service(source(), SENDS).app.look()
    (entry,) = [entry for entry in look.container.report.negative if entry.name == "message_converter"]
    assert entry.verdicts[0].reason == "MessageConverter is provided already, by packed"


def test_who_scans_its_package_takes_its_beans_for_their_own(install: Install, service: ServiceMaker) -> None:
    install("audit-kit", "audit_kit", KIT, name="audit")
    module = service(source().replace("[__name__]", "[__name__, 'audit_kit']"), "audit.target: there\n")
    look = module.app.look()
    assert look.findings == []
    assert [bean.name for bean in look.container.planned.taken].count("auditor") == 1


# --- what is wrong with one -------------------------------------------------------------------------------------------


def test_one_that_cannot_be_imported_is_told_with_all_else_that_is_wrong(
    install: Install, service: ServiceMaker
) -> None:
    install("audit-kit", "audit_kit", "raise ValueError('no disk')\n", name="audit")
    findings = service(source("audi"), "rocketmq.name-server: embedded\n").app.look().findings
    assert len(findings) == 2
    assert findings[0].what.startswith("the auto-configuration audit of audit-kit 1.2 cannot be imported: ValueError")
    assert findings[1] == Finding(
        "there is no auto-configuration audi to exclude",
        "RocketBox('flight-desk', exclude=...)",
        "did you mean audit?",
    )


@pytest.mark.parametrize("excluded", [True, False])
def test_entry_points_that_cannot_be_read_are_told_so_too_and_can_be_left_out_by_their_distribution(
    excluded: bool, install: Install, service: ServiceMaker, tmp_path: Path
) -> None:
    install("audit-kit", "audit_kit", KIT, name="audit")
    file = tmp_path / "audit_kit-1.2.dist-info" / "entry_points.txt"
    file.write_text("[rocketbox.autoconfigure]\naudit_kit\n")
    look = service(source(*["audit-kit"] * excluded), SENDS).app.look()
    told = [(entry.name, entry.where) for entry in look.container.report.excluded]
    if excluded:
        assert (look.findings, told) == ([], [("audit-kit", "audit-kit 1.2, entry points")])
    else:
        (finding,) = look.findings
        assert (finding.where, told) == (str(file), [])
        assert finding.what.startswith("the entry points of audit-kit 1.2 cannot be read: ")


@pytest.mark.parametrize(
    ("prefix", "owner", "more"),
    [
        ("rocketmq", "RocketMQProperties", ""),
        ("rocketbox", "RocketBoxProperties", ""),
        (
            "audit",
            "Mine",
            "from pydantic import BaseModel\nfrom rocketbox import configuration_properties\n"
            "@configuration_properties('audit')\nclass Mine(BaseModel): ...\n",
        ),
    ],
)
def test_a_prefix_that_is_taken_is_refused(
    install: Install, service: ServiceMaker, prefix: str, owner: str, more: str
) -> None:
    install("audit-kit", "audit_kit", KIT.replace('"audit"', f'"{prefix}"'), name="audit")
    with pytest.raises(ConfigurationError) as caught:
        service(source(more=more), "").app.look()
    assert caught.value.findings == (
        Finding(
            f"AuditProperties wants the keys of '{prefix}', which {owner} has",
            "audit-kit 1.2, entry point audit = audit_kit",
            "choose another prefix, or set rocketbox.autoconfigure.exclude: audit",
        ),
    )


# --- exclusion --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_settings", [True, False], ids=["settings", "argument"])
@pytest.mark.parametrize("name", ["audit", "audit_kit", "audit-kit"])
def test_one_is_left_out_as_a_whole_without_being_imported(
    install: Install, service: ServiceMaker, name: str, by_settings: bool
) -> None:
    install("audit-kit", "audit_kit", "raise ValueError('imported')\n", name="audit")
    settings = f"rocketbox.autoconfigure.exclude: {name}\n" if by_settings else ""
    look = service(source(*([] if by_settings else [name])), settings).app.look()
    assert look.findings == []
    assert [(entry.name, entry.where) for entry in look.container.report.excluded] == [
        ("audit", "audit-kit 1.2, entry point audit = audit_kit")
    ]
    assert "audit_kit" not in sys.modules


def test_wrong_settings_elsewhere_do_not_undo_an_exclusion(install: Install, service: ServiceMaker) -> None:
    install("audit-kit", "audit_kit", "raise ValueError('imported')\n", name="audit")
    module = service(
        source(), "rocketbox: {autoconfigure.exclude: [audit], embedded.port: x}\nrocketmq.name-server: ${NOBODY}\n"
    )
    with pytest.raises(ConfigurationError) as caught:
        module.app.look()
    assert [finding.what.partition(" ")[0] for finding in caught.value.findings] == [
        "rocketmq.name-server",
        "rocketbox.embedded.port",
    ]


@pytest.mark.parametrize("name", ["auditor", "audit_kit.auditor"])
def test_one_of_its_beans_is_left_out_by_name(install: Install, service: ServiceMaker, name: str) -> None:
    install("audit-kit", "audit_kit", KIT, name="audit")
    more = """
from audit_kit import Auditor
class Desk: ...
@bean
def desk(auditor: Auditor) -> Desk:
    return Desk()
"""
    settings = f"audit.target: there\nrocketbox.autoconfigure.exclude: [{name}]\n"
    module = service(source(more=more), settings)
    look = module.app.look()
    assert [(entry.name, entry.origin) for entry in look.container.report.excluded] == [("auditor", "audit-kit 1.2")]
    (finding,) = look.findings
    assert finding.what == (
        "parameter auditor of bean desk needs a bean of type Auditor, and there is none: auditor was not built because "
        f"{name} is excluded (rocketbox.yaml:2:34)"
    )
    assert finding.fix == f"do not exclude {name}"


@pytest.mark.parametrize("name", ["rocketbox.autoconfigure.rocketmq", "rocketmq_template"])
def test_ours_are_left_out_by_module_or_name_and_nothing_is_warned_of(service: ServiceMaker, name: str) -> None:
    look = service(source(name), SENDS).app.look()
    assert (look.findings, look.warnings) == ([], [])
    names = {entry.name for entry in look.container.report.excluded}
    assert "rocketmq_template" in names
    assert ("producer" in names) is (name != "rocketmq_template")


@pytest.mark.parametrize(
    ("written", "fix"),
    [
        ("rocketmq_templat", "did you mean rocketmq_template?"),
        ("audit_kt", "did you mean audit_kit?"),
        (
            "nothing-like-it",
            "there are: embedded_servers, awaited_servers, message_converter, client_instance, client_instances, "
            "producer, rocketmq_template, blocking_rocketmq_template, pull_consumer_options, needed_topics, "
            "needed_topics_health, "
            "transaction_listeners, push_listeners, spark_listeners, event_loop_health, embedded_servers_health, "
            "clients_health, listeners_health, background_work_health, auditor, ledger, embedded, rocketmq, topics, "
            "transaction_listening, push_listening, spark_listening, health, audit",
        ),
    ],
)
def test_a_name_that_excludes_nothing_is_refused(
    install: Install, service: ServiceMaker, written: str, fix: str
) -> None:
    install("audit-kit", "audit_kit", KIT, name="audit")
    look = service(source(), f"rocketbox.autoconfigure.exclude: [{written}]\n").app.look()
    assert look.findings == [
        Finding(f"there is no auto-configuration {written} to exclude", "rocketbox.yaml:1:34", fix)
    ]


# --- commands ---------------------------------------------------------------------------------------------------------


def test_commands_know_it(install: Install, service: ServiceMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    install("audit-kit", "audit_kit", KIT, name="audit")
    install("broken-kit", "broken_kit", "raise ValueError\n", name="broken")
    settings = "audit.target: there\nrocketbox.autoconfigure.exclude: [broken-kit, ledger]\n"
    target = f"{service(source(), settings).__name__}:app"
    outputs = {}
    for command in ("conditions", "config", "schema"):
        result = CliRunner().invoke(cli, [command, target])
        assert result.exit_code == 0, result.output
        outputs[command] = result.output
    assert "  auditor  (audit-kit 1.2, " in outputs["conditions"]
    excluded = outputs["conditions"].partition("Excluded:\n")[2]
    assert "  broken  (broken-kit 1.2, entry point broken = broken_kit)" in excluded
    assert "  ledger  (audit-kit 1.2, " in excluded
    assert "target: there" in outputs["config"]
    assert json.loads(outputs["schema"])["properties"]["audit"]


def test_one_root_of_settings_is_made_though_others_are_left_out_by_them(
    service: ServiceMaker, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("audit-kit", "audit_kit", KIT, name="audit")
    made = []
    init = BaseSettings.__init__

    def counted(self: BaseSettings, *args: Any, **kwargs: Any) -> None:
        made.append(type(self))
        init(self, *args, **kwargs)

    monkeypatch.setattr(BaseSettings, "__init__", counted)
    settings = "rocketbox: {profiles.active: '${P:prod}', autoconfigure.exclude: '${NOBODY:audit}, other'}\n" + SENDS
    module = service(SERVICE.replace("EXCLUDE", "()"), settings)
    assembly = module.app.look()
    assert len(made) == 1
    assert "audit_kit" not in sys.modules
    assert assembly.settings.profiles == ("prod",)


# --- ours come in the same way ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_settings", [True, False], ids=["settings", "argument"])
@pytest.mark.parametrize("name", ["rocketmq", "rocketbox.autoconfigure.rocketmq"])
def test_one_of_ours_is_left_out_as_a_whole_by_the_names_that_those_of_others_have(
    service: ServiceMaker, name: str, by_settings: bool
) -> None:
    settings = SENDS + (f"rocketbox.autoconfigure.exclude: {name}\n" if by_settings else "")
    look = service(source(*([] if by_settings else [name])), settings).app.look()
    assert look.findings == []
    names = {entry.name for entry in look.container.report.excluded}
    assert {"client_instance", "producer", "rocketmq_template"} <= names
    assert "needed_topics" not in names, "of another module"


def test_all_of_ours_are_left_out_by_the_name_of_the_distribution(service: ServiceMaker) -> None:
    look = service(source("rocketbox"), SENDS).app.look()
    assert look.findings == []
    assert not [bean for bean in look.container.planned.taken if bean.source is Source.AUTO]


def test_who_misses_one_that_was_left_out_is_told_which_name_did_it(service: ServiceMaker) -> None:
    more = """
from rocketbox import RocketMQTemplate
class Desk: ...
@bean
def desk(template: RocketMQTemplate) -> Desk:
    return Desk()
"""
    look = service(source("rocketmq", more=more), SENDS).app.look()
    (finding,) = look.findings
    assert "rocketmq_template was not built because rocketmq is excluded" in finding.what
    assert finding.fix == "do not exclude rocketmq"


def test_one_of_ours_that_cannot_be_loaded_is_told_as_that_of_another(
    service: ServiceMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = EntryPoint("gone", "rocketbox.autoconfigure.gone", GROUP)
    monkeypatch.setattr(own_beans, "OWN", (*own_beans.OWN, broken))
    (finding,) = service(source(), SENDS).app.look().findings
    assert finding.what == (
        "the auto-configuration gone of rocketbox cannot be imported: ModuleNotFoundError: "
        "No module named 'rocketbox.autoconfigure.gone'"
    )


def test_a_bean_may_come_before_all_of_a_bundle(install: Install, service: ServiceMaker) -> None:
    early = """
from rocketbox import JsonMessageConverter, MessageConverter, bean

class Packed(JsonMessageConverter): ...

@bean(before=["rocketmq"])
def packed() -> Packed:
    return Packed()
"""
    install("pack-kit", "pack_kit", early)
    look = service(source(), SENDS).app.look()
    (entry,) = [entry for entry in look.container.report.negative if entry.name == "message_converter"]
    assert entry.verdicts[0].reason == "MessageConverter is provided already, by packed"


def test_our_own_settings_come_as_those_of_others_do() -> None:
    ours = own_beans.own_autoconfigurations()
    brought = {prefix: model for each in ours for prefix, model in each.properties.items()}
    assert settings_models(()) == brought
    assert brought.keys() == {"rocketmq", "rocketbox"}


def test_our_module_of_settings_is_nothing_that_can_be_excluded() -> None:
    app = RocketBox("desk", scan=[], exclude=["properties"])
    (finding,) = app.look().findings
    assert finding.what == "there is no auto-configuration properties to exclude"
