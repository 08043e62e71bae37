"""Settings as users write them: names in three spellings, units, and errors that say what to write."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
from annotated_types import Ge, Le

from rocketbox.autoconfigure.loading import settings_models
from rocketbox.autoconfigure.option_models import Properties, with_options
from rocketbox.autoconfigure.properties import EmbeddedProperties
from rocketbox.boot.json_schema import json_schema
from rocketbox.broker.options import BrokerOptions, broker_settings, read_broker_options, setting_names
from rocketbox.broker.store.options import FlushDiskType, StoreOptions
from rocketbox.declarations import MILLISECONDS, Words, options_of
from rocketbox.embedded import EmbeddedOptions
from rocketbox.errors import ConfigurationError
from tests.docs.generated import broker_settings_table

DIRECTORY = Path("store")


def read(**settings: object) -> BrokerOptions:
    return read_broker_options(
        {name.replace("__", "-"): value for name, value in settings.items()}, store_path_root_dir=DIRECTORY
    )


@pytest.mark.parametrize("name", ["flush-disk-type", "flush_disk_type", "flushDiskType"])
def test_a_setting_has_three_spellings(name: str) -> None:
    options = read_broker_options({name: "ASYNC_FLUSH"}, store_path_root_dir=DIRECTORY)
    assert options.store.flush_disk_type is FlushDiskType.ASYNC_FLUSH


def test_defaults_are_apaches() -> None:
    options = read()
    assert options.default_topic_queue_nums == 8
    assert options.store.mapped_file_size_commit_log == 1 << 30
    assert options.flush_consumer_offset_interval == 5000
    assert options.broker_cluster_name == "DefaultCluster"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("mapped-file-size-commit-log", "64MB", 64 << 20),
        ("mapped-file-size-commit-log", "1048576", 1 << 20),
        ("max-message-size", 1000, 1000),
    ],
)
def test_sizes_take_units(name: str, value: object, expected: int) -> None:
    options = read_broker_options({name: value}, store_path_root_dir=DIRECTORY)
    assert getattr(options.store, name.replace("-", "_")) == expected


def test_times_take_units() -> None:
    options = read(register_name_server_period="10s", flush_consumer_offset_interval="500")
    assert options.register_name_server_period == 10_000
    assert options.flush_consumer_offset_interval == 500


def test_yes_and_no_are_true_and_false() -> None:
    assert read(auto_create_topic_enable="false").auto_create_topic_enable is False
    assert read(auto_create_topic_enable=True).auto_create_topic_enable is True


def test_everything_wrong_is_said_together() -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_broker_options(
            {
                "flush-disk-typ": "ASYNC_FLUSH",
                "trace-on": "maybe",
                "default-topic-queue-nums": 0,
                "max-message-size": "4 apples",
                "listen-port": 1,
            },
            prefix="--",
            places={"trace-on": "rocketbox.yaml:3"},
            store_path_root_dir=DIRECTORY,
        )
    text = str(caught.value)
    assert "did you mean --flush-disk-type?" in text
    assert "rocketbox.yaml:3" in text
    assert "--default-topic-queue-nums is 0: less than 1" in text
    assert "'apples' is not a unit" in text
    assert "write --port" in text
    assert len(caught.value.findings) == 5


def test_a_wrong_choice_names_the_choices() -> None:
    with pytest.raises(ConfigurationError, match="none of SYNC_FLUSH, ASYNC_FLUSH"):
        read(flush_disk_type="SOMETIMES")


def test_setting_names_are_kebab_case() -> None:
    assert {"flush-disk-type", "auto-create-topic-enable", "broker-name"} <= set(setting_names())
    assert not {"store", "store-path-root-dir", "listen-port"} & set(setting_names())


@pytest.mark.parametrize(
    ("settings", "hours"),
    [
        ({}, 72),
        ({"file-reserved-time": 48}, 48),
        ({"fileReservedTime": "3d"}, 72),
        ({"retention": "7d"}, 168),
        ({"retention": "300m"}, 5),
    ],
)
def test_how_long_messages_are_kept_is_said_in_hours_or_with_a_unit(settings: dict[str, object], hours: int) -> None:
    assert read_broker_options(settings, store_path_root_dir=DIRECTORY).store.file_reserved_ms == hours * 3_600_000


def test_the_hours_in_which_files_are_removed_may_be_a_number() -> None:
    assert read(delete__when=4).store.delete_hours == {4}
    assert read(delete__when="04;16").store.delete_hours == {4, 16}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"retention": 72}, "retention is 72, which has no unit"),
        ({"retention": "3d", "file-reserved-time": 72}, "say the same"),
        ({"retention": "soon"}, "file-reserved-time is 'soon'"),
    ],
)
def test_what_says_not_how_long_messages_are_kept_is_refused(settings: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_broker_options(settings, store_path_root_dir=DIRECTORY)
    assert says in str(caught.value)


# --- declared once ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class WithLinger(StoreOptions):
    """A store's options with one more."""

    linger: Annotated[int, MILLISECONDS, Ge(10), Le(60_000), Words("pause before a group commit")] = 250


def read_more(value: object) -> BrokerOptions:
    return read_broker_options({"linger": value}, prefix="--", store_path_root_dir=DIRECTORY, store=WithLinger())


def test_an_option_that_is_declared_is_read_checked_and_shown() -> None:
    store = read_more("2s").store
    assert isinstance(store, WithLinger)
    assert store.linger == 2000
    for value, says in (("5", "--linger is '5': less than 10"), ("2m", "--linger is '2m': more than 60000")):
        with pytest.raises(ConfigurationError) as caught:
            read_more(value)
        assert says in str(caught.value)
        assert "write a number from 10ms to 1m, for example 250" in str(caught.value)
    with pytest.raises(ConfigurationError, match=r"WithLinger\.linger is 1"):
        WithLinger(linger=1)
    settings = broker_settings(WithLinger)
    assert "| `linger` | a time, from 10ms to 1m | `250ms` | pause before a group commit |" in broker_settings_table(
        settings
    )
    model = with_options({"linger": settings["linger"]})(Properties)
    node = json_schema({"desk": model})["properties"]["desk"]["properties"]["linger"]
    assert (node["description"].partition(";")[0], node["default"]) == ("pause before a group commit", "250ms")


def test_every_setting_is_in_the_schema_with_its_words_and_bounds() -> None:
    node = json_schema(settings_models([]))["properties"]["rocketbox"]["properties"]["embedded"]["properties"]
    for name, option in broker_settings().items():
        assert name == "flush-disk-type" or node[name]["description"].startswith(option.words)
    assert {"type": "integer", "minimum": 1} in node["max-topics"]["anyOf"]


def test_options_that_are_made_in_code_are_checked_as_well() -> None:
    with pytest.raises(ConfigurationError, match=r"BrokerOptions\.max_topics is 0"):
        BrokerOptions(store_path_root_dir=DIRECTORY, max_topics=0)


def test_a_number_of_things_has_no_unit() -> None:
    with pytest.raises(ConfigurationError, match="max-topics is '8KB': not a plain number"):
        read(max__topics="8KB")


def test_where_the_servers_listen_is_the_same_in_settings_and_in_code() -> None:
    options, of_broker = EmbeddedOptions(data_dir=DIRECTORY), options_of(BrokerOptions)
    fields = EmbeddedProperties.model_fields
    for name in ("host", "port", "name_server_port", "insecure", "flush_disk_type"):
        assert fields[name].default == getattr(options, name)
    bounds = of_broker["listen_port"].bounds
    assert bounds is not None
    for name in ("port", "name_server_port"):
        limits = {type(each): each for each in fields[name].metadata}
        assert (limits[Ge].ge, limits[Le].le) == (bounds.least, bounds.most)
