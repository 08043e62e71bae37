"""Spark listeners as an application makes them, for tests that share a session and a broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from pyspark.sql import DataFrame

from rocketbox.client import MQClientInstance
from rocketbox.clock import RealClock
from rocketbox.spark.lease import Lease
from rocketbox.spark.listener import SparkListenerContainer, SparkListenerOptions, read_spark_signature
from rocketbox.spark.session import SparkRuntime
from tests.support import waiting
from tests.support.spark.topics import Broker, rows_of

__all__ = ["MINUTES", "give_lease_to", "group_of", "rows_in", "send", "spark_listener", "until"]

MINUTES = 240.0  # seconds; the first query of a session alone takes one where the machine has much else to do


async def until(condition: Callable[[], object]) -> None:
    """Return when condition holds."""
    await waiting.until(condition, seconds=MINUTES)


def group_of(topic: str) -> str:
    """The group of the listener that a test has for its topic."""
    return topic[-40:]


def spark_listener(
    function: Callable[..., Any],
    client: MQClientInstance,
    topic: str,
    checkpoint: Path | str,
    *,
    runtime: SparkRuntime | None = None,
    beans: Mapping[Any, object] | None = None,
    drain_timeout: float = 15.0,
    credentials_file: str | None = None,
    **options: Any,
) -> SparkListenerContainer:
    """A listener of the topic that looks for messages all the time; ``options`` say otherwise."""
    said = {"trigger": timedelta(0), "group": group_of(topic), "checkpoint": str(checkpoint), **options}
    return SparkListenerContainer(
        SparkListenerOptions(topic=topic, **said),
        read_spark_signature(function),
        runtime=runtime or SparkRuntime("tests", {}),
        instance=client,
        provider=lambda hint: partial((beans or {}).__getitem__, hint),
        clock=RealClock(),
        drain_timeout=drain_timeout,
        credentials_file=credentials_file,
    )


def rows_in(frame: DataFrame) -> list[int]:
    """The numbers of ``rows_of`` that the bodies hold, in order."""
    return sorted(json.loads(bytes(row.body))["row"] for row in frame.select("body").collect())


async def send(broker: Broker, topic: str, first: int, end: int) -> None:
    """Send the rows from ``first`` up to ``end``."""
    await anyio.to_thread.run_sync(broker.send, topic, rows_of(first, end))


async def give_lease_to(holder: str, listener: SparkListenerContainer, instance: MQClientInstance) -> Lease:
    """The lease of a listener that runs, held by another driver, as where its brokers have forgotten who has it."""
    options = listener.options
    forgotten = Lease(instance, options.group, options.topic, holder=listener._lease.holder)
    await forgotten.take()
    await forgotten.release()
    lease = Lease(instance, options.group, options.topic, holder=holder)
    answer = await lease.take()
    assert answer.held, answer.why
    return lease
