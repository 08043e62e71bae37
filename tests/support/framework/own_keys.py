"""Every key of rocketbox's own settings, with a name in the place of each that a user chooses."""

from __future__ import annotations

from collections.abc import Iterator

from rocketbox.autoconfigure.loading import settings_models
from rocketbox.boot.root_settings import schema_of
from rocketbox.boot.shapes import Leaf, Many

__all__ = ["MODELS", "NAMES", "SCHEMA", "own_keys"]

MODELS = settings_models([])
SCHEMA = schema_of(MODELS)
NAMES = {
    "clusters": "audit",
    "listeners": "desk",
    "topics": "payments",
    "transaction-listeners": "orders",
    "attributes": "message.type",
    "level": "rocketbox.client",
    "conf": "spark.ui.enabled",
    "options": "maxpartitions",
    "group": "p",
}


def own_keys() -> Iterator[tuple[tuple[str, ...], Leaf | Many]]:
    """Tables have one name each."""
    for path, leaf in SCHEMA.leaves():
        yield tuple(NAMES[path[index - 1]] if part == "*" else part for index, part in enumerate(path)), leaf
