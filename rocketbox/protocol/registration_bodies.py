"""What a broker registers at name servers, as values: its topics and their version. And the JSON of a topic.

``encode_x`` writes what Java writes, ``x_in_steps`` reads any dialect of it, a large body in several steps, and raises
RemoteProtocolError for anything else.

Source: Apache RocketMQ 5.x ``RegisterBrokerBody``, ``TopicConfigSerializeWrapper``, ``TopicConfig``, ``DataVersion``.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from rocketbox.protocol.codes import PermName
from rocketbox.protocol.json_values import as_int, as_list, as_object, as_text, dumps, reading
from rocketbox.protocol.loose_json import (
    LARGE,
    MAX_CONTAINERS,
    Steps,
    each_in_steps,
    finish,
    loads_in_steps,
    loads_loose,
)

__all__ = [
    "DataVersion",
    "RegisterBrokerBody",
    "TopicConfig",
    "TopicConfigSerializeWrapper",
    "decode_register_broker",
    "encode_register_broker",
    "registration_in_steps",
]

TEXTS_OF_A_STEP = 3000
READ_WRITE = int(PermName.READ | PermName.WRITE)
TOPICS_OF_A_STEP = 200  # one takes some 4 us
TOPIC_BYTES = 40  # of one with its attributes, at the very least, for each of its two objects
MAX_TOPIC_ATTRIBUTES = 1000
PACKED_OF_A_STEP = 16 << 10
UNPACKED_OF_A_STEP = 512 << 10
MAX_UNPACKED_BYTES = 64 * 1024 * 1024
VERSION_5_0_0 = 413  # from here a compressed registration holds static-topic mappings as well
VERSION_3_0_11 = 37  # brokers before it sent the wrapper alone


@dataclass(frozen=True)
class DataVersion:
    """Which state of a table this is; ``timestamp`` in ms."""

    state_version: int = 0
    timestamp: int = 0
    counter: int = 0

    def next(self, time_ms: int) -> DataVersion:
        """The version after a change."""
        return DataVersion(self.state_version, time_ms, self.counter + 1)

    def to_json(self) -> dict[str, int]:
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Raises TypeError or ValueError for members of the wrong type; those missing are 0 (as in 4.9)."""
        return cls(
            state_version=as_int(value.get("stateVersion") or 0),
            timestamp=as_int(value.get("timestamp") or 0),
            counter=as_int(value.get("counter") or 0),
        )


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic as a broker has it; ``perm`` is PermName."""

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = READ_WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "attributes": dict(self.attributes),
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queue_nums,
            "topicFilterType": self.topic_filter_type,
            "topicName": self.topic_name,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queue_nums,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Raises TypeError, ValueError or KeyError for members of the wrong type or without a name."""
        return cls(
            topic_name=as_text(value["topicName"]),
            read_queue_nums=as_int(value.get("readQueueNums", 16)),
            write_queue_nums=as_int(value.get("writeQueueNums", 16)),
            perm=as_int(value.get("perm", READ_WRITE)),
            topic_filter_type=as_text(value.get("topicFilterType") or "SINGLE_TAG"),
            topic_sys_flag=as_int(value.get("topicSysFlag") or 0),
            order=bool(value.get("order")),
            attributes={name: as_text(text) for name, text in as_object(value.get("attributes") or {}).items()},
        )


@dataclass(frozen=True)
class TopicConfigSerializeWrapper:
    """Topics of a broker and their version: all, or only the one that changed."""

    topic_config_table: Mapping[str, TopicConfig]
    data_version: DataVersion


@dataclass(frozen=True)
class RegisterBrokerBody:
    """What a broker tells a name server about itself."""

    topic_config_serialize_wrapper: TopicConfigSerializeWrapper
    filter_server_list: tuple[str, ...] = ()


def encode_register_broker(data: RegisterBrokerBody) -> bytes:
    """The body of code 103, not compressed."""
    wrapper = data.topic_config_serialize_wrapper
    return dumps(
        {
            "filterServerList": list(data.filter_server_list),
            "topicConfigSerializeWrapper": {
                "dataVersion": wrapper.data_version.to_json(),
                "mappingDataVersion": DataVersion(timestamp=wrapper.data_version.timestamp).to_json(),
                "topicConfigTable": {name: topic.to_json() for name, topic in wrapper.topic_config_table.items()},
                "topicQueueMappingDetailMap": {},
                "topicQueueMappingInfoMap": {},
            },
        }
    )


def decode_register_broker(
    body: bytes, *, compressed: bool = False, version: int = VERSION_5_0_0
) -> RegisterBrokerBody:
    """What code 103 registers; ``version`` is the sender's, by which the forms differ."""
    return finish(registration_in_steps(body, compressed=compressed, version=version))


def registration_in_steps(
    body: bytes, *, compressed: bool = False, version: int = VERSION_5_0_0
) -> Steps[RegisterBrokerBody]:
    """As :func:`decode_register_broker`; a large body in several steps."""
    with reading("a broker's registration"):
        if compressed:
            return (yield from _compressed_in_steps(body))
        most = max(MAX_CONTAINERS, len(body) // TOPIC_BYTES)
        values = as_object((yield from loads_in_steps(body, most))) if body else {}
        if version < VERSION_3_0_11:
            values = {"topicConfigSerializeWrapper": values}
        wrapper = as_object(values.get("topicConfigSerializeWrapper") or {})
        return RegisterBrokerBody(
            TopicConfigSerializeWrapper(
                (yield from topic_table_in_steps(wrapper)),
                DataVersion.from_json(as_object(wrapper.get("dataVersion") or {})),
            ),
            (yield from each_in_steps(as_list(values.get("filterServerList")), as_text, TEXTS_OF_A_STEP)),
        )


def topic_table_in_steps(wrapper: Mapping[str, Any]) -> Steps[dict[str, TopicConfig]]:
    """The topics of a ``TopicConfigSerializeWrapper`` by their names, so many in a step."""
    table = as_object(wrapper.get("topicConfigTable") or {})
    topics = yield from each_in_steps(list(table.items()), _named_topic, TOPICS_OF_A_STEP)
    return dict(zip(table, topics, strict=True))


def _named_topic(entry: tuple[str, Any]) -> TopicConfig:
    name, topic = entry
    _check_attributes(as_object(topic).get("attributes") or {})
    return TopicConfig.from_json({"topicName": name, **topic})


def _check_attributes(attributes: Any) -> None:
    """Topics have a handful; very many would be read in one step."""
    if len(as_object(attributes)) > MAX_TOPIC_ATTRIBUTES:
        raise ValueError(f"a topic has {len(attributes)} attributes; {MAX_TOPIC_ATTRIBUTES} are the most")


def _compressed_in_steps(body: bytes) -> Steps[RegisterBrokerBody]:
    """Layout: i32 + DataVersion JSON, i32 n, n x (i32 + "name read write perm filter attributes"), i32 + servers JSON.

    From 5.0 mappings of static topics follow, which are not read.
    """
    data = yield from _unpack_in_steps(body)
    position = 0

    def part() -> bytes:
        nonlocal position
        (size,) = struct.unpack_from(">i", data, position)
        position += 4 + size
        if size < 0 or position > len(data):
            raise ValueError(f"a part of {size} bytes does not fit")
        return bytes(data[position - size : position])

    version = DataVersion.from_json(as_object((yield from loads_in_steps(part()))))
    (count,) = struct.unpack_from(">i", data, position)
    position += 4
    topics: dict[str, TopicConfig] = {}
    for number in range(1, count + 1):
        text = part()
        if len(text) > LARGE:
            raise ValueError(f"a topic has {len(text)} bytes; {LARGE} are the most")
        topic = _topic_from_text(text.decode())
        topics[topic.topic_name] = topic
        if number % TOPICS_OF_A_STEP == 0:
            yield
    servers = as_list((yield from loads_in_steps(part())))
    return RegisterBrokerBody(
        TopicConfigSerializeWrapper(topics, version), (yield from each_in_steps(servers, as_text, TEXTS_OF_A_STEP))
    )


def _unpack_in_steps(body: bytes) -> Steps[bytearray]:
    """What is compressed in a body, so many bytes in a step."""
    unpacker = zlib.decompressobj()
    data = bytearray()
    for start in range(0, len(body), PACKED_OF_A_STEP):
        packed = body[start : start + PACKED_OF_A_STEP]
        while packed and not unpacker.eof:
            data += unpacker.decompress(packed, UNPACKED_OF_A_STEP)
            if len(data) > MAX_UNPACKED_BYTES:
                raise ValueError(f"it is larger than {MAX_UNPACKED_BYTES} bytes")
            packed = unpacker.unconsumed_tail
            if len(data) > UNPACKED_OF_A_STEP:
                yield
    if not unpacker.eof:
        raise ValueError("it is cut off")
    return data


def _topic_from_text(text: str) -> TopicConfig:
    name, read, write, perm, filter_type, *attributes = text.split(" ", 5)
    values = as_object(loads_loose(attributes[0])) if attributes and attributes[0] else {}
    texts = {key: as_text(value) for key, value in values.items()}
    return TopicConfig(name, as_int(read), as_int(write), as_int(perm), filter_type, attributes=texts)
