"""How `make soak ARGS=kinds` sees that a table has grown."""

from __future__ import annotations

from rocketbox.client.waiting_requests import WaitingRequest
from rocketbox.storage.memory_storage import MemoryStorage
from tests.soak.tables import grown, sizes


def test_a_table_that_keeps_what_went_through_is_named_by_its_path() -> None:
    disk = MemoryStorage()
    roots = {"broker": [{"disk": disk}]}
    before = sizes(roots)
    for number in range(20):
        disk.open(f"/{number}", create=True)
    assert grown(before, sizes(roots), 10)["broker[][]._files"] == (0, 20)
    assert grown(before, sizes(roots), 20) == {}


def test_tables_of_objects_with_slots_are_found_and_an_object_that_holds_itself_ends() -> None:
    waiting = WaitingRequest.__new__(WaitingRequest)
    waiting.group = "desk"
    waiting.outcome = None
    holder: dict[str, object] = {"one": waiting}
    holder["itself"] = holder
    assert sizes({"client": holder}) == {"client": 2}
