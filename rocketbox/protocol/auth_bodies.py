"""Users and policies as administrators send and read them: the JSON bodies of codes 3001 to 3010.

What is a user, a right or a valid resource is the ``access`` package's part; here are texts, lists and nothing else.

Source: Apache RocketMQ 5.x ``UserInfo``, ``AclInfo``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rocketbox.errors import RemoteProtocolError
from rocketbox.protocol.loose_json import loads_loose

__all__ = [
    "AclInfo",
    "PolicyEntryInfo",
    "PolicyInfo",
    "UserInfo",
    "decode_acl",
    "decode_user",
    "encode_acl",
    "encode_acls",
    "encode_user",
    "encode_users",
]


@dataclass(frozen=True, kw_only=True)
class UserInfo:
    """A user; what is None is not said. The password goes to a server and never comes from ours."""

    username: str | None = None
    password: str | None = field(default=None, repr=False)
    user_type: str | None = None
    user_status: str | None = None


@dataclass(frozen=True, kw_only=True)
class PolicyEntryInfo:
    """One line of a policy."""

    resource: str | None
    actions: tuple[str, ...]
    source_ips: tuple[str, ...]
    decision: str | None


@dataclass(frozen=True, kw_only=True)
class PolicyInfo:
    """Lines of one kind; None: Custom."""

    policy_type: str | None
    entries: tuple[PolicyEntryInfo, ...]


@dataclass(frozen=True, kw_only=True)
class AclInfo:
    """All that is said of one subject (``User:name``)."""

    subject: str | None
    policies: tuple[PolicyInfo, ...]


def decode_user(body: bytes) -> UserInfo:
    """Raises RemoteProtocolError; what stands in the body is in no error, for it holds a password."""
    values = _object(_loads(body, "a user"), "a user")
    return UserInfo(
        username=_text(values, "username"),
        password=_text(values, "password"),
        user_type=_text(values, "userType"),
        user_status=_text(values, "userStatus"),
    )


def decode_acl(body: bytes) -> AclInfo:
    """Raises RemoteProtocolError."""
    values = _object(_loads(body, "policies"), "policies")
    policies = []
    for policy in _list(values, "policies"):
        policy = _object(policy, "a policy")
        entries = []
        for entry in _list(policy, "entries"):
            entry = _object(entry, "an entry of a policy")
            entries.append(
                PolicyEntryInfo(
                    resource=_text(entry, "resource"),
                    actions=_texts(entry, "actions"),
                    source_ips=_texts(entry, "sourceIps"),
                    decision=_text(entry, "decision"),
                )
            )
        policies.append(PolicyInfo(policy_type=_text(policy, "policyType"), entries=tuple(entries)))
    return AclInfo(subject=_text(values, "subject"), policies=tuple(policies))


def encode_user(user: UserInfo) -> bytes:
    return _dumps(_user(user))


def encode_users(users: Iterable[UserInfo]) -> bytes:
    return _dumps([_user(user) for user in users])


def encode_acl(acl: AclInfo) -> bytes:
    return _dumps(_acl(acl))


def encode_acls(acls: Iterable[AclInfo]) -> bytes:
    return _dumps([_acl(acl) for acl in acls])


def _user(user: UserInfo) -> dict[str, Any]:
    values = {
        "username": user.username,
        "password": user.password,
        "userType": user.user_type,
        "userStatus": user.user_status,
    }
    return {name: value for name, value in values.items() if value is not None}


def _acl(acl: AclInfo) -> dict[str, Any]:
    policies = [
        {
            "policyType": policy.policy_type,
            "entries": [
                {
                    "resource": entry.resource,
                    "actions": list(entry.actions),
                    **({"sourceIps": list(entry.source_ips)} if entry.source_ips else {}),
                    "decision": entry.decision,
                }
                for entry in policy.entries
            ],
        }
        for policy in acl.policies
    ]
    return {"subject": acl.subject, "policies": policies}


def _dumps(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _loads(body: bytes, what: str) -> Any:
    try:
        return loads_loose(body)
    except (ValueError, RecursionError):
        raise RemoteProtocolError(f"the body is no JSON of {what}") from None


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"{what} is a {type(value).__name__}, not an object")
    return value


def _text(values: dict[str, Any], name: str) -> str | None:
    value = values.get(name)
    if value is not None and not isinstance(value, str):
        raise RemoteProtocolError(f"{name} is a {type(value).__name__}, not a text")
    return value


def _list(values: dict[str, Any], name: str) -> list[Any]:
    value = values.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise RemoteProtocolError(f"{name} is a {type(value).__name__}, not a list")
    return value


def _texts(values: dict[str, Any], name: str) -> tuple[str, ...]:
    found = _list(values, name)
    if not all(isinstance(each, str) for each in found):
        raise RemoteProtocolError(f"{name} has something in it that is no text")
    return tuple(found)
