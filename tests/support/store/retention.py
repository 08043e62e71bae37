"""What a broker's retention does, without its hours: the oldest files of a stopped broker's log are removed."""

from __future__ import annotations

import dataclasses

from rocketbox.broker.store.checkpoint import CHECKPOINT_BYTES, Checkpoint
from rocketbox.storage.file_system import Storage

__all__ = ["expire_first_files"]


def expire_first_files(storage: Storage, root: str, count: int = 1) -> None:
    """Remove the first files of the log below ``root``, with the place where it begins now in the checkpoint."""
    folder = f"{root}/commitlog"
    names = sorted(storage.list_directory(folder))
    assert len(names) > count, "the last file never goes"
    with_checkpoint = storage.open(f"{root}/checkpoint")
    value = Checkpoint.decode(with_checkpoint.read(0, CHECKPOINT_BYTES))
    with_checkpoint.write(0, [dataclasses.replace(value, log_start=int(names[count])).encode()])
    with_checkpoint.close()
    for name in names[:count]:
        storage.remove(f"{folder}/{name}")
