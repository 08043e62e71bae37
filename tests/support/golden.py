"""Golden files: texts that somebody has read and found right, beside what the code says now.

With ``REWRITE_GOLDEN=1`` in the environment they are written anew instead, to be read and committed. Such a run shows
nothing about the code: where ``CI`` is set, pytest refuses to begin one.

A plugin of pytest: ``tests/conftest.py`` takes it in.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

__all__ = ["golden", "rewrites"]

VARIABLE = "REWRITE_GOLDEN"


def rewrites() -> bool:
    """Whether golden files are to be written anew; as everywhere, an empty variable says nothing."""
    return bool(os.environ.get(VARIABLE))


def golden(file: Path, text: str) -> str:
    """What the golden file holds, which is ``text`` when it was just written anew."""
    if rewrites():
        file.write_text(text, "utf-8")
    return file.read_text("utf-8")


def pytest_sessionstart(session: pytest.Session) -> None:
    if rewrites() and os.environ.get("CI"):
        raise pytest.UsageError(
            f"{VARIABLE} is set: golden files would be taken for right as they come out. Unset it, or, outside of CI, "
            "unset CI, write them anew, and read what has changed"
        )
