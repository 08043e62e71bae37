"""rocketbox's own auto-configurations, which every application considers.

They come by entry points as those of others do (``boot.discovery``), but these stand here and not in the metadata of
the distribution: so they are there in a source tree that nobody has installed, and looking for them costs nothing.
"""

from __future__ import annotations

import functools
from importlib.metadata import EntryPoint

from rocketbox.boot.discovery import GROUP, AutoconfigurationModule, load_autoconfiguration

__all__ = ["OWN", "own_autoconfigurations"]

OWN: tuple[EntryPoint, ...] = tuple(
    EntryPoint(name, f"rocketbox.autoconfigure.{name}", GROUP)
    for name in (
        "properties",
        "embedded",
        "rocketmq",
        "topics",
        "transaction_listening",  # before those that send: they are there as long as anybody does
        "push_listening",
        "spark_listening",
        "health",
    )
)


def own_autoconfigurations() -> list[AutoconfigurationModule]:
    """What they bring. Those that are excluded are loaded all the same, and their beans left out one by one.

    So it can be told which of them somebody misses, and why.
    ``properties`` has the models of our settings and no beans.
    """
    loaded = map(_load, OWN)
    return [
        load_autoconfiguration(each, of="rocketbox") if of.problem else of for each, of in zip(OWN, loaded, strict=True)
    ]


@functools.cache  # these modules are part of this library, and change no more than it does
def _load(point: EntryPoint) -> AutoconfigurationModule:
    return load_autoconfiguration(point, of="rocketbox")
