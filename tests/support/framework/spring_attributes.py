"""The attributes of rocketmq-spring's ``@ExtRocketMQ...Configuration``, each with our key and a value for tests."""

from __future__ import annotations

__all__ = ["EXT_CONSUMER", "EXT_TEMPLATE", "SECRET"]

SECRET = "hunter2-of-the-bank"
EXT_TEMPLATE = {
    "nameServer": ("name-server", "127.0.0.1:2"),
    "group": ("producer.group", "auditors"),
    "sendMessageTimeout": ("producer.send-message-timeout", "700"),
    "compressMessageBodyThreshold": ("producer.compress-message-body-threshold", "100"),
    "retryTimesWhenSendFailed": ("producer.retry-times-when-send-failed", "6"),
    "retryTimesWhenSendAsyncFailed": ("producer.retry-times-when-send-async-failed", "7"),
    "retryNextServer": ("producer.retry-next-server", "true"),
    "maxMessageSize": ("producer.max-message-size", "1MB"),
    "accessKey": ("producer.access-key", "AK"),
    "secretKey": ("producer.secret-key", SECRET),
    "enableMsgTrace": ("producer.enable-msg-trace", "true"),
    "customizedTraceTopic": ("producer.customized-trace-topic", "traces"),
    "tlsEnable": ("producer.tls-enable", "true"),
    "namespace": ("producer.namespace", "MQ_INST_1"),
    "namespaceV2": ("producer.namespace-v2", "MQ_INST_1"),
    "instanceName": ("producer.instance-name", "gate"),
}
EXT_CONSUMER = {
    "nameServer": ("name-server", "127.0.0.1:2"),
    "accessChannel": ("access-channel", "CLOUD"),
    "group": ("pull-consumer.group", "auditors"),
    "topic": ("pull-consumer.topic", "departures"),
    "messageModel": ("pull-consumer.message-model", "BROADCASTING"),
    "selectorType": ("pull-consumer.selector-type", "SQL92"),
    "selectorExpression": ("pull-consumer.selector-expression", "a > 5"),
    "accessKey": ("pull-consumer.access-key", "AK"),
    "secretKey": ("pull-consumer.secret-key", SECRET),
    "pullBatchSize": ("pull-consumer.pull-batch-size", "3"),
    "tlsEnable": ("pull-consumer.tls-enable", "true"),
    "enableMsgTrace": ("pull-consumer.enable-msg-trace", "true"),
    "customizedTraceTopic": ("pull-consumer.customized-trace-topic", "traces"),
    "namespace": ("pull-consumer.namespace", "MQ_INST_1"),
    "namespaceV2": ("pull-consumer.namespace-v2", "MQ_INST_1"),
    "instanceName": ("pull-consumer.instance-name", "gate"),
}
