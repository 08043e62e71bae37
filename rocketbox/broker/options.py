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
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Le

from rocketbox.broker.store.options import StoreOptions
from rocketbox.declarations import (
    BYTES,
    IN_CODE,
    MILLISECONDS,
    Key,
    Option,
    Unit,
    Words,
    bounds_in_words,
    check_options,
    options_of,
)
from rocketbox.errors import ConfigurationError, Finding
from rocketbox.protocol.codes import DEFAULT_CLUSTER
from rocketbox.remoting.read_turns import PAUSE
from rocketbox.remoting.tls import ClientAuth, TlsMode
from rocketbox.safe_repr import equal_by_fields

__all__ = [
    "MAX_GROUPS",
    "MAX_GROUPS_PER_CONNECTION",
    "MAX_LOCKED_QUEUES",
    "MAX_OFFSETS",
    "MAX_SUBSCRIPTIONS_PER_GROUP",
    "BrokerOptions",
    "broker_settings",
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
    """Settings of one broker, each declared here and nowhere else; units are those of Apache's broker.conf.

    Other than Apache's: ``broker_name`` (Apache: the host's name), ``bind_address`` (Apache: all addresses), and what
    ``store`` says of itself.
    """

    store_path_root_dir: Annotated[
        Path, Key("data-dir"), Words("the directory that holds commitlog, consumequeue, index and config")
    ]

    broker_name: Annotated[str, Words("the broker's name, under which name servers know its queues")] = "broker-a"
    broker_cluster_name: Annotated[str, Words("the cluster that it says it is of")] = DEFAULT_CLUSTER
    broker_ip1: Annotated[str | None, Words("the address told to clients; when not said that it listens on")] = None
    namesrv_addr: Annotated[
        str | None,
        Words(
            "further name servers that are told of this broker, as well as that beside it: host:port, several with ;, "
            "or the URL of an address server"
        ),
    ] = None
    bind_address: Annotated[str, Key("host"), Words("the address to listen on")] = "127.0.0.1"
    listen_port: Annotated[int, Ge(0), Le(65_535), Key("port"), Words("the port to listen on; 0 takes a free one")] = (
        10911
    )
    broker_permission: Annotated[int, Ge(0), Le(7), Words("what may be done here: 4 read, 2 write, 6 both")] = 6
    region_id: Annotated[str, Words("what the property MSG_REGION of messages says")] = "DefaultRegion"
    trace_on: Annotated[bool, Words("true: messages say that their way may be traced")] = True
    trace_topic_enable: Annotated[bool, Words("true: the topic of message trace is there from the start")] = False
    cluster_topic_enable: Annotated[bool, Words("true: there is a topic of the cluster's name")] = True
    broker_topic_enable: Annotated[bool, Words("true: there is a topic of the broker's name")] = True
    auto_create_topic_enable: Annotated[bool, Words("true: the first send to a topic makes it")] = True
    auto_create_subscription_group: Annotated[bool, Words("true: the first request of a group makes it")] = True
    default_topic_queue_nums: Annotated[int, Ge(1), Words("the most queues of a topic that a send makes")] = 8
    store_reply_message_enable: Annotated[
        bool, Words("true: replies to requests are stored as well, in the topic <cluster>_REPLY_TOPIC")
    ] = True
    max_unanswered_replies: Annotated[
        int,
        Ge(1),
        Words(
            "replies that were handed to one client and that it has not acknowledged; further ones for it are refused; "
            "not Apache's"
        ),
    ] = 512
    max_remembered_requests: Annotated[
        int,
        Ge(1),
        Words(
            "requests of which is known, with access control, which user has sent them, so that nobody else gets their "
            "replies; the oldest are forgotten, and replies to them refused; not Apache's"
        ),
    ] = 20_000
    long_polling_enable: Annotated[
        bool, Words("true: a pull waits for messages as long as it says; false: for short-polling-time-mills")
    ] = True
    short_polling_time_mills: Annotated[
        int, MILLISECONDS, Ge(1), Words("how long a pull waits without long polling")
    ] = 1000
    send_thread_pool_queue_capacity: Annotated[
        int, Ge(1), Words("sends that wait for their flush; more are answered 2 (SYSTEM_BUSY)")
    ] = 10_000
    max_held_pulls: Annotated[
        int,
        Ge(1),
        Words("pulls that wait for a message, each about 1 KiB; more are answered 2 (SYSTEM_BUSY); not Apache's"),
    ] = 100_000
    max_held_pulls_per_connection: Annotated[
        int, Ge(1), Words("of them those of one connection: a client has one for each of its queues; not Apache's")
    ] = 10_000
    max_held_pull_bytes: Annotated[
        int,
        BYTES,
        Ge(1 << 20),
        Words(
            "bytes of all held pulls, each about 1 KiB and 140 bytes for a tag that it selects (a "
            "subscription may have 20,000); one connection has a sixteenth of it; not Apache's"
        ),
    ] = 256 << 20
    max_connections: Annotated[
        int,
        Ge(1),
        Words(
            "of broker and name server each; never more than half of the descriptors the process may "
            "have, less some for files; further ones are closed at once; not Apache's"
        ),
    ] = 10_000
    max_connections_per_address: Annotated[
        int | None,
        Ge(1),
        Words(
            "of them those of one address, behind which may be all clients of a machine or network; "
            "when not said half of what max-connections and the descriptors allow; not Apache's"
        ),
    ] = None
    header_timeout: Annotated[
        int,
        MILLISECONDS,
        Ge(100),
        Words(
            "how long the header of a frame that has begun, or a TLS handshake, may take; then the connection is "
            "closed; not Apache's"
        ),
    ] = 10_000
    frame_timeout: Annotated[
        int,
        MILLISECONDS,
        Ge(100),
        Words("how long a whole frame may take; then the connection is closed; not Apache's"),
    ] = 60_000
    max_half_frame_bytes: Annotated[
        int,
        BYTES,
        Ge(1 << 20),
        Words(
            "of all connections: what has come of frames that are not complete; above it the oldest "
            "is given up; not Apache's"
        ),
    ] = 64 << 20
    max_unread_bytes: Annotated[
        int,
        BYTES,
        Ge(1 << 20),
        Words(
            "of all connections: answers that clients do not read; above it the one that waits "
            "longest is given up; not Apache's"
        ),
    ] = 32 << 20
    server_socket_snd_buf_size: Annotated[
        int,
        BYTES,
        Ge(0),
        Words(
            "of each connection: what the system keeps of answers that a client has not taken; 0 "
            "leaves it to the system, as Apache does; a client far away needs about twice what it "
            "takes in one round trip"
        ),
    ] = 128 << 10
    tls_server_mode: Annotated[
        TlsMode | None,
        Words(
            "of broker and name server: disabled; permissive, with those who begin with TLS; enforcing; when not said "
            "enforcing with a certificate and disabled without (Apache: permissive)"
        ),
    ] = None
    tls_server_cert_path: Annotated[
        str | None, Words("the servers' certificate with its chain (PEM), read again when it changes")
    ] = None
    tls_server_key_path: Annotated[
        str | None,
        Words("the private key of the servers' certificate (PEM, PKCS#8); when not said it stands in its file"),
    ] = None
    tls_server_key_password: Annotated[
        str | None, Words("the password of the key at tls-server-key-path, if it is encrypted")
    ] = field(default=None, repr=False)
    tls_server_trust_cert_path: Annotated[
        str | None, Words("certificates of the CAs whose clients are believed (PEM), for tls-server-need-client-auth")
    ] = None
    tls_server_need_client_auth: Annotated[
        ClientAuth,
        Words("whether clients have to show a certificate: none, optional (if they do, a right one), require"),
    ] = ClientAuth.NONE
    max_handshakes: Annotated[
        int,
        Ge(1),
        Words(
            "of broker and name server each: connections in their TLS handshakes; above it the oldest is given up; "
            "not Apache's"
        ),
    ] = 1_000
    max_heartbeat_bytes: Annotated[
        int, BYTES, Ge(1 << 10), Words("of a heartbeat, or of queues to lock; not Apache's")
    ] = 1 << 20
    max_request_bytes: Annotated[
        int,
        BYTES,
        Ge(1 << 10),
        Words("in the body of any other request than sends, with a group's settings 16 KiB at most; not Apache's"),
    ] = 128 << 10
    max_registration_bytes: Annotated[
        int,
        BYTES,
        Ge(1 << 10),
        Words(
            "of the name server: a broker's registration, about 20,000 topics (this broker sends 200 "
            "at a time); not Apache's"
        ),
    ] = 4 << 20
    max_registered_brokers: Annotated[
        int, Ge(1), Words("of the name server: addresses of brokers, slaves included; not Apache's")
    ] = 1_000
    max_registered_topics: Annotated[
        int, Ge(1), Words("of the name server: names of topics, of all brokers together; not Apache's")
    ] = 100_000
    max_registered_entries: Annotated[
        int,
        Ge(1),
        Words("of the name server: topics at brokers, so that one which ten brokers have is ten; not Apache's"),
    ] = 1_000_000
    max_registered_entries_per_connection: Annotated[
        int,
        Ge(1),
        Words(
            "of them those that brokers register over one connection, as a broker does with all of "
            "its topics; not Apache's"
        ),
    ] = 100_000
    register_name_server_period: Annotated[
        int, MILLISECONDS, Ge(1000), Words("how often the broker registers at its name servers")
    ] = 30_000
    flush_consumer_offset_interval: Annotated[
        int, MILLISECONDS, Ge(1), Words("how often committed offsets are written")
    ] = 5_000
    flush_delay_offset_interval: Annotated[
        int, MILLISECONDS, Ge(1), Words("how often it is written how far delayed messages have been delivered")
    ] = 10_000
    transaction_time_out: Annotated[
        int,
        MILLISECONDS,
        Ge(0),
        Words(
            "how old a half message is when its producers are asked about it for the first time, at the next check; "
            "CHECK_IMMUNITY_TIME_IN_SECONDS of a message goes before it"
        ),
    ] = 6_000
    transaction_check_interval: Annotated[
        int, MILLISECONDS, Ge(100), Words("how often producers are asked about transactions that have not ended")
    ] = 30_000
    transaction_check_max: Annotated[
        int, Ge(1), Words("checks of a transaction; then its message goes to TRANS_CHECK_MAX_TIME_TOPIC")
    ] = 15
    reject_transaction_message: Annotated[bool, Words("true: half messages of transactions are refused")] = False
    max_half_messages: Annotated[
        int,
        Ge(1),
        Words("transactions that are open; further ones are answered 2 (SYSTEM_BUSY); not Apache's"),
    ] = 100_000
    max_half_messages_per_address: Annotated[
        int,
        Ge(1),
        Words(
            "of them those that clients at one address have begun since the start, so that others find room; one "
            "connection gets half of what the others of its address leave; not Apache's"
        ),
    ] = 50_000
    channel_expired_timeout: Annotated[
        int, MILLISECONDS, Ge(1000), Words("a client that is silent for so long is gone")
    ] = 120_000
    enable_mixed_message_type: Annotated[
        bool, Words("true: a topic may have the attribute message.type=MIXED, for messages of all types")
    ] = False
    max_topics: Annotated[
        int, Ge(1), Words("topics, retry and dead-letter topics among them; no further one is made (Apache: no limit)")
    ] = 100_000
    max_queues_per_topic: Annotated[int, Ge(1), Words("queues of one topic")] = 1024
    max_queues: Annotated[int, Ge(1), Words("queues of all topics together")] = 200_000
    max_groups: Annotated[int, Ge(1), Words("consumer groups, and as many producer groups; no further one is made")] = (
        MAX_GROUPS
    )
    max_groups_per_connection: Annotated[
        int, Ge(1), Words("consumer groups, and as many producer groups, of the client at one connection")
    ] = MAX_GROUPS_PER_CONNECTION
    max_subscriptions_per_group: Annotated[int, Ge(1), Words("topics that a group is subscribed to")] = (
        MAX_SUBSCRIPTIONS_PER_GROUP
    )
    max_subscription_bytes: Annotated[
        int,
        BYTES,
        Ge(1 << 20),
        Words(
            "of what all groups are subscribed to, each subscription about 300 and 100 for a tag; "
            "one group has a 64th of it"
        ),
    ] = MAX_SUBSCRIPTION_BYTES
    max_locked_queues: Annotated[int, Ge(1), Words("queues that orderly consumers hold the locks of")] = (
        MAX_LOCKED_QUEUES
    )
    max_locked_queues_per_address: Annotated[
        int,
        Ge(1),
        Words(
            "of them those that clients at one address hold, so that others find room; one "
            "connection gets half of what the others of its address leave"
        ),
    ] = MAX_LOCKED_QUEUES // 2
    max_offsets: Annotated[
        int,
        Ge(1),
        Words("committed offsets, one for each queue of a topic that a group consumes; no further one is kept"),
    ] = MAX_OFFSETS
    max_offsets_per_address: Annotated[
        int,
        Ge(1),
        Words(
            "of them those that clients at one address have made since the start, so that others "
            "find room; one connection makes half of what the others of its address leave"
        ),
    ] = MAX_OFFSETS // 2
    max_large_requests: Annotated[
        int,
        Ge(1),
        Words(
            "heartbeats and lock requests that wait for their turn because they are large (more than "
            "some hundred entries); of one connection an eighth of them"
        ),
    ] = 64
    auto_create_names_per_minute: Annotated[
        int,
        Ge(1),
        Words(
            "topics and groups that are made in a minute because one address names them, beyond "
            "auto-create-names-burst at once"
        ),
    ] = 1000
    auto_create_names_burst: Annotated[
        int,
        Ge(1),
        Words("topics and groups that one address may have made at once by naming them; one connection has half of it"),
    ] = 5000
    recall_message_enable: Annotated[
        bool, Words("true: a message that waits for a time of its own may be recalled (Apache: false)")
    ] = True
    max_timer_messages: Annotated[
        int,
        Ge(1),
        Words(
            "that wait for a time of their own, 16 to 56 bytes of memory each; further ones are refused; not Apache's"
        ),
    ] = 5_000_000
    acl_enable: Annotated[bool, Words("true: ACL 1.0, requests are signed by an account of acl-file")] = False
    acl_file: Annotated[
        str | None,
        Words("of ACL 1.0: the plain_acl.yml with the accounts, read again when it changes; Apache's is in its home"),
    ] = None
    authentication_enabled: Annotated[
        bool, Words("true: ACL 2.0, requests are signed by a user whom the store knows")
    ] = False
    authorization_enabled: Annotated[
        bool,
        Words(
            "true: a user may do what his policies allow; false: what he likes, but for changing users and registering "
            "brokers"
        ),
    ] = False
    init_authentication_user: Annotated[
        str | None,
        Words(
            'of ACL 2.0: {"username":"...","password":"..."} of a super user, who is made at the start unless he is '
            "there"
        ),
    ] = field(default=None, repr=False)
    inner_client_authentication_credentials: Annotated[
        str | None,
        Words(
            '{"accessKey":"...","secretKey":"..."} by which the broker signs what it sends to name servers, and '
            "which may do everything; not needed where both are one process"
        ),
    ] = field(default=None, repr=False)
    registration_addresses: Annotated[
        str | None,
        Words(
            "of the name server: addresses and networks (10.1.0.0/16) of brokers that may register, beside this "
            "machine; when not said none without ACL, and all with it, where brokers sign; not Apache's"
        ),
    ] = None
    store: Annotated[StoreOptions, IN_CODE] = field(default_factory=StoreOptions)
    read_pause: Annotated[float, IN_CODE] = PAUSE
    """Seconds that pulls pause between their turns (``remoting.read_turns``)."""

    def __post_init__(self) -> None:
        check_options(self)

    __eq__ = equal_by_fields


_OF_THE_SERVERS = ("name-server-port", "insecure")  # read before the broker's options are
RETENTION = "retention"  # ours for file-reserved-time, always with a unit
_NUMBERS_AS_TEXT = {"file_reserved_time", "delete_when"}
_TIME_UNITS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE_UNITS = {"": 1, "B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
_UNITS: dict[Unit | None, dict[str, int]] = {MILLISECONDS: _TIME_UNITS, BYTES: _SIZE_UNITS}
_RETENTION = dataclasses.replace(
    options_of(StoreOptions)["file_reserved_time"],
    default=None,
    optional=True,
    words="file-reserved-time, always with a unit: 72h or 3d",
    key=RETENTION,
)


def broker_settings(*classes: type) -> dict[str, Option]:
    """The settings a user may write, by their keys in alphabetical order, as ``classes`` declare them.

    Those of broker and store when none are given. Left out is what goes by another name than Apache's: it is said
    where the servers are.
    """
    found = {RETENTION: _RETENTION}
    for class_ in classes or (BrokerOptions, StoreOptions):
        found |= {each.key: each for each in options_of(class_).values() if each.key == _kebab(each.name)}
    return dict(sorted(found.items()))


def setting_names() -> list[str]:
    """The settings a user may write, in kebab case."""
    return list(broker_settings())


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
    found = _read_all(settings, prefix, places or {}, given)
    if isinstance(found, BrokerOptions):
        return found
    del settings, given  # what shows the variables of a failure shows no password among them
    raise ConfigurationError(found)


def _read_all(
    settings: Mapping[str, object], prefix: str, places: Mapping[str, str], given: Mapping[str, Any]
) -> BrokerOptions | list[Finding]:
    """The options, or all that is wrong. It raises nothing: its variables are secrets."""
    store = given.get("store", StoreOptions())
    kind: type = type(store)
    known = _settings_by_plain_name(kind)
    findings: list[Finding] = []
    values: dict[str, Any] = {}
    store_values: dict[str, Any] = {}
    for written, value in settings.items():
        where = places.get(written)
        option = known.get(_plain(written))
        if option is _RETENTION:
            if any(_plain(other) == _plain(option.name) for other in settings):
                what = f"{prefix}{written} and {prefix}file-reserved-time say the same"
                findings.append(Finding(what, where, "leave one of them out"))
                continue
            if str(value).strip().isdigit():
                what = f"{prefix}{written} is {value!r}, which has no unit"
                findings.append(Finding(what, where, "write 72h or 3d"))
                continue
        if option is None:
            findings.append(Finding(f"there is no setting {prefix}{written}", where, _suggest(written, prefix)))
            continue
        try:
            read = _read_value(option, value)
        except ValueError as error:
            shown = "" if option.secret else f" is {value!r}"
            findings.append(Finding(f"{prefix}{written}{shown}: {error}", where, f"write {_example(option)}"))
            continue
        (store_values if option.name in options_of(type(store)) else values)[option.name] = read
    if findings:
        return findings
    try:
        return BrokerOptions(**{**given, **values, "store": dataclasses.replace(store, **store_values)})
    except ConfigurationError as error:
        return list(error.findings)


@functools.cache
def _settings_by_plain_name(store: type) -> Mapping[str, Option]:
    return {_plain(key): option for key, option in broker_settings(BrokerOptions, store).items()}


def _kebab(name: str) -> str:
    return name.replace("_", "-")


def _plain(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()


def _suggest(written: str, prefix: str) -> str:
    own = {
        each.name: each.key for each in options_of(BrokerOptions).values() if each.key not in (None, _kebab(each.name))
    }
    for name, key in own.items():
        if _plain(name) == _plain(written):
            return f"write {prefix}{key}"
    known = [*setting_names(), *filter(None, own.values()), *_OF_THE_SERVERS]
    near = difflib.get_close_matches(written.replace("_", "-").lower(), known, n=1, cutoff=0.6)
    return f"did you mean {prefix}{near[0]}?" if near else "see the names of Apache's broker settings, in kebab case"


def _example(option: Option) -> str:
    default = option.default
    if option.kind is bool:
        return "true or false"
    if option.kind is int:
        bounds = f" {bounds_in_words(option)}," if option.bounds is not None else ""
        return f"a number{bounds} for example {default}"
    return f"for example {getattr(default, 'value', default)!r}"


def _read_value(option: Option, value: object) -> Any:
    """Raises ValueError, whose text says what is wrong with the value."""
    if option.kind is bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in {"true", "false"}:
            return value.lower() == "true"
        raise ValueError("neither true nor false")
    if option.kind is int:
        number = _read_number(option, value)
        if option.bounds is not None and not option.bounds.holds(number):
            least, most = option.bounds.least, option.bounds.most
            raise ValueError(f"less than {least}" if least is not None and number < least else f"more than {most}")
        return number
    if isinstance(option.kind, type) and issubclass(option.kind, enum.Enum):
        members = {str(member.value).upper(): member for member in option.kind}
        if str(getattr(value, "value", value)).upper() not in members:
            raise ValueError(f"none of {', '.join(members)}")
        return members[str(getattr(value, "value", value)).upper()]
    if option.name in _NUMBERS_AS_TEXT and isinstance(value, int) and not isinstance(value, bool):
        return str(value)  # YAML reads 72 and 04 as numbers
    if not isinstance(value, str) or not value.strip():
        raise ValueError("not a text")
    return value.strip()


def _read_number(option: Option, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = re.fullmatch(r"(\d+)\s*([A-Za-z]*)", str(value).strip().replace("_", ""))
    if match is None:
        raise ValueError("not a number")
    units = _UNITS.get(option.unit, {"": 1})
    unit = match[2].upper() if option.unit is BYTES else match[2]
    if unit not in units:
        others = ", ".join(filter(None, units))
        raise ValueError(f"{match[2]!r} is not a unit; {others} are" if others else "not a plain number")
    return int(match[1]) * units[unit]
