"""The packages whose unit tests are tried with sampled mutants: which modules are changed, and which tests must notice.

``FIRST`` holds changes that no operator makes; they come before the sampled ones of their package.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FIRST", "PACKAGES", "Change", "Package", "WrittenChange"]


@dataclass(frozen=True, kw_only=True)
class Package:
    """``modules`` and ``tests`` are patterns below the root; the tests are files of unit tests and nothing else."""

    name: str
    what: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]

    def module_paths(self, root: Path) -> list[str]:
        return list(_found(root, self.modules))

    def test_paths(self, root: Path) -> list[str]:
        return list(_found(root, self.tests))


@dataclass(frozen=True, kw_only=True)
class WrittenChange:
    """A mutant in words of its own: ``before`` stands once in the module and becomes ``after``."""

    package: str
    name: str
    module: str
    before: str
    after: str


@dataclass(frozen=True, order=True)
class Change:
    """The ``occurrence``-th place where the operator applies in the module; the lines ``first`` to ``last``."""

    module: str
    operator: str
    occurrence: int
    first: int
    last: int
    rank: str = ""

    @property
    def id(self) -> str:
        return f"{self.module}:{self.operator.removeprefix('core/')}:{self.occurrence}"


def _found(root: Path, patterns: tuple[str, ...]) -> Iterator[str]:
    """The files of the patterns, sorted. Raises ValueError for a pattern that matches nothing: its module moved."""
    found: set[str] = set()
    for pattern in patterns:
        matching = [str(path.relative_to(root)) for path in root.glob(pattern) if path.name != "__init__.py"]
        if not matching:
            raise ValueError(f"no file is called {pattern}: tests/mutants/packages.py names what has moved")
        found.update(matching)
    yield from sorted(found)


PACKAGES = (
    Package(
        name="protocol",
        what="bytes of commands, headers, bodies and messages",
        modules=("rocketbox/protocol/*.py",),
        tests=("tests/unit/protocol/test_*.py", "tests/unit/test_message.py", "tests/unit/test_frames.py"),
    ),
    Package(
        name="store",
        what="the broker's files: log, queues, index, recovery, retention",
        modules=("rocketbox/broker/store/*.py",),
        tests=("tests/unit/store/test_*.py", "tests/unit/cli/test_store_*.py"),
    ),
    Package(
        name="consume",
        what="calls of handlers, their outcomes, tries, and what happens to messages then",
        modules=(
            "rocketbox/client/consume.py",
            "rocketbox/client/handler_*.py",
            "rocketbox/client/lanes.py",
            "rocketbox/client/outcomes.py",
            "rocketbox/client/process_queue.py",
            "rocketbox/client/send_back.py",
            "rocketbox/client/tries.py",
            "rocketbox/client/workers.py",
            "rocketbox/listeners/container.py",
            "rocketbox/listeners/dispatch.py",
            "rocketbox/listeners/invalid_limit.py",
            "rocketbox/listeners/return_types.py",
        ),
        tests=("tests/unit/client/test_*.py", "tests/unit/listeners/test_*.py", "tests/unit/test_background_work.py"),
    ),
    Package(
        name="spark",
        what="rows of Spark: which pulls are made, and record batches of what they bring",
        modules=(
            "rocketbox/spark/columns.py",
            "rocketbox/spark/missing.py",
            "rocketbox/spark/property_columns.py",
            "rocketbox/spark/pull_plan.py",
            "rocketbox/spark/reading.py",
            "rocketbox/spark/record_columns.py",
        ),
        tests=("tests/unit/spark/test_*.py",),
    ),
)

FIRST = (
    WrittenChange(
        package="spark",
        name="every record batch repeats all rows before it",
        module="rocketbox/spark/record_columns.py",
        before="                yield batch\n",
        after=(
            "                before = vars(self).setdefault('before', [])\n"
            "                before.append(batch)\n"
            "                yield pa.Table.from_batches(before).combine_chunks().to_batches()[0]\n"
        ),
    ),
)
