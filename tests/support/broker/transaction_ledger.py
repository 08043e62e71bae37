"""What was asked of a broker's transactions and what it acknowledged, and whether that is so."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.support.broker.open_transactions import OpenTransactions

__all__ = ["Ledger", "verify"]


@dataclass
class Ledger:
    """What was asked for, what was acknowledged, and what was refused: by the name of each transaction."""

    asked: set[str] = field(default_factory=set)
    begun: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    """Whoever wanted to begin it was told, since the last kill, that it is not stored."""
    end_asked: dict[str, str] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)


def verify(run: OpenTransactions, ledger: Ledger) -> list[str]:
    """What is wrong with what is there: each transaction is open, or ended in one way that was asked for, and once."""
    open_, committed, given_up = run.open_names(), run.names(), run.given_up()
    wrong = []
    for name in sorted(ledger.asked):
        places = (open_.count(name), committed.count(name), given_up.count(name))
        end, asked = ledger.ended.get(name), ledger.end_asked.get(name)
        allowed = {(1, 0, 0), (0, 0, 1)}  # the broker itself gives up what it has asked about often enough
        if name not in ledger.begun:
            allowed.add((0, 0, 0))
        if name in ledger.refused:
            allowed = {(0, 0, 0)}
        if asked == "commit":
            allowed.add((0, 1, 0))
        if asked == "roll back":
            allowed.add((0, 0, 0))
        if end is not None:
            allowed = {(0, 1, 0)} if end == "commit" else {(0, 0, 0)}
        if places not in allowed:
            wrong.append(f"{name}: open, committed, given up {places}; asked {asked}, acknowledged {end}")
    return wrong
