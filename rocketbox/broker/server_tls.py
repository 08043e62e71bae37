"""TLS of the broker's and the name server's ports, from the broker's settings, and of what they say to each other.

What is wrong with the settings and files is found here, before anything listens. How connections use them is
``remoting``'s part.

Source: Apache RocketMQ 5.x ``TlsSystemConfig`` (tls.server.mode and the rest; its default is permissive with a
certificate that it makes itself, which nobody can check).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from rocketbox.broker.options import BrokerOptions
from rocketbox.errors import ConfigurationError, Finding
from rocketbox.remoting.network import TcpNetwork
from rocketbox.remoting.tls import ServerTlsOptions, TlsMode, own_refusal, tls_findings
from rocketbox.remoting.tls_advice import TO_BROKERS
from rocketbox.remoting.tls_files import LoopbackTls, ServerTls

__all__ = ["server_network", "server_tls_findings", "tls_options_of"]


def tls_options_of(options: BrokerOptions) -> ServerTlsOptions:
    """What the settings ask for; without a mode it is enforcing where there is a certificate."""
    cert = _path(options.tls_server_cert_path)
    return ServerTlsOptions(
        mode=options.tls_server_mode or (TlsMode.DISABLED if cert is None else TlsMode.ENFORCING),
        cert_path=cert,
        key_path=_path(options.tls_server_key_path),
        key_password=options.tls_server_key_password,
        trust_cert_path=_path(options.tls_server_trust_cert_path),
        need_client_auth=options.tls_server_need_client_auth,
    )


def server_tls_findings(
    options: BrokerOptions, prefix: str = "", places: Mapping[str, str] | None = None
) -> list[Finding]:
    """Everything wrong with the settings and what their files hold now."""
    asked = tls_options_of(options)
    said = places or {}

    def where(option: str) -> str | None:
        key = _key(option)
        return next((place for written, place in said.items() if _plain(written) == _plain(key)), None)

    def named(option: str) -> str:
        return f"{prefix}{_key(option)}"

    if asked.mode is TlsMode.DISABLED:
        if options.tls_server_mode is not None or asked == ServerTlsOptions():
            return []
        given = [each.name for each in fields(asked) if getattr(asked, each.name) != each.default]
        what = f"{' and '.join(map(named, given))} set, and {named('cert_path')} is not"
        return [Finding(f"there is {what}", where(given[0]), "set the certificate as well, or leave them out")]
    findings = tls_findings(asked, named, where)
    if not findings and (refusal := own_refusal(asked)) is not None:
        what = f"the certificate in {asked.cert_path}, which the broker shows its name server, is refused: {refusal}"
        fix = (
            f"let {named('trust_cert_path')} hold its CA too, and let the certificate be for clients as well "
            "(extendedKeyUsage clientAuth)"
        )
        findings.append(Finding(what, where("cert_path"), fix))
    return findings


def server_network(options: BrokerOptions) -> TcpNetwork:
    """The network of a broker and the name server beside it. Raises ConfigurationError for files that are of no use."""
    asked = tls_options_of(options)
    size = options.server_socket_snd_buf_size
    if findings := server_tls_findings(options):
        raise ConfigurationError(findings)
    if asked.mode is TlsMode.DISABLED:
        return TcpNetwork(send_buffer_bytes=size, advice=TO_BROKERS)
    return TcpNetwork(send_buffer_bytes=size, tls=LoopbackTls(asked), accepted_tls=ServerTls(asked, _key))


def _key(option: str) -> str:
    return f"tls-server-{option.replace('_', '-')}"


def _plain(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
