"""The command ``rocketbox store``, run in the process of the test."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from rocketbox.cli.app import app

__all__ = ["rocketbox"]


def rocketbox(*arguments: object) -> Result:
    """What ``rocketbox store`` with these arguments says."""
    return CliRunner().invoke(app, ["store", *map(str, arguments)], prog_name="rocketbox")
