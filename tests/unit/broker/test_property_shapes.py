"""Keys found by the names of a property text are those that a search for each name finds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketbox.broker.property_shapes import MOST_SHAPES, PropertyShapes
from rocketbox.broker.property_text import find_property
from rocketbox.broker.store.records import find_keys

NAMES = [b"TAGS", b"KEYS", b"UNIQ_KEY", b"WAIT", b"DELAY", b"TIMER_DELAY_SEC", b"color", b""]
PIECES = [*NAMES, b"\x01", b"\x02", b"\x01\x02", b"false", b"true", b"v 1", b"\xc3\xa9", b"\0"]
SPECIAL = frozenset({b"DELAY"})


def shapes() -> PropertyShapes:
    return PropertyShapes(SPECIAL, (b"TIMER_",))


@given(st.lists(st.sampled_from(PIECES), max_size=24))
def test_of_any_text_they_are_what_a_search_finds_or_it_is_not_ordinary(pieces: list[bytes]) -> None:
    text = b"".join(pieces)
    found = shapes().keys_of(text)
    if found is not None:
        assert text.endswith(b"\x02")
        assert found == find_keys(text)
        assert found[2] is not None
        assert find_property(text, b"WAIT") != b"false"
        assert find_property(text, b"DELAY") is None
        assert find_property(text, b"TIMER_DELAY_SEC") is None


@given(
    st.lists(
        st.tuples(st.sampled_from([b"TAGS", b"KEYS", b"WAIT", b"color", b"size"]), st.binary(max_size=9)), max_size=6
    )
)
def test_every_whole_text_without_a_special_name_is_ordinary(pairs: list[tuple[bytes, bytes]]) -> None:
    clean = [(name, value.replace(b"\x01", b"").replace(b"\x02", b"")) for name, value in pairs]
    text = b"".join(b"%b\x01%b\x02" % pair for pair in [*clean, (b"UNIQ_KEY", b"ABC")])
    if find_property(text, b"WAIT") != b"false":
        assert shapes().keys_of(text) == find_keys(text)


@pytest.mark.parametrize(
    "text",
    [b"", b"UNIQ_KEY\x01A", b"UNIQ_KEY\x01\x02", b"a\x01b\x01TAGS\x01c\x02UNIQ_KEY\x01A\x02", b"TAGS\x01a\x02",
     b"UNIQ_KEY\x01A\x02WAIT\x01false\x02", b"UNIQ_KEY\x01A\x02DELAY\x01\x02", b"UNIQ_KEY\x01A\x02TIMER_X\x011\x02"],
)  # fmt: skip
def test_these_are_not_ordinary(text: bytes) -> None:
    assert shapes().keys_of(text) is None


def test_names_that_are_of_each_message_another_are_not_kept_for_ever() -> None:
    known = shapes()
    for number in range(3 * MOST_SHAPES):
        assert known.keys_of(b"n%d\x011\x02UNIQ_KEY\x01A\x02" % number) == (None, None, b"A")
    assert len(known._places) <= MOST_SHAPES
    text = b"n" * 5000 + b"\x011\x02UNIQ_KEY\x01A\x02"
    assert known.keys_of(text) == (None, None, b"A")
    assert all(len(names[0]) < 5000 for names in known._places)
