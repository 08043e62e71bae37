"""The client: what a program needs to send to and consume from any RocketMQ cluster, without the framework around it.

Holds :class:`Producer`, :class:`PushConsumer` and :class:`Admin`, which may share one :class:`MQClientInstance`.

Source: Apache RocketMQ 5.x ``client`` module (``DefaultMQProducer``, ``DefaultMQPushConsumer``, ``DefaultMQAdminExt``).
"""

from __future__ import annotations

from rocketbox.client.admin import Admin, GroupDescription, TopicDescription
from rocketbox.client.api.pull import PulledRecords, PullResult, PullStatus
from rocketbox.client.credentials import CredentialsFile, CredentialsProvider
from rocketbox.client.instance import MQClientInstance
from rocketbox.client.member_requests import ConsumerMember
from rocketbox.client.middleware import (
    ConsumeContext,
    ConsumeMiddleware,
    ConsumeNext,
    SendContext,
    SendMiddleware,
    SendNext,
)
from rocketbox.client.options import (
    AccessChannel,
    ClientOptions,
    ConsumerOptions,
    LitePullConsumerOptions,
    ProducerOptions,
)
from rocketbox.client.producer import Producer
from rocketbox.client.push_consumer import PushConsumer
from rocketbox.client.queue_choice import QueueChoice, QueueSelector, QueueTarget
from rocketbox.client.routes import TopicRoute
from rocketbox.client.service_state import ServiceState
from rocketbox.client.trace_dispatcher import TraceCounts
from rocketbox.client.transaction_checks import CheckRoute, TransactionChecker, TransactionCheckOptions
from rocketbox.client.transactions import LocalWork, Transaction, TransactionSendResult
from rocketbox.protocol.admin_bodies import ClusterInfo
from rocketbox.protocol.codes import PermName
from rocketbox.protocol.group_config import SubscriptionGroupConfig
from rocketbox.protocol.prepared_sends import SendRequest
from rocketbox.protocol.registration_bodies import TopicConfig
from rocketbox.protocol.trace_records import (
    ConsumeCode,
    EndTransactionRecord,
    PubRecord,
    RecallRecord,
    SubAfterRecord,
    SubBeforeRecord,
    TracedType,
    TraceRecord,
    decode_trace_records,
)
from rocketbox.remoting.acl import Credentials
from rocketbox.remoting.client import RpcHook
from rocketbox.remoting.tls import TlsOptions

__all__ = [
    "AccessChannel",
    "Admin",
    "CheckRoute",
    "ClientOptions",
    "ClusterInfo",
    "ConsumeCode",
    "ConsumeContext",
    "ConsumeMiddleware",
    "ConsumeNext",
    "ConsumerMember",
    "ConsumerOptions",
    "Credentials",
    "CredentialsFile",
    "CredentialsProvider",
    "EndTransactionRecord",
    "GroupDescription",
    "LitePullConsumerOptions",
    "LocalWork",
    "MQClientInstance",
    "PermName",
    "Producer",
    "ProducerOptions",
    "PubRecord",
    "PullResult",
    "PulledRecords",
    "PullStatus",
    "PushConsumer",
    "QueueChoice",
    "QueueSelector",
    "QueueTarget",
    "RecallRecord",
    "RpcHook",
    "SendContext",
    "SendMiddleware",
    "SendNext",
    "SendRequest",
    "ServiceState",
    "SubAfterRecord",
    "SubBeforeRecord",
    "SubscriptionGroupConfig",
    "TlsOptions",
    "TopicConfig",
    "TopicDescription",
    "TopicRoute",
    "TraceCounts",
    "TraceRecord",
    "TracedType",
    "Transaction",
    "TransactionCheckOptions",
    "TransactionChecker",
    "TransactionSendResult",
    "decode_trace_records",
]
