"""What each request needs: one table by code, of name server and broker together.

A code that is handled and has no entry is refused. Entries read header fields only; where the resource stands in the
body, or is known when a message was read, the entry is IN_HANDLER: the handler asks ``AccessControl.refusal`` with what
it has read. A test sends every code as every kind of user.

Stricter than Apache's servers, which leave ways to topics and groups of others open: a pull, commit or send for a retry
topic needs the right to *that* group (theirs: to any group that the request names); a message that is viewed or sent
back needs the right to its own topic (theirs: to what the request says it is, or none); topics in which the broker puts
messages of all others aside need a right that names them (theirs: one to every topic does); a reply needs the right to
send replies, whatever topic its copy is for (theirs: none), since who asked gets it all the same; groups and lists of
all topics need a right at all.

Source: Apache RocketMQ 5.x ``DefaultAuthorizationContextBuilder``, ``RocketMQAction`` and ``RocketMQResource`` of the
request headers; 4.9.7 ``PlainAccessValidator``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rocketbox.access.resources import Action, Kind, Need, group_need, topic_need
from rocketbox.protocol.codes import RequestCode
from rocketbox.protocol.namespaces import SEPARATOR
from rocketbox.protocol.request_reply import reply_topic

__all__ = ["IN_HANDLER", "Fields", "Rule", "needs_by_code"]

Fields = Mapping[str, str]
Rule = Callable[[Fields], tuple[Need, ...]]
"""What a request with these fields needs, all of it; nothing: to be somebody is enough."""

PUB, SUB, CREATE, UPDATE, DELETE, GET = (
    Action.PUB, Action.SUB, Action.CREATE, Action.UPDATE, Action.DELETE, Action.GET,
)  # fmt: skip


def IN_HANDLER(fields: Fields) -> tuple[Need, ...]:  # noqa: N802 - stands in the table as a value
    """Nothing of the header: the handler asks, for what it reads elsewhere."""
    return ()


def _somebody(fields: Fields) -> tuple[Need, ...]:
    return ()


def _topic(*actions: Action, field: str = "topic", of_group: tuple[Action, ...] | None = None) -> Rule:
    return lambda fields: (topic_need(fields.get(field, ""), *actions, of_group=of_group),)


def _group(*actions: Action, field: str = "consumerGroup") -> Rule:
    return lambda fields: (group_need(fields.get(field, ""), *actions),)


def _topic_and_group(*actions: Action) -> Rule:
    return lambda fields: (
        topic_need(fields.get("topic", ""), *actions),
        group_need(fields.get("consumerGroup", ""), *actions),
    )


def _send(field: str) -> Rule:
    """To a retry topic: what consuming in its group needs."""
    return _topic(PUB, field=field, of_group=(SUB,))


def _reply(field: str, cluster: str) -> Rule:
    """To send replies of this cluster, or of a namespace in it, and to send to the topic in which the copy is put."""
    of_all, send = reply_topic(cluster), _send(field)
    to_reply = (topic_need(of_all, PUB),)

    def rule(fields: Fields) -> tuple[Need, ...]:
        namespace, _, name = fields.get(field, "").partition(SEPARATOR)
        return send(fields) if name == of_all and namespace else (*to_reply, *send(fields))

    return rule


def _leaving(fields: Fields) -> tuple[Need, ...]:
    group = fields.get("consumerGroup", "")
    return (group_need(group, SUB),) if group.strip() else ()


def needs_by_code(cluster: str) -> Mapping[int, Rule]:
    """The table, of servers of a cluster."""
    to_administer, to_survey = (Need(Kind.CLUSTER, cluster, (UPDATE,)),), (Need(Kind.CLUSTER, cluster, (GET,)),)
    # Who changed users could keep the others out, who registered a broker would be sent their messages.
    to_govern = (Need(Kind.CLUSTER, cluster, (UPDATE,), always=True),)

    def administer(fields: Fields) -> tuple[Need, ...]:
        return to_administer

    def govern(fields: Fields) -> tuple[Need, ...]:
        return to_govern

    def survey(fields: Fields) -> tuple[Need, ...]:
        return to_survey

    return {
        # sending
        RequestCode.SEND_MESSAGE: _send("topic"),
        RequestCode.SEND_MESSAGE_V2: _send("b"),
        RequestCode.SEND_BATCH_MESSAGE: _send("b"),
        RequestCode.SEND_REPLY_MESSAGE: _reply("topic", cluster),
        RequestCode.SEND_REPLY_MESSAGE_V2: _reply("b", cluster),
        RequestCode.RECALL_MESSAGE: _topic(PUB),
        RequestCode.CONSUMER_SEND_MSG_BACK: _group(SUB, field="group"),  # and IN_HANDLER: the message's own topic
        RequestCode.END_TRANSACTION: IN_HANDLER,  # its header need not say the topic
        # consuming
        RequestCode.PULL_MESSAGE: _topic_and_group(SUB),
        RequestCode.QUERY_CONSUMER_OFFSET: _topic_and_group(SUB, GET),
        RequestCode.UPDATE_CONSUMER_OFFSET: _topic_and_group(SUB, UPDATE),
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _topic(GET),
        RequestCode.GET_MAX_OFFSET: _topic(GET),
        RequestCode.GET_MIN_OFFSET: _topic(GET),
        RequestCode.HEART_BEAT: IN_HANDLER,
        RequestCode.UNREGISTER_CLIENT: _leaving,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: _group(SUB, GET),
        RequestCode.LOCK_BATCH_MQ: IN_HANDLER,
        RequestCode.UNLOCK_BATCH_MQ: IN_HANDLER,
        RequestCode.CHECK_CLIENT_CONFIG: _somebody,
        # looking
        RequestCode.QUERY_MESSAGE: _topic(SUB, GET),
        RequestCode.VIEW_MESSAGE_BY_ID: IN_HANDLER,
        RequestCode.GET_ALL_TOPIC_CONFIG: survey,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: survey,
        # topics and groups
        RequestCode.UPDATE_AND_CREATE_TOPIC: _topic(CREATE),
        RequestCode.DELETE_TOPIC_IN_BROKER: _topic(DELETE),
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: IN_HANDLER,
        RequestCode.DELETE_SUBSCRIPTIONGROUP: _group(DELETE, field="groupName"),
        # users and policies
        RequestCode.AUTH_CREATE_USER: govern,
        RequestCode.AUTH_UPDATE_USER: govern,
        RequestCode.AUTH_DELETE_USER: govern,
        RequestCode.AUTH_GET_USER: survey,
        RequestCode.AUTH_LIST_USER: survey,
        RequestCode.AUTH_CREATE_ACL: govern,
        RequestCode.AUTH_UPDATE_ACL: govern,
        RequestCode.AUTH_DELETE_ACL: govern,
        RequestCode.AUTH_GET_ACL: survey,
        RequestCode.AUTH_LIST_ACL: survey,
        # the name server's
        RequestCode.REGISTER_BROKER: govern,
        RequestCode.UNREGISTER_BROKER: govern,
        RequestCode.GET_ROUTEINFO_BY_TOPIC: _topic(PUB, SUB, GET),
        RequestCode.GET_BROKER_CLUSTER_INFO: _somebody,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _somebody,
        RequestCode.DELETE_TOPIC_IN_NAMESRV: administer,
    }
