"""Consumer groups by request: made or changed (200), listed (201), deleted (207).

Source: Apache RocketMQ 5.x ``AdminBrokerProcessor`` (updateAndCreateSubscriptionGroup, getAllSubscriptionGroup,
deleteSubscriptionGroup).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping

from rocketbox.access.resources import Action, group_need
from rocketbox.blocking import run_blocking
from rocketbox.broker.context import BrokerContext
from rocketbox.broker.handlers.refused import Refused
from rocketbox.broker.limits import LimitError
from rocketbox.broker.names import group_name_problem
from rocketbox.errors import StoreError
from rocketbox.protocol.admin_bodies import decode_group_config, encode_group_configs
from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.group_config import SubscriptionGroupConfig
from rocketbox.protocol.headers import DeleteSubscriptionGroupRequestHeader, PagedListRequestHeader
from rocketbox.remoting.connection import Connection, RequestHandler
from rocketbox.safe_repr import one_line

__all__ = ["GroupHandler"]

_log = logging.getLogger(__name__)


class GroupHandler:
    """Answers what tools and programs ask about groups."""

    def __init__(self, context: BrokerContext) -> None:
        self._refusal = context.refusal
        self._most_queues = context.options.max_queues_per_topic
        self._groups = context.groups
        self._offsets = context.offsets
        self._held_pulls = context.held_pulls

    def codes(self) -> Mapping[int, RequestHandler]:
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.put,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.list_all,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete,
        }

    def put(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None]:
        """Make or change a group; answered when it is written down."""
        group = decode_group_config(request.body)
        needs = (group_need(group.group_name, Action.UPDATE, Action.CREATE),)
        refusal = self._refusal(connection, request, needs)
        if refusal is not None:
            return refusal
        try:
            self._check(group)
        except Refused as refused:
            return refused.response()
        return self._put(group, connection.remote_address)

    async def _put(self, group: SubscriptionGroupConfig, peer: str) -> RemotingCommand:
        known = group == self._groups.get(group.group_name)
        try:  # what is known may be so from an attempt that could not be written down
            await self._groups.written(self._groups.last_change if known else self._groups.put(group))
        except LimitError as error:
            return RemotingCommand.response(error.code, str(error))
        except StoreError as error:
            return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, str(error))
        if not known:
            _log.info("group %s was made or changed by %s", group.group_name, peer)
        return RemotingCommand.response()

    def _check(self, group: SubscriptionGroupConfig) -> None:
        """Refuse settings that cannot be kept or would not be honoured; Apache takes any numbers."""
        problem = group_name_problem(group.group_name)
        if problem is None and not 0 <= group.retry_queue_nums <= self._most_queues:
            problem = f"retryQueueNums is {group.retry_queue_nums}; it must be 0 to {self._most_queues}"
        if problem is None and group.retry_max_times < 0:
            problem = f"retryMaxTimes is {group.retry_max_times}; it must be 0 or more"
        if problem is not None:
            raise Refused(ResponseCode.INVALID_PARAMETER, problem)
        attributes = group.unused.get("attributes")
        if attributes:
            names = ", ".join(str(name).lstrip("+-") for name in attributes)
            raise Refused(ResponseCode.SYSTEM_ERROR, f"unsupported key: {names}")

    async def list_all(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """All groups, or from the ``groupSeq``-th on as many as ``maxGroupNum`` says."""
        header = PagedListRequestHeader.decode(request.ext_fields)
        groups = list(self._groups.all().values())
        first, most = header.group_seq, header.max_group_num
        page = groups[first:] if most is None else groups[first : first + most]
        body = await run_blocking(encode_group_configs, page, self._groups.version)
        return RemotingCommand.response(ext_fields={"totalGroupNum": str(len(groups))}, body=body)

    def delete(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None]:
        """Delete a group, if it is there, and with ``cleanOffset`` how far it is; its retry topic stays.

        The groups that every broker has stay, other than at Apache's: the tools could do nothing without theirs.
        """
        header = DeleteSubscriptionGroupRequestHeader.decode(request.ext_fields)
        if self._groups.is_built_in(header.group_name):
            return RemotingCommand.response(
                ResponseCode.INVALID_PARAMETER, f"The group[{header.group_name}] is conflict with system group."
            )
        return self._delete(header, connection.remote_address)

    async def _delete(self, header: DeleteSubscriptionGroupRequestHeader, peer: str) -> RemotingCommand:
        change = self._groups.delete(header.group_name)
        if header.clean_offset:
            self._offsets.delete_group(header.group_name)
        self._held_pulls.wake_group(header.group_name)
        try:
            await self._groups.written(change)
        except StoreError as error:
            return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, str(error))
        _log.info("group %s was deleted by %s", one_line(header.group_name), peer)
        return RemotingCommand.response()
