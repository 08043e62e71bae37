"""What a test should be told of a settings file that is there and does not count: pytest was started in another folder.

A service looks for its file in the folder that it is started in, and a test run in ``tests`` is no other start.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rocketbox.application import RocketBox
from rocketbox.boot.settings_file import FILE_NAMES, FILE_VARIABLE
from rocketbox.testing import reported

__all__ = ["missed_settings"]


def missed_settings(app: RocketBox, config: Path | str | None) -> str | None:
    """Which file of pytest's root folder does not count, and why; None where there is none, or another one counts."""
    here, root = Path.cwd(), reported.root
    if root is None or root == here or config or app._config or os.environ.get(FILE_VARIABLE):
        return None
    beside = getattr(sys.modules.get(app._home), "__file__", None)
    looked = [here, *([] if beside is None else [Path(beside).parent])]
    missed = _first_in(root)
    if missed is None or any(_first_in(folder) is not None for folder in looked):
        return None
    return (
        f"{app.name} has no settings file, for pytest was started in {here}: {missed} counts when it is started in "
        f"{root}, or with Harness(app, config=...)"
    )


def _first_in(folder: Path) -> Path | None:
    names = (folder / name for name in FILE_NAMES)
    return next((file for name in names for file in (name, name.with_suffix(".yml")) if file.exists()), None)
