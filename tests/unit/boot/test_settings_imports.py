"""``rocketbox.config.import``: files and directories of secrets, their place in the order, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr, field_validator

from rocketbox.boot.root_settings import load_settings
from rocketbox.errors import ConfigurationError
from tests.support.framework.settings_models import MODELS, load, refused


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(files: dict[str, str]) -> None:
    for name, text in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)


def explained(settings: Any, key: str = "desk.threshold-minutes") -> list[tuple[str, str]]:
    return [(said.text, str(said.origin)) for said in settings.explain(key)]


# --- files ---------------------------------------------------------------------------------------------------------


def test_imports_stand_above_all_files_of_profiles_and_below_variables() -> None:
    write(
        {
            "rocketbox-prod.yaml": "desk: {threshold-minutes: 2}\n",
            "shared.yaml": "desk: {threshold-minutes: 3}\n",
            ".env": "DESK_THRESHOLD_MINUTES=4\n",
        }
    )
    text = "rocketbox: {config: {import: shared.yaml}}\ndesk: {threshold-minutes: 1}\n"
    settings = load(text, {"DESK_THRESHOLD_MINUTES": "5"}, profiles=["prod"], env_file=Path(".env"))
    assert explained(settings) == [
        ("5", "environment variable DESK_THRESHOLD_MINUTES"),
        ("4", ".env:1"),
        ("3", "shared.yaml:1:27"),
        ("2", "rocketbox-prod.yaml:1:27"),
        ("1", "rocketbox.yaml:2:27"),
    ]
    assert [path.name for path in settings.files] == ["rocketbox.yaml", "rocketbox-prod.yaml", "shared.yaml"]


def test_later_imports_win_and_an_import_stands_above_the_file_that_imports_it() -> None:
    write(
        {
            "conf/a.yaml": "rocketbox.config.import: inner.yaml\ndesk: {threshold-minutes: 1}\n",
            "conf/inner.yaml": "desk: {threshold-minutes: 2}\n",
            "b.yaml": "desk: {threshold-minutes: 3}\n",
        }
    )
    settings = load("rocketbox.config.import: [conf/a.yaml, b.yaml]\n")
    assert [text for text, _ in explained(settings)] == ["3", "2", "1"]
    assert [text for text, _ in explained(load("rocketbox.config.import: 'b.yaml, conf/a.yaml'\n"))] == ["2", "1", "3"]


def test_imported_files_have_documents_and_files_of_profiles_and_only_active_documents_import() -> None:
    write(
        {
            "shared.yaml": "desk: {threshold-minutes: 1}\n---\nrocketbox.config.activate.on-profile: prod\n"
            "desk: {threshold-minutes: 2}\n",
            "shared-prod.yaml": "desk: {threshold-minutes: 3}\n",
        }
    )
    text = "---\nrocketbox: {config: {activate: {on-profile: prod}, import: shared.yaml}}\n"
    assert [text for text, _ in explained(load(text, profiles=["prod"]))] == ["3", "2", "1"]
    assert explained(load(text)) == []


def test_variables_and_arguments_import_as_well_from_the_working_directory() -> None:
    write({"a.yaml": "desk: {threshold-minutes: 1}\n", "conf/b.yaml": "desk: {threshold-minutes: 2}\n"})
    assert explained(load("", {"ROCKETBOX_CONFIG_IMPORT": "a.yaml,conf/b.yaml"})) == [
        ("2", "conf/b.yaml:1:27"),
        ("1", "a.yaml:1:27"),
    ]
    settings = load_settings(MODELS, environ={}, arguments=["--rocketbox.config.import=a.yaml"])
    assert settings.get("desk").threshold_minutes == 1


def test_placeholders_count_in_locations() -> None:
    write({"conf/a.yaml": "desk: {threshold-minutes: 1}\n"})
    text = "where: conf\nrocketbox.config.import: '${where}/${FILE:a}.yaml'\n"
    assert load(text).get("desk").threshold_minutes == 1
    assert refused("rocketbox:\n  config:\n    import: ${WHERE}/a.yaml\n") == [
        "rocketbox.config.import needs ${WHERE}, and nothing has that name\n"
        "    where: rocketbox.yaml:3:13\n"
        "    fix:   set the environment variable or key WHERE, or write a default: ${WHERE:...}"
    ]


def test_a_missing_file_is_refused_with_its_line_unless_it_is_optional() -> None:
    assert load("rocketbox.config.import: [optional:local.yaml, 'optional:configtree:/of/nobody']\n").files == (
        Path("rocketbox.yaml"),
    )
    assert refused("rocketbox:\n  config:\n    import:\n    - local.yaml\n    - configtree:secrets\n") == [
        "the imported file local.yaml does not exist\n"
        "    where: rocketbox.yaml:4:7\n"
        "    fix:   create it, correct the path, or write optional:local.yaml",
        "the imported directory secrets does not exist\n"
        "    where: rocketbox.yaml:5:7\n"
        "    fix:   create it, correct the path, or write optional:configtree:secrets",
    ]


def test_a_circle_is_refused_with_its_line() -> None:
    write(
        {
            "a.yaml": "desk: {}\nrocketbox.config.import: sub/b.yaml\n",
            "sub/b.yaml": "rocketbox.config.import: ../a.yaml\n",
        }
    )
    assert refused("rocketbox.config.import: a.yaml\n") == [
        "imports go in a circle: a.yaml -> sub/b.yaml -> a.yaml\n"
        "    where: sub/b.yaml:1:26\n"
        "    fix:   take one of these imports out"
    ]


def test_a_file_that_is_imported_twice_without_a_circle_is_read_twice() -> None:
    write(
        {
            "a.yaml": "rocketbox.config.import: shared.yaml\n",
            "b.yaml": "rocketbox.config.import: shared.yaml\ndesk: {threshold-minutes: 2}\n",
            "shared.yaml": "desk: {threshold-minutes: 1}\n",
        }
    )
    assert load("rocketbox.config.import: [a.yaml, b.yaml]\n").get("desk").threshold_minutes == 1


def test_imports_that_multiply_are_stopped() -> None:
    for number in range(10):
        write({f"f{number}.yaml": f"rocketbox.config.import: [f{number + 1}.yaml, f{number + 1}.yaml]\n"})
    write({"f10.yaml": ""})
    (text,) = refused("rocketbox.config.import: f0.yaml\n")
    assert text.startswith("there are more than 100 imports\n    where: f")


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (
            "https://example.org/a.yaml",
            "rocketbox.config.import cannot read https://example.org/a.yaml\n"
            "    where: rocketbox.yaml:1:26\n"
            "    fix:   name a YAML file, or configtree: and a directory of secrets",
        ),
        (
            "folder",
            "folder is imported as a file and is a directory\n"
            "    where: rocketbox.yaml:1:26\n"
            "    fix:   write configtree:folder",
        ),
        (
            "configtree:a.yaml",
            "a.yaml is imported as a directory and is a file\n"
            "    where: rocketbox.yaml:1:26\n"
            "    fix:   leave configtree: out",
        ),
        (
            "{a: b}",
            "rocketbox.config.import takes a list, and keys are written below it\n    where: rocketbox.yaml:1:1\n",
        ),
    ],
)
def test_what_is_no_import_is_refused(written: str, text: str) -> None:
    write({"a.yaml": "", "folder/x": ""})
    assert refused(f"rocketbox.config.import: {written}\n")[0].startswith(text)


@pytest.mark.parametrize("name", ["shared.yaml", "rocketbox-prod.yaml"])
def test_what_comes_too_late_is_refused(name: str) -> None:
    write({"shared.yaml": "", "rocketbox-prod.yaml": ""} | {name: "rocketbox.profiles.active: dev\n"})
    assert refused("rocketbox.config.import: shared.yaml\n", profiles=["prod"]) == [
        "rocketbox.profiles.active has no effect here: profiles and imports are known before this is read\n"
        f"    where: {name}:1:28\n"
        "    fix:   write it in the settings file outside of documents for profiles, or as a variable or argument"
    ]


def test_activation_is_not_for_variables() -> None:
    (text,) = refused("", {"ROCKETBOX_CONFIG_ACTIVATE_ON_PROFILE": "prod"})
    assert "it belongs to a document of a YAML file" in text
    assert "where: environment variable ROCKETBOX_CONFIG_ACTIVATE_ON_PROFILE" in text


def test_a_letter_too_much_is_told() -> None:
    assert refused("rocketbox.config.imports: a.yaml\n") == [
        "unknown key rocketbox.config.imports\n"
        "    where: rocketbox.yaml:1:1\n"
        "    fix:   did you mean rocketbox.config.import?"
    ]


# --- directories of secrets ----------------------------------------------------------------------------------------


class Bank(BaseModel):
    password: str = ""
    account: str = ""
    port: int = 0
    url: str = ""
    pin: SecretStr = SecretStr("")


def load_tree(files: dict[str, str], text: str = "", **options: Any) -> Any:
    write({f"secrets/{name}": content for name, content in files.items()})
    written = f"rocketbox.config.import: 'configtree:secrets/'\n{text}"
    return load(written, models={**MODELS, "bank": Bank}, **options)


def test_a_directory_has_a_file_for_each_key_nested_by_directories_or_dots() -> None:
    settings = load_tree(
        {"bank/password": "a b\n", "bank.account": "x\r\n", "bank/port": "7", "rocketmq.producer/group": "g\n\n"},
        "bank: {account: y}\n",
    )
    assert settings.get("bank") == Bank(password="a b", account="x", port=7)
    assert settings.get("rocketmq").producer.group == "g\n"
    assert str(settings.origin("bank.account")) == "secrets/bank.account"


def test_kubernetes_own_links_do_not_count() -> None:
    write({"secrets/..2026_11/bank.password": "new"})
    Path("secrets/..data").symlink_to("..2026_11")
    Path("secrets/bank.password").symlink_to("..data/bank.password")
    assert load_tree({}).get("bank").password == "new"


def test_a_link_that_leads_back_ends() -> None:
    write({"secrets/bank/password": "new"})
    Path("secrets/bank/back").symlink_to("..")
    assert load_tree({}).get("bank").password == "new"


def test_placeholders_in_secrets_are_plain_text() -> None:
    assert load_tree({"bank.password": "${a}$b"}).get("bank").password == "${a}$b"


def test_values_of_the_directory_are_masked_everywhere() -> None:
    settings = load_tree({"bank.account": "hunter2"}, "bank: {url: 'db://${bank.account}@host'}\n")
    assert settings.get("bank").url == "db://hunter2@host"
    assert explained(settings, "bank.account") == [("******", "secrets/bank.account")]
    assert explained(settings, "bank.url") == [("db://******@host", "rocketbox.yaml:2:13")]
    assert "hunter2" in settings.secrets
    assert "hunter2" not in repr(settings)


def test_what_is_wrong_with_a_secret_is_told_without_it() -> None:
    class Picky(BaseModel):
        port: int = 0
        account: str = ""

        @field_validator("account")
        @classmethod
        def check(cls, value: str) -> str:
            raise ValueError(f"{value} is too short")

    write({"secrets/picky.port": "hunter2", "secrets/picky.account": "hunter3"})
    with pytest.raises(ConfigurationError) as caught:
        load("rocketbox.config.import: configtree:secrets\n", models={"picky": Picky})
    assert [str(finding) for finding in caught.value.findings] == [
        "picky.port is ******, and must be a whole number\n"
        "    where: secrets/picky.port\n"
        "    fix:   write a whole number, such as 3",
        "picky.account is ******, which is not allowed\n    where: secrets/picky.account\n    fix:   write text",
    ]


def test_an_unknown_key_in_the_directory_is_refused_without_its_value() -> None:
    write({"secrets/rocketmq.nam-server": "hunter2"})
    assert refused("rocketbox.config.import: configtree:secrets\n") == [
        "unknown key rocketmq.nam-server\n"
        "    where: secrets/rocketmq.nam-server\n"
        "    fix:   did you mean rocketmq.name-server?"
    ]


def test_files_that_are_no_text_are_told_and_left_out() -> None:
    Path("secrets").mkdir()
    Path("secrets/keys.jks").write_bytes(b"\xfe\xed\xfe\xed")
    with Path("secrets/large").open("wb") as file:
        file.truncate((1 << 20) + 1)
    assert [str(warning) for warning in load_tree({}).warnings] == [
        "secrets/keys.jks is not UTF-8 and is left out\n"
        "    where: secrets/keys.jks\n"
        "    fix:   read it by its path, not as a setting",
        "secrets/large has more than 1 MB and is left out\n"
        "    where: secrets/large\n"
        "    fix:   keep only values in a directory of secrets",
    ]


# --- files that everybody may read ---------------------------------------------------------------------------------


def test_a_file_with_a_secret_that_everybody_may_read_is_told() -> None:
    write({".env": "BANK_PASSWORD=hunter2\n", "secrets/bank.account": "x"})
    text = "rocketbox.config.import: configtree:secrets\nbank:\n  pin: '1234'\n  password: hunter2\n"
    options: dict[str, Any] = {"models": {"bank": Bank}, "env_file": Path(".env")}
    load(text, **options)
    for name in ("rocketbox.yaml", ".env", "secrets/bank.account"):
        Path(name).chmod(0o644)
    assert [str(warning) for warning in load(text, **options).warnings] == [
        "rocketbox.yaml holds a secret (bank.pin, bank.password), and everybody on this machine may read it\n"
        "    where: rocketbox.yaml:3:8\n"
        "    fix:   chmod 600 rocketbox.yaml, or write ${VARIABLE} in place of it, or import a directory of secrets",
        ".env holds a secret (bank.password), and everybody on this machine may read it\n"
        "    where: .env:1\n"
        "    fix:   chmod 600 .env, or write ${VARIABLE} in place of it, or import a directory of secrets",
    ]
    for name in ("rocketbox.yaml", ".env"):
        Path(name).chmod(0o640)
    assert load(text, **options).warnings == ()


@pytest.mark.parametrize(
    ("written", "is_told"), [("${PASSWORD}", False), ("${PASSWORD:}", False), ("''", False), ("${PASSWORD:abc}", True)]
)
def test_a_file_that_only_refers_to_a_secret_may_be_read_by_everybody(written: str, is_told: bool) -> None:
    Path("rocketbox.yaml").touch(0o644)
    Path("rocketbox.yaml").chmod(0o644)
    settings = load(f"bank: {{password: {written!r}}}\n".replace('"', ""), {"PASSWORD": "x"}, models={"bank": Bank})
    assert bool(settings.warnings) is is_told
