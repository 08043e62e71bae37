"""A secret comes in by each place that there is, and shows in no output of any command, start, failure or log."""

from __future__ import annotations

import itertools
import logging
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import pytest
from pydantic import SecretStr
from typer.testing import CliRunner

from rocketbox import RocketBox
from rocketbox.autoconfigure.loading import Launch
from rocketbox.boot.masking import MASK
from rocketbox.cli.app import app as cli
from rocketbox.errors import ConfigurationError
from tests.support.certificates import authority, certificate, encrypted, write
from tests.support.failures import variables_of_ours
from tests.support.framework.services import SETTINGS, Service, ServiceMaker

SECRET = "hunter2/of the b%nk & 'others'"  # in URLs, JSON and repr it looks different

SERVICE = """
from pydantic import BaseModel, SecretStr, TypeAdapter
from rocketbox import RocketBox, bean, configuration_properties, on_property, rocketmq_listener

app = RocketBox("bank", scan=[__name__])

@configuration_properties("bank")
class BankProperties(BaseModel):
    key: SecretStr = SecretStr("")  # neither this name nor the next says what it is
    more: list[SecretStr] = []
    url: str = ""
    password: str = ""
    port: int = 80
    fails: bool = False
    %(property)s

class Bank: ...

@bean(on_property("bank.key", having="something else"))
def other_bank() -> Bank:
    return Bank()

@bean
def bank(properties: BankProperties) -> BaseModel:
    texts = [properties.key.get_secret_value(), properties.url, properties.password, *map(str, properties.more)]
    if properties.fails:
        try:
            TypeAdapter(int).validate_python("".join(texts))
        except ValueError as error:
            raise RuntimeError(f"cannot log in with {texts}") from error
    return properties

%(more)s
"""


@dataclass(frozen=True)
class Place:
    """One way in. ``SECRET`` in texts stands for the secret; ``key`` is where it ends up."""

    settings: str = "bank: {port: 81}"
    key: str = "bank.key"
    files: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    profiles: tuple[str, ...] = ()
    overrides: Mapping[str, Any] = field(default_factory=dict)
    property: str = ""
    more: str = ""


QUOTED = f'"{SECRET}"'

PLACES: dict[str, Place] = {
    "settings file": Place(f"bank: {{key: {QUOTED}}}"),
    "settings file, a name that says so": Place(f"bank: {{password: {QUOTED}}}", key="bank.password"),
    "settings file, a key that no model has": Place(f"lake: {{access-key: {QUOTED}}}", key="lake.access-key"),
    "settings file, a list": Place(f"bank: {{more: [one-of-them, {QUOTED}]}}", key="bank.more"),
    "document of a profile": Place(
        f"bank: {{port: 81}}\n---\nrocketbox.config.activate.on-profile: prod\nbank: {{key: {QUOTED}}}",
        profiles=("prod",),
    ),
    "file of a profile": Place(files={"rocketbox-prod.yaml": f"bank: {{key: {QUOTED}}}"}, profiles=("prod",)),
    "imported file": Place("rocketbox.config.import: shared.yaml", files={"shared.yaml": f"bank: {{key: {QUOTED}}}"}),
    "directory of secrets": Place("rocketbox.config.import: configtree:secrets", files={"secrets/bank.key": SECRET}),
    "directory of secrets, a plain key": Place(
        "rocketbox.config.import: configtree:secrets", key="bank.url", files={"secrets/bank.url": f"db://x@{SECRET}"}
    ),
    ".env": Place(files={".env": f"BANK_KEY={QUOTED}\n"}),
    "environment": Place(environ={"BANK_KEY": SECRET}),
    "environment, a list": Place(key="bank.more", environ={"BANK_MORE": f"one-of-them,{SECRET}"}),
    "argument": Place(arguments=(f"--bank.key={SECRET}",)),
    "override": Place(overrides={"bank.key": SECRET}),
    "override that is a secret": Place(overrides={"bank": {"key": SecretStr(SECRET)}}),
    "override, a list": Place(key="bank.more", overrides={"bank.more": [SecretStr("one-of-them"), SecretStr(SECRET)]}),
    "default in the code": Place(
        key="bank.pin", property=f"pin: SecretStr = SecretStr({SECRET!r})", more="BankProperties.model_rebuild()"
    ),
    "placeholder of a variable": Place(
        "bank: {url: 'db://${BANK_PASSWORD}'}", key="bank.url", environ={"BANK_PASSWORD": SECRET}
    ),
    "placeholder of a secret key": Place(f"bank: {{key: {QUOTED}, url: 'db://${{bank.key}}'}}", key="bank.url"),
    "placeholder of an override": Place(
        "bank: {url: 'db://${bank.key}'}", key="bank.url", overrides={"bank.key": SecretStr(SECRET)}
    ),
    "default of a placeholder": Place(f'bank: {{url: "db://${{DB_PASSWORD:{SECRET}}}"}}', key="bank.url"),
    "password in a URL": Place("bank: {url: 'db://admin:hunter2%2Fof%20the%20b%25nk@host/bank'}", key="bank.url"),
    "password with an at sign in a URL": Place(
        "bank: {url: 'db://admin:at@hunter2/of@host/bank'}".replace("/of", "-of"), key="bank.url"
    ),
    "key of an account": Place("bank: {url: 'AccountName=a;AccountKey=hunter2+of/the==;X=1'}", key="bank.url"),
    "password in a list": Place("bank: {more: ['db://admin:hunter2-of@host']}", key="bank.more"),
    "a key that is named auth": Place(f"lake: {{auth: {QUOTED}}}", key="lake.auth"),
    "configuration of Spark": Place(
        f"rocketbox.spark.conf: {{spark.hadoop.fs.s3a.access.key: {QUOTED}}}",
        key="rocketbox.spark.conf[spark.hadoop.fs.s3a.access.key]",
    ),
    "decorator": Place(
        environ={"BANK_KEY": SECRET},
        more="""
@rocketmq_listener(topic="departures", consumer_group="desk", selector_expression="${bank.key}")
async def on_departure(departure: dict[str, str]) -> None: ...
""",
    ),
    **{
        f"secret key of {section}": Place(
            f"rocketmq.{section}: {{access-key: AK, secret-key: {QUOTED}}}", key=f"rocketmq.{section}.secret-key"
        )
        for section in ("producer", "consumer", "pull-consumer", "consumer.listeners.desk", "clusters.audit.producer")
    },
    "secret key of the cluster": Place(
        f"rocketmq: {{name-server: 'ns:9876', producer.group: desk, access-key: AK, secret-key: {QUOTED}}}",
        key="rocketmq.secret-key",
    ),
    "access key of the cluster, whose client is told": Place(
        f"rocketmq: {{name-server: 'ns:9876', producer.group: desk, access-key: {QUOTED}, secret-key: SK}}",
        key="rocketmq.access-key",
    ),
    "security token of a further cluster": Place(
        f"rocketmq.clusters.audit: {{name-server: 'a:1', access-key: AK, secret-key: SK, security-token: {QUOTED}}}",
        key="rocketmq.clusters.audit.security-token",
    ),
    "keys of another pair, which are refused": Place(
        f"rocketmq: {{name-server: 'ns:9876', consumer: {{access-key: AK, secret-key: {QUOTED}}}}}",
        key="rocketmq.consumer.secret-key",
        more="""
@rocketmq_listener(topic="departures", consumer_group="desk", access_key="AK2")
async def on_departure(departure: dict[str, str]) -> None: ...
""",
    ),
    "access key of the producer": Place(
        f"rocketmq.producer: {{access-key: {QUOTED}, secret-key: SK}}", key="rocketmq.producer.access-key"
    ),
    "decorator with keys": Place(
        environ={"BANK_KEY": SECRET},
        more="""
@rocketmq_listener(topic="departures", consumer_group="desk", access_key="AK", secret_key="${bank.key}")
async def on_departure(departure: dict[str, str]) -> None: ...
""",
    ),
}

PLAIN = ("bank.url", "bank.password")
FORMS = (SECRET, SECRET[:8], "hunter2%2F", repr(SECRET)[1:-1])


def plant(place: Place, service: ServiceMaker, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for name, text in place.files.items():
        file = Path(name)
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        file.chmod(0o600)
    for variable, text in place.environ.items():
        monkeypatch.setenv(variable, text)
    source = SERVICE.replace("%(property)s", place.property).replace("%(more)s", place.more)
    module = service(source, place.settings.replace("%", "%%"))
    Path("rocketbox.yaml").chmod(0o600)
    return module


@pytest.fixture
def outputs(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """What a test adds, and in the end all that was printed and logged; the secret must be in none of it."""
    caplog.set_level(logging.DEBUG)
    texts: list[str] = []
    yield texts
    texts += [*capsys.readouterr(), caplog.text]
    for text, form in itertools.product(texts, FORMS):
        assert form not in text


@pytest.mark.parametrize("name", PLACES)
def test_a_secret_shows_in_no_output(
    name: str, service: ServiceMaker, monkeypatch: pytest.MonkeyPatch, outputs: list[str]
) -> None:
    outputs += outputs_with(PLACES[name], service, monkeypatch)


@pytest.mark.parametrize(
    "key",
    [
        "rocketmq.tls.key-password", "rocketbox.embedded.tls-server-key-password",
        "rocketbox.embedded.tlsServerKeyPassword",
    ],
)  # fmt: skip
@pytest.mark.parametrize("password", [SECRET, "another"], ids=["right", "wrong"])
def test_the_password_of_a_key_of_tls_shows_in_no_output(
    key: str, password: str, service: ServiceMaker, monkeypatch: pytest.MonkeyPatch, outputs: list[str]
) -> None:
    """That opens its key, and that does not, which is a finding."""
    settings = """
rocketmq:
  name-server: embedded
  producer.group: desk
  tls: {enable: true, cert-file: one.pem, key-file: one-key.pem}
rocketbox.embedded: {tls-server-cert-path: two.pem, tls-server-key-path: two-key.pem}
"""
    client, _ = write(Path.cwd(), "one", certificate("client")), write(Path.cwd(), "two", certificate())
    path = client[1] if key.startswith("rocketmq") else Path("two-key.pem")
    path.write_bytes(encrypted(path.read_bytes(), password))
    place = Place(f"{settings}{key}: {QUOTED}\n", key=key)
    outputs += outputs_with(place, service, monkeypatch)
    refusals = [text for text in outputs if "does not open the key in" in text]
    assert bool(refusals) is (password != SECRET)


def outputs_with(place: Place, service: ServiceMaker, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a service and the commands show of a secret that came in there."""
    outputs: list[str] = []
    module = plant(place, service, monkeypatch)
    application = module.app
    given: dict[str, Any] = {"profiles": place.profiles, "arguments": place.arguments}
    launch = Launch(settings=place.overrides, **given)
    assembly = application._look(launch)
    settings = assembly.settings
    assert any("hunter2" in secret for secret in settings.secrets)
    outputs += map(repr, [application, launch, assembly, settings, *assembly.findings, *assembly.warnings])
    outputs += [repr(entry) for entry in settings.written] + [repr(settings.explain(place.key))]
    if place.key not in PLAIN:  # a model shows what it does not declare as a secret: it is the user's own
        outputs += map(repr, [vars(settings), *settings.models.values()])
        outputs += map(str, settings.models.values())
    if place.key != "bank.pin":
        assert all(MASK in said.text for said in settings.explain(place.key))
    options = [f"--profile={profile}" for profile in place.profiles]
    target = f"{module.__name__}:app"
    commands = [["check", "--debug"], ["conditions"], ["config"], ["config", "--explain", place.key], ["schema"]]
    for command, *more in commands:
        settable = [] if command == "schema" else [*options, *place.arguments]
        outputs.append(CliRunner().invoke(cli, [command, target, *more, *settable]).output)
    wrong = replace(
        launch, arguments=[*place.arguments, "--bank.port=many", "--rocketmq.startup=never", "--bank.pot=1"]
    )
    return outputs + told_by_failing(application, wrong)


def told_by_failing(application: RocketBox, launch: Launch) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        application._assemble(launch)
    application.print_failure(caught.value, debug=True)
    return [str(caught.value), repr(caught.value)]


@pytest.mark.parametrize("name", [name for name, place in PLACES.items() if place.key.startswith("bank.")])
def test_a_bean_that_fails_with_a_secret_does_not_show_it(
    name: str, service: ServiceMaker, monkeypatch: pytest.MonkeyPatch, outputs: list[str]
) -> None:
    place = PLACES[name]
    module = plant(Place(**{**vars(place), "more": ""}), service, monkeypatch)
    if place.overrides:

        async def start() -> None:
            async with module.app.started(settings={**place.overrides, "bank.fails": True}):
                raise AssertionError("it has started")

        with pytest.raises(ConfigurationError, match="cannot log in with") as caught:
            anyio.run(start)
        outputs += [str(caught.value), repr(caught.value)]
        return
    with pytest.raises(SystemExit):
        module.app.run(profiles=place.profiles, arguments=[*place.arguments, "--bank.fails=true"], debug=True)


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        ("pin: int = 0", "hunter2/of the bank"),
        ("pin: SecretStr = SecretStr('')", "[hunter2/of, the bank]"),
        ("pin: SecretStr = SecretStr('')", "{hunter2/of: the bank}"),
        ("pin: bool = False", "hunter2/of the bank"),
        ("pin: str = ''", "!hunter2/of"),
        ("pin: str = ''", "*hunter2/of"),
    ],
)
def test_a_secret_of_a_wrong_type_does_not_show(
    declared: str, value: str, service: ServiceMaker, monkeypatch: pytest.MonkeyPatch, outputs: list[str]
) -> None:
    place = Place(f"bank:\n  password: {value}\n  pin: {value}", property=declared.replace("pin", "password"))
    module = plant(place, service, monkeypatch)
    outputs += told_by_failing(module.app, Launch())


def test_a_long_secret_that_is_cut_in_an_error_does_not_show(
    service: ServiceMaker, monkeypatch: pytest.MonkeyPatch, outputs: list[str]
) -> None:
    key = "hunter2/" + "".join(f"{number:03}" for number in range(100))
    module = plant(Place(f"bank: {{key: '{key}'}}"), service, monkeypatch)
    with pytest.raises(SystemExit):
        module.app.run(arguments=["--bank.fails=true"], debug=True)
    outputs.append("...")
    assert "input_value" not in "".join(outputs)


REAL = """
import logging

from pydantic import BaseModel, SecretStr
from rocketbox import RocketBox, RocketMQTemplate, Reject, bean, configuration_properties, rocketmq_listener

app = RocketBox("bank")

@configuration_properties("bank")
class BankProperties(BaseModel):
    key: SecretStr
    url: str
    token: str

class Account(BaseModel):
    number: int

@rocketmq_listener(topic="accounts", consumer_group="desk")
async def on_account(account: Account, properties: BankProperties) -> None:
    texts = [properties.key.get_secret_value(), properties.url, properties.token]
    logging.getLogger("bank").warning("logging in with %s", texts)
    try:
        raise ConnectionError(f"the bank refuses {texts}")
    finally:
        print("HANDLED", flush=True)

@app.on_startup
async def send(template: RocketMQTemplate, properties: BankProperties) -> None:
    logging.getLogger("bank").info("%r has the key %s", properties, properties.key.get_secret_value())
    await template.send("accounts", Account(number=7))
"""


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_service_that_runs_at_debug_shows_no_secret(tmp_path: Path, form: str) -> None:
    (tmp_path / "bank.py").write_text(REAL)
    settings = SETTINGS % {"folder": tmp_path} + f"  logging: {{format: {form}}}\n"
    (tmp_path / "rocketbox.yaml").write_text(f"{settings}bank: {{key: {QUOTED}, url: 'db://${{BANK_PASSWORD}}'}}\n")
    (tmp_path / ".env").write_text("BANK_TOKEN=hunter2-token\n")
    service = Service(
        tmp_path, "run", "bank:app", "--debug", environment={"BANK_PASSWORD": "hunter2-password", "PYTHONPATH": ""}
    )
    service.wait_for("HANDLED")
    service.wait_for("ConnectionError")
    service.process.send_signal(signal.SIGTERM)
    assert service.finish() == 0
    assert "DEBUG" in service.output
    assert f"logging in with [{MASK}" in service.output.replace('\\"', "").replace('"', "")
    assert "hunter2" not in service.output


def test_commands_in_processes_of_their_own_show_no_secret(tmp_path: Path) -> None:
    (tmp_path / "bank.py").write_text(REAL)
    (tmp_path / "rocketbox.yaml").write_text("rocketmq: {name-server: embedded}\nbank: {key: hunter2-key}\n")
    environment = {"BANK_URL": "db://admin:hunter2-password@host", "BANK_TOKEN": "hunter2-token"}
    for arguments, status in (
        (("check", "bank:app", "--debug"), 1),
        (("config", "bank:app"), 0),
        (("conditions", "bank:app", "--debug"), 0),
        (("run", "bank:app", "--debug", "--bank.token", "hunter2-argument"), 1),
    ):
        service = Service(tmp_path, *arguments, environment=environment)
        assert service.finish() == status, service.output
        assert "hunter2" not in service.output
        assert service.output


HOSTED = """
import logging

from pydantic import BaseModel, SecretStr
from rocketbox import RocketBox, bean, configuration_properties

app = RocketBox("bank")

@configuration_properties("bank")
class BankProperties(BaseModel):
    key: SecretStr

class Account: ...

@bean
def account(properties: BankProperties) -> Account:
    text = properties.key.get_secret_value()
    logging.getLogger("rocketbox.anything").warning("rocketbox says %s", text)
    logging.getLogger("bank").warning("the bank says %s", text)
    return Account()
"""


@pytest.mark.anyio
async def test_rocketbox_itself_shows_no_secret_inside_of_another_program(
    service: ServiceMaker, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "hunter2-that-the-program-says"  # of no other test: what was to be masked everywhere once stays so
    module = service(HOSTED, f"bank: {{key: {secret}}}")
    async with module.app.lifespan(object()):
        assert module.app.is_ready
    assert f"rocketbox says {MASK}" in caplog.text
    assert f"the bank says {secret}" in caplog.text  # who speaks there is the program


@pytest.mark.anyio
async def test_all_logs_of_a_program_show_no_secret_when_it_asks_for_that(
    service: ServiceMaker, caplog: pytest.LogCaptureFixture
) -> None:
    module = service(HOSTED, f"bank: {{key: {QUOTED}}}".replace("%", "%%"))
    module.app.mask_logs()
    async with module.app.lifespan(object()):
        assert f"rocketbox says {MASK}" in caplog.text
    assert f"the bank says {MASK}" in caplog.text
    assert "hunter2" not in caplog.text


def test_a_module_that_fails_with_a_secret_of_the_environment_does_not_show_it(tmp_path: Path) -> None:
    (tmp_path / "bank.py").write_text("import os\nraise ValueError('cannot log in with ' + os.environ['BANK_AUTH'])\n")
    service = Service(tmp_path, "run", "bank:app", "--debug", environment={"BANK_AUTH": "hunter2-of-the-bank"})
    assert service.finish() == 1
    assert f"cannot log in with {MASK}" in service.output
    assert "hunter2" not in service.output


VALIDATED = """
import os

from pydantic import BaseModel, SecretStr, model_validator
from rocketbox import RocketBox, configuration_properties

app = RocketBox("bank")

@configuration_properties("bank")
class BankProperties(BaseModel):
    key: SecretStr

    @model_validator(mode="after")
    def log_in(self) -> "BankProperties":
        try:
            return int(self.key.get_secret_value())
        except ValueError as error:
            raise ConnectionError(f"cannot log in with {self.key.get_secret_value()}") from error
"""


def test_a_validator_that_fails_with_a_secret_shows_it_in_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "bank.py").write_text(VALIDATED)
    (tmp_path / "rocketbox.yaml").write_text(f"bank: {{key: {QUOTED}}}\n")
    service = Service(tmp_path, "run", "bank:app", "--debug")
    assert service.finish() == 1
    assert f"1. a validator of the settings failed: ConnectionError: cannot log in with {MASK}\n" in service.output
    assert f"invalid literal for int() with base 10: '{MASK}'" in service.output.replace('"', "'")
    assert not [form for form in FORMS if form in service.output]


LOCALS = """
from pydantic import BaseModel, SecretStr, model_validator
from rocketbox import RocketBox, configuration_properties, rocketmq_listener

app = RocketBox("bank", scan=[__name__])

@configuration_properties("bank")
class BankProperties(BaseModel):
    key: SecretStr = SecretStr("")
    number: int
    is_open: bool = True

    @model_validator(mode="after")
    def look(self) -> "BankProperties":
        if not self.is_open:
            raise ConnectionError("it is closed")
        return self

@rocketmq_listener(topic="accounts", consumer_group="desk")
async def on_account(account: str) -> None: ...
"""


@pytest.mark.anyio
@pytest.mark.parametrize("by_arguments", [False, True])
@pytest.mark.parametrize(
    "wrong",
    [
        {},  # the number is missing
        {"bank.number": "none"},
        {"bank.number": "7", "bank.is-open": "false"},
        {"bank.number": "7", "rocketmq.name-server": "127.0.0.1:1", "rocketmq.startup": "fail"},
    ],
)
async def test_the_variables_of_a_start_that_fails_show_no_secret(
    wrong: dict[str, str], by_arguments: bool, service: ServiceMaker
) -> None:
    """As pytest's --showlocals, and tools that report errors, tell those of each line that an error came through."""
    module = service(LOCALS)
    given = {"rocketmq.access-key": "AK", "rocketmq.secret-key": SECRET, "bank.key": SECRET, **wrong}
    told: dict[str, Any] = {"arguments": [f"--{key}={value}" for key, value in given.items()]}
    with pytest.raises(ConfigurationError) as caught:
        async with module.app.started(**(told if by_arguments else {"settings": given})):
            pass
    assert not [line for line in variables_of_ours(caught.value) if "hunter2" in line]


def test_what_ends_a_thread_or_asks_for_the_end_shows_no_secret(service: ServiceMaker, tmp_path: Path) -> None:
    source = """
import sys
import threading

from rocketbox import RocketBox, configuration_properties
from pydantic import BaseModel, SecretStr

app = RocketBox("bank", scan=[__name__])

@configuration_properties("bank")
class BankProperties(BaseModel):
    key: SecretStr

class Bank:
    def __init__(self, refused: str) -> None:
        self.refused = refused

    def __del__(self) -> None:
        raise ValueError(f"once more it {self.refused}")

@app.on_startup
async def log_in(properties: BankProperties) -> None:
    refused = f"cannot log in with {properties.key.get_secret_value()}"
    Bank(refused)

    def look() -> None:
        raise ValueError(refused)

    thread = threading.Thread(target=look, name="look")
    thread.start()
    thread.join()
    sys.exit(refused)
"""
    module = service(source, f'bank.key: "{SECRET}"\n'.replace("%", "%%"))
    bank = Service(tmp_path, "run", f"{module.__name__}:app")
    assert bank.finish() == 1
    assert SECRET not in bank.output
    assert "thread look failed" in bank.output
    assert bank.output.count(f"cannot log in with {MASK}") == 3
    assert f"ValueError: once more it cannot log in with {MASK}" in bank.output


SIGNING = """
import logging
from pathlib import Path

from rocketbox import RocketBox, RocketMQTemplate, rocketmq_listener

app = RocketBox("bank")
keys = Path("keys.yaml")

@rocketmq_listener(topic="accounts", consumer_group="desk")
async def on_account(account: str) -> None:
    print("HANDLED", flush=True)

@app.on_startup
async def send(template: RocketMQTemplate) -> None:
    instance = template.producer.instance
    logging.getLogger("bank").info("%s signs as %r", instance, keys.read_text())
    keys.write_text(keys.read_text().replace("1", "2"))
    assert await instance.keys.found_new(30)
    logging.getLogger("bank").warning("now it signs as %r", keys.read_text())
    await template.send("accounts", "seven")
    raise ConnectionError(f"the bank refuses {keys.read_text()}, {vars(instance.remoting.credentials)}")
"""


def test_keys_of_a_file_that_changes_show_in_no_output(tmp_path: Path) -> None:
    (tmp_path / "bank.py").write_text(SIGNING)
    (tmp_path / "rocketbox.yaml").write_text(SETTINGS % {"folder": tmp_path} + "rocketmq.credentials-file: keys.yaml\n")
    keys = "accessKey: hunter2-user-1\nsecretKey: hunter2-secret-1\nsecurityToken: hunter2-token-1\n"
    for command, status in ("check", 0), ("config", 0), ("run", 1):
        (tmp_path / "keys.yaml").write_text(keys)
        debug = [] if command == "config" else ["--debug"]
        service = Service(tmp_path, command, "bank:app", *debug)
        assert service.finish() == status, service.output
        assert "hunter2" not in service.output
    assert f"now it signs as 'accessKey: {MASK}" in service.output
    assert f"the bank refuses accessKey: {MASK}" in service.output
    (tmp_path / "keys.yaml").write_text(keys.replace("secretKey", "hunter2"))
    service = Service(tmp_path, "run", "bank:app", "--debug")
    assert service.finish() == 1
    assert "keys.yaml is to have accessKey, secretKey" in service.output
    assert "hunter2" not in service.output


SECURED = """
rocketmq:
  name-server: embedded
  producer: {group: desk}
  access-key: the-desk
  secret-key: ${DESK_SECRET}
  security-token: hunter2-token
  tls: {enable: true, ca-file: ca.pem, cert-file: client.pem, key-file: client-key.pem, key-password: hunter2-client}
  clusters:
    lake: {name-server: "127.0.0.1:1", startup: retry, access-key: lake-user, secret-key: hunter2-lake}
rocketbox.embedded:
  port: 0
  name-server-port: 0
  data-dir: store
  authentication-enabled: true
  authorization-enabled: true
  init-authentication-user: '{"username": "the-desk", "password": "hunter2-desk"}'
  inner-client-authentication-credentials: '{"accessKey": "the-servers", "secretKey": "hunter2-servers"}'
  tls-server-cert-path: server.pem
  tls-server-key-path: server-key.pem
  tls-server-key-password: hunter2-server
  tls-server-trust-cert-path: ca.pem
"""
USES_ALL = """
import logging
import os

from rocketbox import RocketBox, RocketMQTemplate, rocketmq_listener
from rocketbox.client import MQClientInstance

app = RocketBox("bank")
told = logging.getLogger("bank")

@rocketmq_listener(topic="accounts", consumer_group="desk")
async def on_account(account: str, instance: MQClientInstance) -> None:
    signer = instance.remoting.credentials
    try:
        raise ConnectionError(f"{vars(signer)} and {vars(instance.options.tls)} are refused")
    finally:
        print("HANDLED", flush=True)

@app.on_startup
async def send(template: RocketMQTemplate, instance: MQClientInstance) -> None:
    told.warning("environment: %s", dict(os.environ))
    told.warning("options: %r and %r", instance.options, vars(instance.options.tls))
    told.warning("health: %r %s", app.health(), app.health().as_dict())
    await template.send("accounts", "seven")
"""


def test_each_kind_of_key_shows_in_no_output_of_a_service_that_uses_it(tmp_path: Path) -> None:
    """Keys of requests and tokens, passwords of private keys, of the client and of the embedded servers."""
    bodies: list[str] = []
    for name, made in (("ca", authority()), ("client", certificate("client")), ("server", certificate())):
        path = write(tmp_path, name, made)[1]
        if name != "ca":
            path.write_bytes(encrypted(path.read_bytes(), f"hunter2-{name}"))
        bodies += [line for line in path.read_text().splitlines() if len(line) > 40]
    (tmp_path / "bank.py").write_text(USES_ALL)
    (tmp_path / "rocketbox.yaml").write_text(SECURED)
    environment = {"DESK_SECRET": "hunter2-desk", "PYTHONPATH": ""}
    outputs: dict[str, str] = {}
    for command, *more in (["check", "--debug"], ["config"]):
        service = Service(tmp_path, command, "bank:app", *more, environment=environment)
        assert service.finish() == 0, service.output
        outputs[command] = service.output
    service = Service(tmp_path, "run", "bank:app", "--debug", environment=environment)
    service.wait_for("HANDLED")
    service.wait_for("ConnectionError")
    service.process.send_signal(signal.SIGTERM)
    assert service.finish() == 0
    outputs["run"] = service.output
    for command, output in outputs.items():
        assert "hunter2" not in output, command
    assert "DEBUG" in outputs["run"]
    assert f"'secret_key': '{MASK}'" in outputs["run"]
    assert f"'key_password': '{MASK}'" in outputs["run"]
    assert f"'DESK_SECRET': '{MASK}'" in outputs["run"]
    assert not [line for line in bodies for output in outputs.values() if line in output]
