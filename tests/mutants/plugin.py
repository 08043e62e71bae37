"""pytest -p tests.mutants.plugin: switches on the broken build that the variable ROCKETBOX_MUTANT names."""

from __future__ import annotations

import os

from tests.mutants import broken_builds, broken_services  # noqa: F401 - they fill the table
from tests.mutants.table import MUTANTS

__all__ = ["pytest_configure"]


def pytest_configure() -> None:
    if name := os.environ.get("ROCKETBOX_MUTANT"):
        (mutant,) = [mutant for mutant in MUTANTS if mutant.name == name]
        mutant.switch_on()
