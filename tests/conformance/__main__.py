"""``make conformance``: says what is missing, or runs the tests of this folder.

Without arguments it runs what is marked ``smoke`` (each feature once) on the newest and the oldest Apache RocketMQ that
is supported; ``--all`` runs everything on all three. Other arguments go to pytest.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.conformance.apache import VERSIONS, class_path, missing
from tests.conformance.java_program import build

__all__ = ["main"]


def main() -> int:
    if what := missing():
        print(f"conformance with Apache RocketMQ is not checked: this machine has no {what}", file=sys.stderr)
        return 2
    arguments = sys.argv[1:]
    selection, versions = ["-m", "smoke and not between"], VERSIONS[:: len(VERSIONS) - 1]
    if "--all" in arguments:
        arguments.remove("--all")
        selection, versions = [], VERSIONS
    for version in versions:
        class_path(version)
        build(version)  # not within a test, whose clients would wait
    return int(pytest.main(["-v", "--durations=10", *selection, str(Path(__file__).parent), *arguments]))


if __name__ == "__main__":
    sys.exit(main())
