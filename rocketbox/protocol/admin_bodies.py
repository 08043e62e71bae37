"""The JSON bodies by which clusters are looked at and changed: brokers of a cluster, topics and groups of a broker.

Source: Apache RocketMQ 5.x ``ClusterInfo``, ``TopicList``, ``TopicConfigAndMappingSerializeWrapper``,
``SubscriptionGroupWrapper``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rocketbox.protocol.bodies import BrokerData, broker_from_json, broker_to_json
from rocketbox.protocol.codes import MASTER_ID
from rocketbox.protocol.group_config import SubscriptionGroupConfig
from rocketbox.protocol.json_values import (
    BareKeys,
    as_list,
    as_name,
    as_object,
    as_text,
    check_size,
    dumps,
    dumps_bare,
    reading,
)
from rocketbox.protocol.loose_json import MAX_CONTAINERS, Steps, each_in_steps, finish, loads_in_steps, loads_loose
from rocketbox.protocol.registration_bodies import (
    TOPIC_BYTES,
    DataVersion,
    TopicConfigSerializeWrapper,
    topic_table_in_steps,
)

__all__ = [
    "ClusterInfo",
    "cluster_info_in_steps",
    "decode_cluster_info",
    "decode_group_config",
    "decode_group_configs",
    "decode_topic_configs",
    "decode_topic_list",
    "encode_cluster_info",
    "encode_group_config",
    "encode_group_configs",
    "encode_topic_configs",
    "encode_topic_list",
    "group_configs_in_steps",
    "topic_configs_in_steps",
    "topic_list_in_steps",
    "topic_names_in_steps",
]

NAMES_OF_A_STEP = 2000  # of topics; one takes some 0.5 us
GROUPS_OF_A_STEP = 200  # one takes some 5 us
BROKERS_OF_A_STEP = 100
CLUSTERS_OF_A_STEP = 10
MOST_CLUSTER_BYTES = 4 << 20  # some 20,000 brokers
GROUP_BYTES = 100  # the least of a group with its name; two objects


@dataclass(frozen=True)
class ClusterInfo:
    """The brokers that a name server knows, by name, and the names in each cluster."""

    brokers: Mapping[str, BrokerData]
    clusters: Mapping[str, tuple[str, ...]]

    def masters(self, cluster: str | None = None) -> dict[str, str]:
        """The addresses of the brokers that take changes, by broker name; of one cluster, or of all."""
        names = self.brokers if cluster is None else self.clusters.get(cluster, ())
        return {
            name: self.brokers[name].broker_addrs[MASTER_ID]
            for name in sorted(names)
            if name in self.brokers and MASTER_ID in self.brokers[name].broker_addrs
        }


def encode_cluster_info(info: ClusterInfo) -> bytes:
    """The answer to code 106; numbers that are keys stand without quotes, as Apache writes them."""
    brokers = {name: broker_to_json(broker) for name, broker in info.brokers.items()}
    for values in brokers.values():
        values["brokerAddrs"] = BareKeys(values["brokerAddrs"])
    clusters = {cluster: sorted(names) for cluster, names in info.clusters.items()}
    return dumps_bare({"brokerAddrTable": brokers, "clusterAddrTable": clusters}).encode()


def decode_cluster_info(body: bytes) -> ClusterInfo:
    """What the answer to code 106 says."""
    return finish(cluster_info_in_steps(body))


def cluster_info_in_steps(body: bytes) -> Steps[ClusterInfo]:
    """As :func:`decode_cluster_info`; a large body in several steps."""
    with reading("a cluster's information"):
        check_size(body, MOST_CLUSTER_BYTES)
        values = as_object((yield from loads_in_steps(body)))
        brokers = list(as_object(values.get("brokerAddrTable") or {}).items())
        clusters: dict[str, tuple[str, ...]] = {}
        for cluster, names in as_object(values.get("clusterAddrTable") or {}).items():
            read = yield from each_in_steps(as_list(names), as_name, NAMES_OF_A_STEP)
            clusters[as_name(cluster)] = tuple(sorted(read))
            if len(clusters) % CLUSTERS_OF_A_STEP == 0:
                yield
        return ClusterInfo(
            brokers=dict((yield from each_in_steps(brokers, _named_broker, BROKERS_OF_A_STEP))), clusters=clusters
        )


def _named_broker(entry: tuple[str, Any]) -> tuple[str, BrokerData]:
    name, broker = entry
    return as_name(name), broker_from_json(broker)


def encode_topic_list(topics: Sequence[str]) -> bytes:
    """The answer to code 206."""
    return finish(topic_list_in_steps(topics))


def topic_list_in_steps(topics: Sequence[str]) -> Steps[bytes]:
    """As :func:`encode_topic_list`; many names in several steps."""
    pieces = [b'{"topicList":[']
    for start in range(0, len(topics), NAMES_OF_A_STEP):
        if start:
            yield
            pieces.append(b",")
        pieces.append(dumps(topics[start : start + NAMES_OF_A_STEP])[1:-1])
    return b"".join((*pieces, b"]}"))


def decode_topic_list(body: bytes) -> list[str]:
    """The names in the answer to code 206."""
    return finish(topic_names_in_steps(body))


def topic_names_in_steps(body: bytes) -> Steps[list[str]]:
    """As :func:`decode_topic_list`; a large body in several steps."""
    with reading("a list of topics"):
        names = as_list(as_object((yield from loads_in_steps(body))).get("topicList"))
        return list((yield from each_in_steps(names, as_text, NAMES_OF_A_STEP)))


def encode_topic_configs(wrapper: TopicConfigSerializeWrapper) -> bytes:
    """The answer to code 21."""
    return dumps(
        {
            "dataVersion": wrapper.data_version.to_json(),
            "mappingDataVersion": DataVersion(timestamp=wrapper.data_version.timestamp).to_json(),
            "topicConfigTable": {name: topic.to_json() for name, topic in wrapper.topic_config_table.items()},
            "topicQueueMappingDetailMap": {},
            "topicQueueMappingInfoMap": {},
        }
    )


def decode_topic_configs(body: bytes) -> TopicConfigSerializeWrapper:
    """The topics in the answer to code 21."""
    return finish(topic_configs_in_steps(body))


def topic_configs_in_steps(body: bytes) -> Steps[TopicConfigSerializeWrapper]:
    """As :func:`decode_topic_configs`; a large body in several steps."""
    with reading("a table of topics"):
        values = as_object((yield from loads_in_steps(body, max(MAX_CONTAINERS, len(body) // TOPIC_BYTES))))
        topics = yield from topic_table_in_steps(values)
        return TopicConfigSerializeWrapper(topics, DataVersion.from_json(as_object(values.get("dataVersion") or {})))


def encode_group_config(group: SubscriptionGroupConfig) -> bytes:
    """The body of code 200."""
    return dumps(group.to_json())


def decode_group_config(body: bytes) -> SubscriptionGroupConfig:
    with reading("the settings of a group"):
        return SubscriptionGroupConfig.from_json(as_object(loads_loose(body)))


def encode_group_configs(groups: Iterable[SubscriptionGroupConfig], version: DataVersion) -> bytes:
    """The answer to code 201."""
    return dumps(
        {
            "dataVersion": version.to_json(),
            "forbiddenTable": {},
            "subscriptionGroupTable": {group.group_name: group.to_json() for group in groups},
        }
    )


def decode_group_configs(body: bytes) -> dict[str, SubscriptionGroupConfig]:
    """The groups in the answer to code 201, by their names."""
    return finish(group_configs_in_steps(body))


def group_configs_in_steps(body: bytes) -> Steps[dict[str, SubscriptionGroupConfig]]:
    """As :func:`decode_group_configs`; a large body in several steps."""
    with reading("a table of groups"):
        values = as_object((yield from loads_in_steps(body, max(MAX_CONTAINERS, 2 * len(body) // GROUP_BYTES))))
        table = list(as_object(values.get("subscriptionGroupTable") or {}).items())
        return dict((yield from each_in_steps(table, _named_group, GROUPS_OF_A_STEP)))


def _named_group(entry: tuple[str, Any]) -> tuple[str, SubscriptionGroupConfig]:
    name, group = entry
    return name, SubscriptionGroupConfig.from_json({"groupName": name, **as_object(group)})
