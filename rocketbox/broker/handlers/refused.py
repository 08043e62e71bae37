"""The error by which a handler's checks end: what the peer is answered instead.

Source: Apache RocketMQ 5.x ``AbstractSendMessageProcessor.msgCheck``, ``PullMessageProcessor`` (checks).
"""

from __future__ import annotations

from collections.abc import Mapping

from rocketbox.protocol.codes import TRANSACTION_GROUP, ResponseCode
from rocketbox.protocol.command import RemotingCommand

__all__ = ["Refused", "TopicNotWrittenError", "check_committer"]


class Refused(Exception):  # noqa: N818 - ends the checks of a handler, which answers it; it never leaves the handlers
    """A request is answered with this code and remark, and nothing is done."""

    def __init__(self, code: ResponseCode, remark: str, ext_fields: Mapping[str, str] | None = None) -> None:
        self.code = code
        self.remark = remark
        self.ext_fields = ext_fields
        super().__init__(remark)

    def response(self) -> RemotingCommand:
        return RemotingCommand.response(self.code, self.remark, self.ext_fields)


def check_committer(group: str) -> None:
    """Refuse to take an offset for the group by which the broker itself reads its transactions at a start.

    Moved ahead, transactions that are open would be forgotten, and those that have ended checked once more.
    """
    if group == TRANSACTION_GROUP:
        raise Refused(
            ResponseCode.NO_PERMISSION,
            f"the offsets of group {group} say how far the broker itself has come with its transactions; a client "
            "cannot commit them",
        )


class TopicNotWrittenError(Exception):
    """A message is for a topic that the next start would not know yet: it is taken when that has changed."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(topic)
