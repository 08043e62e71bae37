"""Objects of a type are counted whatever else a test before has left in this process."""

from __future__ import annotations

import weakref

from tests.support.living_objects import living


class Kept:
    pass


class Other(Kept):
    pass


def test_objects_of_a_type_are_found_beside_a_proxy_whose_object_has_gone() -> None:
    left = [weakref.proxy(gone := Kept(), lambda _: None)]  # with a callback the collector follows it
    kept, other = Kept(), Other()
    del gone
    assert len(left) == 1
    assert living(Kept) == [kept]
    assert set(living(Other, Kept)) == {kept, other}
