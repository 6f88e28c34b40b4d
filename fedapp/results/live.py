"""The report of a growing run in a browser: read-only, and for this machine only."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fedapp.core.errors import UserError
from fedapp.results.report import report_html
from fedapp.results.run_directory import RunDirectory

LOOPBACK = "127.0.0.1"
REFRESH = 5  # seconds between two loads of the page while the run goes on


def report_server(run: RunDirectory, port: int = 0) -> ThreadingHTTPServer:
    """Return a server of a run's report on 127.0.0.1; call `serve_forever`. Port 0 is a free one.

    Raises:
        UserError: the port is in use.
    """
    handler = type("Handler", (_Handler,), {"run": run, "pages": _Pages(run)})
    try:
        return ThreadingHTTPServer((LOOPBACK, port), handler)
    except OSError as error:
        raise UserError(f"port {port} cannot be used: {error.strerror}; try --port 0") from None


class _Handler(BaseHTTPRequestHandler):
    """Answers GET / with the report as it is now, and nothing else."""

    run: RunDirectory
    pages: "_Pages"

    def do_GET(self) -> None:
        """Send the page; a request by another host name, as in DNS rebinding, is refused."""
        if self.headers.get("Host", "").partition(":")[0] not in (LOOPBACK, "localhost"):
            self.send_error(403)
        elif self.path != "/":
            self.send_error(404)
        else:
            self._send_page()

    def _send_page(self) -> None:
        try:
            content = self.pages.current()
        except UserError as mistake:  # a file that is being replaced, or damaged
            self.send_error(503, str(mistake))
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        if "status" not in self.run.summary():
            self.send_header("Refresh", str(REFRESH))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Log no request: the terminal shows the address only."""


class _Pages:
    """The report, made again only when one of its files has changed."""

    def __init__(self, run: RunDirectory) -> None:
        self.run, self.content = run, b""
        self.made_from: object = None

    def current(self) -> bytes:
        files = sorted(self.run.path.glob("*.json*"))
        state: tuple[Any, ...] = tuple((path.name, path.stat().st_mtime_ns) for path in files)
        if state != self.made_from:
            self.content, self.made_from = report_html(self.run).encode(), state
        return self.content
