"""pydantic-settings merges our sources: its own mechanism decides which wins, once for a start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from rocketbox.boot.root_settings import RootSettings
from tests.support.framework.settings_models import load


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Vault(PydanticBaseSettingsSource):
    """A source as pydantic-settings has many, which knows nothing of ours."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        raise AssertionError("nobody asks for a field")

    def __call__(self) -> dict[str, Any]:
        return {"desk": {"threshold-minutes": 99, "levels": {"vault": "${WHICH:open}"}}}


Sources = tuple[PydanticBaseSettingsSource, ...]


class VaultFirst(RootSettings):
    @classmethod
    def settings_customise_sources(cls, settings_cls: type[BaseSettings], *args: Any, **kwargs: Any) -> Sources:
        return (Vault(settings_cls), *super().settings_customise_sources(settings_cls))


class VaultLast(RootSettings):
    @classmethod
    def settings_customise_sources(cls, settings_cls: type[BaseSettings], *args: Any, **kwargs: Any) -> Sources:
        return (*super().settings_customise_sources(settings_cls), Vault(settings_cls))


class LowestFirst(RootSettings):
    @classmethod
    def settings_customise_sources(cls, settings_cls: type[BaseSettings], *args: Any, **kwargs: Any) -> Sources:
        return super().settings_customise_sources(settings_cls)[::-1]


class Nothing(RootSettings):
    @classmethod
    def settings_customise_sources(cls, settings_cls: type[BaseSettings], *args: Any, **kwargs: Any) -> Sources:
        return ()


FILE = "desk: {threshold-minutes: 1, levels: {a: x}}\n"
ARGUMENTS = ["--desk.threshold-minutes=2"]


def test_a_source_that_is_put_in_front_wins_and_is_merged_key_by_key() -> None:
    settings = load(FILE, {"WHICH": "shut"}, arguments=ARGUMENTS, root=VaultFirst)
    assert settings.get("desk").threshold_minutes == 99
    assert settings.get("desk").levels == {"a": "x", "vault": "shut"}
    assert [each.text for each in settings.explain("desk.threshold-minutes")] == ["99", "2", "1"]
    assert str(settings.origin("desk.threshold-minutes")) == "Vault"
    assert str(settings.origin("desk.levels.a")) == "rocketbox.yaml:1:42"


def test_a_source_that_is_put_last_gives_only_what_no_other_says() -> None:
    desk = load(FILE, arguments=ARGUMENTS, root=VaultLast).get("desk")
    assert (desk.threshold_minutes, desk.levels) == (2, {"a": "x", "vault": "open"})


def test_the_order_that_pydantic_settings_is_given_decides() -> None:
    assert load(FILE, arguments=ARGUMENTS).get("desk").threshold_minutes == 2
    assert load(FILE, arguments=ARGUMENTS, root=LowestFirst).get("desk").threshold_minutes == 1


def test_what_pydantic_settings_is_not_given_holds_nowhere() -> None:
    settings = load(FILE, arguments=ARGUMENTS, root=Nothing)
    assert settings.get("desk").threshold_minutes == 60
    assert not settings.has("desk")
    assert settings.text("desk.threshold-minutes") is None


def test_one_root_is_made_for_all_files_profiles_and_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    init = BaseSettings.__init__

    def counted(self: BaseSettings, *args: Any, **kwargs: Any) -> None:
        made.append(type(self))
        init(self, *args, **kwargs)

    monkeypatch.setattr(BaseSettings, "__init__", counted)
    Path("rocketbox-prod.yaml").write_text("desk: {threshold-minutes: 3}\n")
    Path("shared.yaml").write_text("desk: {threshold-minutes: 4}\n")
    text = "rocketbox: {profiles.active: '${P:prod}', config.import: shared.yaml}\n" + FILE
    settings = load(text, arguments=["--desk.ratio=0.5"])
    assert (settings.profiles, settings.get("desk").threshold_minutes) == (("prod",), 4)
    assert len(made) == 1
