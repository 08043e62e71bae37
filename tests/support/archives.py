"""The tar archives of tests/data, unpacked on every Python 3.11: tarfile's own ``filter="data"`` came with 3.11.4.

Only plain files and directories are taken, and only below the folder; anything else in an archive is an error.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

__all__ = ["unpack"]


def unpack(archive: Path, folder: Path, wanted: Callable[[str], bool] = bool) -> None:
    """Write the files of the archive whose names are ``wanted`` below ``folder``.

    Raises ValueError for a member that is no file or directory, and for one that would be written elsewhere.
    """
    with tarfile.open(archive) as members:
        for member in members:
            if not wanted(member.name):
                continue
            path = PurePosixPath(member.name)
            if path.is_absolute() or ".." in path.parts:
                raise ValueError(f"{archive.name} would write outside of its folder: {member.name}")
            if member.isdir():
                (folder / path).mkdir(parents=True, exist_ok=True)
                continue
            content = members.extractfile(member) if member.isfile() else None
            if content is None:
                raise ValueError(f"{archive.name} holds something that is no file: {member.name}")
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content.read())
