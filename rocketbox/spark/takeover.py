"""Whether a driver that has got the lease may go on from its checkpoint.

Where a group stands on the brokers is what some driver has done: it is mirrored from the checkpoint of who read last.
A checkpoint that ends before that belongs to somebody who did not read last, such as a replica with a folder of its
own; from it messages would be delivered again, under another query's id. One that has begun behind where its group
stood (a back-fill) is ahead of nobody: how far that was is in it.
"""

from __future__ import annotations

from collections.abc import Mapping

from rocketbox.errors import ConfigurationError, Finding
from rocketbox.message import MessageQueue
from rocketbox.spark.checkpoint import QueueProgress

__all__ = ["not_shared"]


def not_shared(
    checkpoint: str,
    group: str,
    where: str,
    *,
    end: Mapping[MessageQueue, QueueProgress] | None,
    committed: Mapping[MessageQueue, int | None],
    took_over: bool,
) -> ConfigurationError | None:
    """Why a driver must not go on from its checkpoint; None: it may.

    ``end`` is where the last batch ends that the checkpoint knows (None: it is new), ``committed`` where the group
    stands. A new checkpoint is right for the first driver, not for one that has taken over from another. Queues that it
    does not know were away when its batches were planned, or are new: the group may have read them before.
    """
    known = {queue: progress.known for queue, progress in (end or {}).items()}
    judged = committed if end is None or took_over else committed.keys() & known.keys()
    beyond = {queue: offset for queue in judged if (offset := committed[queue]) and offset > known.get(queue, 0)}
    if not beyond or (end is None and not took_over):
        return None
    queue, offset = min(beyond.items())
    ends = "it is empty" if end is None else f"it ends at {end[queue].next if queue in end else 0} there"
    return ConfigurationError(
        Finding(
            f"the checkpoint is not shared: group {group} has read {queue.topic} {queue.broker_name}/{queue.queue_id} "
            f"up to {offset}, which {checkpoint} does not know ({ends}); from it messages would come again",
            where,
            "give all replicas one checkpoint on a file system that they share (checkpoint=); if the group was moved "
            "on by hand, begin with a new checkpoint: it goes on where the group stands",
        )
    )
