"""Distributions with auto-configurations for tests: really there, by their metadata, without an installation."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

__all__ = ["Install", "distribution_maker"]

Install = Callable[..., None]


def distribution_maker(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a distribution with one module and one entry point where Python finds it; forgets its module at the end."""
    modules: list[str] = []
    monkeypatch.syspath_prepend(str(folder))

    def make(distribution: str, module: str, source: str | None, target: str | None = None, name: str = "it") -> None:
        modules.append(module)
        if source is not None:
            (folder / f"{module}.py").write_text(source)
        info = folder / f"{distribution.replace('-', '_')}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[rocketbox.autoconfigure]\n{name} = {target or module}\n")
        importlib.invalidate_caches()

    yield make
    for module in modules:
        sys.modules.pop(module, None)
