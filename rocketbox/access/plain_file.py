"""Reading ``plain_acl.yml``: safe YAML of bounded size, everything wrong with it told at once, each with its line.

Apache's server takes what it can and ignores the rest: a misspelt right is DENY, an unknown key nothing. Here each is a
finding, and the table before stays. No finding repeats a value of a key that holds a secret.

Source: Apache RocketMQ 4.9.7 ``PlainPermissionManager``, ``PlainAccessConfig``, ``Permission``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Final

import yaml

from rocketbox.access.addresses import AddressMatch, plain_match
from rocketbox.access.plain import Perm, PlainAccount, PlainRights, PlainTable
from rocketbox.access.resources import Kind, name_problem
from rocketbox.errors import ConfigurationError, Finding

__all__ = ["LARGEST", "read_plain_acl"]

LARGEST: Final = 1 << 20  # bytes
MOST_DEPTH = 10
SHORTEST_KEY = 7  # characters; Apache's ACCESS_KEY_MIN_LENGTH, which must be exceeded
LONGEST_KEY = 255
SHOWN = 60
_TAG = "tag:yaml.org,2002:"
_PERMS = {"DENY": Perm.DENY, "PUB": Perm.PUB, "SUB": Perm.SUB, "PUB|SUB": Perm.PUB | Perm.SUB,
          "SUB|PUB": Perm.PUB | Perm.SUB}  # fmt: skip
_ACCOUNT_KEYS = (
    "accessKey", "secretKey", "whiteRemoteAddress", "admin", "defaultTopicPerm", "defaultGroupPerm", "topicPerms",
    "groupPerms",
)  # fmt: skip
_FILE_KEYS = ("globalWhiteRemoteAddresses", "accounts", "dataVersion")  # the last is Apache's own note


def read_plain_acl(text: str, label: str) -> PlainTable:
    """The table that the text of a file means; ``label`` is the file's name for findings. Raises ConfigurationError."""
    reader = _Reader(label)
    table = reader.table(text)
    if reader.findings:
        raise ConfigurationError(reader.findings)
    return table


class _Reader:
    def __init__(self, label: str) -> None:
        self.findings: list[Finding] = []
        self._label = label

    def table(self, text: str) -> PlainTable:
        root = self._root(text)
        if root is None:
            return PlainTable()
        values = self._entries(root, _FILE_KEYS, "the file")
        trusted = [
            match
            for node in self._list(values.get("globalWhiteRemoteAddresses"), "globalWhiteRemoteAddresses")
            if (match := self._address(node)) is not None
        ]
        accounts: dict[str, PlainAccount] = {}
        for node in self._list(values.get("accounts"), "accounts"):
            account = self._account(node)
            if account is None:
                continue
            if account.rights.name in accounts:
                self._wrong(node, "an accessKey is in the file twice", "keep one of the two accounts")
            accounts[account.rights.name] = account
        return PlainTable(accounts=accounts, trusted=tuple(trusted))

    def _root(self, text: str) -> yaml.Node | None:
        if len(text) > LARGEST:
            self.findings.append(
                Finding(f"{self._label} has more than {LARGEST} characters", self._label, "shorten it")
            )
            return None
        try:
            depth = 0
            for event in yaml.parse(text, Loader=yaml.SafeLoader):  # this one does not call itself for each level
                depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
                if depth > MOST_DEPTH or isinstance(event, yaml.AliasEvent):
                    what = "refers to an anchor (*...)" if depth <= MOST_DEPTH else "is nested too deeply"
                    self._wrong(event, f"{self._label} {what}", "write it out, as Apache's plain_acl.yml has it")
                    return None
            found: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
            where = self._label if mark is None else f"{self._label}:{mark.line + 1}:{mark.column + 1}"
            fix = "correct this line or the one before it"
            self.findings.append(Finding(f"{self._label} is not valid YAML", where, fix))
            return None
        if found is None or (isinstance(found, yaml.ScalarNode) and found.tag == _TAG + "null"):
            return None
        return found

    def _account(self, node: yaml.Node) -> PlainAccount | None:
        values = self._entries(node, _ACCOUNT_KEYS, "an account")
        before = len(self.findings)
        access_key = self._key(node, values.get("accessKey"), "accessKey")
        secret_key = self._key(node, values.get("secretKey"), "secretKey")
        address = values.get("whiteRemoteAddress")
        rights = PlainRights(
            name=access_key,
            admin=self._flag(values.get("admin"), "admin"),
            default_topic_perm=self._perm(values.get("defaultTopicPerm"), "defaultTopicPerm"),
            default_group_perm=self._perm(values.get("defaultGroupPerm"), "defaultGroupPerm"),
            topic_perms=dict(self._perms(values.get("topicPerms"), "topicPerms", Kind.TOPIC)),
            group_perms=dict(self._perms(values.get("groupPerms"), "groupPerms", Kind.GROUP)),
        )
        trusted = self._address(address) if address is not None and not _is_null(address) else None
        if len(self.findings) > before:
            return None
        return PlainAccount(rights=rights, secret_key=secret_key, trusted=trusted)

    def _entries(self, node: yaml.Node, known: tuple[str, ...], what: str) -> dict[str, yaml.Node]:
        if not isinstance(node, yaml.MappingNode):
            self._wrong(node, f"{what} is no group of keys", f"write {known[0]}: ... and so on")
            return {}
        found: dict[str, yaml.Node] = {}
        for key, value in node.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else ""
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)  # what is near to none may be a secret
                meant = f" of this name; did you mean {near[0]}?" if near else " like this"
                self._wrong(key, f"{what} has no key{meant}", f"there are {', '.join(known)}")
            elif name in found:
                self._wrong(key, f"{name} is written twice", "keep one of the two")
            else:
                found[name] = value
        return found

    def _list(self, node: yaml.Node | None, name: str) -> list[yaml.Node]:
        if node is None or _is_null(node):
            return []
        if not isinstance(node, yaml.SequenceNode):
            self._wrong(node, f"{name} is no list", "write one line for each, beginning with -")
            return []
        return list(node.value)

    def _text(self, node: yaml.Node, name: str) -> str | None:
        if isinstance(node, yaml.ScalarNode) and not _is_null(node):
            return str(node.value)
        self._wrong(node, f"{name} is no text", "write a plain value")
        return None

    def _key(self, account: yaml.Node, node: yaml.Node | None, name: str) -> str:
        if node is None:
            self._wrong(account, f"an account has no {name}", f"write {name}: ...")
            return ""
        text = self._text(node, name)
        if text is not None and not SHORTEST_KEY <= len(text) <= LONGEST_KEY:
            what = f"{name} has {len(text)} characters"
            self._wrong(node, what, f"choose {SHORTEST_KEY} to {LONGEST_KEY} characters")
        return text or ""

    def _flag(self, node: yaml.Node | None, name: str) -> bool:
        if node is None or _is_null(node):
            return False
        text = self._text(node, name)
        if text is not None and text.lower() not in {"true", "false"}:
            self._wrong(node, f"{name} is {text.lower()[:SHOWN]!r}", "write true or false")
        return text is not None and text.lower() == "true"

    def _perm(self, node: yaml.Node | None, name: str) -> Perm:
        text = None if node is None or _is_null(node) else self._text(node, name)
        return Perm.DENY if node is None or text is None else self._perm_of(node, name, text.strip())

    def _perm_of(self, node: yaml.Node, name: str, text: str) -> Perm:
        if text not in _PERMS:
            self._wrong(node, f"{name} says {text[:SHOWN]!r}", f"write one of {', '.join(_PERMS)}")
        return _PERMS.get(text, Perm.DENY)

    def _perms(self, node: yaml.Node | None, name: str, kind: Kind) -> Iterator[tuple[str, Perm]]:
        seen: set[str] = set()
        for each in self._list(node, name):
            text = self._text(each, name)
            if text is None:
                continue
            resource, equals, perm = text.partition("=")
            resource = resource.strip()
            if not equals or not resource:
                self._wrong(each, f"{name} has an entry that is not NAME=PERM", "write for example orders=PUB|SUB")
            elif resource in seen:
                self._wrong(each, f"{name} names {resource[:SHOWN]!r} twice", "keep one of the two")
            elif (problem := name_problem(kind, resource)) is not None:
                self._wrong(each, f"{name} names {resource[:SHOWN]!r}, {problem[0]}", problem[1])
            else:
                seen.add(resource)
                yield resource, self._perm_of(each, f"{name}, {resource[:SHOWN]}:", perm.strip())

    def _address(self, node: yaml.Node) -> AddressMatch | None:
        text = self._text(node, "an address")
        if text is None:
            return None
        try:
            return plain_match(text)
        except (ValueError, StopIteration) as error:
            fix = "write for example 10.0.0.7, 10.0.0.{1,2}, 10.0.* or 10.0.0.1-99"
            self._wrong(node, f"{text[:SHOWN]!r} is no pattern of addresses: {str(error)[:SHOWN]}", fix)
            return None

    def _wrong(self, at: yaml.Node | yaml.Event, what: str, fix: str) -> None:
        mark = at.start_mark
        where = self._label if mark is None else f"{self._label}:{mark.line + 1}:{mark.column + 1}"
        self.findings.append(Finding(what, where, fix))


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == _TAG + "null"
