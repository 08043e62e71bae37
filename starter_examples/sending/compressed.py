"""A large text that travels small. ``rocketbox run starter_examples.sending.compressed:app``."""

from __future__ import annotations

from rocketbox import Compression, MessageExt, RocketBox, RocketMQTemplate, rocketmq_listener

__all__ = ["app", "read"]

app = RocketBox("compressed", scan=[__name__])


@rocketmq_listener(topic="manuals", consumer_group="readers")
async def read(text: str, message: MessageExt) -> None:
    """Whoever consumes gets what was sent, and need not know how it was stored."""
    print(len(text), "characters, stored in", message.store_size, "bytes", flush=True)


@app.on_startup
async def publish(template: RocketMQTemplate) -> None:
    manual = "Turn it off and on again.\n" * 100_000
    # By itself above 4 KiB (compress-message-body-threshold); here as small as can be said for this one message.
    await template.send("manuals", manual, compression=Compression.ZLIB)
