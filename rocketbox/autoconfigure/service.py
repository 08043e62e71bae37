"""What auto-configurations know of the application that they are built for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any

from rocketbox.autoconfigure.machine import Machine
from rocketbox.boot.marks import Qualifier
from rocketbox.client import ClientOptions, Credentials, MQClientInstance
from rocketbox.client.cached_bytes import CachedBytes
from rocketbox.clock import Clock
from rocketbox.template import MessageConverter, RocketMQTemplate
from rocketbox.template.content_types import read_payload, write_payload

__all__ = ["ConverterInUse", "ConverterLookup", "LentSecrets", "Service", "TemplateLookup", "of_cluster"]

KEPT_SETS = 4  # of each owner's secrets: what is logged a moment later may still quote those before


class LentSecrets:
    """Secrets that come while the application runs, such as new keys: they are put into ``shown_nowhere``.

    The last few sets of each owner stay there, so that who gets new ones every minute for a year does no harm.
    ``changed`` is called behind each change.
    """

    def __init__(self, shown_nowhere: set[str], is_public: Callable[[str], bool] = lambda user: False) -> None:
        self.changed: list[Callable[[], None]] = []
        self._is_public = is_public
        self._shown_nowhere = shown_nowhere
        self._of: dict[object, deque[frozenset[str]]] = {}

    def put(self, owner: object, secrets: Iterable[str], *, user: str | None = None) -> None:
        """Keep these from being shown, from now on; ``user`` among them not where it ``is_public``."""
        shown = {user} if user is not None and self._is_public(user) else set()
        self._of.setdefault(owner, deque(maxlen=KEPT_SETS)).append(frozenset(secrets) - shown)
        self._shown_nowhere.clear()
        self._shown_nowhere.update(*(each for sets in self._of.values() for each in sets))
        for tell in self.changed:
            tell()


@dataclass(frozen=True)
class Service:
    """The application's name, what it runs on, and what its clients may hold together.

    ``where(key)`` says where a setting was written (None: it is a default). ``of_all_clients`` are the options below
    ``rocketbox.client``. ``mask`` takes the secrets of the settings out of a text.
    """

    name: str
    machine: Machine
    where: Callable[[str], str | None]
    cached_bytes: CachedBytes
    lent_secrets: LentSecrets = field(default_factory=lambda: LentSecrets(set()))
    of_all_clients: Mapping[str, Any] = field(default_factory=dict)
    mask: Callable[[str], str] | None = None

    @property
    def clock(self) -> Clock:
        return self.machine.clock

    def client(self, name_server: str | Sequence[str], options: ClientOptions) -> MQClientInstance:
        """A client that runs where the application runs, and shares what its clients may hold."""
        machine = self.machine
        instance = MQClientInstance(
            name_server,
            options=replace(options, mask=self.mask, **{**self.of_all_clients, **machine.client_options}),
            clock=machine.clock,
            network=machine.network,
            storage=machine.storage,
            cached_bytes=self.cached_bytes,
        )
        if instance.keys is not None:
            instance.keys.on_renewed.append(partial(self._put_lent, instance))
        return instance

    def _put_lent(self, instance: MQClientInstance, keys: Credentials) -> None:
        is_alone = keys.access_key not in (keys.secret_key, keys.security_token)
        self.lent_secrets.put(instance, keys.secrets, user=keys.access_key if is_alone else None)

    @property
    def folder(self) -> Path:
        """Where the service keeps what it keeps, below the current folder."""
        return Path(".rocketbox") / self.name


@dataclass(frozen=True)
class TemplateLookup:
    """``of(cluster)`` is the template of a further cluster; ConfigurationError, with what would mend it, for none."""

    of: Callable[[str], RocketMQTemplate]


@dataclass(frozen=True)
class ConverterLookup:
    """``provider()`` is what gives the converter bean when it is called."""

    provider: Callable[[], Callable[[], MessageConverter]]


class ConverterInUse:
    """The converter bean, asked for at each call: one that overrides it while the application runs counts at once."""

    def __init__(self, lookup: ConverterLookup) -> None:
        self._lookup = lookup

    @cached_property
    def _now(self) -> Callable[[], MessageConverter]:
        return self._lookup.provider()

    def to_body(self, payload: Any) -> bytes:
        return self._now().to_body(payload)

    def from_body(self, body: bytes, type_: Any) -> Any:
        return self._now().from_body(body, type_)

    def encode(self, payload: Any, content_type: str | None) -> tuple[bytes, str | None]:
        return write_payload(self._now(), payload, content_type)

    def decode(self, body: bytes, type_: Any, content_type: str | None) -> Any:
        return read_payload(self._now(), body, type_, content_type)

    def check(self, type_: Any) -> None:
        self._now().check(type_)


def of_cluster(type_: Any, cluster: str | None) -> Any:
    """The hint by which a bean of a cluster is asked for; None, and the empty name, are the main one."""
    return Annotated[type_, Qualifier(cluster)] if cluster else type_
