"""Services for tests: written to a folder as a user writes them, module and YAML, and imported from there."""

from __future__ import annotations

import importlib
import itertools
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

__all__ = ["SETTINGS", "ServiceMaker", "service_maker"]

SETTINGS = """
rocketmq:
  name-server: embedded
  producer: {group: desk}
rocketbox:
  embedded: {port: 0, name-server-port: 0, data-dir: %(folder)s/store, mapped-file-size-commit-log: 1MB}
"""

_numbers = itertools.count(1)

ServiceMaker = Callable[..., ModuleType]


def service_maker(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceMaker]:
    """Makes a module of its own name from source, with ``rocketbox.yaml`` beside it; forgets them at the end."""
    made: list[str] = []
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))

    def make(source: str, settings: str | None = SETTINGS) -> ModuleType:
        name = f"service_{next(_numbers)}"
        made.append(name)
        (folder / f"{name}.py").write_text(textwrap.dedent(source).lstrip("\n"))
        if settings is not None:
            (folder / "rocketbox.yaml").write_text(textwrap.dedent(settings).lstrip("\n") % {"folder": folder})
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield make
    for name in made:
        sys.modules.pop(name, None)
