"""``rocketbox secure init``: certificates and a user for a first secured broker and its clients, with their settings.

Nothing secret is printed: keys of certificates and of the user stand in files that only this user may read, and the
settings refer to them.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import json
import os
import re
import shlex
import stat
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from rocketbox.cli.certificates import make_authority, sign
from rocketbox.errors import ConfigurationError, Finding

__all__ = ["init", "make_secured", "secure"]

secure = typer.Typer(
    help="Certificates and users for TLS and access control.", no_args_is_help=True, pretty_exceptions_enable=False
)

THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
SECRET_BYTES = 32
NOT_FOR_GIT = ("ca-key.pem", "server-key.pem", "client-key.pem", "client-keys.yml", "server-secrets/")
AUTHORITY_DAYS = 3650
_UNNAMEABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]")
"""What YAML, or the comments in it, cannot hold: control characters, ends of lines, and bytes that are no UTF-8."""
_USER = re.compile(r"[A-Za-z0-9_-]{4,32}")


@secure.callback()
def root() -> None:
    """Certificates and users for TLS and access control."""


@secure.command("init")
def init(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            show_default=False,
            help="Names and addresses at which clients reach the servers, beside those of this machine for itself.",
        ),
    ] = None,
    directory: Annotated[Path, typer.Option(metavar="DIR", help="Where to write to; made if it is missing.")] = Path(
        "secure"
    ),
    user: Annotated[str, typer.Option(metavar="USER", help="The user that clients are.")] = "rocketbox",
    days: Annotated[int, typer.Option(help="How long the certificates of server and client are valid.", min=1)] = 365,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there, the CA too.")] = False,
) -> None:
    """Make a CA, certificates of the servers and of clients, and a user; print the settings of both sides.

    For a first try, and for companies without a CA of their own: who has the file ca-key.pem can make certificates that
    servers and clients believe, so keep it elsewhere. Needs the openssl program. Nothing that exists is overwritten
    unless --overwrite says so. A .gitignore has git leave out the keys; where there is one already, the lines that it
    lacks are printed.
    Status: 0 made; 1 not made, and nothing was written.
    """
    try:
        settings = make_secured(directory, names or [], user=user, days=days, overwrite=overwrite)
    except ConfigurationError as error:
        print(f"rocketbox secure init: nothing was made\n{error}", file=sys.stderr)  # noqa: T201
        raise typer.Exit(1) from error
    print(settings)  # noqa: T201 - a command's output


def make_secured(
    directory: Path, names: Sequence[str], *, user: str = "rocketbox", days: int = 365, overwrite: bool = False
) -> str:
    """Write the files and return the settings that use them. Raises ConfigurationError before anything is written."""
    if _USER.fullmatch(user) is None:
        fix = "use 4 to 32 letters, digits, - and _"
        raise ConfigurationError(Finding(f"--user is {user!r}, which cannot be a user's name", fix=fix))
    folder = directory.absolute()
    if _UNNAMEABLE.search(str(folder)):
        what = f"{str(folder)!a} has a control character, or one that is no UTF-8, which settings cannot hold"
        raise ConfigurationError(Finding(what, fix="choose another --directory"))
    host = next((name for name in names if not name.startswith("*")), THIS_MACHINE[0])
    if names and host not in names:
        fix = "write the name or address of the server itself beside it"
        raise ConfigurationError(Finding(f"{names[0]!r} is no name at which clients reach a server", fix=fix))
    at = list(dict.fromkeys([host, *names, *THIS_MACHINE]))
    secret = os.urandom(SECRET_BYTES).hex()
    authority = make_authority("rocketbox CA", AUTHORITY_DAYS)
    server = sign(authority, "server", at[0], at, days=days)
    client = sign(authority, "client", user, days=days)
    files = {
        "ca.pem": authority.certificate,
        "ca-key.pem": authority.key,
        "server.pem": server.certificate,
        "server-key.pem": server.key,
        "client.pem": client.certificate,
        "client-key.pem": client.key,
        "client-keys.yml": f"accessKey: {user}\nsecretKey: {secret}\n".encode(),
        "server-secrets/rocketbox.embedded.init-authentication-user": json.dumps(
            {"username": user, "password": secret}
        ).encode(),
    }
    ignored = _ignored(folder)
    if ignored is None:
        ignored = [f"/{name}" for name in NOT_FOR_GIT]
        files[".gitignore"] = "".join(f"{line}\n" for line in ignored).encode()
    _write(folder, files, overwrite=overwrite)
    return _left_in_git(folder, ignored) + _settings(folder, at)


def _ignored(folder: Path) -> list[str] | None:
    """The lines of the .gitignore of a folder; None: it has none. Raises ConfigurationError."""
    path = folder / ".gitignore"
    if not os.path.lexists(path):
        return None
    try:
        return path.read_text("utf-8", errors="replace").splitlines()
    except OSError as error:
        what = f"{path} cannot be read: {error.strerror or error}"
        raise ConfigurationError(Finding(what, fix="choose another --directory")) from error


def _left_in_git(folder: Path, ignored: Sequence[str]) -> str:
    """What is to be added to a .gitignore with such lines, as comments above the settings."""
    lines = [f"#   /{name}\n" for name in NOT_FOR_GIT if not _is_ignored(name, ignored)]
    return "".join([f"# Add to {folder / '.gitignore'}, so that nobody commits the keys:\n", *lines]) if lines else ""


def _is_ignored(name: str, ignored: Sequence[str]) -> bool:
    """Whether git surely leaves a file out, or a directory, whose name ends in a slash: the last line that fits says.

    A pattern that is understood too narrowly has a line told that is not needed.
    """
    found = False
    for line in ignored:
        pattern = line.rstrip().removeprefix("!").removeprefix("**/").removeprefix("/")
        fits = fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name.removesuffix("/"), pattern)
        if line.startswith("!"):
            found = found and not fits and not pattern.startswith(name)
        elif fits:
            found = True
    return found


def _write(folder: Path, files: dict[str, bytes], *, overwrite: bool) -> None:
    """All of them, or none: servers and clients with parts of two lots would not find together."""
    there = [name for name in files if os.path.lexists(folder / name)]
    if there and not overwrite:
        what = f"{folder} has {', '.join(there)} already"
        fix = "choose another --directory; or say --overwrite, and every client needs the new CA"
        raise ConfigurationError(Finding(what, fix=fix))
    for name in there:
        if (folder / name).is_dir():
            raise ConfigurationError(Finding(f"{folder / name} is a directory", fix="choose another --directory"))
    scratches: dict[str, Path] = {}
    try:
        for directory in (folder, folder / "server-secrets"):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            mode = directory.stat().st_mode
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                what = f"{directory} may be written to by everybody, who could put another CA or other settings there"
                raise ConfigurationError(Finding(what, fix=f"chmod o-w {directory}, or choose another --directory"))
        for name, content in files.items():
            # mkstemp makes it for this user alone, and what stands in its place, a link too, is replaced as a whole.
            descriptor, scratch = tempfile.mkstemp(dir=(folder / name).parent, prefix=".")
            scratches[name] = Path(scratch)
            with open(descriptor, "wb") as file:
                file.write(content)
        for name, written in scratches.items():
            os.replace(written, folder / name)
    except OSError as error:
        what = f"{folder} cannot be written to: {error.strerror or error}"
        raise ConfigurationError(Finding(what, fix="choose another --directory")) from error
    finally:
        for written in scratches.values():
            written.unlink(missing_ok=True)


def _settings(folder: Path, at: Sequence[str]) -> str:
    def quoted(name: str, before: str = "") -> str:
        plain = f"{before}{folder / name}".replace("${", "\\${")  # else it stands for a setting of that name
        return json.dumps(plain, ensure_ascii=False)

    def argument(name: str) -> str:
        return shlex.quote(str(folder / name))

    secrets = quoted("server-secrets", "configtree:")
    if "," in secrets:  # which parts several imports, but not those of a list
        secrets = f"[{secrets}]"
    host = at[0]
    shown = f"[{host}]" if _is_ipv6(host) else host
    # Clients learn of addresses, not of names: those of brokers stand in routes.
    server_name = "" if host in THIS_MACHINE else f"\n    server-name: {json.dumps(host)}"
    listens = _listening_address(host)
    told = "" if host in THIS_MACHINE else f"\n    broker-ip1: {json.dumps(host)}"  # where clients find the broker
    told_here = "" if host in THIS_MACHINE else f" --broker-ip1 {host}"
    return f"""\
# In {folder}: keep ca-key.pem elsewhere; give clients ca.pem, client.pem, client-key.pem and client-keys.yml.
# The servers' certificate is for {", ".join(at)}.

# --- servers: the service whose rocketmq.name-server is embedded
rocketbox:
  config.import: {secrets}
  embedded:
    host: {json.dumps(listens)}{told}
    tls-server-mode: enforcing
    tls-server-cert-path: {quoted("server.pem")}
    tls-server-key-path: {quoted("server-key.pem")}
    tls-server-trust-cert-path: {quoted("ca.pem")}
    tls-server-need-client-auth: require
    authentication-enabled: true
    authorization-enabled: true

# or, as a process of its own:
#   rocketbox broker --data-dir store --host {listens}{told_here} \\
#     --tls-server-cert-path {argument("server.pem")} --tls-server-key-path {argument("server-key.pem")} \\
#     --tls-server-trust-cert-path {argument("ca.pem")} --tls-server-need-client-auth require \\
#     --authentication-enabled true --authorization-enabled true \\
#     --secrets-directory {argument("server-secrets")}

# --- clients
rocketmq:
  name-server: {json.dumps(f"{shown}:9876")}
  credentials-file: {quoted("client-keys.yml")}
  tls:
    enable: true
    ca-file: {quoted("ca.pem")}{server_name}
    cert-file: {quoted("client.pem")}
    key-file: {quoted("client-key.pem")}
"""


def _listening_address(host: str) -> str:
    """What servers listen on that are reached at ``host``: one kind of addresses, for a server has one listener."""
    if host in THIS_MACHINE:
        return host if _is_ipv6(host) else "127.0.0.1"
    return "::" if _is_ipv6(host) else "0.0.0.0"  # noqa: S104 - with TLS and users, which this makes


def _is_ipv6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False
