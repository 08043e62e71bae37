"""TLS for Apache's servers and Java clients, and for ours, from one CA.

Apache's defaults trust everybody (``tls.test.mode.enable``); what is asked for here is what a company asks for: TLS
alone, certificates that are checked, and a certificate of each client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rocketbox.client import ClientOptions, TlsOptions
from tests.support.certificates import authority, certificate, write

__all__ = ["TlsFiles"]


@dataclass(frozen=True)
class TlsFiles:
    """Certificates in a folder, and the settings that use them."""

    folder: Path

    def __post_init__(self) -> None:
        for name, made in (("ca", authority()), ("server", certificate()), ("client", certificate("client"))):
            write(self.folder, name, made)

    @property
    def client_options(self) -> ClientOptions:
        """Of our client."""
        tls = TlsOptions(
            ca_file=self.folder / "ca.pem",
            cert_file=self.folder / "client.pem",
            key_file=self.folder / "client-key.pem",
        )
        return ClientOptions(tls_enable=True, tls=tls)

    @property
    def broker_arguments(self) -> Sequence[str]:
        """Of ``rocketbox broker``."""
        return (
            f"--tls-server-cert-path={self.folder / 'server.pem'}",
            f"--tls-server-key-path={self.folder / 'server-key.pem'}",
            f"--tls-server-trust-cert-path={self.folder / 'ca.pem'}",
            "--tls-server-need-client-auth=require",
        )

    @property
    def java_options(self) -> Sequence[str]:
        """Of Apache's servers, which are clients of each other, of its clients, and of mqadmin."""
        return [
            f"-D{name}={value}"
            for name, value in {
                "tls.test.mode.enable": "false",
                "tls.enable": "true",
                "tls.client.authServer": "true",
                "tls.client.trustCertPath": self.folder / "ca.pem",
                "tls.client.certPath": self.folder / "client.pem",
                "tls.client.keyPath": self.folder / "client-key.pem",
                "tls.server.mode": "enforcing",
                "tls.server.certPath": self.folder / "server.pem",
                "tls.server.keyPath": self.folder / "server-key.pem",
                "tls.server.trustCertPath": self.folder / "ca.pem",
                "tls.server.authClient": "true",
                "tls.server.need.client.auth": "require",
            }.items()
        ]
