"""`fedapp watch` in a real browser: it comes back for the rounds that are new."""

import subprocess
import threading

import pytest
from browser import NEEDS_BROWSER, browse
from in_process import settings
from waiting import wait_until

from fedapp.results.report import live
from fedapp.results.run_directory import RunDirectory

pytestmark = NEEDS_BROWSER


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(tmp_path, "growing", settings(method="fedavg"))


@pytest.fixture
def sent(run, monkeypatch):
    """Serve a run's report, refreshed each second; yields the pages sent, and the address last."""
    pages = []
    current = live._Pages.current

    def noted(self):
        page = current(self)
        pages.append(page)
        return page

    monkeypatch.setattr(live, "REFRESH", 1)
    monkeypatch.setattr(live._Pages, "current", noted)
    server = live.report_server(run)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield pages, f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()
    thread.join(5)


def row(number):
    return {"round": number, "accuracy": number / 10, "loss": 1.0, "clients": 5, "seconds": 0.1}


def test_a_browser_shows_new_rounds_by_itself_and_stops_asking_at_the_end(run, sent, tmp_path):
    pages, address = sent
    command = browse(tmp_path / "profile", "--remote-debugging-port=0", address)
    browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: pages, 60, "first load of the page")
        assert b"No round has finished." in pages[0].content
        run.log_round(row(1), row(2))
        wait_until(lambda: b"20.0 %" in pages[-1].content, 30, "round 2 in the browser")
        run.write_summary({"status": "completed", "rounds": 2, "accuracy_final": 0.2})
        wait_until(lambda: not pages[-1].growing, 30, "end of the run in the browser")
        assert b">completed<" in pages[-1].content
        asked = len(pages)
        with pytest.raises(AssertionError, match="no further load"):
            wait_until(lambda: len(pages) > asked, 3, "further load")
    finally:
        browser.terminate()
        browser.wait(30)
