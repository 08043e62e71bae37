"""What several processes of one service would do to each other: refused, or given to each worker on its own."""

from __future__ import annotations

import pytest

from rocketbox.cli.workers import check_workers, own_settings
from rocketbox.errors import ConfigurationError
from tests.support.framework.services import SETTINGS, ServiceMaker

BROADCAST = """
    from rocketbox import MessageModel, RocketBox, rocketmq_listener

    app = RocketBox("desk", scan=[__name__])

    @rocketmq_listener(topic="gates", consumer_group="board", message_model=MessageModel.BROADCASTING)
    def on_gate(gate: str) -> None:
        print(gate)
"""

LAKE = """
    from pyspark.sql import DataFrame
    from rocketbox import RocketBox, rocketmq_spark_listener

    app = RocketBox("desk", scan=[__name__])

    @rocketmq_spark_listener(topic="departures", consumer_group="lake")
    def to_lake(departures: DataFrame) -> None:
        departures.show()
"""


def test_broadcasting_needs_a_name_for_each_workers_file_of_offsets(service: ServiceMaker) -> None:
    app = service(BROADCAST).app
    with pytest.raises(ConfigurationError) as caught:
        check_workers(app.look(), 2)
    (finding,) = caught.value.findings
    assert "group board is BROADCASTING" in finding.what
    assert finding.where is not None
    assert finding.where.startswith("service_")
    assert "set rocketmq.consumer.instance-name" in str(finding.fix)
    check_workers(app.look(), 1)
    check_workers(app.look(arguments=["--rocketmq.consumer.instance-name=board"]), 2)


def test_a_name_of_the_client_gets_the_workers_number(service: ServiceMaker) -> None:
    settings = SETTINGS + "\n  # two clients of one name would count as one\n"
    settings = settings.replace("producer: {group: desk}", "producer: {group: desk, instance-name: tower}")
    assembly = service(BROADCAST, settings).app.look()
    assert list(own_settings(assembly, 3, None)) == ["--rocketmq.producer.instance-name=tower-3"]


def test_all_clusters_get_the_address_of_the_embedded_servers_they_share(service: ServiceMaker) -> None:
    settings = """
        rocketmq:
          name-server: embedded
          clusters:
            audit: {name-server: embedded}
            far: {name-server: "192.0.2.1:9876", consumer: {instance-name: far}}
    """
    assembly = service(BROADCAST, settings).app.look()
    assert list(own_settings(assembly, 1, "127.0.0.1:9999")) == [
        "--rocketmq.name-server=127.0.0.1:9999",
        "--rocketmq.clusters.audit.name-server=127.0.0.1:9999",
        "--rocketmq.clusters.far.consumer.instance-name=far-1",
    ]


def test_spark_listeners_are_refused(service: ServiceMaker) -> None:
    pytest.importorskip("pyspark")
    assembly = service(LAKE).app.look()
    assert assembly.findings == []
    with pytest.raises(ConfigurationError) as caught:
        check_workers(assembly, 2)
    (finding,) = caught.value.findings
    assert "Spark query of group lake on the same checkpoint" in finding.what
    assert "without --workers" in str(finding.fix)
    check_workers(assembly, 1)
