"""Profiles: which files are theirs, in either spelling, and which profiles are known to settings files."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketbox.boot.root_settings import load_settings
from rocketbox.boot.settings_file import find_settings_file
from rocketbox.errors import ConfigurationError
from tests.support.framework.settings_models import MODELS, load, refused


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", ["rocketbox.yml", "config/rocketbox.yml", "beside/rocketbox.yml"])
def test_a_settings_file_may_end_in_yml(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("desk: {threshold-minutes: 7}\n")
    found = find_settings_file(environ={}, beside=tmp_path / "beside" / "desk.py")
    assert found == file


def test_two_spellings_of_one_file_are_refused_together() -> None:
    Path("rocketbox.yaml").write_text("")
    Path("rocketbox.yml").write_text("")
    with pytest.raises(ConfigurationError) as caught:
        find_settings_file(environ={})
    (finding,) = caught.value.findings
    assert finding.what == "there are rocketbox.yaml and rocketbox.yml, and only one of them can count"
    assert find_settings_file("rocketbox.yml", environ={}) == Path.cwd() / "rocketbox.yml"  # who names one has chosen


@pytest.mark.parametrize("main", ["rocketbox.yml", "rocketbox.yaml"])
@pytest.mark.parametrize("beside", ["rocketbox-prod.yml", "rocketbox-prod.yaml"])
def test_the_file_of_a_profile_may_end_in_either_way(main: str, beside: str) -> None:
    Path(main).write_text("desk: {threshold-minutes: 1}\n")
    Path(beside).write_text("desk: {threshold-minutes: 2}\n")
    settings = load_settings(MODELS, file=Path(main), environ={}, profiles=["prod"])
    assert settings.value("desk.threshold-minutes") == 2
    assert settings.files == (Path(main), Path(beside))


def test_two_spellings_of_the_file_of_a_profile_are_refused_together() -> None:
    Path("rocketbox-prod.yaml").write_text("")
    Path("rocketbox-prod.yml").write_text("")
    (finding,) = refused("", profiles=["prod"])
    assert finding.startswith("there are rocketbox-prod.yaml and rocketbox-prod.yml, and only one of them can count")


def test_a_profile_is_known_by_a_document_a_file_or_a_group_and_the_default() -> None:
    Path("rocketbox-eu.yml").write_text("")
    Path("shared.yaml").write_text("desk: {}\n---\nrocketbox.config.activate.on-profile: lake\n")
    Path("shared-night.yaml").write_text("")
    text = (
        "rocketbox:\n  profiles: {default: dev, group: {prod: [cluster]}}\n  config.import: shared.yaml\n"
        "---\nrocketbox.config.activate.on-profile: 'cluster & !quiet, us'\n"
    )
    told = load(text, profiles=["dev", "prod", "eu", "us", "quiet", "lake", "night"]).asked_profiles
    assert told.unknown(()) == []


def test_a_profile_that_nobody_knows_is_told_with_the_one_that_may_be_meant() -> None:
    text = "a: 1\n---\nrocketbox.config.activate.on-profile: prod\n"
    (finding,) = load(text, profiles=["prdo"]).asked_profiles.unknown(())
    assert finding.what == "profile prdo is asked for, and no file, document, group or condition knows it"
    assert finding.where == "--profile"
    assert (finding.fix or "").startswith("did you mean prod? known are prod; ")
    assert load(text, profiles=["prdo"]).asked_profiles.unknown(["prdo"]) == []  # a condition knows it


@pytest.mark.parametrize(
    ("text", "options", "where"),
    [
        ("rocketbox.profiles.active: prdo\n", {}, "rocketbox.yaml:1:28"),
        ("", {"environ": {"ROCKETBOX_PROFILES_ACTIVE": "prdo"}}, "environment variable ROCKETBOX_PROFILES_ACTIVE"),
        ("", {"arguments": ["--rocketbox.profiles.active=prdo"]}, "argument --rocketbox.profiles.active"),
        ("rocketbox.profiles.group.prod: [prdo]\n", {"profiles": ["prod"]}, "rocketbox.yaml:1:32"),
    ],
)
def test_an_unknown_profile_is_told_with_the_place_that_names_it(
    text: str, options: dict[str, object], where: str
) -> None:
    (finding,) = load(text, **options).asked_profiles.unknown(())  # type: ignore[arg-type]
    assert finding.where == where


@pytest.mark.parametrize("text", ["", "rocketbox.profiles.default: dev\n", "rocketbox.profiles.active: []\n"])
def test_what_is_active_because_none_was_asked_for_need_not_be_known(text: str) -> None:
    assert load(text).asked_profiles.asked == {}


def test_a_group_without_members_makes_a_profile_known() -> None:
    assert load("rocketbox.profiles.group.prod: []\n", profiles=["prod"]).asked_profiles.unknown(()) == []


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        ("prod | eu", "a name has a space in it"),
        ("prod|eu", "'|' is no part of a profile's name"),
        ("(prod)", "'(' is no part of a profile's name"),
        ("prod && eu", "a name is missing"),
        ("prod & ", "a name is missing"),
        ("prod,, eu", "it names no profile"),
        ("!!prod", "'!' is no part of a profile's name"),
        ("prod or eu", "a name has a space in it"),
        ("${PROFILE}", "'{' is no part of a profile's name"),
        ("", "it names no profile"),
    ],
)
def test_an_expression_that_is_none_is_refused_and_drops_no_settings_in_silence(written: str, fault: str) -> None:
    text = f"desk: {{}}\n---\nrocketbox.config.activate.on-profile: '{written}'\ndesk: {{threshold-minutes: 7}}\n"
    (finding,) = refused(text)
    assert finding.startswith(f"rocketbox.config.activate.on-profile is {written!r}: {fault}")
    assert "rocketbox.yaml:3:39" in finding
    assert "write a profile, !prod, or prod & eu for both; several with commas where one of them is enough" in finding


@pytest.mark.parametrize("nothing", ["", "[]", "~", "{}"])
def test_a_document_for_no_profile_is_refused_and_does_not_count_for_all(nothing: str) -> None:
    text = f"---\nrocketbox.config.activate.on-profile: {nothing}\ndesk: {{threshold-minutes: 7}}\n"
    (finding,) = refused(text)
    assert finding.startswith("rocketbox.config.activate.on-profile is '': it names no profile")
