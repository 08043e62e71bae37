"""A broker as a process of its own at the name server of another one, for a test that kills it.

``python -m tests.support.spark.broker_beside_process FOLDER NAME NAME_SERVER PORT``: it prints its address when it
answers; port 0 takes a free one.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio

from rocketbox.broker.broker import Broker
from rocketbox.broker.options import read_broker_options

__all__ = ["broker_beside"]


@contextmanager
def broker_beside(
    folder: Path, name: str, name_server: str, port: int = 0
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, which is killed in the end if it was not before, and the broker's address."""
    command = [sys.executable, "-m", __name__, str(folder), name, name_server, str(port)]
    root = Path(__file__).parents[3]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


async def main(folder: Path, name: str, name_server: str, port: int) -> None:
    options = read_broker_options(
        {"broker-name": name, "allocate-ahead": 0},
        prefix="",
        places={},
        store_path_root_dir=folder,
        bind_address="127.0.0.1",
        listen_port=port,
    )
    async with Broker(options, name_servers=[name_server]) as broker:
        print(broker.address, flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
