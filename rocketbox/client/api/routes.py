"""Asking a name server where a topic lives (105), and which brokers (106) and topics (206) there are.

Source: Apache RocketMQ 5.x ``MQClientAPIImpl`` (getTopicRouteInfoFromNameServer, getBrokerClusterInfo,
getTopicListFromNameServer).
"""

from __future__ import annotations

from rocketbox.client.api.answers import refusal
from rocketbox.client.name_servers import NameServers
from rocketbox.protocol.admin_bodies import ClusterInfo, cluster_info_in_steps, topic_names_in_steps
from rocketbox.protocol.bodies import TopicRouteData, topic_route_in_steps
from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.headers import GetRouteInfoRequestHeader
from rocketbox.remoting.turns import read_in_turns

__all__ = ["fetch_cluster", "fetch_route", "fetch_topic_names"]


async def fetch_route(name_servers: NameServers, topic: str, *, timeout: float) -> TopicRouteData | None:
    """The topic's route data; None when no name server knows a broker for it.

    Raises RemotingError when none answers, BrokerError when one refuses.
    """
    header = GetRouteInfoRequestHeader(topic=name_servers.namespace.wrap(topic))
    command = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header.encode())
    address, answer = await name_servers.request(command, timeout=timeout, unknown=ResponseCode.TOPIC_NOT_EXIST)
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    if answer.code != ResponseCode.SUCCESS:
        raise refusal(answer, address, command.code, command.ext_fields, name_servers.credentials)
    data = await read_in_turns(topic_route_in_steps(answer.body))
    return data if data.broker_datas else None


async def fetch_cluster(name_servers: NameServers, *, timeout: float) -> ClusterInfo:
    """The brokers that the name server knows.

    Raises RemotingError when none answers, BrokerError when one refuses.
    """
    body = await _ask(name_servers, RequestCode.GET_BROKER_CLUSTER_INFO, timeout)
    return await read_in_turns(cluster_info_in_steps(body))


async def fetch_topic_names(name_servers: NameServers, *, timeout: float) -> list[str]:
    """The names of all topics that some broker has told the name server of; in a namespace those of it, and RocketMQ's
    own.

    Raises RemotingError when none answers, BrokerError when one refuses.
    """
    body = await _ask(name_servers, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, timeout)
    found = await read_in_turns(topic_names_in_steps(body))
    namespace = name_servers.namespace
    return [namespace.unwrap(name) for name in found if namespace.has(name)]


async def _ask(name_servers: NameServers, code: RequestCode, timeout: float) -> bytes:
    """The body of the answer to a request that says nothing but its code."""
    address, answer = await name_servers.request(RemotingCommand.request(code), timeout=timeout)
    if answer.code != ResponseCode.SUCCESS:
        raise refusal(answer, address, code, credentials=name_servers.credentials)
    return answer.body
