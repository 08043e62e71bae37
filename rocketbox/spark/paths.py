"""Checkpoints as users write them and as Spark takes them: a path of this machine, or the URI of any file system.

Hadoop's ``Path`` takes what stands behind a scheme as it is: a space or an umlaut is written plainly, never as ``%20``.
Source: Apache Hadoop 3.4 ``Path(String)``.
"""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["checkpoint_location", "local_folder", "scheme_of"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


def scheme_of(checkpoint: str) -> str | None:
    """The file system that a checkpoint names, such as ``s3a``; None for a plain path."""
    match = _SCHEME.match(checkpoint)
    return match[1].lower() if match else None


def local_folder(checkpoint: str) -> Path | None:
    """The folder on this machine that a checkpoint's path or ``file:`` URI names; None for any other file system."""
    scheme = scheme_of(checkpoint)
    if scheme is None:
        return Path(checkpoint).absolute()
    if scheme != "file":
        return None
    return Path("/" + checkpoint.partition(":")[2].lstrip("/"))


def checkpoint_location(checkpoint: str) -> str:
    """What Spark is told: a folder of this machine with its scheme, whatever file system Hadoop takes else."""
    folder = local_folder(checkpoint)
    return checkpoint if folder is None else f"file:{folder}"
