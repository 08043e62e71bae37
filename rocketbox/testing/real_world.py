"""What a harness runs on when it is told a name server: real servers, real time.

What of virtual time and of servers in memory there is not is refused. A run begins at the end of its topics: the groups
of the service are set behind all that earlier runs have left. What a group gives up is read from its dead-letter queue;
why is what was seen here, for no broker keeps it.

Source: Apache RocketMQ 5.x ``resetOffsetByTime`` (there as well a group is set to an offset while nobody consumes).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from math import inf, isinf

from rocketbox.application import RocketBox
from rocketbox.autoconfigure.assembly import Assembly
from rocketbox.autoconfigure.key_rules import servers_in
from rocketbox.autoconfigure.loading import Launch
from rocketbox.autoconfigure.machine import Machine
from rocketbox.autoconfigure.properties import ClusterProperties, cluster_prefix
from rocketbox.autoconfigure.users import ClientPlan, CredentialsBean, User
from rocketbox.client import Admin, ClientOptions
from rocketbox.client.needed_topics import find_topic, make_topic, until_in_route
from rocketbox.client.options import DEFAULT_INSTANCE_NAME, TopicOptions
from rocketbox.clock import RealClock
from rocketbox.durations import format_duration
from rocketbox.errors import BrokerError, NoRouteError, NotStartedError
from rocketbox.listeners import ListenerContainer
from rocketbox.listeners.container_state import ContainerStatus
from rocketbox.listeners.plans import ContainerPlan
from rocketbox.message import ConsumeFromWhere, ConsumeMode, MessageExt, MessageModel, MessageQueue
from rocketbox.protocol.codes import ResponseCode, retry_topic
from rocketbox.protocol.tags import parse_subscription
from rocketbox.storage.memory_storage import MemoryStorage
from rocketbox.testing.addresses import MAIN
from rocketbox.testing.dead_letter_queues import DeadLetterQueues
from rocketbox.testing.errors import HarnessError, StuckError
from rocketbox.testing.faults import ClusterFaults, HandlerFaults
from rocketbox.testing.listened import Listened
from rocketbox.testing.observer import Observer
from rocketbox.testing.pace import Waits
from rocketbox.testing.records import Outcome

__all__ = ["RealPace", "RealWorld"]

LOOK_PAUSE = 0.02  # seconds between two questions to the servers
PAUSE = 0.005  # seconds between two looks at what the harness knows itself
IDLE_LOOKS = 2  # in a row that see nothing to do: what one hears of a queue may be older than what it hears of the next


class RunClock(RealClock):
    """The machine's time, and how much of it has passed since the clock was made."""

    def __init__(self) -> None:
        super().__init__()
        self._began = self.monotonic()

    @property
    def passed(self) -> float:
        return self.monotonic() - self._began

    def count_anew(self) -> None:
        """Let what has passed begin at 0 again."""
        self._began = self.monotonic()


class RealPace:
    """Waits, where virtual time would be moved.

    ``unfinished()`` names what is left to do, ``progress()`` changes with what is done, ``tell`` is told of waits,
    ``look()`` looks for what servers alone know.
    """

    def __init__(
        self,
        clock: RunClock,
        unfinished: Callable[[], Awaitable[list[str]]],
        progress: Callable[[], object],
        tell: Callable[[str], object],
        look: Callable[[], Awaitable[object]],
        patience: float,
        is_in_service: Callable[[], bool] = lambda: False,
    ) -> None:
        self.patience = patience
        self.regardless = False
        """As in ``pace``; here nobody stands still for anything."""
        self.waits = Waits(is_in_service)
        self._clock = clock
        self._unfinished = unfinished
        self._progress = progress
        self._tell = tell
        self._look = look

    async def settle(self) -> None:
        """Return when nothing is left to do now. Raises StuckError when that does not come nearer for ``patience``."""
        await self.waits.wait(self._settle)

    async def _settle(self) -> None:
        idle, began, mark = 0, self._clock.monotonic(), None
        while True:
            left = await self._unfinished()
            idle = 0 if left else idle + 1
            if idle == IDLE_LOOKS:
                return
            progress, now = (self._progress(), tuple(left)), self._clock.monotonic()
            if progress != mark:
                began, mark = now, progress
            elif now - began > self.patience:
                raise StuckError(left, self.patience, virtual=False)
            await self._clock.sleep(LOOK_PAUSE)

    async def advance(self, seconds: float) -> None:
        """Wait for so long, and until nothing is left to do then."""
        until = datetime.fromtimestamp(self._clock.time_ms() / 1000 + seconds).astimezone()
        self._tell(f"advance waits for real: {_words(seconds)}, until {until:%H:%M:%S}")
        end = self._clock.monotonic() + seconds

        async def work() -> None:
            await self._clock.sleep(max(0.0, end - self._clock.monotonic()))
            await self._settle()

        await self.waits.wait(work)

    async def until(
        self, done: Callable[[], bool], within: float = inf, *, busy_within: float = 0.0, quietly: bool = False
    ) -> bool:
        """Wait until ``done()``, at most for ``within`` seconds; whether it is so.

        ``quietly``: nobody is told that it waits, and servers are not asked what they alone know. ``busy_within`` is
        for a pace in virtual time.
        """
        asks = not isinf(within) and not quietly
        if not done() and asks:
            self._tell(f"waits for real, {_words(within)} at most")
        now = self._clock.monotonic()
        end, next_look = now + within, now if asks and not self.regardless else inf

        async def work() -> bool:
            nonlocal next_look
            while not done():
                if (now := self._clock.monotonic()) >= end:
                    return False
                if now >= next_look:
                    await self._look()
                    next_look = self._clock.monotonic() + LOOK_PAUSE
                await self._clock.sleep(PAUSE)
            return True

        return await self.waits.wait(work, done)


def _words(seconds: float) -> str:
    return format_duration(timedelta(seconds=seconds))


class RealWorld:
    """``name_servers`` are those of the clusters by name, of the main one by the empty name."""

    def __init__(
        self,
        app: RocketBox,
        name_servers: Mapping[str, str],
        *,
        tell: Callable[[str], object],
        listened: Listened,
    ) -> None:
        self.clock = RunClock()
        self.pace: RealPace
        self._app = app
        self._name_servers = dict(name_servers)
        self._tell = tell
        self._listened = listened
        self._seen: Observer
        self._dead_letters: DeadLetterQueues
        self._admins: dict[tuple[str, User], Admin] = {}  # by the name of a cluster, and who asks
        self.offsets_before: dict[tuple[str, str | None, MessageQueue], int] = {}
        """Where its groups begin, by group and its cluster: behind what earlier runs have left."""
        self._ends: dict[tuple[str, str | None, MessageQueue], int] = {}
        """How far their queues go, as the servers have said last."""

    def begin(self, seen: Observer, patience: float) -> None:
        """``seen`` is who sees what is done, ``patience`` seconds in which nothing goes on."""
        self._seen = seen
        self._dead_letters = DeadLetterQueues(seen.buried)
        look = self._dead_letters.read_if_possible
        of_service = seen.under_way.is_in_service
        self.pace = RealPace(self.clock, self._unfinished, lambda: seen.done, self._tell, look, patience, of_service)

    @asynccontextmanager
    async def launch(self, launch: Launch, failing: HandlerFaults) -> AsyncIterator[Launch]:
        """The launch of the service on these servers, which hold its topics and nothing for its groups by then."""
        machine = Machine(
            spark_queries=False,
            clock=self.clock,
            storage=MemoryStorage(),  # of offsets that clients keep themselves: there are none of earlier runs
            consumer_options=_where_to_begin,
            name_server=lambda name, said: self._name_servers[name],
        )
        machine = self._seen.watching(machine, self._listened.same_as, failing)
        settings = {**launch.settings, MAIN: self._name_servers[""]}
        launch = replace(launch, settings=settings, machine=machine)
        assembly = self._app.checked(launch)
        self._listened.planned(assembly, self._find_clusters(assembly))
        async with AsyncExitStack() as stack:
            for name in ("", *self._listened.further_clusters):
                for client in self._listened.clients(name):
                    options = _options(client, assembly.rocketmq.cluster(name), cluster_prefix(name))
                    admin = Admin(self._name_servers[name], client_options=options)
                    self._admins[name, client.user] = await stack.enter_async_context(admin)
            for cluster in self._listened.clusters:
                for (_, topic), asking in self._listened.topics(cluster).items():
                    await self._make(self._admin(*asking), topic)
            for plan in self._listened.plans:
                if plan.options.message_model is MessageModel.CLUSTERING:
                    await self._begin_at_the_end(plan)
                else:
                    await self._count_from_the_end(plan)
            for cluster, group in self._listened.groups_with_dead_letters():
                await self._dead_letters.watch((self._listened.same_as(cluster), group), self._admin(cluster, group))
            try:
                yield launch
            finally:
                self._dead_letters.close()

    def _find_clusters(self, assembly: Assembly) -> dict[str, str | None]:
        """The first name of each further cluster, None for the main one. Raises HarnessError where one has none."""
        first_names: dict[str, str | None] = {}
        known: dict[frozenset[str], str | None] = {servers_in(self._name_servers[""]): None}
        for name, own in assembly.rocketmq.clusters.items():
            if own.name_server is None or own.is_off:
                continue
            if name not in self._name_servers:
                raise HarnessError(
                    f"{cluster_prefix(name)} of {assembly.service.name} needs a name server, for a harness reaches "
                    f"none but those that it is given: start pytest with --rocketbox-name-server={name}=host:port as "
                    f'well, or write Harness(name_server={{"": "host:port", "{name}": "host:port"}})'
                )
            first_names[name] = known.setdefault(servers_in(self._name_servers[name]), name)
        return first_names

    def _admin(self, cluster: str | None, group: str | None) -> Admin:
        """What asks the servers as the group's listeners do, in their namespace and with their keys; with no group, as
        who sends there.
        """
        return self._admins[cluster or "", self._listened.client_of(cluster, group).user]

    async def _make(self, admin: Admin, topic: str) -> None:
        """The topic on all brokers that do not have it."""
        needed = TopicOptions()
        missing = (await find_topic(admin, topic, needed)).missing
        if missing:
            await make_topic(admin, topic, needed, missing)
            await until_in_route(admin, topic, missing, self.clock, admin.timeout)

    async def _begin_at_the_end(self, plan: ContainerPlan) -> None:
        """Have the group know nothing of what is stored for it already. Raises HarnessError while somebody is in it."""
        admin = self._admin(plan.cluster, plan.group)
        members = await admin.members(plan.group)
        if members:
            raise HarnessError(
                f"group {plan.group} has members on {self._name_servers[plan.cluster or '']}: {', '.join(members)}. "
                "They would share its messages with the test, and a harness sets the group behind all that is there: "
                "stop them, or give a broker that nobody else uses"
            )
        for topic in (*plan.topics, retry_topic(plan.group)):
            try:
                queues = await admin.queues(topic)
            except NoRouteError:  # nothing was ever sent back to the group
                continue
            for queue in queues:
                end = await admin.max_offset(queue)
                await _commit(admin, plan.group, queue, end)
                self.offsets_before[plan.group, plan.cluster, queue] = end

    async def _count_from_the_end(self, plan: ContainerPlan) -> None:
        """Know where a broadcasting group begins, which no server does."""
        admin = self._admin(plan.cluster, plan.group)
        for topic in plan.topics:
            for queue in await admin.queues(topic):
                self.offsets_before[plan.group, plan.cluster, queue] = await admin.max_offset(queue)

    # --- what is left to do ------------------------------------------------------------------------------------------

    async def _unfinished(self) -> list[str]:
        if left := [str(each) for each in self._seen.under_way.real_waits()]:
            return left
        if left := [f"handler {call.name} runs" for call in self._seen.under_way.running_now]:  # it waits for a server
            return left
        for container in self._app.listeners.values():
            if isinstance(container, ListenerContainer):
                left += await self._left_for(container)
        if left:
            return left
        await self._dead_letters.read()
        return [
            f"{what}, which is not in the dead-letter queue of group {group} yet"
            for (cluster, group, _), what in self._seen.given_up.items()
            if (cluster, group) in self._dead_letters
        ]

    async def _left_for(self, container: ListenerContainer) -> list[str]:
        """What a group has not consumed, or cannot yet; one that is paused on purpose has nothing to do."""
        status = container.state().status
        if status is ContainerStatus.STOPPED:
            return []
        group, admin = container.group, self._admin(container.cluster, container.group)
        state = container.consumer.state()
        at = {each.queue: each.commit_offset for each in state.queues}
        if status is ContainerStatus.PAUSED:
            await self.ends(container.cluster, group, at)
            return []
        left = [f"group {group} waits for topic {topic}" for topic in state.topics_without_route]
        for topic in container.plan.topics:
            if topic not in state.topics_without_route:
                missing = [queue for queue in await admin.queues(topic) if queue not in at]
                left += [f"group {group} does not have queue {_named(queue)} yet" for queue in missing]
        for queue, end in (await self.ends(container.cluster, group, at)).items():
            offset = at[queue]
            if offset >= end or self._is_held_up(container, queue, offset):
                continue
            if not await self._is_passed_over(container, queue, offset, end):
                left.append(f"group {group} is at {offset} of {end} in queue {_named(queue)}")
        return left

    def _is_held_up(self, container: ListenerContainer, queue: MessageQueue, offset: int) -> bool:
        """Whether a queue in order waits for a message that has failed: now there is nothing to do for it."""
        if container.plan.options.consume_mode is not ConsumeMode.ORDERLY:
            return False
        cluster = self._listened.same_as(container.cluster)
        for call in reversed(self._seen.calls):
            first = call.messages[0]
            if (call.group, call.cluster, first.topic, first.queue_id) == (
                container.group, cluster, queue.topic, queue.queue_id,
            ):  # fmt: skip
                return first.queue_offset == offset and call.outcome is Outcome.COMES_BACK
        return False

    async def _is_passed_over(self, container: ListenerContainer, queue: MessageQueue, offset: int, end: int) -> bool:
        """Whether none of the messages from an offset up to the end has a tag that the group takes.

        A broker tells a consumer that it has passed over some with an answer to its pull, and holds that back for
        seconds, as it does where nothing has come at all.
        """
        functions = [function for function in container.plan.functions if function.topic == queue.topic]
        expression = " || ".join(function.selector_expression for function in functions)
        if not parse_subscription(queue.topic, expression).tags_set:
            return False
        admin = self._admin(container.cluster, container.group)
        while offset < end:
            found = await admin.pull(queue, offset, expression=expression, decompress=False, group=container.group)
            if found.messages or found.next_begin_offset <= offset:
                return False
            offset = found.next_begin_offset
        return True

    # --- servers -----------------------------------------------------------------------------------------------------

    async def look_for_dead_letters(self) -> None:
        """Find all that groups have given up by now."""
        await self._dead_letters.read()

    async def mend(self) -> bool:
        """Whether there was a fault: never here."""
        return False

    def pass_over_delays(self) -> None:
        """What waits for its time at a real broker comes all the same."""

    async def ends(self, cluster: str | None, group: str, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """The ends of a group's queues."""
        admin = self._admin(cluster, group)
        ends = {queue: await admin.max_offset(queue) for queue in queues}
        self._ends.update({(group, cluster, queue): end for queue, end in ends.items()})
        return ends

    def faults(self, cluster: str | None) -> ClusterFaults:
        """Refused."""
        raise _cannot("harness.broker and harness.disk are those of servers in memory")

    def end_offset(self, cluster: str | None, group: str, queue: MessageQueue, known: int) -> int:
        """The end of a queue as the consumer knows it, or as the servers have said when they were asked last.

        A group that is paused takes nothing, and so hears of nothing.
        """
        return max(known, self._ends.get((group, cluster, queue), 0))

    def redeliver(self, cluster: str | None, group: str | None, message: MessageExt) -> None:
        """Refused."""
        raise _cannot("a message is delivered again by a broker in memory alone")

    async def stored(self, cluster: str | None, topic: str, msg_id: str) -> MessageExt | None:
        """Refused."""
        raise _cannot("a message is delivered again by a broker in memory alone")


def _options(client: ClientPlan, cluster: ClusterProperties, prefix: str) -> ClientOptions:
    """Those by which a cluster is asked what the client would see: its keys, TLS and namespace. Raises HarnessError."""
    try:
        options = client.options(cluster, prefix)
    except NotStartedError as error:
        assert isinstance(client.user.credentials, CredentialsBean)
        raise HarnessError(
            f"bean {client.user.credentials.label} gives the keys when the service starts, and a harness asks real "
            "servers before: give it one that is there, Harness(app, beans={CredentialsProvider: ...})"
        ) from error
    return replace(options, instance_name=DEFAULT_INSTANCE_NAME)  # it is another client than the service's


def _where_to_begin(plan: ContainerPlan) -> dict[str, object]:
    """A broadcasting group's: at the end, wherever it would in production; others find offsets at the brokers."""
    if plan.options.message_model is MessageModel.CLUSTERING:
        return {}
    return {"consume_from_where": ConsumeFromWhere.LAST_OFFSET, "consume_timestamp": None}


async def _commit(admin: Admin, group: str, queue: MessageQueue, offset: int) -> None:
    """Have the group go on there. Apache 5.x knows no offsets of a group that it does not know: it is made then."""
    try:
        await admin.commit(group, queue, offset)
    except BrokerError as error:
        if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            raise
        await admin.create_group(group)
        await admin.commit(group, queue, offset)


def _cannot(why: str) -> HarnessError:
    return HarnessError(f"{why}, and this harness runs on a real one: mark the test @pytest.mark.needs_virtual_time")


def _named(queue: MessageQueue) -> str:
    return f"{queue.topic}/{queue.queue_id} of {queue.broker_name}"
