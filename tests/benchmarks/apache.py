"""Apache's newest broker as it is measured: on a core of its own, with memory enough, flushing asynchronously."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.benchmarks.processes import pinned
from tests.conformance.apache import NEWEST, ApacheServers, apache_servers

__all__ = ["measured_apache"]

HEAP = ("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=1g")


@contextmanager
def measured_apache(directory: str | None) -> Iterator[ApacheServers]:
    """Name server and broker, with their files in a new folder below ``directory``."""
    with (
        tempfile.TemporaryDirectory(dir=directory) as folder,
        apache_servers(
            Path(folder),
            NEWEST,
            heap=HEAP,
            prefix=pinned(1),
            flushDiskType="ASYNC_FLUSH",
            waitTimeMillsInSendQueue=10_000,  # else it refuses sends when the machine has other work as well
        ) as servers,
    ):
        yield servers
