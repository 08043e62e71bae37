"""``make chaos``: 100 kills of ``rocketbox broker``; with ``--java`` in turns with Apache's brokers as well.

``make chaos ARGS="--cycles 20 --java"``; ``make chaos ARGS=spark``: what a Spark listener lives through instead
(``spark_kinds``), some of it by ``ARGS="spark --only drivers,queues"``. Status 1 when something acknowledged is
missing, a row stands twice in a sink that knows its batches, or anything else is wrong.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from tests.chaos.cycles import OURS, Result, run_cycles

__all__ = ["main"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("brokers", "spark"), default="brokers", help="what is killed")
    parser.add_argument("--only", default="", help="of spark: these kinds of faults, with commas between them (all)")
    parser.add_argument("--times", type=int, help="of spark: how often each fault happens (as its kind says)")
    parser.add_argument(
        "--plant",
        action="store_true",
        help="of spark: a sink that knows no batches, to see that rows which come again are noticed",
    )
    parser.add_argument(
        "--cycles", type=int, default=100, help="how often our broker alone is killed (100); 0: not at all"
    )
    parser.add_argument("--seed", type=int, default=20261122)
    parser.add_argument("--java", action="store_true", help="in turns with Apache RocketMQ 4.9.7 and 5.5.0 as well")
    parser.add_argument("--java-cycles", type=int, default=24, help="kills in turns with each of the two (24)")
    arguments = parser.parse_args()
    logging.getLogger("rocketbox").addHandler(logging.NullHandler())  # brokers are killed: clients have much to tell
    if arguments.what == "spark":
        return _spark(parser, arguments)
    status = 0

    def run(title: str, cycles: int, *brokers: str) -> Result:
        print(f"{title}: {cycles} kills", flush=True)
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="rocketbox-chaos-") as folder:
            result = run_cycles(
                Path(folder),
                cycles,
                seed=arguments.seed,
                brokers=brokers,
                say=lambda text: print(" ", text, flush=True),
            )
        for text in result.wrong:
            print(f"  WRONG {text}")
        print(f"{title}: {result} ({time.monotonic() - began:.0f} s)", flush=True)
        return result

    if arguments.cycles and run(OURS, arguments.cycles, OURS).wrong:
        status = 1
    if arguments.java:
        for version in ("4.9.7", "5.5.0"):
            run(f"Apache {version} alone (what it loses is not ours)", max(2, arguments.java_cycles // 4), version)
            if run(f"{OURS} and Apache {version} in turns", arguments.java_cycles, OURS, version).wrong:
                status = 1
    return status


def _spark(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from tests.chaos.spark_run import NAMES, run_kinds, table_of  # the others need no pyspark

    names = [name for name in arguments.only.split(",") if name] or NAMES
    if unknown := [name for name in names if name not in NAMES]:
        parser.error(f"there is no kind {', '.join(unknown)}; there are {', '.join(NAMES)}")
    with tempfile.TemporaryDirectory(prefix="rocketbox-chaos-") as folder:
        outcomes = run_kinds(names, Path(folder), seed=arguments.seed, times=arguments.times, once=not arguments.plant)
    Console(width=160).print(table_of(outcomes, arguments.seed), highlight=False)
    if not (bad := [outcome.name for outcome in outcomes if not outcome.good]):
        return 0
    times = "" if arguments.times is None else f" --times {arguments.times}"
    print(f'again: make chaos ARGS="spark --only {",".join(bad)} --seed {arguments.seed}{times}"')
    return 1


if __name__ == "__main__":
    sys.exit(main())
