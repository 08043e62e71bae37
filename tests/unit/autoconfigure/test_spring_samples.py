"""The seven samples of rocketmq-spring: their settings as YAML give the objects that they give there.

Their listeners are made again in a few lines. What asks for a feature that is not built is refused at the start, and
only that; when it is built, its line in ``refused`` goes.

Source: rocketmq-spring 2.3 ``rocketmq-spring-boot-samples`` (settings and annotations).
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from rocketbox.autoconfigure.assembly import Assembly
from rocketbox.autoconfigure.service import of_cluster
from rocketbox.boot.marks import Phase
from rocketbox.client import ClientOptions, Credentials, LitePullConsumerOptions, MQClientInstance, ProducerOptions
from rocketbox.errors import ConfigurationError, Finding
from rocketbox.listeners.options import GroupOptions
from rocketbox.template import RocketMQTemplate
from tests.support.framework.services import ServiceMaker

SAMPLES = Path(__file__).parents[2] / "data" / "samples"
NOT_BUILT = ", which rocketbox does not have yet"

HEAD = """
from rocketbox import MessageExt, RocketBox, rocketmq_listener
app = RocketBox("sample", scan=[__name__])
"""


def look(service: ServiceMaker, sample: str, source: str = "", arguments: tuple[str, ...] = ()) -> Assembly:
    assembly = service(HEAD + source, (SAMPLES / f"{sample}.yaml").read_text()).app.look(arguments=arguments)
    assert isinstance(assembly, Assembly)
    return assembly


def refused(assembly: Assembly) -> list[str]:
    """What the start is refused for: all of it is not built, and has its place."""
    for finding in assembly.findings:
        assert NOT_BUILT in finding.what
        assert finding.where is not None
    return [finding.what.removesuffix(NOT_BUILT) for finding in assembly.findings]


def test_there_are_seven() -> None:
    assert len(list(SAMPLES.glob("*.yaml"))) == 7


# --- producers --------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_produce_demo(service: ServiceMaker) -> None:
    startup = ("--rocketmq.startup=retry", "--rocketmq.clusters.ext.startup=retry")  # nothing is connected
    assembly = look(service, "rocketmq-produce-demo", arguments=startup)
    assert refused(assembly) == []
    async with AsyncExitStack() as stack:
        for phase in (Phase.CLIENT, Phase.TEMPLATE):
            await assembly.container.start(phase, stack)
        main, ext = (
            assembly.container.resolve(of_cluster(RocketMQTemplate, cluster)).producer for cluster in (None, "ext")
        )
        for producer in (main, ext):
            assert producer.group == "my-group1"
            assert producer.options == ProducerOptions(send_message_timeout=300.0)
            assert producer.instance.options.tls_enable is False
        assert main.instance.name_servers == ("localhost:9876",)
        assert ext.instance.name_servers == ("127.0.0.1:9876",)
        assert "#" in main.instance.client_id
        assert ext.instance.client_id.endswith("@pztest33")
    assert assembly.settings.text("demo.rocketmq.userTopic") == "user-topic"


def test_produce_acl_demo(service: ServiceMaker) -> None:
    assembly = look(service, "rocketmq-produce-acl-demo")
    producer = assembly.rocketmq.producer
    assert producer.group == "my-group1"
    assert producer.as_options(ProducerOptions) == ProducerOptions()
    assert assembly.rocketmq.name_server == "Endpoint_of_cloud_MQ"
    assert [finding.what for finding in assembly.findings if NOT_BUILT in finding.what] == []
    (client,) = assembly.clients.clusters[""].clients
    assert client.user.credentials == Credentials(access_key="AK", secret_key="SK")
    assert client.used_by == ("producer group my-group1",)


def test_producer_simple_demo(service: ServiceMaker) -> None:
    assembly = look(service, "rocketmq-producer-simple-demo")
    assert refused(assembly) == []
    assert assembly.container.has(RocketMQTemplate)
    assert not assembly.container.has(LitePullConsumerOptions)
    assert assembly.rocketmq.producer.group == "demo-group"
    assert assembly.rocketmq.producer.as_options(ProducerOptions) == ProducerOptions()


# --- consumers --------------------------------------------------------------------------------------------------------

CONSUME_DEMO = """
@rocketmq_listener(topic="${demo.rocketmq.topic}", consumer_group="string_consumer",
                   selector_expression="${demo.rocketmq.tag}")
async def string_consumer(text: str) -> None: ...

@rocketmq_listener(cluster="newns", topic="${demo.rocketmq.topic}", consumer_group="string_consumer_newns")
async def string_consumer_newns(text: str) -> None: ...

@rocketmq_listener(cluster="newns", topic="${demo.rocketmq.userTopic}", consumer_group="user_consumer")
async def user_consumer(user: dict[str, str]) -> None: ...

@rocketmq_listener(topic="${demo.rocketmq.orderTopic}", consumer_group="order-paid-consumer")
async def order_paid_consumer(event: dict[str, str]) -> None: ...

@rocketmq_listener(topic="${demo.rocketmq.transTopic}", consumer_group="string_trans_consumer")
async def string_trans_consumer(text: str) -> None: ...

@rocketmq_listener(topic="${demo.rocketmq.msgExtTopic}", selector_expression="tag0||tag1",
                   consumer_group="${spring.application.name}-message-ext-consumer")
async def message_ext_consumer(message: MessageExt) -> None: ...

@rocketmq_listener(topic="${demo.rocketmq.stringRequestTopic}", selector_expression="${demo.rocketmq.tag}",
                   consumer_group="${demo.rocketmq.stringRequestConsumer}", reply_timeout="10s")
async def with_reply_string(text: str) -> None: ...

@rocketmq_listener(topic="${demo.rocketmq.bytesRequestTopic}", selector_expression="${demo.rocketmq.tag}",
                   consumer_group="${demo.rocketmq.bytesRequestConsumer}")
async def with_reply_bytes(body: bytes) -> None: ...

@rocketmq_listener(topic="${demo.rocketmq.objectRequestTopic}", selector_expression="${demo.rocketmq.tag}",
                   consumer_group="${demo.rocketmq.objectRequestConsumer}")
async def with_reply_user(user: dict[str, str]) -> None: ...

@rocketmq_listener(topic="${demo.rocketmq.genericRequestTopic}", selector_expression="${demo.rocketmq.tag}",
                   consumer_group="${demo.rocketmq.genericRequestConsumer}")
async def with_reply_generic(user: dict[str, str]) -> None: ...
"""


def subscriptions(assembly: Assembly) -> set[tuple[str | None, str, str, str]]:
    """Cluster, group, topic and expression of each listener."""
    return {
        (plan.cluster, plan.group, function.topic, function.selector_expression)
        for plan in assembly.plans
        for function in plan.functions
    }


def test_consume_demo(service: ServiceMaker) -> None:
    assembly = look(service, "rocketmq-consume-demo", CONSUME_DEMO)
    assert subscriptions(assembly) == {
        (None, "string_consumer", "string-topic", "tagA"),
        ("newns", "string_consumer_newns", "string-topic", "*"),
        ("newns", "user_consumer", "user-topic", "*"),
        (None, "order-paid-consumer", "order-paid-topic", "*"),
        (None, "string_trans_consumer", "spring-transaction-topic", "*"),
        (None, "rocketmq-consume-demo-message-ext-consumer", "message-ext-topic", "tag0||tag1"),
        (None, "stringRequestConsumer", "stringRequestTopic", "tagA"),
        (None, "bytesRequestConsumer", "bytesRequestTopic", "tagA"),
        (None, "objectRequestConsumer", "objectRequestTopic", "tagA"),
        (None, "genericRequestConsumer", "genericRequestTopic", "tagA"),
    }
    others = [plan.options for plan in assembly.plans if plan.group != "stringRequestConsumer"]
    assert others == [GroupOptions()] * 9
    main, ext = assembly.rocketmq, assembly.rocketmq.clusters["ext"]
    assert main.clusters["newns"].name_server == "127.0.0.1:9876"
    assert (main.pull_consumer.group, main.pull_consumer.topic) == ("my-group1", "test")
    assert (ext.name_server, ext.pull_consumer.group, ext.pull_consumer.topic) == (
        "localhost:9876",
        "string_consumer",
        "string-topic",
    )
    for cluster in (None, "ext"):
        assert assembly.container.has(of_cluster(LitePullConsumerOptions, cluster))
        assert (
            main.cluster(cluster or "").pull_consumer.as_options(LitePullConsumerOptions) == LitePullConsumerOptions()
        )
        assert main.cluster(cluster or "").client_options() == ClientOptions()
    assert not assembly.container.has(RocketMQTemplate)  # there is no producer group, and no pull consumer yet
    pull = "{0}.pull-consumer.group with {0}.pull-consumer.topic asks for a pull consumer"
    assert refused(assembly) == [
        pull.format("rocketmq"),
        pull.format("rocketmq.clusters.ext"),
    ]


CONSUME_ACL_DEMO = """
@rocketmq_listener(topic="${demo.rocketmq.topic}", consumer_group="group_define_in_cloud_MQ")
async def acl_string_consumer(text: str) -> None: ...

@rocketmq_listener(topic="${demo.rocketmq.transTopic}", consumer_group="group_define_in_cloud_MQ", access_key="AK",
                   secret_key="SK")
async def acl_trans_consumer(text: str) -> None: ...
"""


def test_consume_acl_demo(service: ServiceMaker) -> None:
    assembly = look(service, "rocketmq-consume-acl-demo", CONSUME_ACL_DEMO)
    (plan,) = assembly.plans  # there two consumers in one process, which take each other's messages
    assert subscriptions(assembly) == {
        (None, "group_define_in_cloud_MQ", "normal_topic_define_in_cloud_MQ", "*"),
        (None, "group_define_in_cloud_MQ", "transaction_topic_define_in_cloud_MQ", "*"),
    }
    clients = assembly.clients.clusters[""]
    assert clients.groups[plan.group].user.credentials == Credentials(access_key="AK", secret_key="SK")
    others = [client.used_by for client in clients.clients if client is not clients.groups[plan.group]]
    assert others == [("pull consumer my-group1",)], "decorator and settings say the same; the pull consumer has none"
    told = [finding.what.partition(" asks for ")[0] for finding in assembly.findings if NOT_BUILT in finding.what]
    assert told == [
        "rocketmq.pull-consumer.group with rocketmq.pull-consumer.topic",
    ]


def test_consumer_push_simple_demo(service: ServiceMaker) -> None:
    source = """
@rocketmq_listener(topic="demo-topic", consumer_group="demo-group")
async def push_consumer(text: str) -> None: ...
"""
    assembly = look(service, "rocketmq-consumer-push-simple-demo", source)
    assert refused(assembly) == []
    assert subscriptions(assembly) == {(None, "demo-group", "demo-topic", "*")}
    assert assembly.plans[0].options == GroupOptions()


def test_consumer_pull_simple_demo(service: ServiceMaker) -> None:
    assembly = look(service, "rocketmq-consumer-pull-simple-demo")
    pull = assembly.rocketmq.pull_consumer
    assert (pull.group, pull.topic, pull.as_options(LitePullConsumerOptions)) == (
        "demo-group",
        "demo-topic",
        LitePullConsumerOptions(),
    )
    assert assembly.container.has(MQClientInstance)
    assert assembly.container.has(LitePullConsumerOptions)
    assert not assembly.container.has(RocketMQTemplate)
    assert refused(assembly) == [
        "rocketmq.pull-consumer.group with rocketmq.pull-consumer.topic asks for a pull consumer"
    ]


# --- their keys that are none of rocketmq-spring ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sample", "stray", "unknown", "fix"),
    [
        (
            "rocketmq-consume-acl-demo",
            "rocketmq.topic: normal_topic_define_in_cloud_MQ",
            "unknown key rocketmq.topic",
            "did you mean rocketmq.topics?",
        ),
        (
            "rocketmq-producer-simple-demo",
            "rocketmq.producer.simple.demo.topic: demo-topic",
            "unknown key rocketmq.producer.simple",
            "rocketmq.producer takes: accept-weak-ack, access-key, auto-batch, batch-max-bytes, batch-max-delay, "
            "batch-max-messages, compress-level, compress-message-body-threshold, compress-type, "
            "create-topic-key, credentials-file, customized-trace-topic, default-destination, "
            "default-topic-queue-nums, enable-msg-trace, group, instance-name, max-message-size, namespace, "
            "namespace-v2, "
            "retry-next-server, retry-times-when-send-async-failed, retry-times-when-send-failed, secret-key, "
            "send-latency-fault-enable, send-many-window, send-message-timeout, "
            "send-msg-max-timeout-per-request, spring-headers, tls-enable, total-batch-max-bytes, "
            "transaction-listeners",
        ),
    ],
)
def test_a_stray_key_of_a_sample_is_refused(
    service: ServiceMaker, sample: str, stray: str, unknown: str, fix: str
) -> None:
    text = f"{stray}\n" + (SAMPLES / f"{sample}.yaml").read_text()
    with pytest.raises(ConfigurationError) as caught:
        service(HEAD, text).app.look()
    assert caught.value.findings == (Finding(unknown, "rocketbox.yaml:1:1", fix),)
