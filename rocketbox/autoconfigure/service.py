"""What auto-configurations know of the application that they are built for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from rocketbox.boot.marks import Qualifier
from rocketbox.client import Producer
from rocketbox.client.cached_bytes import CachedBytes
from rocketbox.clock import Clock

__all__ = ["ProducerLookup", "Service", "of_cluster"]


@dataclass(frozen=True)
class Service:
    """The application's name and clock, and what its clients may hold together.

    ``where(key)`` says where a setting was written (None: it is a default).
    """

    name: str
    clock: Clock
    where: Callable[[str], str | None]
    cached_bytes: CachedBytes

    @property
    def folder(self) -> Path:
        """Where the service keeps what it keeps, below the current folder."""
        return Path(".rocketbox") / self.name


@dataclass(frozen=True)
class ProducerLookup:
    """``of(cluster)`` is the producer of a further cluster; ConfigurationError, with what would mend it, for none."""

    of: Callable[[str], Producer]


def of_cluster(type_: Any, cluster: str | None) -> Any:
    """The hint by which a bean of a cluster is asked for; None, and the empty name, are the main one."""
    return Annotated[type_, Qualifier(cluster)] if cluster else type_
