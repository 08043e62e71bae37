"""What a harness runs on when it is told no server: virtual time, and everything in memory.

The other one is ``real_world``. Both say the same of themselves: a clock, who moves or awaits time (``pace``), the
machine of the service, and what of servers can be seen and done.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from rocketbox.application import RocketBox
from rocketbox.autoconfigure.loading import Launch
from rocketbox.autoconfigure.machine import Machine
from rocketbox.broker.property_text import remove_properties
from rocketbox.broker.unparking import record_of
from rocketbox.embedded import EmbeddedOptions
from rocketbox.local_servers import LocalServers
from rocketbox.message import MessageExt, MessageQueue, Property
from rocketbox.protocol.stored_message import decode_message
from rocketbox.remoting.network import without_tcp
from rocketbox.storage.memory_storage import MemoryStorage
from rocketbox.testing.addresses import MAIN, main_of_the_service, same_clusters
from rocketbox.testing.errors import HarnessError, StuckError
from rocketbox.testing.faults import ClusterFaults, Faults, HandlerFaults
from rocketbox.testing.listened import Listened
from rocketbox.testing.loop_turns import LoopTurns
from rocketbox.testing.machine import CLIENT, CONSUMER, EMBEDDED, HarnessServers
from rocketbox.testing.memory_cluster import MemoryCluster
from rocketbox.testing.memory_network import NO_REAL_ADDRESS, HarnessNetwork
from rocketbox.testing.observer import Observer
from rocketbox.testing.pace import Pace
from rocketbox.testing.virtual_clock import VirtualClock

__all__ = ["MemoryWorld"]


class MemoryWorld:
    """``given`` are the clusters whose name server the test's own settings say is embedded.

    ``in_loop(call)`` calls in the loop of the harness, from any thread.
    """

    def __init__(
        self,
        app: RocketBox,
        start_ms: int,
        turns: LoopTurns,
        *,
        given: frozenset[str],
        in_loop: Callable[[Callable[[], object]], object],
        listened: Listened,
    ) -> None:
        self.clock = VirtualClock(start_ms)
        self.pace: Pace
        self._app = app
        self._turns = turns
        self._given = given
        self._in_loop = in_loop
        self._listened = listened
        self._seen: Observer
        self._servers: HarnessServers | None = None
        self._disturbed = False
        self.offsets_before: dict[tuple[str, str | None, MessageQueue], int] = {}
        """Where its groups begin: all at 0."""

    def begin(self, seen: Observer, patience: float) -> None:
        """``seen`` is who sees what is done, ``patience`` seconds of real time in which nothing goes on."""
        self._seen = seen
        going, done = seen.under_way, lambda: seen.done
        self.pace = Pace(self.clock, self._turns, going.real_waits, done, seen.latest, patience, going.is_in_service)

    @asynccontextmanager
    async def launch(self, launch: Launch, failing: HandlerFaults) -> AsyncIterator[Launch]:
        """The launch of the service on this, which is there inside."""
        network = HarnessNetwork(self._turns)

        def cluster(name: str | None, options: EmbeddedOptions) -> MemoryCluster:
            return MemoryCluster(
                name,
                options,
                clock=self.clock,
                network=network,
                turns=self._turns,
                topics=lambda: [n.wrap(topic) for n, topic in self._listened.topics(name, of_spark=True)],
                broker_started=self._broker_started,
            )

        def servers(options: EmbeddedOptions) -> LocalServers:
            assembly = self._app.assembly
            same = same_clusters(assembly, self._given)
            self._listened.planned(assembly, same)
            self._servers = HarnessServers(options, cluster=cluster, clusters=same)
            return self._servers

        machine = Machine(
            spark_queries=False,
            clock=self.clock,
            network=network,
            storage=MemoryStorage(),
            servers=servers,
            client_options=CLIENT,
            consumer_options=lambda plan: CONSUMER,
            name_server=lambda name, said: self._cluster(name).name_server_address,
            main_name_server=lambda settings, said: main_of_the_service(settings, self._given),
        )
        machine = self._seen.watching(machine, self._listened.same_as, failing)
        ours: dict[str, object] = {f"rocketbox.embedded.{key}": value for key, value in EMBEDDED.items()}
        # Whatever the service says for production, no test reaches a real server by mistake.
        main = {} if "" in self._given else {MAIN: "embedded"}
        with without_tcp(NO_REAL_ADDRESS):
            yield replace(launch, settings={**ours, **launch.settings, **main}, machine=machine)

    def _broker_started(self, cluster: MemoryCluster) -> None:
        self._seen.watch_store(cluster.broker.store, cluster.name)

    def _cluster(self, name: str | None) -> MemoryCluster:
        if self._servers is None:
            raise HarnessError(f"{self._app.name} runs without RocketMQ (rocketmq.enabled is false): it has no broker")
        return self._servers.cluster(name)

    # --- servers -----------------------------------------------------------------------------------------------------

    async def look_for_dead_letters(self) -> None:
        """They are seen as they come."""

    async def mend(self) -> bool:
        """Have all servers run, answer and have room; whether there was a fault since this was asked last."""
        was_disturbed = self._disturbed
        if was_disturbed:
            for name in self._listened.clusters:
                faults = self._faults(name)
                if not self._cluster(name).runs:
                    await faults.broker.start()
                faults.broker.resume()
                faults.disk.free()
        self._disturbed = False
        return was_disturbed

    def pass_over_delays(self) -> None:
        """Let nothing that waits for its time, of retries, delays or open transactions, come any more."""
        for name in self._listened.clusters:
            broker = self._running(name).broker
            broker.delayed.pass_over()
            broker.timers.pass_over()
            broker.halves.pass_over()

    def faults(self, cluster: str | None) -> ClusterFaults:
        """The faults of a cluster."""
        return self._faults(cluster)

    def _faults(self, cluster: str | None) -> ClusterFaults:
        return ClusterFaults(self._cluster(cluster), Faults(self._let_pass, self._in_loop, self._disturb))

    def _disturb(self, told: str) -> None:
        self._disturbed = True
        self._seen.note(told)

    async def _let_pass(self, work: Coroutine[Any, Any, None]) -> None:
        """Have it done, with as much time as it takes, and what follows from it."""
        task = self._turns.start(work, "a fault of the harness")
        if not await self.pace.until(task.done):
            raise StuckError(["a fault of the harness does not come to its end"], self.pace.patience)
        await task
        await self.pace.settle()

    def end_offset(self, cluster: str | None, group: str, queue: MessageQueue, known: int) -> int:
        """The end of a group's queue; ``known`` is what the consumer knows of it."""
        topic = self._listened.namespace_of(cluster, group).wrap(queue.topic)
        return self._running(cluster).broker.store.max_offset(topic, queue.queue_id)

    async def ends(self, cluster: str | None, group: str, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """The ends of a group's queues."""
        return {queue: self.end_offset(cluster, group, queue, 0) for queue in queues}

    def redeliver(self, cluster: str | None, group: str | None, message: MessageExt) -> None:
        """Put a message once more into its queue."""
        text = remove_properties(message.raw_properties, (b"__CRC32#",))
        topic = message.topic
        if self._listened.plain(cluster, topic) == topic:  # as the service knows it
            topic = self._listened.namespace_of(cluster, group).wrap(topic)
        again = record_of(message, topic, message.queue_id, text, 0)
        running = self._running(cluster)
        put = running.broker.store.put(replace(again, body=message.received_body))
        self._seen.will_come_again(running.name, topic, again.queue_id, put.queue_offset)

    async def stored(self, cluster: str | None, topic: str, msg_id: str) -> MessageExt | None:
        """The message of a topic to which its sender has given that id; None where there is none, or not yet.

        It is not looked for where the answer to its send says: that is where it waits, for its time or for the end of
        its transaction, which is a place of another topic.
        """
        store = self._running(cluster).broker.store
        for namespace in self._listened.namespaces(cluster):
            wrapped = namespace.wrap(topic)
            found = await store.query_keys(wrapped, msg_id, store.options.max_msgs_num_batch, 0, self.clock.time_ms())
            for record in reversed(found.records):  # the one that came first
                message = decode_message(record)[0]
                if message.properties.get(Property.UNIQ_KEY) == msg_id:
                    return message
        return None

    def _running(self, name: str | None) -> MemoryCluster:
        cluster = self._cluster(name)
        if not cluster.runs:
            raise HarnessError("the broker is stopped; start it by await harness.broker.start()")
        return cluster
