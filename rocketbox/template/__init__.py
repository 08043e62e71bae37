"""The template: one object by which a service sends, in terms of destinations and payloads."""

from rocketbox.template.codecs import AvroCodec, MessagePackCodec, PayloadCodec, ProtobufCodec
from rocketbox.template.content_types import CodecMessageConverter
from rocketbox.template.converters import JsonMessageConverter, MessageConverter, PayloadError
from rocketbox.template.rocketmq_template import BlockingRocketMQTemplate, RocketMQTemplate

__all__ = [
    "AvroCodec",
    "BlockingRocketMQTemplate",
    "CodecMessageConverter",
    "JsonMessageConverter",
    "MessageConverter",
    "MessagePackCodec",
    "PayloadCodec",
    "PayloadError",
    "ProtobufCodec",
    "RocketMQTemplate",
]
