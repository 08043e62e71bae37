"""What a test should be told of a settings file that is there and does not count: pytest was started in another folder.

A service looks for its file in the folder that it is started in, and a test run in ``tests`` is no other start.
"""

from __future__ import annotations

from pathlib import Path

from rocketbox.application import RocketBox
from rocketbox.errors import ConfigurationError
from rocketbox.testing import reported

__all__ = ["missed_settings"]


def missed_settings(app: RocketBox, config: Path | str | None) -> str | None:
    """Which file of pytest's root folder does not count, and why; None where there is none, or another one counts."""
    here, root = Path.cwd(), reported.root
    if root is None or root == here:
        return None
    try:
        if app.settings_file(config=config) is not None:
            return None
        missed = app.settings_file(config=config, directory=root)
    except ConfigurationError:  # which the start tells
        return None
    if missed is None:
        return None
    return (
        f"{app.name} has no settings file, for pytest was started in {here}: {missed} counts when it is started in "
        f"{root}, or with Harness(app, config=...)"
    )
