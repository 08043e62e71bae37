"""Which queues of a topic a member of a consumer group takes: allocation strategies, as functions.

Every member works out the same answer from the same sorted lists of queues and client ids, without talking to the
others. How queues change hands is in ``assignment``.

Source: Apache RocketMQ 5.x ``AllocateMessageQueueAveragely``, ``...AveragelyByCircle``,
``...ByConfig``, ``...ByMachineRoom``, ``AllocateMachineRoomNearby``, ``...ConsistentHash``, ``ConsistentHashRouter``
(the same in 4.9.7).
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from rocketbox.message import MessageQueue
from rocketbox.protocol.namespaces import Namespace

__all__ = [
    "AllocationStrategy",
    "allocate_averagely",
    "allocate_averagely_by_circle",
    "allocate_by_config",
    "allocate_by_machine_room",
    "allocate_consistent_hash",
    "allocate_machine_room_nearby",
    "sort_client_ids",
]

AllocationStrategy = Callable[[str, Sequence[MessageQueue], Sequence[str]], Sequence[MessageQueue]]
"""``(own client id, all queues sorted, all client ids sorted) -> own queues``; all members must use the same one."""

VIRTUAL_NODES = 10  # of each client on the ring of the consistent hash, Apache's default


def sort_client_ids(client_ids: Iterable[str]) -> list[str]:
    """The ids in the order of Java's String: by UTF-16 code units, so that mixed groups agree."""
    return sorted(client_ids, key=lambda client_id: client_id.encode("utf-16-be", "surrogatepass"))


def _own_index(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> int | None:
    """Where client_id stands among client_ids, None when it does not. Raises ValueError when any of them is empty."""
    if not client_id:
        raise ValueError("the own client id is empty")
    if not queues:
        raise ValueError("there are no queues to allocate")
    if not client_ids:
        raise ValueError("there are no client ids to allocate to")
    try:
        return client_ids.index(client_id)
    except ValueError:
        return None  # the broker does not know this member yet; the next round will


def allocate_averagely(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
    """Neighbouring queues in equal parts, the first members one more (Apache's ``AVG``, the default)."""
    index = _own_index(client_id, queues, client_ids)
    if index is None:
        return []
    size, larger = divmod(len(queues), len(client_ids))
    start = index * size + min(index, larger)
    return list(queues[start : start + size + (index < larger)])


def allocate_averagely_by_circle(
    client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> list[MessageQueue]:
    """Queues dealt out like cards (Apache's ``AVG_BY_CIRCLE``)."""
    index = _own_index(client_id, queues, client_ids)
    return [] if index is None else list(queues[index :: len(client_ids)])


def allocate_by_config(queues: Sequence[MessageQueue]) -> AllocationStrategy:
    """A strategy that always gives these queues (Apache's ``CONFIG``)."""
    fixed = list(queues)

    def allocate(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        return list(fixed)

    return allocate


def allocate_by_machine_room(rooms: Iterable[str]) -> AllocationStrategy:
    """A strategy over the queues of brokers named ``room@name`` with one of ``rooms`` (Apache's ``MACHINE_ROOM``).

    Queues of other brokers are given to nobody.
    """
    allowed = frozenset(rooms)

    def in_room(queue: MessageQueue) -> bool:
        parts = queue.broker_name.split("@")
        return len(parts) == 2 and parts[0] in allowed

    def allocate(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        index = _own_index(client_id, queues, client_ids)
        if index is None:
            return []
        local = [queue for queue in queues if in_room(queue)]
        size, larger = divmod(len(local), len(client_ids))
        own = local[index * size : (index + 1) * size]
        if index < larger:
            own.append(local[index + size * len(client_ids)])
        return own

    return allocate


def allocate_machine_room_nearby(
    inner: AllocationStrategy,
    room_of_queue: Callable[[MessageQueue], str],
    room_of_client: Callable[[str], str],
) -> AllocationStrategy:
    """A strategy that shares a room's queues among its own clients by ``inner`` (``MACHINE_ROOM_NEARBY-<inner>``).

    Queues of a room without clients are shared among all clients. Raises ValueError for a queue or client with an
    empty room.
    """

    def named(room: str, what: object) -> str:
        if not room:
            raise ValueError(f"{what} has no machine room")
        return room

    def allocate(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        if _own_index(client_id, queues, client_ids) is None:
            return []
        queues_of: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            queues_of.setdefault(named(room_of_queue(queue), queue), []).append(queue)
        clients_of: dict[str, list[str]] = {}
        for member in client_ids:
            clients_of.setdefault(named(room_of_client(member), member), []).append(member)
        own_room = room_of_client(client_id)
        own: list[MessageQueue] = []
        if local := queues_of.pop(own_room, None):
            own.extend(inner(client_id, local, clients_of[own_room]))
        for room in sorted(queues_of):
            if room not in clients_of:
                own.extend(inner(client_id, queues_of[room], client_ids))
        return own

    return allocate


def _ring_position(key: str) -> int:
    return int.from_bytes(hashlib.md5(key.encode(), usedforsecurity=False).digest()[:4], "big")


def allocate_consistent_hash(virtual_nodes: int = VIRTUAL_NODES, *, namespace: str = "") -> AllocationStrategy:
    """A strategy that moves few queues when members come and go (Apache's ``CONSISTENT_HASH``).

    ``namespace`` is that of the client (V1), and needed only where a group has members of Java's client as well: they
    hash names with it, and would share the queues in another way.
    """
    wrap = Namespace(namespace).wrap
    if virtual_nodes < 1:
        raise ValueError(f"virtual_nodes is {virtual_nodes}; at least 1 is needed")

    def allocate(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        if _own_index(client_id, queues, client_ids) is None:
            return []
        ring: dict[int, str] = {}
        for member in client_ids:
            for number in range(virtual_nodes):
                ring[_ring_position(f"{member}-{number}")] = (
                    member  # of two at one place the later one stays, as in Java
                )
        positions = sorted(ring)
        own = []
        for queue in queues:
            key = f"MessageQueue [topic={wrap(queue.topic)}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"
            place = bisect_left(positions, _ring_position(key))
            if ring[positions[place % len(positions)]] == client_id:
                own.append(queue)
        return own

    return allocate
