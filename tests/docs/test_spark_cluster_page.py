"""The script of the page on clusters: what it packs, what it refuses, and that what it packs runs elsewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.docs.pages import FENCE

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "spark-cluster.md"
PINNED = [f"{name}=={version(name)}" for name in ("rocketbox", "pyarrow", "numpy")]
NOT_THE_SERVICE_S = "#!/bin/sh\nexit 1\n"
PYTHON = f"""#!/bin/sh
# The Python of the service, whose environments have a pip that only notes what it is asked for.
if [ "$2" != venv ]; then exec {sys.executable} "$@"; fi
{sys.executable} -m venv --without-pip "$3" && cp pip venv-pack "$3/bin"
"""
PIP = '#!/bin/sh\nprintf "%s\\n" "$@" > asked; echo "$0" > where; [ ! -e pip-fails ]\n'
PACK = '#!/bin/sh\nprintf "%s\\n" "$@" > packed; touch environment.tar.gz\n'


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with the script, and the programs that it starts."""
    (script,) = (each[3] for each in FENCE.finditer(PAGE.read_text()) if "file=pack-environment.sh" in each[2])
    (tmp_path / "pack-environment.sh").write_text(script)
    (tmp_path / "bin").mkdir()
    for name, text in (("bin/python3", PYTHON), ("pip", PIP), ("venv-pack", PACK)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return tmp_path


def pack(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "pack-environment.sh", *arguments],
        cwd=place,
        env={**os.environ, "PATH": f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}", "TMPDIR": str(place)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_dry_run_says_what_would_be_packed_and_makes_nothing(place: Path) -> None:
    before = sorted(place.iterdir())
    done = pack(place, "--dry-run", "polars>=1,<3", "my lib @ file:///a b")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [*PINNED, "polars>=1,<3", "my lib @ file:///a b"]
    assert sorted(place.iterdir()) == before


def test_the_services_versions_and_what_was_asked_for_are_packed_and_nothing_else_is_left(place: Path) -> None:
    done = pack(place, "polars>=1,<3", "my lib @ file:///a b")
    assert (done.returncode, done.stderr) == (0, "")
    asked = (place / "asked").read_text().splitlines()
    assert asked == ["install", "--quiet", "venv-pack", *PINNED, "polars>=1,<3", "my lib @ file:///a b"]
    environment = Path((place / "where").read_text().strip()).parents[1]
    packed = (place / "packed").read_text().splitlines()
    assert packed == ["--prefix", str(environment), "--output", "environment.tar.gz", "--force"]
    assert not environment.parent.exists()


def test_what_cannot_be_installed_ends_it_without_an_archive(place: Path) -> None:
    (place / "pip-fails").touch()
    assert pack(place).returncode == 1
    assert not (place / "environment.tar.gz").exists()
    assert not Path((place / "where").read_text().strip()).exists()


def test_its_words_say_how_it_is_called_and_what_is_wrong(place: Path) -> None:
    told = pack(place, "--help")
    assert told.returncode == 0
    assert told.stdout.startswith("pack-environment.sh [--dry-run] [REQUIREMENT ...]\n\nPacks an environment")
    assert told.stdout.rstrip().endswith("in the same way).")
    wrong = pack(place, "--output", "x")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == "pack-environment.sh: no option --output; see pack-environment.sh --help\n"
    (place / "bin" / "python3").write_text(NOT_THE_SERVICE_S)
    elsewhere = pack(place)
    assert elsewhere.returncode == 1
    assert elsewhere.stderr == (
        f"pack-environment.sh: {place / 'bin' / 'python3'} has no rocketbox: activate the environment of the service\n"
    )


def test_what_is_packed_runs_at_another_place(place: Path, tmp_path: Path) -> None:
    packer = pytest.importorskip("venv_pack")
    site = f'"$(dirname "$0")"/../lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages'
    (place / "rocketbox").mkdir()
    (place / "rocketbox" / "__init__.py").write_text("here = __file__\n")
    (place / "pip").write_text(f"#!/bin/sh\ncp -r {Path(packer.__file__).parent} rocketbox {site}\n")
    (place / "venv-pack").write_text('#!/bin/sh\nexec "$(dirname "$0")/python" -m venv_pack "$@"\n')
    done = pack(place)
    assert (done.returncode, done.stderr) == (0, "")
    away = place / "elsewhere"
    with tarfile.open(place / "environment.tar.gz") as archive:
        archive.extractall(away, filter="fully_trusted")  # its Python is a link to that of the machine
    shutil.rmtree(place / "rocketbox")
    ran = subprocess.run(
        [away / "bin" / "python", "-c", "import rocketbox; print(rocketbox.here)"],
        cwd=away, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert ran.stdout.startswith(str(away))
