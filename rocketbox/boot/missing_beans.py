"""That a bean is missing, and one finding for all who miss beans for the same reason.

A setting that is not there may leave out a bean that many ask for: one mistake, one finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rocketbox.errors import Finding

__all__ = ["MissingBean", "told_together"]

MOST_NAMED = 3  # of those who miss something; the others are counted


@dataclass(frozen=True)
class MissingBean(Finding):
    """``who`` needs a bean of the type ``needed``, which was not built for a ``reason`` that setting ``key`` mends.

    ``cause`` is what the reason comes down to, where beans that it needs were not built either.
    """

    who: str = ""
    needed: str = ""
    reason: str = ""
    key: str = ""
    cause: str = ""


def told_together(findings: Iterable[Finding]) -> list[Finding]:
    """The findings; of beans that one setting would bring for one cause one, where the first of them stood."""
    together: dict[object, list[MissingBean]] = {}
    places: dict[object, Finding] = {}
    for finding in findings:
        key: object = finding
        if isinstance(finding, MissingBean):
            key = (finding.key, finding.fix, finding.cause)
            together.setdefault(key, []).append(finding)
        places.setdefault(key, finding)
    return [_joined(together[key]) if key in together else finding for key, finding in places.items()]


def _joined(missing: Sequence[MissingBean]) -> Finding:
    first = missing[0]
    if len({each.what for each in missing}) == 1:
        return first
    who = list(dict.fromkeys(each.who for each in missing))
    if len(who) > MOST_NAMED + 1:
        who = [*who[:MOST_NAMED], f"{len(who) - MOST_NAMED} more"]
    needed = list(dict.fromkeys(each.needed for each in missing))
    beans = "a bean of type " if len(needed) == 1 else "beans of types "
    need, there = ("need" if who[1:] else "needs"), ("is none" if not needed[1:] else "are none")
    return Finding(
        f"{_listed(who)} {need} {beans}{_listed(needed)}, and there {there}: {first.reason}",
        ", ".join(dict.fromkeys(each.where for each in missing if each.where)) or None,
        first.fix,
    )


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
