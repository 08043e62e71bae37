"""A service whose payloads only its own converter can read."""

from __future__ import annotations

import anyio
import pytest

from rocketbox.errors import ConfigurationError
from tests.support.framework.services import ServiceMaker
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio

TRACKS = """
    from __future__ import annotations

    from rocketbox import PayloadError, RocketBox, bean, rocketmq_listener, send_to

    app = RocketBox("flight-desk", scan=[__name__])
    seen = []

    class Track:  # nothing that pydantic could read
        def __init__(self, *points):
            self.points = points

    class Other: ...

    @bean
    class Packed:
        def to_body(self, payload: Track) -> bytes:
            return bytes(payload.points)

        def from_body(self, body: bytes, type_: type) -> Track:
            return Track(*body)

        def check(self, type_: type) -> None:
            if type_ is not Track:
                raise PayloadError(f"no body can be read as {type_.__name__}")

    @rocketmq_listener(topic="tracks", consumer_group="desk")
    @send_to("turned")
    async def on_track(track: Track) -> Track:
        return Track(*reversed(track.points))

    @rocketmq_listener(topic="turned", consumer_group="turned")
    async def on_turned(tracks: list[Track]) -> None:
        seen.extend(track.points for track in tracks)
"""


async def test_payloads_go_through_the_users_converter_both_ways(service: ServiceMaker) -> None:
    module = service(TRACKS)
    async with module.app as app:
        await app.template.send("tracks", module.Track(1, 2, 3))
        with anyio.fail_after(PATIENCE):
            while not module.seen:
                await anyio.sleep(0.02)
    assert module.seen == [(3, 2, 1)]


async def test_what_it_cannot_read_ends_the_start_before_any_listener_runs(
    service: ServiceMaker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    module = service(TRACKS.replace("on_turned(tracks: list[Track])", "on_turned(tracks: list[Other])"))
    with pytest.raises(ConfigurationError, match=r"'tracks' that cannot be read: no body can be read as Other"):
        async with module.app:
            raise AssertionError("it started")
    assert "template: producer group desk" in caplog.text
    assert "listener on_track" not in caplog.text
