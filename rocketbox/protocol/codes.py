"""Numbers and names of RocketMQ's remoting protocol: codes, flags, languages, versions, topics that mean something.

Holds constants and the few functions that build a name from a name; checking names is left to ``tags``.

Source: Apache RocketMQ 5.x ``RequestCode``, ``ResponseCode``, ``RemotingSysResponseCode``, ``LanguageCode``,
``SerializeType``, ``MessageSysFlag``, ``PullSysFlag``, ``PermName``, ``MQVersion``, ``TopicValidator``, ``MixAll``.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

__all__ = [
    "CLIENT_INNER_PRODUCER",
    "CLIENT_VERSION",
    "DEFAULT_CLUSTER",
    "DLQ_PREFIX",
    "MASTER_ID",
    "MAX_BINARY_CODE",
    "RETRY_PREFIX",
    "SCHEDULE_TOPIC",
    "SEND_FORBIDDEN_TOPICS",
    "SYSTEM_GROUP_PREFIX",
    "SYSTEM_TOPICS",
    "SYSTEM_TOPIC_PREFIX",
    "TBW102",
    "TOOLS_GROUP",
    "TRANSACTION_GROUP",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "TRANS_HALF_TOPIC",
    "TRANS_OP_HALF_TOPIC",
    "UNDELIVERED_TOPIC",
    "VERSION_3_4_9",
    "VERSION_4_9_4",
    "VERSION_4_9_7",
    "VERSION_5_5_0",
    "LanguageCode",
    "MessageSysFlag",
    "PermName",
    "PullSysFlag",
    "RequestCode",
    "ResponseCode",
    "SerializeType",
    "dlq_topic",
    "group_of_retry_topic",
    "is_system_group",
    "is_system_topic",
    "retry_topic",
]


class RequestCode(IntEnum):
    """What a request asks for."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_MESSAGE = 12
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    GET_ALL_TOPIC_CONFIG = 21
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_EARLIEST_MSG_STORETIME = 32
    VIEW_MESSAGE_BY_ID = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    END_TRANSACTION = 37
    GET_CONSUMER_LIST_BY_GROUP = 38
    CHECK_TRANSACTION_STATE = 39
    NOTIFY_CONSUMER_IDS_CHANGED = 40
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    CHECK_CLIENT_CONFIG = 46
    REGISTER_BROKER = 103
    UNREGISTER_BROKER = 104
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206
    DELETE_SUBSCRIPTIONGROUP = 207
    DELETE_TOPIC_IN_BROKER = 215
    DELETE_TOPIC_IN_NAMESRV = 216
    RESET_CONSUMER_CLIENT_OFFSET = 220
    GET_CONSUMER_STATUS_FROM_CLIENT = 221
    GET_CONSUMER_RUNNING_INFO = 307
    CONSUME_MESSAGE_DIRECTLY = 309
    SEND_MESSAGE_V2 = 310
    SEND_BATCH_MESSAGE = 320
    SEND_REPLY_MESSAGE = 324
    SEND_REPLY_MESSAGE_V2 = 325
    PUSH_REPLY_MESSAGE_TO_CLIENT = 326
    LITE_PULL_MESSAGE = 361
    RECALL_MESSAGE = 370
    QUERY_ASSIGNMENT = 400
    AUTH_CREATE_USER = 3001
    AUTH_UPDATE_USER = 3002
    AUTH_DELETE_USER = 3003
    AUTH_GET_USER = 3004
    AUTH_LIST_USER = 3005
    AUTH_CREATE_ACL = 3006
    AUTH_UPDATE_ACL = 3007
    AUTH_DELETE_ACL = 3008
    AUTH_GET_ACL = 3009
    AUTH_LIST_ACL = 3010
    POP_MESSAGE = 200_050
    ACK_MESSAGE = 200_051
    CHANGE_MESSAGE_INVISIBLETIME = 200_053


class ResponseCode(IntEnum):
    """How a request ended."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    TRANSACTION_FAILED = 4
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    TOPIC_EXIST_ALREADY = 18
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    FILTER_DATA_NOT_EXIST = 27
    FILTER_DATA_NOT_LATEST = 28
    INVALID_PARAMETER = 29
    TRANSACTION_SHOULD_COMMIT = 200
    TRANSACTION_SHOULD_ROLLBACK = 201
    TRANSACTION_STATE_UNKNOW = 202
    TRANSACTION_STATE_GROUP_WRONG = 203
    NO_BUYER_ID = 204
    NOT_IN_CURRENT_UNIT = 205
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    NO_MESSAGE = 208
    POLLING_FULL = 209
    POLLING_TIMEOUT = 210
    BROKER_NOT_EXIST = 211
    BROKER_DISPATCH_NOT_COMPLETE = 212
    BROADCAST_CONSUMPTION = 213
    FLOW_CONTROL = 215
    NOT_LEADER_FOR_QUEUE = 501
    ILLEGAL_OPERATION = 604
    GO_AWAY = 1500
    LMQ_QUOTA_EXCEEDED = 2017
    LITE_SUBSCRIPTION_QUOTA_EXCEEDED = 2018
    USER_NOT_EXIST = 3001
    POLICY_NOT_EXIST = 3002


class LanguageCode(IntEnum):
    """The language a peer is written in; on the wire its name (JSON) or number (binary)."""

    JAVA = 0
    CPP = 1
    DOTNET = 2
    PYTHON = 3
    DELPHI = 4
    ERLANG = 5
    RUBY = 6
    OTHER = 7
    HTTP = 8
    GO = 9
    PHP = 10
    OMS = 11
    RUST = 12
    NODE_JS = 13


class SerializeType(IntEnum):
    """How a frame's header is written; each frame says it for itself."""

    JSON = 0
    ROCKETMQ = 1


class MessageSysFlag(IntFlag):
    """Bits of a message's sysFlag.

    The transaction state is two bits, the compression three (0: zlib, as old clients send it).
    """

    COMPRESSED = 0x1
    MULTI_TAGS = 0x2
    TRANSACTION_PREPARED = 0x4
    TRANSACTION_COMMIT = 0x8
    TRANSACTION_ROLLBACK = 0xC
    BORNHOST_V6 = 0x10
    STOREHOST_V6 = 0x20
    NEED_UNWRAP = 0x40
    INNER_BATCH = 0x80
    COMPRESSION_LZ4 = 0x100
    COMPRESSION_ZSTD = 0x200
    COMPRESSION_ZLIB = 0x300
    COMPRESSION_MASK = 0x700


class PullSysFlag(IntFlag):
    """Bits of a pull request's sysFlag."""

    COMMIT_OFFSET = 1
    SUSPEND = 2
    SUBSCRIPTION = 4
    CLASS_FILTER = 8
    LITE_PULL = 16


class PermName(IntFlag):
    """What may be done with a topic's queues; 6 is read and write, 7 lets new topics inherit (TBW102)."""

    INHERIT = 1
    WRITE = 2
    READ = 4
    PRIORITY = 8


# MQVersion ordinals. 479 (V5_3_3) asks for strict route JSON, honours maxReconsumeTimes, and may meet GO_AWAY.
VERSION_3_4_9 = 121
VERSION_4_9_4 = 401
VERSION_4_9_7 = 407
VERSION_5_0_0 = 413
CLIENT_VERSION = 479
VERSION_5_5_0 = 513

MAX_BINARY_CODE = 32_767  # a signed 16-bit field in the binary header; larger codes travel as JSON
MASTER_ID = 0

TBW102 = "TBW102"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC = "rmq_sys_wheel_timer"
"""Where messages wait that are delivered at a time of their own, and what recalls them, all in queue 0."""
UNDELIVERED_TOPIC = "rmq_sys_UNDELIVERED"
"""Where delayed messages go that cannot be delivered (a damaged or foreign REAL_TOPIC), as they were parked."""
TRANS_HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANS_OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANS_CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
"""In whose offsets a broker keeps how far half messages, and the marks of those that are done with, were read."""
RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
SYSTEM_TOPIC_PREFIX = "rmq_sys_"
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
CLIENT_INNER_PRODUCER = "CLIENT_INNER_PRODUCER"
TOOLS_GROUP = "TOOLS_CONSUMER"  # Apache's tools pull in it; brokers know it without a subscription
DEFAULT_CLUSTER = "DefaultCluster"

SEND_FORBIDDEN_TOPICS = frozenset(
    {
        SCHEDULE_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        TIMER_TOPIC,
    }
)
"""Topics no client may send to (``TopicValidator.NOT_ALLOWED_SEND_TOPIC_SET``, and that of messages which wait for a
time: what is sent there itself would be delivered to any topic, those of the broker's transactions among them)."""

SYSTEM_TOPICS = SEND_FORBIDDEN_TOPICS | {TBW102, "RMQ_SYS_TRACE_TOPIC", "BenchmarkTest", "CHECKPOINT_TOPIC"}
"""Topics a server makes for itself; those that begin with ``rmq_sys_`` belong to them as well."""


def retry_topic(group: str) -> str:
    """The topic in which a group's failed messages come back."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """The topic that holds a group's messages that are given up."""
    return DLQ_PREFIX + group


def group_of_retry_topic(topic: str) -> str | None:
    """The group whose retry topic this is; None for any other topic."""
    return topic[len(RETRY_PREFIX) :] if topic.startswith(RETRY_PREFIX) else None


def is_system_topic(topic: str) -> bool:
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def is_system_group(group: str) -> bool:
    return group.startswith(SYSTEM_GROUP_PREFIX)
