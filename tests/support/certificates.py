"""Certificates for tests: of a CA that is made once, and those that are wrong in one way each."""

from __future__ import annotations

import functools
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rocketbox.cli.certificates import Certificate, make_authority, sign

__all__ = ["LOOPBACK", "authority", "certificate", "encrypted", "misdated", "write"]

LOOPBACK = ("localhost", "127.0.0.1", "::1")
DAYS = 30


def authority(name: str = "test CA") -> Certificate:
    """The CA of that name; the same one for the whole process."""
    return _authority(name)


def certificate(
    kind: str = "server", names: Sequence[str] = LOOPBACK, *, by: str = "test CA", nth: int = 0
) -> Certificate:
    """One that the CA has signed; another one for each ``nth``."""
    return _certificate(kind, tuple(names), by, nth)


@functools.cache
def _authority(name: str) -> Certificate:
    return make_authority(name, DAYS)


@functools.cache
def _certificate(kind: str, names: tuple[str, ...], by: str, nth: int) -> Certificate:
    return sign(_authority(by), kind, f"{kind} {nth}", names, days=DAYS)


def write(folder: Path, name: str, made: Certificate) -> tuple[Path, Path]:
    """Its files, ``name.pem`` and ``name-key.pem``; they replace what is there, as a mounted secret is replaced."""
    files = folder / f"{name}.pem", folder / f"{name}-key.pem"
    for path, content in zip(files, (made.certificate, made.key), strict=True):
        new = path.with_suffix(".new")
        new.write_bytes(content)
        new.replace(path)
    return files


def encrypted(key: bytes, password: str) -> bytes:
    """The key behind a password."""
    return _openssl("pkcs8", "-topk8", "-v2", "aes-256-cbc", "-passout", f"pass:{password}", given=key)


@functools.cache
def misdated(begins: str, ends: str, names: Sequence[str] = LOOPBACK) -> Certificate:
    """One of a server that is valid between two times (``20200101000000Z``)."""
    made, ca = certificate(names=names), authority()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name, content in (("ca.pem", ca.certificate), ("ca-key.pem", ca.key), ("key.pem", made.key)):
            (folder / name).write_bytes(content)
        (folder / "index").touch()
        (folder / "serial").write_text("1001\n")
        (folder / "openssl.cnf").write_text(
            f"[ca]\ndefault_ca=d\n[d]\ndatabase={folder}/index\nserial={folder}/serial\nnew_certs_dir={folder}\n"
            "default_md=sha256\npolicy=p\n[p]\ncommonName=supplied\n[req]\nprompt=no\ndistinguished_name=s\n[s]\n"
            "CN=misdated\n[x]\nbasicConstraints=CA:false\nsubjectAltName="
            + ",".join(("IP:" if name[0].isdigit() or ":" in name else "DNS:") + name for name in names)
        )
        config = ("-config", str(folder / "openssl.cnf"))
        request = _openssl("req", "-new", "-key", str(folder / "key.pem"), *config)
        (folder / "request.pem").write_bytes(request)
        signed = _openssl(
            *("ca", "-batch", "-notext", "-in", str(folder / "request.pem"), "-cert", str(folder / "ca.pem")),
            *("-keyfile", str(folder / "ca-key.pem"), "-startdate", begins, "-enddate", ends, "-extensions", "x"),
            *config,
        )
    return Certificate(signed, made.key)


def _openssl(*arguments: str, given: bytes | None = None) -> bytes:
    return subprocess.run(["openssl", *arguments], input=given, capture_output=True, check=True, timeout=60).stdout
