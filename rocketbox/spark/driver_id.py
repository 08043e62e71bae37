"""The name under which a driver holds its lease.

It is a driver's own, so that two never take one another's lease for theirs. With a checkpoint on this machine it is
kept there, locked while the process lives: a driver that was killed and comes again on the same checkpoint goes on at
once, and need not wait for its own lease to run out. The machine is part of it, for a folder that several machines
mount may have no locks: its name, and what tells it from others of that name, for as long as it runs (the id of its
boot, which its containers have in common; where there is none, the address of its network card). So is the folder, for
a copy of it has the same name inside.
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rocketbox.clock import Clock
from rocketbox.errors import StoreLockedError
from rocketbox.storage.file_system import Storage

__all__ = ["driver_id"]


BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # Linux's


@contextmanager
def driver_id(storage: Storage, clock: Clock, folder: Path | None) -> Iterator[str]:
    """The name of this driver with the checkpoint in ``folder`` (None: it is on another file system). Blocks."""
    own = f"{socket.gethostname()}@{clock.uuid()}"
    if folder is None:
        yield own
        return
    place = folder / "rocketbox"
    try:
        storage.make_directories(str(place))
        lock = storage.lock(str(place / "driver"))
    except (StoreLockedError, OSError):  # another driver has it, or nobody can: Spark will say so itself
        yield own
        return
    try:
        if not (kept := lock.read()):
            kept = clock.uuid().encode()
            lock.write(kept)
        yield f"{socket.gethostname()}/{_machine()}:{folder}@{kept.decode(errors='replace')}"
    finally:
        lock.release()


def _machine() -> str:
    try:
        return BOOT_ID.read_text("utf-8").strip()
    except (OSError, ValueError):
        return f"{uuid.getnode():x}"
