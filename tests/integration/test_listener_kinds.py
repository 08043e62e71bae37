"""Kinds of listeners come by auto-configurations: one of another distribution is planned, checked, run and shown."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import rocketbox
from rocketbox.cli.workers import check_workers
from rocketbox.errors import ConfigurationError
from tests.support.framework.distributions import Install, distribution_maker
from tests.support.framework.services import ServiceMaker

PACKAGE = Path(rocketbox.__file__).parent

KIT = """
from dataclasses import dataclass

from rocketbox import bean
from rocketbox.autoconfigure.kinds import ListenerKind
from rocketbox.errors import Finding
from rocketbox.hints import place_of
from rocketbox.listeners import ContainerState, ContainerStatus
from rocketbox.marks import add_mark

events = []

class Bell: ...

@dataclass(frozen=True)
class tick_listener:
    group: str
    loud: bool = False

    def __call__(self, function):
        return add_mark(function, self)

@dataclass(frozen=True)
class TickPlan:
    function: object
    group: str
    loud: bool
    cluster: None = None
    user: None = None

    @property
    def where(self):
        return place_of(self.function)

    def describe(self):
        return [f"tick listener {self.function.__name__}: group {self.group}"]

class Ticks:
    def __init__(self, plan, bell):
        self.plan, self.bell, self.status, self.ticks = plan, bell, ContainerStatus.STOPPED, 0
        self.cluster, self.group, self.name = None, plan.group, plan.group

    async def __aenter__(self):
        events.append("enter")
        self.status = ContainerStatus.RUNNING
        return self

    async def __aexit__(self, *error):
        events.append("leave")

    async def drain(self, timeout):
        events.append(f"drain within {timeout:g}")
        self.status = ContainerStatus.STOPPED

    def stall(self):
        self.status = ContainerStatus.FAILED

    def state(self):
        ready = self.status is ContainerStatus.RUNNING
        return ContainerState(None, self.group, self.status, ready, None if ready else "it stalls", {"ticks": 7})

    def describe(self):
        return self.plan.describe()

class TickListeners(ListenerKind):
    mark = tick_listener

    def read(self, marked, planning):
        return [TickPlan(each.target, mark.group, mark.loud) for each in marked for mark in each.marks]

    def plan(self, declared, planning):
        planning.findings += [Finding(f"{each.group} is loud", each.where) for each in declared if each.loud]
        return list(declared)

    def needs(self, plan, need):
        need(Bell, None, f"tick listener {plan.function.__name__}", plan.where)

    def clashes(self, plan, processes, has_name):
        yield Finding(f"{processes} processes would tick at once", plan.where)

    async def start(self, plans, starting):
        starting.stack.callback(events.append, "shared things close")
        return [Ticks(plan, starting.resolve(Bell)) for plan in plans]

@bean
def tick_listeners() -> TickListeners:
    return TickListeners()
"""

DESK = """
from rocketbox import RocketBox, bean
from tick_kit import Bell, tick_listener

app = RocketBox("desk", scan=[__name__], exclude=EXCLUDE)

@bean
def bell() -> Bell:
    return Bell()

@tick_listener("clock")
def on_tick(): ...
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    for make in distribution_maker(tmp_path, monkeypatch):
        make("tick-kit", "tick_kit", KIT)
        yield make


def desk(*, exclude: str = "()", source: str = DESK) -> str:
    return source.replace("EXCLUDE", exclude)


@pytest.mark.anyio
async def test_a_kind_of_another_distribution_is_started_shown_and_drained_like_ours(
    install: Install, service: ServiceMaker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rocketbox")
    module = service(desk(), "rocketbox.shutdown.timeout: 8s\n")
    import tick_kit  # type: ignore[import-not-found]  # the distribution is made by the fixture

    async with module.app as app:
        assert dict(app.listeners) == {"clock": app.listeners["clock"]}
        container = app.listeners["clock"]
        assert container.describe() == ["tick listener on_tick: group clock"]
        assert app.is_ready
        shown = app.health().components["listeners"].components["clock"]
        assert shown.details == {"group": "clock", "status": "running", "ticks": 7}
        container.stall()
        assert app.not_ready_because == ["the listeners of group clock: it stalls"]
        assert tick_kit.events == ["enter"]
    assert tick_kit.events == ["enter", "drain within 6", "leave", "shared things close"]
    assert "tick listener on_tick: group clock" in caplog.text
    assert "found 1 listener, 0 hooks, 1 bean" in caplog.text


def test_a_kind_of_another_distribution_is_checked_and_counted_like_ours(
    install: Install, service: ServiceMaker
) -> None:
    source = desk().replace('("clock")', '("clock", loud=True)').replace("@bean\ndef bell", "def bell")
    module = service(source, "")
    look = module.app.look()
    assert [finding.what for finding in look.findings] == [
        "clock is loud",
        "tick listener on_tick needs a bean of type Bell, and there is none",
    ]
    assert list(look.describe_listeners()) == ["tick listener on_tick: group clock"]
    assert [plan.group for plan in look.plans] == ["clock"]
    with pytest.raises(ConfigurationError, match="3 processes would tick at once"):
        check_workers(look, 3)


@pytest.mark.parametrize("needs", [True, False])
def test_a_kind_that_needs_no_rocketmq_runs_where_that_is_switched_off(
    install: Install, service: ServiceMaker, needs: bool
) -> None:
    module = service(desk(), "rocketmq.enabled: false\n")
    import tick_kit

    tick_kit.TickListeners.needs_rocketmq = needs
    look = module.app.look()
    assert look.findings == []
    assert [plan.group for plan in look.plans] == ([] if needs else ["clock"])


def test_a_mark_whose_kind_is_left_out_is_refused(install: Install, service: ServiceMaker) -> None:
    module = service(desk(exclude="['tick_listeners']"), "")
    (finding,) = module.app.look().findings
    assert finding.what == (
        "on_tick has @tick_listener, and there is no such kind of listeners: tick_listeners was not built because "
        "tick_listeners is excluded (RocketBox('desk', exclude=...))"
    )
    assert finding.where == f"{module.__name__}.py:10"
    assert finding.fix == "do not exclude tick_listeners"


def test_a_group_with_listeners_of_two_kinds_is_refused(install: Install, service: ServiceMaker) -> None:
    more = """
from rocketbox import rocketmq_listener

@rocketmq_listener(topic="departures", consumer_group="clock")
async def on_departure(body: bytes) -> None: ...
"""
    module = service(desk(source=DESK + more), "rocketmq.name-server: ns:9876\n")
    (finding,) = module.app.look().findings
    assert finding.what == "group 'clock' has listeners of two kinds: @rocketmq_listener and @tick_listener"
    assert finding.where == f"{module.__name__}.py:15 and {module.__name__}.py:10"
    assert finding.fix == "give one of them another consumer group"


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ("async def mine() -> ListenerKind: ...", "it starts later"),
        ("def mine(late: Late) -> ListenerKind: ...", "it needs late, which starts later"),
    ],
)
def test_a_kind_that_cannot_be_made_before_the_start_is_refused(
    install: Install, service: ServiceMaker, made: str, reason: str
) -> None:
    more = f"""
from rocketbox.autoconfigure.kinds import ListenerKind

class Late: ...

@bean
async def late() -> Late:
    return Late()

@bean
{made}
"""
    (finding,) = service(desk(source=DESK + more), "").app.look().findings
    assert finding.what == f"bean mine is a ListenerKind, which is needed before the start, and {reason}"
    assert "plain function of settings" in str(finding.fix)


@pytest.mark.parametrize("step", ["read", "plan"])
def test_a_kind_that_fails_is_told_as_what_it_is(install: Install, service: ServiceMaker, step: str) -> None:
    module = service(desk(), "")
    import tick_kit

    def broken(self: object, given: object, planning: object) -> None:
        raise ValueError("no bell")

    setattr(tick_kit.TickListeners, step, broken)
    (finding,) = module.app.look().findings
    assert finding.what == f"TickListeners.{step} of the listeners of @tick_listener failed: ValueError: no bell"
    assert str(finding.where).startswith("tick_kit.py:")


@pytest.mark.parametrize(
    ("step", "names", "missing"),
    [("read", "cluster, group", "group"), ("plan", "cluster, group, where, user, describe", "where and describe")],
)
def test_a_kind_whose_plans_lack_what_everybody_asks_for_is_told_as_what_it_is(
    install: Install, service: ServiceMaker, step: str, names: str, missing: str
) -> None:
    module = service(desk(), "")
    import tick_kit

    class Half:
        cluster = user = None

        def __init__(self, group: str) -> None:
            if step == "plan":
                self.group = group

    setattr(tick_kit.TickListeners, step, lambda self, given, planning: [Half("clock"), Half("bell")])
    (finding,) = module.app.look().findings
    assert finding.what == (
        f"TickListeners.{step} of the listeners of @tick_listener gave a {Half.__qualname__} without {missing}"
    )
    assert str(finding.where).startswith("tick_kit.py:")
    assert str(finding.fix).endswith(f"of rocketbox.autoconfigure.kinds has: {names}")


@pytest.mark.anyio
async def test_a_kind_that_fails_when_it_is_left_is_told_as_what_it_is(
    install: Install, service: ServiceMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = service(desk(), "").app
    import tick_kit

    monkeypatch.setattr(tick_kit.Ticks, "__aexit__", _broken)
    with pytest.raises(ValueError, match="no bell") as told:
        async with app:
            run = app._running
    text = run.told_of_end(told.value)
    assert "1. the container of group clock, of the listeners of @tick_listener, failed when it was left: " in text
    assert "ValueError: no bell" in text
    assert "where: tick_kit.py:" in text


def test_a_kind_that_fails_to_say_what_it_needs_is_told_as_what_it_is(
    install: Install, service: ServiceMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = service(desk(), "")
    import tick_kit

    monkeypatch.setattr(tick_kit.TickListeners, "needs", _broken)
    (finding,) = module.app.look().findings
    assert finding.what == "TickListeners.needs of the listeners of @tick_listener failed: ValueError: no bell"


@pytest.mark.anyio
@pytest.mark.parametrize("broken", ["TickListeners.start", "Ticks.describe", "TickPlan.describe", "Ticks.__aenter__"])
async def test_a_kind_that_fails_to_start_is_told_as_what_it_is_and_all_else_is_closed(
    install: Install, service: ServiceMaker, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    module = service(
        desk(
            source=DESK.replace("-> Bell", "-> Iterator[Bell]")
            .replace("from rocketbox", "from collections.abc import Iterator\nfrom rocketbox", 1)
            .replace("return Bell()", "yield Bell()\n    events.append('bell closes')")
        ),
        "",
    )
    import tick_kit

    vars(module)["events"] = tick_kit.events
    owner, step = broken.split(".")
    monkeypatch.setattr(getattr(tick_kit, owner), step, _broken)
    with pytest.raises(ConfigurationError) as told:
        async with module.app:
            pass
    (finding,) = told.value.findings
    assert finding.what == "TickListeners.start of the listeners of @tick_listener failed: ValueError: no bell"
    assert str(finding.where).startswith("tick_kit.py:")
    assert tick_kit.events[-1] == "bell closes"


@pytest.mark.anyio
async def test_two_containers_of_one_name_are_refused(install: Install, service: ServiceMaker) -> None:
    more = """
@tick_listener("alarm")
def on_alarm(): ...
"""
    module = service(desk(source=DESK + more), "")
    import tick_kit

    tick_kit.Ticks.name = property(lambda self: "watch", lambda self, name: None)
    with pytest.raises(ConfigurationError, match="are called 'watch': of the groups clock and alarm"):
        async with module.app:
            pass
    assert "enter" not in tick_kit.events


def _broken(*given: object) -> None:
    raise ValueError("no bell")


def test_beans_in_a_circle_are_told_alone(install: Install, service: ServiceMaker) -> None:
    more = """
class A: ...
class B: ...

@bean
def a(b: B) -> A: ...

@bean
def b(a: A) -> B: ...
"""
    (finding,) = service(desk(source=DESK + more), "").app.look().findings
    assert finding.what == "beans need each other in a circle: a -> b -> a"


KNOW_NO_KIND = (
    "autoconfigure/assembly", "autoconfigure/listener_plans", "running", "application", "cli/workers", "cli/service",
)  # fmt: skip


@pytest.mark.parametrize("name", KNOW_NO_KIND)
def test_who_runs_listeners_knows_no_kind_by_name(name: str) -> None:
    text = (PACKAGE / f"{name}.py").read_text()
    words = {word.lower() for word in re.findall(r"[A-Za-z]+", re.sub(r"\.push_async_\w+", "", text))}
    named = {word for word in words if "spark" in word or word.startswith("push")}
    assert named == set()
