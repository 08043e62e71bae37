"""What the command line of pytest says of all harnesses of a run: the servers that they are to use.

The plugin puts it here where it says anything; it loads nothing else of rocketbox.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

__all__ = ["forget", "name_servers", "said", "tell"]

_log = logging.getLogger(__name__)

name_servers: dict[str, str] = {}
"""Those of the clusters by name, of the main one by the empty name; empty: harnesses have servers of their own."""
tell: Callable[[str], object] = _log.warning
"""Is told of what takes long."""


def forget() -> None:
    """As it is where nothing is said."""
    global tell
    name_servers.clear()
    tell = _log.warning


def said(texts: list[str]) -> Mapping[str, str]:
    """The name servers that ``host:port`` and, of a further cluster, ``name=host:port`` say. Raises ValueError."""
    found: dict[str, str] = {}
    for text in texts:
        name, separator, address = text.rpartition("=")
        if not address.rpartition(":")[2].isdecimal() or (separator and not name.strip()):
            raise ValueError(f"{text!r} is not host:port, or, of a further cluster of the service, name=host:port")
        if name.strip() in found:
            raise ValueError(f"there are two for {f'cluster {name}' if name else 'the main cluster'}; several: a:1;b:2")
        found[name.strip()] = address.strip()
    if found and "" not in found:
        raise ValueError(
            f"{texts[0]!r} is that of a further cluster, and the main one has none: give host:port as well"
        )
    return found
