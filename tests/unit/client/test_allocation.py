"""The allocation strategies against vectors computed by Apache RocketMQ's own classes (5.5.0 and 4.9.7)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rocketbox.client.allocation import (
    AllocationStrategy,
    allocate_averagely,
    allocate_averagely_by_circle,
    allocate_by_config,
    allocate_by_machine_room,
    allocate_consistent_hash,
    allocate_machine_room_nearby,
    sort_client_ids,
)
from rocketbox.message import MessageQueue

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parents[2] / "data" / "allocations.json").read_text())
QUEUES = [MessageQueue("T", "broker-a", number) for number in range(4)]


def queue_of(text: str) -> MessageQueue:
    topic, broker_name, queue_id = text.split("/")
    return MessageQueue(topic, broker_name, int(queue_id))


def room(name: str) -> str:
    return name.split("-", 1)[0]


def strategy_of(vector: dict[str, Any]) -> AllocationStrategy:
    def nearby(inner: AllocationStrategy) -> AllocationStrategy:
        return allocate_machine_room_nearby(inner, lambda queue: room(queue.broker_name), room)

    match vector["strategy"]:
        case "AVG":
            return allocate_averagely
        case "AVG_BY_CIRCLE":
            return allocate_averagely_by_circle
        case "MACHINE_ROOM":
            return allocate_by_machine_room(vector["rooms"])
        case "CONSISTENT_HASH":
            return allocate_consistent_hash(vector.get("virtualNodes", 10))
        case "MACHINE_ROOM_NEARBY-AVG":
            return nearby(allocate_averagely)
        case "MACHINE_ROOM_NEARBY-AVG_BY_CIRCLE":
            return nearby(allocate_averagely_by_circle)
        case other:
            raise AssertionError(f"no strategy {other}")


def test_all_vectors_are_there() -> None:
    assert len(VECTORS) == 51


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: f"{v['strategy']}-{len(v['queues'])}q-{len(v['cids'])}c")
def test_allocation_equals_apache(vector: dict[str, Any]) -> None:
    queues = [queue_of(text) for text in vector["queues"]]
    allocate = strategy_of(vector)
    result = [
        [queues.index(queue) for queue in allocate(client_id, queues, vector["cids"])] for client_id in vector["cids"]
    ]
    assert result == vector["result"]


@pytest.mark.parametrize(
    "allocate",
    [
        allocate_averagely,
        allocate_averagely_by_circle,
        allocate_by_machine_room(["r1"]),
        allocate_consistent_hash(),
        allocate_machine_room_nearby(allocate_averagely, lambda queue: queue.broker_name, lambda client: "r"),
    ],
)
def test_a_stranger_gets_nothing_and_empty_input_is_refused(allocate: AllocationStrategy) -> None:
    assert allocate("stranger", QUEUES, ["a", "b"]) == []
    for client_id, queues, client_ids in (("", QUEUES, ["a"]), ("a", [], ["a"]), ("a", QUEUES, [])):
        with pytest.raises(ValueError, match=r"client id|queues"):
            allocate(client_id, queues, client_ids)


def test_config_gives_its_own_list_whatever_the_group_is() -> None:
    allocate = allocate_by_config(QUEUES[:2])
    assert allocate("a", QUEUES, ["b"]) == QUEUES[:2]
    assert allocate("", [], []) == QUEUES[:2]


def test_a_room_without_a_name_is_refused() -> None:
    allocate = allocate_machine_room_nearby(allocate_averagely, lambda queue: "", lambda client: "r")
    with pytest.raises(ValueError, match="machine room"):
        allocate("a", QUEUES, ["a"])


def test_client_ids_are_sorted_as_java_sorts_them() -> None:
    beyond_the_bmp, end_of_the_bmp = "\U0001f600", "\uffff"  # Java's surrogates d83d.. sort before ffff
    assert sort_client_ids([end_of_the_bmp, beyond_the_bmp, "a"]) == ["a", beyond_the_bmp, end_of_the_bmp]
