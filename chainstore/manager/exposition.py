"""Exposition: metrics where others find them, in a file for node_exporter or on a port of this host; written aside."""

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer

from chainstore.errors import InvalidInput
from chainstore.metrics import CONTENT_TYPE

WRITE_SECONDS = 5.0
HOST = "127.0.0.1"


def check_file(path: str | os.PathLike[str] | None) -> Path | None:
    """Return where metrics go.

    Raises:
        InvalidInput: the directory does not exist.
    """
    if path is None:
        return None
    found = Path(path).expanduser().absolute()
    if not found.parent.is_dir() or found.is_dir():
        raise InvalidInput(f"no file of metrics can be at {found}", hint="name a file in a directory that exists")
    return found


def check_port(port: int | None) -> int | None:
    """Return a port; 0 means any that is free.

    Raises:
        InvalidInput: it is none.
    """
    if port is not None and (type(port) is not int or not 0 <= port <= 65535):
        raise InvalidInput(f"a port is a number from 0 to 65535, not {port!r}")
    return port


class Textfile:
    """Writes metrics to a file, whole or not at all, every few seconds from a thread of its own.

    Args:
        text: gives them.
        trouble: is told once when the file cannot be written, and again after it could.
    """

    def __init__(self, path: Path, text: Callable[[], str], trouble: Callable[[str], None]) -> None:
        self._path, self._text, self._trouble = path, text, trouble
        self._pid, self._failing = os.getpid(), False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="chainstore-metrics-file", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write them for the last time, and end."""
        if os.getpid() != self._pid or self._stop.is_set():
            return
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        self._write()
        while not self._stop.wait(WRITE_SECONDS):
            self._write()
        self._write()

    def _write(self) -> None:
        draft = self._path.with_name(f".{self._path.name}.{self._pid}.new")
        try:
            draft.write_text(self._text(), encoding="utf-8", errors="replace")
            draft.replace(self._path)  # a scrape reads the old one or the new one
        except OSError as error:
            with suppress(OSError):
                draft.unlink()
            if not self._failing:
                self._trouble(f"metrics cannot be written to {self._path}: {error.strerror or error}")
            self._failing = True
        else:
            self._failing = False


class Port:
    """Serves metrics on 127.0.0.1, to nobody else.

    Attributes:
        number: of the port; None where it could not be had, which `trouble` was told.
    """

    def __init__(self, port: int, text: Callable[[], str], trouble: Callable[[str], None]) -> None:
        self.number: int | None = None
        self._pid = os.getpid()
        self._server: ThreadingHTTPServer | None = None
        try:
            server = _Server((HOST, port), _handler(text))
        except OSError as error:
            trouble(f"metrics cannot be served on port {port}: {error.strerror or error}")
            return
        self._server, self.number = server, server.server_address[1]
        self._thread = threading.Thread(
            target=server.serve_forever, args=(0.1,), name="chainstore-metrics-port", daemon=True
        )
        self._thread.start()
        _open.add(self)

    def close(self) -> None:
        """Serve no more; again is fine."""
        server, self._server = self._server, None
        if server is None or os.getpid() != self._pid:
            return
        server.shutdown()
        server.server_close()

    def leave_to_parent(self) -> None:
        """In a forked child: do not keep the port."""
        if self._server is not None:
            self._server.socket.close()
            self._server = None


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """Bind, and ask no name server who 127.0.0.1 is, as `HTTPServer` would."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.server_address[1]


_open: "weakref.WeakSet[Port]" = weakref.WeakSet()


def _leave_all_to_parent() -> None:
    for port in list(_open):
        port.leave_to_parent()


os.register_at_fork(after_in_child=_leave_all_to_parent)


def _handler(text: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10.0  # seconds that a client may be silent

        def do_GET(self) -> None:
            if self.path.partition("?")[0] not in ("/metrics", "/"):
                self.send_error(404)
                return
            body = text().encode("utf-8", "replace")
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: a scrape every few seconds is no news."""

    return Handler
