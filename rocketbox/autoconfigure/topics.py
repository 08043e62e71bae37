"""Auto-configuration of topics: those under ``rocketmq.topics`` are there before anything sends or listens.

So readiness, first test and first deploy wait for no topic that nobody has sent to. What is done at the start says
``rocketmq.topics-mode``:

    mode   | a topic that is not there | one that is otherwise than said | where nobody may ask
    create | is made                   | is a warning, and stays         | the start fails
    check  | the start fails           | the start fails                 | the start fails
    ignore | nothing is asked

With ``startup: retry`` and no server that answers, it is done as soon as they do.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

from rocketbox.autoconfigure.properties import ClusterProperties, RocketMQProperties
from rocketbox.autoconfigure.rocketmq import NAME_SERVER, SWITCHED_ON
from rocketbox.autoconfigure.service import Service
from rocketbox.autoconfigure.users import ClientInstances
from rocketbox.boot.conditions import on_bean
from rocketbox.boot.marks import Cluster, Phase, bean
from rocketbox.client import Admin
from rocketbox.client.needed_topics import TopicState, find_topic, make_topic, until_in_route
from rocketbox.client.options import TopicOptions
from rocketbox.errors import (
    AccessDeniedError,
    BrokerError,
    ClientError,
    ConfigurationError,
    Finding,
    RemotingError,
    RocketBoxError,
    UnknownClusterError,
)
from rocketbox.management.health import Health, HealthIndicator
from rocketbox.tasks import Supervisor

__all__ = ["NeededTopics", "NeededTopicsHealth", "needed_topics", "needed_topics_health"]

_log = logging.getLogger(__name__)

RETRY_PAUSE = 1.0  # seconds between two tries while no server answers


@dataclass
class NeededTopics:
    """The topics that the settings of a cluster name: a bean. ``done`` when they have been looked after.

    ``problem`` says why they have not.
    """

    topics: Mapping[str, TopicOptions]
    made: list[str] = field(default_factory=list)
    done: bool = False
    problem: str = ""


@bean(SWITCHED_ON, NAME_SERVER, on_bean(ClientInstances), per_cluster=True, phase=Phase.CLIENT)
async def needed_topics(
    properties: RocketMQProperties, cluster: Cluster, clients: ClientInstances, service: Service
) -> AsyncIterator[NeededTopics]:
    """Makes the cluster's topics, or looks whether they are there."""
    own = properties.cluster(cluster.name)
    needed = NeededTopics({name: each.as_options(TopicOptions) for name, each in own.topics.items()})
    if not needed.topics or own.topics_mode == "ignore":
        needed.done = True
        yield needed
        return
    async with (
        Supervisor(f"topics of {cluster.prefix}", service.clock) as tasks,
        Admin(instance=clients.producer) as admin,
    ):
        keeper = _Keeper(admin, needed, own, cluster.prefix, service)
        try:
            await keeper.look_after_all()
        except (RemotingError, ClientError) as error:
            if own.startup != "retry":
                raise ConfigurationError(keeper.unanswered(error)) from error
            keeper.tell_of_wait(error)
            tasks.start("waiting for servers", keeper.go_on_trying, restart=False)
        yield needed


class NeededTopicsHealth(HealthIndicator):
    """Down while topics have not been looked after, or could not be, in a service that starts without them."""

    name = "topics"

    def __init__(self, needed: Sequence[NeededTopics]) -> None:
        self._needed = needed

    def health(self) -> Health:
        problems = [each.problem for each in self._needed if not each.done]
        made = [name for each in self._needed for name in each.made]
        return Health.down(*problems) if problems else Health.up(made=made)


@bean(on_bean(NeededTopics))
def needed_topics_health(needed: list[NeededTopics]) -> NeededTopicsHealth:
    """The topics of all clusters."""
    return NeededTopicsHealth(needed)


_LIMIT = re.compile(r"(\d+) is the most \(([\w-]+)\)")


def _meant(error: UnknownClusterError) -> str | None:
    """The cluster that was probably meant, of those that there are."""
    return next(iter(difflib.get_close_matches(error.cluster, error.known, 1)), None)


class _Keeper:
    """Looks after the topics of one cluster."""

    def __init__(
        self, admin: Admin, needed: NeededTopics, own: ClusterProperties, prefix: str, service: Service
    ) -> None:
        self._admin = admin
        self._needed = needed
        self._creates = own.topics_mode == "create"
        self._waits = own.startup == "retry"
        self._prefix = prefix
        self._service = service
        self._findings: list[Finding] = []
        self._looked_after: set[str] = set()
        self._told: type[RocketBoxError] | None = None

    async def look_after_all(self) -> None:
        """Raises RemotingError when no server answers, ConfigurationError with everything else that is wrong.

        ClientError where it may wait and brokers of some topics are not known yet; the others are looked after.
        """
        self._findings.clear()
        unknown: ClientError | None = None
        for name, topic in self._needed.topics.items():
            if name in self._looked_after:
                continue
            try:
                await self._look_after(name, topic)
                self._looked_after.add(name)
            except (BrokerError, ClientError) as error:
                if self._waits and isinstance(error, ClientError):
                    unknown = unknown or error
                else:
                    self._findings.append(self._refused(name, error))
        if self._findings:
            raise ConfigurationError(self._findings)
        if unknown is not None:
            raise unknown
        self._needed.done = True

    def tell_of_wait(self, error: RocketBoxError) -> None:
        """Say in health why the topics still wait, and in the log when it is for something else than before."""
        why = str(error)
        # It may be misspelt, or come up later than one of nearly its name: that ends no service that waits.
        if isinstance(error, UnknownClusterError) and (meant := _meant(error)) is not None:
            why += f" (did you mean {meant}?)"
        self._needed.problem = f"topics below {self._prefix}.topics wait for the servers: {why}"
        if type(error) is not self._told:
            self._told = type(error)
            _log.warning("topics below %s.topics are looked after when the servers answer: %s", self._prefix, why)

    async def go_on_trying(self) -> None:
        """The same until a server answers; what is wrong then is told in the log."""
        while not self._needed.done:
            await self._service.clock.sleep(RETRY_PAUSE)
            try:
                await self.look_after_all()
            except (RemotingError, ClientError) as error:
                self.tell_of_wait(error)
            except ConfigurationError as error:
                for finding in error.findings:
                    _log.error("%s (%s)", finding.what, finding.fix)
                self._needed.problem = "; ".join(finding.what for finding in error.findings)
                return

    async def _look_after(self, name: str, topic: TopicOptions) -> None:
        state = await find_topic(self._admin, name, topic)
        self._tell_differences(name, state)
        if not state.missing:
            return
        brokers = ", ".join(state.missing)
        if not self._creates:
            what = f"{self._key(name)}: there is no topic {name} on {brokers}"
            fix = f"create it, or let {self._prefix}.topics-mode be create"
            self._findings.append(Finding(what, self._where(name), fix))
            return
        await make_topic(self._admin, name, topic, state.missing)
        self._needed.made.append(name)
        clock, timeout = self._service.clock, self._admin.timeout
        if await until_in_route(self._admin, name, state.missing, clock, timeout):
            _log.info("topic %s is made on %s", name, brokers)
        else:
            _log.warning("topic %s is made on %s, and no name server has heard of it for %g s", name, brokers, timeout)

    def _tell_differences(self, name: str, state: TopicState) -> None:
        for each in state.differences:
            key = f"{self._key(name)}.{each.option}"
            where = self._service.where(key) or self._where(name)
            what = f"{key} is {each.needed}, and on {each.broker} it is {each.found}"
            if self._creates:
                _log.warning("%s (%s): a topic that is there is not changed", what, where)
            else:
                fix = f"change the topic or the key, or let {self._prefix}.topics-mode be ignore"
                self._findings.append(Finding(what, where, fix))

    def _refused(self, name: str, error: BrokerError | ClientError) -> Finding:
        done = "made" if self._creates else "looked at"
        mode = f"{self._prefix}.topics-mode be {'check' if self._creates else 'ignore'}"
        fix = f"correct the key; or have somebody create it, and let {mode}"
        limit = _LIMIT.search(error.shown_remark) if isinstance(error, BrokerError) else None
        if isinstance(error, AccessDeniedError):
            fix = f"let this user do it; or have somebody create it, and let {mode}"
        elif limit is not None:
            fix = f"write at most {limit[1]}, or let {limit[2]} of the broker be more"
        elif isinstance(error, UnknownClusterError) and (meant := _meant(error)) is not None:
            fix = f"did you mean {self._key(name)}.cluster: {meant}?"
        elif isinstance(error, ClientError):
            fix = f"see that its brokers run and are known; {self._key(name)}.cluster names their cluster"
        return Finding(f"{self._key(name)}: topic {name} cannot be {done}: {error}", self._where(name), fix)

    def unanswered(self, error: RocketBoxError) -> Finding:
        """The finding that a server did not answer."""
        fix = f"see that its brokers run, or let {self._prefix}.startup be retry"
        return Finding(f"topics below {self._prefix}.topics cannot be looked at: {error}", None, fix)

    def _key(self, name: str) -> str:
        return f"{self._prefix}.topics.{name}"

    def _where(self, name: str) -> str | None:
        return self._service.where(self._key(name))
