"""What clients may make a broker's connections hold, from the broker's settings, and which requests take turns.

Enforced by ``remoting``; how many groups, topics and queues clients may make is the tables' own part.

Source: none; Apache RocketMQ has the limit of a message (``maxMessageSize``) and of a frame only.
"""

from __future__ import annotations

from typing import Final

from rocketbox.broker.options import BrokerOptions
from rocketbox.protocol.codes import RequestCode
from rocketbox.remoting.options import RemotingOptions

__all__ = ["READS", "remoting_options"]

GROUP_BYTES = 16 << 10  # of a group's settings, which have some 400; they are read in one go
SEND_OVERHEAD = 65_536  # so that a message a little too large gets the send handler's own answer
READS: Final = frozenset(
    {
        RequestCode.PULL_MESSAGE,
        RequestCode.QUERY_MESSAGE,
        RequestCode.VIEW_MESSAGE_BY_ID,
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    }
)
"""Requests with answers that may be large."""


def remoting_options(options: BrokerOptions) -> RemotingOptions:
    """How the broker's server treats its peers."""
    message = options.store.max_message_size + SEND_OVERHEAD
    return RemotingOptions(
        max_connections=options.max_connections,
        max_connections_per_address=options.max_connections_per_address,
        max_handshakes=options.max_handshakes,
        header_timeout=options.header_timeout / 1000,
        frame_timeout=options.frame_timeout / 1000,
        max_half_frame_bytes=options.max_half_frame_bytes,
        max_unread_bytes=options.max_unread_bytes,
        max_request_body=options.max_request_bytes,
        max_request_bodies={
            RequestCode.SEND_MESSAGE: message,
            RequestCode.SEND_MESSAGE_V2: message,
            RequestCode.SEND_BATCH_MESSAGE: message,
            RequestCode.SEND_REPLY_MESSAGE: message,
            RequestCode.SEND_REPLY_MESSAGE_V2: message,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: min(GROUP_BYTES, options.max_request_bytes),
            RequestCode.HEART_BEAT: options.max_heartbeat_bytes,
            RequestCode.LOCK_BATCH_MQ: options.max_heartbeat_bytes,
            RequestCode.UNLOCK_BATCH_MQ: options.max_heartbeat_bytes,
        },
        read_pause=options.read_pause,
    )
