"""Asking, and what an answer that says no becomes.

Who may do what is refused with code 16 by 5.x servers, and with code 1 and an exception's name by ACL 1.0 of 4.x. Code
16 also stands for topics, groups and brokers that take or give no messages; only the words tell the two apart.

What a refusal is about stands in its words too, the topic or the group; which permission it is follows from the
request. Measured with 4.9.7 and 5.5.0:

    5.5.0, code 16                                                    | 4.9.7, code 1, in an AclException
    User:publisher has no permission to access Topic:t from 10.0.0.1, | No default permission for topic:t (group:g)
    no matched policies. (or: the decision is deny.)                  | Need admin permission for request code=17, ...
    username cannot be null.                                          | No accessKey is configured
    User:publisher is not found.  User:publisher is disabled.         | No acl config for publisher
    check signature failed.                                           | Check signature failed for accessKey=publisher

Source: Apache RocketMQ 5.x ``MQClientAPIImpl`` (``MQBrokerException`` for every code that is not the expected one),
``AuthenticationException``, ``AuthorizationException``, ``DefaultAuthorizationContextBuilder`` (which request takes
which permission); 4.9.7 ``PlainPermissionManager`` (``AclException``), ``PlainAccessResource``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from rocketbox.errors import AccessDeniedError, BrokerError
from rocketbox.protocol.codes import DLQ_PREFIX, RETRY_PREFIX, RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.remoting.acl import Credentials, beginning_of
from rocketbox.remoting.client import RemotingClient

__all__ = ["ask", "refusal"]

_OF_THE_TOPIC_OR_BROKER = (  # for everybody, whoever asks
    "is forbidden", "group no permission",
    " is the most (",  # a limit of the embedded broker, with its setting
)  # fmt: skip
_RESOURCE = re.compile(r"\b(topic|group|cluster):([%|\w-]+)", re.IGNORECASE)
_WRONG_KEYS = re.compile(
    r"username cannot be null|signature|no accesskey|no acl config|user:\S+ is (?:not found|disabled)|unauthenticated",
    re.IGNORECASE,
)
_BEFORE_A_USER = "(User:|accessKey=|acl config for )"
_USER = re.compile(rf"{_BEFORE_A_USER}([^\s,]+)")
_ADMIN = re.compile(r"need admin permission", re.IGNORECASE)

LONGEST_READ = 2000  # characters of a remark that are looked through, which takes longer than it is long

_SEND = {
    RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
}  # fmt: skip
_CONSUME = {
    RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, RequestCode.QUERY_MESSAGE, RequestCode.HEART_BEAT,
    RequestCode.UNREGISTER_CLIENT, RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ, RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.UPDATE_CONSUMER_OFFSET,
}  # fmt: skip
_PERMISSIONS: Mapping[int, str] = {
    **dict.fromkeys(map(int, _SEND), "PUB"),
    **dict.fromkeys(map(int, _CONSUME), "SUB"),
    **dict.fromkeys(
        (RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP), "GET"
    ),
    RequestCode.RECALL_MESSAGE: "PUB",
    RequestCode.UPDATE_AND_CREATE_TOPIC: "CREATE",
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: "CREATE",
    RequestCode.DELETE_TOPIC_IN_BROKER: "DELETE",
    RequestCode.DELETE_SUBSCRIPTIONGROUP: "DELETE",
}


def refusal(
    answer: RemotingCommand,
    address: str,
    code: int,
    fields: Mapping[str, str] | None = None,
    credentials: Credentials | None = None,
) -> BrokerError:
    """The error that an answer of address stands for; AccessDeniedError when it is about who asked.

    ``code`` and ``fields`` are the request's: they say what is asked for where the words of the answer do not.
    ``credentials`` are those of the client, as :attr:`RemotingClient.credentials` has them.
    """
    remark = (answer.remark or "")[:LONGEST_READ]
    users = _users(credentials)
    words = users.sub(r"\1_", remark)  # what the server says itself; a user may be called anything
    denied = answer.code == ResponseCode.NO_PERMISSION and not any(each in words for each in _OF_THE_TOPIC_OR_BROKER)
    denied |= answer.code == ResponseCode.SYSTEM_ERROR and "AclException" in words
    if not denied:
        return BrokerError(answer.code, answer.remark, address)
    who = credentials.who if credentials is not None else None
    shown = users.sub(lambda said: said[1] + beginning_of(said[2]), remark) or None
    if _WRONG_KEYS.search(_RESOURCE.sub(r"\1", words)):  # without its name: a topic may be one of signatures
        return AccessDeniedError(answer.code, shown, address, who=who, wrong_keys=True)
    resource = _resource(words, fields or {})
    permission = "ADMIN" if _ADMIN.search(words) else _PERMISSIONS.get(code)
    if resource is not None and resource.startswith("group ") and code in _SEND:
        permission = "SUB"  # a retry is sent: who may consume for a group may do that
    return AccessDeniedError(answer.code, shown, address, who=who, permission=permission, resource=resource)


def _users(credentials: Credentials | None) -> re.Pattern[str]:
    """What finds the names of users in a remark: that of the client, which may have spaces, and any without."""
    if credentials is None:
        return _USER
    return re.compile(rf"{_BEFORE_A_USER}({re.escape(credentials.access_key)}(?=[\s,]|$)|[^\s,]+)")


def _resource(remark: str, fields: Mapping[str, str]) -> str | None:
    """What a refusal is about: as its words say, else as the request does."""
    if (said := _RESOURCE.search(remark)) is not None:
        return f"{said[1].lower()} {said[2]}"
    topic, group = fields.get("topic"), fields.get("consumerGroup", fields.get("group"))
    if topic and topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        group = group or topic.removeprefix(RETRY_PREFIX).removeprefix(DLQ_PREFIX)
        topic = None
    asked = " and ".join(f"{kind} {name}" for kind, name in (("topic", topic), ("group", group)) if name)
    return asked or None


async def ask(
    remoting: RemotingClient, address: str, command: RemotingCommand, *, timeout: float, also: tuple[int, ...] = ()
) -> RemotingCommand:
    """The answer to command, whose code is 0 or one of also.

    Raises BrokerError for any other code, RemotingError when no answer came.
    """
    answer = await remoting.request(address, command, timeout=timeout)
    if answer.code != 0 and answer.code not in also:
        raise refusal(answer, address, command.code, command.ext_fields, remoting.credentials)
    return answer
