"""Declarative Python services over Apache RocketMQ: YAML to template, decorators to consumers, topics to DataFrames.

Everything public is here, in ``rocketbox.client`` (the client alone), ``rocketbox.embedded`` and ``rocketbox.errors``.
Names are loaded when they are first used (PEP 562): ``import rocketbox`` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketbox.lazy_names import lazy_names
from rocketbox.version import __version__ as __version__

if TYPE_CHECKING:
    from rocketbox.application import RocketBox
    from rocketbox.boot.conditions import (
        any_of,
        not_,
        on_bean,
        on_missing_bean,
        on_module,
        on_profile,
        on_property,
    )
    from rocketbox.boot.marks import Qualifier, bean, configuration_properties, primary
    from rocketbox.errors import (
        AccessDeniedError,
        BatchFailed,
        BrokerError,
        ClientError,
        ClientStateError,
        ConfigurationError,
        ConnectError,
        ConnectionClosedError,
        Finding,
        ForkedError,
        InvalidMessageError,
        LocalProtocolError,
        NoRouteError,
        NotDurableError,
        NotStartedError,
        OtherLoopError,
        Reject,
        RemoteProtocolError,
        RemotingError,
        ReplyError,
        ReplyTimeoutError,
        RequestTimeoutError,
        RetryLater,
        RocketBoxError,
        StoreCorruptError,
        StoreError,
        StoreFailedError,
        StoreLockedError,
        TooManyRequestsError,
    )
    from rocketbox.management.health import Health, HealthIndicator, HealthStatus
    from rocketbox.marks import (
        Header,
        rocketmq_listener,
        rocketmq_spark_listener,
        rocketmq_transaction_listener,
        send_to,
    )
    from rocketbox.message import (
        Compression,
        ConsumeFromWhere,
        ConsumeMode,
        LocalTransactionState,
        Message,
        MessageExt,
        MessageModel,
        MessageQueue,
        SelectorType,
        SendResult,
        SendStatus,
    )
    from rocketbox.spark.batch import SparkBatch
    from rocketbox.template import (
        AvroCodec,
        BlockingRocketMQTemplate,
        CodecMessageConverter,
        JsonMessageConverter,
        MessageConverter,
        MessagePackCodec,
        PayloadCodec,
        PayloadError,
        ProtobufCodec,
        RocketMQTemplate,
    )

__all__ = [
    # the application and what it gives
    "RocketBox",
    "RocketMQTemplate",
    "BlockingRocketMQTemplate",
    "MessageConverter",
    "JsonMessageConverter",
    "CodecMessageConverter",
    "PayloadCodec",
    "MessagePackCodec",
    "AvroCodec",
    "ProtobufCodec",
    "HealthIndicator",
    "Health",
    "HealthStatus",
    # marks
    "rocketmq_listener",
    "rocketmq_spark_listener",
    "rocketmq_transaction_listener",
    "send_to",
    "bean",
    "primary",
    "configuration_properties",
    "Header",
    "Qualifier",
    "on_property",
    "on_bean",
    "on_missing_bean",
    "on_module",
    "on_profile",
    "any_of",
    "not_",
    # messages
    "Message",
    "MessageExt",
    "MessageQueue",
    "SendResult",
    "SendStatus",
    "SparkBatch",
    "Compression",
    "ConsumeMode",
    "ConsumeFromWhere",
    "MessageModel",
    "SelectorType",
    "LocalTransactionState",
    # signals
    "Reject",
    "RetryLater",
    "BatchFailed",
    # errors
    "AccessDeniedError",
    "BrokerError",
    "ClientError",
    "ClientStateError",
    "ConfigurationError",
    "ConnectError",
    "ConnectionClosedError",
    "Finding",
    "InvalidMessageError",
    "LocalProtocolError",
    "NoRouteError",
    "NotDurableError",
    "ForkedError",
    "NotStartedError",
    "OtherLoopError",
    "PayloadError",
    "RemoteProtocolError",
    "RemotingError",
    "ReplyError",
    "ReplyTimeoutError",
    "RequestTimeoutError",
    "RocketBoxError",
    "StoreCorruptError",
    "StoreError",
    "StoreFailedError",
    "StoreLockedError",
    "TooManyRequestsError",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "application": "RocketBox",
        "boot.conditions": "any_of not_ on_bean on_missing_bean on_module on_profile on_property",
        "boot.marks": "Qualifier bean configuration_properties primary",
        "management.health": "Health HealthIndicator HealthStatus",
        "marks": "Header rocketmq_listener rocketmq_spark_listener rocketmq_transaction_listener send_to",
        "message": "Compression ConsumeFromWhere ConsumeMode LocalTransactionState Message MessageExt MessageModel "
        "MessageQueue SelectorType SendResult SendStatus",
        "spark.batch": "SparkBatch",
        "template": "AvroCodec BlockingRocketMQTemplate CodecMessageConverter JsonMessageConverter MessageConverter "
        "MessagePackCodec PayloadCodec PayloadError ProtobufCodec RocketMQTemplate",
    },
    others="errors",
)
