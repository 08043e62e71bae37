"""TLS as settings say it: what the files hold, the contexts that are made of them, and a handshake's failure in words.

Both sides refuse everything below TLS 1.2 and every renegotiation. A client checks the server's certificate and name
unless it is told not to, and never goes on without TLS. When files change while they are used is ``tls_files``' part,
how a connection uses a context ``tls_session``'s.

Source: Apache RocketMQ 5.x ``TlsHelper``, ``TlsSystemConfig`` (names of the server's settings and its modes; Apache's
own defaults trust everybody).
"""

from __future__ import annotations

import errno
import re
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated, Final

from rocketbox.declarations import Words, check_options
from rocketbox.errors import ConfigurationError, Finding
from rocketbox.remoting.tls_advice import TO_CLIENTS, TlsAdvice
from rocketbox.safe_repr import equal_by_fields

__all__ = [
    "SPEAKS_NO_TLS",
    "ClientAuth",
    "HandshakeError",
    "ServerTlsOptions",
    "TlsMode",
    "TlsOptions",
    "client_context",
    "is_refused_certificate",
    "loopback_client_context",
    "own_refusal",
    "server_context",
    "tls_findings",
    "why_the_client_failed",
    "why_the_server_failed",
]

MAX_FILE_BYTES: Final = 4 << 20  # of certificates or keys; the bundles of whole systems have 300 KiB

_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----[\x20-\x7e\s]*?-----END CERTIFICATE-----")

SPEAKS_NO_TLS: Final = (
    "plain",
    "it does not speak TLS, and tls-server-mode is enforcing (tls.enable of the client's cluster, tls-server-cert-path "
    "of brokers)",
)
"""What kept a server from a TLS connection, as :func:`why_the_server_failed` says it."""

Named = Callable[[str], str]


class TlsMode(Enum):
    """Whether a server's port speaks TLS: never, with those who begin with it, or with everybody."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ClientAuth(Enum):
    """Whether clients have to show a certificate: never, they may, or they must."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


@dataclass(frozen=True, kw_only=True)
class TlsOptions:
    """How a client's connections are encrypted; all files are PEM. They are looked at again before each connection.

    Raises ConfigurationError for a text that is blank. What the files hold is seen when a client is made of them.
    """

    ca_file: Annotated[
        Path | None,
        Words("certificates of the CAs that those of the servers must lead to (PEM); none: the system's own"),
    ] = None
    cert_file: Annotated[
        Path | None, Words("the certificate that is shown to servers which want one, with its chain (PEM)")
    ] = None
    key_file: Annotated[Path | None, Words("its private key (PEM); none: it stands in cert-file")] = None
    key_password: Annotated[str | None, Words("the password of that key, if it is encrypted")] = field(
        default=None, repr=False
    )
    server_name: Annotated[
        str | None,
        Words("the name that the certificate of each server must have; none: the host or address connected to"),
    ] = None
    verify: Annotated[
        bool,
        Words("false: any certificate is taken, so that whoever is in between can read and change all; logged"),
    ] = True

    def __post_init__(self) -> None:
        check_options(self)

    __eq__ = equal_by_fields

    @property
    def files(self) -> tuple[Path, ...]:
        """What is read, in a fixed order."""
        return _some(self.ca_file, self.cert_file, self.key_file)


@dataclass(frozen=True, kw_only=True)
class ServerTlsOptions:
    """How a server's ports are encrypted, in Apache's words; all files are PEM, and looked at again every second."""

    mode: TlsMode = TlsMode.DISABLED
    cert_path: Path | None = None
    key_path: Path | None = None
    key_password: str | None = field(default=None, repr=False)
    trust_cert_path: Path | None = None
    need_client_auth: ClientAuth = ClientAuth.NONE

    @property
    def files(self) -> tuple[Path, ...]:
        """What is read, in a fixed order."""
        return _some(self.cert_path, self.key_path, self.trust_cert_path)


class HandshakeError(OSError):
    """A TLS handshake did not succeed; ``strerror`` says which check failed, and what to do."""

    def __init__(self, words: str) -> None:
        super().__init__(errno.EPROTO, words)


def _some(*paths: Path | None) -> tuple[Path, ...]:
    return tuple(path for path in paths if path is not None)


# --- contexts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Problem:
    """What is wrong with an option."""

    option: str
    what: str
    fix: str

    def finding(self, named: Named, where: Callable[[str], str | None]) -> Finding:
        return Finding(f"{named(self.option)}{self.what}", where(self.option), self.fix)


def tls_findings(
    options: TlsOptions | ServerTlsOptions,
    named: Named = str,
    where: Callable[[str], str | None] = lambda option: None,
) -> list[Finding]:
    """Everything wrong with the files of options, as they are now.

    ``named`` tells how an option is called where it was written, ``where`` in which line. No secret is in the words.
    """
    _, problems = _client(options) if isinstance(options, TlsOptions) else _server(options)
    return [problem.finding(named, where) for problem in problems]


def client_context(options: TlsOptions, named: Named = str) -> ssl.SSLContext:
    """What a client's connections are made with. Raises ConfigurationError with everything that is wrong."""
    return _raised(*_client(options), named)


def server_context(options: ServerTlsOptions, named: Named = str) -> ssl.SSLContext:
    """What a server's connections are made with. Raises ConfigurationError with everything that is wrong."""
    return _raised(*_server(options), named)


def loopback_client_context(options: ServerTlsOptions) -> ssl.SSLContext:
    """For a server's connections to another one with the same files: it trusts this certificate and no other.

    Its name does not matter, for no other server has its key; of the CAs behind it in its file, which others have
    theirs of too, none is trusted. Raises ConfigurationError.
    """
    assert options.cert_path is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _harden(context)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    problems = [*_load_trusted(context, "cert_path", options.cert_path, first_alone=True)]
    problems += _load_pair(context, _server_pair(options))
    return _raised(context, problems, str)


def own_refusal(options: ServerTlsOptions) -> str | None:
    """Why a server with these files would not believe another one with the same, if it would not."""
    if options.need_client_auth is ClientAuth.NONE:
        return None
    server, client = server_context(options), loopback_client_context(options)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)]
    try:
        for _ in range(4):  # turns, which TLS 1.2 needs
            for side in sides:
                with suppress(ssl.SSLWantReadError):
                    side.do_handshake()
    except ssl.SSLError as error:
        return getattr(error, "verify_message", "") or _words_of(error)
    return None


def _raised(context: ssl.SSLContext, problems: list[_Problem], named: Named) -> ssl.SSLContext:
    if problems:
        raise ConfigurationError([problem.finding(named, lambda option: None) for problem in problems])
    return context


def _harden(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION


def _client(options: TlsOptions) -> tuple[ssl.SSLContext, list[_Problem]]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _harden(context)
    problems: list[_Problem] = []
    if not options.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if options.ca_file is not None:
        problems += _load_trusted(context, "ca_file", options.ca_file)
    elif options.verify:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if options.cert_file is not None:
        problems += _load_pair(
            context,
            _Pair(options.cert_file, options.key_file, options.key_password, "cert_file", "key_file", "key_password"),
        )
    else:
        for option, value in (("key_file", options.key_file), ("key_password", options.key_password)):
            if value is not None:
                problems.append(_Problem(option, " is set and its certificate is not", "set the cert-file beside it"))
    if options.server_name is not None and not _is_name(options.server_name):
        problems.append(
            _Problem("server_name", f" is {options.server_name!r}, which is no name or address of a server",
                     "write the name that stands in the servers' certificates, without port")
        )  # fmt: skip
    return context, problems


def _server(options: ServerTlsOptions) -> tuple[ssl.SSLContext, list[_Problem]]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _harden(context)
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    # Connections live for days: nobody needs to resume a handshake. The ids by which TLS 1.2 can do that without a
    # ticket cannot be switched off; tls_session looks at the certificate then.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    problems: list[_Problem] = []
    if options.cert_path is None:
        what = f" is {options.mode.value}, and there is no certificate"
        problems.append(_Problem("mode", what, "set the certificate's file (tls-server-cert-path) and its key's"))
    else:
        problems += _load_pair(context, _server_pair(options))
    if options.trust_cert_path is not None:
        problems += _load_trusted(context, "trust_cert_path", options.trust_cert_path)
    if options.need_client_auth is not ClientAuth.NONE:
        if options.trust_cert_path is None:
            what = f" is {options.need_client_auth.value}, and nothing says whose certificates are taken"
            fix = "set tls-server-trust-cert-path to the CA that signs those of the clients"
            problems.append(_Problem("need_client_auth", what, fix))
        required = options.need_client_auth is ClientAuth.REQUIRE
        if required and options.mode is TlsMode.PERMISSIVE:
            what = " is require, and whoever speaks no TLS is served without any certificate: the mode is permissive"
            fix = "set tls-server-mode to enforcing, or tls-server-need-client-auth to optional as long as it is not"
            problems.append(_Problem("need_client_auth", what, fix))
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return context, problems


@dataclass(frozen=True)
class _Pair:
    cert: Path
    key: Path | None
    password: str | None = field(repr=False)
    cert_option: str
    key_option: str
    password_option: str


def _server_pair(options: ServerTlsOptions) -> _Pair:
    assert options.cert_path is not None
    return _Pair(
        options.cert_path, options.key_path, options.key_password, "cert_path", "key_path", "key_password"
    )  # fmt: skip


def _is_name(text: str) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname=text)
    except ValueError:
        return False
    return not set(text) & set("/:*") or text.count(":") > 1  # IPv6 has several


def _unreadable(option: str, path: Path) -> Iterator[_Problem]:
    """What keeps a file from being read, if anything does."""
    try:
        if path.is_dir():
            yield _Problem(option, f" is {path}, which is a directory", "write the path of a file in PEM form")
        elif path.exists() and not path.is_file():
            yield _Problem(option, f" is {path}, which is no plain file", "write the path of a file in PEM form")
        elif path.stat().st_size > MAX_FILE_BYTES:
            yield _Problem(option, f" is {path}, which is too large for certificates", "write the path of a PEM file")
        else:
            path.read_bytes()
    except FileNotFoundError:
        yield _Problem(option, f" is {path}, and there is no such file", f"correct the path ({path.absolute()})")
    except (OSError, ValueError) as error:
        yield _not_read(option, path, error)


def _not_read(option: str, path: Path, error: Exception) -> _Problem:
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    fix = "let the user of this process read it, or write another path"
    return _Problem(option, f" is {path}, which cannot be read: {reason}", fix)


def _no_certificate(option: str, path: Path) -> _Problem:
    return _Problem(option, f" is {path}, which holds no certificate in PEM form", "write the path of one")


def _load_trusted(context: ssl.SSLContext, option: str, path: Path, *, first_alone: bool = False) -> Iterator[_Problem]:
    problems = list(_unreadable(option, path))
    yield from problems
    if not problems:
        try:
            if first_alone:
                found = _CERTIFICATE.search(path.read_bytes())
                context.load_verify_locations(cadata=ssl.PEM_cert_to_DER_cert(found[0].decode() if found else ""))
            else:
                context.load_verify_locations(cafile=path)
        except (ssl.SSLError, ValueError):
            yield _no_certificate(option, path)
        except OSError as error:
            yield _not_read(option, path, error)


def _load_pair(context: ssl.SSLContext, pair: _Pair) -> Iterator[_Problem]:
    """Load a certificate and its key into a context; what keeps them from being loaded."""
    key_option, key = (pair.key_option, pair.key) if pair.key is not None else (pair.cert_option, pair.cert)
    problems = list(_unreadable(pair.cert_option, pair.cert))
    if pair.key is not None:
        problems += _unreadable(pair.key_option, pair.key)
    if problems:
        yield from problems
        return
    asked = False

    def password() -> str:  # without it OpenSSL would ask whoever sits at the terminal
        nonlocal asked
        asked = True
        return pair.password or ""

    try:
        context.load_cert_chain(pair.cert, pair.key, password)
    except ssl.SSLError as error:
        if error.reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"):
            what = f" is {key}, which is not the key of the certificate in {pair.cert}"
            yield _Problem(key_option, what, "write the path of its key")
        elif asked and pair.password is None:
            what = f" is {key}, whose key is encrypted, and no password is set"
            yield _Problem(key_option, what, "set the key's password, or write the path of a key without one")
        elif asked:
            yield _Problem(pair.password_option, f" does not open the key in {key}", "write the password of that key")
        elif error.reason and error.reason.endswith(("TOO_SMALL", "TOO_WEAK")):
            yield _Problem(
                pair.cert_option, f" is {pair.cert}, which is too weak: {error.reason}", "make a stronger one"
            )
        elif list(_load_trusted(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), pair.cert_option, pair.cert)):
            yield _no_certificate(pair.cert_option, pair.cert)
        else:
            what = f" is {key}, which holds no private key in PEM form"
            yield _Problem(key_option, what, "write the path of the key")
    except OSError as error:
        yield _not_read(pair.cert_option, pair.cert, error)
    except ValueError:  # more than 1,023 bytes
        yield _Problem(pair.password_option, " is too long for a password of a key", "write that of the key")


# --- failures in words -----------------------------------------------------------------------------------------------

_EXPIRED, _NOT_YET = 10, 9  # X509_V_ERR_CERT_...
_UNKNOWN_CA: Final = frozenset({2, 18, 19, 20, 21})  # X509_V_ERR: no issuer, self-signed, ...
_WRONG_NAME: Final = frozenset({62, 64})  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
_NO_TLS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE",
     "BAD_PACKET_LENGTH", "UNEXPECTED_MESSAGE"}
)  # fmt: skip
_NO_VERSION: Final = frozenset(
    {"TLSV1_ALERT_PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL", "VERSION_TOO_LOW", "NO_PROTOCOLS_AVAILABLE",
     "TLSV1_ALERT_INAPPROPRIATE_FALLBACK", "NO_SHARED_CIPHER",
     "TLSV1_ALERT_INSUFFICIENT_SECURITY", "NO_SHARED_GROUPS", "NO_SUITABLE_SIGNATURE_ALGORITHM"}
)  # fmt: skip
_WANTS_CERTIFICATE: Final = frozenset({"TLSV13_ALERT_CERTIFICATE_REQUIRED", "PEER_DID_NOT_RETURN_A_CERTIFICATE"})
_REFUSES_CERTIFICATE: Final = frozenset(
    {"SSLV3_ALERT_BAD_CERTIFICATE", "SSLV3_ALERT_CERTIFICATE_UNKNOWN", "SSLV3_ALERT_CERTIFICATE_EXPIRED",
     "SSLV3_ALERT_CERTIFICATE_REVOKED", "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE", "TLSV1_ALERT_UNKNOWN_CA",
     "TLSV1_ALERT_ACCESS_DENIED", "SSLV3_ALERT_NO_CERTIFICATE"}
)  # fmt: skip


def _reason(error: BaseException | None) -> str:
    return (getattr(error, "reason", None) or "") if isinstance(error, ssl.SSLError) else ""


def _words_of(error: BaseException) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or error.strerror or type(error).__name__).replace("_", " ").lower()
    if isinstance(error, OSError):
        return error.strerror or str(error) or type(error).__name__
    return str(error) or type(error).__name__


def is_refused_certificate(error: BaseException | None) -> bool:
    """Whether the other side says that it does not take this side's certificate, or the lack of one.

    A server of TLS 1.3 says so when the client believes the handshake to be over; it has read nothing by then.
    """
    return _reason(error) in _WANTS_CERTIFICATE | _REFUSES_CERTIFICATE


def why_the_client_failed(
    error: BaseException | None, *, name: str, shows_certificate: bool, advice: TlsAdvice = TO_CLIENTS
) -> str:
    """What kept a client from its TLS connection to the server ``name``; None: the server ended it without a word."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its TLS certificate is not accepted: {_why_not_accepted(error, name, advice)}"
    reason = _reason(error)
    if reason in _WANTS_CERTIFICATE or (reason in _REFUSES_CERTIFICATE and not shows_certificate):
        return f"the server wants a certificate of the client, and there is none: {advice.no_certificate}"
    if reason in _REFUSES_CERTIFICATE:
        return (
            f"the server does not accept the client's certificate ({_words_of(error) if error else reason}): it may "
            f"have expired, or its CA is none that the server trusts; {advice.refused}"
        )
    if reason in _NO_TLS:
        return f"the server speaks no TLS at this port: {advice.no_tls}"
    if reason in _NO_VERSION:
        how = _words_of(error) if error else reason
        return f"the server and this client have no way of TLS in common ({how}); TLS 1.2 and 1.3 are spoken here"
    if reason == "SSLV3_ALERT_HANDSHAKE_FAILURE":  # of TLS 1.2, for either
        if not shows_certificate:
            return (
                "the server ended the TLS handshake: it has no way of TLS in common with this client, or wants a "
                f"certificate of it: {advice.no_certificate}"
            )
        return "the server ended the TLS handshake: it has no way of TLS in common with this client"
    if error is None or reason in ("", "UNEXPECTED_EOF_WHILE_READING"):
        how = "" if error is None or isinstance(error, ssl.SSLError) else f" ({_words_of(error)})"
        return (
            f"the server ended the connection in the TLS handshake{how}: it speaks no TLS at this port, or refuses "
            "what this client offers; its log says which"
        )
    return f"the TLS handshake failed: {_words_of(error)}"


def _why_not_accepted(error: ssl.SSLCertVerificationError, name: str, advice: TlsAdvice) -> str:
    if error.verify_code == _EXPIRED:
        return "it has expired, or one in its chain has; renew it, or correct this machine's clock"
    if error.verify_code == _NOT_YET:
        return "it is not valid yet; correct this machine's clock, or the server's certificate"
    if error.verify_code in _UNKNOWN_CA:
        return f"no CA that is trusted here has signed it ({error.verify_message}); {advice.unknown_ca}"
    if error.verify_code in _WRONG_NAME:
        return f"it is for another name than {name}; {advice.wrong_name.format(name=name)}"
    return f"{error.verify_message} (code {error.verify_code})"


def why_the_server_failed(error: BaseException | None) -> tuple[str, str]:
    """What kept a server from a TLS connection: its kind, one of few, and in words. None: the client ended it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return "certificate", f"its certificate is not accepted: {error.verify_message}"
    reason = _reason(error)
    if reason in _WANTS_CERTIFICATE:
        return "no certificate", "it shows no certificate, and tls-server-need-client-auth is require"
    if reason in _REFUSES_CERTIFICATE:
        return "refused", f"it does not accept the certificate of this server ({_words_of(error) if error else reason})"
    if reason in _NO_VERSION:
        return "version", (
            f"it offers no way of TLS that is spoken here, 1.2 and 1.3 ({_words_of(error) if error else reason})"
        )
    if error is None or reason == "UNEXPECTED_EOF_WHILE_READING":
        return "ended", "it ended the connection in the TLS handshake"
    return "handshake", f"its TLS handshake failed: {_words_of(error)}"
