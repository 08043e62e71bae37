"""Models and loading for the tests of settings."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from rocketbox.boot.root_settings import load_settings
from rocketbox.boot.settings import Settings
from rocketbox.boot.units import DataSize, Duration, DurationWithUnit
from rocketbox.errors import ConfigurationError


class Colour(enum.Enum):
    DEEP_RED = 1
    BLUE = 2


class Kebab(BaseModel):
    model_config = ConfigDict(
        alias_generator=lambda name: name.replace("_", "-"), populate_by_name=True, extra="forbid", frozen=True
    )


class Producer(Kebab):
    group: str | None = None
    send_message_timeout: Duration = timedelta(seconds=3)
    retry_times: int = Field(default=2, ge=0)
    max_message_size: DataSize = 4 << 20
    retry_next_server: bool = False
    secret_key: SecretStr | None = None


class Listener(Kebab):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, bool] = {}

    concurrency: int = 20
    pull_batch_size: int = 32
    consume_timeout: DurationWithUnit | None = None


class Consumer(Kebab):
    listeners: dict[str, Listener] = {}


class RocketMQ(Kebab):
    name_server: str | None = None
    enabled: bool = True
    producer: Producer = Producer()
    consumer: Consumer = Consumer()


class Desk(BaseModel):
    """As a user writes one: no aliases, nothing forbidden."""

    threshold_minutes: int = 60
    colour: Colour = Colour.BLUE
    mode: Literal["fast-lane", "slow"] = "slow"
    carriers: list[str] = []
    levels: dict[str, str] = {}
    pause: timedelta = timedelta(0)
    ratio: float = 1.0
    maybe: int | None = 7
    anything: Any = None
    path: Path = Path("here")


LISTENERS = "rocketmq.consumer.listeners"
MODELS: dict[str, type[BaseModel]] = {"rocketmq": RocketMQ, "desk": Desk}


def load(text: str = "", environ: Mapping[str, str] | None = None, **options: Any) -> Settings:
    """The settings of a rocketbox.yaml with this text in the working directory, and of no environment but this."""
    file = Path("rocketbox.yaml")
    file.write_text(text)
    return load_settings(options.pop("models", MODELS), file=file, environ=environ or {}, **options)


def refused(text: str = "", environ: Mapping[str, str] | None = None, **options: Any) -> list[str]:
    """The findings that loading ends with."""
    with pytest.raises(ConfigurationError) as caught:
        load(text, environ, **options)
    return [str(finding) for finding in caught.value.findings]
