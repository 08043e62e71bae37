"""Which texts of settings are secret, wherever they come from, and which are not masked because everybody sees them."""

from __future__ import annotations

import dataclasses
import datetime
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field, RootModel, Secret, SecretBytes, SecretStr, model_validator

from rocketbox.boot.effective import explain, render_tree
from rocketbox.boot.json_schema import json_schema
from rocketbox.boot.masking import MASK, mask
from rocketbox.boot.secrets import has_secret_name, is_secret
from rocketbox.boot.settings import Settings, SettingsError
from rocketbox.errors import ConfigurationError, Finding
from tests.support.framework.settings_models import load, refused


class Bank(BaseModel):
    user: str = ""
    url: str = ""
    password: str = ""
    pin: int = 0
    key: SecretStr = SecretStr("")
    keys: list[SecretStr] = []
    by_name: dict[str, SecretStr] = {}
    raw: SecretBytes = SecretBytes(b"")
    opened: Secret[datetime.date] | None = None
    built_in: SecretStr = SecretStr("hunter2-built-in")


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def load_bank(text: str = "", environ: dict[str, str] | None = None, **options: Any) -> Settings:
    return load(text, environ, models={"bank": Bank}, **options)


def secrets(settings: Settings) -> set[str]:
    return set(settings.secrets) - {"hunter2-built-in"}


@pytest.mark.parametrize(
    ("text", "environ", "overrides", "expected"),
    [
        ("bank: {key: hunter2}", {}, {}, {"hunter2"}),
        ("bank: {keys: [hunter2, hunter3]}", {}, {}, {"hunter2", "hunter3"}),
        ("", {"BANK_KEYS": "hunter2, hunter3"}, {}, {"hunter2, hunter3", "hunter2", "hunter3"}),
        ("bank: {by-name: {a: hunter2}}", {}, {}, {"hunter2"}),
        ("bank: {raw: hunter2}", {}, {}, {"hunter2"}),
        ("bank: {opened: 2026-11-21}", {}, {}, {"2026-11-21"}),
        ("bank: {password: '${KEY:hunter2}'}", {"KEY": "hunter3"}, {}, {"hunter3"}),
        ("", {}, {"bank.key": SecretStr("hunter2")}, {"hunter2"}),
        ("", {}, {"bank.url": SecretStr("hunter2")}, {"hunter2"}),
        ("", {}, {"bank.keys": [SecretStr("hunter2")]}, {"hunter2"}),
        ("", {}, {"lake": [{"password": "hunter2", "host": "h"}]}, {"hunter2"}),
        (
            "lake: {smtp-pass: hunter2, github-jwt: hunter3, desk: {basic-auth: hunter4}}",
            {},
            {},
            {f"hunter{n}" for n in (2, 3, 4)},
        ),
        ("lake: {api-key: hunter2, fs.s3a.access.key: hunter3}", {}, {}, {"hunter2", "hunter3"}),
        ("bank: {url: 'db://user:hunter2@host/x'}", {}, {}, {"hunter2"}),
        ("bank: {url: 'db:host=x;password=hunter2;user=y'}", {}, {}, {"hunter2"}),
        ("bank: {url: 'db:host=x;secretKey=hunter2;secret_key=hunter3'}", {}, {}, {"hunter2", "hunter3"}),
        ("bank: {url: 'db://${DB_PASSWORD}'}", {"DB_PASSWORD": "hunter2"}, {}, {"hunter2"}),
        ("bank: {url: 'db://${DB_TOKEN:hunter2}'}", {}, {}, {"hunter2"}),
        ("bank: {url: '${PWD}/x'}", {"PWD": "/home/desk"}, {}, set()),
        ("bank: {url: 'http://ns/x?page=4711'}", {}, {}, set()),
        ("rocketmq: {name-server: 'http://ns/x?sesame=4711'}", {}, {}, {"sesame=4711"}),
        ("rocketmq: {nameServer: 'http://ns/x?k=${K}'}", {"K": "4711"}, {}, {"k=${K}", "k=4711"}),
        ("lake: {namesrv-addr: 'http://ns/x?k=4711'}", {}, {}, {"k=4711"}),
        ("lake: {urls: ['db://u:hunter2@host/x'], by: {a: 'db://u:hunter3@host/x'}}", {}, {}, {"hunter2", "hunter3"}),
    ],
)
def test_a_secret_is_known_wherever_it_comes_from(
    text: str, environ: dict[str, str], overrides: dict[str, Any], expected: set[str]
) -> None:
    assert secrets(load_bank(text + "\n", environ, overrides=overrides)) == expected


def test_a_default_in_the_code_is_a_secret_too() -> None:
    assert load_bank().secrets == {"hunter2-built-in"}


def test_a_variable_that_a_decorator_refers_to_is_a_secret_from_then_on() -> None:
    settings = load_bank(environ={"DB_PASSWORD": "hunter2"})
    assert secrets(settings) == set()
    assert settings.resolve("x-${DB_PASSWORD}", subject="topic") == "x-hunter2"
    assert secrets(settings) == {"hunter2"}


def test_a_secret_override_fills_placeholders_and_keys_of_text_with_what_it_hides() -> None:
    overrides = {"bank.key": SecretStr("hunter2"), "bank.user": SecretStr("hunter3")}
    settings = load_bank("bank: {url: 'db://${bank.key}'}\n", overrides=overrides)
    assert settings.get("bank").url == "db://hunter2"
    assert settings.get("bank").user == "hunter3"
    assert "hunter" not in render_tree(settings) + explain(settings, "bank.url") + repr(settings.texts)


@pytest.mark.parametrize(
    "text",
    [
        "bank: {user: guest, password: guest}",  # the name of the user stays readable
        "bank: {password: bank}",  # a word of the key
        "bank: {password: 'true'}",
        "bank: {password: abc}",
    ],
)
def test_a_word_that_everybody_sees_is_masked_in_its_own_key_only(text: str) -> None:
    settings = load_bank(text + "\n")
    assert secrets(settings) <= {"abc"}
    assert mask("user guest of the bank: true, abc", settings.secrets) == "user guest of the bank: true, abc"
    assert "password: ******" in " ".join(render_tree(settings).split())
    assert explain(settings, "bank.password").startswith(f"bank.password: {MASK}\n")


@pytest.mark.parametrize("value", ["012", "hunter2", "[hunter2]", "{a: hunter2}", "0x12"])
def test_a_secret_of_a_wrong_type_is_refused_without_it(value: str) -> None:
    class Login(BaseModel):
        password: int = 0

    (finding,) = refused(f"login: {{password: {value}}}\n", models={"login": Login})
    assert finding.startswith(("login.password is ", "login.password takes "))
    assert "12" not in finding.replace("rocketbox.yaml:1:", "")
    assert "hunter2" not in finding


def test_the_password_in_a_url_that_the_code_finds_is_not_shown() -> None:
    class Base(BaseModel):
        url: str = Field(default_factory=lambda: "db://desk:hunter2-found@base/flights")

    shown = render_tree(load(models={"base": Base}))
    assert "db://desk:******@base/flights" in shown
    assert "hunter2" not in shown


def test_a_password_that_yaml_takes_for_an_anchor_and_that_is_there_twice_is_not_shown() -> None:
    (finding,) = refused("bank:\n  password: &hunter2\n  key: &hunter2\n", models={"bank": Bank})
    assert finding.startswith("rocketbox.yaml has an anchor (&...) twice\n")
    assert "hunter2" not in finding


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("*hunter2", "rocketbox.yaml refers to an anchor (*...) that is nowhere above\n"),
        ("!hunter2", "a tag (!...) is not allowed in settings\n"),
        ("!!hunter2", "a tag (!...) is not allowed in settings\n"),
        ("!hunter2!x", "a tag (!...) is not allowed in settings\n"),
    ],
)
def test_a_password_that_yaml_takes_for_something_else_is_not_shown(value: str, what: str) -> None:
    (finding,) = refused(f"bank:\n  password: {value}\n", models={"bank": Bank})
    assert finding.startswith(what)
    assert "where: rocketbox.yaml:2:13\n" in finding
    assert "in quotes" in finding
    assert "hunter2" not in finding


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{user: a, password:hunter2}", "bank.password is not followed by a colon and a space"),
        ("{user: a, password=hunter2}", "bank.password is not followed by a colon and a space"),
        ("{user: a, password hunter2}", "bank.password is not followed by a colon and a space"),
        ("{password: ab,hunter2, user: a}", "bank.password ends at a comma, and what follows is no key with a value"),
        ("{password: ab, hunter2 b, user: a}", "bank.password ends at a comma, and what follows is no key"),
        ("{password: ab,hunter2 , user: a}", "bank.password ends at a comma, and what follows is no key"),
        ("{password: ab,hunter2 }", "bank.password ends at a comma, and what follows is no key"),
        ("{password: ab,hunter2 # of the bank:\n  }", "bank.password ends at a comma, and what follows is no key"),
        ("{user: a, password:hunter2: }", "bank.password is not followed by a colon and a space"),
        ("\n  password hunter2:\n  user: a", "bank.password is not followed by a colon and a space"),
    ],
)
@pytest.mark.parametrize("prefix", ["bank", "lake"])
def test_a_password_that_yaml_takes_for_a_key_is_not_shown(prefix: str, text: str, what: str) -> None:
    (finding,) = refused(f"{prefix}: {text}\n", models={"bank": Bank})
    assert finding.startswith(what.replace("bank", prefix))
    assert "hunter2" not in finding


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("paths: {password: x, debug: }", {"password": "x", "debug": None}),
        ("paths: {password: x, debug : }", {"password": "x", "debug": None}),
        ("paths:\n  GET /x:\n  12:30:\n  My Topic:\n", {"GET /x": None, "12:30": None, "My Topic": None}),
        ("paths:\n  ? My Topic\n  :\n  a=b:\n", {"My Topic": None, "a=b": None}),
        ("paths:\n  'password of all':\n", {"password of all": None}),
    ],
)
def test_a_key_without_a_value_that_has_a_colon_is_a_key(text: str, settings: dict[str, Any]) -> None:
    class Desk(BaseModel):
        paths: dict[str, str | None]

    assert load(f"desk.{text}\n", models={"desk": Desk}).get("desk").paths == settings


@pytest.mark.parametrize("argument", ["--bank.password:hunter2", "--bank.password hunter2", "--bank.password:hun=ter2"])
def test_a_password_that_is_taken_for_a_part_of_an_arguments_key_is_not_shown(argument: str) -> None:
    (finding,) = refused("", models={"bank": Bank}, arguments=[argument])
    assert finding.startswith("--bank.password is followed by a colon or a space, not by =\n")
    assert "hun" not in finding


def test_a_colon_in_a_key_that_may_be_secret_is_for_files_only() -> None:
    class Desk(BaseModel):
        tokens: dict[str, int] = {}

    assert refused("", models={"desk": Desk}, arguments=["--desk.tokens.urn:x=1"]) == [
        "--desk.tokens.urn is followed by a colon or a space, not by =\n"
        "    where: the command line\n"
        "    fix:   write --desk.tokens.urn=value; set a key that has a colon in it in a file"
    ]
    assert load("desk.tokens: {urn:x: 1}\n", models={"desk": Desk}).get("desk").tokens == {"urn:x": 1}


@pytest.mark.parametrize("kind", [ConnectionError, KeyError, ConfigurationError])
def test_what_a_validator_fails_with_is_a_finding_without_secrets(kind: type[Exception]) -> None:
    """pydantic takes a ValueError for what is wrong, and lets everything else through."""

    class Login(BaseModel):
        user: str = ""
        key: SecretStr

        @model_validator(mode="after")
        def log_in(self) -> Login:
            told = f"{self.user} cannot log in with {self.key.get_secret_value()}"
            raise kind(Finding(told)) if kind is ConfigurationError else kind(told)

    text = "login: {user: desk, key: hunter2-of-the-bank}\n"
    with pytest.raises(SettingsError) as caught:
        load(text, models={"login": Login})
    assert f"desk cannot log in with {MASK}" in str(caught.value)
    assert "hunter2-of-the-bank" not in str(caught.value)
    assert caught.value.secrets == {"hunter2-of-the-bank"}
    if kind is ConnectionError:
        assert "a validator of the settings failed: ConnectionError: desk" in str(caught.value)
        assert "test_settings_secrets.py:" in str(caught.value)


def test_every_file_that_holds_a_secret_and_everybody_may_read_is_told() -> None:
    files = {
        "rocketbox-prod.yaml": "bank: {key: hunter2}\n",
        "shared.yaml": "bank: {url: 'db://user:hunter2@host'}\n",
        ".env": "BANK_PASSWORD=hunter2\n",
        "plain.yaml": "bank: {user: nobody}\n",
    }
    for name, text in files.items():
        Path(name).write_text(text)

    def told(mode: int) -> list[str]:
        for name in files:
            Path(name).chmod(mode)
        settings = load_bank(
            "rocketbox.config.import: [shared.yaml, plain.yaml]\n", profiles=["prod"], env_file=Path(".env")
        )
        return [warning.what for warning in settings.warnings]

    rest = "and everybody on this machine may read it"
    assert told(0o644) == [
        f"rocketbox-prod.yaml holds a secret (bank.key), {rest}",
        f"shared.yaml holds a secret (bank.url), {rest}",
        f".env holds a secret (bank.password), {rest}",
    ]
    assert told(0o640) == told(0o600) == []


# --- in models of every kind ------------------------------------------------------------------------------------------


class Pin(BaseModel):
    number: SecretStr


@dataclass
class Door:
    code: SecretStr = dataclasses.field(default_factory=lambda: SecretStr("1234-of-the-house"))
    password: str = "hunter2-of-the-door"


class Vault(BaseModel):
    one_or_more: Pin | list[Pin] | None = None
    text_or_more: SecretStr | list[SecretStr] | None = None
    pins: tuple[str, SecretStr] = ("", SecretStr(""))
    by_name: dict[str, SecretStr] | None = None
    door: Door = Field(default_factory=Door)
    names: RootModel[list[SecretStr]] | None = None
    owner: Door | Pin | None = None
    below: list[Vault] = []


@pytest.mark.parametrize(
    "text",
    [
        "one-or-more: {number: SECRET}",
        "one-or-more: [{number: SECRET}]",
        "text-or-more: SECRET",
        "text-or-more: [SECRET]",
        "pins: [a, SECRET]",
        "by-name: {a: SECRET}",
        "door: {code: SECRET}",
        "names: [SECRET]",
        "names: 'SECRET,b'",
        "owner: {number: SECRET}",
        "below: [{below: [{one-or-more: [{number: SECRET}]}]}]",
    ],
)
def test_a_secret_is_shown_nowhere_whatever_kind_of_model_it_is_in(text: str) -> None:
    canary = "swordfish-9"
    settings = load(f"vault: {{{text.replace('SECRET', canary)}}}\n", models={"vault": Vault})
    shown = render_tree(settings) + explain(settings, "vault")
    assert canary not in shown
    assert "of-the" not in shown
    assert canary in settings.secrets
    assert "1234-of-the-house" in settings.secrets or "door" in text


@pytest.mark.parametrize(
    "name",
    [
        "tokens", "access-tokens", "accessTokens", "BANK_TOKENS", "api-keys", "passwords", "secrets", "credentials",
        "private-keys", "jwts", "tokens-by-name",
    ],
)  # fmt: skip
def test_names_of_several_secrets_are_names_of_secrets(name: str) -> None:
    assert has_secret_name(name)


@pytest.mark.parametrize("name", ["admin-tokens", "account_tokens", "superTokens", "PROOF_TOKENS"])
def test_a_word_that_ends_as_one_of_counting_does_counts_nothing(name: str) -> None:
    assert has_secret_name(name)


class Rows(BaseModel):
    context_tokens: int = 4096
    chunk_tokens: list[int] | None = None
    reserved_tokens: int | str = 1024
    band_pass: float = 0.0
    retry_pass: bool = False
    wait_pass: datetime.timedelta = datetime.timedelta()
    smtp_pass: str = ""
    more: dict[str, Any] = {}


@pytest.mark.parametrize(
    "text",
    [
        "rows: {context-tokens: 8192}",
        "rows: {context-tokens: '${N:8192}'}",
        "rows: {chunk-tokens: [8192, 8193]}",
        "rows: {reserved-tokens: 8192}",
        "rows: {band-pass: 8192.5}",
        "rows: {retry-pass: true}",
        "rows: {wait-pass: 8192s}",
        "rows: {more: {refill-tokens: 8192}}",
        "lake: {refill-tokens: 8192, by-pass: 8192.5, first-pass: true}",
        "lake: {refill-tokens: '${N:8192}'}",
    ],
)
def test_a_number_whose_name_may_be_that_of_a_secret_is_none(text: str) -> None:
    settings = load(text + "\n", models={"rows": Rows})
    assert settings.secrets == set()
    if "lake: {refill-tokens: '$" not in text:  # of a key that nobody declares it is not looked what it refers to
        assert MASK not in render_tree(settings)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("rows: {smtp-pass: '12345678'}", "12345678"),
        ("lake: {pass: 12345678x}", "12345678x"),
        ("rows: {more: {a-tokens: 12345678x}}", "12345678x"),
        ("rows: {reserved-tokens: 12345678x}", "12345678x"),
    ],
)
def test_a_text_under_such_a_name_stays_secret(text: str, secret: str) -> None:
    settings = load(text + "\n", models={"rows": Rows})
    assert settings.secrets == {secret}
    assert secret not in render_tree(settings)


@pytest.mark.parametrize(
    "name", ["max-tokens", "maxTokens", "max_new_tokens", "tokens-per-minute", "keys", "message-keys", "tokenizer"]
)
def test_names_of_numbers_of_tokens_and_of_keys_of_messages_are_none(name: str) -> None:
    assert not has_secret_name(name)


class Wired(BaseModel):
    url: str = "amqp://desk:hunter2@base/flights"
    urls: list[str] = ["db://desk:hunter2@base"]
    name_server: str = "http://mq.example/ns?t=hunter2"
    options: dict[str, str] = {"password": "hunter2"}
    place: str = "amqp://base/flights"


def test_a_default_that_holds_a_password_is_shown_by_no_command() -> None:
    schema = json.dumps(json_schema({"wired": Wired}))
    assert "amqp://base/flights" in schema, "others are"
    shown = [schema]
    for text in ("", "wired: {url: 'amqp://other', urls: [], name-server: 'a:1'}\n"):
        settings = load(text, models={"wired": Wired})
        shown += [render_tree(settings), explain(settings, "wired")]
        assert "hunter2" not in "".join(shown)
    assert "over ****** by default" in shown[-1]


@pytest.mark.parametrize("key", ["init-authentication-user", "initAuthenticationUser", "INIT_AUTHENTICATION_USER"])
def test_the_first_user_of_the_embedded_broker_is_a_secret_whatever_is_written_for_him(key: str) -> None:
    """Also what is no JSON yet, as whoever writes user:password finds out."""
    assert is_secret(("rocketbox", "embedded", key), None)


@pytest.mark.parametrize(
    "key", ["tls-server-need-client-auth", "tlsServerNeedClientAuth", "TLS_SERVER_NEED_CLIENT_AUTH", "wantclientauth"]
)
def test_whether_clients_are_asked_for_a_certificate_is_no_secret(key: str) -> None:
    assert not has_secret_name(key)
    assert not is_secret(("rocketbox", "embedded", key), None)
    assert is_secret(("rocketbox", "embedded", "client-auth"), None), "what a client says of itself may be one"
