"""The end of a transaction, as a producer tells it (37).

Source: Apache RocketMQ 5.x ``MQClientAPIImpl.endTransactionOneway``.
"""

from __future__ import annotations

from rocketbox.client.api.answers import ask
from rocketbox.message import LocalTransactionState
from rocketbox.protocol.codes import RequestCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.headers import EndTransactionRequestHeader
from rocketbox.remoting.client import RemotingClient

__all__ = ["end_transaction"]


async def end_transaction(
    remoting: RemotingClient,
    address: str,
    state: LocalTransactionState,
    *,
    group: str,
    topic: str | None,
    queue_offset: int,
    commit_log_offset: int,
    msg_id: str,
    transaction_id: str | None,
    broker_name: str | None,
    remark: str | None = None,
    from_check: bool = False,
    answered: bool = False,
    timeout: float,
) -> None:
    """Tell a broker how a transaction has ended, one-way as Apache's clients do: it does not answer.

    ``answered``: return when it has, which Apache's brokers do where the end is known. The offsets are those of the
    half message. Raises ConnectError, TooManyRequestsError: nothing was sent; ConnectionClosedError; with ``answered``
    also RequestTimeoutError, and BrokerError where the end is refused.
    """
    wrap = remoting.namespace.wrap
    header = EndTransactionRequestHeader(
        topic=topic and wrap(topic),
        producer_group=wrap(group),
        tran_state_table_offset=queue_offset,
        commit_log_offset=commit_log_offset,
        commit_or_rollback=state.value,
        from_transaction_check=from_check,
        msg_id=msg_id,
        transaction_id=transaction_id,
        bname=broker_name,
    )
    command = RemotingCommand(RequestCode.END_TRANSACTION, remark=remark, ext_fields=header.encode())
    if answered:
        await ask(remoting, address, command, timeout=timeout)
    else:
        await remoting.send_oneway(address, command, timeout=timeout)
