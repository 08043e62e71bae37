"""The way of each order: sent, handled in vain, handled.

Producer and listener have message trace: what they do with a message is told to a topic of its own, in the form of
Apache's clients, so ``mqadmin queryMsgTraceById`` shows it as well. Here a listener of that topic prints it. Trace
comes in the background, some seconds after what it tells of.
"""

from __future__ import annotations

from rocketbox import MessageExt, RocketBox, RocketMQTemplate, rocketmq_listener
from rocketbox.client import PubRecord, SubAfterRecord, decode_trace_records

app = RocketBox("orders", scan=[__name__])


@rocketmq_listener(topic="orders", consumer_group="bills", enable_msg_trace=True, delay_level_when_next_consume=1)
async def bill(order: str, message: MessageExt) -> None:
    if not message.reconsume_times:
        raise ConnectionError("the bank does not answer")


@rocketmq_listener(topic="RMQ_SYS_TRACE_TOPIC", consumer_group="trace-board")
async def show(trace: bytes) -> None:
    for record in decode_trace_records(trace):
        match record:
            case PubRecord():
                print(f"{record.keys} was sent by {record.group} to {record.topic}", flush=True)
            case SubAfterRecord():
                outcome = "handled" if record.success else "handled in vain"
                print(f"{record.keys} was {outcome} by {record.group}: {record.code.name}", flush=True)


@app.on_startup
async def order(template: RocketMQTemplate) -> None:
    await template.send("orders", "a cup", keys="order-1")
