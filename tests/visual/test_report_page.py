"""The report in a real browser: it renders, fits a phone, and asks the network for nothing."""

import html
import json
import re
import subprocess

import pytest
from browser import NEEDS_BROWSER, browse

from fedapp.experiments.papers.results_page import write_results_page
from fedapp.results import measures_file as store
from fedapp.results.comparison.page import write_comparison
from fedapp.results.report.report import write_report
from fedapp.results.run_directory import RunDirectory

SPLITS = ("observed", "unobserved")
pytestmark = NEEDS_BROWSER
# The probe is a page around the page: scripts may not run in the report itself, and a browser
# window cannot be made as narrow as a phone, but a frame can.
PROBE = """<!doctype html><html><body style="margin:0">
<iframe id="frame" style="border:0;width:{width}px;height:3000px" srcdoc="{page}"></iframe>
<script>
const seen = {{}};
const frame = document.getElementById("frame");
frame.onload = () => {{
  const page = frame.contentDocument, root = page.documentElement;
  seen.width = frame.contentWindow.innerWidth;
  seen.scrollWidth = root.scrollWidth;
  seen.headings = [...page.querySelectorAll("h1, h2")].map(h => h.innerText);
  seen.plots = [...page.querySelectorAll("figure svg")].map(s => s.getBoundingClientRect().width);
  seen.tables = [...page.querySelectorAll(".scroll")].filter(
    box => box.scrollWidth > box.clientWidth).length;
  seen.resources = frame.contentWindow.performance.getEntriesByType("resource").map(r => r.name);
  seen.ink = getComputedStyle(page.querySelector("figure svg text")).fill;
  seen.paper = getComputedStyle(page.body).backgroundColor;
  document.title = JSON.stringify(seen);
}};
</script></body></html>"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    config = {
        "method": "feddr+",
        "dataset": "digits",
        "num-rounds": 60,
        "output-dir": "/users/somebody/with/a/very/long/path/that/does/not/break/anywhere/runs",
    }
    run = RunDirectory.create(tmp_path_factory.mktemp("runs"), "r" * 80, config)
    counts = [[40 * ((client + label) % 5 == 0) for label in range(10)] for client in range(20)]
    run.write_partition(counts, [f"a rather long class name {label}" for label in range(10)])
    for number in range(1, 61):
        accuracy = 1 - 0.9 / number
        run.log_round(
            {
                "round": number,
                "seconds": 0.8,
                "clients": 20,
                "failed": 0,
                "train_loss": 1 / number,
                "accuracy": accuracy,
                "loss": 2 / number,
                "bytes_down": 1_234_567,
                "bytes_up": 1_234_567,
                "class_accuracy": [accuracy] * 10,
            }
        )
    run.write_summary({"status": "failed", "reason": "x" * 300, "command": "flwr run . " * 20})
    return write_report(run.path)


def look(page, folder, width, *options):
    """Load a page in a frame `width` pixels wide and return what the probe saw of it."""
    probe = folder / "probe.html"
    probe.write_text(PROBE.format(width=width, page=html.escape(page)), encoding="utf-8")
    command = browse(folder / "profile", *options, "--dump-dom", probe.as_uri())
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    title = re.search(r"<title>(.*?)</title>", result.stdout, flags=re.S)
    assert title, result.stderr
    return json.loads(html.unescape(title[1]))


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    runs = []
    for index, method in enumerate(("fedavg", "feddr+")):
        config = {"method": method, "dataset": "digits", "seed": 0, "lr": 0.1 + index}
        runs.append(RunDirectory.create(folder, f"a-rather-long-run-name-{method}", config))
        for number in range(1, 4):
            runs[-1].log_round({"round": number, "accuracy": number / 4, "loss": 1 / number})
        runs[-1].write_summary({"status": "completed", "accuracy_final": 0.75, "seed": 0})
        sets = {f"{name}_{split}": 0.1 for name in ("feature", "weight") for split in SPLITS}
        measured = {"clients": [], "mean": sets, "std": sets, "model": {"feature_global": 0.2}}
        store.add(runs[-1], {"round": 3, "clients": [0], "measures": {"norms": measured}})
    return write_comparison(runs, folder / "comparison.html")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    row = {
        "paper": "fedntd", "table": "table1-sharding", "cell": "fedavg cifar10 s=2",
        "changes": "rounds x 0.1", "metric": "accuracy_percent", "published mean": 40.14,
        "published std": 1.15, "published failed": False, "mean": 38.2, "std": 0.9,
        "difference": -1.94, "seeds": "0 1", "at-chance seeds": "", "diverged seeds": "",
        "unfinished seeds": "", "unmeasured seeds": "",
        "final accuracy %": 38.2, "best accuracy %": 39.1, "best round": "18 19",
        "rounds": 20, "seconds": 412.5, "device": "cpu",
        "note": "a value that is ours", "command": "fedapp run -c ... " * 20,
    }  # fmt: skip
    lost = {**row, "cell": "moon cifar10 s=2", "mean": None, "std": None, "difference": None}
    folder = tmp_path_factory.mktemp("table")
    return write_results_page([row, lost], "Table 1. Accuracy.", folder / "results.html")


@pytest.mark.parametrize("width", [320, 390, 1200])
@pytest.mark.parametrize(
    ("name", "headings", "plots"),
    [
        ("comparison", ["Test accuracy", "Measurements", "Runs", "Settings that differ"], 3),
        ("table", ["Results", "In one plot", "How each figure was made"], 1),
    ],
)
def test_other_pages_render_and_never_scroll_sideways(
    request, tmp_path, name, headings, plots, width
):
    page = request.getfixturevalue(name).read_text(encoding="utf-8")
    seen = look(page, tmp_path, width)
    assert seen["scrollWidth"] <= width
    assert seen["headings"][-len(headings) :] == headings
    assert len(seen["plots"]) == plots
    assert all(200 < plot < width for plot in seen["plots"])
    assert seen["resources"] == []
    assert page.count("<svg") == page.count('role="img" aria-label="')


@pytest.mark.parametrize("name", ["comparison", "table"])
def test_other_pages_follow_the_dark_scheme_and_stay_readable(request, tmp_path, name):
    page = request.getfixturevalue(name).read_text(encoding="utf-8")
    dark = look(page, tmp_path, 390, "--blink-settings=preferredColorScheme=0")
    assert (dark["ink"], dark["paper"]) == ("rgb(230, 237, 243)", "rgb(13, 17, 23)")
    assert contrast(dark["ink"], dark["paper"]) > 7
    light = look(page, tmp_path, 390, "--blink-settings=preferredColorScheme=1")
    assert contrast(light["ink"], light["paper"]) > 7
    assert "#000000" not in page  # black lines would vanish in the dark


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two "rgb(r, g, b)" colours, as WCAG 2 defines it."""

    def luminance(color: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", color)]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("width", [320, 390, 768, 1200])
def test_page_renders_and_never_scrolls_sideways(report, tmp_path, width):
    seen = look(report.read_text(encoding="utf-8"), tmp_path, width)
    assert seen["width"] == width
    assert seen["scrollWidth"] <= width
    assert seen["headings"] == [
        "feddr+ on digits",
        "Results",
        "Accuracy and loss",
        "Accuracy of each class",
        "Data of the clients",
        "Rounds",
        "Configuration",
        "Reproduce",
    ]
    assert len(seen["plots"]) == 4
    assert all(250 < plot < width for plot in seen["plots"])
    assert seen["resources"] == []


def test_wide_tables_scroll_in_their_own_frame_on_a_phone(report, tmp_path):
    page = report.read_text(encoding="utf-8")
    assert look(page, tmp_path, 390)["tables"] >= 1
    overflowing = page.replace(".scroll { overflow-x: auto;", ".scroll {")
    assert look(overflowing, tmp_path, 390)["scrollWidth"] > 390  # the measurement can fail


def test_plots_follow_the_dark_scheme(report, tmp_path):
    page = report.read_text(encoding="utf-8")
    light = look(page, tmp_path, 390, "--blink-settings=preferredColorScheme=1")
    dark = look(page, tmp_path, 390, "--blink-settings=preferredColorScheme=0")
    assert (light["ink"], light["paper"]) == ("rgb(31, 35, 40)", "rgb(255, 255, 255)")
    assert (dark["ink"], dark["paper"]) == ("rgb(230, 237, 243)", "rgb(13, 17, 23)")


def test_browser_runs_no_script_that_slips_into_a_report(report, tmp_path):
    script = "<script>document.querySelector('h1').innerText = 'changed'</script></body>"
    page = report.read_text(encoding="utf-8").replace("</body>", script)
    without_policy = re.sub(r"<meta http-equiv.*?>", "", page, flags=re.S)
    assert look(without_policy, tmp_path, 390)["headings"][0] == "changed"
    assert look(page, tmp_path, 390)["headings"][0] == "feddr+ on digits"
