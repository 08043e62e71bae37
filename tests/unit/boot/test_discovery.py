"""Auto-configurations of other distributions, found by entry points of distributions that are really there."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Iterator
from importlib.metadata import Distribution, DistributionFinder
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


POINTS = "[rocketbox.autoconfigure]\n{} = json\n"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    yield from distribution_maker(tmp_path, monkeypatch)


def put(folder: Path, name: str, metadata: str | None, points: str | None = None) -> Path:
    """A dist-info of that name."""
    info = folder / name
    info.mkdir(parents=True)
    if metadata is not None:
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\n{metadata}\n")
    if points is not None:
        (info / "entry_points.txt").write_text(points)
    importlib.invalidate_caches()
    return info


def found_points() -> list[str]:
    return [found.name for found in discover_autoconfigurations()]


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


# --- what is installed is found as importlib.metadata finds it -----------------------------------------------------


@pytest.mark.parametrize("metadata", [None, "Version: 1.0", "Name:\nVersion: 1.0"])
def test_one_whose_metadata_has_no_name_is_found_beside_others_by_the_name_of_its_folder(
    metadata: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path / "behind"))
    monkeypatch.syspath_prepend(str(tmp_path / "before"))
    put(tmp_path / "before", "good-1.0.dist-info", "Name: good\nVersion: 1.0", POINTS.format("good"))
    put(tmp_path / "behind", "broken_off-1.0.dist-info", metadata, POINTS.format("half"))
    version = "" if metadata is None else " 1.0"
    assert [(found.name, found.origin) for found in discover_autoconfigurations()] == [
        ("half", f"broken_off{version}"),
        ("good", "good 1.0"),
    ]
    excluded = [found.name for found in discover_autoconfigurations(["broken_off"]) if found.excluded]
    assert excluded == ["half"]


def test_of_two_of_one_name_with_a_dash_the_first_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, version in (("behind", "1.0"), ("before", "2.0")):
        metadata = f"Name: audit-kit\nVersion: {version}"
        put(tmp_path / folder, f"audit-kit-{version}.dist-info", metadata, POINTS.format(folder))
        monkeypatch.syspath_prepend(str(tmp_path / folder))
    assert found_points() == ["before"]


def test_entry_points_that_are_put_into_what_was_looked_at_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    bare = put(tmp_path, "bare-1.0.dist-info", "Name: bare\nVersion: 1.0")
    begun = put(tmp_path, "begun-1.0.dist-info", None)
    scripts = put(
        tmp_path, "scripts-1.0.dist-info", "Name: scripts\nVersion: 1.0", "[console_scripts]\na = json:dump\n"
    )
    long_ago = 1_000_000_000
    for path in (*tmp_path.rglob("*"), tmp_path):
        os.utime(path, (long_ago, long_ago))
    assert found_points() == []
    for info, point in ((bare, "first"), (begun, "second"), (scripts, "third")):
        (info / "entry_points.txt").write_text(POINTS.format(point))
        assert point in found_points()
    assert tmp_path.stat().st_mtime == long_ago, "the folder itself has not changed"


def test_what_comes_right_after_a_look_is_seen_where_times_of_files_are_coarse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    info = put(tmp_path, "kit-1.0.dist-info", "Name: kit\nVersion: 1.0")
    now = info.stat()
    assert found_points() == []
    (info / "entry_points.txt").write_text(POINTS.format("late"))
    os.utime(info, ns=(now.st_atime_ns, now.st_mtime_ns))
    assert found_points() == ["late"]


def test_a_folder_that_was_deleted_while_it_is_the_working_directory_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert discover_autoconfigurations() == []


def test_a_folder_may_leave_the_path_while_it_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Meanwhile(DistributionFinder):
        """As another thread may: takes the folder away while its distributions are asked for."""

        def find_distributions(
            self,
            context: DistributionFinder.Context = DistributionFinder.Context(),  # noqa: B008 - as its base has it
        ) -> list[Distribution]:
            if str(tmp_path) in sys.path:
                sys.path.remove(str(tmp_path))
            return []

    put(tmp_path, "kit-1.0.dist-info", "Name: kit\nVersion: 1.0", POINTS.format("it"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Meanwhile()])
    assert found_points() == ["it"]
    assert found_points() == []


class Leaving(str):
    """A folder of the path. While one thread forgets it, another one puts a new folder on the path, looks, and ends."""

    __slots__ = ()

    def __hash__(self) -> int:
        if self not in sys.path and threading.current_thread() is threading.main_thread():
            sys.path.append(f"{self} and come")
            other = threading.Thread(target=discover_autoconfigurations)
            other.start()
            other.join()
        return super().__hash__()


def test_two_threads_may_look_at_once_when_a_folder_has_left_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = list(sys.path)
    monkeypatch.setattr(sys, "path", [Leaving(tmp_path / "gone"), *path])
    assert found_points() == []
    put(tmp_path, "kit-1.0.dist-info", "Name: kit\nVersion: 1.0", POINTS.format("it"))
    sys.path[:] = [str(tmp_path), *path]
    assert found_points() == ["it"]


# --- entry points that cannot be read -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"[rocketbox.autoconfigure]\naudit\n", "TypeError: " if sys.version_info < (3, 14) else ""),
        (b"[rocketbox.autoconfigure]\n# \xfcber\naudit = json\n", "UnicodeDecodeError: 'utf-8' codec can't decode"),
    ],
)
def test_broken_entry_points_of_the_group_are_a_finding_that_names_the_file(
    text: bytes, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    info = put(tmp_path, "kit-1.0.dist-info", "Name: kit\nVersion: 1.0")
    (info / "entry_points.txt").write_bytes(text)
    (found,) = discover_autoconfigurations()
    assert found.problem is not None
    assert found.problem.what.startswith(f"the entry points of kit 1.0 cannot be read: {why}")
    assert found.problem.where == str(info / "entry_points.txt")
    assert found.problem.fix == "mend the file, update or remove kit, or set rocketbox.autoconfigure.exclude: kit"
    (found,) = discover_autoconfigurations(["kit"])
    assert (found.excluded, found.problem, found.where) == (True, None, "kit 1.0, entry points")


@pytest.mark.parametrize("text", [b"[console_scripts]\nbroken line\n", b"[console_scripts]\n# \xfcber\n"])
def test_broken_entry_points_of_other_groups_are_nobodys_business(
    text: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    info = put(tmp_path, "foreign-1.0.dist-info", "Name: foreign\nVersion: 1.0")
    (info / "entry_points.txt").write_bytes(text)
    put(tmp_path, "kit-1.0.dist-info", "Name: kit\nVersion: 1.0", POINTS.format("ours"))
    assert found_points() == ["ours"]
