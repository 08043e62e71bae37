"""``make conformance``: says what is missing, or runs the tests of this folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.conformance.apache import class_path, missing

__all__ = ["main"]


def main() -> int:
    if what := missing():
        print(f"conformance with Apache RocketMQ is not checked: this machine has no {what}", file=sys.stderr)
        return 2
    class_path()
    return int(pytest.main(["-v", str(Path(__file__).parent), *sys.argv[1:]]))


if __name__ == "__main__":
    sys.exit(main())
