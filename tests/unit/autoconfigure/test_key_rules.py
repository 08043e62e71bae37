"""Keys that have to agree or go together, that ask for what is not built, or stand in the wrong place."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

from rocketbox.autoconfigure.service import of_cluster
from rocketbox.autoconfigure.users import User
from rocketbox.boot.masking import MASK
from rocketbox.cli.app import app as cli
from rocketbox.client import Credentials, LitePullConsumerOptions, MQClientInstance, TlsOptions
from rocketbox.errors import ConfigurationError, Finding
from rocketbox.listeners.options import consumer_options
from rocketbox.marks import rocketmq_listener
from tests.support.certificates import authority, certificate, write
from tests.support.framework.services import ServiceMaker

SECRET = "hunter2-of-the-bank"
OTHER_SECRET = "hunter3-of-the-bank"

HEAD = """
from rocketbox import RocketBox, rocketmq_listener
app = RocketBox("desk", scan=[__name__])
"""

LISTENER = (
    HEAD
    + """
@rocketmq_listener(topic="departures", consumer_group="desk")
async def on_departure(body: bytes) -> None: ...
"""
)


def settings(text: str) -> str:
    return "rocketmq.name-server: embedded\n" + text


def findings(module: ModuleType) -> list[Finding]:
    return [
        Finding(each.what, each.where and each.where.replace(f"{Path.cwd()}/", ""), each.fix)
        for each in module.app.look().findings
    ]


def told(module: ModuleType) -> list[str]:
    return [finding.what for finding in findings(module)]


# --- one client -------------------------------------------------------------------------------------------------------


def test_two_names_for_one_client_are_refused_with_both_places(service: ServiceMaker) -> None:
    module = service(
        LISTENER,
        settings("rocketmq.producer: {group: desk, instance-name: gate}\nrocketmq.consumer.instance-name: DEFAULT\n"),
    )
    assert findings(module) == [
        Finding(
            "rocketmq.producer.instance-name is gate and rocketmq.consumer.instance-name is DEFAULT, and a cluster has "
            "one client, which producer and consumers share",
            "rocketbox.yaml:2:49 and rocketbox.yaml:3:34",
            "say it once, or alike; for a second client write the same name-server under rocketmq.clusters.<name>",
        )
    ]


@pytest.mark.parametrize(
    "said",
    [
        "rocketmq.consumer.instance-name: gate",
        "rocketmq.producer.instance-name: gate\nrocketmq.consumer.instance-name: gate",
        "rocketmq.pull-consumer.instance-name: gate",
    ],
)
def test_a_name_that_is_said_once_or_alike_holds(service: ServiceMaker, said: str) -> None:
    assembly = service(LISTENER, settings(said)).app.look()
    assert assembly.findings == []
    (client,) = assembly.clients.clusters[""].clients
    assert client.options(assembly.rocketmq).instance_name == "gate"


def test_clusters_have_clients_of_their_own_and_need_not_agree(service: ServiceMaker) -> None:
    text = "rocketmq.producer.instance-name: gate\nrocketmq.clusters.a: {name-server: a:1, producer.instance-name: b}\n"
    assert findings(service(LISTENER, settings(text))) == []


def test_encryption_for_one_of_them_only_is_refused(service: ServiceMaker) -> None:
    text = "rocketmq.producer.tls-enable: false\nrocketmq.consumer.tls-enable: true\n"
    (disagreement,) = told(service(LISTENER, settings(text)))
    assert "rocketmq.producer.tls-enable is false and rocketmq.consumer.tls-enable is true" in disagreement


def test_files_of_tls_are_looked_at_before_the_start_and_told_with_their_lines(
    service: ServiceMaker, tmp_path: Path
) -> None:
    cert, _ = write(tmp_path, "mine", certificate("client"))
    _, key = write(tmp_path, "other", certificate("client", nth=1))
    text = f"""
rocketmq:
  tls:
    enable: true
    ca-file: {tmp_path / "missing.pem"}
    cert-file: {cert}
    key-file: {key}
    key-password: password-that-nobody-sees
  clusters.audit: {{name-server: a:1, tls: {{ca-file: {tmp_path}}}}}
"""
    found = findings(service(LISTENER, text + "  name-server: n:1\n"))
    assert [each.what for each in found] == [
        f"rocketmq.tls.ca-file is {tmp_path / 'missing.pem'}, and there is no such file",
        f"rocketmq.tls.key-file is {key}, which is not the key of the certificate in {cert}",
        "rocketmq.clusters.audit.tls.ca-file is set and rocketmq.clusters.audit.tls.enable is not, so that nothing "
        "would be encrypted",
    ]
    assert [str(each.where).rpartition("rocketbox.yaml")[2].split(":")[1] for each in found] == ["4", "6", "8"]
    assert "password-that" not in str(found)


def test_tls_is_of_a_cluster_and_off_where_it_is_said(service: ServiceMaker, tmp_path: Path) -> None:
    ca, _ = write(tmp_path, "ca", authority())
    text = f"""
rocketmq:
  name-server: n:1
  tls: {{enable: true, ca-file: {ca}, server-name: broker.example}}
  clusters:
    plain: {{name-server: p:1, tls: {{enable: false, ca-file: {tmp_path / "nothing"}}}}}
    spring: {{name-server: s:1, producer: {{group: g, tls-enable: true}}}}
"""
    assembly = service(LISTENER, text).app.look()
    assert assembly.findings == []
    assert assembly.rocketmq.client_options().tls == TlsOptions(ca_file=ca, server_name="broker.example")
    plain, spring = (assembly.rocketmq.clusters[name].client_options() for name in ("plain", "spring"))
    assert (plain.tls_enable, plain.tls) == (False, None)
    assert (spring.tls_enable, spring.tls) == (True, None)


# --- what goes together -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("section", ["producer", "pull-consumer", "clusters.audit.producer"])
def test_one_key_without_the_other_is_refused(service: ServiceMaker, section: str) -> None:
    audit = "rocketmq.clusters.audit.name-server: a:1\n" if "audit" in section else ""
    module = service(HEAD, settings(f"rocketmq.{section}.secret-key: {SECRET}\n{audit}"))
    assert findings(module) == [
        Finding(
            f"rocketmq.{section}.secret-key is set and rocketmq.{section}.access-key is not",
            f"rocketbox.yaml:2:{len(section) + 23}",
            "set both of them, or none",
        )
    ]


@pytest.mark.parametrize(
    ("said", "what", "fix"),
    [
        ("access-key: AK", "rocketmq.access-key is set and rocketmq.secret-key is not", "set both of them, or none"),
        (
            "security-token: lent",
            "rocketmq.security-token is set and rocketmq.access-key is not",
            "set the keys that came with the token, or leave it out",
        ),
    ],
)
def test_half_of_a_clusters_keys_is_refused(service: ServiceMaker, said: str, what: str, fix: str) -> None:
    module = service(HEAD, settings(f"rocketmq.{said}\n"))
    assert findings(module) == [Finding(what, f"rocketbox.yaml:2:{said.index(':') + 12}", fix)]


@pytest.mark.parametrize("section", ["producer", "pull-consumer"])
def test_two_namespaces_are_refused(service: ServiceMaker, section: str) -> None:
    module = service(HEAD, settings(f"rocketmq.{section}: {{namespace: a, namespace-v2: a}}\n"))
    assert f"rocketmq.{section}.namespace and rocketmq.{section}.namespace-v2 are both set" in findings(module)[0].what


@pytest.mark.parametrize("section", ["", "producer.", "consumer.", "pull-consumer.", "consumer.listeners.desk."])
@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("namespace", "a%b", "it holds %, which stands between a namespace and a name"),
        ("namespace", "a b", "it may hold letters, digits and | _ -"),
        ("namespace-v2", "a\u00e4", "it holds a character that cannot stand in a header"),
    ],
)
def test_a_namespace_that_can_be_none_is_told_with_its_place(
    service: ServiceMaker, section: str, key: str, value: str, why: str
) -> None:
    (finding,) = findings(service(LISTENER, settings(f"rocketmq.{section}{key}: '{value.replace('%', '%%')}'\n")))
    option = key.replace("-", "_")
    if "consumer." in section and "pull" not in section:
        assert finding.what == f"{option} of group 'desk' is {value!r}: {why}"
    else:
        assert finding.what == f"rocketmq.{section}{key} is {value!r}: {why}"
    assert "rocketbox.yaml:2" in (finding.where or "")


def test_a_unit_stands_behind_the_clients_id_and_must_be_fit_for_that(service: ServiceMaker) -> None:
    (finding,) = findings(service(LISTENER, settings("rocketmq.unit-name: a/b\n")))
    assert finding.what == "rocketmq.unit-name is 'a/b': it may hold letters, digits and . _ -"
    assembly = service(LISTENER, settings("rocketmq.unit-name: south-1\n")).app.look()
    assert assembly.rocketmq.client_options().unit_name == "south-1"


@pytest.mark.parametrize("scheme", ["", "http://"])
def test_an_address_that_names_a_namespace_wants_it_said(service: ServiceMaker, scheme: str) -> None:
    server = f"rocketmq.name-server: {scheme}MQ_INST_123_BabcD.mq.example:80\n"
    (finding,) = findings(service(LISTENER, server))
    assert (finding.fix or "").startswith("set rocketmq.namespace: MQ_INST_123_BabcD, which is what Apache")
    for said in ("namespace: MQ_INST_123_BabcD", "namespace: other", "namespace-v2: other"):
        assert findings(service(LISTENER, server + f"rocketmq.{said}\n")) == []


def test_a_listeners_keys_may_be_said_in_different_places_and_must_be_two(service: ServiceMaker) -> None:
    source = LISTENER.replace('"desk")\nasync', '"desk", access_key="${ak:AK}", namespace="a")\nasync')
    (alone,) = findings(service(source, settings("")))
    assert alone.what == "access_key is set and secret_key is not, for group 'desk'"
    assert (alone.where or "").endswith(".py:4")
    assembly = service(source, settings(f"rocketmq.consumer.secret-key: '{SECRET}'")).app.look()
    (plan,) = assembly.plans
    assert (plan.options.access_key, plan.options.secret_key) == ("AK", SECRET)


def test_half_of_a_listeners_keys_is_not_made_whole_by_another_pair(service: ServiceMaker) -> None:
    source = LISTENER.replace('"desk")\nasync', '"desk", access_key="AK-of-desk")\nasync')
    text = f"rocketmq.consumer: {{access-key: AK-of-all, secret-key: {SECRET}}}\n"
    (finding,) = findings(service(source, settings(text)))
    assert finding.what == "access_key of group 'desk' would go with the secret_key of another pair"
    where = finding.where or ""
    assert ".py:4" in where
    assert "rocketbox.yaml:2:" in where
    text += f"rocketmq.consumer.listeners.desk.secret-key: {OTHER_SECRET}\n"
    assert findings(service(source, settings(text))) == [], "the halves that win make a pair"
    (finding,) = findings(service(LISTENER, settings(text)))
    assert finding.what == "secret_key of group 'desk' would go with the access_key of another pair"


# --- options of listeners ---------------------------------------------------------------------------------------------

ALL_OF_THEM = """
@rocketmq_listener(
    topic="departures", consumer_group="desk", access_key="${ak}", secret_key="${sk}", enable_msg_trace=True,
    customized_trace_topic="traces", namespace="${ns:MQ_INST_1}", reply_timeout="5s",
)
async def on_departure(body: bytes) -> None: ...
"""


def test_what_a_decorator_says_reaches_the_consumer(service: ServiceMaker) -> None:
    module = service(HEAD + ALL_OF_THEM, settings(f"ak: AK-of-me\nsk: {SECRET}\n"))
    (plan,) = module.app.look().plans
    options = consumer_options(plan.options)
    user = module.app.look().clients.clusters[""].groups["desk"].user
    assert user == User(Credentials(access_key="AK-of-me", secret_key=SECRET), "MQ_INST_1")
    assert (options.enable_msg_trace, options.customized_trace_topic) == (True, "traces")
    assert options.reply_timeout == 5.0
    assert findings(module) == []


def test_settings_of_the_group_win_over_the_decorator_and_it_over_those_of_all(service: ServiceMaker) -> None:
    source = LISTENER.replace('"desk")\nasync', '"desk", enable_msg_trace=True, namespace="of-decorator")\nasync')
    text = (
        "rocketmq.consumer: {namespace: of-all, customized-trace-topic: of-all, listeners: "
        "{desk: {enable-msg-trace: false, reply-timeout: 3s}}}\n"
    )
    (plan,) = service(source, settings(text)).app.look().plans
    options = plan.options
    assert (options.namespace, options.customized_trace_topic) == ("of-decorator", "of-all")
    assert options.enable_msg_trace is False


@pytest.mark.parametrize("name", ["name-server", "nameServer", "access_channel", "tls-enable", "instance-name"])
def test_what_belongs_to_a_cluster_is_sent_there(service: ServiceMaker, name: str) -> None:
    module = service(LISTENER, settings(f"rocketmq.consumer.listeners.desk.{name}: x\n"))
    assert findings(module) == [
        Finding(
            f"rocketmq.consumer.listeners.desk.{name} is no option of a listener",
            f"rocketbox.yaml:2:{len(name) + 36}",
            "put the cluster under rocketmq.clusters.<name> and name it in the decorator, by cluster=",
        )
    ]


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("consume-thread-number", "concurrency"),
        ("consumeThreadMax", "concurrency"),
        ("suspend-current-queue-time-millis", "suspend-current-queue-time"),
        ("awaitTerminationMillisWhenShutdown", "await-termination-when-shutdown"),
        ("consume-timeout-minutes", "consume-timeout"),
    ],
)
def test_names_of_rocketmq_spring_lead_to_ours(service: ServiceMaker, name: str, ours: str) -> None:
    module = service(LISTENER, settings(f"rocketmq.consumer.listeners.desk.{name}: 15\n"))
    (finding,) = findings(module)
    assert finding.fix == f"did you mean rocketmq.consumer.listeners.desk.{ours}?"


# --- secrets of decorators --------------------------------------------------------------------------------------------


def test_a_decorators_secret_is_nowhere_to_be_seen(
    service: ServiceMaker, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    source = ALL_OF_THEM.replace("${sk}", SECRET).replace('"traces"', '"no topic"')
    module = service(HEAD + source, settings("ak: AK-of-me\n"))
    assembly = module.app.look()
    (plan,) = assembly.plans
    with pytest.raises(ConfigurationError) as caught:
        module.app.check()
    module.app.print_failure(caught.value, debug=True)
    seen = [repr(assembly.plans), repr(assembly), repr(consumer_options(plan.options)), *plan.describe()]
    seen += [repr(rocketmq_listener(secret_key=SECRET)), *map(str, capsys.readouterr()), caplog.text]
    assert SECRET not in "\n".join(seen)


@pytest.mark.parametrize("written", [f'["{SECRET}"]', '"  "'])
def test_a_secret_that_cannot_be_is_not_shown(service: ServiceMaker, written: str) -> None:
    source = LISTENER.replace('"desk")\nasync', f'"desk", access_key="AK", secret_key={written})\nasync')
    (finding,) = findings(service(source, settings("")))
    assert finding.what.startswith(f"secret_key of listener on_departure is {MASK}")
    assert SECRET not in str(finding)


def test_a_blank_secret_in_the_settings_is_called_so(service: ServiceMaker) -> None:
    with pytest.raises(ConfigurationError, match=r"rocketmq\.producer\.secret-key is empty, which is not allowed"):
        service(HEAD, settings("rocketmq.producer: {access-key: AK, secret-key: '  '}\n")).app.look()


def test_a_secret_that_is_no_utf_8_is_refused_with_its_variable_and_not_shown(
    service: ServiceMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", SECRET + "\udcfc")
    with pytest.raises(ConfigurationError, match=rf"rocketmq\.secret-key is {re.escape(MASK)}, which is no") as caught:
        service(LISTENER, settings("rocketmq.access-key: AK\n")).app.check()
    assert "environment variable ROCKETMQ_SECRET_KEY" in str(caught.value)
    assert SECRET not in repr(caught.value)


def test_two_secrets_in_one_group_are_refused_and_not_shown(service: ServiceMaker) -> None:
    source = HEAD + "".join(
        f'@rocketmq_listener(topic="{topic}", consumer_group="desk", access_key="AK", secret_key="{secret}")\n'
        f"async def on_{topic}(body: bytes) -> None: ...\n"
        for topic, secret in (("departures", SECRET), ("arrivals", OTHER_SECRET))
    )
    texts = told(service(source, settings("")))
    assert "on_departures says a value, on_arrivals says another" in texts[0]
    assert SECRET not in "".join(texts)
    assert OTHER_SECRET not in "".join(texts)


# --- switched off -----------------------------------------------------------------------------------------------------

TWO_CLUSTERS = """
rocketmq:
  name-server: {0}
  producer: {{group: desk, tls-enable: true}}
  clusters:
    audit: {{name-server: {1}, producer.group: desk}}
"""

LISTENERS_OF_TWO = (
    LISTENER
    + """
@rocketmq_listener(topic="departures", consumer_group="audit", cluster="audit")
async def audit(body: bytes) -> None: ...
"""
)


@pytest.mark.parametrize("switch", [TWO_CLUSTERS.format("false", "a:1"), "rocketmq.enabled: false"])
def test_nothing_of_any_cluster_starts_when_it_is_switched_off(service: ServiceMaker, switch: str) -> None:
    text = switch if "clusters" in switch else switch + TWO_CLUSTERS.format("b:1", "a:1")
    assembly = service(LISTENERS_OF_TWO, text).app.look()
    assert (assembly.findings, assembly.warnings, assembly.plans) == ([], [], [])
    for cluster in (None, "audit"):
        assert not assembly.container.has(of_cluster(MQClientInstance, cluster))
    key = "rocketmq.name-server" if "clusters" in switch else "rocketmq.enabled"
    assert assembly.container.report.render().count(f"{key} is false") >= 4


def test_a_further_cluster_can_be_switched_off_alone(service: ServiceMaker) -> None:
    text = TWO_CLUSTERS.format("a:1", "false").replace(", tls-enable: true", "")
    assembly = service(LISTENERS_OF_TWO, text).app.look()
    assert assembly.findings == []
    assert [plan.group for plan in assembly.plans] == ["desk"]
    assert [each.what for each in assembly.off] == [
        "listener audit of group audit is off: rocketmq.clusters.audit.name-server"
    ]


# --- the pull consumer ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("written", "missing"), [("group", "topic"), ("topic", "group")])
def test_half_a_pull_consumer_is_none_and_the_report_says_why(
    service: ServiceMaker, written: str, missing: str
) -> None:
    assembly = service(HEAD, settings(f"rocketmq.pull-consumer.{written}: x\n")).app.look()
    assert assembly.findings == []
    assert not assembly.container.has(LitePullConsumerOptions)
    assert f"rocketmq.pull-consumer.{missing} is not set" in assembly.container.report.render()


def test_a_pull_consumer_is_told_to_be_missing(service: ServiceMaker) -> None:
    module = service(HEAD, settings("rocketmq.pull-consumer: {group: x, topic: y}\n"))
    assert module.app.look().container.has(LitePullConsumerOptions)
    assert findings(module) == [
        Finding(
            "rocketmq.pull-consumer.group with rocketmq.pull-consumer.topic asks for a pull consumer, which rocketbox "
            "does not have yet",
            "rocketbox.yaml:2:33 and rocketbox.yaml:2:43",
            "leave them out, and consume with a listener",
        )
    ]


# --- commands ---------------------------------------------------------------------------------------------------------


def test_commands_that_look_work_and_those_that_start_refuse(service: ServiceMaker) -> None:
    module = service(LISTENER, settings("rocketmq.pull-consumer: {group: lake, topic: departures}\n"))
    target = f"{module.__name__}:app"
    results: dict[str, Any] = {
        command: CliRunner().invoke(cli, [command, target])
        for command in ("config", "conditions", "schema", "check", "run")
    }
    assert {command: result.exit_code for command, result in results.items()} == {
        "config": 0,
        "conditions": 0,
        "schema": 0,
        "check": 1,
        "run": 1,
    }
    assert "group: lake" in results["config"].output
    for command in ("check", "run"):
        assert "rocketmq.pull-consumer.topic asks for " in results[command].output
