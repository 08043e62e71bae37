"""What the broker asks and tells its clients, over the connections they have opened.

Source: Apache RocketMQ 5.x ``Broker2Client``, ``DefaultConsumerIdsChangeListener``.
"""

from __future__ import annotations

import logging

from rocketbox.broker.clients import ConsumerGroup
from rocketbox.broker.groups import GroupTable
from rocketbox.errors import ConnectionClosedError
from rocketbox.protocol.codes import RequestCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.remoting.connection import Connection

__all__ = ["ClientRequests"]

_log = logging.getLogger(__name__)


class ClientRequests:
    """Requests from this broker to its clients."""

    def __init__(self, groups: GroupTable) -> None:
        self._groups = groups

    def consumer_ids_changed(self, group: ConsumerGroup[Connection]) -> None:
        """Have the members of a group share the queues anew."""
        config = self._groups.find(group.name)
        if config is not None and not config.notify_consumer_ids_changed_enable:
            return
        for connection in list(group.channels):
            notice = RemotingCommand.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group.name})
            try:
                connection.send_oneway(notice)
            except ConnectionClosedError:
                _log.debug("%s left group %s before it was told", connection.remote_address, group.name)
