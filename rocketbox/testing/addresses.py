"""Which name servers the settings of a service name, and what becomes of them in a harness.

Those that a service has for its production are replaced. One that a test gives itself would be replaced as well, and
that is refused: a real server is given to the harness, as its ``name_server``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from rocketbox.autoconfigure.assembly import Assembly
from rocketbox.autoconfigure.key_rules import servers_in
from rocketbox.autoconfigure.properties import cluster_prefix
from rocketbox.boot.origins import split_key
from rocketbox.boot.placeholders import PlaceholderError
from rocketbox.boot.settings import Settings
from rocketbox.errors import ConfigurationError
from rocketbox.testing.errors import HarnessError

__all__ = ["MAIN", "given_name_servers", "main_of_the_service", "same_clusters"]

MAIN = "rocketmq.name-server"


def given_name_servers(settings: Mapping[str, object]) -> frozenset[str]:
    """The clusters (the empty name: the main one) whose name server the settings of a test say, as ``embedded``.

    Raises HarnessError for any other.
    """
    given = set()
    for parts, value in _leaves(settings, ()):
        cluster = _cluster_of(parts)
        if cluster is None:
            continue
        if not isinstance(value, str) or value.strip().lower() != "embedded":
            key = f"{cluster_prefix(cluster)}.name-server"
            raise HarnessError(
                f"settings= says {key}: {value}, and a harness has servers of its own, in memory: no real address is "
                "reached from it. Leave it out; for a test on a real broker start pytest with "
                "--rocketbox-name-server=host:port, or write Harness(name_server=...)"
            )
        given.add(cluster)
    return frozenset(given)


def _leaves(group: Mapping[str, object], above: Sequence[str]) -> Iterator[tuple[list[str], object]]:
    for key, value in group.items():
        parts = [*above, *split_key(str(key))]
        if isinstance(value, Mapping):
            yield from _leaves(value, parts)
        else:
            yield parts, value


def _cluster_of(parts: Sequence[str]) -> str | None:
    """The cluster whose name server a key is; None for any other key. Keys may be written in any case."""
    plain = [re.sub("[-_]", "", part).lower() for part in parts]
    if plain == ["rocketmq", "nameserver"]:
        return ""
    if len(plain) == 4 and plain[:2] == ["rocketmq", "clusters"] and plain[3] == "nameserver":
        return parts[2]
    return None


def same_clusters(assembly: Assembly, given: frozenset[str]) -> dict[str, str | None]:
    """The further clusters that have a name server, each with the one that is the same as it in production.

    That is the main one (None), another one that was named before, or itself. Two are the same when their settings name
    the same servers: a service may have two clients of one cluster. ``given`` is what the settings of the test say
    (:func:`given_name_servers`).
    """
    found: dict[frozenset[str], str | None] = {}
    main = main_of_the_service(assembly.settings, given)
    if main is not None:
        found[servers_in(main)] = None
    same: dict[str, str | None] = {}
    for name, own in assembly.rocketmq.clusters.items():
        if own.name_server is not None and not own.is_off:
            same[name] = found.setdefault(servers_in(own.name_server), name)
    return same


def main_of_the_service(settings: Settings, given: frozenset[str]) -> str | None:
    """The main cluster's name server as the service has it, below what the harness has put there.

    Where the settings of the test say it, it is theirs.
    """
    if "" in given:
        return "embedded"
    try:
        said = settings.explain(MAIN)[1:]
    except (PlaceholderError, ConfigurationError):  # nobody needs it where a test runs
        return None
    return said[0].text if said else None
