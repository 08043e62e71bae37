"""Which files count for ``--reload``, and being told when one of them changes.

The watching itself is that of watchfiles (inotify and its like), which the extra ``reload`` installs. Folders are
watched, not files: editors and deployments put a new file in the place of the old one.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import anyio
import anyio.lowlevel
from watchfiles import Change, DefaultFilter, awatch

from rocketbox.boot.profiles import endings
from rocketbox.tasks import SupervisedTask, Supervisor

__all__ = ["Place", "Watch", "places_of_code", "places_of_settings"]

_log = logging.getLogger(__name__)

CODE = ("*.py",)
SETTINGS = ("*.yaml", "*.yml", "*.env")  # .env itself is one of the last


@dataclass(frozen=True)
class Place:
    """A folder, with all below it if it is ``deep``, and the names that count there (``*`` stands for anything)."""

    folder: Path
    deep: bool
    names: tuple[str, ...]


def places_of_code(module: str, here: Path) -> Iterator[Place]:
    """Where the code of a service is: the package or file of its module, and what lies in the working folder.

    Imports nothing: code that cannot be imported is what is most in need of a change.
    """
    both = (*CODE, *SETTINGS)
    yield Place(here, False, both)
    for package in here.glob("*/__init__.py"):
        yield Place(package.parent, True, both)
    spec = _spec(module.partition(".")[0], here)
    if spec is not None and spec.submodule_search_locations is not None:
        for folder in spec.submodule_search_locations:
            yield Place(Path(folder), True, both)
    elif spec is not None and spec.origin is not None:
        file = Path(spec.origin)
        yield Place(file.parent, False, (file.name, *SETTINGS))


def _spec(name: str, here: Path) -> importlib.machinery.ModuleSpec | None:
    importlib.invalidate_caches()
    sys.path.insert(0, str(here))
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):  # no module can have that name
        return None
    finally:
        sys.path.remove(str(here))


def places_of_settings(files: Iterable[Path]) -> Iterator[Place]:
    """Where the settings files are: each with its profiles' files beside it, directories of secrets as a whole."""
    for file in files:
        if file.is_dir():
            yield Place(file, True, ("*",))
        else:
            names = (f"{stem}{ending}" for stem in (file.stem, f"{file.stem}-*") for ending in endings(file))
            yield Place(file.parent, False, tuple(names))


class Watch:
    """Watches places until it is closed; ``changed`` is called with the files that have changed."""

    def __init__(self, tasks: Supervisor, changed: Callable[[set[Path]], object]) -> None:
        self._tasks = tasks
        self._changed = changed
        self._ignored = DefaultFilter()
        self._names: dict[tuple[Path, bool], set[str]] = {}
        self._watchers: list[SupervisedTask] = []
        self._closing = anyio.Event()

    async def follow(self, places: Iterable[Place]) -> None:
        """Watch these places as well, if they are there; when this returns, no change in them is missed.

        What is watched once stays so: a file that is no longer used costs a restart at most.
        """
        fresh = []
        for place in places:
            folder = place.folder.resolve()
            if not folder.is_dir():
                continue
            names = self._names.setdefault((folder, place.deep), set())
            if not names:
                fresh.append(f"{folder} and all below it" if place.deep else str(folder))
                name = f"watch {folder}"
                self._watchers.append(self._tasks.start(name, self._follow, folder, place.deep, names))
            names.update(place.names)
        await anyio.lowlevel.checkpoint()  # each new task has come as far as its first wait, and watches from there on
        for each in fresh:
            _log.info("watches %s", each)

    async def close(self) -> None:
        """Watch nothing any longer."""
        self._closing.set()  # the threads look at it; cancelling alone would wait for them for seconds
        for watcher in self._watchers:
            await watcher.wait()

    async def _follow(self, folder: Path, deep: bool, names: set[str]) -> None:
        def counts(change: Change, path: str) -> bool:
            below = Path(path).relative_to(folder)
            return self._ignored(change, f"{os.sep}{below}") and any(fnmatch(below.name, name) for name in names)

        async for changes in awatch(folder, watch_filter=counts, recursive=deep, stop_event=self._closing):
            self._changed({Path(path) for _, path in changes})
