"""The settings of a broker's consumer groups (200, 201, 207).

Source: Apache RocketMQ 5.x ``MQClientAPIImpl`` (createSubscriptionGroup, getAllSubscriptionGroupConfig,
deleteSubscriptionGroup).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rocketbox.client.api.answers import ask
from rocketbox.protocol.admin_bodies import encode_group_config, group_configs_in_steps
from rocketbox.protocol.codes import RequestCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.group_config import SubscriptionGroupConfig
from rocketbox.protocol.headers import DeleteSubscriptionGroupRequestHeader
from rocketbox.remoting.client import RemotingClient
from rocketbox.remoting.turns import read_in_turns

__all__ = ["all_groups", "delete_group", "put_group"]


async def put_group(remoting: RemotingClient, address: str, group: SubscriptionGroupConfig, *, timeout: float) -> None:
    """Make or change a group."""
    wrapped = replace(group, group_name=remoting.namespace.wrap(group.group_name))
    command = RemotingCommand.request(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, encode_group_config(wrapped)
    )
    await ask(remoting, address, command, timeout=timeout)


async def delete_group(
    remoting: RemotingClient, address: str, group: str, *, clean_offsets: bool, timeout: float
) -> None:
    """Delete a group's settings, and how far it is."""
    header = DeleteSubscriptionGroupRequestHeader(group_name=remoting.namespace.wrap(group), clean_offset=clean_offsets)
    command = RemotingCommand.request(RequestCode.DELETE_SUBSCRIPTIONGROUP, header.encode())
    await ask(remoting, address, command, timeout=timeout)


async def all_groups(
    remoting: RemotingClient, address: str, *, timeout: float
) -> Mapping[str, SubscriptionGroupConfig]:
    """Every group of a broker; in a namespace those of it, and RocketMQ's own."""
    command = RemotingCommand.request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    answer = await ask(remoting, address, command, timeout=timeout)
    found, namespace = await read_in_turns(group_configs_in_steps(answer.body)), remoting.namespace
    if not namespace:
        return found
    plain = {name: namespace.unwrap(name) for name in found if namespace.has(name)}
    return {plain[name]: replace(found[name], group_name=plain[name]) for name in plain}
