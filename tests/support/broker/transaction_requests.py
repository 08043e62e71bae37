"""Transactions by the requests of a client: half messages, their ends, and what consumers have of them."""

from __future__ import annotations

from rocketbox.protocol.codes import RequestCode
from rocketbox.protocol.command import RemotingCommand
from tests.support.broker.in_memory import BrokerWire

__all__ = ["COMMIT", "ROLL_BACK", "UNKNOWN", "bodies", "end", "half"]

COMMIT, ROLL_BACK, UNKNOWN = 8, 12, 0


async def half(wire: BrokerWire, name: str, properties: str = "", topic: str = "orders") -> dict[str, str]:
    """Send a half message; the fields of a request that ends it."""
    text = f"UNIQ_KEY\x01{name}\x02TRAN_MSG\x01true\x02PGROUP\x01payers\x02{properties}"
    answer = await wire.send(topic, name.encode(), properties=text, a="payers", f=4)
    assert answer.code == 0, answer.remark
    fields = dict(answer.ext_fields)
    assert fields["transactionId"] == name
    return {
        "producerGroup": "payers",
        "tranStateTableOffset": fields["queueOffset"],
        "commitLogOffset": str(int(fields["msgId"][-16:], 16)),
        "msgId": name,
        "transactionId": name,
    }


async def end(wire: BrokerWire, fields: dict[str, str], how: int, **more: object) -> RemotingCommand:
    return await wire.broker(RequestCode.END_TRANSACTION, {**fields, "commitOrRollback": how, **more})


async def bodies(wire: BrokerWire, topic: str = "orders") -> list[bytes]:
    return [message.body for message in await wire.messages(topic)]
