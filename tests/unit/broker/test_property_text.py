"""Single properties in the text of all."""

from __future__ import annotations

import pytest

from rocketbox.broker.property_text import add_property, find_property, remove_properties, set_property

TEXT = b"TAGS\x01A\x02KEYS\x01k1 k2\x02MYTAGS\x01no\x02"


@pytest.mark.parametrize(("name", "value"), [(b"TAGS", b"A"), (b"KEYS", b"k1 k2"), (b"MYTAGS", b"no"), (b"AGS", None)])
def test_a_property_is_found_by_its_whole_name(name: bytes, value: bytes | None) -> None:
    assert find_property(TEXT, name) == value
    assert find_property(TEXT[:-1], name) == value  # old clients leave the last separator out


def test_adding_closes_the_last_property_first() -> None:
    assert add_property(b"A\x011", b"B", b"2") == b"A\x011\x02B\x012\x02"
    assert add_property(b"", b"B", b"2") == b"B\x012\x02"


def test_removing_leaves_the_rest_as_it_was() -> None:
    assert remove_properties(TEXT, (b"TAGS",)) == b"KEYS\x01k1 k2\x02MYTAGS\x01no\x02"
    assert remove_properties(b"TAGS\x01A", (b"TAGS",)) == b""


def test_setting_replaces() -> None:
    assert set_property(TEXT, b"TAGS", b"B") == b"KEYS\x01k1 k2\x02MYTAGS\x01no\x02TAGS\x01B\x02"
    assert find_property(set_property(TEXT, b"NEW", b"1"), b"NEW") == b"1"
