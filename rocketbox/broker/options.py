"""The broker's settings: Apache's names in snake_case, with Apache's defaults where nothing else is said.

Holds the dataclass and the reading of settings as users write them (``--flush-disk-type=ASYNC_FLUSH``,
``rocketbox.embedded.message-delay-level``); settings of the store are its own (``StoreOptions``) and are read here too,
because Apache has one namespace for both.

Source: Apache RocketMQ 5.x ``BrokerConfig``, ``NettyServerConfig``, ``MessageStoreConfig``.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rocketbox.broker.store.options import StoreOptions
from rocketbox.errors import ConfigurationError, Finding
from rocketbox.protocol.codes import DEFAULT_CLUSTER

__all__ = [
    "MAX_GROUPS",
    "MAX_GROUPS_PER_CONNECTION",
    "MAX_LOCKED_QUEUES",
    "MAX_OFFSETS",
    "MAX_SUBSCRIPTIONS_PER_GROUP",
    "BrokerOptions",
    "read_broker_options",
    "setting_names",
]


MAX_GROUPS = 100_000
MAX_GROUPS_PER_CONNECTION = 1000
MAX_SUBSCRIPTIONS_PER_GROUP = 1000
MAX_SUBSCRIPTION_BYTES = 256 << 20
MAX_OFFSETS = 500_000
MAX_LOCKED_QUEUES = 100_000


@dataclass(frozen=True, kw_only=True)
class BrokerOptions:
    """Settings of one broker. Intervals and times are milliseconds, sizes bytes, as in Apache's broker.conf.

    Other than Apache's: ``broker_name`` (Apache: the host's name), ``bind_address`` (Apache: all addresses), and what
    ``store`` says of itself.
    """

    store_path_root_dir: Path
    """The directory that holds commitlog, consumequeue, index and config."""

    broker_name: str = "broker-a"
    broker_cluster_name: str = DEFAULT_CLUSTER
    broker_ip1: str | None = None
    """The address told to clients; None: ``bind_address``."""
    bind_address: str = "127.0.0.1"
    listen_port: int = 10911
    """0 takes a free port."""
    broker_permission: int = 6
    region_id: str = "DefaultRegion"
    trace_on: bool = True
    trace_topic_enable: bool = False
    cluster_topic_enable: bool = True
    broker_topic_enable: bool = True
    auto_create_topic_enable: bool = True
    auto_create_subscription_group: bool = True
    default_topic_queue_nums: int = 8
    long_polling_enable: bool = True
    short_polling_time_mills: int = 1000
    send_thread_pool_queue_capacity: int = 10_000
    """The most sends that wait for their flush; more are answered 2 (SYSTEM_BUSY)."""
    max_held_pulls: int = 100_000
    """The most pulls that wait for a message, each about 1 KiB; more are answered 2 (SYSTEM_BUSY). Not Apache's."""
    max_held_pulls_per_connection: int = 10_000
    """The most of one connection: a client has one for each of its queues. Not Apache's."""
    max_held_pull_bytes: int = 256 << 20
    """The most bytes of all of them, each about 1 KiB and 140 bytes for a tag that it selects (a subscription may have
    20,000); one connection has a sixteenth of it. Not Apache's."""
    max_connections: int = 10_000
    """Of broker and name server each; never more than half of the descriptors the process may have, less some for
    files. Further ones are closed at once. Not Apache's, as the eleven that follow."""
    header_timeout: int = 10_000
    """A connection whose next header takes longer to come is closed."""
    frame_timeout: int = 60_000
    """The same for a whole frame."""
    max_half_frame_bytes: int = 64 << 20
    """Of all connections: what has come of frames that are not complete; above it the oldest is given up."""
    max_unread_bytes: int = 32 << 20
    """Of all connections: answers that clients do not read; above it the one that waits longest is given up."""
    server_socket_snd_buf_size: int = 128 << 10
    """Of each connection: what the system keeps of answers that a client has not taken; 0 leaves it to the system
    (Apache's default). A client far away may need more: about twice what it takes in one round trip."""
    max_heartbeat_bytes: int = 1 << 20
    """The most bytes of a heartbeat, or of queues to lock."""
    max_request_bytes: int = 128 << 10
    """The most bytes in the body of any other request than sends."""
    max_registration_bytes: int = 4 << 20
    """Of the name server: the most bytes of a broker's registration, about 20,000 topics (this broker sends 200 at a
    time)."""
    max_registered_brokers: int = 1_000
    """Of the name server: addresses of brokers, slaves included."""
    max_registered_topics: int = 100_000
    """Of the name server: names of topics, of all brokers together."""
    max_registered_entries: int = 1_000_000
    """Of the name server: topics at brokers, so that one which ten brokers have is ten."""
    max_registered_entries_per_connection: int = 100_000
    """The most of them that brokers register over one connection, as a broker does with all of its topics."""
    register_name_server_period: int = 30_000
    flush_consumer_offset_interval: int = 5_000
    flush_delay_offset_interval: int = 10_000
    channel_expired_timeout: int = 120_000
    max_topics: int = 100_000
    """The most topics, retry and dead-letter topics among them; no further one is made (Apache: no limit)."""
    max_queues_per_topic: int = 1024
    max_queues: int = 200_000
    """The most queues of all topics together."""
    max_groups: int = MAX_GROUPS
    """The most consumer groups, and the most producer groups; no further one is made."""
    max_groups_per_connection: int = MAX_GROUPS_PER_CONNECTION
    """The most consumer groups, and the most producer groups, of the client at one connection."""
    max_subscriptions_per_group: int = MAX_SUBSCRIPTIONS_PER_GROUP
    max_subscription_bytes: int = MAX_SUBSCRIPTION_BYTES
    """The most bytes of what all groups are subscribed to, each subscription about 300 and 100 for a tag; one group has
    a 64th of it."""
    max_locked_queues: int = MAX_LOCKED_QUEUES
    """The most queues that orderly consumers hold the locks of."""
    max_locked_queues_per_address: int = MAX_LOCKED_QUEUES // 2
    """The most of them that clients at one address hold, so that others find room; one connection gets half of what
    the others of its address leave."""
    max_offsets: int = MAX_OFFSETS
    """The most committed offsets, one for each queue of a topic that a group consumes; no further one is kept."""
    max_offsets_per_address: int = MAX_OFFSETS // 2
    """The most of them that clients at one address have made since the start, so that others find room; one connection
    makes half of what the others of its address leave."""
    max_large_requests: int = 64
    """The most heartbeats and lock requests that wait for their turn because they are large (megabytes each);
    of one connection an eighth of them."""
    auto_create_names_per_minute: int = 1000
    """The most topics and groups that are made in a minute because one address names them ..."""
    auto_create_names_burst: int = 5000
    """... beyond so many at once; one connection has half of both."""
    store: StoreOptions = field(default_factory=StoreOptions)


_OF_THE_SERVERS = ("name-server-port", "insecure")  # read before the broker's options are
_OWN_NAMES = {  # Apache's settings that go by another name here, because all of rocketbox has it
    "store_path_root_dir": "data-dir",
    "bind_address": "host",
    "listen_port": "port",
}
_LEAST = {
    "default_topic_queue_nums": 1,
    "max_topics": 1,
    "max_queues_per_topic": 1,
    "max_queues": 1,
    "max_groups": 1,
    "max_offsets": 1,
    "max_offsets_per_address": 1,
    "max_groups_per_connection": 1,
    "max_subscriptions_per_group": 1,
    "max_subscription_bytes": 1 << 20,
    "max_locked_queues": 1,
    "max_locked_queues_per_address": 1,
    "auto_create_names_per_minute": 1,
    "max_large_requests": 1,
    "auto_create_names_burst": 1,
    "send_thread_pool_queue_capacity": 1,
    "max_held_pulls": 1,
    "max_held_pulls_per_connection": 1,
    "max_held_pull_bytes": 1 << 20,
    "short_polling_time_mills": 1,
    "max_connections": 1,
    "header_timeout": 100,
    "frame_timeout": 100,
    "max_half_frame_bytes": 1 << 20,
    "max_unread_bytes": 1 << 20,
    "max_heartbeat_bytes": 1 << 10,
    "max_request_bytes": 1 << 10,
    "max_registration_bytes": 1 << 10,
    "max_registered_brokers": 1,
    "max_registered_topics": 1,
    "max_registered_entries": 1,
    "max_registered_entries_per_connection": 1,
    "register_name_server_period": 1000,
    "flush_consumer_offset_interval": 1,
    "flush_delay_offset_interval": 1,
    "channel_expired_timeout": 1000,
}
RETENTION = "retention"  # ours for file-reserved-time, always with a unit
_NUMBERS_AS_TEXT = {"file_reserved_time", "delete_when"}
_TIME_WORDS = ("interval", "period", "timeout", "mills", "time")
_TIME_UNITS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE_UNITS = {"": 1, "B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}


def setting_names() -> list[str]:
    """The settings a user may write, in kebab case."""
    return sorted([RETENTION, *(name.replace("_", "-") for name in _settings())])


def read_broker_options(
    settings: Mapping[str, object],
    *,
    prefix: str = "rocketbox.embedded.",
    places: Mapping[str, str] | None = None,
    **given: Any,
) -> BrokerOptions:
    """Broker options from settings as users write them; ``given`` are options that are set already.

    Names may be written as ``flush-disk-type``, ``flush_disk_type`` or Apache's ``flushDiskType``, values as text or as
    what they are; times take ``3000`` (ms) or ``3s``, sizes ``1048576`` or ``1MB`` (1024-based). Raises
    ConfigurationError with all that is wrong; ``places`` says where (file:line) a setting was written.
    """
    known = _settings()
    findings: list[Finding] = []
    values: dict[str, Any] = {}
    store_values: dict[str, Any] = {}
    for written, value in settings.items():
        where = (places or {}).get(written)
        name = next((name for name in known if _plain(name) == _plain(written)), None)
        if _plain(written) == RETENTION:
            name = "file_reserved_time"
            if name in store_values or any(_plain(other) == _plain(name) for other in settings):
                what = f"{prefix}{written} and {prefix}file-reserved-time say the same"
                findings.append(Finding(what, where, "leave one of them out"))
                continue
            if str(value).strip().isdigit():
                what = f"{prefix}{written} is {value!r}, which has no unit"
                findings.append(Finding(what, where, "write 72h or 3d"))
                continue
        if name is None:
            findings.append(Finding(f"there is no setting {prefix}{written}", where, _suggest(written, prefix)))
            continue
        in_store, default = known[name]
        try:
            read = _read_value(name, default, value)
        except ValueError as error:
            findings.append(
                Finding(f"{prefix}{written} is {value!r}: {error}", where, f"write {_example(name, default)}")
            )
            continue
        (store_values if in_store else values)[name] = read
    if findings:
        raise ConfigurationError(findings)
    store = dataclasses.replace(given.pop("store", StoreOptions()), **store_values)
    return BrokerOptions(**{**given, **values, "store": store})


def _settings() -> dict[str, tuple[bool, Any]]:
    """Name -> (belongs to the store, default)."""
    found: dict[str, tuple[bool, Any]] = {}
    for in_store, options in ((True, StoreOptions), (False, BrokerOptions)):
        for option in dataclasses.fields(options):
            if option.name not in _OWN_NAMES and option.name != "store":
                found[option.name] = (in_store, option.default)
    return found


def _plain(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()


def _suggest(written: str, prefix: str) -> str:
    for name, own in _OWN_NAMES.items():
        if _plain(name) == _plain(written):
            return f"write {prefix}{own}"
    known = [*setting_names(), *_OWN_NAMES.values(), *_OF_THE_SERVERS]
    near = difflib.get_close_matches(written.replace("_", "-").lower(), known, n=1, cutoff=0.6)
    return f"did you mean {prefix}{near[0]}?" if near else "see the names of Apache's broker settings, in kebab case"


def _example(name: str, default: Any) -> str:
    if isinstance(default, bool):
        return "true or false"
    if isinstance(default, int):
        return f"a number of at least {_LEAST.get(name, 0)}, for example {default}"
    return f"for example {getattr(default, 'value', default)!r}"


def _read_value(name: str, default: Any, value: object) -> Any:
    """Raises ValueError, whose text says what is wrong with the value."""
    if isinstance(default, bool):
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in {"true", "false"}:
            return value.lower() == "true"
        raise ValueError("neither true nor false")
    if isinstance(default, int):
        number = _read_number(name, value)
        if number < _LEAST.get(name, 0):
            raise ValueError(f"less than {_LEAST.get(name, 0)}")
        return number
    if isinstance(default, enum.Enum):
        members = {str(member.value).upper(): member for member in type(default)}
        if str(getattr(value, "value", value)).upper() not in members:
            raise ValueError(f"none of {', '.join(members)}")
        return members[str(getattr(value, "value", value)).upper()]
    if name in _NUMBERS_AS_TEXT and isinstance(value, int) and not isinstance(value, bool):
        return str(value)  # YAML reads 72 and 04 as numbers
    if not isinstance(value, str) or not value.strip():
        raise ValueError("not a text")
    return value.strip()


def _read_number(name: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = re.fullmatch(r"(\d+)\s*([A-Za-z]*)", str(value).strip().replace("_", ""))
    units = _TIME_UNITS if any(word in name.split("_") for word in _TIME_WORDS) else _SIZE_UNITS
    if match is None:
        raise ValueError("not a number")
    unit = match[2] if units is _TIME_UNITS else match[2].upper()
    if unit not in units:
        raise ValueError(f"{match[2]!r} is not a unit; {', '.join(filter(None, units))} are")
    return int(match[1]) * units[unit]
