"""Options of an application and of its starts that are given in another form than they are taken."""

from __future__ import annotations

from typing import Any

import pytest

from rocketbox import RocketBox


@pytest.mark.parametrize("option", ["scan", "exclude"])
def test_one_text_where_an_application_takes_several_is_refused(option: str) -> None:
    given: dict[str, Any] = {option: "shop"}
    with pytest.raises(TypeError, match=rf"{option}= takes a list of texts.*write {option}=\[\.\.\.\]"):
        RocketBox("desk", **given)


@pytest.mark.parametrize("option", ["profiles", "arguments"])
def test_one_text_where_a_start_takes_several_is_refused_and_not_shown(option: str) -> None:
    given: dict[str, Any] = {option: "--desk.password=hunter2"}
    with pytest.raises(TypeError, match=rf"{option}= takes a list of texts") as told:
        RocketBox("desk", scan=[__name__]).look(**given)
    assert "hunter2" not in str(told.value)


@pytest.mark.parametrize("option", ["settings", "beans"])
def test_a_list_where_a_start_takes_a_mapping_is_refused(option: str) -> None:
    given: dict[str, Any] = {option: ["desk.limit=3"]}
    with pytest.raises(TypeError, match=f"{option}= takes a mapping, not a list: write {option}="):
        RocketBox("desk", scan=[__name__]).started(**given)
