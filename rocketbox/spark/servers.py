"""Which servers Spark's processes ask, and as whom: options of every read and write, the same for all of them.

Each process has a client of its own for them (``worker_client``); a listener tells its query those of its own client.
Pure: no client, no Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rocketbox.protocol.namespaces import wrong_namespace, wrong_namespace_v2
from rocketbox.spark.option_values import OptionValues, SourceOption

__all__ = ["KEYS_ARE_NO_OPTIONS", "SERVER_OPTIONS", "Servers", "SparkTls", "servers_of"]

SERVER_OPTIONS = (
    SourceOption(
        "nameServer", "`host:port`, several with `;`. Needed.", kafka=("kafka.bootstrap.servers", "bootstrap.servers")
    ),
    SourceOption(
        "namespace",
        "The namespace of topics and groups, which stand here, and in the column `topic`, without it.",
    ),
    SourceOption(
        "credentialsFile",
        "A file with the keys (ACL) of the user whose requests these are, as `rocketmq.credentials-file` has it. Each "
        "process of Spark reads it, and again when it changes, so it has to be at this path on all machines. Keys "
        "themselves are no options: Spark shows those in plans and in its UI.",
    ),
    SourceOption("namespaceV2", "The namespace that is sent in a header, for servers of vendors that read it."),
    SourceOption(
        "tlsEnable", "`true`: connections are encrypted. Its files are read where Spark's tasks run.", "false"
    ),
    SourceOption("tlsCaFile", "Certificates of the CAs that those of the servers must lead to (PEM)."),
    SourceOption("tlsCertFile", "The certificate that is shown to servers which want one (PEM)."),
    SourceOption("tlsKeyFile", "Its private key (PEM), without a password: options stand in Spark's plans."),
    SourceOption("tlsServerName", "The name that the servers' certificates must have, in place of their address."),
    SourceOption("tlsVerify", "`false`: any certificate is taken, and whoever is in between can read all.", "true"),
)
_TLS_TEXTS = ("tlsCaFile", "tlsCertFile", "tlsKeyFile", "tlsServerName")


@dataclass(frozen=True)
class SparkTls:
    """How connections are encrypted; paths are those of the machines that Spark's tasks run on."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    server_name: str | None = None
    verify: bool = True


KEYS_ARE_NO_OPTIONS = dict.fromkeys(
    ("accesskey", "secretkey", "securitytoken"), "Spark shows options, so keys go in a file: say credentialsFile"
)
"""Names, in small letters, that somebody may look for in vain."""


@dataclass(frozen=True)
class Servers:
    """The servers of one cluster, the namespace in which they are asked, TLS if it is used, and where the keys are."""

    name_server: str
    namespace: str | None = None
    namespace_v2: str | None = None
    tls: SparkTls | None = None
    credentials_file: str | None = None

    def told(self) -> dict[str, str]:
        """They as options of a read or a write."""
        said = {"nameServer": self.name_server, "namespace": self.namespace, "namespaceV2": self.namespace_v2}
        if (tls := self.tls) is not None:
            said |= {"tlsEnable": "true", "tlsVerify": "true" if tls.verify else "false"}
            texts = (tls.ca_file, tls.cert_file, tls.key_file, tls.server_name)
            said |= dict(zip(_TLS_TEXTS, texts, strict=True))
        said["credentialsFile"] = self.credentials_file
        return {name: value for name, value in said.items() if value is not None}

    @property
    def names_are_of(self) -> str | None:
        """What tells one name from the same one elsewhere; a checkpoint is for one of them.

        No namespace V1 has a colon, so that one of V2 is no other of V1.
        """
        return self.namespace if self.namespace_v2 is None else f"V2:{self.namespace_v2}"


def servers_of(values: OptionValues) -> Servers:
    """The servers that options name. Raises ValueError naming the option and what would be right."""
    if "namespace" in values and "namespaceV2" in values:
        raise ValueError("options namespace and namespaceV2 are both given; keep one of them")
    return Servers(
        values.name_server(),
        _namespace(values, "namespace", wrong_namespace),
        _namespace(values, "namespaceV2", wrong_namespace_v2),
        _tls(values),
        values.text("credentialsFile"),
    )


def _tls(values: OptionValues) -> SparkTls | None:
    verify = values.switch("tlsVerify", True)
    if not values.switch("tlsEnable", False):
        given = [name for name in (*_TLS_TEXTS, "tlsVerify") if name in values]
        if given and "tlsEnable" not in values:
            raise ValueError(f"option {given[0]} is given and tlsEnable is not, so that nothing would be encrypted")
        return None
    ca_file, cert_file, key_file, server_name = map(values.text, _TLS_TEXTS)
    return SparkTls(ca_file, cert_file, key_file, server_name, verify)


def _namespace(values: OptionValues, option: str, check: Callable[[str], str | None]) -> str | None:
    name = values.text(option)
    if name is not None and (why := check(name)) is not None:
        raise ValueError(f"option {option} is {name!r}: {why}")
    return name
