"""``make chaos``: 100 kills of ``rocketbox broker``; with ``--java`` in turns with Apache's brokers as well.

``make chaos ARGS="--cycles 20 --java"``; ``make chaos ARGS=spark``: kills on Spark's standalone cluster instead, of 20
executors and 20 drivers. Status 1 when something acknowledged is missing, or anything else is wrong.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.cycles import OURS, Result, run_cycles

__all__ = ["main"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("brokers", "spark"), default="brokers", help="what is killed")
    parser.add_argument("--kills", type=int, default=20, help="of spark: executors, and as many drivers (20)")
    parser.add_argument(
        "--cycles", type=int, default=100, help="how often our broker alone is killed (100); 0: not at all"
    )
    parser.add_argument("--seed", type=int, default=20261122)
    parser.add_argument("--java", action="store_true", help="in turns with Apache RocketMQ 4.9.7 and 5.5.0 as well")
    parser.add_argument("--java-cycles", type=int, default=24, help="kills in turns with each of the two (24)")
    arguments = parser.parse_args()
    if arguments.what == "spark":
        return _spark(arguments.kills, arguments.seed)
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


def _spark(kills: int, seed: int) -> int:
    from tests.chaos.spark_cluster import run_spark  # the others need no pyspark

    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rocketbox-chaos-") as folder:
        result = run_spark(Path(folder), kills, seed=seed, say=lambda text: print(" ", text, flush=True))
    for text in result.wrong:
        print(f"  WRONG {text}")
    print(f"Spark's cluster: {result} ({time.monotonic() - began:.0f} s)", flush=True)
    return 1 if result.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
