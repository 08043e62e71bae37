"""What a group, a topic and a message must be before anything is sent.

Source: Apache RocketMQ 5.x ``Validators``, ``TopicValidator``, ``Message.putUserProperty``, ``MessageConst``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rocketbox.client.delays import time_properties
from rocketbox.errors import ClientError, InvalidGroupError, InvalidMessageError
from rocketbox.message import MAX_PROPERTIES_BYTES, RESERVED_PROPERTIES, Message, Property, encode_properties
from rocketbox.protocol.codes import CLIENT_INNER_PRODUCER, SEND_FORBIDDEN_TOPICS
from rocketbox.protocol.namespaces import NO_NAMESPACE, Namespace
from rocketbox.protocol.tags import is_valid_name

__all__ = [
    "check_body",
    "check_flag",
    "check_group",
    "check_size",
    "check_timeout",
    "check_topic",
    "encode_checked",
    "message_properties",
    "wrong_message",
]

LONGEST_TIMEOUT = 1e9  # seconds, 31 years
MAX_GROUP_CHARS = 120
MAX_TOPIC_CHARS = 127
MAX_KNOWN_TAGS = 1_000  # whose check is remembered
RESERVED_GROUPS = frozenset({"DEFAULT_PRODUCER", "DEFAULT_CONSUMER", CLIENT_INNER_PRODUCER})

_known_tags: dict[str, str] = {}
"""Tags that were checked, as properties: few are sent again and again (benchmark "batch of 32")."""

_LEGAL = "it may hold letters, digits and % | _ -"


def check_group(group: str, role: str, namespace: Namespace = NO_NAMESPACE) -> None:
    """Raise InvalidGroupError unless group is a name for a ``role`` ("producer" or "consumer") group.

    With a ``namespace`` it has to be short enough for that before it.
    """
    if not group.strip():
        raise InvalidGroupError(group, role, f"is blank; set rocketmq.{role}.group")
    if len(group) > MAX_GROUP_CHARS:
        raise InvalidGroupError(group, role, f"has {len(group)} characters, at most {MAX_GROUP_CHARS} are allowed")
    if (whole := len(namespace.wrap(group))) > MAX_GROUP_CHARS:
        with_it = f"has {whole} characters with namespace {namespace.name} before it"
        raise InvalidGroupError(group, role, f"{with_it}, at most {MAX_GROUP_CHARS} are allowed")
    if not is_valid_name(group):
        raise InvalidGroupError(group, role, f"holds a character that is not allowed; {_LEGAL}")
    if group in RESERVED_GROUPS:
        raise InvalidGroupError(group, role, "is a name that RocketMQ reserves; choose another one")


def check_topic(topic: str, namespace: Namespace = NO_NAMESPACE) -> None:
    """Raise InvalidMessageError unless a client may send to topic, short enough for a ``namespace`` before it."""
    if not topic.strip():
        raise InvalidMessageError("the message has no topic")
    if len(topic) > MAX_TOPIC_CHARS:
        raise InvalidMessageError(f"topic {topic!r} has {len(topic)} characters, at most {MAX_TOPIC_CHARS} are allowed")
    if (whole := len(namespace.wrap(topic))) > MAX_TOPIC_CHARS:
        raise InvalidMessageError(
            f"topic {topic!r} has {whole} characters with namespace {namespace.name} before it, at most "
            f"{MAX_TOPIC_CHARS} are allowed"
        )
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


def check_flag(flag: int) -> int:
    """The flag. Raises InvalidMessageError unless it is a signed 32-bit number."""
    if not isinstance(flag, int) or isinstance(flag, bool) or not -0x8000_0000 <= flag <= 0x7FFF_FFFF:
        raise InvalidMessageError(f"flag is {flag!r}; it must be a whole number of 32 bits, with its sign")
    return flag


def wrong_message(message: object, error: Exception) -> InvalidMessageError:
    """What is wrong with a message out of which another error came: the field of a wrong type, or its text."""
    if not isinstance(message, Message):
        return InvalidMessageError(f"a {type(message).__name__} cannot be sent; make a Message of it")
    if isinstance(error, UnicodeEncodeError):
        return InvalidMessageError(
            f"the tag, a key, the hash_key or a property of the message to {message.topic!r} holds "
            f"{error.object[error.start]!r}, half of a surrogate pair: that is no character, and there are no bytes "
            "for it"
        )
    fields: list[tuple[str, object, type | tuple[type, ...], str]] = [
        ("topic", message.topic, str, "text"),
        ("tag", message.tag, (str, type(None)), "text or None"),
        ("keys", message.keys, (tuple, list), "a list of words"),
        ("properties", message.properties, Mapping, "a mapping of text to text"),
        ("delay_level", message.delay_level, int, "a whole number"),
        *(("key", key, str, "text") for key in message.keys if isinstance(message.keys, tuple | list)),
    ]
    for name, value, right, words in fields:
        if not isinstance(value, right):
            return InvalidMessageError(f"{name} is {value!r}, of type {type(value).__name__}; it must be {words}")
    return InvalidMessageError(f"the message to {message.topic!r} cannot be sent: {error}")


def message_properties(message: Message, msg_id: str) -> bytes:
    """The property text of a message, with msg_id as its UNIQ_KEY.

    Raises InvalidMessageError for a name that RocketMQ reserves, a blank name or value, a tag, key or property with a
    control character (0x01, 0x02), a delay level that is no level, and a text of more than 32,767 bytes.

    Put together as one text, of which only what the user wrote is looked at: a third less than a search
    through all of it (benchmarks "send, 256 in flight" and "one-way"). By ``+``, which takes the text of a
    ``class Tag(str, Enum)``: formatting takes the name of its member.
    """
    own = keys = tag = delay = ""
    if message.properties:
        for name, value in message.properties.items():
            _check_property(name, value)
            own += name + "\x01" + value + "\x02"
        pairs = len(message.properties)
        if own.count("\x01") != pairs or own.count("\x02") != pairs:
            _refuse_separators(message)
    if said := message.keys:
        words = " ".join(said)
        if (type(said) is not tuple and _is_text(said)) or words.split() != [*said]:
            _refuse_keys(said)
        if "\x01" in words or "\x02" in words:
            _refuse_separators(message)
        keys = f"KEYS\x01{words}\x02"
    if (word := message.tag) is not None:
        tag = _known_tags.get(word) or _tag(message, word)
    if (key := message.hash_key) is not None:
        tag += _sharding_key(message, key)
    if message.delay_level or message.delay is not None or message.deliver_at is not None:
        delay = time_properties(message)
    wait = "true" if message.wait_store_ok else "false"
    text = f"{own}{keys}UNIQ_KEY\x01{msg_id}\x02WAIT\x01{wait}\x02{tag}{delay}".encode()
    return text if len(text) <= MAX_PROPERTIES_BYTES else check_size(text)


def _tag(message: Message, word: str) -> str:
    if not word.strip():
        raise InvalidMessageError("the tag is blank; leave it out (None) instead")
    if "|" in word:
        raise InvalidMessageError(f"tag {word!r} holds '|', which separates tags in a selector expression")
    if "\x01" in word or "\x02" in word:
        _refuse_separators(message)
    tag = "TAGS\x01" + word + "\x02"
    if type(word) is str and len(_known_tags) < MAX_KNOWN_TAGS:
        _known_tags[word] = tag
    return tag


def _sharding_key(message: Message, key: str) -> str:
    """The hash key as servers of 5.x and other clients look for it."""
    if not isinstance(key, str):
        raise InvalidMessageError(f"hash_key is {key!r}, of type {type(key).__name__}; it must be text")
    if not key.strip():
        raise InvalidMessageError("the hash_key is blank; leave it out (None) instead")
    if Property.SHARDING_KEY in message.properties:
        raise InvalidMessageError(
            f"the message to {message.topic!r} has a hash_key and a property {Property.SHARDING_KEY}, which is where "
            "that stands; keep one of them"
        )
    if "\x01" in key or "\x02" in key:
        _refuse_separators(message)
    return Property.SHARDING_KEY + "\x01" + key + "\x02"


def _refuse_separators(message: Message) -> None:
    raise InvalidMessageError(
        f"the tag, a key, the hash_key or a property of the message to {message.topic!r} holds a control character "
        "(0x01 or 0x02); they separate properties"
    )


def _is_text(keys: object) -> bool:
    return isinstance(keys, str)  # a sequence of letters, which is not meant


def _refuse_keys(keys: Sequence[str]) -> None:
    if _is_text(keys):
        raise InvalidMessageError(f"keys={keys!r} is one text; give a list of words: keys=[{keys!r}]")
    wrong = next(key for key in keys if key.split() != [key])
    raise InvalidMessageError(f"key {wrong!r} is empty or holds a space, which separates keys")


def encode_checked(properties: dict[str, str]) -> bytes:
    """The property text of properties; raises InvalidMessageError when it is larger than a broker stores."""
    return check_size(encode_properties(properties))


def check_size(text: bytes) -> bytes:
    """The property text; raises InvalidMessageError when it is larger than a broker stores."""
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


def check_timeout(timeout: float) -> float:
    """The seconds that a user gave for one send, which mean no more than LONGEST_TIMEOUT: infinity has no text.

    Raises ClientError unless they are a number of more than 0.
    """
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise ClientError(
            f"timeout={timeout!r}: it must be more than 0 seconds; leave it out for the producer's send_message_timeout"
        )
    return min(timeout, LONGEST_TIMEOUT)
