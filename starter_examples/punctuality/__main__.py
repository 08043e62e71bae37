"""``python -m starter_examples.punctuality UA AA ZZ``: asks for each airline and prints the answers."""

from __future__ import annotations

import sys

import anyio

from rocketbox import ReplyError
from starter_examples.punctuality.app import app, ask


async def main(carriers: list[str]) -> None:
    async with app:
        for carrier in carriers:
            try:
                answer = await ask(app.template, carrier)
            except ReplyError as error:
                print(f"{carrier}: {error.message}")
            else:
                print(f"{carrier}: {answer.airline}, {answer.departures} departures, "
                      f"{answer.mean_delay_minutes} minutes late on average")  # fmt: skip


if __name__ == "__main__":
    anyio.run(main, sys.argv[1:] or ["UA", "AA", "ZZ"])
