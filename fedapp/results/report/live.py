"""The report of a growing run in a browser: read-only, and for this machine only."""

from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fedapp.core.errors import UserError
from fedapp.results.folders import readable
from fedapp.results.report.report import report_html
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
    """Answers GET / with the report as it is now, HEAD / with its headers, and nothing else."""

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

    def do_HEAD(self) -> None:
        """Send the headers of the page."""
        self.do_GET()

    def _send_page(self) -> None:
        status, kind = 200, "html"
        try:
            with readable(self.run.path):
                page = self.pages.current()
        except (UserError, OSError) as mistake:  # a damaged or missing file, which may be repaired
            status, kind, page = 503, "plain", _Page(str(mistake).encode(), growing=True)
        self.send_response(status)
        self.send_header("Content-Type", f"text/{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(page.content)))
        self.send_header("Cache-Control", "no-store")
        if page.growing:
            self.send_header("Refresh", str(REFRESH))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(page.content)

    def log_message(self, format: str, *args: Any) -> None:
        """Log no request: the terminal shows the address only."""


@dataclass(frozen=True)
class _Page:
    """The report as bytes, and whether the run may add to it."""

    content: bytes
    growing: bool


class _Pages:
    """The report, made again only when one of its files has changed."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.made: tuple[object, _Page] | None = None  # from which files, which page

    def current(self) -> _Page:
        """Return the page of now; raises UserError if a file of the run is damaged."""
        files, made = self._files(), self.made
        if made is None or files != made[0]:
            # asked first: a run that ends while the page is made must be loaded once more
            growing = "status" not in self.run.summary()
            made = self.made = files, _Page(report_html(self.run).encode(), growing)
        return made[1]

    def _files(self) -> dict[str, int]:
        """Return the time of the last change of each file that the page may be made from."""
        times = {}
        for path in self.run.path.iterdir():
            with suppress(FileNotFoundError):  # a temporary file, replaced since it was listed
                if path.suffix in (".json", ".jsonl"):
                    times[path.name] = path.stat().st_mtime_ns
        return times
