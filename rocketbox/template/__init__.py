"""The template: one object by which a service sends, in terms of destinations and payloads."""

from rocketbox.template.converters import JsonMessageConverter, MessageConverter, PayloadError
from rocketbox.template.rocketmq_template import RocketMQTemplate

__all__ = ["JsonMessageConverter", "MessageConverter", "PayloadError", "RocketMQTemplate"]
