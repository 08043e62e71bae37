"""What is said when a name or a state is wrong while a service runs: what was written, and what to write instead."""

from __future__ import annotations

import pytest

from rocketbox.autoconfigure.service import TemplateLookup
from rocketbox.errors import ConfigurationError, NotStartedError
from tests.support.framework.services import ServiceMaker

APP = "from rocketbox import RocketBox\napp = RocketBox('desk', scan=[__name__])\n"
SETTINGS = "rocketmq: {name-server: 'ns:9876', producer: {group: desk}, clusters: {audit: {name-server: 'ns:9876'}}}\n"


@pytest.mark.parametrize(
    ("cluster", "fix"), [("audits", "did you mean 'audit'?"), ("eu", "set rocketmq.clusters.eu.name-server")]
)
def test_a_send_to_a_cluster_that_is_not_there_says_which_there_are(
    service: ServiceMaker, cluster: str, fix: str
) -> None:
    templates = service(APP, SETTINGS).app.look().container.get(TemplateLookup)
    with pytest.raises(ConfigurationError) as caught:
        templates.of(cluster)
    (finding,) = caught.value.findings
    assert (finding.what, finding.fix) == (
        f"a send names cluster {cluster!r}, and there is none of that name",
        fix,
    )


def test_a_background_that_is_not_started_says_how_it_is_started(service: ServiceMaker) -> None:
    background = service(APP, SETTINGS).app.background()
    with pytest.raises(NotStartedError, match=r"call its start\(\), or use it inside 'with'"):
        background.call(print)
