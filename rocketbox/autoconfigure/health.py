"""Auto-configuration of health: one indicator for each part of an application that can be ill."""

from __future__ import annotations

from rocketbox.autoconfigure.kinds import Listeners
from rocketbox.autoconfigure.rocketmq import AwaitedServers
from rocketbox.autoconfigure.users import ClientInstances, PlannedClients
from rocketbox.background_work import BackgroundWork
from rocketbox.boot.conditions import on_bean
from rocketbox.boot.marks import bean
from rocketbox.client import MQClientInstance
from rocketbox.listeners import ContainerState, ContainerStatus
from rocketbox.local_servers import LocalServers
from rocketbox.management.health import Health, HealthIndicator, HealthStatus
from rocketbox.watchdog import LoopWatchdog

__all__ = [
    "BackgroundWorkHealth",
    "ClientsHealth",
    "EmbeddedServersHealth",
    "EventLoopHealth",
    "ListenersHealth",
    "background_work_health",
    "clients_health",
    "embedded_servers_health",
    "event_loop_health",
    "listeners_health",
]


class EventLoopHealth(HealthIndicator):
    """Down while code of the application has kept the loop for too long (``watchdog``)."""

    name = "event-loop"

    def __init__(self, watchdog: LoopWatchdog) -> None:
        self._watchdog = watchdog

    def health(self) -> Health:
        blocked_for = round(self._watchdog.blocked_for, 3)
        if self._watchdog.healthy:
            return Health.up(blocked_for=blocked_for)
        return Health.down("its event loop hangs", blocked_for=blocked_for)


@bean
def event_loop_health(watchdog: LoopWatchdog) -> EventLoopHealth:
    """The event loop of the application."""
    return EventLoopHealth(watchdog)


class EmbeddedServersHealth(HealthIndicator):
    """Down while the servers beside the application take no messages: a failed store, a full disk, or they are dead."""

    name = "embedded-servers"

    def __init__(self, servers: LocalServers) -> None:
        self._servers = servers

    def health(self) -> Health:
        health = self._servers.health
        addresses = {"name_server": self._servers.name_server_address, "broker": self._servers.broker_address}
        if health.refusal is None:
            return Health.up(**addresses)
        failed = health.failure is not None
        return Health.down(f"the embedded broker takes no messages: {health.refusal}", failed=failed, **addresses)


@bean(on_bean(LocalServers))
def embedded_servers_health(servers: LocalServers) -> EmbeddedServersHealth:
    """Name server and broker beside the application."""
    return EmbeddedServersHealth(servers)


class ClientsHealth(HealthIndicator):
    """Down while a client has lost its connections to all brokers, and while no name server has answered yet.

    Some connections that are lost are shown: the others do.
    """

    name = "clients"

    def __init__(self, instances: list[ClientInstances], planned: PlannedClients, awaited: AwaitedServers) -> None:
        self._awaited = awaited
        self._clients: dict[str, MQClientInstance] = {}
        for cluster, plan in planned.clusters.items():
            for each in instances:
                if each.plan is plan:
                    for number, instance in enumerate(each.running.values(), 1):
                        name = cluster or "main"
                        self._clients[name if number == 1 else f"{name}-{number}"] = instance

    def health(self) -> Health:
        parts = {name: _client_health(name, instance) for name, instance in self._clients.items()}
        for cluster, problem in self._awaited.problems.items():
            name = cluster or "main"
            told = problem if not cluster else f"cluster {cluster}: {problem}"
            parts[name] = Health.down(told, **(parts[name].details if name in parts else {}))
        return Health.of(parts)


def _client_health(name: str, instance: MQClientInstance) -> Health:
    state = instance.state()
    brokers = {link.address: "connected" if link.lost is None else link.lost for link in state.brokers}
    details: dict[str, object] = {"name_servers": list(state.name_servers), "brokers": brokers}
    if state.restarting:
        details["restarting"] = list(state.restarting)
    which = "" if name == "main" else f" of cluster {name}"
    if state.keys_problem is not None:
        details["keys"] = state.keys_problem
    if state.keys_expired:
        why = state.keys_problem or "new ones are being asked for"
        return Health.down(f"the keys of the client{which} have ended ({why})", **details)
    masters = [link for link in state.brokers if link.is_master]
    if masters and all(link.lost is not None for link in masters):
        lost = "; ".join(f"{link.address}: {link.lost}" for link in masters)
        return Health.down(f"the client{which} has no connection to any broker ({lost})", **details)
    return Health(details=details)


@bean(on_bean(ClientInstances))
def clients_health(instances: list[ClientInstances], planned: PlannedClients, awaited: AwaitedServers) -> ClientsHealth:
    """The clients of all clusters, and their connections."""
    return ClientsHealth(instances, planned, awaited)


class ListenersHealth(HealthIndicator):
    """As the containers of all listeners are, whatever their kind; each with how far it is."""

    name = "listeners"

    def __init__(self, listeners: Listeners) -> None:
        self._listeners = listeners

    def health(self) -> Health:
        components = {}
        for key, container in self._listeners.items():
            components[key if isinstance(key, str) else "/".join(key)] = _container_health(container.state())
        return Health.of(components)


def _container_health(state: ContainerState) -> Health:
    details = {"group": state.group, "status": state.status.value, **state.progress}
    if state.ready:
        return Health(details=details)
    of_cluster = f" of cluster {state.cluster}" if state.cluster else ""
    reason = f"the listeners of group {state.group}{of_cluster}: {state.reason or state.status.value}"
    wanted = state.status in (ContainerStatus.PAUSED, ContainerStatus.STOPPED)
    return Health(HealthStatus.OUT_OF_SERVICE if wanted else HealthStatus.DOWN, (reason,), details)


@bean
def listeners_health(listeners: Listeners) -> ListenersHealth:
    """The containers of listeners."""
    return ListenersHealth(listeners)


class BackgroundWorkHealth(HealthIndicator):
    """Down while a background task that has failed waits to start again. Failures of scheduled functions are shown."""

    name = "background-work"

    def __init__(self, work: BackgroundWork) -> None:
        self._work = work

    def health(self) -> Health:
        tasks = {
            task.name: {"state": task.state.value, "restarts": task.restarts, "last_error": task.error}
            for task in self._work.tasks
        }
        scheduled = {
            each.name: {
                "every": each.interval,
                "runs": each.runs,
                "failures": each.failures,
                "skipped": each.skipped,
                "running_for": each.running_for,
                "last_error": each.error,
            }
            for each in self._work.schedules
        }
        details = {name: part for name, part in (("tasks", tasks), ("scheduled", scheduled)) if part}
        problems = self._work.problems()
        return Health(HealthStatus.DOWN if problems else HealthStatus.UP, tuple(problems), details)


@bean
def background_work_health(work: BackgroundWork) -> BackgroundWorkHealth:
    """Background tasks and scheduled functions."""
    return BackgroundWorkHealth(work)
