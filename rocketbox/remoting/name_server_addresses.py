"""Where name servers are: a list of addresses as it is written, or an address server that tells it over HTTP.

``host:port``, ``[IPv6]:port``, several separated by ``;`` or ``,``. A URL with a path (``http://host:port/rocketmq/nsaddr``)
is an address server: it answers with such a list on the first line, which is asked for again every two minutes. A URL
without one is an address with something before it, as clouds write them. None has a user or password before its host;
what stands behind the ``?`` of an address server's URL may be a token, and is shown nowhere.

Source: Apache RocketMQ 5.x ``NameServerAddressUtils``, ``DefaultTopAddressing``, ``HttpTinyClient``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from rocketbox.blocking import WorkerPool
from rocketbox.clock import Clock
from rocketbox.errors import ConfigurationError, ConnectError, Finding
from rocketbox.protocol.namespaces import namespace_of_address
from rocketbox.safe_repr import one_line

__all__ = ["AddressServer", "address_server_of", "parse_name_servers", "shown_name_server"]

ASK_AGAIN_AFTER = 120.0  # seconds, as Apache's clients
RETRY_AFTER = 1.0  # seconds, doubled up to LONGEST_RETRY, while nothing is known
LONGEST_RETRY = 30.0
FETCH_TIMEOUT = 3.0  # seconds for the connection, and for each part of the answer
ANSWER_WITHIN = 5.0  # seconds for all of it
MOST_ANSWER_BYTES = 64 * 1024
MOST_PARTS = 64  # in which an answer comes: a thread does not stay for ever with a server that never ends
MOST_NAME_SERVERS = 100  # a cluster has some few; a broker tells each of them all that it has

_ADDRESS = re.compile(r"[^\s/@?]+:([0-9]{1,5})")
_HTTP = re.compile(r"https?://", re.IGNORECASE)  # as Apache's NameServerAddressUtils knows them
_ADDRESS_SERVER = re.compile(r"https?://[^/\s;,?#@]+/[^\s;,]*", re.IGNORECASE)
LONGEST_ADDRESS = 300  # characters; a name in DNS has up to 253
LONGEST_SHOWN = 255  # characters of what is no address that an error repeats


def address_server_of(said: str | Sequence[str]) -> str | None:
    """The URL of the address server, where name servers are said so."""
    parts = [said] if isinstance(said, str) else list(said)
    if len(parts) == 1 and _ADDRESS_SERVER.fullmatch(parts[0].strip()):
        return parts[0].strip()
    return None


def shown_name_server(said: str) -> str:
    """How logs and errors name what was said: an address server's URL without what stands behind its ``?``."""
    return said.partition("?")[0]


def parse_name_servers(text: str | Sequence[str], *, in_namespace: bool = True) -> tuple[str, ...]:
    """The addresses in ``host:port;host:port``; commas separate as well, ``http://`` before a host is dropped.

    Raises ConfigurationError when there is none, or one that is no ``host:port``; for a client that is not
    ``in_namespace`` also when an address names the one which Apache's client would take from it.
    """
    whole = text if isinstance(text, str) else ";".join(text)
    if "@" in whole:  # a password may hold anything, so nothing before the last one is shown
        host = shown_name_server(whole.rpartition("@")[2]).strip()[:LONGEST_SHOWN]
        what = f"name server {host} has a user or password before it"
        fix = "write host:port alone; requests are signed with rocketmq.access-key and rocketmq.secret-key"
        raise ConfigurationError(Finding(what, "rocketmq.name-server", fix))
    parts = re.split(r"[;,]", text) if isinstance(text, str) else list(text)
    addresses = [_HTTP.sub("", part.strip()) for part in parts if part.strip()]
    wrong = [address for address in addresses if not _is_address(address)]
    if not addresses or wrong:
        shown = shown_name_server(wrong[0])[:LONGEST_SHOWN] if wrong else ""
        what = f"name server {shown!r} is no address" if wrong else "there is no name server address"
        fix = "write host:port, several separated by ';' (127.0.0.1:9876)"
        _, scheme, rest = wrong[0].partition("://") if wrong else ("", "", "")
        if scheme and _is_address(rest):
            fix = f"write {rest}, without what stands before it"
        elif any(_ADDRESS_SERVER.fullmatch(part.strip()) for part in parts):
            what = "an address server stands beside other name servers"
            fix = "write its URL alone, or addresses alone"
        raise ConfigurationError(Finding(what, "rocketmq.name-server", fix))
    named = None if in_namespace else next(filter(None, map(namespace_of_address, addresses)), None)
    if named is not None:
        what = f"name server {addresses[0]} is that of instance {named}, and no namespace is set"
        fix = f"set rocketmq.namespace: {named}, which is what Apache's Java client takes from such an address"
        raise ConfigurationError(Finding(what, "rocketmq.name-server", fix))
    return tuple(dict.fromkeys(addresses))


def _is_address(address: str) -> bool:
    found = _ADDRESS.fullmatch(address)
    return found is not None and 0 < int(found[1]) < 65_536 and len(address) <= LONGEST_ADDRESS


class AddressServer:
    """Asks an address server again and again. ``take`` is called with each list that it tells, ``fail`` with why not.

    The last list holds while the server is down or answers with what is none. It is asked on a thread of its own, for
    which nobody waits: a server that hangs holds up no stop, and no question is asked beside one that hangs.
    """

    def __init__(
        self,
        url: str,
        clock: Clock,
        *,
        take: Callable[[tuple[str, ...]], object],
        fail: Callable[[ConnectError], object],
        in_namespace: bool = True,
    ) -> None:
        self.url = url
        self.shown = shown_name_server(url)
        """As logs and errors show it."""
        self._clock = clock
        self._take = take
        self._fail = fail
        self._in_namespace = in_namespace

    async def follow(self) -> None:
        """Ask now and every two minutes; sooner until there is a first answer."""
        pause, known = RETRY_AFTER, False
        async with WorkerPool(1, "rocketbox-address-server") as thread:
            while True:
                try:
                    addresses = await self._ask(thread)
                except ConnectError as error:
                    self._fail(error)
                else:
                    known = True
                    self._take(addresses)
                await self._clock.sleep(ASK_AGAIN_AFTER if known else pause)
                pause = min(2 * pause, LONGEST_RETRY)

    async def ask(self) -> tuple[str, ...]:
        """The addresses that the server tells now. Raises ConnectError when it does not."""
        async with WorkerPool(1, "rocketbox-address-server") as thread:
            return await self._ask(thread)

    async def _ask(self, thread: WorkerPool) -> tuple[str, ...]:
        line: str | None = None
        with self._clock.move_on_after(ANSWER_WITHIN):
            line = await thread.run(_fetch, self.url)
        if line is None:
            raise ConnectError(self.shown, f"no whole answer within {ANSWER_WITHIN:g} s")
        try:
            addresses = parse_name_servers(line, in_namespace=self._in_namespace)
        except ConfigurationError as error:
            # There may be a password before it, or a token behind it.
            said = "what cannot be shown" if "@" in line or "?" in line else repr(line[:80])
            reason = f"it answered {said}: {error.findings[0].what}"
            raise ConnectError(self.shown, reason) from None
        if len(addresses) > MOST_NAME_SERVERS:
            raise ConnectError(
                self.shown, f"it answered with {len(addresses)} name servers, and {MOST_NAME_SERVERS} are taken"
            )
        return addresses


def _first_line(read: Callable[[int], bytes]) -> str:
    """The first line of an answer. ``read`` gives what has come, up to so many bytes, and nothing at the end of it."""
    text = b""
    for _ in range(MOST_PARTS):
        more = read(MOST_ANSWER_BYTES - len(text))
        text += more
        if not more or b"\n" in text.lstrip() or len(text) >= MOST_ANSWER_BYTES:
            break
    lines = text.decode("utf-8", "replace").strip().splitlines()
    return lines[0].strip() if lines else ""


def _fetch(url: str) -> str:
    """The first line of what stands at the URL. Raises ConnectError."""
    import urllib.error  # only who has an address server loads what speaks HTTP
    import urllib.request
    from http.client import HTTPException, InvalidURL

    class Redirects(urllib.request.HTTPRedirectHandler):
        """To another place of the same kind alone: not out of TLS, nor to what does not speak HTTP."""

        def redirect_request(self, request: Any, answer: Any, code: int, message: str, headers: Any, url: str) -> Any:
            wanted = "https://" if request.type == "https" else ("http://", "https://")
            if not url.lower().startswith(wanted):
                raise urllib.error.HTTPError(request.full_url, code, message, headers, answer)
            return super().redirect_request(request, answer, code, message, headers, url)

    shown = shown_name_server(url)
    request = urllib.request.Request(  # noqa: S310 - http and https alone are taken for an address server
        url, headers={"User-Agent": "rocketbox", "Accept": "text/plain, */*"}
    )
    try:
        with urllib.request.build_opener(Redirects).open(request, timeout=FETCH_TIMEOUT) as answer:
            if answer.status != 200:
                raise ConnectError(shown, f"it answered HTTP {answer.status} {_reason(answer.reason)}")
            return _first_line(answer.read1)
    except urllib.error.HTTPError as error:
        error.close()
        # Of a redirection the reason shows where to, which may have a token: urllib's is that it does not go there.
        why = ": it leads to where it is not followed" if 300 <= error.code < 400 else f" {_reason(error.reason)}"
        raise ConnectError(shown, f"it answered HTTP {error.code}{why}") from None
    except urllib.error.URLError as error:
        cause = error.reason
        told = (cause.strerror if isinstance(cause, OSError) else None) or str(cause)
        raise ConnectError(shown, _reason(told)) from None
    except (InvalidURL, UnicodeError):  # whose texts show all of it
        raise ConnectError(shown, "its URL holds a character that none may have; write it as %XX") from None
    except (OSError, HTTPException) as error:
        raise ConnectError(shown, _reason(str(error) or type(error).__name__)) from None
    except ValueError:  # of the URL of a proxy, which may have a password, and is shown
        raise ConnectError(shown, "the URL of the proxy that is set for it (http_proxy, https_proxy) is none") from None


def _reason(said: str) -> str:
    """What an address server says of itself, for a log: of so much, and on one line."""
    return one_line(said[:LONGEST_SHOWN])
