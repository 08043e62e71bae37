"""Users whose keys change: files and beans that give them, in the places where keys may be said."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rocketbox.autoconfigure.assembly import Assembly
from rocketbox.autoconfigure.service import KEPT_SETS, LentSecrets
from rocketbox.autoconfigure.users import CredentialsBean
from rocketbox.boot.masking import MASK
from rocketbox.boot.secrets import has_secret_name
from rocketbox.cli.app import app as cli
from rocketbox.client import Credentials, CredentialsFile
from rocketbox.errors import ConfigurationError
from tests.support.framework.services import SETTINGS, ServiceMaker

HEAD = """
from rocketbox import RocketBox, RocketMQTemplate, bean, primary, rocketmq_listener
from rocketbox.client import Credentials, CredentialsProvider
app = RocketBox("desk", scan=[__name__])
"""

LISTENER = """
@rocketmq_listener(topic="departures", consumer_group="{group}"{more})
async def on_{group}(body: bytes) -> None: ...
"""

VAULT = """
class Vault(CredentialsProvider):
    def __init__(self, user: str = "vaulted", fails: bool = False) -> None:
        self.user = user
        self.fails = fails

    async def credentials(self) -> Credentials:
        if self.fails:
            raise ConnectionError("hunter2")
        return Credentials(access_key=self.user + "-key", secret_key="hunter2-of-" + self.user)

@bean
def vault() -> Vault:
    return Vault()
"""

BASE = "rocketmq.name-server: ns:9876\nrocketmq.producer.group: flights\n"
PAIR = "{access-key: one, secret-key: hunter2-of-one}"


def listener(group: str = "board", **more: str) -> str:
    return LISTENER.format(group=group, more="".join(f", {name}={value!r}" for name, value in more.items()))


def look(service: ServiceMaker, text: str, source: str) -> Assembly:
    assembly = service(HEAD + source, text).app.look()
    assert isinstance(assembly, Assembly)
    return assembly


def said(assembly: Assembly, cluster: str = "") -> list[str]:
    """What each client signs with, and for whom."""
    assert assembly.findings == []
    return [str(client) for client in assembly.clients.clusters[cluster].clients]


@pytest.mark.parametrize(
    ("text", "source", "expected"),
    [
        (
            "rocketmq.credentials-file: keys.yaml\n", listener(),
            ["signs with the keys in keys.yaml, used by producer group flights, listener group board"],
        ),
        (
            "rocketmq.producer.credentials-file: /run/send\nrocketmq.consumer.credentials-file: /run/read\n",
            listener() + listener("audit", credentials_file="audit.yaml"),
            [
                "signs with the keys in /run/send, used by producer group flights",
                "signs with the keys in /run/read, used by listener group board",
                "signs with the keys in audit.yaml, used by listener group audit",
            ],
        ),
        (  # what is nearer takes the place of the other way to say it
            f"rocketmq.consumer: {PAIR}\nrocketmq.consumer.listeners.board.credentials-file: board.yaml\n",
            listener() + listener("audit"),
            [
                "signs nothing, used by producer group flights",
                "signs with the keys in board.yaml, used by listener group board",
                "signs as o..., used by listener group audit",
            ],
        ),
        (
            "rocketmq.consumer.credentials-file: all.yaml\n",
            listener(access_key="decorated", secret_key="hunter2"),
            ["signs nothing, used by producer group flights", "signs as deco..., used by listener group board"],
        ),
        (
            "rocketmq: {access-key: one, secret-key: hunter2, consumer.credentials-file: all.yaml}\n", listener(),
            ["signs as o..., used by producer group flights", "signs with the keys in all.yaml, used by listener group "
             "board"],
        ),
    ],
)  # fmt: skip
def test_a_file_of_keys_may_stand_wherever_keys_may(
    service: ServiceMaker, text: str, source: str, expected: list[str]
) -> None:
    assert said(look(service, BASE + text, source)) == expected


@pytest.mark.parametrize(
    ("text", "source", "told"),
    [
        (
            "rocketmq: {credentials-file: a, access-key: one, secret-key: hunter2}\n", "",
            "rocketmq.credentials-file and rocketmq.access-key are both set",
        ),
        (
            "rocketmq.producer: {credentials-file: a, secret-key: hunter2}\n", "",
            "rocketmq.producer.credentials-file and rocketmq.producer.secret-key are both set",
        ),
        (
            "rocketmq: {credentials-file: a, security-token: hunter2}\n", "",
            "rocketmq.credentials-file and rocketmq.security-token are both set",
        ),
        (
            f"rocketmq.consumer: {PAIR}\nrocketmq.consumer.credentials-file: a\n", listener(),
            "credentials_file and access_key are both set, for group 'board'",
        ),
    ],
)  # fmt: skip
def test_keys_and_a_file_of_them_in_one_place_are_refused(
    service: ServiceMaker, text: str, source: str, told: str
) -> None:
    findings = look(service, BASE + text, source).findings
    assert any(told in finding.what for finding in findings)
    assert "hunter2" not in str(findings)


def test_a_path_of_secrets_is_no_secret(service: ServiceMaker) -> None:
    assert [has_secret_name(name) for name in ("credentials-file", "PASSWORD_FILE", "privateKeyPath", "profile")] == [
        False
    ] * 4
    assert all(map(has_secret_name, ("credentials", "secret-profile", "token-files", "file-password")))
    module = service(HEAD + listener(), BASE + "rocketmq.credentials-file: secret/keys.yaml\n")
    output = (
        CliRunner().invoke(cli, ["config", f"{module.__name__}:app", "--explain", "rocketmq.credentials-file"]).output
    )
    assert "rocketmq.credentials-file: secret/keys.yaml" in output


@pytest.mark.anyio
async def test_a_missing_file_ends_the_start_with_its_name_and_line(service: ServiceMaker) -> None:
    module = service(HEAD, BASE + "rocketmq.credentials-file: nowhere/keys.yaml\n")
    with pytest.raises(ConfigurationError) as caught:
        async with module.app:
            pass
    (finding,) = caught.value.findings
    assert finding.what == "the keys cannot be read: No such file or directory: nowhere/keys.yaml"
    assert str(finding.where).endswith("rocketbox.yaml:3:28")
    assert "accessKey" in str(finding.fix)


@pytest.mark.anyio
@pytest.mark.parametrize("key", ["consumer", "consumer.listeners.board"])
async def test_a_missing_file_of_a_group_is_told_by_its_line_too_before_and_at_the_start(
    service: ServiceMaker, key: str
) -> None:
    module = service(HEAD + listener(), EMBEDDED + f"rocketmq.{key}.credentials-file: nowhere/keys.yaml\n")
    warnings = [each for each in module.app.look().warnings if "keys.yaml" in each.what]
    reason = "the keys cannot be read: No such file or directory: nowhere/keys.yaml"
    assert [each.what for each in warnings] == [f"rocketmq.{key}.credentials-file: {reason}"]
    with pytest.raises(ConfigurationError) as caught:
        async with module.app:
            pass
    (finding,) = caught.value.findings
    assert (finding.what, finding.where) == (reason, warnings[0].where)
    assert "rocketbox.yaml:" in str(finding.where)


def test_a_file_that_has_no_keys_is_warned_of_before_the_start(service: ServiceMaker) -> None:
    module = service(HEAD, BASE + "rocketmq.credentials-file: keys.yaml\n")
    Path("keys.yaml").write_text("accessKey: hunter2\n")
    (warning,) = [each.what for each in module.app.look().warnings if "keys.yaml" in each.what]
    assert warning == "rocketmq.credentials-file: keys.yaml has no secretKey"


def test_a_bean_gives_the_keys_of_its_cluster_and_wins_over_keys_in_the_settings(service: ServiceMaker) -> None:
    text = (
        BASE
        + "rocketmq: {access-key: one, secret-key: hunter2, clusters.audit: {name-server: a:1, producer.group: a}}\n"
    )
    text += f"rocketmq.consumer: {PAIR}\n"
    assembly = look(service, text, VAULT + listener())
    assert said(assembly) == [
        "signs with the keys of bean vault, used by producer group flights",
        "signs as o..., used by listener group board",
    ]
    assert said(assembly, "audit") == ["signs nothing, used by producer group a"], "it is of the main cluster"
    warnings = [warning.what for warning in assembly.warnings]
    assert "rocketmq.access-key has no effect: bean vault gives the keys" in warnings


def test_a_bean_that_is_named_as_a_cluster_is_for_that_one(service: ServiceMaker) -> None:
    text = BASE + "rocketmq.clusters.audit: {name-server: a:1, producer.group: a}\n"
    source = VAULT + "@bean(name='audit')\ndef of_audit() -> CredentialsProvider:\n    return Vault('auditor')\n"
    assembly = look(service, text, source)
    assert said(assembly) == ["signs with the keys of bean vault, used by producer group flights"]
    assert said(assembly, "audit") == ["signs with the keys of bean audit, used by producer group a"]
    each = "@bean(per_cluster=True)\ndef of_each() -> CredentialsProvider:\n    return Vault()\n"
    assembly = look(service, text, VAULT.replace("@bean\n", "") + each)
    assert [said(assembly, cluster)[0].split(",")[0] for cluster in ("", "audit")] == [
        "signs with the keys of bean of_each", "signs with the keys of bean of_each [audit]",
    ]  # fmt: skip


def test_two_beans_for_one_cluster_are_refused_unless_one_is_primary(service: ServiceMaker) -> None:
    second = "\n@bean\ndef second() -> CredentialsProvider:\n    return Vault()\n"
    findings = look(service, BASE, VAULT + second).findings
    assert any("2 beans are CredentialsProviders for rocketmq: vault and second" in each.what for each in findings)
    assembly = look(service, BASE, VAULT + second.replace("@bean", "@primary\n@bean"))
    assert said(assembly) == ["signs with the keys of bean second, used by producer group flights"]


EMBEDDED = SETTINGS % {"folder": "."}


@pytest.mark.anyio
async def test_requests_are_signed_with_what_the_bean_gives_and_logs_do_not_show_it(
    service: ServiceMaker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    module = service(HEAD + VAULT, EMBEDDED)
    async with module.app as app:
        instance = app.template.producer.instance
        assert instance.remoting.credentials == Credentials(access_key="vaulted-key", secret_key="hunter2-of-vaulted")
        await app.template.send("departures", "UA1545")
        logging.getLogger("rocketbox.anything").warning("it is hunter2-of-vaulted of vaulted-key")
        app.get(module.Vault).user = "renewed"
        instance.keys.look()
        await instance.keys.found_new(10)
        logging.getLogger("rocketbox.anything").warning("now hunter2-of-renewed, before hunter2-of-vaulted")
        await app.template.send("departures", "UA1545")
    assert f"it is {MASK} of {MASK}" in caplog.text
    assert f"now {MASK}, before {MASK}" in caplog.text
    assert "hunter2" not in caplog.text


@pytest.mark.anyio
async def test_a_bean_that_fails_ends_the_start_and_its_words_are_not_shown(service: ServiceMaker) -> None:
    module = service(HEAD + VAULT.replace("return Vault()", "return Vault(fails=True)"), EMBEDDED)
    with pytest.raises(ConfigurationError, match=r"Vault\.credentials failed with ConnectionError") as caught:
        async with module.app:
            pass
    assert "hunter2" not in str(caught.value)


def test_lent_secrets_are_kept_from_being_shown_for_a_while_and_not_for_ever() -> None:
    hidden: set[str] = set()
    lent = LentSecrets(hidden)
    changes: list[int] = []
    lent.changed.append(lambda: changes.append(len(hidden)))
    for number in range(100):
        lent.put("one", {f"secret {number}"})
        lent.put("other", {"always"})
    assert hidden == {"always", *(f"secret {number}" for number in range(100 - KEPT_SETS, 100))}
    assert changes[-1] == KEPT_SETS + 1


def test_users_show_no_key(tmp_path: Path) -> None:

    async def start(stack: AsyncExitStack) -> None:
        raise AssertionError("nobody has asked for it")

    bean = CredentialsBean("vault", lambda: CredentialsFile(tmp_path), start)
    assert repr(bean) == "CredentialsBean(label='vault')"
    assert repr(CredentialsFile("keys")) == "CredentialsFile('keys')"


@pytest.mark.parametrize(
    ("settings", "shown", "hidden"),
    [
        ("rocketmq: {access-key: gate-no-7, secret-key: hunter2, producer.group: gate-no-7}\n", "gate-no-7", "hunter2"),
        ("rocketmq: {access-key: desk, secret-key: hunter2}\n", "desk", "hunter2"),  # the application's own name
        ("rocketmq: {access-key: rocketbox, secret-key: hunter2}\n", "rocketbox", "hunter2"),
        (
            "rocketmq: {access-key: '${GATE_KEY:gate-no-7}', secret-key: hunter2, producer.group: gate-no-7}\n",
            "gate-no-7", "hunter2",
        ),
        ("rocketmq: {access-key: unheard-of, secret-key: hunter2}\n", "hunter3", "unheard-of"),
        (
            "rocketmq: {access-key: gate-no-7, secret-key: gate-no-7, producer.group: gate-no-7}\n",
            "hunter2", "gate-no-7",
        ),
    ],
)  # fmt: skip
def test_a_user_whose_name_everybody_sees_does_not_make_logs_unreadable(
    service: ServiceMaker, settings: str, shown: str, hidden: str
) -> None:
    secrets = look(service, "rocketmq.name-server: ns:9876\n" + settings, "").settings.secrets
    assert shown not in secrets
    assert hidden in secrets


def test_a_user_of_lent_keys_may_have_a_name_that_everybody_sees() -> None:
    shown_nowhere: set[str] = set()
    lent = LentSecrets(shown_nowhere, lambda user: user == "desk")
    lent.put("one", {"desk", "hunter2"}, user="desk")
    lent.put("two", {"unheard-of", "hunter3"}, user="unheard-of")
    assert shown_nowhere == {"hunter2", "unheard-of", "hunter3"}
