"""The JSON bodies of requests and answers as values: heartbeats, routes, locks, members.

``encode_x`` writes what Java writes (keys in alphabetical order, null left out); ``decode_x`` reads any dialect of it
and raises RemoteProtocolError for anything else. Unknown members are ignored, unknown names of enums are None.

What brokers register is left to ``registration_bodies``, what admins ask to ``admin_bodies``.

Source: Apache RocketMQ 5.x ``HeartbeatData``, ``ConsumerData``, ``SubscriptionData``, ``TopicRouteData``,
``QueueData``, ``BrokerData``, ``LockBatchRequestBody``, ``LockBatchResponseBody``,
``GetConsumerListByGroupResponseBody``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from rocketbox.message import ConsumeFromWhere, MessageModel, MessageQueue
from rocketbox.protocol.json_values import (
    BareKeys,
    as_int,
    as_list,
    as_name,
    as_object,
    as_text,
    check_size,
    dumps,
    dumps_bare,
    reading,
)
from rocketbox.protocol.loose_json import Steps, each_in_steps, finish, loads_in_steps
from rocketbox.protocol.tags import SubscriptionData

__all__ = [
    "BrokerData",
    "ConsumerData",
    "HeartbeatData",
    "LockBatchRequestBody",
    "ProducerData",
    "QueueData",
    "SubscriptionData",
    "TopicRouteData",
    "broker_from_json",
    "broker_to_json",
    "consumer_list_in_steps",
    "decode_consumer_list",
    "decode_heartbeat",
    "decode_lock_batch_request",
    "decode_lock_batch_response",
    "decode_topic_route",
    "encode_consumer_list",
    "encode_heartbeat",
    "encode_lock_batch_request",
    "encode_lock_batch_response",
    "encode_topic_route",
    "heartbeat_in_steps",
    "locked_queues_in_steps",
    "lock_request_in_steps",
    "lock_response_in_steps",
    "ordered_queues",
    "topic_route_in_steps",
]

ResultT = TypeVar("ResultT")
EnumT = TypeVar("EnumT", bound=Enum)
GROUPS_OF_A_STEP = 100  # and subscriptions; one takes some 5 us
QUEUES_OF_A_STEP = 300
BROKERS_OF_A_STEP = 100
MOST_QUEUES = 65_536  # of a topic on all its brokers; who consumes has a task and some kilobytes for each
MOST_ROUTE_BYTES = 2 << 20  # some 10,000 brokers; Java's kind of JSON takes microseconds for each of its words
MOST_MEMBERS_BYTES = 4 << 20  # some 60,000 of a group
MOST_LOCKED_BYTES = 12 << 20  # MOST_QUEUES of a topic, with 145 characters for its name and that of the broker
MOST_ADDRESSES = 10_000  # of machines, of all brokers of a route
TEXTS_OF_A_STEP = 3000


# Java's enums in the order of their declaration: fastjson reads a number as the place of a member, and the C++ client
# (librocketmq) writes its heartbeats so.
_COUNT = re.compile(r"[0-9]{1,9}")
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


def _subscription_from_json(value: Any) -> Steps[SubscriptionData]:
    values = as_object(value)
    return SubscriptionData(
        topic=as_text(values["topic"]),
        sub_string=as_text(values.get("subString") or ""),
        tags_set=(yield from each_in_steps(as_list(values.get("tagsSet")), as_text, TEXTS_OF_A_STEP)),
        code_set=(yield from each_in_steps(as_list(values.get("codeSet")), as_int, TEXTS_OF_A_STEP)),
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
                yield from each_in_steps(as_list(values.get("producerDataSet")), _producer_from_json, GROUPS_OF_A_STEP)
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
    return finish(consumer_list_in_steps(body))


def consumer_list_in_steps(body: bytes) -> Steps[list[str]]:
    """As :func:`decode_consumer_list`; a large body in several steps."""
    with reading("a list of consumers"):
        check_size(body, MOST_MEMBERS_BYTES)
        values = as_list(as_object((yield from loads_in_steps(body))).get("consumerIdList"))
        return list((yield from each_in_steps(values, as_text, TEXTS_OF_A_STEP)))


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
            mq_set=(yield from each_in_steps(as_list(values.get("mqSet")), _queue_from_json, QUEUES_OF_A_STEP)),
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
    return finish(locked_queues_in_steps(body))


def locked_queues_in_steps(body: bytes) -> Steps[list[MessageQueue]]:
    """As :func:`decode_lock_batch_response`; a large body, or one of many queues, in several steps."""
    with reading("an answer to a lock request"):
        check_size(body, MOST_LOCKED_BYTES)
        values = as_list(as_object((yield from loads_in_steps(body))).get("lockOKMQSet"))
        return list((yield from each_in_steps(values, _queue_from_json, QUEUES_OF_A_STEP)))


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
    """The route in the answer to code 105. One that would fill the memory, as it names more queues or machines than
    any cluster has, is none.
    """
    return finish(topic_route_in_steps(body))


def topic_route_in_steps(body: bytes) -> Steps[TopicRouteData]:
    """As :func:`decode_topic_route`; a large body in several steps."""
    with reading("a route"):
        check_size(body, MOST_ROUTE_BYTES)
        values = as_object((yield from loads_in_steps(body)))
        queue_datas, broker_datas = as_list(values.get("queueDatas")), as_list(values.get("brokerDatas"))
        data = TopicRouteData(
            queue_datas=(yield from each_in_steps(queue_datas, _queues_from_json, QUEUES_OF_A_STEP)),
            broker_datas=(yield from each_in_steps(broker_datas, broker_from_json, BROKERS_OF_A_STEP)),
            order_topic_conf=as_text(order) if (order := values.get("orderTopicConf")) is not None else None,
        )
        _check_queues([queues.read_queue_nums for queues in data.queue_datas])
        _check_queues([queues.write_queue_nums for queues in data.queue_datas])
        _check_queues([count for _, count in ordered_queues(data)])
        addresses = sum(len(broker.broker_addrs) for broker in data.broker_datas)
        if addresses > MOST_ADDRESSES:
            raise ValueError(f"it names {addresses} machines, and {MOST_ADDRESSES} is the most")
        return data


def _check_queues(counts: Sequence[int]) -> None:
    if min(counts, default=0) < 0 or sum(counts) > MOST_QUEUES:
        raise ValueError(f"it has {sum(counts)} queues, and 0 to {MOST_QUEUES} are possible")


def ordered_queues(data: TopicRouteData) -> list[tuple[str, int]]:
    """The brokers of an ordered topic and how many queues each has, as ``broker-a:4;broker-b:4`` says it."""
    entries = [entry.partition(":") for entry in (data.order_topic_conf or "").split(";")]
    return [(name, int(count)) for name, _, count in entries if name and _COUNT.fullmatch(count.strip())]


def _queues_from_json(value: Any) -> QueueData:
    values = as_object(value)
    return QueueData(
        broker_name=as_name(values["brokerName"]),
        read_queue_nums=as_int(values["readQueueNums"]),
        write_queue_nums=as_int(values["writeQueueNums"]),
        perm=as_int(values["perm"]),
        topic_sys_flag=as_int(values.get("topicSysFlag") or values.get("topicSynFlag") or 0),
    )


def broker_from_json(value: Any) -> BrokerData:
    values = as_object(value)
    addresses = as_object(values["brokerAddrs"])
    return BrokerData(
        cluster=as_text(values.get("cluster") or ""),
        broker_name=as_name(values["brokerName"]),
        broker_addrs={as_int(number): as_name(address) for number, address in addresses.items()},
        enable_acting_master=bool(values.get("enableActingMaster")),
    )
