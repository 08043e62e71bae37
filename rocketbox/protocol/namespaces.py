"""Namespaces: how one name of a user is written for the servers, and back.

Two teams may share a cluster without knowing of each other's names. Of a namespace V1 a client writes the name before
each topic and group, and takes it away from what it is answered; servers know nothing of it:

    alerts           team%alerts                a topic, a group
    %RETRY%desk      %RETRY%team%desk           the retry topic of group desk
    %DLQ%desk        %DLQ%team%desk             its dead-letter topic
    TBW102           TBW102                     what belongs to RocketMQ itself is nobody's
    team%alerts      team%alerts                it is in its namespace already

Of a namespace V2 names stay as they are, and each request says it in two fields of its header. What a server makes of
them is its affair: Apache's brokers and name servers look at neither (5.5.0 and 4.9.7), those of vendors may.

Source: Apache RocketMQ 5.x ``NamespaceUtil``, ``NamespaceRpcHook``, ``NameServerAddressUtils``. Unlike there, a name
of a namespace has no ``%``: cut off at the first one, such names would come back as others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rocketbox.protocol.codes import (
    CLIENT_INNER_PRODUCER,
    DLQ_PREFIX,
    RETRY_PREFIX,
    TOOLS_GROUP,
    is_system_group,
    is_system_topic,
)
from rocketbox.protocol.tags import is_valid_name

__all__ = [
    "NO_NAMESPACE",
    "SEPARATOR",
    "Namespace",
    "header_fields",
    "namespace_of_address",
    "wrong_namespace",
    "wrong_namespace_v2",
]

SEPARATOR: Final = "%"
"""Between a namespace and a name; no namespace has one."""
_OF_CLIENTS = frozenset({CLIENT_INNER_PRODUCER, TOOLS_GROUP})  # groups that brokers know by these very names
_INSTANCE_ADDRESS = re.compile(r"(?:\w+://)?(MQ_INST_\w+_\w+)\..*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace V1; with the empty name there is none, and all names stay as they are."""

    name: str = ""

    def __bool__(self) -> bool:
        return bool(self.name)

    def wrap(self, name: str) -> str:
        """A topic or group as servers know it."""
        if not self.name or not name:
            return name
        prefix, rest = _split(name)
        if _is_of_rocketmq(rest):
            return name
        before = self.name + SEPARATOR
        return name if rest.startswith(before) else f"{prefix}{before}{rest}"

    def unwrap(self, name: str) -> str:
        """A topic or group as its user knows it; a name outside of the namespace stays."""
        if not self.name:
            return name
        prefix, rest = _split(name)
        before = self.name + SEPARATOR
        return prefix + rest[len(before) :] if rest.startswith(before) and len(rest) > len(before) else name

    def has(self, name: str) -> bool:
        """Whether a name, as servers know it, can be meant by a user: it is in the namespace, or RocketMQ's own."""
        return not self.name or _is_of_rocketmq(name) or self.unwrap(name) != name


NO_NAMESPACE: Final = Namespace()


def _split(name: str) -> tuple[str, str]:
    """The beginning of a retry or dead-letter topic, if it is one, and the rest.

    A group may be called like such a topic; its own have both beginnings, and are wrapped as the group is.
    """
    begin = 0
    while prefix := next((each for each in (RETRY_PREFIX, DLQ_PREFIX) if name.startswith(each, begin)), ""):
        begin += len(prefix)
    return name[:begin], name[begin:]


def _is_of_rocketmq(name: str) -> bool:
    return is_system_topic(name) or is_system_group(name) or name in _OF_CLIENTS


def header_fields(namespace_v2: str | None) -> Mapping[str, str]:
    """What each request of a namespace V2 says in its header; nothing where there is none."""
    return {} if namespace_v2 is None else {"nsd": "true", "ns": namespace_v2}


def wrong_namespace(name: str) -> str | None:
    """Why a text can be no namespace V1; None: it can."""
    if not name.strip():
        return "it is blank"
    if SEPARATOR in name:
        return f"it holds {SEPARATOR}, which stands between a namespace and a name"
    if not is_valid_name(name):
        return "it may hold letters, digits and | _ -"
    return None


def wrong_namespace_v2(name: str) -> str | None:
    """Why a text can be no namespace V2; None: it can."""
    if not name.strip():
        return "it is blank"
    if not name.isprintable() or not name.isascii():
        return "it holds a character that cannot stand in a header"
    return None


def namespace_of_address(name_server: str) -> str | None:
    """The namespace V1 that Apache's Java client reads out of a name server's address; None: there is none.

    That is the first label of an address such as ``http://MQ_INST_1234567890_BabcdeF.mq.example:80``.
    """
    found = _INSTANCE_ADDRESS.fullmatch(name_server.strip())
    return None if found is None else found[1]
