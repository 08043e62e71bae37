"""Rules about the keys of a cluster that no model can hold by itself, told with the place of each key.

Names that RocketMQ does not take, what has to agree because producer and consumers share one client, what goes together
or not, and what asks for a feature that is not built (``client.unbuilt``). The same for groups of listeners is
``listeners.registrar``'s and their kind's.

Source: rocketmq-spring 2.3 ``RocketMQProperties``, ``RocketMQAutoConfiguration`` (there each producer and consumer has
a client of its own).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from rocketbox.autoconfigure.option_models import Properties
from rocketbox.autoconfigure.properties import ClusterProperties, RocketMQProperties, cluster_prefix
from rocketbox.autoconfigure.users import ClientPlan, ClusterClients
from rocketbox.client import CredentialsFile
from rocketbox.client.checks import check_group, check_topic
from rocketbox.client.options import DEFAULT_INSTANCE_NAME, SYSTEM_TRACE_TOPIC, mismatches, wrong_names
from rocketbox.client.unbuilt import PULL_CONSUMER
from rocketbox.errors import ConfigurationError, CredentialsError, Finding, InvalidGroupError, InvalidMessageError
from rocketbox.remoting.name_server_addresses import address_server_of, parse_name_servers
from rocketbox.remoting.tls import TlsOptions, tls_findings

__all__ = ["key_file_warnings", "key_findings", "key_of_file", "servers_in"]

Where = Callable[[str], str | None]

_OF_THE_USER = ("access_key", "secret_key", "security_token", "credentials_file", "namespace", "namespace_v2")


def key_findings(
    properties: RocketMQProperties,
    clients: Mapping[str, ClusterClients],
    where: Where,
    name_servers: Mapping[str, str | None],
) -> list[Finding]:
    """Everything wrong with the keys of all clusters that start; ``clients`` are those of each.

    ``name_servers`` is what the service says of each cluster's, where a test has put another one there.
    """
    if properties.off_by is not None:
        return []
    findings: list[Finding] = []
    every: dict[str, ClusterProperties] = {"": properties, **properties.clusters}
    for name, cluster in every.items():
        if cluster.name_server is not None and not cluster.is_off:
            prefix = cluster_prefix(name)
            findings += [
                *_names(prefix, cluster, clients[name], where),
                *_topics(prefix, cluster, where),
                *_not_alike(prefix, cluster.said_of_the_client("tls_enable"), where),
                *_tls(prefix, cluster, where),
                *_instance_names(prefix, clients[name], where),
                *_not_together(prefix, cluster, where),
                *_wrong_names(prefix, cluster, where),
                *_unbuilt(prefix, cluster, where),
            ]
    findings += _one_name_twice(every, clients, where, name_servers)
    return findings


def key_file_warnings(
    properties: RocketMQProperties, clients: Mapping[str, ClusterClients], where: Where
) -> Iterator[Finding]:
    """Files of keys that a start would fail for, as they are now: where this is run they may not be mounted."""
    if properties.off_by is not None:
        return
    every: dict[str, ClusterProperties] = {"": properties, **properties.clusters}
    for name, cluster in every.items():
        if cluster.name_server is None or cluster.is_off:
            continue
        files = [each.user.credentials for each in clients[name].clients]
        for file in dict.fromkeys(each for each in files if isinstance(each, CredentialsFile)):
            try:
                file.check()
            except CredentialsError as error:
                key = key_of_file(name, cluster, file)
                what = f"{key or 'credentials_file of a listener'}: {error}"
                yield Finding(what, where(key) if key else None, "a start needs accessKey: and secretKey: in it")


def key_of_file(name: str, cluster: ClusterProperties, file: CredentialsFile) -> str | None:
    """The first key of the cluster that says this file of keys; None: no setting, but a decorator does."""
    consumer = cluster.consumer
    sections = {
        "": cluster, "producer.": cluster.producer, "consumer.": consumer, "pull-consumer.": cluster.pull_consumer,
        **{f"consumer.listeners.{group}.": each for group, each in consumer.listeners.items()},
    }  # fmt: skip
    for section, said in sections.items():
        path = said.values()["credentials_file"]
        if path is not None and CredentialsFile(path) == file:
            return f"{cluster_prefix(name)}.{section}credentials-file"
    return None


def _kebab(option: str) -> str:
    return option.replace("_", "-")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _places(keys: Sequence[str], where: Where) -> str | None:
    return " and ".join(place for key in keys if (place := where(key))) or None


def _names(prefix: str, cluster: ClusterProperties, clients: ClusterClients, where: Where) -> Iterator[Finding]:
    key = f"{prefix}.name-server"
    said = cluster.name_server
    if said is not None and not cluster.is_embedded and address_server_of(said) is None:
        try:
            parse_name_servers(said, in_namespace=all(each.user.is_in_namespace for each in clients.clients))
        except ConfigurationError as error:
            near = difflib.get_close_matches(said.lower(), ["embedded"])
            meant = f"did you mean {near[0]}? else " if near else ""
            yield from (Finding(f"{key}: {each.what}", where(key), f"{meant}{each.fix}") for each in error.findings)
    key = f"{prefix}.producer.group"
    if cluster.producer.group is not None:
        try:
            check_group(cluster.producer.group, "producer")
        except InvalidGroupError as error:
            yield Finding(f"{key}: {error}", where(key), "choose another group")


def _topics(prefix: str, cluster: ClusterProperties, where: Where) -> Iterator[Finding]:
    for name in cluster.topics:
        try:
            check_topic(name)
        except InvalidMessageError as error:
            key = f"{prefix}.topics.{name}"
            yield Finding(f"{key}: {error}", where(key), "choose another name for the topic")
    for path, section in _users(prefix, cluster).items():
        topic = section.values().get("customized_trace_topic")
        try:
            check_topic(topic or SYSTEM_TRACE_TOPIC)
        except InvalidMessageError as error:
            key = f"{path}.customized-trace-topic"
            yield Finding(f"{key}: {error}", where(key), "name another topic for the trace, or leave it out")


def _not_alike(prefix: str, said: Mapping[str, object], where: Where) -> Iterator[Finding]:
    if len(set(said.values())) > 1:
        keys = {f"{prefix}.{key}": value for key, value in said.items()}
        told = " and ".join(f"{key} is {_text(value)}" for key, value in keys.items())
        yield Finding(
            f"{told}, and a cluster has one client, which producer and consumers share",
            _places(list(keys), where),
            "say it once, or alike; for a second client write the same name-server under rocketmq.clusters.<name>",
        )


def _tls(prefix: str, cluster: ClusterProperties, where: Where) -> Iterator[Finding]:
    """What the files of TLS lack, and those that nobody uses because it is nowhere said that connections have TLS."""

    def key(option: str) -> str:
        return f"{prefix}.tls.{_kebab(option)}"

    if cluster.encrypts:
        yield from tls_findings(cluster.tls.as_options(TlsOptions), key, lambda option: where(key(option)))
    elif not cluster.said_of_the_client("tls_enable") and cluster.tls.model_fields_set:
        keys = [key(option) for option in cluster.tls.declared if option in cluster.tls.model_fields_set]
        verb = "is" if len(keys) == 1 else "are"
        yield Finding(
            f"{' and '.join(keys)} {verb} set and {key('enable')} is not, so that nothing would be encrypted",
            _places(keys, where),
            f"set {key('enable')} to true; false leaves TLS off though they are there",
        )


def _instance_names(prefix: str, clients: ClusterClients, where: Where) -> Iterator[Finding]:
    """Two names for one client, and one name for two, which brokers would take for one client."""
    by_name: dict[str, list[ClientPlan]] = {}
    for client in clients.clients:
        yield from _not_alike(prefix, client.names, where)
        by_name.setdefault(client.instance_name, []).append(client)
    for name, alike in by_name.items():
        if name != DEFAULT_INSTANCE_NAME and len(alike) > 1:
            keys = list(dict.fromkeys(f"{prefix}.{key}" for client in alike for key in client.names))
            users = "; ".join(map(str, alike))
            yield Finding(
                f"{' and '.join(keys)} is {name} for {len(alike)} clients, since there are as many users ({users})",
                _places(keys, where),
                "leave it out, or give each section a name of its own; groups with keys of their own need it left out",
            )


def servers_in(said: str) -> frozenset[str]:
    """The servers that a setting names, in whatever order: two clusters with the same ones are one."""
    return frozenset(re.split(r"[;,\s]+", said.lower().strip(" ;,")))


def _one_name_twice(
    clusters: Mapping[str, ClusterProperties],
    clients: Mapping[str, ClusterClients],
    where: Where,
    name_servers: Mapping[str, str | None],
) -> Iterator[Finding]:
    """One name for clients of two clusters that are one: brokers would take them for one client."""
    first: dict[tuple[object, str], tuple[str, str]] = {}
    for name, cluster in clusters.items():
        said = name_servers[name]
        if cluster.name_server is None or cluster.is_off or said is None:
            continue
        servers = servers_in(said)
        for client in clients[name].clients:
            if client.instance_name == DEFAULT_INSTANCE_NAME:
                continue
            key = f"{cluster_prefix(name)}.{next(iter(client.names))}"
            found_in, other = first.setdefault((servers, client.instance_name), (name, key))
            if found_in != name:
                yield Finding(
                    f"{other} and {key} are both {client.instance_name}, and the name server is the same",
                    _places([other, key], where),
                    "brokers would take the two for one client: leave the names out, or make them different",
                )


def _users(prefix: str, cluster: ClusterProperties) -> dict[str, Properties]:
    """The sections that say who somebody is; those of listeners are looked at by their registrar."""
    return {
        prefix: cluster,
        f"{prefix}.producer": cluster.producer,
        f"{prefix}.pull-consumer": cluster.pull_consumer,
    }


def _not_together(prefix: str, cluster: ClusterProperties, where: Where) -> Iterator[Finding]:
    for path, section in _users(prefix, cluster).items():
        keys = {name: f"{path}.{_kebab(name)}" for name in _OF_THE_USER}
        for mismatch in mismatches([name for name in keys if getattr(section, name, None) is not None]):
            places = _places([keys[name] for name in mismatch.given], where)
            yield Finding(mismatch.told(keys.__getitem__), places, mismatch.fix)


def _wrong_names(prefix: str, cluster: ClusterProperties, where: Where) -> Iterator[Finding]:
    for path, section in _users(prefix, cluster).items():
        for option, value, why in wrong_names(section.values()):
            key = f"{path}.{_kebab(option)}"
            yield Finding(f"{key} is {value!r}: {why}", where(key), "choose another one, or leave it out")


def _unbuilt(prefix: str, cluster: ClusterProperties, where: Where) -> Iterator[Finding]:
    pull = cluster.pull_consumer
    if pull.group is not None and pull.topic is not None:
        keys = [f"{prefix}.pull-consumer.group", f"{prefix}.pull-consumer.topic"]
        yield PULL_CONSUMER.finding(" with ".join(keys), _places(keys, where))
