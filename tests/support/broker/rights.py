"""What a user may do, as the table in docs/how-to/users-and-keys.md says it for ACL 1.0 and 2.0; there it is read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from rocketbox.client import Credentials
from rocketbox.protocol.namespaces import Namespace
from tests.support.broker.access import ADMIN

__all__ = ["May", "account", "documented", "plain_acl"]

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "users-and-keys.md"


@dataclass(frozen=True)
class May:
    """What a user may: resources with their permissions, as each of the two says it."""

    topics: Mapping[str, str] = field(default_factory=dict)
    """Of ``plain_acl.yml``: PUB, SUB or both."""
    groups: Mapping[str, str] = field(default_factory=dict)
    policies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Of ACL 2.0: actions by ``Topic:name`` or ``Group:name``."""

    def __or__(self, other: May) -> May:
        return May(
            {**self.topics, **other.topics}, {**self.groups, **other.groups}, {**self.policies, **other.policies}
        )

    def within(self, namespace: str) -> May:
        """The same of the topics and groups in a namespace V1; of an empty one as it is."""
        wrap = Namespace(namespace).wrap
        policies = {}
        for resource, actions in self.policies.items():
            kind, _, name = resource.partition(":")
            policies[f"{kind}:{wrap(name)}"] = actions
        return May(
            {wrap(name): may for name, may in self.topics.items()},
            {wrap(name): may for name, may in self.groups.items()},
            policies,
        )


def documented(purpose: str) -> May:
    """What the row of the page gives whose first column begins with purpose."""
    table = PAGE.read_text("utf-8").partition("## What the user has to be allowed")[2].partition("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in table.splitlines() if line.startswith(f"| {purpose}")]
    ((_, four, five),) = rows
    plain = re.findall(r"`(topic|group)Perms: ([^`=]+)=([A-Z|]+)`", four)
    policies = re.findall(r"`([A-Z][\w,]*)` on `((?:Topic|Group):[^`]+)`", five)
    assert plain, f"no permissions of 4.9 in the row of {purpose!r}"
    assert policies, f"no permissions of 5.x in the row of {purpose!r}"
    return May(
        {name: permission for kind, name, permission in plain if kind == "topic"},
        {name: permission for kind, name, permission in plain if kind == "group"},
        {resource: tuple(actions.split(",")) for actions, resource in policies},
    )


def account(user: Credentials, may: May) -> dict[str, object]:
    """A user as ``plain_acl.yml`` has him."""
    return {
        "accessKey": user.access_key,
        "secretKey": user.secret_key,
        "defaultTopicPerm": "DENY",
        "defaultGroupPerm": "DENY",
        "topicPerms": [f"{name}={permission}" for name, permission in may.topics.items()],
        "groupPerms": [f"{name}={permission}" for name, permission in may.groups.items()],
    }


def plain_acl(accounts: Iterable[Mapping[str, object]]) -> str:
    """``plain_acl.yml`` with these and the administrator."""
    admin = {"accessKey": ADMIN.access_key, "secretKey": ADMIN.secret_key, "admin": True}
    return yaml.safe_dump({"globalWhiteRemoteAddresses": [], "accounts": [admin, *map(dict, accounts)]})
