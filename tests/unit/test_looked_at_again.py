"""An application that is started again in the same process sees what has changed since, whatever is kept of before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from pydantic import BaseModel

from rocketbox import rocketmq_listener
from rocketbox.boot.kept_by_models import KeptByModels
from rocketbox.errors import ConfigurationError
from tests.support.framework.distributions import Install, distribution_maker
from tests.support.framework.services import ServiceMaker

SOURCE = """
from __future__ import annotations
from pydantic import BaseModel
from rocketbox import RocketBox, bean, configuration_properties, rocketmq_listener

app = RocketBox("desk", scan=[__name__])

@configuration_properties("desk")
class DeskProperties(BaseModel):
    threshold: int = 60

class Desk:
    async def take(self, text: str) -> None: ...

@bean
def desk(properties: DeskProperties) -> Desk:
    return Desk()

@rocketmq_listener(topic="departures", consumer_group="desk")
async def on_departure(text: str, desk: Desk) -> None: ...
"""

SETTINGS = """
rocketmq:
  name-server: ns1:9876
  producer: {group: desk}
desk: {threshold: 30}
"""


@pytest.fixture
def desk(service: ServiceMaker) -> ModuleType:
    module = service(SOURCE, SETTINGS)
    module.app.check()
    return module


def test_a_settings_file_that_was_changed_is_read_again(desk: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "rocketbox.yaml"
    file.write_text(SETTINGS.replace("30", "much"))
    with pytest.raises(ConfigurationError, match=r"desk\.threshold"):
        desk.app.check()
    file.write_text(SETTINGS.replace("30", "45"))
    assert desk.app.check().settings.value("desk.threshold") == 45


def test_a_variable_that_was_set_counts(desk: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DESK_THRESHOLD", "7")
    assert desk.app.check().settings.value("desk.threshold") == 7


def test_a_model_that_was_rebuilt_has_its_new_keys(desk: ModuleType, tmp_path: Path) -> None:
    desk.DeskProperties.model_fields["threshold"].annotation = str
    desk.DeskProperties.model_rebuild(force=True)
    (tmp_path / "rocketbox.yaml").write_text(SETTINGS.replace("30", "much"))
    assert desk.app.check().settings.value("desk.threshold") == "much"


def test_another_class_in_the_place_of_a_model_counts(desk: ModuleType) -> None:
    class DeskProperties(BaseModel):
        limit: int = 3

    marks = {name: value for name, value in vars(desk.DeskProperties).items() if "rocketbox" in name}
    for name, value in marks.items():
        setattr(DeskProperties, name, value)
    DeskProperties.__module__ = desk.__name__
    vars(desk)["DeskProperties"] = DeskProperties
    assert "desk.threshold" in str(desk.app.check().warnings)  # nobody knows this key any more


def test_a_listener_that_a_class_was_given_is_found(desk: ModuleType) -> None:
    async def late(self: object, text: str) -> None: ...

    desk.Desk.late = rocketmq_listener(topic="late", consumer_group="late")(late)
    assert {plan.group for plan in desk.app.check().plans} == {"desk", "late"}


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    folder = tmp_path / "installed"
    folder.mkdir()
    yield from distribution_maker(folder, monkeypatch)


def test_a_distribution_that_was_installed_since_is_found(install: Install, desk: ModuleType) -> None:
    bean = "from rocketbox import bean\nclass Audit: ...\n@bean\ndef audit() -> Audit:\n    return Audit()\n"
    install("audit-kit", "audit_kit_of_later", bean)
    assert "audit" in {bean.name for bean in desk.app.check().container.planned.taken}


def test_few_are_kept_and_the_last_ones_longest() -> None:
    kept: KeptByModels[int] = KeptByModels()
    made: list[int] = []

    def of(number: int) -> int:
        def make() -> int:
            made.append(number)
            return number

        return kept.of([], number, make)

    for number in (0, 1, 0, 2, 3, 4, 5, 6, 7, 8, 0, 1):
        assert of(number) == number
    assert made == [0, 1, 2, 3, 4, 5, 6, 7, 8, 1]
