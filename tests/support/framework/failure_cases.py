"""Services that cannot start: what is wrong with each, as a user would write it. What they say is in data/failures."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["CASES", "EMBEDDED", "HEAD", "LISTENER", "Case"]

HEAD = """
from pydantic import BaseModel
from rocketbox import RocketBox, RocketMQTemplate, bean, configuration_properties, rocketmq_listener, send_to

app = RocketBox("flight-desk", scan=[__name__])

class Departure(BaseModel):
    flight: str
"""

LISTENER = """
@rocketmq_listener(topic="departures", consumer_group="desk")
async def on_departure(departure: Departure) -> None: ...
"""

EMBEDDED = "rocketmq: {name-server: embedded, producer: {group: desk}}"


@dataclass(frozen=True)
class Case:
    """A module (behind ``HEAD``), ``rocketbox.yaml``, what else lies in the folder, and how the service is run."""

    source: str = LISTENER
    settings: str | bytes | None = EMBEDDED
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    profiles: tuple[str, ...] = ()
    config: str | None = None
    prepare: Callable[[Path], object] | None = None


UNKNOWN_KEYS = {
    "unknown_key": Case(
        settings="""
        rocketmq:
          name-server: embedded
          producer: {group: desk, send-message-timeot: 5s}
        """
    ),
    "unknown_keys_of_rocketmq": Case(
        settings="""
        rocketmq:
          nameserver-address: embedded
          prodcer: {group: desk}
          consumer:
            gruop: desk
          pull-consumer: {topics: departures}
        """
    ),
    "unknown_keys_of_rocketbox": Case(
        settings="""
        rocketmq: {name-server: embedded}
        rocketbox:
          embeded: {port: 0}
          logging: {levels: {root: debug}}
          shutdown.timout: 5s
          profile: {active: prod}
          spark: {checkpoints: lake}
        """
    ),
    "unknown_keys_of_a_cluster": Case(
        settings="""
        rocketmq:
          name-server: embedded
          clusters:
            audit:
              name-sever: audit-ns:9876
              producer: {groups: desk}
              clusters: {inner: {name-server: other-ns:9876}}
        """
    ),
    "unknown_option_of_a_listener": Case(
        settings="""
        rocketmq:
          name-server: embedded
          consumer:
            listeners:
              desk:
                concurency: 64
        """
    ),
    "options_of_a_listener_by_the_names_of_spring": Case(
        settings="""
        rocketmq:
          name-server: embedded
          consumer:
            listeners:
              desk: {consumeThreadNumber: 64, name-server: "other-ns:9876", awaitTerminationMillisWhenShutdown: 5s}
        """
    ),
    "unknown_topic_in_a_switch": Case(
        settings="""
        rocketmq:
          name-server: embedded
          consumer: {listeners: {desk: {departurs: false}}}
        """
    ),
    "unknown_setting_of_the_embedded_servers": Case(
        settings="""
        rocketmq: {name-server: embedded}
        rocketbox:
          embedded:
            data-dir: store
            flush-disk-typ: ASYNC_FLUSH
        """
    ),
    "unknown_keys_of_own_properties": Case(
        LISTENER
        + """
@configuration_properties("desk")
class DeskProperties(BaseModel, extra="forbid"):
    threshold_minutes: int = 60
""",
        """
        rocketmq: {name-server: embedded}
        desk:
          treshold-minutes: 45
          colour: red
        """,
    ),
    "unknown_arguments": Case(
        LISTENER
        + """
@configuration_properties("desk")
class DeskProperties(BaseModel):
    threshold_minutes: int = 60
""",
        arguments=(
            "--rocketmq.producer.gruop=desk",
            "--desk.treshold-minutes=45",
            "--rocketmg.enabled=true",
            "--rocketmq.producer.group",
            "desk",
            "departures",
        ),
    ),
}

WRONG_VALUES = {
    "wrong_types": Case(
        LISTENER
        + """
@configuration_properties("desk")
class DeskProperties(BaseModel):
    threshold_minutes: int = 60
""",
        """
        rocketmq:
          name-server: embedded
          producer: {group: desk, send-message-timeout: soon, retry-times-when-send-failed: -1}
          consumer: {listeners: {desk: {concurrency: many, consume-timeout: 15, consume-mode: sorted}}}
        desk:
          threshold-minutes: late
        """,
    ),
    "wrong_values_of_every_type": Case(
        LISTENER
        + """
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Literal
from pydantic import Field

class Colour(Enum):
    DEEP_RED = 1
    BLUE = 2

class Gate(BaseModel):
    name: str
    seats: int = Field(default=100, le=500)

@configuration_properties("desk")
class DeskProperties(BaseModel):
    number: int = Field(default=1, ge=0)
    ratio: float = Field(default=0.5, lt=1)
    open: bool = True
    pause: timedelta = timedelta(0)
    colour: Colour = Colour.BLUE
    mode: Literal["fast-lane", "slow"] = "slow"
    folder: Path = Path("desk")
    floors: list[int] = []
    gates: list[Gate] = []
    code: str = Field(default="AB", min_length=2, max_length=3, pattern="[A-Z]+")
""",
        """
        rocketmq: {name-server: embedded}
        desk:
          number: 3.5
          ratio: 1.5
          open: yes
          pause: 5 apples
          colour: green
          mode: fast
          folder: {name: desk}
          floors: [1, two, 3]
          gates:
            - {name: A1, seats: 600}
            - {seats: 50}
          code: ab
        """,
    ),
    "wrong_values_of_rocketbox": Case(
        settings="""
        rocketmq: {name-server: embedded, startup: later, enabled: perhaps}
        rocketbox:
          embedded: {port: 70000, flush-disk-type: FAST, insecure: 2, name-server-port: -1}
          logging: {format: xml, level: {root: loud}}
          shutdown: {timeout: 20 apples}
        """
    ),
    "value_out_of_range": Case(
        settings="""
        rocketmq:
          name-server: embedded
          consumer:
            listeners:
              desk: {concurrency: 0}
        """
    ),
    "values_that_make_no_sense": Case(
        settings="""
        rocketmq:
          name-server: embedded
          producer:
            group: desk
            max-message-size: 0
            send-message-timeout: 0
            compress-message-body-threshold: -1KB
          consumer:
            listeners:
              desk:
                pull-batch-size: 2000
                max-reconsume-times: -2
                delay-level-when-next-consume: 19
                invalid-limit: 0
                consume-timeout: 0s
                suspend-current-queue-time: -1s
        """
    ),
    "groups_and_single_values": Case(
        LISTENER
        + """
@configuration_properties("desk")
class DeskProperties(BaseModel):
    carriers: list[str] = []
""",
        """
        rocketmq:
          name-server: {host: ns, port: 9876}
          producer: desk
          consumer: {listeners: [desk], group: [desk, audit]}
        desk: {carriers: {first: LH}}
        """,
    ),
    "wrong_values_of_variables_and_arguments": Case(
        files={".env": "# of the desk\nROCKETMQ_PRODUCER_RETRY_NEXT_SERVER=perhaps\n"},
        environ={
            "ROCKETMQ_PRODUCER_SEND_MESSAGE_TIMEOUT": "soon",
            "ROCKETMQ_CONSUMER_LISTENERS_DESK_CONCURRENCY": "many",
            "ROCKETMQ_NAME_SERVER": "embedded",
            "ROCKETMQ_NAMESERVER": "ns:9876",
        },
        arguments=("--rocketmq.producer.retry-times-when-send-failed=-1",),
    ),
    "blank_values": Case(
        settings="""
        rocketmq:
          name-server: '${NAMESRV:}'
          producer: {group: ""}
          consumer: {group: " ", topic: ''}
        """
    ),
    "blank_name_server": Case(settings="rocketmq: {name-server: '${NAMESRV:}'}"),
    "own_properties_that_refuse": Case(
        LISTENER
        + """
from pydantic import field_validator, model_validator

@configuration_properties("desk")
class DeskProperties(BaseModel):
    host: str
    low: int = 1
    high: int = 2
    carrier: str = "LH"

    @field_validator("carrier")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in ("LH", "UA"):
            raise ValueError(f"{value} does not fly here; LH and UA do")
        return value

@configuration_properties("lake")
class LakeProperties(BaseModel):
    low: int = 1
    high: int = 2

    @model_validator(mode="after")
    def _in_order(self) -> "LakeProperties":
        if self.low > self.high:
            raise ValueError(f"low is {self.low} and high is {self.high}: low must not be above high")
        return self
""",
        """
        rocketmq: {name-server: embedded}
        desk:
          carrier: XX
        lake: {low: 3}
        """,
    ),
    "other_address_without_insecure": Case(
        settings="""
        rocketmq: {name-server: embedded}
        rocketbox:
          embedded: {host: 0.0.0.0, data-dir: store}
        """
    ),
    "name_servers_that_are_no_addresses": Case(
        settings="""
        rocketmq:
          name-server: localhost
          clusters:
            audit: {name-server: "ns-1:9876;ns-2"}
            lake: {name-server: "http://ns:9876"}
            night: {name-server: "ns:99999"}
        """
    ),
}

NEEDS = {
    "missing_name_server_with_a_listener": Case(settings=None),
    "missing_name_server_with_a_send_to": Case(
        """
@rocketmq_listener(topic="departures", consumer_group="desk")
@send_to("alerts")
async def on_departure(departure: Departure) -> Departure: ...
""",
        "rocketmq: {producer: {group: desk}}",
    ),
    "missing_name_server_with_a_template_in_a_bean_and_a_hook": Case(
        """
class Desk: ...

@bean
def desk(template: RocketMQTemplate) -> Desk:
    return Desk()

@app.on_startup
async def greet(template: RocketMQTemplate) -> None: ...
""",
        "rocketmq: {producer: {group: desk}}",
    ),
    "missing_producer_group_with_a_send_to": Case(
        """
@rocketmq_listener(topic="departures", consumer_group="desk")
@send_to("alerts")
async def on_departure(departure: Departure) -> dict[str, str] | None:
    return None
""",
        "rocketmq: {name-server: embedded}",
    ),
    "missing_producer_group_with_a_template_in_a_handler_and_a_bean": Case(
        """
class Desk: ...

@bean
def desk(template: RocketMQTemplate) -> Desk:
    return Desk()

@rocketmq_listener(topic="departures", consumer_group="desk")
async def on_departure(departure: Departure, template: RocketMQTemplate, desk: Desk) -> None: ...
""",
        "rocketmq: {name-server: embedded}",
    ),
    "nobody_answers": Case(settings="rocketmq: {name-server: '127.0.0.1:1'}"),
    "none_of_several_answers": Case(settings="rocketmq: {name-server: '127.0.0.1:1;127.0.0.1:2'}"),
}

PLACEHOLDERS = {
    "unresolved_placeholder": Case(settings="rocketmq: {name-server: '${NAMESRV_OF_NOBODY}'}"),
    "unresolved_placeholders_through_others": Case(
        settings="""
        rocketmq:
          name-server: ${servers.main}
          producer: {group: "${TEAM:${desk.team}}-desk"}
          consumer: {group: "${${WHICH:TEAM}_OF_NOBODY}"}
        servers: {main: "${servers.host}:9876", host: "${HOST_OF_NOBODY}"}
        """
    ),
    "placeholders_in_a_circle": Case(
        settings="""
        rocketmq: {name-server: "${servers.main}", producer: {group: desk}}
        servers:
          main: ${servers.first}
          first: ${servers.main}
        """
    ),
    "placeholders_in_decorators": Case(
        """
@rocketmq_listener(topic="${desk.topic}", consumer_group="desk", selector_expression="${TAGS:UA || AA")
@send_to("${ALERTS_OF_NOBODY}:late")
async def on_departure(departure: Departure) -> Departure: ...

@rocketmq_listener(topic="departures", consumer_group="lake", consume_timeout="${desk.timeout}")
async def to_lake(departure: Departure) -> None: ...
""",
        EMBEDDED + "\ndesk: {timeout: 15}\n",
    ),
}

FILES = {
    "keys_written_twice": Case(
        settings="""
        rocketmq:
          name-server: embedded
          producer: {group: desk}
          nameServer: ns:9876
          producer: {group: lake}
        """
    ),
    "tab": Case(settings="rocketmq:\n\tname-server: embedded\n"),
    "not_yaml": Case(settings="rocketmq:\n  name-server: embedded\n  producer: {group: desk\nrocketbox: {}\n"),
    "not_a_group_of_keys": Case(settings="- rocketmq\n- rocketbox\n"),
    "alias_bomb": Case(
        settings="a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
        + "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12))
    ),
    "python_object": Case(
        settings="""
        rocketmq:
          name-server: !!python/object/apply:os.system ["rm -rf desk"]
          producer: {group: !desk x}
        """
    ),
    "values_that_readers_of_yaml_disagree_on": Case(
        LISTENER
        + """
from typing import Any

@configuration_properties("desk")
class DeskProperties(BaseModel):
    anything: Any = None
    more: dict[str, Any] = {}
    port: int = 80
""",
        """
        rocketmq: {name-server: embedded}
        rocketbox: {embedded: {port: 010911}}
        desk: {anything: no, more: {from: 0123, until: 12:30}, port: 0755}
        """,
    ),
    "missing_file": Case(config="desk.yaml"),
    "missing_file_of_the_environment": Case(environ={"ROCKETBOX_CONFIG": "config/desk.yaml"}),
    "directory_as_file": Case(config="settings", prepare=lambda folder: (folder / "settings").mkdir()),
    "file_that_cannot_be_read": Case(
        config="desk.yaml",
        prepare=lambda folder: os.mknod(
            folder / "desk.yaml", stat.S_IFSOCK | 0o600
        ),  # nobody can open it, not even root
    ),
    "file_that_is_not_utf_8": Case(settings="rocketmq: {producer: {group: abflüge}}".encode("latin-1")),
    "broken_env_file": Case(files={".env": "ROCKETMQ_ENABLED=true\nthis is no assignment\n"}),
    "imports_that_cannot_be_read": Case(
        settings="""
        rocketmq: {name-server: embedded}
        rocketbox:
          config:
            import:
              - shared.yaml
              - configtree:secrets
              - https://example.org/desk.yaml
              - folder
              - circle.yaml
              - broken.yaml
        """,
        files={
            "folder/x.yaml": "",
            "circle.yaml": "rocketbox.config.import: circle.yaml\n",
            "broken.yaml": "rocketmq:\n  producer: {gruop: desk}\n",
        },
    ),
    "profiles_that_are_wrong": Case(
        settings="""
        rocketmq: {name-server: embedded}
        rocketbox: {profiles: {activ: prod, default: [dev, test]}}
        ---
        rocketbox.config.activate.on-profile: prod
        rocketmq: {producer: {gruop: desk}}
        """,
        files={"rocketbox-prod.yaml": "rocketbox:\n  profiles: {active: test}\nrocketmq: {enabled: maybe}\n"},
        profiles=("prod",),
    ),
    "activation_in_a_variable": Case(environ={"ROCKETBOX_CONFIG_ACTIVATE_ON_PROFILE": "prod"}),
}

LISTENERS = {
    "wrong_signatures": Case(
        """
class Desk: ...

@rocketmq_listener(topic="departures", consumer_group="a")
async def two_payloads(departure: Departure, alert: dict[str, str]) -> None: ...

@rocketmq_listener(topic="departures", consumer_group="b")
def async_template_in_a_thread(departure: Departure, template: RocketMQTemplate) -> None: ...

@rocketmq_listener(topic="departures", consumer_group="c")
async def no_bean(departure: Departure, desk: Desk) -> None: ...

@rocketmq_listener(topic="departures", consumer_group="d")
async def no_hint(departure) -> None: ...

@rocketmq_listener(topic="departures", consumer_group="e", consume_timeout="15")
async def time_without_a_unit(departure: Departure) -> None: ...

@rocketmq_listener(topic="departures", consumer_group="f", concurrency=3)
async def first_of_group(departure: Departure) -> None: ...

@rocketmq_listener(topic="arrivals", consumer_group="f", concurrency=4)
async def second_of_group(arrival: Departure) -> None: ...
"""
    ),
    "more_wrong_signatures": Case(
        """
from typing import TYPE_CHECKING, Annotated
from rocketbox import Header, MessageExt

if TYPE_CHECKING:
    from decimal import Decimal

@rocketmq_listener(topic="departures", consumer_group="a")
async def no_payload(message: MessageExt, airport: Annotated[str, Header("airport")]) -> None: ...

@rocketmq_listener(topic="departures", consumer_group="b")
async def unresolvable(departure: "Departur") -> None: ...

@rocketmq_listener(topic="departures", consumer_group="c")
async def only_for_type_checkers(departure: Departure, price: "Decimal") -> None: ...

@rocketmq_listener(topic="departures", consumer_group="d")
async def any_number(*departures: Departure, **more: str) -> None: ...

@rocketmq_listener(topic="departures", consumer_group="e")
async def nothing() -> None: ...

@rocketmq_listener(topic="departures", consumer_group="f", consume_message_batch_max_size=10)
async def one_of_a_batch(departure: Departure) -> None: ...
"""
    ),
    "names_that_rocketmq_does_not_take": Case(
        """
@rocketmq_listener(topic="depart ures", consumer_group="desk")
async def bad_topic(departure: Departure) -> None: ...

@rocketmq_listener(topic="departures", consumer_group="flight desk!")
async def bad_group(departure: Departure) -> None: ...

@rocketmq_listener(topic="arrivals", consumer_group="lake")
@send_to("late alerts")
@send_to("SCHEDULE_TOPIC_XXXX")
@send_to("")
async def bad_destinations(departure: Departure) -> Departure: ...
""",
        "rocketmq: {name-server: embedded, producer: {group: 'the desk'}}",
    ),
    "listeners_without_group_and_topic": Case(
        """
@rocketmq_listener(topic="departures")
async def without_group(departure: Departure) -> None: ...

@rocketmq_listener(consumer_group="desk")
async def without_topic(departure: Departure) -> None: ...
"""
    ),
    "two_listeners_for_one_topic": Case(
        """
@rocketmq_listener(topic="departures", consumer_group="desk")
async def on_departure(departure: Departure) -> None: ...

@rocketmq_listener(topic="departures", consumer_group="desk", selector_expression="UA")
async def on_departure_of_united(departure: Departure) -> None: ...
"""
    ),
    "functions_of_a_group_that_differ": Case(
        """
from rocketbox import ConsumeMode

@rocketmq_listener(topic="departures", consumer_group="desk", consume_mode=ConsumeMode.ORDERLY, consume_timeout="1m")
async def on_departure(departure: Departure) -> None: ...

@rocketmq_listener(
    topic="arrivals", consumer_group="desk", consume_mode=ConsumeMode.CONCURRENTLY, consume_timeout="2m"
)
async def on_arrival(arrival: Departure) -> None: ...
""",
        """
        rocketmq:
          name-server: embedded
          consumer: {listeners: {desk: {selector-expression: UA}}}
        """,
    ),
    "options_that_do_not_go_together": Case(
        """
from rocketbox import ConsumeMode, MessageModel

@rocketmq_listener(
    topic="departures",
    consumer_group="desk",
    consume_mode=ConsumeMode.ORDERLY,
    message_model=MessageModel.BROADCASTING,
    delay_level_when_next_consume=3,
)
async def on_departure(departure: Departure) -> None: ...

@send_to("alerts")
async def no_listener(departure: Departure) -> Departure: ...
"""
    ),
    "unknown_cluster": Case(
        """
@rocketmq_listener(topic="departures", consumer_group="desk", cluster="audits")
async def on_departure(departure: Departure) -> None: ...

@rocketmq_listener(topic="arrivals", consumer_group="desk")
@send_to("alerts", cluster="night")
async def on_arrival(departure: Departure) -> Departure: ...
""",
        """
        rocketmq:
          name-server: embedded
          producer: {group: desk}
          clusters: {audit: {name-server: "audit-ns:9876"}}
        """,
    ),
    "decorators_with_wrong_values": Case(
        """
from datetime import timedelta

@rocketmq_listener(topic="departures", consumer_group="a", concurrency="many", pull_interval="soon")
async def wrong_types(departure: Departure) -> None: ...

@rocketmq_listener(topic="", consumer_group="b", consume_mode="sorted")
async def wrong_texts(departure: Departure) -> None: ...

@rocketmq_listener(topic="departures", consumer_group="c", concurrency=0, consume_timeout=timedelta(0))
async def out_of_range(departure: Departure) -> None: ...
"""
    ),
}

BEANS = {
    "bean_that_fails": Case(
        """
class Desk: ...

@bean
def desk() -> Desk:
    raise ValueError("no seat is free")
""",
        "rocketmq: {}",
    ),
    "startup_hook_that_fails": Case(
        """
def warm(table):
    return table["rates"]

@app.on_startup
async def begin() -> None:
    warm({})
""",
        "rocketmq: {}",
    ),
    "missing_beans": Case(
        """
from typing import Annotated
from rocketbox import Qualifier

class Seat: ...
class Desk: ...

@bean
def desk(seat: Seat, number: int, other: Annotated[Departure, Qualifier("other")]) -> Desk:
    return Desk()

@bean
def first() -> Departure:
    return Departure(flight="UA1")

@app.on_startup
async def greet(seat: Seat, name: str) -> None: ...
"""
        + LISTENER
    ),
    "ambiguous_beans": Case(
        """
class Desk: ...

@bean
def first() -> Desk:
    return Desk()

@bean
def second() -> Desk:
    return Desk()

@bean
def gate(desk: Desk) -> Departure:
    return Departure(flight="UA1")

@bean(name="first")
def another() -> Departure:
    return Departure(flight="UA2")

@rocketmq_listener(topic="departures", consumer_group="desk")
async def on_departure(departure: Departure, desk: Desk) -> None: ...
"""
    ),
    "circular_beans": Case(
        """
class Desk: ...
class Seat: ...
class Gate: ...

@bean
def desk(seat: Seat) -> Desk: ...

@bean
def seat(gate: Gate) -> Seat: ...

@bean
def gate(desk: Desk) -> Gate: ...
"""
    ),
    "condition_that_failed": Case(
        """
from rocketbox import any_of, on_module, on_profile, on_property

class Desk: ...
class Seat: ...

@bean(on_property("desk.enabled", having="true"))
def desk() -> Desk:
    return Desk()

@bean(any_of(on_profile("prod"), on_module("module_of_nobody")))
def seat() -> Seat:
    return Seat()

@rocketmq_listener(topic="departures", consumer_group="desk")
async def on_departure(departure: Departure, desk: Desk) -> None: ...

@app.on_startup
async def greet(seat: Seat) -> None: ...
""",
        EMBEDDED + "\ndesk: {enabled: false}\n",
    ),
    "beans_without_types": Case(
        """
@bean
def desk():
    return Departure(flight="UA1")

@bean
def gate(seat, row: "Row") -> int:
    return 1
"""
    ),
    "two_properties_of_one_prefix": Case(
        """
@configuration_properties("desk")
class DeskProperties(BaseModel):
    threshold_minutes: int = 60

@configuration_properties("desk")
class MoreDeskProperties(BaseModel):
    colour: str = "red"

@configuration_properties("rocketmq")
class OwnRocketMQ(BaseModel):
    colour: str = "red"
"""
    ),
    "unknown_auto_configuration_to_exclude": Case(
        settings="""
        rocketmq: {name-server: embedded, producer: {group: desk}}
        rocketbox:
          autoconfigure: {exclude: [rocketmq_templat, spark]}
        """
    ),
}

NOT_BUILT = {
    "features_that_come_later": Case(
        """
@rocketmq_listener(topic="departures", consumer_group="desk", access_key="AK", secret_key="SK")
async def on_departure(departure: Departure) -> None: ...
""",
        """
        rocketmq:
          name-server: embedded
          producer: {group: desk}
          pull-consumer: {group: lake, topic: departures}
          clusters: {audit: {name-server: "audit-ns:9876", pull-consumer: {group: audit, topic: departures}}}
        """,
    ),
    "keys_that_do_not_go_together": Case(
        settings="""
        rocketmq:
          name-server: embedded
          producer: {group: desk, access-key: AK, instance-name: one}
          consumer:
            instance-name: two
            listeners: {desk: {namespace: a, namespace-v2: b}}
        """,
    ),
}

SEVERAL = {
    "many_findings_at_once": Case(
        """
class Seat: ...

@configuration_properties("desk")
class DeskProperties(BaseModel):
    threshold_minutes: int = 60

@rocketmq_listener(topic="departures", consumer_group="desk")
def on_departure(departure: Departure, template: RocketMQTemplate) -> None: ...

@rocketmq_listener(topic="arrivals", consumer_group="desk", concurrency=2000)
async def on_arrival(departure: Departure, alert: dict[str, str]) -> None: ...

@rocketmq_listener(topic="boardings", consumer_group="gate", cluster="night")
async def on_boarding(departure: Departure) -> None: ...
""",
        """
        rocketmq:
          name-server: ${NAMESRV_OF_NOBODY}
          producer: {group: desk, send-message-timeout: soon, gruop: lake}
          consumer: {listeners: {desk: {consume-timeout: 15}}}
        rocketbox.embedded.port: 70000
        desk: {threshold-minutes: late}
        """,
        arguments=("--rocketmq.enabld=true",),
    ),
}

CASES: dict[str, Case] = {
    **UNKNOWN_KEYS,
    **WRONG_VALUES,
    **NEEDS,
    **PLACEHOLDERS,
    **FILES,
    **LISTENERS,
    **BEANS,
    **NOT_BUILT,
    **SEVERAL,
    "missing_topic": Case(
        settings="""
        rocketmq:
          name-server: embedded
          consumer: {missing-topic: fail}
        rocketbox:
          embedded: {port: 0, name-server-port: 0, data-dir: store, mapped-file-size-commit-log: 1MB}
        """
    ),
}
