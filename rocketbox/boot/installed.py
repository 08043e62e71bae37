"""The installed distributions and their entry points of one group, as importlib.metadata finds them.

They are looked at again only where something has changed: reading the metadata of all that is installed takes
milliseconds, a test starts the same service hundreds of times, and what changes meanwhile is mostly the test's own
folder. What a look costs without a change is a ``stat`` for each distribution and each ``entry_points.txt``, 0.15 ms
for a hundred distributions.

Seen at the next look is whatever changes when a folder of ``sys.path``, of a distribution, or an ``entry_points.txt``
was written. Not seen is a file that is written over and given its old time back.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint, PathDistribution

from rocketbox.clock import RealClock

__all__ = ["Installed", "installed", "name_and_origin"]

COARSEST_NS = 2_000_000_000  # of the times that file systems keep for changes: FAT's


@dataclass(frozen=True)
class Installed:
    """A distribution with its entry points; ``unreadable`` says why they, which may be of the group, cannot be read.

    ``key`` tells it from others: of several with one key the first on ``sys.path`` counts.
    """

    distribution: Distribution
    key: Hashable
    points: tuple[EntryPoint, ...] = ()
    unreadable: Exception | None = None

    @property
    def file(self) -> str:
        """Where its entry points stand."""
        return _file(_folder(self.distribution))


@dataclass(frozen=True)
class _Look:
    """What was found in a folder of ``sys.path``; ``of`` is by whom, and where, ``changed`` when ``watched`` last were.

    ``changed`` is None where that was so short before the look that more may have come with the same times.
    """

    of: object
    watched: tuple[str, ...]
    changed: tuple[int, ...] | None
    found: tuple[Installed, ...]


_looks: dict[str, _Look] = {}


def installed(group: str) -> list[Installed]:
    """Those with entry points of the group, or with some that cannot be read; of two of one name the first."""
    counted: dict[Hashable, Installed] = {}
    for folder in dict.fromkeys(sys.path):
        for each in _installed_in(folder, group):
            counted.setdefault(each.key, each)
    return [each for each in counted.values() if each.points or each.unreadable is not None]


def name_and_origin(distribution: Distribution) -> tuple[str, str]:
    """Its name, and that with its version, as its metadata says; where that has no name it is the folder's."""
    name = _said(distribution, "Name") or str(_key(distribution))
    return name, f"{name} {_said(distribution, 'Version')}".rstrip()


def _said(distribution: Distribution, field: str) -> str:
    try:
        return str(next(iter(distribution.metadata.get_all(field, [])), "")).strip()
    except Exception:  # no UTF-8, or no metadata at all: what is raised then differs between versions of Python
        return ""


def _key(distribution: Distribution) -> Hashable:
    """What importlib.metadata tells distributions apart by: a name, mostly that of the folder up to its first dash."""
    try:
        return str(distribution._normalized_name)  # type: ignore[attr-defined]  # importlib.metadata has no other word
    except Exception:  # somebody's own kind of distributions, and this one has no name
        return repr(distribution)


def _installed_in(folder: str, group: str) -> tuple[Installed, ...]:
    """Those of a folder of ``sys.path``; several threads may look at once, and change ``sys.path``."""
    of = group, _absolute(folder), tuple(sys.meta_path)
    look = _looks.get(folder)
    if look is None or look.of != of or look.changed != _changes(look.watched):
        look = _looks[folder] = _look(folder, group, of)
        for other in [each for each in list(_looks) if each not in sys.path]:
            _looks.pop(other, None)
    return look.found


def _look(folder: str, group: str, of: object) -> _Look:
    now = RealClock().time_ms() * 1_000_000
    changed = _changes([folder])  # before it is looked at: what comes meanwhile is seen next time
    distributions = list(Distribution.discover(path=[folder]))
    inside = [info for each in distributions if (info := _folder(each))]
    inside += [file for file in map(_file, inside) if _changed(file)]
    changed += _changes(inside)
    found = tuple(_read(each, group) for each in distributions)
    # What comes right after has the same time, where a file system counts in large steps.
    is_fresh = any(abs(now - each) < COARSEST_NS for each in changed)
    return _Look(of, (folder, *inside), None if is_fresh else changed, found)


def _read(distribution: Distribution, group: str) -> Installed:
    key = _key(distribution)
    try:
        return Installed(distribution, key, tuple(distribution.entry_points.select(group=group)))
    except Exception as error:  # what broken text comes to differs between versions of Python
        return Installed(distribution, key, unreadable=error if _has(distribution, group) else None)


def _has(distribution: Distribution, group: str) -> bool:
    """Whether the group stands in its broken entry points; if not, they are nobody's business here."""
    try:
        return group in (distribution.read_text("entry_points.txt") or "")
    except UnicodeDecodeError as error:
        return group.encode() in error.object
    except Exception:  # it cannot be read at all
        return True


def _folder(distribution: Distribution) -> str:
    """Its dist-info or egg-info; empty for a distribution that is no folder."""
    return str(distribution._path) if isinstance(distribution, PathDistribution) else ""


def _file(info: str) -> str:
    return os.path.join(info, "entry_points.txt")


def _absolute(folder: str) -> str:
    try:
        return os.path.abspath(folder)
    except OSError:  # the working directory was deleted
        return ""


def _changes(paths: Iterable[str]) -> tuple[int, ...]:
    return tuple(map(_changed, paths))


def _changed(path: str) -> int:
    """When a file was written, or something came into a folder, or went; 0: it is not there."""
    try:
        return os.stat(path or ".").st_mtime_ns
    except (OSError, ValueError):
        return 0
