"""Spans of OpenTelemetry that are asked for where it is not installed."""

from __future__ import annotations

import sys

import pytest

from rocketbox.errors import ConfigurationError
from rocketbox.otel import MessageSpans, is_set_up
from tests.support.framework.services import ServiceMaker

SOURCE = """
from rocketbox import RocketBox

app = RocketBox("desk", scan=[__name__])
"""


@pytest.fixture
def without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)  # an import of it fails


def test_who_asks_for_spans_is_told_what_to_install(without_it: None) -> None:
    assert not is_set_up()
    with pytest.raises(ConfigurationError) as caught:
        MessageSpans()
    assert caught.value.findings[0].fix == "pip install rocketbox[otel]"


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_service_that_asks_for_them_does_not_start_and_names_the_key(
    without_it: None, service: ServiceMaker
) -> None:
    settings = "rocketmq.name-server: 127.0.0.1:1\nrocketmq.startup: retry\nrocketbox.otel.enabled: true\n"
    settings += "rocketmq.producer.group: desk\n"
    module = service(SOURCE, settings)
    with pytest.raises(ConfigurationError) as caught:
        async with module.app:
            raise AssertionError("it has started")
    (finding,) = caught.value.findings
    assert finding.what.startswith("rocketbox.otel.enabled is true: ")
    assert finding.where == "rocketbox.yaml:3:25"
    assert finding.fix == "pip install rocketbox[otel]"
