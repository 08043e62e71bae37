"""Recalls: a message is called back by the handle that its send was answered with.

Source: Apache RocketMQ 5.3 ``DefaultMQProducerImpl.recallMessage``.
"""

from __future__ import annotations

from rocketbox.client.api.recall import recall_message
from rocketbox.client.instance import MQClientInstance
from rocketbox.errors import ClientError, RequestTimeoutError
from rocketbox.protocol.codes import DLQ_PREFIX, RETRY_PREFIX
from rocketbox.protocol.recall_handles import decode_recall_handle

__all__ = ["recall_by_handle"]


async def recall_by_handle(instance: MQClientInstance, group: str, text: str | None, timeout: float) -> str:
    """Recall a message for a producer group, within ``timeout`` seconds; its msg_id. See ``Producer.recall``."""
    if text is None:
        raise ClientError(
            "the message has no recall_handle: brokers give one from 5.3 on, and only where the message waits for a "
            "time of its own; send it with deliver_at, for a delay that is one of the levels has none either"
        )
    try:
        handle = decode_recall_handle(text)
    except (ValueError, TypeError, AttributeError) as error:
        raise ClientError(f"{text!r:.100} is no recall handle; it is what SendResult.recall_handle holds") from error
    topic = instance.namespace.unwrap(handle.topic)
    if instance.namespace.wrap(topic) != handle.topic:
        raise ClientError(
            f"the recall handle is of topic {handle.topic}, which is not in namespace {instance.namespace.name}"
        )
    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        raise ClientError(f"what waits for topic {topic} cannot be recalled")
    began = instance.clock.monotonic()
    if handle.broker_name not in instance.routes.brokers:
        with instance.clock.move_on_after(timeout):
            await instance.route(topic, refresh=True)
    address = instance.broker_address(handle.broker_name)
    left = timeout - (instance.clock.monotonic() - began)
    if left <= 0:
        raise RequestTimeoutError(address, "a recall", timeout)
    return await recall_message(instance.remoting, address, group, handle, timeout=left)
