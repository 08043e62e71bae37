"""``missing-topic: fail`` holds for Spark listeners as for others: known at the start, before any Java runs."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from rocketbox.errors import ConfigurationError
from tests.support.framework.services import ServiceMaker
from tests.support.spark.topics import Broker

pytestmark = pytest.mark.anyio

SOURCE = """
from pyspark.sql import DataFrame
from rocketbox import RocketBox, rocketmq_spark_listener

app = RocketBox("flight-desk", scan=[__name__])

@rocketmq_spark_listener(topic="nowhere", consumer_group="lake")
def to_lake(rows: DataFrame) -> None: ...
"""


async def test_a_service_does_not_start_without_the_topic_of_its_spark_listener(
    service: ServiceMaker, broker: Broker
) -> None:
    settings = f"rocketmq: {{name-server: '{broker.name_server}', consumer: {{missing-topic: fail}}}}\n"
    with pytest.raises(ConfigurationError) as failure:
        async with service(SOURCE, settings).app:
            pytest.fail("it must not start")
    (finding,) = failure.value.findings
    assert finding.what == (
        f"topic nowhere of Spark listener to_lake does not exist at name server {broker.name_server}"
    )
    assert finding.fix == "create it, or set rocketmq.consumer.missing-topic: wait"
