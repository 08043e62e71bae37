"""Beans: found by type, built in order, started and closed; and errors that say what would mend them."""

import asyncio
import functools
import logging
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol, Self, TextIO

import anyio
import pytest
from dependency_injector import providers
from typing_extensions import TypeAliasType

from rocketbox.boot.beans import BeanContainer
from rocketbox.boot.conditions import on_bean, on_missing_bean, on_profile, on_property
from rocketbox.boot.marks import Cluster, Phase, Qualifier, bean, primary
from rocketbox.clock import RealClock
from rocketbox.errors import ClientStateError, ConfigurationError, Finding, NotStartedError


@dataclass
class Written:
    """Settings of which only the texts matter."""

    texts: dict[str, str] = field(default_factory=dict)
    profiles: tuple[str, ...] = ()

    def text(self, key: str) -> str | None:
        return self.texts.get(key)


class Engine:
    def __init__(self, name: str = "engine") -> None:
        self.name = name


class Diesel(Engine):
    pass


class Car:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine


class Audible(Protocol):
    def sound(self) -> str: ...


class Horn(Audible):
    def sound(self) -> str:
        return "honk"


@bean
def engine() -> Engine:
    return Engine()


@bean
def car(engine: Engine) -> Car:
    return Car(engine)


def container(*targets: Callable[..., Any], auto: tuple[Callable[..., Any], ...] = (), **options: Any) -> BeanContainer:
    settings = options.pop("settings", None) or Written()
    made = BeanContainer(settings, RealClock(), **options)
    for target in targets:
        made.add(target)
    for target in auto:
        made.add(target, automatic=True)
    return made


def one_finding(made: BeanContainer) -> str:
    (finding,) = made.plan()
    return without_lines(str(finding))


def without_lines(text: str) -> str:
    """Golden texts name this file; its line numbers change with every edit."""
    return re.sub(r"[\w/.-]*test_beans_container\.py:\d+", "HERE", text)


async def start_all(made: BeanContainer, stack: AsyncExitStack) -> BeanContainer:
    assert made.plan() == []
    for phase in Phase:
        await made.start(phase, stack)
    return made


pytestmark = pytest.mark.anyio


async def test_a_bean_is_given_what_its_parameters_ask_for() -> None:
    async with AsyncExitStack() as stack:
        beans = await start_all(container(car, engine), stack)
        assert beans.get(Car).engine is beans.get(Engine)
        assert beans.resolve(Car) is beans.get(Car)
        assert beans.provider(Car)() is beans.get(Car)


async def test_a_class_is_a_bean_with_its_constructor() -> None:
    @bean
    class Garage:
        def __init__(self, car: Car) -> None:
            self.car = car

    async with AsyncExitStack() as stack:
        beans = await start_all(container(Garage, car, engine), stack)
        assert beans.get(Garage).car is beans.get(Car)


async def test_a_bean_answers_for_its_base_classes_and_protocols() -> None:
    @bean
    def diesel() -> Diesel:
        return Diesel("d")

    @bean
    def horn() -> Horn:
        return Horn()

    async with AsyncExitStack() as stack:
        beans = await start_all(container(car, diesel, horn), stack)
        assert beans.get(Car).engine is beans.get(Diesel)
        audible: Any = beans.resolve(Audible)
        assert audible.sound() == "honk"


async def test_a_qualifier_picks_one_of_several() -> None:
    @bean(name="spare")
    def other() -> Engine:
        return Engine("spare")

    @bean
    def picky(engine: Annotated[Engine, Qualifier("spare")]) -> Car:
        return Car(engine)

    async with AsyncExitStack() as stack:
        beans = await start_all(container(engine, other, picky), stack)
        assert beans.get(Car).engine.name == "spare"
        assert beans.get(Engine, "engine").name == "engine"


async def test_a_qualifier_of_a_return_type_is_the_name_of_the_bean() -> None:
    @bean
    def plain() -> Annotated[Engine, Qualifier("one")]:
        return Engine("one")

    @bean
    def yielding() -> Iterator[Annotated[Engine, Qualifier("two")]]:
        yield Engine("two")

    @bean
    async def waiting() -> AsyncIterator[Annotated[Engine, Qualifier("three")]]:
        yield Engine("three")

    @bean
    @asynccontextmanager
    async def managed() -> AsyncIterator[Annotated[Engine, Qualifier("four")]]:
        yield Engine("four")

    @bean(name="five")
    def named() -> Annotated[Engine, Qualifier("other")]:
        return Engine("five")

    async with AsyncExitStack() as stack:
        beans = await start_all(container(plain, yielding, waiting, managed, named), stack)
        for name in ("one", "two", "three", "four", "five"):
            assert beans.get(Engine, name).name == name


async def test_a_list_is_given_all_and_an_optional_is_none_when_there_is_none() -> None:
    @dataclass
    class Shop:
        engines: list[Engine]
        car: Car | None
        colour: str

    @bean(name="spare")
    def other() -> Engine:
        return Engine("spare")

    @bean
    def shop(engines: list[Engine], car: Car | None, colour: str = "red") -> Shop:
        return Shop(engines, car, colour)

    async with AsyncExitStack() as stack:
        beans = await start_all(container(engine, other, shop), stack)
        assert [each.name for each in beans.get(Shop).engines] == ["engine", "spare"]
        assert beans.get(Shop).car is None
        assert beans.get(Shop).colour == "red"
        assert beans.resolve(list[Engine]) == beans.get(Shop).engines
        assert beans.resolve(Car | None) is None
        assert beans.resolve(list[Car]) == []


async def test_beans_of_every_style_start_in_order_and_close_in_reverse() -> None:
    events: list[str] = []

    class Entered:
        async def __aenter__(self) -> Self:
            events.append("enter entered")
            return self

        async def __aexit__(self, *error: object) -> None:
            events.append("leave entered")

    class A:
        pass

    class B:
        pass

    class C:
        pass

    class D:
        pass

    @bean
    async def made_async(entered: Entered) -> A:
        await anyio.lowlevel.checkpoint()
        events.append("async")
        return A()

    @bean
    async def async_generator(a: A) -> AsyncIterator[B]:
        events.append("enter async generator")
        yield B()
        events.append("leave async generator")

    @bean
    def generator(b: B) -> Iterator[C]:
        events.append("enter generator")
        yield C()
        events.append("leave generator")

    @bean
    @asynccontextmanager
    async def manager(c: C) -> AsyncIterator[D]:
        events.append("enter manager")
        yield D()
        events.append("leave manager")

    async with AsyncExitStack() as stack:
        beans = await start_all(container(manager, generator, async_generator, made_async, Entered), stack)
        assert isinstance(beans.get(D), D)
        assert isinstance(beans.get(C), C)
        assert isinstance(beans.get(B), B)
        assert isinstance(beans.get(A), A)
    up = ["enter entered", "async", "enter async generator", "enter generator", "enter manager"]
    assert events == [*up, "leave manager", "leave generator", "leave async generator", "leave entered"]


async def test_a_lock_that_is_a_bean_is_not_taken() -> None:
    @bean
    def lock() -> anyio.Lock:
        return anyio.Lock()

    async with AsyncExitStack() as stack:
        beans = await start_all(container(lock), stack)
        assert not beans.get(anyio.Lock).locked()


async def test_what_an_early_bean_needs_starts_as_early() -> None:
    events: list[str] = []

    @bean
    def users_engine() -> Engine:
        events.append("engine")
        return Engine()

    @bean(phase=Phase.TEMPLATE)
    def template(engine: Engine) -> Car:
        events.append("car")
        return Car(engine)

    made = container(users_engine, auto=(template,))
    assert made.plan() == []
    async with AsyncExitStack() as stack:
        await made.start(Phase.TEMPLATE, stack)
        assert events == ["engine", "car"]


async def test_a_bean_cannot_be_had_before_its_phase() -> None:
    made = container(engine)
    assert made.plan() == []
    assert made.has(Engine)
    with pytest.raises(NotStartedError, match="bean engine"):
        made.get(Engine)


async def test_the_container_of_dependency_injector_can_be_overridden() -> None:
    class Fake(Engine):
        pass

    made = container(car, engine)
    assert made.plan() == []
    fake = Fake()
    made.providers.container.engine.override(fake)
    async with AsyncExitStack() as stack:
        for phase in Phase:
            await made.start(phase, stack)
        assert made.get(Car).engine is fake
        assert made.get(Engine) is fake


async def test_an_override_counts_after_the_start_as_well_and_can_be_taken_back() -> None:
    async with AsyncExitStack() as stack:
        made = await start_all(container(car, engine), stack)
        own, fake = made.get(Engine), Engine("fake")
        with made.providers.container.engine.override(fake):
            assert made.get(Engine) is fake
            assert made.resolve(list[Engine]) == [fake]
            assert made.get(Car).engine is own  # what was built keeps what it was given
        assert made.get(Engine) is own


async def test_what_an_override_replaces_is_neither_started_nor_closed() -> None:
    events: list[str] = []

    @bean
    def opened() -> Iterator[Engine]:
        events.append("started")
        yield Engine()
        events.append("closed")

    made = container(car, opened)
    fake = Engine("fake")
    made.override(Engine, fake)
    assert made.plan() == []
    async with AsyncExitStack() as stack:
        for phase in Phase:
            await made.start(phase, stack)
        assert made.get(Car).engine is fake
    assert events == []


async def test_an_override_is_a_bean_also_where_nothing_else_provides_its_type() -> None:
    made = container(car)
    made.override(Engine, fake := Engine("fake"))
    async with AsyncExitStack() as stack:
        assert (await start_all(made, stack)).get(Car).engine is fake


async def test_conditions_see_what_an_override_provides() -> None:
    @bean(on_missing_bean(Engine))
    def automatic() -> Engine:
        raise AssertionError("it is built")

    @bean(on_bean(Engine))
    def driver(engine: Engine) -> Car:
        return Car(engine)

    made = container(auto=(automatic, driver), settings=Written())
    made.override(Engine, fake := Engine("fake"))
    async with AsyncExitStack() as stack:
        assert (await start_all(made, stack)).get(Car).engine is fake


async def test_an_override_takes_the_name_and_cluster_of_the_bean_whose_place_it_takes() -> None:
    @bean(on_property("engine.made"))
    def off() -> Engine:
        raise AssertionError("it is built")

    @bean(per_cluster=True)
    def horn() -> Horn:
        return Horn()

    made = container(off, horn, prefix="main", clusters={"audit": "clusters.audit"})
    made.override(Engine, fake := Engine("fake"))
    made.override(Annotated[Horn, Qualifier("audit")], ours := Horn())
    async with AsyncExitStack() as stack:
        beans = await start_all(made, stack)
        assert beans.get(Engine, "off") is fake
        assert beans.providers.container.off() is fake
        assert beans.get(Horn, "audit") is ours
        assert beans.get(Horn) is not ours


def test_an_override_of_one_of_several_has_to_say_which() -> None:
    @bean
    def other() -> Engine:
        return Engine()

    made = container(engine, other)
    made.override(Engine, Engine())
    assert "an override needs one bean of type Engine, and there are 2: engine" in str(made.plan()[0])


async def test_what_was_overridden_at_the_start_says_so_when_the_override_is_taken_back() -> None:
    made = container(engine)
    made.override(Engine, Engine("fake"))
    async with AsyncExitStack() as stack:
        beans = await start_all(made, stack)
        beans.providers.container.engine.reset_override()
        with pytest.raises(ClientStateError, match="bean engine was overridden when the application started"):
            beans.providers.container.engine()


async def test_a_provider_is_asked_anew_at_each_call() -> None:
    async with AsyncExitStack() as stack:
        beans = await start_all(container(engine, car), stack)
        ask, ask_all, maybe = beans.provider(Engine), beans.provider(list[Engine]), beans.provider(Horn | None)
        own, fake = beans.get(Engine), Engine("fake")
        with beans.providers.container.engine.override(fake):
            assert (ask(), ask_all(), maybe()) == (fake, [fake], None)
        assert (ask(), ask_all()) == (own, [own])
        with pytest.raises(ConfigurationError, match="needs a bean of type Horn, and there is none"):
            beans.provider(Horn)


async def test_a_bean_is_not_built_by_the_container_before_its_start() -> None:
    made = container(engine)
    assert made.plan() == []
    with pytest.raises(NotStartedError, match="bean engine"):
        made.providers.container.engine()


async def test_the_container_says_which_beans_there_are() -> None:
    made = container(engine, car)
    assert made.plan() == []
    with pytest.raises(AttributeError, match="the application has no bean 'motor'; there are: car, engine"):
        _ = made.providers.container.motor


# --- which of several is given ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["bean", "primary"])
async def test_of_several_beans_the_primary_one_is_given(first: str) -> None:
    def spare() -> Engine:
        return Engine("spare")

    marked = primary(bean(spare)) if first == "bean" else bean(primary(spare))
    async with AsyncExitStack() as stack:
        beans = await start_all(container(engine, marked, car), stack)
        assert beans.get(Car).engine.name == "spare"
        assert beans.resolve(Engine | None).name == "spare"
        assert [each.name for each in beans.resolve(list[Engine])] == ["engine", "spare"]
        assert beans.get(Engine, "engine").name == "engine"


async def test_a_primary_bean_may_stand_around_another_of_its_type() -> None:
    @bean
    @primary
    def tuned(engine: Engine) -> Engine:
        return Engine(f"tuned {engine.name}")

    async with AsyncExitStack() as stack:
        assert (await start_all(container(tuned, engine, car), stack)).get(Car).engine.name == "tuned engine"


def test_several_primary_beans_are_ambiguous() -> None:
    @bean
    @primary
    def first() -> Engine:
        return Engine()

    @bean
    @primary
    def second() -> Engine:
        return Engine()

    assert one_finding(container(first, second, engine, car)) == (
        "parameter engine of bean car needs one bean of type Engine, and there are 2 primary ones: first (HERE), "
        "second (HERE)\n    where: HERE\n"
        '    fix:   ask for one by name, Annotated[Engine, Qualifier("first")], or for all, list[Engine], or leave '
        "@primary on one of them"
    )


# --- what is closed ---------------------------------------------------------------------------------------------------


class Closed:
    """Notes what is called."""

    def __init__(self) -> None:
        self.calls: list[str] = []


class Pool(Closed):
    """As those of asyncpg, aiomysql and aio-pika: connections are acquired and released."""

    async def __aenter__(self) -> Self:
        self.calls.append("enter")
        return self

    async def __aexit__(self, *error: object) -> None:
        self.calls.append("leave")

    async def acquire(self) -> None:
        raise AssertionError("nobody wants a connection")

    def release(self, connection: object) -> None: ...

    def close(self) -> None:
        raise AssertionError("leaving it has closed it")


class Closeable(Closed):
    def close(self) -> None:
        self.calls.append("close")


class AsyncCloseable(Closeable):
    async def aclose(self) -> None:
        self.calls.append("aclose")


class CloseableByCoroutine(Closed):
    async def close(self) -> None:
        await anyio.lowlevel.checkpoint()
        self.calls.append("close")


class WaitsUntilClosed(Closeable):
    async def wait_closed(self) -> None:
        self.calls.append("wait_closed")


class ClosesTickets(Closed):
    def close(self, ticket: str) -> None:
        raise AssertionError("no bean is closed so")


@pytest.mark.parametrize(
    ("kind", "calls"),
    [
        (Pool, ["enter", "leave"]),
        (Closeable, ["close"]),
        (AsyncCloseable, ["aclose"]),
        (CloseableByCoroutine, ["close"]),
        (WaitsUntilClosed, ["close", "wait_closed"]),
        (ClosesTickets, []),
    ],
)
@pytest.mark.parametrize("style", ["class", "function", "coroutine function"])
async def test_a_bean_is_closed_by_what_it_has(kind: Any, calls: list[str], style: str) -> None:
    def function() -> Closed:
        made: Closed = kind()
        return made

    async def coroutine() -> Closed:
        made: Closed = kind()
        return made

    target = {"class": kind, "function": function, "coroutine function": coroutine}[style]
    async with AsyncExitStack() as stack:
        made = (await start_all(container(target), stack)).resolve(kind if style == "class" else Closed)
        assert made.calls == calls[: calls == ["enter", "leave"]]
    assert made.calls == calls


async def test_an_object_is_closed_once_and_not_at_all_by_who_only_hands_it_on() -> None:
    @bean
    def own() -> Closeable:
        return Closeable()

    @bean
    def alias(closeable: Closeable) -> Closed:
        return closeable

    @bean
    def kept() -> Iterator[AsyncCloseable]:
        yield AsyncCloseable()

    @bean
    def handed_on(kept: AsyncCloseable) -> Annotated[Closed, Qualifier("other")]:
        return kept

    async with AsyncExitStack() as stack:
        beans = await start_all(container(alias, handed_on, kept, auto=(primary(own),)), stack)
        own_, kept_ = beans.resolve(Annotated[Closeable, Qualifier("own")]), beans.get(AsyncCloseable)
    assert (own_.calls, kept_.calls) == (["close"], [])


async def test_what_an_override_makes_and_drops_keeps_nobody_from_being_closed() -> None:
    def replaced() -> Engine:
        raise AssertionError("it is built")

    def closeable() -> Closeable:
        return Closeable()

    made = BeanContainer(Written(), RealClock())
    for number in range(50):
        for function in (replaced, closeable):
            wrapper = functools.wraps(function)(functools.partial(function))
            made.add(bean(name=f"{function.__name__}{number}")(wrapper))
    assert made.plan() == []
    for number in range(50):  # what these make is gone at once, and its id free for the next object
        getattr(made.providers.container, f"replaced{number}").override(providers.Factory(Closeable))
    async with AsyncExitStack() as stack:
        for phase in Phase:
            await made.start(phase, stack)
        all_ = made.resolve(list[Closeable])
    assert [each.calls for each in all_] == [["close"]] * 50


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_must_not_be_closed_is_left_alone(anyio_backend: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "rocketbox.boot.entering")

    @bean
    def loop() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    @bean
    def gate() -> asyncio.Semaphore:
        return asyncio.Semaphore(1)

    @bean
    def out() -> TextIO:
        return sys.stdout

    @bean(close=False)
    def pool() -> Pool:
        return Pool()

    async with AsyncExitStack() as stack:
        beans = await start_all(container(loop, gate, out, pool, engine), stack)
        assert not beans.get(asyncio.Semaphore).locked()
    assert beans.get(Pool).calls == []
    assert not sys.stdout.closed
    assert "bean gate is a Semaphore: it is neither entered nor closed" in caplog.messages
    assert "bean pool says close=False: nothing is closed at the stop" in caplog.messages
    assert "bean engine: nothing of Engine is closed at the stop" in caplog.messages


async def test_a_bean_that_can_be_awaited_is_not_taken_for_a_future() -> None:
    class Awaitable:
        def __await__(self) -> Iterator[None]:
            yield None

    @bean
    def awaitable() -> Awaitable:
        return Awaitable()

    async with AsyncExitStack() as stack:
        beans = await start_all(container(awaitable), stack)
        assert type(beans.get(Awaitable)) is Awaitable


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_who_needs_a_future_is_built_from_it_and_becomes_none_himself() -> None:
    @dataclass
    class Waiter:
        job: asyncio.Future[int]
        jobs: list[asyncio.Future[int]]

    @bean
    async def job() -> asyncio.Future[int]:
        return asyncio.get_running_loop().create_future()

    @bean
    def waiter(job: asyncio.Future[int], jobs: list[asyncio.Future[int]]) -> Waiter:
        return Waiter(job, jobs)

    async with AsyncExitStack() as stack:
        beans = await start_all(container(waiter, job), stack)
        made = beans.get(Waiter)
        assert type(made) is Waiter
        assert made.jobs == [made.job]


async def test_an_async_bean_function_is_run_also_behind_a_decorator() -> None:
    def plain(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def inner(*args: Any, **named: Any) -> Any:
            return function(*args, **named)

        return inner

    @bean
    @plain
    async def engine() -> Engine:
        return Engine("awaited")

    @bean
    @plain
    async def car(engine: Engine) -> AsyncIterator[Car]:
        yield Car(engine)

    @bean
    @plain
    def horn(car: Car) -> Iterator[Horn]:
        yield Horn()

    async with AsyncExitStack() as stack:
        beans = await start_all(container(horn, car, engine), stack)
        assert beans.get(Car).engine.name == "awaited"
        assert type(beans.get(Horn)) is Horn


async def test_a_named_alias_asks_for_what_it_stands_for() -> None:
    async with AsyncExitStack() as stack:
        beans = await start_all(container(engine), stack)
        assert beans.resolve(TypeAliasType("Motor", Engine)) is beans.get(Engine)


async def test_a_list_of_which_there_is_none_is_an_empty_list_or_the_default() -> None:
    @dataclass
    class Shop:
        engines: list[Engine]
        names: list[str] = field(default_factory=lambda: ["UA"])

    async with AsyncExitStack() as stack:
        beans = await start_all(container(bean(Shop)), stack)
        assert beans.get(Shop) == Shop([], ["UA"])


@pytest.mark.parametrize("style", ["plain", "async"])
async def test_a_bean_that_is_none_is_told(style: str) -> None:
    @bean
    def plain() -> Engine:
        Engine()  # and no return
        return None  # type: ignore[return-value]  # that is the fault

    @bean
    async def waiting() -> Engine:
        return None  # type: ignore[return-value]

    with pytest.raises(ConfigurationError, match="returned None, and says that it provides a Engine"):
        async with AsyncExitStack() as stack:
            await start_all(container(plain if style == "plain" else waiting), stack)


def test_a_bean_that_is_a_list_is_refused_for_a_list_asks_for_all_beans() -> None:
    @bean
    def hosts() -> list[str]:
        return ["ua", "lh"]

    assert one_finding(container(hosts)) == (
        "bean hosts is a list[str], which asks for all beans of type str, so that nobody could have it\n"
        "    where: HERE\n"
        "    fix:   return a tuple[str, ...], or a class that has the list"
    )


def test_an_override_for_a_list_is_refused() -> None:
    made = container(engine)
    made.override(list[Engine], [Engine(), Engine()])
    assert "an override is for list[Engine], which asks for all of them" in str(made.plan()[0])


async def test_a_bean_that_fails_names_itself_and_what_was_started_is_closed() -> None:
    events: list[str] = []

    @bean
    def opened() -> Iterator[Engine]:
        try:
            yield Engine()
        finally:
            events.append("closed")

    @bean
    def broken(engine: Engine) -> Car:
        raise ValueError("no wheels")

    made = container(opened, broken)
    assert made.plan() == []
    with pytest.raises(ConfigurationError) as caught:
        async with AsyncExitStack() as stack:
            await made.start(Phase.BEANS, stack)
    assert "bean broken failed to start: ValueError: no wheels" in str(caught.value)
    assert isinstance(caught.value.__cause__, ValueError)
    assert events == ["closed"]


async def test_all_that_fail_when_they_are_closed_are_told() -> None:
    class Closing(Engine):
        async def aclose(self) -> None:
            raise ValueError(f"{self.name} is stuck")

    @bean
    def first() -> Closing:
        return Closing("first")

    @bean
    async def second(first: Closing) -> AsyncIterator[Horn]:
        yield Horn()
        raise OSError("the second as well")

    made = container(first, second)
    with pytest.raises(ValueError, match="first is stuck") as caught:
        async with AsyncExitStack() as stack:
            await start_all(made, stack)
    assert [finding.what for finding in made.failures.findings(caught.value)] == [
        "bean second failed when it was closed: OSError: the second as well",
        "bean first failed when it was closed: ValueError: first is stuck",
    ]


async def test_a_start_that_fails_closes_beans_of_every_style_in_reverse() -> None:
    events: list[str] = []

    class A:
        async def __aenter__(self) -> Self:
            return self

        async def __aexit__(self, *error: object) -> None:
            events.append("entered")

    class B:
        pass

    class C:
        pass

    @bean
    def generator(a: A) -> Iterator[B]:
        try:
            yield B()
        finally:
            events.append("generator")

    @bean
    async def async_generator(b: B) -> AsyncIterator[C]:
        try:
            yield C()
        finally:
            events.append("async generator")

    @bean
    @asynccontextmanager
    async def manager(c: C) -> AsyncIterator[Engine]:
        try:
            yield Engine()
        finally:
            events.append("manager")

    @bean
    async def broken(engine: Engine) -> Car:
        raise ValueError("no wheels")

    made = container(broken, manager, async_generator, generator, A)
    assert made.plan() == []
    with pytest.raises(ConfigurationError, match="bean broken failed to start: ValueError: no wheels"):
        async with AsyncExitStack() as stack:
            await made.start(Phase.BEANS, stack)
    assert events == ["manager", "async generator", "generator", "entered"]


async def test_what_a_bean_with_tasks_raises_is_told_without_its_group() -> None:
    @bean
    async def broken() -> AsyncIterator[Engine]:
        async with anyio.create_task_group():
            raise ConfigurationError(Finding("no name server answers"))
        yield Engine()

    made = container(broken)
    assert made.plan() == []
    with pytest.raises(ConfigurationError) as caught:
        async with AsyncExitStack() as stack:
            await made.start(Phase.BEANS, stack)
    assert caught.value.findings == (Finding("no name server answers"),)


# --- auto-configuration --------------------------------------------------------------------------------------------


@bean(on_property("car.engine"), on_missing_bean(Engine))
def auto_engine() -> Engine:
    return Engine("auto")


@bean(on_bean(Engine), after=[auto_engine])
def auto_car(engine: Engine) -> Car:
    return Car(engine)


async def test_a_users_bean_wins_over_an_automatic_one_whatever_its_name() -> None:
    @bean
    def mine() -> Diesel:
        return Diesel("mine")

    async with AsyncExitStack() as stack:
        settings = Written({"car.engine": "yes"})
        beans = await start_all(container(mine, auto=(auto_car, auto_engine), settings=settings), stack)
        assert beans.get(Car).engine.name == "mine"
    assert without_lines(beans.report.render()) == (
        "CONDITIONS REPORT\n\n"
        "Taken:\n"
        "  auto_car  (HERE)\n"
        "      Engine is provided by mine\n\n"
        "Not taken:\n"
        "  auto_engine  (HERE)\n"
        "      Engine is provided already, by mine\n\n"
        "Excluded:\n"
        "  none"
    )


async def test_after_decides_what_a_condition_sees() -> None:
    async with AsyncExitStack() as stack:
        settings = Written({"car.engine": "yes"})
        beans = await start_all(container(auto=(auto_car, auto_engine), settings=settings), stack)
        assert beans.get(Car).engine.name == "auto"


def test_a_missing_bean_names_the_condition_that_failed_and_its_key() -> None:
    @bean
    def trip(car: Car) -> Horn:
        return Horn()

    assert one_finding(container(trip, auto=(auto_car, auto_engine))) == (
        "parameter car of bean trip needs a bean of type Car, and there is none: auto_car was not built because "
        "nothing provides Engine: auto_engine was not built because car.engine is not set\n"
        "    where: HERE\n"
        "    fix:   set car.engine"
    )


def test_a_missing_bean_names_all_that_were_left_out_or_the_one_of_its_name() -> None:
    @bean(on_profile("dev"))
    def small() -> Engine:
        return Engine()

    @bean(on_profile("prod"))
    def large() -> Engine:
        return Engine()

    @bean
    def picky(engine: Annotated[Engine, Qualifier("large")]) -> Horn:
        return Horn()

    first, second = [without_lines(str(finding)) for finding in container(small, large, car, picky).plan()]
    assert first == (
        "parameter engine of bean car needs a bean of type Engine, and there is none: small was not built because "
        "profile dev is not active (active: none); large was not built because profile prod is not active (active: "
        "none)\n"
        "    where: HERE\n"
        "    fix:   make profile dev active with rocketbox.profiles.active, or make profile prod active with "
        "rocketbox.profiles.active"
    )
    assert second == (
        "parameter engine of bean picky needs a bean of type Engine named 'large', and there is none: large was not "
        "built because profile prod is not active (active: none)\n"
        "    where: HERE\n"
        "    fix:   make profile prod active with rocketbox.profiles.active"
    )


def test_a_missing_bean_that_nobody_defines() -> None:
    assert one_finding(container(car)) == (
        "parameter engine of bean car needs a bean of type Engine, and there is none\n"
        "    where: HERE\n"
        "    fix:   write a @bean function that returns Engine"
    )


def test_an_ambiguous_bean_names_all_that_there_are() -> None:
    @bean
    def diesel() -> Diesel:
        return Diesel()

    assert one_finding(container(car, engine, diesel)) == (
        "parameter engine of bean car needs one bean of type Engine, and there are 2: engine (HERE), diesel (HERE)\n"
        "    where: HERE\n"
        '    fix:   ask for one by name, Annotated[Engine, Qualifier("engine")], or for all, list[Engine], or mark one '
        "of them @primary"
    )


def test_an_optional_bean_of_which_there_are_several_is_ambiguous() -> None:
    @bean
    def diesel() -> Diesel:
        return Diesel()

    @bean
    def trip(engine: Engine | None) -> Car:
        return Car(engine or Engine())

    assert "parameter engine of bean trip needs one bean of type Engine, and there are 2" in one_finding(
        container(trip, engine, diesel)
    )


def test_a_class_names_its_parameter_and_place_when_a_bean_is_missing() -> None:
    @bean(name="night")
    class Garage:
        def __init__(self, spare: Annotated[Engine, Qualifier("spar")]) -> None:
            self.spare = spare

    @bean
    def spare() -> Engine:
        return Engine()

    assert one_finding(container(Garage, engine, spare)) == (
        "parameter spare of bean night needs a bean of type Engine named 'spar', and there is none; of this type there "
        "is engine (HERE), spare (HERE)\n"
        "    where: HERE\n"
        '    fix:   did you mean Annotated[Engine, Qualifier("spare")]?'
    )


def test_classes_in_a_circle_are_named_with_all_that_is_between() -> None:
    class First:
        def __init__(self, second: "Second") -> None: ...

    class Second:
        def __init__(self, third: "Third") -> None: ...

    class Third:
        def __init__(self, first: First) -> None: ...

    for class_ in (First, Second):
        class_.__init__.__annotations__.update(second=Second, third=Third)
    assert "beans need each other in a circle: First -> Second -> Third -> First" in one_finding(
        container(First, Second, Third)
    )


def test_an_override_opens_a_circle() -> None:
    @bean
    def chicken(egg: Car) -> Engine:
        return egg.engine

    @bean
    def egg(chicken: Engine) -> Car:
        return Car(chicken)

    made = container(chicken, egg)
    assert len(made.plan()) == 1
    made.override(Engine, Engine())
    assert made.plan() == []


def test_beans_in_a_circle_are_named_in_their_order() -> None:
    @bean
    def chicken(egg: Car) -> Engine:
        return egg.engine

    @bean
    def egg(chicken: Engine) -> Car:
        return Car(chicken)

    assert one_finding(container(chicken, egg)) == (
        "beans need each other in a circle: chicken -> egg -> chicken\n"
        "    where: HERE, HERE\n"
        "    fix:   take one of these parameters away, or move what both need into a bean of its own"
    )


def test_after_in_a_circle_is_refused() -> None:
    @bean(after=["second"])
    def first() -> Engine:
        return Engine()

    @bean(after=["first"])
    def second() -> Car:
        return Car(Engine())

    assert "after= and before= of beans go in a circle: first -> second -> first" in one_finding(
        container(auto=(first, second))
    )


def test_a_bean_is_there_or_not_by_its_conditions_and_not_by_its_return_type() -> None:
    @bean
    def maybe() -> Engine | None:
        return None

    assert one_finding(container(maybe)) == (
        "bean maybe does not say what it provides: its return type is Engine | None\n"
        "    where: HERE\n"
        "    fix:   write def maybe(...) -> TheType"
    )


def test_a_bean_without_types_is_refused() -> None:
    @bean
    def nothing():  # type: ignore[no-untyped-def]  # that is the fault
        return 1

    @bean
    def half(engine) -> Car:  # type: ignore[no-untyped-def]
        return Car(engine)

    texts = [without_lines(str(finding)) for finding in container(nothing, half).plan()]
    assert texts == [
        "bean nothing does not say what it provides: it has no return type\n    where: HERE\n"
        "    fix:   write def nothing(...) -> TheType",
        "parameter engine of bean half cannot be given: it has no type\n    where: HERE\n"
        "    fix:   give engine a type that exists at run time, or a default",
    ]


def test_all_findings_come_together() -> None:
    @bean
    def trip(horn: Horn) -> Audible:
        return horn

    assert len(container(car, trip).plan()) == 2


def test_two_beans_of_one_name_are_refused() -> None:
    @bean(name="engine")
    def other() -> Diesel:
        return Diesel()

    assert "two beans are named engine" in one_finding(container(engine, other))


def test_an_automatic_bean_can_be_excluded_and_a_wrong_name_is_refused() -> None:
    made = container(auto=(auto_engine,), settings=Written({"car.engine": "yes"}))
    made.exclude(["auto_engine"])
    assert made.plan() == []
    assert not made.has(Engine)
    assert [entry.name for entry in made.report.excluded] == ["auto_engine"]
    made.exclude(["auto_engin"], where="rocketbox.yaml:3:14")
    assert str(made.plan()[0]) == (
        "there is no auto-configuration auto_engin to exclude\n"
        "    where: rocketbox.yaml:3:14\n"
        "    fix:   did you mean auto_engine?"
    )


def test_profiles_decide() -> None:
    @bean(on_profile("dev", "!prod"))
    def tool() -> Engine:
        return Engine()

    assert container(tool, settings=Written(profiles=("dev",))).plan() == []
    made = container(tool, settings=Written(profiles=("prod",)))
    assert made.plan() == []
    assert not made.has(Engine)
    assert str(made.left_out(Engine, "listener drive", "app.py:7")) == (
        "listener drive needs a bean of type Engine, and there is none: tool was not built because profile dev or "
        "!prod is not active (active: prod)\n"
        "    where: app.py:7\n"
        "    fix:   make profile dev or !prod active with rocketbox.profiles.active"
    )
    assert made.left_out(Car, "listener drive") is None


# --- clusters ------------------------------------------------------------------------------------------------------


@dataclass
class Server:
    cluster: Cluster


class Client:
    def __init__(self, server: Server) -> None:
        self.server = server


@bean(on_property("mq.address"), on_missing_bean(Server), per_cluster=True)
def server(cluster: Cluster) -> Server:
    return Server(cluster)


@bean(on_bean(Server), on_bean(Engine), per_cluster=True, after=[server])
def client(server: Server, engine: Engine) -> Client:
    return Client(server)


CLUSTERS = {"prefix": "mq", "clusters": {"audit": "mq.clusters.audit", "billing": "mq.clusters.billing"}}


async def test_each_cluster_has_its_own_bean_by_its_own_keys() -> None:
    settings = Written({"mq.address": "main", "mq.clusters.audit.address": "second"})
    made = container(engine, auto=(server, client), settings=settings, **CLUSTERS)
    async with AsyncExitStack() as stack:
        beans = await start_all(made, stack)
        assert beans.get(Client).server.cluster == Cluster("", "mq")
        assert beans.get(Client, "audit").server.cluster == Cluster("audit", "mq.clusters.audit")
        assert [each.server.cluster.name for each in beans.resolve(list[Client])] == ["", "audit"]
    finding = made.finding(Annotated[Client, Qualifier("billing")], "listener charge", "app.py:7")
    assert without_lines(str(finding)) == (
        "listener charge needs a bean of type Client named 'billing', and there is none: client [billing] was not "
        "built because nothing provides Server: server [billing] was not built because mq.clusters.billing.address is "
        "not set\n"
        "    where: app.py:7\n"
        "    fix:   set mq.clusters.billing.address"
    )


async def test_a_cluster_is_never_given_the_bean_of_another() -> None:
    @bean(per_cluster=True)
    def needs(server: Server) -> Client:
        return Client(server)

    settings = Written({"mq.address": "main"})
    made = container(auto=(server, needs), settings=settings, prefix="mq", clusters={"audit": "mq.clusters.audit"})
    assert "parameter server of bean needs [audit] needs a bean of type Server, and there is none" in one_finding(made)


async def test_a_users_bean_named_as_a_cluster_is_that_clusters() -> None:
    @bean(name="audit")
    def mine() -> Server:
        return Server(Cluster("mine", ""))

    settings = Written({"mq.address": "main", "mq.clusters.audit.address": "second"})
    made = container(mine, engine, auto=(server, client), settings=settings, **CLUSTERS)
    async with AsyncExitStack() as stack:
        beans = await start_all(made, stack)
        assert beans.get(Client, "audit").server.cluster.name == "mine"
        assert beans.get(Client).server.cluster.name == ""
