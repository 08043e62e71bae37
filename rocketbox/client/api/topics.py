"""Topics of a broker (17, 21, 215), and forgetting them at a name server (216).

Source: Apache RocketMQ 5.x ``MQClientAPIImpl`` (createTopic, deleteTopicInBroker, deleteTopicInNameServer,
getAllTopicConfig).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from rocketbox.client.api.answers import ask
from rocketbox.errors import RemoteProtocolError
from rocketbox.protocol.admin_bodies import topic_configs_in_steps
from rocketbox.protocol.codes import RequestCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.headers import CreateTopicRequestHeader, DeleteTopicRequestHeader
from rocketbox.protocol.namespaces import Namespace
from rocketbox.protocol.registration_bodies import DataVersion, TopicConfig
from rocketbox.remoting.client import RemotingClient
from rocketbox.remoting.turns import read_in_turns

__all__ = ["all_topics", "delete_topic", "forget_topic", "put_topic"]

PAGE = 2000  # topics asked for at once; brokers before 5.5 give all
MOST_PAGES = 100


async def put_topic(remoting: RemotingClient, address: str, topic: TopicConfig, *, timeout: float) -> None:
    """Make or change a topic. Its attributes are changes: ``{"+name": value, "-name": ""}``."""
    header = CreateTopicRequestHeader(
        topic=remoting.namespace.wrap(topic.topic_name),
        read_queue_nums=topic.read_queue_nums,
        write_queue_nums=topic.write_queue_nums,
        perm=topic.perm,
        topic_filter_type=topic.topic_filter_type,
        topic_sys_flag=topic.topic_sys_flag,
        order=topic.order,
        attributes=",".join(f"{name}={value}" if value else name for name, value in topic.attributes.items()) or None,
    )
    command = RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header.encode())
    await ask(remoting, address, command, timeout=timeout)


async def delete_topic(remoting: RemotingClient, address: str, topic: str, *, timeout: float) -> None:
    """Delete a topic of a broker; one that it does not have is no error."""
    header = DeleteTopicRequestHeader(topic=remoting.namespace.wrap(topic))
    command = RemotingCommand.request(RequestCode.DELETE_TOPIC_IN_BROKER, header.encode())
    await ask(remoting, address, command, timeout=timeout)


async def forget_topic(
    remoting: RemotingClient, name_server: str, topic: str, cluster: str | None, *, timeout: float
) -> None:
    """Have a name server forget where a topic is, in a cluster or altogether."""
    header = DeleteTopicRequestHeader(topic=remoting.namespace.wrap(topic), cluster_name=cluster)
    command = RemotingCommand.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, header.encode())
    await ask(remoting, name_server, command, timeout=timeout)


async def all_topics(remoting: RemotingClient, address: str, *, timeout: float) -> Mapping[str, TopicConfig]:
    """Every topic of a broker; in a namespace those of it, and RocketMQ's own.

    Raises RemoteProtocolError when they change faster than they can be read.
    """
    found: dict[str, TopicConfig] = {}
    version: DataVersion | None = None
    for _ in range(MOST_PAGES):
        fields = {"topicSeq": str(len(found)), "maxTopicNum": str(PAGE)}
        if version is not None:
            fields["dataVersion"] = json.dumps(version.to_json())
        command = RemotingCommand.request(RequestCode.GET_ALL_TOPIC_CONFIG, fields)
        answer = await ask(remoting, address, command, timeout=timeout)
        page = await read_in_turns(topic_configs_in_steps(answer.body))
        if page.data_version != version:  # the broker has begun at the first topic, whatever was asked for
            found.clear()
        found.update(page.topic_config_table)
        version = page.data_version
        if not page.topic_config_table or len(found) >= int(answer.ext_fields.get("totalTopicNum", "0")):
            return _known_to_users(remoting.namespace, found)
    raise RemoteProtocolError(f"the topics of {address} change faster than they can be read")


def _known_to_users(namespace: Namespace, found: Mapping[str, TopicConfig]) -> Mapping[str, TopicConfig]:
    if not namespace:
        return found
    plain = {name: namespace.unwrap(name) for name in found if namespace.has(name)}
    return {plain[name]: replace(found[name], topic_name=plain[name]) for name in plain}
