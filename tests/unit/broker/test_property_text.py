"""Single properties in the text of all."""

from __future__ import annotations

import pytest

from rocketbox.broker.property_text import add_property, find_property, remove_properties, set_property

TEXT = "TAGS\x01A\x02KEYS\x01k1 k2\x02MYTAGS\x01no\x02"


@pytest.mark.parametrize(("name", "value"), [("TAGS", "A"), ("KEYS", "k1 k2"), ("MYTAGS", "no"), ("AGS", None)])
def test_a_property_is_found_by_its_whole_name(name: str, value: str | None) -> None:
    assert find_property(TEXT, name) == value
    assert find_property(TEXT[:-1], name) == value  # old clients leave the last separator out


def test_adding_closes_the_last_property_first() -> None:
    assert add_property("A\x011", "B", "2") == "A\x011\x02B\x012\x02"
    assert add_property("", "B", "2") == "B\x012\x02"


def test_removing_leaves_the_rest_as_it_was() -> None:
    assert remove_properties(TEXT, ("TAGS",)) == "KEYS\x01k1 k2\x02MYTAGS\x01no\x02"
    assert remove_properties("TAGS\x01A", ("TAGS",)) == ""


def test_setting_replaces() -> None:
    assert set_property(TEXT, "TAGS", "B") == "KEYS\x01k1 k2\x02MYTAGS\x01no\x02TAGS\x01B\x02"
    assert find_property(set_property(TEXT, "NEW", "1"), "NEW") == "1"
