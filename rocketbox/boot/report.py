"""The conditions report: which beans were taken, which were not and why, which were left out on request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rocketbox.boot.conditions import Verdict

__all__ = ["ConditionsReport", "ReportEntry"]


@dataclass(frozen=True)
class ReportEntry:
    """One bean definition, for one cluster. ``verdicts`` are those that decided: all that held, or the first that
    did not. ``origin`` is the distribution that brought it, empty for rocketbox's own and the user's."""

    name: str
    where: str
    verdicts: tuple[Verdict, ...] = ()
    cluster: str = ""
    origin: str = ""

    @property
    def label(self) -> str:
        return f"{self.name} [{self.cluster}]" if self.cluster else self.name


@dataclass
class ConditionsReport:
    """What was decided about beans with conditions and about auto-configurations, in the order of deciding."""

    positive: list[ReportEntry] = field(default_factory=list)
    negative: list[ReportEntry] = field(default_factory=list)
    excluded: list[ReportEntry] = field(default_factory=list)

    def render(self) -> str:
        """The report as text for a terminal."""
        lines = ["CONDITIONS REPORT"]
        for title, entries in (
            ("Taken", self.positive),
            ("Not taken", self.negative),
            ("Excluded", self.excluded),
        ):
            lines += ["", f"{title}:", *(list(_lines(entries)) or ["  none"])]
        return "\n".join(lines)


def _lines(entries: Sequence[ReportEntry]) -> Iterator[str]:
    for entry in entries:
        yield f"  {entry.label}  ({', '.join(filter(None, (entry.origin, entry.where)))})"
        for verdict in entry.verdicts:
            mend = f"; to change that: {verdict.fix}" if verdict.fix and not verdict.matched else ""
            yield f"      {verdict.reason}{mend}"
