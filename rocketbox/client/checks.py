"""What a group, a topic and a message must be before anything is sent.

Source: Apache RocketMQ 5.x ``Validators``, ``TopicValidator``, ``Message.putUserProperty``, ``MessageConst``.
"""

from __future__ import annotations

from rocketbox.errors import InvalidGroupError, InvalidMessageError
from rocketbox.message import MAX_PROPERTIES_BYTES, RESERVED_PROPERTIES, Message, Property, encode_properties
from rocketbox.protocol.codes import SEND_FORBIDDEN_TOPICS
from rocketbox.protocol.tags import is_valid_name

__all__ = ["check_body", "check_group", "check_topic", "message_properties"]

MAX_GROUP_CHARS = 120
MAX_TOPIC_CHARS = 127
DEFAULT_GROUPS = frozenset({"DEFAULT_PRODUCER", "DEFAULT_CONSUMER"})

_LEGAL = "it may hold letters, digits and % | _ -"


def check_group(group: str, role: str) -> None:
    """Raise InvalidGroupError unless group is a name for a ``role`` ("producer" or "consumer") group."""
    if not group.strip():
        raise InvalidGroupError(group, role, f"is blank; set rocketmq.{role}.group")
    if len(group) > MAX_GROUP_CHARS:
        raise InvalidGroupError(group, role, f"has {len(group)} characters, at most {MAX_GROUP_CHARS} are allowed")
    if not is_valid_name(group):
        raise InvalidGroupError(group, role, f"holds a character that is not allowed; {_LEGAL}")
    if group in DEFAULT_GROUPS:
        raise InvalidGroupError(group, role, "is a name that RocketMQ reserves; choose another one")


def check_topic(topic: str) -> None:
    """Raise InvalidMessageError unless a client may send to topic."""
    if not topic.strip():
        raise InvalidMessageError("the message has no topic")
    if len(topic) > MAX_TOPIC_CHARS:
        raise InvalidMessageError(f"topic {topic!r} has {len(topic)} characters, at most {MAX_TOPIC_CHARS} are allowed")
    if not is_valid_name(topic):
        raise InvalidMessageError(f"topic {topic!r} holds a character that is not allowed; {_LEGAL}")
    if topic in SEND_FORBIDDEN_TOPICS:
        raise InvalidMessageError(f"topic {topic!r} belongs to RocketMQ itself; nothing may be sent to it")


def check_body(topic: str, body: bytes, max_bytes: int) -> None:
    """Raise InvalidMessageError unless body is 1 to max_bytes bytes."""
    if not isinstance(body, bytes):
        raise InvalidMessageError(f"the body of a message to {topic!r} is {type(body).__name__}, it must be bytes")
    if not body:
        raise InvalidMessageError(f"the body of a message to {topic!r} is empty; RocketMQ does not take empty bodies")
    if len(body) > max_bytes:
        raise InvalidMessageError(
            f"the body of a message to {topic!r} has {len(body)} bytes, at most {max_bytes} are allowed "
            "(rocketmq.producer.max-message-size, and the broker's maxMessageSize)"
        )


def message_properties(message: Message, msg_id: str) -> bytes:
    """The property text of a message, with msg_id as its UNIQ_KEY.

    Raises InvalidMessageError for a name that RocketMQ reserves, a blank name or value, a tag, key or property with a
    control character (0x01, 0x02), a delay level that is no level, and a text of more than 32,767 bytes.
    """
    properties: dict[str, str] = {}
    if message.properties:
        for name, value in message.properties.items():
            _check_property(name, value)
            properties[name] = value
    keys = message.keys
    if keys:
        if isinstance(keys, str):  # type: ignore[unreachable] # and yet easily written: it would be taken letter by letter
            raise InvalidMessageError(f"keys={keys!r} is one text; give a list of words: keys=[{keys!r}]")
        for key in keys:
            if not key or any(character.isspace() for character in key):
                raise InvalidMessageError(f"key {key!r} is empty or holds a space, which separates keys")
        properties[Property.KEYS] = " ".join(keys)
    properties[Property.UNIQ_KEY] = msg_id
    properties[Property.WAIT] = "true" if message.wait_store_ok else "false"
    if message.tag is not None:
        if not message.tag.strip():
            raise InvalidMessageError("the tag is blank; leave it out (None) instead")
        if "|" in message.tag:
            raise InvalidMessageError(f"tag {message.tag!r} holds '|', which separates tags in a selector expression")
        properties[Property.TAGS] = message.tag
    if message.delay_level:
        if message.delay_level < 0:
            raise InvalidMessageError(f"delay_level is {message.delay_level}; it must be 0 (none) or a level from 1 on")
        properties[Property.DELAY] = str(message.delay_level)
    return encode_checked(properties)


def encode_checked(properties: dict[str, str]) -> bytes:
    """The property text; raises InvalidMessageError when it is larger than a broker stores."""
    text = encode_properties(properties)
    if len(text) > MAX_PROPERTIES_BYTES:
        raise InvalidMessageError(
            f"the message's properties take {len(text)} bytes, at most {MAX_PROPERTIES_BYTES} are allowed"
        )
    return text


def _check_property(name: str, value: str) -> None:
    if not isinstance(name, str) or not isinstance(value, str):
        raise InvalidMessageError(f"property {name!r} is {value!r}; names and values must be text")
    if name in RESERVED_PROPERTIES:
        raise InvalidMessageError(f"property name {name!r} is reserved by RocketMQ; choose another one")
    if not name.strip() or not value.strip():
        raise InvalidMessageError(f"property {name!r} is {value!r}; neither name nor value may be blank")
