"""A plugin of pytest: the tests of a run in the order of its seed."""

from __future__ import annotations

import os
import random
from typing import Final

import pytest

__all__ = ["SEED"]

SEED: Final = "ROCKETBOX_SOAK_SEED"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    random.Random(int(os.environ[SEED])).shuffle(items)
