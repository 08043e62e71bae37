"""Topics of a consumer group that brokers make when it consumes, and which a query in Spark has to make itself.

Its retry topic, although nothing is sent there: Apache's tools ask that one's brokers for the group's offsets. And its
dead-letter topic. Both have one queue, as brokers make them.

Source: Apache RocketMQ 5.x ``ClientManageProcessor`` (what is made), ``DefaultMQAdminExtImpl.examineConsumeStats``
(what tools ask).
"""

from __future__ import annotations

from collections.abc import Collection

from rocketbox.client import Admin

__all__ = ["make_group_topic"]

QUEUES = 1


async def make_group_topic(admin: Admin, topic: str, brokers: Collection[str]) -> None:
    """Make a topic on those of the brokers that do not have it, whichever clusters they are of.

    Raises what the client raises.
    """
    missing = set(brokers) - (await admin.queues_on_brokers(topic)).keys()
    if not missing:
        return
    for cluster, names in (await admin.cluster()).clusters.items():
        if here := missing.intersection(names):
            await admin.create_topic(topic, queues=QUEUES, cluster=cluster, brokers=here)
