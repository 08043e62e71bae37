"""A name server and a broker, the embedded ones or Apache's of a version, for tests that run on all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rocketbox.embedded import EmbeddedOptions, EmbeddedServers
from tests.conformance.apache import apache_servers

__all__ = ["EMBEDDED", "running_name_server"]

EMBEDDED = "embedded"


@contextmanager
def running_name_server(kind: str, folder: Path) -> Iterator[str]:
    """The address of a name server: of the embedded servers (``EMBEDDED``), or of Apache's of the version ``kind``."""
    if kind != EMBEDDED:
        with apache_servers(folder, kind, keeps_store=False) as servers:
            yield servers.name_server
    else:
        with EmbeddedServers.in_thread(EmbeddedOptions(data_dir=folder, port=0, name_server_port=0)) as embedded:
            yield embedded.name_server_address
