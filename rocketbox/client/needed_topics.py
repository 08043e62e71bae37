"""Topics that a program needs: whether they are there, in what they differ, and making those that are not.

A topic that is there is never changed: fewer queues would hide messages, and who changed it had a reason. Queues and
permission are asked of the name server, which any user may do; order and attributes only where somebody says them, of
the brokers, which may want an administrator.

Source: Apache RocketMQ 5.x ``DefaultMQAdminExt.createAndUpdateTopicConfig`` (what is made).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rocketbox.client.admin import Admin
from rocketbox.client.options import TopicOptions, TopicPermission
from rocketbox.clock import Clock
from rocketbox.protocol.codes import PermName
from rocketbox.protocol.registration_bodies import TopicConfig

__all__ = ["Difference", "TopicState", "find_topic", "make_topic", "until_in_route"]

QUEUES = 8  # mqadmin's
READ_WRITE = PermName.READ | PermName.WRITE
_PERMISSIONS: Mapping[TopicPermission, PermName] = {
    TopicPermission.READ_WRITE: READ_WRITE,
    TopicPermission.READ: PermName.READ,
    TopicPermission.WRITE: PermName.WRITE,
}
ROUTE_PAUSE = 0.05  # seconds between two looks for the route of a topic that was just made


@dataclass(frozen=True)
class Difference:
    """What a broker has otherwise than it is needed; ``option`` is its name in TopicOptions."""

    broker: str
    option: str
    needed: str
    found: str


@dataclass(frozen=True)
class TopicState:
    """The brokers that do not have a topic, and what is otherwise on those that do."""

    missing: tuple[str, ...]
    differences: tuple[Difference, ...]


async def find_topic(admin: Admin, name: str, needed: TopicOptions) -> TopicState:
    """How a topic is found on the masters of its cluster; raises what Admin raises."""
    masters = await admin.masters(needed.cluster)
    if needed.order is None and not needed.attributes:
        in_route = await admin.queues_on_brokers(name)
        found = {
            broker: TopicConfig(name, queues.read_queue_nums, queues.write_queue_nums, queues.perm)
            for broker, queues in in_route.items()
        }
    else:
        descriptions = {each.name: each for each in await admin.topics(cluster=needed.cluster)}
        plain = admin.namespace.unwrap(name)
        found = dict(descriptions[plain].brokers) if plain in descriptions else {}
    return TopicState(
        missing=tuple(broker for broker in masters if broker not in found),
        differences=tuple(
            difference
            for broker in masters
            if broker in found
            for difference in _differences(broker, found[broker], needed)
        ),
    )


def _differences(broker: str, found: TopicConfig, needed: TopicOptions) -> Iterator[Difference]:
    if needed.queues is not None and (found.read_queue_nums, found.write_queue_nums) != (needed.queues,) * 2:
        read, write = found.read_queue_nums, found.write_queue_nums
        queues = str(read) if read == write else f"{read} to read, {write} to write"
        yield Difference(broker, "queues", str(needed.queues), queues)
    if needed.perm is not None and found.perm & READ_WRITE != _PERMISSIONS[needed.perm]:
        known = {int(code): permission.value for permission, code in _PERMISSIONS.items()}
        yield Difference(broker, "perm", needed.perm.value, known.get(found.perm & READ_WRITE, "none"))
    if needed.order is not None and found.order is not needed.order:
        yield Difference(broker, "order", _text(needed.order), _text(found.order))
    for attribute, value in (needed.attributes or {}).items():
        if found.attributes.get(attribute) != value:
            yield Difference(broker, f"attributes.{attribute}", value, found.attributes.get(attribute, "not set"))


def _text(value: Any) -> str:
    return str(value).lower()


async def make_topic(admin: Admin, name: str, needed: TopicOptions, brokers: Collection[str]) -> None:
    """Make a topic on these brokers, which do not have it; raises BrokerError when one of them refuses."""
    await admin.create_topic(
        name,
        queues=QUEUES if needed.queues is None else needed.queues,
        perm=_PERMISSIONS[needed.perm or TopicPermission.READ_WRITE],
        order=bool(needed.order),
        attributes=needed.attributes,
        cluster=needed.cluster,
        brokers=brokers,
    )


async def until_in_route(admin: Admin, name: str, brokers: Collection[str], clock: Clock, timeout: float) -> bool:
    """Return when the name server knows a topic on all of these brokers, which tell it by themselves; False after
    ``timeout`` seconds."""
    known = False
    with clock.move_on_after(timeout):
        while not (known := set(brokers) <= (await admin.queues_on_brokers(name)).keys()):
            await clock.sleep(ROUTE_PAUSE)
    return known
