"""The template: one object by which a service sends, in terms of destinations and payloads."""

from rocketbox.template.converters import JsonMessageConverter, MessageConverter, PayloadError
from rocketbox.template.rocketmq_template import BlockingRocketMQTemplate, RocketMQTemplate

__all__ = [
    "BlockingRocketMQTemplate",
    "JsonMessageConverter",
    "MessageConverter",
    "PayloadError",
    "RocketMQTemplate",
]
