"""Address servers: one tells over HTTP, on a thread of its own, what a test says, the other never ends its answer."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = ["HangingAddressServer", "HttpAddressServer"]


class HttpAddressServer:
    """``with HttpAddressServer("127.0.0.1:9876") as server: server.url``; ``answer`` and ``status`` may change.

    With ``tls``, the files of a certificate and its key, it is one over https.
    """

    def __init__(self, answer: str = "", status: int = 200, *, tls: tuple[Path, Path] | None = None) -> None:
        self.answer, self.status = answer, status
        self.leads_to = ""
        """Where else the answer is, with a status of 3xx."""
        self.paths: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.paths.append(self.path)
                body = outer.answer.encode()
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(body)))
                if outer.leads_to:
                    self.send_header("Location", outer.leads_to)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its own name for it
                """Tell nobody."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_port}/rocketmq/nsaddr"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class HangingAddressServer:
    """``with HangingAddressServer(b"HTTP/1.1 200 OK") as server: server.url``: sends this to each who asks, then a byte
    now and then if it ``dribbles``, and never ends. ``asked`` is how many have."""

    def __init__(self, beginning: bytes = b"", *, dribbles: bool = False) -> None:
        self._beginning, self._dribbles = beginning, dribbles
        self._over = threading.Event()
        self._asked: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.settimeout(0.05)
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}/rocketmq/nsaddr"

    @property
    def asked(self) -> int:
        return len(self._asked)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        for each in (self._server, *self._asked):
            each.close()

    def _serve(self) -> None:
        while not self._over.is_set():
            with suppress(TimeoutError):
                asking, _ = self._server.accept()
                asking.sendall(self._beginning)
                self._asked.append(asking)
            for each in self._asked if self._dribbles else ():
                with suppress(OSError):  # who asked has gone
                    each.sendall(b"1")
