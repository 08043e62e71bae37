"""Kinds of listeners: what turns marked functions into something that runs.

A kind is a bean of the type :class:`ListenerKind`, from an auto-configuration like any other: ours for
``@rocketmq_listener`` and ``@rocketmq_spark_listener``, those of other distributions for marks of their own. Whoever
plans, checks, starts, drains, counts or shows listeners goes by what stands here, and knows no kind by name:

    read    marked functions   -> what their decorators say       (settings may be wrong still)
    plan    that, with settings -> one plan for each container    (nothing is connected)
    needs   a plan              -> the beans it cannot run without
    start   all plans           -> containers, which are entered in their order and drained together

Kinds are made while an application is looked at, before anything starts: their bean functions may take settings,
``Service`` and other objects that exist already. Beans that start are resolved in ``start``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from rocketbox.autoconfigure.listening import ResolveText
from rocketbox.autoconfigure.scan import Marked
from rocketbox.errors import ConfigurationError, Finding
from rocketbox.listeners import Beans, ContainerState
from rocketbox.listeners.registrar import ClusterSettings
from rocketbox.template import MessageConverter

__all__ = [
    "DeclaredListener",
    "ListenerKind",
    "ListenerPlan",
    "Listeners",
    "MessageListenerContainer",
    "Need",
    "Planning",
    "Starting",
]


class DeclaredListener(Protocol):
    """What the decorator of one function says; None: the settings may."""

    @property
    def cluster(self) -> str | None: ...

    @property
    def group(self) -> str | None: ...


class ListenerPlan(Protocol):
    """One container that is to run: what is known of it before anything is connected."""

    @property
    def cluster(self) -> str | None:
        """None: the main one."""

    @property
    def group(self) -> str: ...

    @property
    def where(self) -> str:
        """``file:line`` of its function, or of the first one."""

    @property
    def user(self) -> object | None:
        """Who has keys (``access_key``, ``secret_key``) or a namespace of its own, and so, maybe, a client of its own
        (``users``). None: it goes by the client of the cluster."""

    def describe(self) -> Sequence[str]:
        """A line for each of its functions, for the start log and ``rocketbox check``."""


class MessageListenerContainer(AbstractAsyncContextManager[Any], Protocol):
    """Consumes from its ``async with`` on; leaving stops it in order, drained or not."""

    @property
    def cluster(self) -> str | None: ...

    @property
    def group(self) -> str: ...

    @property
    def name(self) -> str:
        """What ``app.listeners`` knows it by in its cluster: its group, where that has one container."""

    async def drain(self, timeout: float) -> None:
        """Begin nothing more, for good, and give what runs ``timeout`` seconds to end. A second call is no harm."""

    def state(self) -> ContainerState:
        """How it is; cheap, without I/O."""

    def describe(self) -> Sequence[str]:
        """As its plan does."""


Need = Callable[[Any, str | None, str, str], bool]
"""(type, cluster, who needs it, where) -> whether there is such a bean; when not, the finding has been told."""


@dataclass
class Planning:
    """What kinds may know while they plan; what is wrong goes into ``findings``, all of it, what is off into ``off``,
    and what may be wrong into ``warnings``.

    ``clusters`` are the settings about listeners by the cluster's name, None for the main one; ``converter`` is None
    when it is one of the user's that is not there yet.
    """

    clusters: Mapping[str | None, ClusterSettings]
    beans: Beans
    resolve_text: ResolveText
    converter: MessageConverter | None
    findings: list[Finding]
    off: list[Finding] = field(default_factory=list)
    warnings: list[Finding] = field(default_factory=list)

    def collect(self, step: Callable[[], None]) -> None:
        """Run step; what it raises as ConfigurationError is among the findings."""
        try:
            step()
        except ConfigurationError as error:
            self.findings += error.findings


@dataclass(frozen=True)
class Starting:
    """What kinds may use when they start: all beans are there.

    ``resolve`` gives the bean of a hint (``of_cluster`` makes one of a type and a cluster), ``stack`` closes what the
    containers of a kind share, after them. ``drain_timeout`` is what handlers have at the stop, in seconds.
    """

    resolve: Callable[[Any], Any]
    beans: Beans
    stack: AsyncExitStack
    drain_timeout: float


DeclaredT = TypeVar("DeclaredT", bound=DeclaredListener)
PlanT = TypeVar("PlanT", bound=ListenerPlan)


class ListenerKind(ABC, Generic[DeclaredT, PlanT]):
    """One kind of listeners: those whose functions have its ``mark``.

    ``options`` are those below ``rocketmq.consumer.listeners.<group>`` that mean something to it, of ours (None: all).
    ``modifiers`` are marks that mean something beside it only, as ``@send_to`` does. Those of a kind that needs no
    RocketMQ (``needs_rocketmq``) run as well where ``rocketmq.enabled`` is false.
    """

    mark: ClassVar[type]
    options: ClassVar[Collection[str] | None] = None
    modifiers: ClassVar[tuple[type, ...]] = ()
    needs_rocketmq: ClassVar[bool] = True

    @abstractmethod
    def read(self, marked: Sequence[Marked], planning: Planning) -> list[DeclaredT]:
        """What the decorators of these functions say, each of which has the mark, placeholders resolved."""

    @abstractmethod
    def plan(self, declared: Sequence[DeclaredT], planning: Planning) -> list[PlanT]:
        """The containers that are to run; those that are switched off are left out."""

    def needs(self, plan: PlanT, need: Need) -> None:
        """Say what beans this one cannot run without."""

    def clashes(self, plan: PlanT, processes: int, has_name: Callable[[str | None], bool]) -> Iterator[Finding]:
        """What so many processes of the service would do to each other by it.

        ``has_name(cluster)``: the settings name its client, and each process puts its number behind the name.
        """
        yield from ()

    @abstractmethod
    async def start(self, plans: Sequence[PlanT], starting: Starting) -> Sequence[MessageListenerContainer]:
        """The containers of all its plans, not entered yet.

        Raises ConfigurationError with all that shows only now to be wrong.
        """


class Listeners(Mapping["str | tuple[str, str]", Any]):
    """The containers that run, of all kinds, by their name; those of a further cluster by ``(cluster, name)``.

    What each of them can do beyond :class:`MessageListenerContainer` is said by the class of its kind.
    """

    def __init__(self) -> None:
        self._containers: dict[str | tuple[str, str], MessageListenerContainer] = {}

    def add(self, container: MessageListenerContainer) -> None:
        """Take a container that has started."""
        self._containers[_key_of(container)] = container

    def check_names(self, containers: Sequence[MessageListenerContainer]) -> None:
        """Refuse those that have the name of another: only one of them would be drained, and seen in health."""
        taken = dict(self._containers)
        for container in containers:
            if (other := taken.setdefault(_key_of(container), container)) is not container:
                what = f"two containers of listeners are called {_key_of(container)!r}: of the groups"
                fix = f"let the name of a {type(container).__qualname__} be one that no other has in its cluster"
                raise ConfigurationError(Finding(f"{what} {other.group} and {container.group}", None, fix))

    def __getitem__(self, key: str | tuple[str, str]) -> Any:
        try:
            return self._containers[key]
        except KeyError:
            known = ", ".join(map(repr, self._containers)) or "none"
            raise KeyError(f"no listeners of group {key!r} run here; there are: {known}") from None

    def __iter__(self) -> Iterator[str | tuple[str, str]]:
        return iter(self._containers)

    def __len__(self) -> int:
        return len(self._containers)


def _key_of(container: MessageListenerContainer) -> str | tuple[str, str]:
    return (container.cluster, container.name) if container.cluster else container.name
