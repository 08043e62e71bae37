"""A service under test: its own code on the production code of client, broker and store, in memory, on virtual time.

``async with Harness(app) as harness:`` starts the service and stops it at the end. Time stands still but for what the
harness is asked: how it moves, and when it may, is told in ``pace``. What was seen is in ``records``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import anyio

from rocketbox.application import RocketBox
from rocketbox.autoconfigure.loading import Launch
from rocketbox.autoconfigure.taken_once import taken_as
from rocketbox.blocking import threads_in_use
from rocketbox.boot.dependencies import dependency_of, hint_name
from rocketbox.boot.masking import mask
from rocketbox.boot.settings import Settings
from rocketbox.clock import RealClock
from rocketbox.durations import parse_duration
from rocketbox.errors import NotStartedError
from rocketbox.listeners.container_state import ContainerStatus
from rocketbox.message import MessageExt, MessageQueue, SendResult
from rocketbox.safe_repr import also_when_unmade
from rocketbox.template import CodecMessageConverter, MessageConverter, RocketMQTemplate
from rocketbox.testing import given, reported
from rocketbox.testing.addresses import given_name_servers
from rocketbox.testing.arguments import begin_of_time, launch_options, name_servers_by_cluster
from rocketbox.testing.batches import Batches
from rocketbox.testing.blocking_harness import BlockingHarness
from rocketbox.testing.changes import Changes
from rocketbox.testing.errors import HarnessError, StuckError, note
from rocketbox.testing.faults import BrokerFaults, ClusterFaults, DiskFaults, HandlerFaults, HandlerHandle
from rocketbox.testing.listened import Listened, is_meant
from rocketbox.testing.loop_turns import LoopTurns, users_line
from rocketbox.testing.memory_world import MemoryWorld
from rocketbox.testing.missed_settings import missed_settings
from rocketbox.testing.observer import Observer
from rocketbox.testing.pace import BrokenOffError, Pace
from rocketbox.testing.real_world import RealPace, RealWorld
from rocketbox.testing.records import Call, DeadLetter, Outcome, Sent, SentMessages, shown, told_error
from rocketbox.testing.service_end import ServiceEnd
from rocketbox.testing.started import telling_of_threads
from rocketbox.testing.under_way import (
    call_for_thread,
    in_service,
    in_thread_of_pool,
    submitted_to_pool,
    thread_started,
)

__all__ = ["Harness", "QueueOffsets"]

Time = timedelta | str
Failures = Literal["raise", "keep"]

PATIENCE = 10.0  # seconds of real time in which nothing goes on
LONGEST_PATIENCE = 1e9  # the same, for who never gives up
AFTER_FAULTS = 60.0  # seconds of virtual time after which clients have got over a fault
LONGEST_DRAIN = 3600.0  # seconds of virtual time in which handlers that wait for it come to an end
LONGEST_START = 3600.0  # seconds of virtual time in which the service starts
FROZEN = "frozen by a test"  # why a group is paused
HOW_TO_START = "use it inside 'async with', or inside 'with' in a plain function"


@dataclass(frozen=True)
class QueueOffsets:
    """How far a group is with one queue: ``consumed`` is the offset behind what it needs no more, ``end`` its end.

    Both count from the beginning of the harness, or from :meth:`Harness.fresh` on.
    """

    topic: str
    queue_id: int
    consumed: int
    end: int

    @property
    def lag(self) -> int:
        return self.end - self.consumed


class Harness:
    """``async with Harness(app) as harness: await harness.send("orders", order); await harness.drain()``.

    ``settings``, ``beans``, ``config`` and ``profiles`` are those of :meth:`RocketBox.started`; the service's own
    files are read as ever, and its name server becomes one in memory. Without ``hooks`` nothing runs by itself.
    ``now`` is when virtual time begins, from 1970 on (the machine's time, if nothing is said). ``patience`` is how many
    seconds of real time may pass in which nothing goes on, before StuckError says what is waited for.
    ``failures="keep"`` lets :meth:`drain` and :meth:`advance` not raise what handlers have raised, and the end not what
    shutdown hooks have.

    The end raises HarnessError for a handler that had to be ended by force, since it swallows its cancellation, and for
    a service that ends itself (``sys.exit`` in a hook) when it starts or stops; and what handlers have raised, also
    while the end waits for them, where the test was not told and has not looked since: at the calls of that handler, or
    at what its group has consumed or given up.

    ``name_server`` (``"127.0.0.1:9876"``; for several clusters ``{"": ..., "audit": ...}``) lets the service run on
    real servers, in real time: what pytest's ``--rocketbox-name-server`` says for all harnesses.
    """

    def __init__(
        self,
        app: RocketBox,
        *,
        settings: Mapping[str, object] | None = None,
        beans: Mapping[Any, object] | None = None,
        hooks: bool = True,
        config: Path | str | None = None,
        profiles: Sequence[str] = (),
        now: datetime | None = None,
        patience: float = PATIENCE,
        failures: Failures = "raise",
        name_server: str | Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(app, RocketBox):
            raise HarnessError(
                f"Harness({app!r}) is given a {type(app).__qualname__}, and not the RocketBox of the service: write "
                "'from desk import app' and Harness(app), or Harness(desk.app)"
            )
        self.app = app
        self._launch = launch_options(config, profiles, settings, beans, hooks)
        self._begin = begin_of_time(now)
        if isinstance(patience, bool) or not isinstance(patience, int | float) or not patience > 0:
            raise HarnessError(f"patience={patience!r}: write how many seconds of real time, such as 60")
        self._patience = min(patience, LONGEST_PATIENCE)
        self._failures = _checked(failures)
        self._given = given_name_servers(settings or {})
        self._name_servers = name_servers_by_cluster(name_server) or dict(given.name_servers)
        if self._name_servers and "" not in self._name_servers:
            raise HarnessError('name_server= has none for the main cluster: write {"": "host:port", ...}')
        self._world: MemoryWorld | RealWorld | None = None
        self._pace: Pace | RealPace
        self._seen: Observer
        self._turns: LoopTurns
        self._failing = HandlerFaults()
        self._batches: Batches
        self._host: Any = None
        self._blocking: BlockingHarness | None = None
        self._stop: anyio.Event
        self._telling = ExitStack()  # of threads, until all has come to its end
        self._runs = self._over = False
        self._settings: list[Settings] = []  # of the service, from before anything of it runs
        self._how_to_start = HOW_TO_START
        self._listened = Listened(app)
        self._default_converter = CodecMessageConverter()
        self._changes = Changes()
        self._frozen: dict[Any, set[object]] = {}
        self._overrides_over: list[object] = []  # that were undone, and stand below others that hold
        self._offsets_before: dict[tuple[str, str | None, MessageQueue], int] = {}  # by group and its cluster
        self._log_of_untold = ""  # of what fresh() has raised of the test

    @also_when_unmade
    def __repr__(self) -> str:
        state = "running" if self._runs else "over" if self._over else "not started"
        return f"Harness({self.app.name!r}, {state})"

    # --- life --------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Run it in a loop of a thread of its own, for tests that are plain functions: see :attr:`blocking`."""
        self._blocking = BlockingHarness(self)
        self._blocking.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self.blocking.stop(kind, error, trace)

    @property
    def blocking(self) -> BlockingHarness:
        """The verbs of the harness for a test that is a plain function. Raises HarnessError in one that can await."""
        if self._blocking is None:
            raise HarnessError(
                "harness.blocking is for tests that are plain functions; in an async one write await harness.drain(), "
                "and with Harness(app) as harness: where no fixture makes it"
            )
        return self._blocking

    async def __aenter__(self) -> Self:
        if self._world is not None:
            raise HarnessError(f"{self!r} was started before; make a new Harness for each start")
        if self.app in (other.app for other in reported.running):
            raise HarnessError(
                f"another harness of {self.app.name} is running, and a service runs once in a process: take the "
                "fixture harness, or make one in the test, and leave one before the next is entered"
            )
        if here := [other for other in reported.running if other._turns.is_here()]:
            raise HarnessError(
                f"a harness of {here[0].app.name} runs in this event loop, and each waits until nothing else goes on "
                "there: leave it first, or run both in plain functions' way, 'with Harness(app) as harness:'"
            )
        self._turns = LoopTurns()
        self._stop = anyio.Event()
        world = self._world = self._new_world()
        self._seen = Observer(
            world.clock,
            self._turns,
            self._listened.retries_of,
            self._converter,
            self._let_time_pass,
            self._failing.was_asked_for,
            self._listened.plain,
        )
        world.begin(self._seen, self._patience)
        self._pace = world.pace
        self._batches = Batches(self.app, world.clock, self._seen, self._converter, self._listened.same_as)
        if missed := missed_settings(self.app, self._launch[0]):
            self._seen.note(missed)
        reported.entered(self)
        going = self._seen.under_way
        self._telling.enter_context(telling_of_threads(thread_started, submitted_to_pool, in_thread_of_pool))
        self._turns.watch(going.task_started, call_for_thread, going.called_in_thread, going.timer_set)
        if self._blocking is not None:
            self._turns.hear_of_lost_errors(self._seen.hook_failed)
        self._host = self._turns.start(self._run(), f"a hook or bean of {self.app.name}")
        self._seen.under_way.others.append(self._host)
        try:
            started = await self._pace.until(
                lambda: self._runs or self._host.done(), LONGEST_START, busy_within=PATIENCE, quietly=True
            )
            if self._host.done():
                await self._host
            if not started:
                line = users_line(self._host.get_coro())
                at = f" at {line}" if line else ""
                raise StuckError([f"the start of {self.app.name} waits for rocketbox{at}"], self._patience)
            self._offsets_before.update(world.offsets_before)
        except BaseException as error:
            if missed:
                note(error, missed)
            self._note_end(error, (await self._end()).errors)
            raise
        return self

    def _new_world(self) -> MemoryWorld | RealWorld:
        if self._name_servers:
            if self._begin is not None:
                raise HarnessError(
                    f"now={self._begin!r} needs virtual time, and on a real broker ({self._name_servers['']}) there is "
                    "none: mark the test @pytest.mark.needs_virtual_time"
                )
            return RealWorld(self.app, self._name_servers, tell=given.tell, listened=self._listened)
        start = RealClock().time_ms() if self._begin is None else round(self._begin.timestamp() * 1000)
        return MemoryWorld(
            self.app, start, self._turns, given=self._given, in_loop=self._in_loop, listened=self._listened
        )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end = await self._end(in_short=error is not None)
        untold = self._untold if error is None else []
        failed = [each for each in (error, *end.errors, end.failure) if each is not None]
        if not failed:
            self._raise_untold(untold, self._of_hooks)
            return
        told = failed[0]  # the test's own, if there is one
        self._note_end(told, [*failed[1:], *self._of_hooks])
        for each in untold:
            note(told, f"And a handler of {self.app.name} had failed: {told_error(each)}")
        if error is None:
            raise told

    def _note_end(self, error: BaseException, failed: Iterable[BaseException]) -> None:
        for each in failed:
            note(error, f"And the end of {self.app.name} failed: {told_error(each)}")

    async def _end(self, *, in_short: bool = True) -> ServiceEnd:
        """Have the service stop; how it did."""
        self._stop.set()
        end = ServiceEnd(
            self.app.name,
            self._host,
            self._pace,
            self._turns,
            self._seen,
            lambda: self._tasks_of([""]),
            is_own_loop=self._blocking is not None,
        )
        try:
            await self._turns.see_through(end.come(started=self._runs, in_short=in_short), "end of the harness")
        except Exception as error:  # of the harness itself: it must not replace what the test is told
            end.errors.append(HarnessError(f"the harness has not come to its end: {told_error(error)}"))
            end.errors[-1].__cause__ = error
        finally:
            self._host.cancel()
            self._turns.unwatch()
            self._telling.close()
            self._runs, self._over = False, True
            reported.left(self)
        return end

    def _tasks_of(self, names: Iterable[str]) -> list[Any]:
        """The tasks of background work whose names begin so."""
        work = f"{self.app.name} in the background"
        return [task for name in names for task in self._turns.tasks_called(f"{work}: {name}")]

    async def _run(self) -> None:
        config, profiles, settings, beans, hooks = self._launch
        said = Launch(config, profiles, (), settings, beans, hooks=hooks)
        in_service(self._seen.under_way)
        with threads_in_use() as threads:
            self._seen.under_way.threads = threads
            try:
                async with (
                    self._in_world.launch(said, self._failing) as launch,
                    self.app.launched(_telling_of_settings(launch, self._settings.append)),
                ):
                    self._seen.under_way.others += self._tasks_of(["scheduled function"])
                    work = self.app.assembly.parts.work
                    self._seen.under_way.ending = lambda: self._tasks_of(work.ending)
                    self._runs = True
                    await self._stop.wait()
            except SystemExit as error:  # it would end the loop of the test
                raise HarnessError(f"{self.app.name} has ended itself, by {error!r}") from error

    @property
    def _in_world(self) -> MemoryWorld | RealWorld:
        self._check_begun()
        assert self._world is not None
        return self._world

    def _in_loop(self, call: Callable[[], object]) -> None:
        if self._blocking is None or self._turns.is_here():
            call()
        else:
            self._blocking.call(call)

    def _let_time_pass(
        self, done: Callable[[], bool], give_up: Callable[[HarnessError], object]
    ) -> Callable[[], object]:
        """Somebody waits for an answer whom no drain waits for: time goes on, if it must, until ``done()``.

        ``give_up(error)`` is called where it cannot. What is returned is called when nobody waits any more.
        """
        if not self.is_virtual:
            return lambda: None  # it goes on by itself

        async def pass_time() -> None:
            try:
                if not await self._pace.until(done):
                    give_up(BrokenOffError())  # all has stopped: nothing is due any more
            except HarnessError as error:
                give_up(error)

        return self._turns.start(pass_time(), "time of a send").cancel

    def _converter(self) -> MessageConverter:
        return self.app.get(MessageConverter) if self._runs else self._default_converter  # type: ignore[type-abstract]

    def _check_running(self) -> None:
        if not self._runs and self._over:
            raise HarnessError(
                f"{self!r}: what was seen can be looked at still, but nothing goes on in the service; make a new one"
            )
        if not self._runs:
            raise NotStartedError(repr(self), self._how_to_start)

    def _check_awaited(self, verb: str) -> None:
        """That a verb is awaited in the loop of the service."""
        self._check_running()
        if not self._turns.is_here():
            raise HarnessError(
                f"harness.{verb}(...) is awaited in another event loop than the one in which {self.app.name} runs: in "
                f"a plain function write harness.blocking.{verb}(...), and in an async one await it in the test "
                "itself, whose loop must be that of the fixture (pytest-asyncio: loop_scope= of both)"
            )
        if verb in ("drain", "fresh") and (call := self._seen.under_way.current_call) is not None:
            raise HarnessError(
                f"harness.{verb}() is awaited inside of handler {call.name}, for whose end it would wait: await it in "
                "the test itself"
            )

    # --- sending -----------------------------------------------------------------------------------------------------

    @property
    def template(self) -> RocketMQTemplate:
        """The service's own template."""
        self._check_running()
        return self.app.template

    async def send(
        self,
        destination: str,
        payload: object,
        *,
        tag: str | None = None,
        keys: str | Sequence[str] | None = None,
        hash_key: str | None = None,
        delay: Time | None = None,
        delay_level: int | None = None,
        deliver_at: datetime | None = None,
        headers: Mapping[str, object] | None = None,
        cluster: str | None = None,
    ) -> SendResult:
        """Send one payload to ``topic`` or ``topic:tag``, as another service would; it is handled by :meth:`drain`.

        ``cluster`` is the name of a further cluster of the service (``rocketmq.clusters.<name>``).
        """
        self._check_awaited("send")
        self._listened.check_cluster(cluster)
        return await self.template.send(
            destination, payload, tag=tag, keys=keys, hash_key=hash_key, delay=delay, delay_level=delay_level,
            deliver_at=deliver_at, headers=headers, cluster=cluster,
        )  # fmt: skip

    async def redeliver(self, message: Call | MessageExt | Sent) -> None:
        """Have the broker deliver a message once more, as it may at any time: to all groups that take its topic.

        It is the same message with the same id, at a further place of its queue; :meth:`drain` has it handled. Of the
        call of a batch each message is. One that waits for its time can be delivered again when it was delivered.
        Raises HarnessError for what is no message, and for one that the broker does not have.
        """
        self._check_awaited("redeliver")
        cluster, group, stored = await self._stored(message)
        for each in stored:
            self._in_world.redeliver(cluster, group, each)
            self._seen.note(f"delivered again: {each.topic}  {shown(each.received_body)}")
        await self._pace.settle()

    async def _stored(self, message: Call | MessageExt | Sent) -> tuple[str | None, str | None, tuple[MessageExt, ...]]:
        """Messages at the broker, with their cluster, and the group that had them, if it is known."""
        if isinstance(message, Call):
            return message.cluster, message.group, message.messages
        if isinstance(message, MessageExt):
            return *self._seen.whose(message), (message,)
        if not isinstance(message, Sent):
            raise HarnessError(
                f"redeliver is given a {type(message).__qualname__}, and not one message: write "
                "harness.calls(handler)[0], harness.sent(topic)[0], or a message of a call, call.messages[0]; of "
                "several, each by itself"
            )
        if message.result is None:
            raise HarnessError(
                f"{message} was sent one-way (or its send failed, or a middleware lost the answer), so that its id is "
                "not known: take its call, harness.calls(handler)[0]"
            )
        found = await self._in_world.stored(message.cluster, message.result.topic, message.result.msg_id)
        if found is None and message.waits:
            raise HarnessError(
                f"{message} is not delivered yet, or was recalled: await harness.advance(...) until it is delivered"
            )
        if found is None:
            raise HarnessError(
                f"the broker has no message {message.result.msg_id} in topic {message.result.topic} ({message}): take "
                "its call, harness.calls(handler)[0]"
            )
        return message.cluster, None, (found,)

    # --- the service -------------------------------------------------------------------------------------------------

    def override(self, kind: Any, value: object) -> AbstractContextManager[object]:
        """Put an object in the place of a bean while the service runs: ``with harness.override(Desk, FakeDesk()):``.

        Handlers and hooks are given it from the next call on; beans that were made of the other one keep that. Without
        ``with`` it holds until :meth:`fresh` or the end. Raises HarnessError for what the service takes once, when it
        starts, such as middleware: that is given by ``beans``.
        """
        self._check_running()
        container = self.app.assembly.container
        found = container.planned.candidates(dependency_of(kind))
        if len(found) != 1:
            what = "no bean" if not found else f"{len(found)} beans"
            raise HarnessError(
                f"{what} of {self.app.name} would be overridden by {hint_name(kind)}; write the type that a parameter "
                'has, or Annotated[TheType, Qualifier("name")] for one of several'
            )
        if taken := taken_as(self.app.assembly, found[0]):
            name = hint_name(kind)
            raise HarnessError(
                f"{name} is {taken}, which {self.app.name} has taken when it started, so that nobody would be given "
                f"the other object: give it to the harness, Harness(app, beans={{{name}: ...}}), and with the fixture "
                f"@pytest.mark.harness(beans={{{name}: ...}})"
            )
        provider: Any = container.providers[found[0]]
        provider.override(value)
        mine = provider.last_overriding
        return self._changes.made(lambda: self._take_back(provider, mine))

    def _take_back(self, provider: Any, overriding: object) -> None:
        """Undo an override. One below others goes with these: a handler's thread must not see the bean in between."""
        over = self._overrides_over
        over.append(overriding)
        while any(provider.last_overriding is each for each in over):
            over.remove(provider.last_overriding)
            provider.reset_last_overriding()

    def freeze(self, group: str, *, cluster: str | None = None) -> AbstractContextManager[object]:
        """Let a group take nothing inside of the block: what is sent meanwhile waits at the broker.

        It begins with the call. Without ``with`` it holds until :meth:`fresh` or the end. A group that the service has
        paused itself, before or meanwhile, stays paused then.
        """
        self._check_running()
        container = self._listening(group, cluster)
        holding = self._frozen.setdefault(container, set())
        hold = object()

        def freeze() -> None:
            holding.add(hold)
            if container.state().status is ContainerStatus.RUNNING:
                container.pause(FROZEN)

        def let_go() -> None:
            holding.discard(hold)
            if not holding:
                container.end_pause(FROZEN)

        self._in_loop(freeze)
        return self._changes.made(lambda: self._in_loop(let_go))

    async def fresh(self) -> None:
        """Begin anew for another test while the service runs on: for a harness that is around several tests.

        Nothing is left of what was sent, called, raised or given up, and what still waits at the broker (for a retry, a
        delay, the end of a transaction, a frozen group) never comes. Overrides, frozen groups and faults are undone;
        after faults of broker or disk a minute passes, in which clients get over them. A group that ``invalid-limit``
        has paused goes on, and counts from 0; one that the service pauses itself stays so. Beans, hooks, schedules and
        the time of day go on as they are; batches for Spark listeners are numbered from 0 on. On a real broker what
        waits for a retry or a delay comes all the same.

        Raises HarnessError while a handler runs, and StuckError; and, once all of that is done, what handlers, hooks
        and background tasks had raised and nobody was told, as the end does.
        """
        self._check_awaited("fresh")
        world = self._in_world
        if await world.mend():
            await self._pace.advance(AFTER_FAULTS)
        await self._pace.settle()
        if not await self._pace.until(lambda: not self._seen.under_way.sending, LONGEST_DRAIN):
            raise StuckError([f"{what} waits for rocketbox" for what in self._seen.under_way.sends], self._patience)
        await self._pace.settle()
        if not self._nobody_is_busy():
            names = ", ".join(self._seen.under_way.at_work) or "a handler"
            raise HarnessError(f"{names} has not ended, and would go on in the next test: await harness.drain() first")
        world.pass_over_delays()
        for plan in self._listened.plans:
            container = self._listened.container(plan.group, plan.cluster)
            queues = [state.queue for state in container.consumer.state().queues]
            ends = await world.ends(plan.cluster, plan.group, queues)
            await container.skip(ends)
            self._offsets_before.update({(plan.group, plan.cluster, queue): end for queue, end in ends.items()})
        self._changes.undo_all()
        for plan in self._listened.plans:
            self._listened.container(plan.group, plan.cluster).begin_anew()
        self._failing.forget()
        await self._pace.settle()
        untold, hooks = self._untold, self._of_hooks
        self._log_of_untold = self.log if untold or hooks else ""
        self._seen.forget()
        self._batches.forget()
        world.clock.count_anew()
        self._raise_untold(untold, hooks)

    # --- faults ------------------------------------------------------------------------------------------------------

    @property
    def broker(self) -> BrokerFaults:
        """The broker, to be silent, stopped, started again. That of a further cluster: ``cluster("audit").broker``."""
        return self.cluster(None).broker

    @property
    def disk(self) -> DiskFaults:
        """The broker's disk, to be full. That of a further cluster: ``cluster("audit").disk``."""
        return self.cluster(None).disk

    def cluster(self, name: str | None) -> ClusterFaults:
        """The faults of a cluster: its ``broker`` and its ``disk``. None is the main one."""
        self._check_running()
        self._listened.check_cluster(name)
        return self._in_world.faults(name)

    def handler(self, handler: Callable[..., Any] | str) -> HandlerHandle:
        """A handler, given as its function or its name: ``harness.handler(pay).fails(2)``.

        Raises HarnessError for a name that several handlers have.
        """
        self._check_running()
        found = self._listened.handler(handler)
        return HandlerHandle(found.function, found.name, self._failing, self._seen.note)

    async def batch(
        self,
        listener: Callable[..., Any] | str,
        payloads: Iterable[object] | None = None,
        *,
        batch_id: int | None = None,
    ) -> Any:
        """Call a Spark listener with a batch of these payloads, and return what its function returned.

        The listener is given as its function, its name or its group. A payload is what a send takes (an object, text,
        bytes, a :class:`~rocketbox.Message` with tag, keys and properties), one of :meth:`sent`, or an
        :class:`Unreadable`. The function gets them as in production: with the listener's schema, in the form of
        ``as_``, without messages of other tags; ``on_invalid`` holds. Nobody else does: they are in no queue.

        Batches are numbered from 0 on. Without payloads the batch ``batch_id`` comes again, as the next attempt and
        with the same messages. What the function raises is raised here, and nothing comes back by itself.

        It runs on a local SparkSession of the process, which takes seconds to start. Raises HarnessError,
        JavaNotFoundError (from the fixture ``harness``: the test is skipped), InvalidRowError where ``on_invalid`` is
        ``fail``, InvalidMessageError and PayloadError for what cannot be sent.
        """
        self._check_awaited("batch")
        try:
            return await self._batches.deliver(listener, payloads, batch_id)
        finally:
            await self._in_world.look_for_dead_letters()

    # --- time --------------------------------------------------------------------------------------------------------

    @property
    def is_virtual(self) -> bool:
        """Whether its time is virtual; else it runs on a real broker."""
        return not self._name_servers

    @property
    def now(self) -> datetime:
        """What time it is, in UTC."""
        self._check_running()
        return datetime.fromtimestamp(self._in_world.clock.time_ms() / 1000, UTC)

    async def drain(self, *, failures: Failures | None = None) -> None:
        """Return when nothing is left to do now: all messages that could be handled were.

        Time moves only where a handler waits for it, as one does whose send is not answered, and until each send has
        ended, whoever sends (one with ``auto-batch`` waits for others). What handlers raised that is no signal
        (``Reject``, ``RetryLater``, ``BatchFailed``) is raised here, once: the exception itself, or an ExceptionGroup
        of several; ``failures="keep"`` leaves it in :meth:`calls`. So is what background tasks, scheduled functions and
        transaction listeners raised. Not waited for are threads that say ``daemon=True``, threads and timers of
        libraries, and what waits at the broker for a group that is frozen or paused (also by itself, at
        ``invalid-limit``: :attr:`log` says so). Raises StuckError.
        """
        self._check_awaited("drain")
        await self._pace.settle()
        if not await self._pace.until(
            lambda: self._nobody_is_busy() and not self._seen.under_way.sending, LONGEST_DRAIN
        ):
            waiting = [*self._seen.under_way.at_work, *self._seen.under_way.sends] or ["the consumer"]
            raise StuckError([f"{what} waits for rocketbox" for what in waiting], self._patience)
        await self._pace.settle()
        self._raise_unexpected(failures)

    async def advance(self, time: Time, *, failures: Failures | None = None) -> None:
        """Move time by ``"5h"``, ``"90s"`` or a timedelta; what is due on the way happens at its own time.

        What handlers raised meanwhile is raised as by :meth:`drain`.
        """
        self._check_awaited("advance")
        await self._pace.advance(_seconds(time))
        self._raise_unexpected(failures)

    async def consumed(
        self, group: str, count: int = 1, *, within: Time = "1d", cluster: str | None = None
    ) -> list[Call]:
        """The calls of a group that consumed ``count`` messages or more; time moves until there are so many.

        Raises AssertionError, with what happened instead, when a message of it becomes a dead letter first, or is lost
        (broadcasting), or when ``within`` has passed; HarnessError for a ``count`` below 1.
        """
        self._check_awaited("consumed")
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise HarnessError(f"count={count!r}: write how many messages the group is to consume, 1 or more")
        self._listened.check_group(group, cluster)
        dead = len(self._dead_letters(group, cluster))

        def calls() -> list[Call]:
            return self._calls_of(group, cluster)

        def so_many(outcome: Outcome = Outcome.CONSUMED) -> int:
            return sum(call.outcomes.count(outcome) for call in calls())

        lost = so_many(Outcome.LOST)

        def is_over() -> bool:
            given_up = len(self._dead_letters(group, cluster)) > dead or so_many(Outcome.LOST) > lost
            return so_many() >= count or given_up

        await self._pace.until(is_over, _seconds(within))
        self._seen.looked_at(calls())
        if (found := so_many()) < count:
            raise AssertionError(f"group {group} has consumed {found} messages, and not {count}\n{self.log}")
        return [call for call in calls() if Outcome.CONSUMED in call.outcomes]

    def _nobody_is_busy(self) -> bool:
        going = self._seen.under_way
        held = len(going.running) - len(going.running_now)  # each has a worker
        return not going.at_work and held >= sum(
            listeners.consumer.state().busy_workers
            for listeners in self.app.listeners.values()
            if hasattr(listeners, "consumer")
        )

    @property
    def _untold(self) -> list[Exception]:
        """What handlers have raised that the test was not told, nor has looked at; one that has failed knows enough."""
        return [] if self._failures == "keep" else self._seen.untold.errors(of_test=not reported.has_failed())

    @property
    def _of_hooks(self) -> list[Exception]:
        """What hooks, background tasks and the like have raised that the test was not told."""
        return [] if self._failures == "keep" else list(self._seen.of_hooks)

    def next_test(self, *, last_has_failed: bool) -> None:
        """Another test begins, of those that it is around. What handlers have raised in one that has failed is not told
        by ``fresh`` or the end; a later ``drain`` raises it, for it tells of all that was not asked for before."""
        self._log_of_untold = ""
        self._seen.untold.next_test(is_known=last_has_failed)

    def _raise_untold(self, of_handlers: Sequence[Exception], of_hooks: Sequence[Exception]) -> None:
        for each in of_handlers:
            note(
                each,
                "A handler has raised this, and the test has asked for none of drain(), advance(), calls(), "
                "dead_letters() and consumed() of it since: end the test with drain(), or expect it there; "
                'Harness(app, failures="keep") keeps it',
            )
        who = " and ".join(each for each, errors in (("handlers", of_handlers), ("hooks", of_hooks)) if errors)
        _raise_all(f"{who} of {self.app.name} have failed", [*of_handlers, *of_hooks])

    def _raise_unexpected(self, failures: Failures | None) -> None:
        kept = self._failures if failures is None else _checked(failures)
        if self._blocking is not None:  # else it is the loop of an async test
            self._seen.under_way.let_go_of_lost_tasks()
        unexpected = [each for each in self._seen.unexpected if isinstance(each, Exception)]
        self._seen.unexpected.clear()
        self._seen.of_hooks.clear()
        self._seen.untold.know_all()
        if kept == "raise":
            _raise_all(f"handlers of {self.app.name} have failed", unexpected)

    # --- what was seen -----------------------------------------------------------------------------------------------

    def sent(self, topic: str, *, cluster: str | None = None) -> SentMessages:
        """The messages that were sent to a topic, by the service or the test, in their order.

        In memory they are those that the broker has stored, whatever their senders were told: one that was sent one-way
        or in a transaction from the next :meth:`drain` on.
        """
        self._check_begun()
        self._listened.check_cluster(cluster)
        if not isinstance(topic, str):
            raise HarnessError(
                f'sent is given a {type(topic).__qualname__}, and not the name of a topic: write sent("orders"); the '
                "calls of a handler are harness.calls(handler)"
            )
        plain, tagged, tag = topic.partition(":")
        if tagged:
            raise HarnessError(
                f"sent({topic!r}) names a topic and a tag: messages are found by their topic, sent({plain!r}), and "
                f"each has its tag, {tag!r}"
            )
        same = self._listened.same_as(cluster)
        found = [each for each in self._seen.sent if each.topic == topic and each.cluster == same]
        return SentMessages(topic, found, lambda: [each.topic for each in self._seen.sent], lambda: self.log)

    def calls(self, handler: Callable[..., Any] | str) -> list[Call]:
        """The calls of a handler, given as its function or its name, in the order in which they began.

        Each run of its function is one, also where middleware of the service repeats it. Those that middleware did not
        pass on to it are not among them: :meth:`consumed` has them, if they have consumed their messages, and
        :attr:`log` has all. Raises HarnessError for a name that several handlers have.
        """
        self._check_begun()
        self._listened.handler(handler)
        found = [
            each for each in self._seen.calls
            if each.passed_on and is_meant(handler, each.function, each.listener)
        ]  # fmt: skip
        self._seen.looked_at(found)
        return found

    def dead_letters(self, group: str, *, cluster: str | None = None) -> list[DeadLetter]:
        """What a group has given up, with why, in the order in which it came to its dead-letter queue."""
        self._check_begun()
        self._listened.check_group(group, cluster, or_of_spark=True)
        self._seen.looked_at(self._calls_of(group, cluster))
        return self._dead_letters(group, cluster)

    def offsets(self, group: str, *, cluster: str | None = None) -> list[QueueOffsets]:
        """How far a group is with each of its queues that hold anything."""
        found = []
        for state in self._listening(group, cluster).consumer.state().queues:
            before = self._offsets_before.get((group, cluster, state.queue), 0)
            end = self._in_world.end_offset(cluster, group, state.queue, state.commit_offset + state.lag) - before
            if end > 0:
                consumed = max(0, state.commit_offset - before)
                found.append(QueueOffsets(state.queue.topic, state.queue.queue_id, consumed, end))
        return found

    @property
    def log(self) -> str:
        """What happened, a line for each event, in the order of virtual time; also when the harness is over.

        Secrets of the settings are masked in it, also when the start failed: a failing test's report, which may be
        public, shows it.
        """
        entries = [] if self._world is None else self._seen.log
        secrets = frozenset[str]().union(*(each.secrets for each in self._settings))
        return mask("\n".join(str(entry) for entry in entries), secrets) or "nothing has happened"

    @property
    def log_for_report(self) -> str:
        """The log, for the report of a test that has failed: where ``fresh()`` has raised, also that of before."""
        return f"{self._log_of_untold}\nfresh() has raised, and then: {self.log}" if self._log_of_untold else self.log

    def _calls_of(self, group: str, cluster: str | None) -> list[Call]:
        same = self._listened.same_as(cluster)
        return [each for each in self._seen.calls if each.group == group and each.cluster == same]

    def _dead_letters(self, group: str, cluster: str | None) -> list[DeadLetter]:
        same = self._listened.same_as(cluster)
        return [each for each in self._seen.dead if each.group == group and each.cluster == same]

    def _listening(self, group: str, cluster: str | None) -> Any:
        self._check_begun()
        return self._listened.container(group, cluster)

    def _check_begun(self) -> None:
        if self._world is None:
            raise NotStartedError(repr(self), self._how_to_start)


def _raise_all(what: str, errors: Sequence[Exception]) -> None:
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ExceptionGroup(what, list(errors))


def _checked(failures: Failures) -> Failures:
    if failures not in ("raise", "keep"):
        raise HarnessError(f'failures={failures!r}: write "raise", or "keep" to find them in calls(...) alone')
    return failures


def _seconds(time: Time) -> float:
    if str(time).strip().isdecimal():
        raise HarnessError(f'{time!r} has no unit: write "{time}s" for seconds, "{time}m" for minutes, or a timedelta')
    try:
        seconds = parse_duration(time, bare_numbers=False).total_seconds()
    except ValueError as error:
        raise HarnessError(f"{time!r} is {error}") from error
    if seconds < 0:
        raise HarnessError(f"{time!r} is in the past, and time goes forward only")
    return seconds


def _telling_of_settings(launch: Launch, tell: Callable[[Settings], object]) -> Launch:
    return replace(launch, machine=replace(launch.machine, settings_read=tell))
