"""What a test gives to a harness, when it is made: each option of another kind is refused, with what to write."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rocketbox.testing.errors import HarnessError

__all__ = ["begin_of_time", "launch_options", "name_servers_by_cluster"]

FIRST_TIME = datetime(1970, 1, 1, tzinfo=UTC)  # brokers count milliseconds from here on
BEHIND_LAST_TIME = datetime(9999, 1, 1, tzinfo=UTC)  # so that hours may pass: a datetime ends with that year


def launch_options(
    config: Any, profiles: Any, settings: Any, beans: Any, hooks: Any
) -> tuple[Path | str | None, Sequence[str], dict[str, object], dict[Any, object], bool]:
    """The options of :meth:`RocketBox.started`. Raises HarnessError."""
    if config is not None and not isinstance(config, str | os.PathLike):
        raise _wrong("config", config, 'the path of a settings file, "rocketbox.yaml"')
    names = () if profiles is None else tuple(profiles) if isinstance(profiles, Iterable) else (profiles,)
    if isinstance(profiles, str) or not all(isinstance(name, str) for name in names):
        raise HarnessError(f'profiles={profiles!r}: write profiles=["test"]')
    if not isinstance(hooks, bool):
        raise HarnessError(f"hooks={hooks!r}: write hooks=False to leave out whatever runs by itself")
    said = _mapping("settings", settings, 'settings={"desk.threshold": 30}')
    path = config if config is None or isinstance(config, str) else Path(config)
    return path, names, said, _mapping("beans", beans, "beans={TheType: object}"), hooks


def name_servers_by_cluster(given: Any) -> dict[str, str]:
    """The name server of each cluster, of the main one by the empty name. Raises HarnessError."""
    if isinstance(given, str):
        return {"": given}
    return _mapping("name_server", given, '"host:port", or {"": "host:port", ...} for several clusters')


def begin_of_time(now: Any) -> datetime | None:
    """When virtual time begins. Raises HarnessError for what is no time, and for one that no broker can stand at."""
    if now is None:
        return None
    if not isinstance(now, datetime):
        raise HarnessError(f"now={now!r} is no time of day: write datetime(2026, 1, 2, 8, tzinfo=timezone.utc)")
    if now.tzinfo is None:
        raise HarnessError(f"now={now!r} has no time zone: write datetime(..., tzinfo=timezone.utc)")
    if not FIRST_TIME <= now < BEHIND_LAST_TIME:
        raise HarnessError(
            f"now={now!r} is before 1970 or after 9998, and brokers count milliseconds from 1970 on: what waits for "
            "its time would not wait. Write datetime(2026, 1, 2, 8, tzinfo=timezone.utc)"
        )
    return now


def _mapping(name: str, given: Any, write: str) -> dict[Any, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise _wrong(name, given, write)
    return dict(given or {})


def _wrong(name: str, given: object, write: str) -> HarnessError:
    return HarnessError(f"{name}= is given a {type(given).__qualname__}: write {write}")
