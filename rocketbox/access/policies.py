"""Policies of ACL 2.0: which actions on which resources a user is allowed or denied, and which of them counts.

Of the entries of the custom policy that match resource, action and address the most specific one counts: literal before
prefix, a longer prefix before a shorter one, before all of a kind, before everything. When none matches, those of the
default policy are asked the same way. When none of these matches either, it is denied.

Dead letters are of any topic: to read them an entry counts that names them, or the right to their group. One to every
topic does not, or who is denied a topic would read what others have failed to consume of it (as at Apache's).

Source: Apache RocketMQ 5.x ``AclAuthorizationHandler``, ``Acl``, ``Policy``, ``PolicyEntry``, ``Resource``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from rocketbox.access.addresses import AddressMatch, source_match
from rocketbox.access.resources import Action, Kind, Need
from rocketbox.protocol.codes import DLQ_PREFIX

__all__ = ["ANY_ACTION", "CUSTOM", "DEFAULT", "Policies", "PolicyEntry", "PolicyRights", "Resource", "read_resource"]

CUSTOM, DEFAULT = "Custom", "Default"
ANY_ACTION = "All"  # how an entry says every action


@dataclass(frozen=True, slots=True)
class Resource:
    """What an entry is about. Without a kind: everything; without a name: all of the kind."""

    kind: Kind | None = None
    name: str | None = None
    prefix: bool = False
    """Whether the name is only the beginning."""

    def matches(self, kind: Kind, name: str) -> bool:
        """Whether it is about that."""
        if self.kind is None:
            return True
        if self.kind is not kind:
            return False
        return self.name is None or (name.startswith(self.name) if self.prefix else name == self.name)

    @property
    def is_literal(self) -> bool:
        """Whether it is about one name."""
        return self.name is not None and not self.prefix

    @property
    def rank(self) -> tuple[int, int]:
        """How specific it is; more is more."""
        if self.kind is None:
            return 0, 0
        if self.name is None:
            return 1, 0
        return (2, len(self.name)) if self.prefix else (3, 0)

    def __str__(self) -> str:
        if self.kind is None:
            return "*"
        return f"{self.kind.value}:{self.name or ''}{'*' if self.prefix or self.name is None else ''}"


def read_resource(text: str) -> Resource:
    """From ``Topic:orders``, ``Group:board*``, ``Cluster:*`` or ``*``. Raises ValueError."""
    if text == "*":
        return Resource()
    kind_text, colon, name = text.partition(":")
    kind = next((kind for kind in Kind if kind.value.lower() == kind_text.lower()), None)
    if kind is None or not colon or not name.strip():
        raise ValueError(f"{text[:100]!r} is no resource; write Topic:NAME, Group:NAME, Cluster:NAME, or *")
    if name == "*":
        return Resource(kind)
    if "*" in name[:-1]:
        raise ValueError(f"{text[:100]!r} has a * that is not at its end")
    return Resource(kind, name.removesuffix("*"), prefix=name.endswith("*"))


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """One line of a policy. ``actions`` is None for all of them; no ``source_ips``: from everywhere.

    Raises ValueError for a source that is neither address nor network.
    """

    resource: Resource
    actions: frozenset[Action] | None
    allow: bool
    source_ips: tuple[str, ...] = ()
    _sources: tuple[AddressMatch, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_sources", tuple(map(source_match, self.source_ips)))

    def matches(self, kind: Kind, name: str, actions: Sequence[Action], host: str) -> bool:
        """Whether it says something of one of these actions on that, from there."""
        return (
            self.resource.matches(kind, name)
            and (self.actions is None or not self.actions.isdisjoint(actions))
            and (not self._sources or any(matches(host) for matches in self._sources))
        )


@dataclass(frozen=True, slots=True)
class Policies:
    """What is said of one user."""

    custom: tuple[PolicyEntry, ...] = ()
    default: tuple[PolicyEntry, ...] = ()

    def find(
        self, kind: Kind, name: str, actions: Sequence[Action], host: str, *, by_name: bool = False
    ) -> PolicyEntry | None:
        """The entry that counts, of those with this very name if ``by_name``. Of two alike, which one table cannot
        hold, the denial would.
        """
        for entries in (self.custom, self.default):
            matching = [
                entry
                for entry in entries
                if entry.matches(kind, name, actions, host) and (entry.resource.is_literal or not by_name)
            ]
            if matching:
                return max(matching, key=lambda entry: (entry.resource.rank, not entry.allow))
        return None

    def with_entries(self, policy: str, entries: Iterable[PolicyEntry]) -> Policies:
        """With these entries, each in place of the one for the same resource."""
        named = {entry.resource: entry for entry in self.of(policy)}
        named.update((entry.resource, entry) for entry in entries)
        return self._with(policy, tuple(named.values()))

    def without(self, policy: str, resource: Resource) -> Policies:
        """Without the entry for a resource."""
        return self._with(policy, tuple(entry for entry in self.of(policy) if entry.resource != resource))

    def of(self, policy: str) -> tuple[PolicyEntry, ...]:
        return self.custom if policy == CUSTOM else self.default

    def _with(self, policy: str, entries: tuple[PolicyEntry, ...]) -> Policies:
        return replace(self, custom=entries) if policy == CUSTOM else replace(self, default=entries)

    def __bool__(self) -> bool:
        return bool(self.custom or self.default)

    def __len__(self) -> int:
        return len(self.custom) + len(self.default)


@dataclass(frozen=True, slots=True)
class PolicyRights:
    """The rights that a normal user has by his policies."""

    user: str
    policies: Policies

    def refusal(self, need: Need, host: str) -> str | None:
        entry = self.policies.find(need.kind, need.name, need.actions, host, by_name=need.by_name)
        if need.group is not None and (entry is None or (entry.allow and need.reads and not _says_dead_letters(entry))):
            entry = self.policies.find(Kind.GROUP, need.group, (Action.SUB,), host)
        if entry is not None and entry.allow:
            return None
        why = "no matched policies." if entry is None else "the decision is deny."
        return f"User:{self.user} has no permission to access {need.resource} from {host}, {why}"


def _says_dead_letters(entry: PolicyEntry) -> bool:
    """Whether an entry is about dead-letter topics, by their name or its beginning, and not about any topics."""
    name = entry.resource.name or ""
    return name.startswith(DLQ_PREFIX) or (name != "" and DLQ_PREFIX.startswith(name))  # Topic:%DLQ*
