"""How the tests are shared among the processes of ``make test``: each goes to whoever is free, groups stay together.

The marks of pytest-xdist 3.8 for groups have no effect under pytest 9, where a test's id cannot be changed any more;
this table of the beginnings of ids stands for them. A plugin of pytest: ``tests/conftest.py`` takes it in.
"""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

__all__ = ["GroupedScheduling", "group_of", "pytest_xdist_make_scheduler"]

GROUPS = {
    "tests/integration/spark/": "the Spark session and its broker",
    "tests/integration/test_new_service.py": "the new service",
    "tests/unit/test_architecture.py": "the trees of all modules",
    "tests/unit/test_rules_of_tests.py": "the trees of all tests",
    "tests/examples/test_flight_desk.py": "one Java at a time: it takes all cores",
    "tests/docs/test_code_in_docs.py::test_the_code_of_a_page_runs[docs/how-to/spark.md]": (
        "one Java at a time: it takes all cores"
    ),
    "tests/docs/test_code_in_docs.py::test_the_code_of_a_page_runs[docs/how-to/testing.md]": (
        "one Java at a time: it takes all cores"
    ),
}
"""Tests whose ids begin so share what is started once for a process; one process runs those of a group."""


def group_of(test: str) -> str:
    """The group that a test belongs to; its own id where that is none."""
    return next((group for beginning, group in GROUPS.items() if test.startswith(beginning)), test)


class GroupedScheduling(LoadScopeScheduling):  # type: ignore[misc]  # a class of a library without types
    """One test after another, and groups as a whole."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> GroupedScheduling:
    return GroupedScheduling(config, log)
