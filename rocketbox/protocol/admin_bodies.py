"""The JSON bodies by which clusters are looked at and changed: brokers of a cluster, topics and groups of a broker.

Source: Apache RocketMQ 5.x ``ClusterInfo``, ``TopicList``, ``TopicConfigAndMappingSerializeWrapper``,
``SubscriptionGroupWrapper``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rocketbox.protocol.bodies import BrokerData, broker_from_json, broker_to_json
from rocketbox.protocol.codes import MASTER_ID
from rocketbox.protocol.group_config import SubscriptionGroupConfig
from rocketbox.protocol.json_values import BareKeys, as_list, as_name, as_object, as_text, dumps, dumps_bare, reading
from rocketbox.protocol.loose_json import Steps, finish, loads_loose
from rocketbox.protocol.registration_bodies import DataVersion, TopicConfig, TopicConfigSerializeWrapper

__all__ = [
    "ClusterInfo",
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
    "topic_list_in_steps",
]

NAMES_OF_A_STEP = 2000  # of topics; one takes some 0.5 us


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
    with reading("a cluster's information"):
        values = as_object(loads_loose(body))
        return ClusterInfo(
            brokers={
                as_name(name): broker_from_json(broker)
                for name, broker in as_object(values.get("brokerAddrTable") or {}).items()
            },
            clusters={
                as_name(cluster): tuple(sorted(map(as_name, as_list(names))))
                for cluster, names in as_object(values.get("clusterAddrTable") or {}).items()
            },
        )


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
    with reading("a list of topics"):
        return list(map(as_text, as_list(as_object(loads_loose(body)).get("topicList"))))


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
    with reading("a table of topics"):
        values = as_object(loads_loose(body))
        return TopicConfigSerializeWrapper(
            {
                name: TopicConfig.from_json({"topicName": name, **as_object(topic)})
                for name, topic in as_object(values.get("topicConfigTable") or {}).items()
            },
            DataVersion.from_json(as_object(values.get("dataVersion") or {})),
        )


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
    with reading("a table of groups"):
        table = as_object(as_object(loads_loose(body)).get("subscriptionGroupTable") or {})
        return {
            name: SubscriptionGroupConfig.from_json({"groupName": name, **as_object(group)})
            for name, group in table.items()
        }
