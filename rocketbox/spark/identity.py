"""Whether a queue is still the one that a checkpoint was made of.

Each offset goes with its witness, the last message before it (``checkpoint``). Before a process goes on from an offset
it pulls that message again: another one there is another store. Store time and place in the commit log are compared;
both are the same on a master, its replicas, and whoever is made master among them. What cannot be known (no witness,
or one that was deleted, or whose record is damaged) is not compared.
"""

from __future__ import annotations

from datetime import UTC, datetime

from rocketbox.client import Admin
from rocketbox.clock import Clock
from rocketbox.message import MessageQueue
from rocketbox.spark.checkpoint import RESET, CheckpointError, QueueProgress, StreamOffset, Witness
from rocketbox.spark.looking import look_at
from rocketbox.spark.loss import DELETED_BY_NOW, SETTLE, SETTLE_PAUSE
from rocketbox.spark.offsets import in_words
from rocketbox.spark.selection import Selection
from rocketbox.spark.starting import Places, text_of

__all__ = ["another_store", "changed_options", "check_ownership", "difference", "witness_before"]


async def witness_before(admin: Admin, queue: MessageQueue, offset: int) -> Witness | None:
    """The witness of an offset; None when there is no message before it (any more)."""
    if offset == 0:
        return None
    result = await look_at(admin, queue, offset - 1)
    for message in result.messages if result is not None else ():
        if message.queue_offset == offset - 1:
            return Witness(message.store_timestamp_ms, message.commit_log_offset)
    return None


async def difference(admin: Admin, queue: MessageQueue, progress: QueueProgress, clock: Clock) -> str | None:
    """What is otherwise in the queue than it was; None when nothing is, or nothing can be known.

    A queue that ends before the offset is asked for some seconds: a broker that has just started fills it still. One
    that should hold the message, and does not, is asked for longer: a broker that deletes says so a little later. Where
    it ends is what its master says, for a replica may be behind; raises ClientError where there is none.
    """
    if progress.next == 0:
        return None
    last = progress.next - 1
    since = clock.monotonic()
    while True:
        if (result := await look_at(admin, queue, last)) is None:
            return None
        for message in result.messages:
            if message.queue_offset == last:
                found = Witness(message.store_timestamp_ms, message.commit_log_offset)
                if progress.witness in (None, found):
                    return None
                return f"its message {last} was {in_time(progress.witness)}, and the one there is {in_time(found)}"
        if result.min_offset > last:
            return None  # deleted meanwhile
        waited = clock.monotonic() - since
        if result.max_offset < progress.next:
            if waited >= SETTLE and (end := await admin.max_offset(queue)) < progress.next:
                return f"it was read up to offset {progress.next}, and the queue ends at {end}"
        elif progress.witness is None:
            return None
        elif waited >= DELETED_BY_NOW:
            return (
                f"its message {last} was {in_time(progress.witness)}, and none is there, although the queue holds "
                f"{result.min_offset} to {result.max_offset}"
            )
        await clock.sleep(SETTLE_PAUSE)


def in_time(witness: Witness | None) -> str:
    assert witness is not None
    stored = datetime.fromtimestamp(witness.stored_ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")
    return f"stored at {stored} at {witness.log_offset} of the commit log"


def another_store(differences: dict[MessageQueue, str], name_server: str) -> CheckpointError:
    """The error for queues that are not those of the checkpoint; there is at least one."""
    told = [f"{in_words(queue)}: {text}" for queue, text in sorted(differences.items())][:3]
    more = f" (and {len(differences) - 3} queues more)" if len(differences) > 3 else ""
    return CheckpointError(
        f"the checkpoint is not of what name server {name_server} leads to: {'; '.join(told)}{more}. Either it is "
        "another cluster, or the topic or the store was made anew, or the broker has lost its last messages. Nothing "
        "was read, since messages would be skipped. Let the name server be that of the checkpoint, or begin with "
        f"another checkpoint ({RESET})"
    )


def check_ownership(
    offset: StreamOffset, selection: Selection, group: str | None, namespace: str | None = None
) -> None:
    """Raise CheckpointError when a checkpoint belongs to another group or namespace, or to other topics, than a query
    reads.
    """
    if offset.group is not None and offset.group != group:
        asked = "has no group" if group is None else f"is of group {group!r}"
        raise CheckpointError(
            f"the checkpoint belongs to group {offset.group!r}, and the query {asked}: each group needs a checkpoint "
            f"of its own ({RESET})"
        )
    if not offset.initial and offset.namespace != namespace:
        its = "no namespace" if offset.namespace is None else f"namespace {offset.namespace!r}"
        asked = "in none" if namespace is None else f"in {namespace!r}"
        raise CheckpointError(
            f"the checkpoint is of topics in {its}, and the query reads {asked}, where topics of these names are "
            f"others: each namespace needs a checkpoint of its own ({RESET})"
        )
    if left_out := sorted(queue for queue in offset.queues if not selection.has(queue)):
        names = map(in_words, left_out[:3]) if selection.assigned else sorted({f"topic {q.topic}" for q in left_out})
        raise CheckpointError(
            f"the checkpoint holds offsets of {', '.join(names)}, and the query reads {selection}: what it leaves out "
            "would never be gone on with. Name it again, or begin with another checkpoint: with "
            f"startingOffsets=group it goes on where the group stands ({RESET})"
        )


def changed_options(
    offset: StreamOffset, start: Places, tags: str, names: tuple[str, str] = ("startingOffsets", "tags")
) -> list[str]:
    """In sentences, what becomes of options that are others than those which a checkpoint was made with.

    ``names`` are those by which the two are said. None of them loses or doubles a message that the query was to read;
    but who has changed one may expect otherwise.
    """
    changes = []
    if offset.start is not None and (said := text_of(start)) != offset.start:
        changes.append(
            f"{names[0]} is {_shortened(said)} now, and is not used: the query of this checkpoint began with "
            f"{_shortened(offset.start)}, and goes on where it stands; so does a queue that appears later. To read "
            f"from another place, begin with another checkpoint ({RESET})"
        )
    if offset.tags is not None and offset.tags != tags:
        changes.append(
            f"{names[1]} is {_shortened(tags)} from the next batch on, and was {_shortened(offset.tags)} so far: what "
            f"that filter has left out is not read any more. To read it, begin with another checkpoint ({RESET})"
        )
    return changes


def _shortened(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:100]}..."
