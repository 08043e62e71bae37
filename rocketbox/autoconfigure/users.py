"""Which clients of a cluster there are: one that all share, or one for each user that its settings name.

A client is one user to the servers: its keys sign all of its requests, and its namespace holds for all of its names. So
who consumes with other keys than who sends needs a client of his own, as with Apache's clients:

    whose                 | the keys, both of one place                               | where there are none
    producer              | rocketmq.producer                                         | the cluster's
    a group of listeners  | consumer.listeners.<group>, its decorator, consumer       | the cluster's
    pull consumer         | rocketmq.pull-consumer                                    | the cluster's
    the cluster           | a bean of type CredentialsProvider, else                  | nothing is signed
                          | rocketmq.access-key, .secret-key, .security-token         |

In the place of the two keys each may say a file that has them, ``credentials-file``, which is read again when it
changes.

    these are             | and there is
    all alike             | one client
    different             | one client for each user, shared by those who are that user
    none in use           | one client, of the first user that is named in the order of the first table

Namespaces go the same ways. The first client is the one that beans get by its type: the producer's, else that of the
first group. A name of the client (``instance-name``) is that of the section which says it; two clients of one name on
one machine would be one to the brokers.

What is wrong with the keys (half a pair, one name for two) is told by ``key_rules`` and ``listeners.registrar``; here
half a pair counts as none.

Source: rocketmq-spring 2.3 ``RocketMQUtil.createDefaultMQProducer``, ``DefaultRocketMQListenerContainer`` (an ACL hook
for each that has both keys); Apache RocketMQ 5.x ``MQClientManager``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from rocketbox.autoconfigure.kinds import ListenerPlan
from rocketbox.autoconfigure.properties import ClusterProperties
from rocketbox.client import ClientOptions, Credentials, CredentialsFile, CredentialsProvider, MQClientInstance
from rocketbox.client.options import DEFAULT_INSTANCE_NAME
from rocketbox.remoting.name_server_addresses import shown_name_server

__all__ = [
    "ClientInstances",
    "ClientPlan",
    "ClusterClients",
    "CredentialsBean",
    "PlannedClients",
    "User",
    "plan_clients",
    "users_of",
]

SECTIONS = ("producer", "consumer", "pull-consumer")


@dataclass(frozen=True)
class CredentialsBean:
    """A user's bean that gives the keys of a cluster; ``provide`` is for when it has started.

    ``start`` starts it, and what it needs alone, until the stack is left: for a command that runs no service.
    """

    label: str
    provide: Callable[[], CredentialsProvider] = field(compare=False, repr=False)
    start: Callable[[AsyncExitStack], Awaitable[None]] = field(compare=False, repr=False)


@dataclass(frozen=True)
class User:
    """Who a client is to the servers."""

    credentials: Credentials | CredentialsFile | CredentialsBean | None = None
    namespace: str | None = None
    namespace_v2: str | None = None

    @property
    def is_in_namespace(self) -> bool:
        return self.namespace is not None or self.namespace_v2 is not None

    def __str__(self) -> str:
        return self.told()

    def told(self, which: str = "") -> str:
        """Who it is, with ``which`` behind its keys."""
        match self.credentials:
            case None:
                signs = "signs nothing"
            case Credentials(who=who):
                signs = f"signs as {who}"
            case CredentialsFile(path=path):
                signs = f"signs with the keys in {path}"
            case CredentialsBean(label=label):
                signs = f"signs with the keys of bean {label}"
        namespace = self.namespace or self.namespace_v2
        return f"{signs}{which}, namespace {namespace}" if namespace else f"{signs}{which}"


@dataclass(frozen=True)
class ClientPlan:
    """One client. ``names`` are the ``instance-name`` that sections of its user say, ``used_by`` those who share it."""

    user: User
    names: Mapping[str, str] = field(default_factory=dict, hash=False)
    used_by: tuple[str, ...] = ()

    @property
    def instance_name(self) -> str:
        return next(iter(self.names.values()), DEFAULT_INSTANCE_NAME)

    def options(self, cluster: ClusterProperties, prefix: str = "rocketmq") -> ClientOptions:
        """Those of its instance; the cluster's settings stand below ``prefix``."""
        user = self.user
        return replace(
            cluster.client_options(),
            instance_name=self.instance_name,
            credentials=given.provide() if isinstance(given := user.credentials, CredentialsBean) else given,
            namespace=user.namespace,
            namespace_v2=user.namespace_v2,
            settings_prefix=prefix,
        )

    def __str__(self) -> str:
        return self.told()

    def told(self, which: str = "") -> str:
        """Who it is and who uses it; ``which`` tells its user from another one that is shown alike."""
        return f"{self.user.told(which)}, used by {', '.join(self.used_by) or 'beans that ask for it'}"


@dataclass(frozen=True)
class ClusterClients:
    """The clients of a cluster, the first one first, and whose each is."""

    clients: tuple[ClientPlan, ...]
    producer: ClientPlan
    groups: Mapping[str, ClientPlan]

    def describe(self, cluster: str, name_server: str) -> Iterator[str]:
        """A line for each client, where there are several, or where one signs."""
        if len(self.clients) > 1 or self.clients[0].user != User():
            of_cluster = f" of cluster {cluster}" if cluster else ""
            keys = list(dict.fromkeys(client.user.credentials for client in self.clients))
            for client in self.clients:
                servers = shown_name_server(name_server)
                yield f"client{of_cluster}: name server {servers}, {client.told(_which(client.user, keys))}"


@dataclass
class PlannedClients:
    """The clients of each cluster, by its name. Beans get it; it is filled when the listeners are planned."""

    clusters: dict[str, ClusterClients] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientInstances:
    """The running clients of one cluster: a bean."""

    plan: ClusterClients
    running: Mapping[ClientPlan, MQClientInstance]

    @property
    def producer(self) -> MQClientInstance:
        """What the producer sends over."""
        return self.running[self.plan.producer]

    def group(self, name: str) -> MQClientInstance:
        """What a group's listeners consume over."""
        return self.running[self.plan.groups[name]]


def _which(user: User, keys: Sequence[object]) -> str:
    """What tells a user from others of these keys whose access keys begin as his, which is all that is shown."""
    own = user.credentials
    if not isinstance(own, Credentials):
        return ""
    alike = [each for each in keys if isinstance(each, Credentials) and each.who == own.who]
    return f" (key {alike.index(own) + 1} of {len(alike)} that begin so)" if len(alike) > 1 else ""


def users_of(cluster: ClusterProperties, keys: CredentialsBean | None = None) -> dict[str, User]:
    """Who the cluster itself, ``""``, and each of its sections is; groups of listeners may say otherwise."""
    own = _user(cluster, User(), cluster.security_token)
    if keys is not None:
        own = replace(own, credentials=keys)
    sections = {"producer": cluster.producer, "consumer": cluster.consumer, "pull-consumer": cluster.pull_consumer}
    return {"": own, **{name: _user(section, own) for name, section in sections.items()}}


def plan_clients(
    cluster: ClusterProperties, plans: Sequence[ListenerPlan], keys: CredentialsBean | None = None
) -> ClusterClients:
    """The clients of a cluster whose groups of listeners are ``plans``; ``keys`` are the cluster's, if a bean's."""
    sections = users_of(cluster, keys)
    groups = {plan.group: _user(plan.user, sections[""]) for plan in plans if plan.user is not None}
    users: dict[User, list[str]] = {}
    if cluster.producer.group is not None:
        users.setdefault(sections["producer"], []).append(f"producer group {cluster.producer.group}")
    for group, user in groups.items():
        users.setdefault(user, []).append(f"listener group {group}")
    if cluster.pull_consumer.group is not None and cluster.pull_consumer.topic is not None:
        users.setdefault(sections["pull-consumer"], []).append(f"pull consumer {cluster.pull_consumer.group}")
    if not users:
        users[next((user for name in (*SECTIONS, "") if (user := sections[name]) != User()), User())] = []
    said = cluster.said_of_the_client("instance_name")
    clients = {}
    for user, used_by in users.items():
        of_user = [name for name in SECTIONS if sections[name] == user]
        if "consumer" not in of_user and user in groups.values():
            of_user.append("consumer")
        names = {f"{name}.instance-name": said[f"{name}.instance-name"] for name in of_user
                 if f"{name}.instance-name" in said}  # fmt: skip
        clients[user] = ClientPlan(user, names, tuple(used_by))
    all_clients = tuple(clients.values())
    return ClusterClients(
        clients=all_clients,
        producer=clients.get(sections["producer"], all_clients[0]),
        groups={group: clients[user] for group, user in groups.items()},
    )


def _user(section: Any, otherwise: User, token: Any = None) -> User:
    """Who a section of settings, or a group's options, says it is; what it does not say is as it is ``otherwise``."""
    access_key, secret_key, token = (_text(each) for each in (section.access_key, section.secret_key, token))
    credentials = otherwise.credentials
    if section.credentials_file is not None:
        credentials = CredentialsFile(section.credentials_file)
    if access_key is not None and secret_key is not None:
        credentials = Credentials(access_key=access_key, secret_key=secret_key, security_token=token)
    namespace, namespace_v2 = section.namespace, section.namespace_v2
    if namespace is None and namespace_v2 is None:
        namespace, namespace_v2 = otherwise.namespace, otherwise.namespace_v2
    return User(credentials, namespace, namespace_v2)


def _text(value: Any) -> str | None:
    """A setting as plain text, where it is a secret."""
    return None if value is None else str(getattr(value, "get_secret_value", lambda: value)())
