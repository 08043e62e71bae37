"""The kinds of faults that a Spark listener lives through, each a function of a ``World`` and how often it happens.

Moments are the seed's as far as that goes: what runs at that moment is the machine's. Each kind sends, makes its
faults while a driver reads, and ends when all that was sent is in the sink, or says what is wrong.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest import mock

from tests.chaos.spark_driver import Driver
from tests.chaos.spark_world import FIRST_ROWS, MORE_ROWS, TOPIC, Place, World
from tests.support.broker.broker_process import BrokerProcess
from tests.support.process_tree import end_at_once
from tests.support.spark.standalone import rows_in
from tests.support.spark.topics import Broker, BrokerBeside

__all__ = ["KINDS", "Kind", "soon_deleted", "told_as_gone"]

SLOWEST_START = 8.0  # seconds of a driver's start in which it may be killed
PLANNERS = 3  # kills of the process that plans batches: each ends the query, which pauses longer each time
MOST_TRIES = 4  # for a fault that must fall into a batch


@dataclass(frozen=True)
class Kind:
    """``faults`` of it happen by default."""

    title: str
    faults: int
    run: Callable[[World, int], None]


# --- processes that end ----------------------------------------------------------------------------------------------


def kill_drivers(world: World, kills: int) -> None:
    """While it starts, somewhere in a batch, or behind a write; with its Java process or without it."""

    def starts(driver: Driver) -> None:
        world.pause(SLOWEST_START)

    def is_in_a_batch(driver: Driver) -> None:
        driver.wait_for_another("begins", than=0)
        world.pause(0.5)

    def has_written(driver: Driver) -> None:
        driver.wait_for(lambda: driver.count("written"), "a batch was written")
        world.pause(0.2)

    with BrokerProcess(world.folder / "store") as broker:
        world.send(broker.name_server, FIRST_ROWS)
        for _ in range(kills):
            world.send(broker.name_server)
            driver = world.start(broker.name_server)
            world.chance.choice((starts, is_in_a_batch, has_written))(driver)
            driver.kill(java=world.chance.random() < 0.5)
            world.fault()
        world.finish(world.start(broker.name_server))


def kill_between_write_and_commit(world: World, kills: int) -> None:
    """The batch comes again, under the same number, and is found in the sink."""
    batch, again = 0, -1
    with BrokerProcess(world.folder / "store") as broker:
        for number in range(kills + 1):
            world.send(broker.name_server, 2 * MORE_ROWS)
            if number == kills:
                driver = world.start(broker.name_server)
                world.wait_until_there(driver)
            else:
                batch += world.chance.randrange(2)
                driver = world.start(broker.name_server, die_behind=batch)
                driver.process.wait()
                if world.chance.random() < 0.5:
                    driver.clear_away()  # else its Java process ends by itself
                world.fault()
            notes = driver.notes
            if number and ["written", again, False] not in notes:
                world.wrong.append(f"batch {again} was written and not committed, and did not come again: {notes[:4]}")
            again, batch = batch, batch + 1
        world.finish(driver)


def kill_workers(world: World, kills: int) -> None:
    """Spark tries their tasks again; where it was the process that plans batches, the query begins again."""
    planners = 0
    with BrokerProcess(world.folder / "store") as broker:
        world.send(broker.name_server, FIRST_ROWS)
        driver = world.start(broker.name_server)
        for _ in range(MOST_TRIES * kills):
            if world.faults == kills:
                break
            world.send_and_meet(driver, broker.name_server)
            found = driver.workers()
            victims = [each for each, command in found.items() if planners < PLANNERS or "streaming" not in command]
            if victims:
                victim = world.chance.choice(sorted(victims))
                planners += "streaming" in found[victim]
                if end_at_once(victim):
                    world.fault()
        if world.faults < kills:
            world.wrong.append(f"{world.faults} workers were met, not {kills}")
        world.seen.append(f"{planners} of them planned batches")
        world.finish(driver)


def kill_java(world: World, kills: int) -> None:
    """The service goes on in a new one."""
    with BrokerProcess(world.folder / "store") as broker:
        world.send(broker.name_server, FIRST_ROWS)
        driver = world.start(broker.name_server)
        for _ in range(kills):
            world.send_and_meet(driver, broker.name_server, 1.0)
            runs = driver.count("is", "running")
            for java in driver.java():
                end_at_once(java)
            world.fault()
            driver.wait_for_another("is", "running", than=runs)
        world.finish(driver)


def replace_replicas(world: World, kills: int) -> None:
    """A replica stands by, and takes over: from one that was killed, and in the end from one that stops in order."""
    with BrokerProcess(world.folder / "store") as broker:
        world.send(broker.name_server, FIRST_ROWS)
        driver = world.start(broker.name_server)
        driver.wait_for(lambda: driver.count("written"), "a batch was written")
        for number in range(kills + 1):
            other = world.start(broker.name_server)
            other.wait_for_another("is", "standing by", than=0)
            world.send_and_meet(driver, broker.name_server)
            if other.count("begins"):
                world.wrong.append("two replicas read at the same time")
            ends_by_kill = number < kills
            if ends_by_kill:
                driver.kill(java=world.chance.random() < 0.5)
                world.fault()
            else:
                driver.stop()
            began = time.monotonic()
            world.send(broker.name_server)
            other.wait_for_another("begins", than=0)
            how = "a kill" if ends_by_kill else "a stop"
            world.seen.append(f"{time.monotonic() - began:.0f} s from {how} to the next batch")
            driver = other
        world.finish(driver)


# --- brokers and topics ----------------------------------------------------------------------------------------------


def restart_the_broker(world: World, restarts: int) -> None:
    """Killed or stopped while a batch runs, and away for up to five seconds."""
    with ExitStack() as stack:
        broker = stack.enter_context(BrokerProcess(world.folder / "store"))
        ports = [
            f"--{name}={address.rpartition(':')[2]}"
            for name, address in (("name-server-port", broker.name_server), ("port", broker.broker))
        ]
        world.send(broker.name_server, FIRST_ROWS)
        driver = world.start(broker.name_server)
        tries = 0
        while world.faults < restarts and tries < MOST_TRIES * restarts:
            tries += 1
            world.send_and_meet(driver, broker.name_server, 0.3)
            if world.chance.random() < 0.5:
                broker.kill()
            else:
                broker.stop()
            if driver.count("begins") > driver.count("written"):
                world.fault()
            world.pause(5.0)
            broker = stack.enter_context(BrokerProcess(world.folder / "store", *ports))
        if world.faults < restarts:
            world.wrong.append(f"of {tries} restarts of the broker {world.faults} fell into a batch")
        world.finish(driver)


def change_the_queues(world: World, changes: int) -> None:
    """From 4 queues to 16, 2 to write to, 2, and 8; again and again."""
    steps = ((16, 16), (16, 2), (2, 2), (8, 8))
    with Broker(world.folder / "store") as broker:
        world.send(broker.name_server, FIRST_ROWS)
        driver = world.start(broker.name_server)
        for number in range(changes):
            reads, writes = steps[number % len(steps)]
            world.send(broker.name_server)
            if reads < 16 and reads == writes:
                world.wait_until_there(driver)  # what is in queues that nobody can read from is lost to all
            else:
                world.pause(1.0)
            broker.set_queues(TOPIC, reads, writes)
            world.fault()
            world.send(broker.name_server)
        world.finish(driver)


def lose_a_broker(world: World, absences: int) -> None:
    """One of two brokers is away: what the other one has is delivered meanwhile, and nothing is passed over."""
    with Broker(world.folder / "store a") as broker, ExitStack() as stack:

        def beside() -> BrokerBeside:
            return stack.enter_context(BrokerBeside(world.folder / "store b", "broker-b", broker.name_server))

        other = beside()
        broker.ask(lambda admin: admin.create_topic(TOPIC, queues=4))
        world.send(broker.name_server, FIRST_ROWS)
        driver = world.start(broker.name_server)
        for number in range(absences):
            if number % 2:  # within a batch, which waits for it
                world.send_and_meet(driver, broker.name_server, 0.3)
                other.stop()
                world.pause(5.0)
            else:
                world.wait_until_there(driver)
                other.stop()
                places = world.send(broker.name_server)
                if {name for name, _, _ in places} != {"broker-a"}:
                    world.wrong.append("messages went to the broker that was away")
                world.wait_until_there(driver, places, "the rows of the broker that is there")
            world.fault()
            other = beside()
            world.send(broker.name_server)
        world.finish(driver)
        other.stop()


@contextmanager
def soon_deleted() -> Iterator[dict[str, str]]:
    """Settings of a broker which removes each file of its log as soon as the next one has begun."""
    # For users three hours are the least, and an hour more than the longest delay.
    with mock.patch.multiple("rocketbox.broker.store.options", LEAST_RESERVED_MS=0, BESIDE_A_DELAY_MS=0):
        yield {
            "file-reserved-time": "0h",
            "message-delay-level": "0s",
            "delete-when": ";".join(map(str, range(24))),
            "clean-resource-interval": "100",
            "delete-commit-log-files-interval": "0",
            "mapped-file-size-commit-log": "500000",
            "flush-interval-consume-queue": "50",
            "flush-consume-queue-thorough-interval": "50",
            "flush-interval-index": "50",
        }


def told_as_gone(output: str) -> set[Place]:
    """The places of which the log says that they were skipped since they are gone."""
    told: set[Place] = set()
    line = re.compile(r"(\S+)/(\d+): offsets (\d+)(?: to (\d+))? \((\d+) in all\) are gone,.* skipped")
    for broker, queue, first, last, _ in line.findall(output):
        told |= {(broker, int(queue), offset) for offset in range(int(first), int(last or first) + 1)}
    return told


def let_retention_overtake(world: World, times: int) -> None:
    """Messages are deleted before they were read: that fails, with numbers; where it is allowed, they are told."""
    deleted: set[Place] = set()
    store = world.folder / "store"
    with Broker(store, settings={"mapped-file-size-commit-log": "500000"}) as broker:
        ports = broker.ports
        world.send(broker.name_server, FIRST_ROWS)
        world.finish(world.start(broker.name_server))
        for _ in range(2):
            world.send(broker.name_server)
    with soon_deleted() as settings, Broker(store, **ports, settings=settings) as broker:
        before = world.compare()[0].total()
        driver = world.start(broker.name_server)
        driver.wait_for(lambda: driver.status[0] == "failed", "the listener has failed, since messages are gone")
        reason = driver.status[1] or ""
        if "are gone" not in reason or not re.search(r"\(\d+ in all\)", reason):
            world.wrong.append(f"the listener does not say what is gone: {reason}")
        driver.stop()
        if world.compare()[0].total() != before:
            world.wrong.append("something was read although messages before it are gone")
        driver = world.start(broker.name_server, fail_on_data_loss=False)
        for _ in range(times):
            waited, written = driver.count("waits"), driver.count("written")
            world.hold.touch()
            world.send(broker.name_server)
            driver.wait_for_another("waits", than=waited)
            world.send(broker.name_server)  # which deletes what the batch is to read
            world.pause(1.0)
            world.hold.unlink()
            driver.wait_for_another("written", than=written)
            world.fault()
        deleted = _until_read_or_told(world, driver)
        driver.stop()
    world.seen.append(f"{len(deleted)} rows were deleted before they were read, and told")


def _until_read_or_told(world: World, driver: Driver) -> set[Place]:
    """Return when each row is in the sink or was told as gone; those that were told are expected no more."""
    told: set[Place] = set()

    def settled() -> bool:
        nonlocal told
        found = world.found()
        told = told_as_gone(driver.output.read_text(errors="replace"))
        return found is not None and world.expected.keys() <= found.keys() | told

    driver.wait_for(settled, "each row is in the sink, or was told as gone")
    found = rows_in(world.lake)
    for place in told - found.keys():
        world.expected.pop(place, None)
    if not told:
        world.wrong.append("nothing was deleted before it was read: the fault did not happen")
    return told - found.keys()


KINDS = {
    "drivers": Kind("driver killed", 20, kill_drivers),
    "commits": Kind("driver killed between write and commit", 5, kill_between_write_and_commit),
    "workers": Kind("Python worker killed", 20, kill_workers),
    "java": Kind("Java process killed", 5, kill_java),
    "replicas": Kind("driver killed, a replica takes over", 2, replace_replicas),
    "broker": Kind("broker restarted within a batch", 6, restart_the_broker),
    "queues": Kind("number of queues changed", 8, change_the_queues),
    "brokers": Kind("one of two brokers away", 4, lose_a_broker),
    "retention": Kind("deleted before it was read", 5, let_retention_overtake),
}
