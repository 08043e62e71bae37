"""Settings as users write them: names in three spellings, units, and errors that say what to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketbox.broker.options import BrokerOptions, read_broker_options, setting_names
from rocketbox.broker.store.options import FlushDiskType
from rocketbox.errors import ConfigurationError

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
