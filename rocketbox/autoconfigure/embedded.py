"""Auto-configuration of the embedded servers, which ``rocketmq.name-server: embedded`` starts beside the service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from rocketbox.autoconfigure.properties import EmbeddedProperties, RocketBoxProperties
from rocketbox.autoconfigure.service import Service
from rocketbox.boot.conditions import on_missing_bean, on_property
from rocketbox.boot.marks import Phase, bean
from rocketbox.errors import ConfigurationError, Finding, StoreLockedError
from rocketbox.local_servers import LocalServers

if TYPE_CHECKING:
    from rocketbox.embedded import EmbeddedOptions

__all__ = ["embedded_options", "embedded_servers"]

PREFIX = "rocketbox.embedded."


@bean(
    on_property("rocketmq.enabled", missing=True),
    on_property("rocketmq.name-server", having="embedded"),
    on_missing_bean(LocalServers),
    phase=Phase.INFRASTRUCTURE,
)
async def embedded_servers(properties: RocketBoxProperties, service: Service) -> AsyncIterator[LocalServers]:
    """Name server and broker beside the service; on a real machine its code may block its own loop meanwhile."""
    servers = service.machine.servers(embedded_options(properties.embedded, service))
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(servers)
        except StoreLockedError as error:
            key = f"{PREFIX}data-dir"
            what = f"the store {error.directory} is in use by another broker"
            fix = f"stop that one, or set {key} to another folder"
            place = service.where(key) or f"{key} by default"
            raise ConfigurationError(Finding(what, place, fix)) from error
        yield servers


def embedded_options(properties: EmbeddedProperties, service: Service) -> EmbeddedOptions:
    """The servers' options; keys that are not named there go to the broker, which knows Apache's."""
    from rocketbox.embedded import EmbeddedOptions  # here: a service with servers elsewhere loads no broker

    broker = {"flush-disk-type": properties.flush_disk_type, **(properties.model_extra or {})}
    named = [field.alias or name for name, field in EmbeddedProperties.model_fields.items()]
    places = {key: place for key in (*named, *broker) if (place := service.where(PREFIX + key))}
    return EmbeddedOptions(
        data_dir=properties.data_dir or service.folder / "store",
        host=properties.host,
        port=properties.port,
        name_server_port=properties.name_server_port,
        insecure=properties.insecure,
        broker=broker,
        places=places,
    )
