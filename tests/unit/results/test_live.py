"""`fedapp watch`: the report grows with the run, for this machine only."""

import socket
import threading
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest
from in_process import settings

from fedapp.core.errors import UserError
from fedapp.results.report import live
from fedapp.results.report.live import report_server
from fedapp.results.run_directory import RunDirectory


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(tmp_path, "growing", settings(method="fedavg"))


@pytest.fixture
def address(run):
    server = report_server(run)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()
    thread.join(5)


def row(number):
    return {"round": number, "accuracy": number / 10, "loss": 1.0, "clients": 5, "seconds": 0.1}


def test_the_page_grows_with_the_run_and_stops_refreshing_at_its_end(run, address):
    with urlopen(address) as answer:
        assert answer.headers["Refresh"] == "5"
        assert "No round has finished." in answer.read().decode()
    run.log_round(row(1), row(2))
    with urlopen(address) as answer:
        assert "20.0 %" in answer.read().decode()
    run.write_summary({"status": "completed", "rounds": 2, "accuracy_final": 0.2})
    with urlopen(address) as answer:
        assert "Refresh" not in answer.headers
        assert "completed" in answer.read().decode()


def test_a_run_that_ends_while_its_page_is_made_is_loaded_once_more(run, address, monkeypatch):
    made = live.report_html

    def ends(run):
        page = made(run)
        run.write_summary({"status": "completed", "rounds": 0, "accuracy_final": None})
        return page

    monkeypatch.setattr(live, "report_html", ends)
    with urlopen(address) as answer:
        assert answer.headers["Refresh"] == "5"
    monkeypatch.setattr(live, "report_html", made)
    with urlopen(address) as answer:
        assert "Refresh" not in answer.headers
        assert "completed" in answer.read().decode()


def test_a_file_that_vanishes_while_it_is_looked_at_does_not_matter(run, address, monkeypatch):
    listed = Path.iterdir
    gone = run.path / "partition.json"
    monkeypatch.setattr(Path, "iterdir", lambda path: [*listed(path), gone])
    with urlopen(address) as answer:
        assert "No round has finished." in answer.read().decode()


def test_a_damaged_file_is_named_until_it_is_repaired(run, address):
    for content, words in (
        ("no object\n{}\n", "metrics.jsonl line 1 is not a JSON object"),
        ('{"round": 1, "accuracy": "high"}\n', f"a file of {run.path} has not the form"),
    ):
        run.metrics_path.write_text(content)
        with pytest.raises(HTTPError) as failed:
            urlopen(address)
        assert failed.value.code == 503
        assert failed.value.headers["Refresh"] == "5"
        assert words in failed.value.read().decode()
    run.metrics_path.write_text("")
    with urlopen(address) as answer:
        assert "No round has finished." in answer.read().decode()


@pytest.mark.parametrize(
    ("path", "headers", "method", "code"),
    [
        ("config.toml", {}, "GET", 404),
        ("../config.toml", {}, "GET", 404),
        ("", {"Host": "evil.example"}, "GET", 403),
        ("", {}, "POST", 501),
    ],
)
def test_nothing_else_is_served(address, path, headers, method, code):
    with pytest.raises(HTTPError) as refused:
        urlopen(Request(address + path, headers=headers, method=method))
    assert refused.value.code == code


def test_a_head_request_gets_the_headers_alone(address):
    with socket.create_connection(("127.0.0.1", int(urlsplit(address).port)), 10) as connection:
        connection.sendall(b"HEAD / HTTP/1.0\r\nHost: localhost\r\n\r\n")
        answer = connection.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.0 200")
    assert b"\r\nContent-Length: " in answer
    assert answer.endswith(b"\r\n\r\n")


def test_only_this_machine_can_connect(run):
    with report_server(run) as server:
        assert server.socket.getsockname()[0] == "127.0.0.1"


def test_a_port_in_use_is_one_sentence(run, address):
    port = int(address.rsplit(":", 1)[1].strip("/"))
    with pytest.raises(UserError, match=rf"port {port} cannot be used: .*; try --port 0"):
        report_server(run, port)
