"""Which servers Spark's processes ask, and as whom: options of every read and write, the same for all of them.

Each process has a client of its own for them (``worker_client``); a listener tells its query those of its own client.
Pure: no client, no Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rocketbox.protocol.namespaces import wrong_namespace, wrong_namespace_v2
from rocketbox.spark.option_values import OptionValues, SourceOption

__all__ = ["SERVER_OPTIONS", "Servers", "servers_of"]

SERVER_OPTIONS = (
    SourceOption(
        "nameServer", "`host:port`, several with `;`. Needed.", kafka=("kafka.bootstrap.servers", "bootstrap.servers")
    ),
    SourceOption(
        "namespace",
        "The namespace of topics and groups, which stand here, and in the column `topic`, without it.",
    ),
    SourceOption("namespaceV2", "The namespace that is sent in a header, for servers of vendors that read it."),
)


@dataclass(frozen=True)
class Servers:
    """The servers of one cluster, and the namespace in which they are asked."""

    name_server: str
    namespace: str | None = None
    namespace_v2: str | None = None

    def told(self) -> dict[str, str]:
        """They as options of a read or a write."""
        said = {"nameServer": self.name_server, "namespace": self.namespace, "namespaceV2": self.namespace_v2}
        return {name: value for name, value in said.items() if value is not None}

    @property
    def names_are_of(self) -> str | None:
        """What tells one name from the same one elsewhere; a checkpoint is for one of them."""
        return self.namespace or self.namespace_v2


def servers_of(values: OptionValues) -> Servers:
    """The servers that options name. Raises ValueError naming the option and what would be right."""
    if "namespace" in values and "namespaceV2" in values:
        raise ValueError("options namespace and namespaceV2 are both given; keep one of them")
    return Servers(
        values.name_server(),
        _namespace(values, "namespace", wrong_namespace),
        _namespace(values, "namespaceV2", wrong_namespace_v2),
    )


def _namespace(values: OptionValues, option: str, check: Callable[[str], str | None]) -> str | None:
    name = values.text(option)
    if name is not None and (why := check(name)) is not None:
        raise ValueError(f"option {option} is {name!r}: {why}")
    return name
