"""Archives of the tests are unpacked below their folder only."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from tests.support.archives import unpack


def archive_of(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def test_files_are_written_below_the_folder(tmp_path: Path) -> None:
    archive = archive_of(
        tmp_path / "a.tar.gz", (tarfile.TarInfo("store/log/0"), b"one"), (tarfile.TarInfo("store/other"), b"two")
    )
    unpack(archive, tmp_path / "to", lambda name: "other" not in name)
    assert (tmp_path / "to/store/log/0").read_bytes() == b"one"
    assert not (tmp_path / "to/store/other").exists()


@pytest.mark.parametrize("name", ["../outside", "store/../../outside", "/outside"])
def test_names_outside_of_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    archive = archive_of(tmp_path / "a.tar.gz", (tarfile.TarInfo(name), b"x"))
    with pytest.raises(ValueError, match="outside of its folder"):
        unpack(archive, tmp_path / "to")
    assert not (tmp_path / "outside").exists()


def test_links_are_refused(tmp_path: Path) -> None:
    link = tarfile.TarInfo("link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
    archive = archive_of(tmp_path / "a.tar.gz", (link, b""))
    with pytest.raises(ValueError, match="no file"):
        unpack(archive, tmp_path / "to")
