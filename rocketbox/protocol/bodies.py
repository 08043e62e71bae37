"""The JSON bodies of requests and answers as values: heartbeats, routes, locks, members, registration of brokers.

``encode_x`` writes what Java writes (keys in alphabetical order, null left out); ``decode_x`` reads any dialect of it
and raises RemoteProtocolError for anything else. Unknown members are ignored, unknown names of enums are None.

Source: Apache RocketMQ 5.x ``HeartbeatData``, ``ConsumerData``, ``SubscriptionData``, ``TopicRouteData``,
``QueueData``, ``BrokerData``, ``LockBatchRequestBody``, ``LockBatchResponseBody``,
``GetConsumerListByGroupResponseBody``,
``RegisterBrokerBody``, ``TopicConfigSerializeWrapper``, ``TopicConfig``, ``DataVersion``.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Self, TypeVar

from rocketbox.message import ConsumeFromWhere, MessageModel, MessageQueue
from rocketbox.protocol.codes import PermName
from rocketbox.protocol.json_values import BareKeys, as_int, as_list, as_object, as_text, dumps, dumps_bare, reading
from rocketbox.protocol.loose_json import LARGE, MAX_CONTAINERS, Steps, finish, loads_in_steps, loads_loose
from rocketbox.protocol.tags import SubscriptionData

__all__ = [
    "BrokerData",
    "ConsumerData",
    "DataVersion",
    "HeartbeatData",
    "LockBatchRequestBody",
    "ProducerData",
    "QueueData",
    "RegisterBrokerBody",
    "SubscriptionData",
    "TopicConfig",
    "TopicConfigSerializeWrapper",
    "TopicRouteData",
    "broker_from_json",
    "broker_to_json",
    "decode_consumer_list",
    "decode_heartbeat",
    "decode_lock_batch_request",
    "decode_lock_batch_response",
    "decode_register_broker",
    "decode_topic_route",
    "encode_consumer_list",
    "encode_heartbeat",
    "encode_lock_batch_request",
    "encode_lock_batch_response",
    "encode_register_broker",
    "encode_topic_route",
    "heartbeat_in_steps",
    "lock_request_in_steps",
    "lock_response_in_steps",
    "loads_loose",
    "registration_in_steps",
]

ResultT = TypeVar("ResultT")
EnumT = TypeVar("EnumT", bound=Enum)
READ_WRITE = int(PermName.READ | PermName.WRITE)
GROUPS_OF_A_STEP = 100  # and subscriptions; one takes some 5 us
QUEUES_OF_A_STEP = 300
TEXTS_OF_A_STEP = 3000
TOPICS_OF_A_STEP = 200  # one takes some 4 us
TOPIC_BYTES = 40  # of one with its attributes, at the very least, for each of its two objects
MAX_TOPIC_ATTRIBUTES = 1000
PACKED_OF_A_STEP = 16 << 10
UNPACKED_OF_A_STEP = 512 << 10
MAX_UNPACKED_BYTES = 64 * 1024 * 1024
VERSION_5_0_0 = 413  # from here a compressed registration holds static-topic mappings as well
VERSION_3_0_11 = 37  # brokers before it sent the wrapper alone


# Java's enums in the order of their declaration: fastjson reads a number as the place of a member, and the C++ client
# (librocketmq) writes its heartbeats so.
_CONSUME_TYPES = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
_MESSAGE_MODELS = ("BROADCASTING", "CLUSTERING")
_CONSUME_FROM_WHERE = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)


def _name(value: Any, members: Sequence[str]) -> str | None:
    """The name of an enum's member, which may be written as its number; None where there is none."""
    if value is None:
        return None
    if type(value) is int:
        if not 0 <= value < len(members):
            raise ValueError(f"{value} is no member of {', '.join(members)}")
        return members[value]
    return as_text(value)


def _enum(kind: type[EnumT], value: Any) -> EnumT | None:
    try:
        return kind(value)
    except ValueError:
        return None


# --- heartbeat ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProducerData:
    """A producer group of a client."""

    group_name: str


@dataclass(frozen=True, slots=True)
class ConsumerData:
    """A consumer group of a client and what it is subscribed to. Enums are None when the sender's name is unknown."""

    group_name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: MessageModel | None = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere | None = ConsumeFromWhere.LAST_OFFSET
    subscription_data_set: tuple[SubscriptionData, ...] = ()
    unit_mode: bool = False


@dataclass(frozen=True, slots=True)
class HeartbeatData:
    """All groups of a client. ``heartbeat_fingerprint`` 0 is the first form of heartbeats, without it."""

    client_id: str
    producer_data_set: tuple[ProducerData, ...] = ()
    consumer_data_set: tuple[ConsumerData, ...] = ()
    heartbeat_fingerprint: int = 0
    without_sub: bool = False


def _subscription_to_json(data: SubscriptionData) -> dict[str, Any]:
    return {
        "classFilterMode": data.class_filter_mode,
        "codeSet": list(data.code_set),
        "expressionType": data.expression_type,
        "subString": data.sub_string,
        "subVersion": data.sub_version,
        "tagsSet": list(data.tags_set),
        "topic": data.topic,
    }


def _each(values: list[Any], read: Callable[[Any], ResultT], at_once: int) -> Steps[tuple[ResultT, ...]]:
    """What ``read`` makes of each value, so many in a step."""
    found: list[ResultT] = []
    for start in range(0, len(values), at_once):
        found += map(read, values[start : start + at_once])
        if start + at_once < len(values):
            yield
    return tuple(found)


def _subscription_from_json(value: Any) -> Steps[SubscriptionData]:
    values = as_object(value)
    return SubscriptionData(
        topic=as_text(values["topic"]),
        sub_string=as_text(values.get("subString") or ""),
        tags_set=(yield from _each(as_list(values.get("tagsSet")), as_text, TEXTS_OF_A_STEP)),
        code_set=(yield from _each(as_list(values.get("codeSet")), as_int, TEXTS_OF_A_STEP)),
        sub_version=as_int(values.get("subVersion") or 0),
        expression_type=as_text(values.get("expressionType") or "TAG"),
        class_filter_mode=bool(values.get("classFilterMode")),
    )


def encode_heartbeat(data: HeartbeatData) -> bytes:
    """The body of code 34."""
    return dumps(
        {
            "clientID": data.client_id,
            "consumerDataSet": [
                {
                    "consumeFromWhere": (consumer.consume_from_where or ConsumeFromWhere.LAST_OFFSET).value,
                    "consumeType": consumer.consume_type,
                    "groupName": consumer.group_name,
                    "messageModel": (consumer.message_model or MessageModel.CLUSTERING).value,
                    "subscriptionDataSet": [_subscription_to_json(one) for one in consumer.subscription_data_set],
                    "unitMode": consumer.unit_mode,
                }
                for consumer in data.consumer_data_set
            ],
            "heartbeatFingerprint": data.heartbeat_fingerprint,
            "producerDataSet": [{"groupName": producer.group_name} for producer in data.producer_data_set],
            "withoutSub": data.without_sub,
        }
    )


def decode_heartbeat(body: bytes) -> HeartbeatData:
    """The groups in the body of code 34."""
    return finish(heartbeat_in_steps(body))


def heartbeat_in_steps(body: bytes) -> Steps[HeartbeatData]:
    """As :func:`decode_heartbeat`; a large body, or one of many groups, in several steps."""
    with reading("a heartbeat"):
        values = as_object((yield from loads_in_steps(body)))
        consumers: list[ConsumerData] = []
        for value in as_list(values.get("consumerDataSet")):
            consumers.append((yield from _consumer_from_json(value)))
            if len(consumers) % GROUPS_OF_A_STEP == 0:
                yield
        return HeartbeatData(
            client_id=as_text(values["clientID"]),
            producer_data_set=(
                yield from _each(as_list(values.get("producerDataSet")), _producer_from_json, GROUPS_OF_A_STEP)
            ),
            consumer_data_set=tuple(consumers),
            heartbeat_fingerprint=as_int(values.get("heartbeatFingerprint") or 0),
            without_sub=bool(values.get("withoutSub")),
        )


def _producer_from_json(value: Any) -> ProducerData:
    return ProducerData(as_text(as_object(value)["groupName"]))


def _consumer_from_json(value: Any) -> Steps[ConsumerData]:
    values = as_object(value)
    subscriptions: list[SubscriptionData] = []
    for subscription in as_list(values.get("subscriptionDataSet")):
        subscriptions.append((yield from _subscription_from_json(subscription)))
        if len(subscriptions) % GROUPS_OF_A_STEP == 0:
            yield
    return ConsumerData(
        group_name=as_text(values["groupName"]),
        consume_type=_name(values.get("consumeType"), _CONSUME_TYPES) or "",
        message_model=_enum(MessageModel, _name(values.get("messageModel"), _MESSAGE_MODELS)),
        consume_from_where=_enum(ConsumeFromWhere, _name(values.get("consumeFromWhere"), _CONSUME_FROM_WHERE)),
        subscription_data_set=tuple(subscriptions),
        unit_mode=bool(values.get("unitMode")),
    )


# --- members and locks -------------------------------------------------------------------------------------------


def encode_consumer_list(client_ids: Iterable[str]) -> bytes:
    """The body that answers code 38."""
    return dumps({"consumerIdList": list(client_ids)})


def decode_consumer_list(body: bytes) -> list[str]:
    """The client ids in the answer to code 38."""
    with reading("a list of consumers"):
        return [as_text(one) for one in as_list(as_object(loads_loose(body)).get("consumerIdList"))]


@dataclass(frozen=True)
class LockBatchRequestBody:
    """Which queues a client wants to lock (41) or gives back (42)."""

    consumer_group: str
    client_id: str
    mq_set: tuple[MessageQueue, ...]
    only_this_broker: bool = False


def _queue_to_json(queue: MessageQueue) -> dict[str, Any]:
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


def _queue_from_json(value: Any) -> MessageQueue:
    values = as_object(value)
    return MessageQueue(as_text(values["topic"]), as_text(values["brokerName"]), as_int(values["queueId"]))


def encode_lock_batch_request(data: LockBatchRequestBody) -> bytes:
    """The body of codes 41 and 42."""
    return dumps(
        {
            "clientId": data.client_id,
            "consumerGroup": data.consumer_group,
            "mqSet": [_queue_to_json(queue) for queue in data.mq_set],
            "onlyThisBroker": data.only_this_broker,
        }
    )


def decode_lock_batch_request(body: bytes) -> LockBatchRequestBody:
    """What codes 41 and 42 ask for."""
    return finish(lock_request_in_steps(body))


def lock_request_in_steps(body: bytes) -> Steps[LockBatchRequestBody]:
    """As :func:`decode_lock_batch_request`; a large body, or one of many queues, in several steps."""
    with reading("a lock request"):
        values = as_object((yield from loads_in_steps(body)))
        return LockBatchRequestBody(
            consumer_group=as_text(values["consumerGroup"]),
            client_id=as_text(values["clientId"]),
            mq_set=(yield from _each(as_list(values.get("mqSet")), _queue_from_json, QUEUES_OF_A_STEP)),
            only_this_broker=bool(values.get("onlyThisBroker")),
        )


def encode_lock_batch_response(queues: Iterable[MessageQueue]) -> bytes:
    """The body that answers code 41: the queues that are locked now."""
    return finish(lock_response_in_steps(list(queues)))


def lock_response_in_steps(queues: Sequence[MessageQueue]) -> Steps[bytes]:
    """As :func:`encode_lock_batch_response`; many queues in several steps."""
    parts: list[bytes] = []
    for start in range(0, len(queues), QUEUES_OF_A_STEP):
        parts.append(dumps([_queue_to_json(queue) for queue in queues[start : start + QUEUES_OF_A_STEP]])[1:-1])
        if start + QUEUES_OF_A_STEP < len(queues):
            yield
    return b'{"lockOKMQSet":[%b]}' % b",".join(parts)


def decode_lock_batch_response(body: bytes) -> list[MessageQueue]:
    """The queues that the answer to code 41 says are locked."""
    with reading("an answer to a lock request"):
        return [_queue_from_json(one) for one in as_list(as_object(loads_loose(body)).get("lockOKMQSet"))]


# --- routes ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class QueueData:
    """How many queues of a topic one broker has, and what may be done with them (PermName)."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0


@dataclass(frozen=True)
class BrokerData:
    """The addresses of a broker name, by broker id; 0 is the master."""

    cluster: str
    broker_name: str
    broker_addrs: Mapping[int, str]
    enable_acting_master: bool = False


@dataclass(frozen=True)
class TopicRouteData:
    """Where a topic's queues are."""

    queue_datas: tuple[QueueData, ...] = ()
    broker_datas: tuple[BrokerData, ...] = ()
    order_topic_conf: str | None = None


def broker_to_json(broker: BrokerData) -> dict[str, Any]:
    return {
        "brokerAddrs": {str(number): address for number, address in sorted(broker.broker_addrs.items())},
        "brokerName": broker.broker_name,
        "cluster": broker.cluster,
        "enableActingMaster": broker.enable_acting_master,
    }


def encode_topic_route(data: TopicRouteData, *, strict: bool = True) -> bytes:
    """The body that answers code 105; not ``strict``: broker ids as bare numbers, as clients before 4.9.4 know them."""
    values: dict[str, Any] = {
        "brokerDatas": [broker_to_json(broker) for broker in data.broker_datas],
        "filterServerTable": {},
        "queueDatas": [
            {
                "brokerName": queues.broker_name,
                "perm": queues.perm,
                "readQueueNums": queues.read_queue_nums,
                "topicSysFlag": queues.topic_sys_flag,
                "writeQueueNums": queues.write_queue_nums,
            }
            for queues in data.queue_datas
        ],
    }
    if data.order_topic_conf is not None:
        values["orderTopicConf"] = data.order_topic_conf
    if strict:
        return dumps(values)
    # The only keys that are numbers: written without their quotes.
    for broker in values["brokerDatas"]:
        broker["brokerAddrs"] = BareKeys(broker["brokerAddrs"])
    return dumps_bare(values).encode()


def decode_topic_route(body: bytes) -> TopicRouteData:
    """The route in the answer to code 105."""
    with reading("a route"):
        values = as_object(loads_loose(body))
        return TopicRouteData(
            queue_datas=tuple(map(_queues_from_json, as_list(values.get("queueDatas")))),
            broker_datas=tuple(map(broker_from_json, as_list(values.get("brokerDatas")))),
            order_topic_conf=as_text(order) if (order := values.get("orderTopicConf")) is not None else None,
        )


def _queues_from_json(value: Any) -> QueueData:
    values = as_object(value)
    return QueueData(
        broker_name=as_text(values["brokerName"]),
        read_queue_nums=as_int(values["readQueueNums"]),
        write_queue_nums=as_int(values["writeQueueNums"]),
        perm=as_int(values["perm"]),
        topic_sys_flag=as_int(values.get("topicSysFlag") or values.get("topicSynFlag") or 0),
    )


def broker_from_json(value: Any) -> BrokerData:
    values = as_object(value)
    return BrokerData(
        cluster=as_text(values.get("cluster") or ""),
        broker_name=as_text(values["brokerName"]),
        broker_addrs={as_int(number): as_text(address) for number, address in as_object(values["brokerAddrs"]).items()},
        enable_acting_master=bool(values.get("enableActingMaster")),
    )


# --- registration of brokers -------------------------------------------------------------------------------------


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
        table = as_object(wrapper.get("topicConfigTable") or {})
        topics = yield from _each(list(table.items()), _named_topic, TOPICS_OF_A_STEP)
        return RegisterBrokerBody(
            TopicConfigSerializeWrapper(
                dict(zip(table, topics, strict=True)),
                DataVersion.from_json(as_object(wrapper.get("dataVersion") or {})),
            ),
            (yield from _each(as_list(values.get("filterServerList")), as_text, TEXTS_OF_A_STEP)),
        )


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
        TopicConfigSerializeWrapper(topics, version), (yield from _each(servers, as_text, TEXTS_OF_A_STEP))
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
