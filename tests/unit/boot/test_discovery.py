"""Auto-configurations of other distributions, found by entry points of distributions that are really there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketbox.boot.beans import BeanContainer
from rocketbox.boot.discovery import discover_autoconfigurations
from rocketbox.boot.root_settings import load_settings
from rocketbox.clock import RealClock
from tests.support.framework.distributions import Install, distribution_maker

BEANS = """
from pydantic import BaseModel
from rocketbox.boot.conditions import on_property
from rocketbox.boot.marks import bean, configuration_properties

@configuration_properties("audit")
class AuditProperties(BaseModel):
    target: str = "here"

class Auditor:
    def __init__(self, target: str) -> None:
        self.target = target

@bean(on_property("audit.target"))
def auditor(properties: AuditProperties) -> Auditor:
    return Auditor(properties.target)
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    yield from distribution_maker(tmp_path, monkeypatch)


def test_a_module_brings_its_beans_and_settings_with_its_distribution(install: Install) -> None:
    install("audit-kit", "audit_kit_a", BEANS, name="audit")
    (found,) = discover_autoconfigurations()
    assert [target.__name__ for target in found.beans] == ["auditor"]
    assert list(found.properties) == ["audit"]
    assert (found.name, found.origin, found.problem) == ("audit", "audit-kit 1.2", None)
    assert found.where == "audit-kit 1.2, entry point audit = audit_kit_a"


@pytest.mark.parametrize("written", ["there", None])
def test_what_it_brings_can_be_planned_like_our_own(install: Install, written: str | None) -> None:
    install("audit-kit", "audit_kit_b", BEANS)
    (found,) = discover_autoconfigurations()
    settings = load_settings(dict(found.properties), environ={"AUDIT_TARGET": written} if written else {})
    container = BeanContainer(settings, RealClock())
    container.add_models(settings.models)
    for target in found.beans:
        container.add(target, automatic=True)
    assert container.plan() == []
    taken = [entry.name for entry in container.report.positive]
    assert taken == (["auditor"] if written else [])


def test_a_distribution_that_comes_or_goes_between_two_looks_is_seen(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert discover_autoconfigurations() == []
    install("audit-kit", "audit_kit_later", BEANS, name="audit")
    assert [found.name for found in discover_autoconfigurations()] == ["audit"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["" if each == str(tmp_path) else each for each in sys.path])
    assert [found.name for found in discover_autoconfigurations()] == ["audit"]
    monkeypatch.chdir(tmp_path.parent)
    assert discover_autoconfigurations() == []


@pytest.mark.parametrize("other", ["audit_kit_other", None])
def test_of_two_of_one_name_the_one_that_is_imported_counts(
    other: str | None, install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("audit-kit", "audit_kit_behind", BEANS, name="behind")
    info = tmp_path / "before" / "audit_kit-2.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: audit-kit\nVersion: 2.0\n")
    if other is not None:
        (tmp_path / "before" / f"{other}.py").write_text(BEANS)
        (info / "entry_points.txt").write_text(f"[rocketbox.autoconfigure]\nbefore = {other}\n")
    monkeypatch.syspath_prepend(str(tmp_path / "before"))
    found = [(each.name, each.origin) for each in discover_autoconfigurations()]
    assert found == ([] if other is None else [("before", "audit-kit 2.0")])
    sys.modules.pop("audit_kit_other", None)


def test_a_module_that_ends_the_process_when_it_is_imported_is_told_and_can_be_left_out(install: Install) -> None:
    install("audit-kit", "audit_kit_ending", "import sys\n\nsys.exit(7)\n", name="audit")
    (found,) = discover_autoconfigurations()
    assert found.problem is not None
    assert "audit of audit-kit 1.2 cannot be imported: SystemExit: 7 (" in found.problem.what
    assert "audit_kit_ending.py:3)" in found.problem.what
    assert "rocketbox.autoconfigure.exclude: audit" in str(found.problem.fix)


def test_an_entry_point_may_name_one_function(install: Install) -> None:
    install("audit-kit", "audit_kit_c", BEANS, "audit_kit_c:auditor")
    (found,) = discover_autoconfigurations()
    assert [target.__name__ for target in found.beans] == ["auditor"]
    assert found.properties == {}


@pytest.mark.parametrize(
    ("source", "target", "what"),
    [
        (
            None,
            None,
            "cannot be imported: ModuleNotFoundError: No module named 'audit_kit_d'",
        ),
        (
            "import json\n\nraise ValueError('no disk')\n",
            None,
            "cannot be imported: ValueError: no disk (FOLDER/audit_kit_d.py:3)",
        ),
        (
            BEANS,
            "audit_kit_d:nothing",
            "cannot be imported: AttributeError: module 'audit_kit_d' has no attribute 'nothing'",
        ),
        ("from json import dumps\n", None, "has no @bean and no @configuration_properties"),
        (
            "from rocketbox.errors import *\nraise ConfigurationError(Finding('audit-kit needs a licence'))\n",
            None,
            "cannot be used: audit-kit needs a licence",
        ),
    ],
)
def test_a_broken_one_is_a_finding_that_names_its_distribution(
    install: Install, tmp_path: Path, source: str | None, target: str | None, what: str
) -> None:
    install("audit-kit", "audit_kit_d", source, target, name="audit")
    (found,) = discover_autoconfigurations()
    assert found.beans == ()
    assert str(found.problem).replace(str(tmp_path), "FOLDER") == (
        f"the auto-configuration audit of audit-kit 1.2 {what}\n"
        f"    where: audit-kit 1.2, entry point audit = {target or 'audit_kit_d'}\n"
        "    fix:   update or remove audit-kit, or set rocketbox.autoconfigure.exclude: audit"
    )


def test_they_come_in_the_order_of_their_distributions(install: Install) -> None:
    install("b-kit", "audit_kit_e", BEANS)
    install("a-kit", "audit_kit_f", BEANS)
    assert [found.origin for found in discover_autoconfigurations()] == ["a-kit 1.2", "b-kit 1.2"]


@pytest.mark.parametrize("excluded", ["audit", "audit_kit_g", "audit-kit"])
def test_an_excluded_one_is_not_even_imported(install: Install, excluded: str) -> None:
    install("audit-kit", "audit_kit_g", "raise ValueError('imported')\n", name="audit")
    (found,) = discover_autoconfigurations([excluded])
    assert (found.excluded, found.beans, found.properties) == (True, (), {})
    assert "audit_kit_g" not in sys.modules


def test_without_any_there_is_nothing() -> None:
    assert discover_autoconfigurations() == []
