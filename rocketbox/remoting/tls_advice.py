"""What to do where a connection to a server fails by TLS, by the settings of the side that connects.

A client has keys of its own for that. A broker is connected to name servers as well; it has the settings of its ports,
and believes no certificate but its own.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TO_BROKERS", "TO_CLIENTS", "TlsAdvice", "advice_to_clients"]


@dataclass(frozen=True, kw_only=True)
class TlsAdvice:
    """What is to be done, each as the end of a sentence; ``{name}`` is that of the server."""

    no_answer: str
    """Without TLS, to a server that answers nothing."""
    no_tls: str
    """With TLS, to a server without."""
    no_certificate: str
    """A server wants a certificate, and there is none."""
    refused: str
    """A server does not accept the certificate that it is shown."""
    unknown_ca: str
    wrong_name: str


def advice_to_clients(prefix: str) -> TlsAdvice:
    """That to the clients of a cluster whose settings stand below ``prefix``."""
    tls = f"{prefix}.tls"
    return TlsAdvice(
        no_answer=f"where it speaks TLS alone, set {tls}.enable",
        no_tls=f"switch TLS on there, or off here ({tls}.enable); nothing was sent without it",
        no_certificate=f"set {tls}.cert-file and {tls}.key-file",
        refused=f"correct {tls}.cert-file",
        unknown_ca=f"set {tls}.ca-file to the certificate of its CA",
        wrong_name=f"set {tls}.server-name to one that stands in it, or have it made for {{name}}",
    )


TO_CLIENTS = advice_to_clients("rocketmq")

_SAME_FILES = "let tls-server-cert-path and tls-server-key-path be the same files here and there"

TO_BROKERS = TlsAdvice(
    no_answer=f"where it speaks TLS alone, {_SAME_FILES}",
    no_tls="switch TLS on there, or off here (tls-server-cert-path); nothing was sent without it",
    no_certificate=_SAME_FILES,
    refused="correct tls-server-cert-path, here or there",
    unknown_ca=f"brokers believe a name server that shows their own certificate, and no other: {_SAME_FILES}",
    wrong_name=_SAME_FILES,
)
