"""Certificates for a first try, made by the ``openssl`` program: a CA of one's own, and what it signs.

Python has no certificates of its own to make, a library for it would be a dependency of everybody for what few do
once, and openssl is wherever TLS is. Keys are on the curve P-256, in PKCS#8, which Java reads as well.

Source: RFC 5280 (extensions); openssl 1.1.1, 3.x and LibreSSL take these commands.
"""

from __future__ import annotations

import ipaddress
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rocketbox.errors import ConfigurationError, Finding

__all__ = ["Certificate", "make_authority", "sign"]

EXTENSIONS = {
    "authority": "basicConstraints = critical, CA:true, pathlen:0\nkeyUsage = critical, keyCertSign, cRLSign",
    # A broker is a client of its name server, and shows it the same certificate.
    "server": "basicConstraints = critical, CA:false\nkeyUsage = critical, digitalSignature\n"
    "extendedKeyUsage = serverAuth, clientAuth",
    "client": "basicConstraints = critical, CA:false\nkeyUsage = critical, digitalSignature\n"
    "extendedKeyUsage = clientAuth",
}
LONGEST_RUN = 60.0  # seconds
LONGEST_NAME = 64  # of a subject, RFC 5280's upper bound


@dataclass(frozen=True)
class Certificate:
    """A certificate and its private key, both PEM. The key is in no ``repr``."""

    certificate: bytes
    key: bytes = field(repr=False)


def make_authority(name: str, days: int) -> Certificate:
    """A CA that signs others and nothing else. Raises ConfigurationError where openssl is missing or fails."""
    with tempfile.TemporaryDirectory(prefix="rocketbox-") as scratch:
        folder = Path(scratch)
        key = _make_key(folder)
        config = _config(folder, name, EXTENSIONS["authority"])
        certificate = _openssl(
            *("req", "-x509", "-new", "-sha256", "-key", str(folder / "key.pem"), "-config", str(config)),
            *("-extensions", "extensions", "-set_serial", _serial(), "-days", str(days)),
        )
        return Certificate(certificate, key)


def sign(authority: Certificate, kind: str, name: str, names: Sequence[str] = (), *, days: int) -> Certificate:
    """A certificate of a ``server`` at these names and addresses, or of a ``client``, signed by the authority."""
    with tempfile.TemporaryDirectory(prefix="rocketbox-") as scratch:
        folder = Path(scratch)
        key = _make_key(folder)
        extensions = EXTENSIONS[kind] + "\nsubjectKeyIdentifier = hash\nauthorityKeyIdentifier = keyid"
        if names:
            extensions += f"\nsubjectAltName = {', '.join(map(_alternative, names))}"
        config = _config(folder, name, extensions)
        (folder / "ca.pem").write_bytes(authority.certificate)
        _write_secret(folder / "ca-key.pem", authority.key)
        request = folder / "request.pem"
        request.write_bytes(_openssl("req", "-new", "-sha256", "-key", str(folder / "key.pem"), "-config", str(config)))
        certificate = _openssl(
            *("x509", "-req", "-sha256", "-in", str(request), "-CA", str(folder / "ca.pem")),
            *("-CAkey", str(folder / "ca-key.pem"), "-set_serial", _serial(), "-days", str(days)),
            *("-extfile", str(config), "-extensions", "extensions"),
        )
        return Certificate(certificate, key)


def _make_key(folder: Path) -> bytes:
    key = _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")
    _write_secret(folder / "key.pem", key)
    return key


def _config(folder: Path, name: str, extensions: str) -> Path:
    path = folder / "openssl.cnf"
    subject = name[:LONGEST_NAME].replace("\\", "\\\\").replace("$", "\\$").replace('"', '\\"').replace("#", "\\#")
    path.write_text(
        "[req]\nprompt = no\nutf8 = yes\ndistinguished_name = subject\n"
        f"[subject]\nCN = {subject}\n[extensions]\n{extensions}\n"
    )
    return path


def _alternative(name: str) -> str:
    """``IP:`` or ``DNS:``, as a certificate says it. Raises ConfigurationError for what is neither."""
    try:
        return f"IP:{ipaddress.ip_address(name)}"
    except ValueError:
        pass
    labels = name.removeprefix("*.").split(".")
    if len(name) > 253 or not all(label.isascii() and label.replace("-", "").isalnum() for label in labels):
        fix = "write names such as broker.example.org or *.example.org, and addresses such as 10.0.0.7, without port"
        raise ConfigurationError(Finding(f"{name!r} is neither a host's name nor an IP address", fix=fix))
    return f"DNS:{name}"


def _serial() -> str:
    return f"0x{(int.from_bytes(os.urandom(16), 'big') >> 1) | 1 << 120:x}"  # positive, 20 bytes at most


def _write_secret(path: Path, content: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _openssl(*arguments: str) -> bytes:
    program = shutil.which("openssl")
    if program is None:
        fix = "install OpenSSL (Debian: apt install openssl), or use certificates of your company's CA"
        raise ConfigurationError(Finding("there is no openssl on the PATH, which makes certificates", fix=fix))
    command = [program, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, check=False, stdin=subprocess.DEVNULL, timeout=LONGEST_RUN)
    except (OSError, subprocess.TimeoutExpired) as error:
        what = f"openssl {arguments[0]} does not run: {getattr(error, 'strerror', None) or 'it has not ended'}"
        raise ConfigurationError(Finding(what, fix=f"try another openssl than {program}")) from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        what = f"openssl {arguments[0]} failed: {said[-1] if said else f'status {done.returncode}'}"
        raise ConfigurationError(Finding(what, fix=f"try another openssl than {program}"))
    return done.stdout
