"""The report says what the run's files say, escapes it, needs nothing else, and can be read."""

import re
from html.parser import HTMLParser

import pytest

from fedapp.core.errors import UserError
from fedapp.results.report import page
from fedapp.results.report.report import totals, write_report
from fedapp.results.run_directory import RunDirectory

EVIL = "<script>alert('x & \"y\"')</script>"
VOID = {"meta", "link", "br", "img", "path", "use", "rect"}


class Page(HTMLParser):
    """Reads a page into its tags, attributes and words, and checks that tags are closed."""

    def __init__(self, html):
        super().__init__()
        self.open, self.seen, self.words = [], [], []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style" and data.strip():
            self.words.append((self.open[-1], data.strip()))

    def text(self, tag):
        return [words for where, words in self.words if where == tag]

    def all(self, tag):
        return [attrs for name, attrs in self.seen if name == tag]


def row(number, **measured):
    return {
        "round": number,
        "seconds": 0.5,
        "clients": 3,
        "failed": 0,
        "train_loss": 1 / number,
        "accuracy": None,
        "loss": None,
        "bytes_down": 1_000_000,
        "bytes_up": 2_000_000,
        "class_accuracy": None,
        **measured,
    }


@pytest.fixture
def run(tmp_path):
    config = {"method": "feddr+", "dataset": "digits", "num-rounds": 12, "resume": False}
    run = RunDirectory.create(tmp_path, "one", {**config, "data-dir": "", "run-name": EVIL})
    run.write_partition([[5, 0], [1, 2], [0, 4]], ["cat", EVIL])
    for number in range(1, 13):
        run.log_round(row(number, forgetting=number / 1000, failures=[], images=4000))
    run.log_round(
        row(
            13, accuracy=0.7512, loss=0.5, class_accuracy=[0.9, 0.6], failures=[f"client 2: {EVIL}"]
        )
    )
    return run


def finish(run, **summary):
    versions = {"python": "3.11.2", "flwr": "1.39.0"}
    run.write_summary(
        {"model": "cnn", "seed": 7, "device": "cpu", "versions": versions, "rounds": 13, **summary}
    )


def read(run):
    return Page(write_report(run.path).read_text(encoding="utf-8"))


def test_headings_and_language(run):
    report = read(run)
    assert report.text("title") == ["feddr+ on digits"]
    assert report.text("h1") == ["feddr+ on digits"]
    assert report.text("h2") == [
        "Results", "Accuracy and loss", "Accuracy of each class", "Data of the clients",
        "Failures", "Further metrics", "Rounds", "Configuration", "Reproduce",
    ]  # fmt: skip
    assert report.all("html") == [{"lang": "en"}]
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in (
        report.all("meta")
    )


def test_headline_numbers_come_from_the_summary(run):
    finish(
        run,
        status="completed",
        accuracy_final=0.5,
        accuracy_best=0.6,
        best_round=4,
        seconds=1.25,
        images_per_second=1234.5,
        bytes_down=3e6,
        bytes_up=4e6,
        command="flwr run . -c \"seed=7 method='feddr+'\"",
    )
    report = read(run)
    assert dict(zip(report.text("dt"), report.text("dd"), strict=True)) == {
        "Final accuracy": "50.0 %",
        "Best accuracy": "60.0 % (round 4)",
        "Rounds": "13",
        "Time": "1.2 s",
        "Training images per second": "1,234 (time of tests included)",
        "Sent to nodes": "3.0 MB",
        "Sent by nodes": "4.0 MB",
    }
    assert report.text("code") == [
        "flwr run . -c \"seed=7 method='feddr+'\"\n"
        f"fedapp compare {run.path} OTHER_RUN --html compare.html",
    ]
    assert "run one, model cnn, seed 7, device cpu" in report.text("p")
    assert report.text("h2")[-1] == "Reproduce"
    settings = dict(zip(report.text("th")[-4:], report.text("td")[-4:], strict=True))
    assert settings == {"seed": "7", "device": "cpu", "python": "3.11.2", "flwr": "1.39.0"}


def test_unfinished_run_is_summed_up_from_its_rounds(run):
    run.truncate_rounds(after=2)
    report = read(run)
    shown = dict(zip(report.text("dt"), report.text("dd"), strict=True))
    assert shown["Rounds"] == "2 of 12"
    assert shown["Sent by nodes"] == "4.0 MB"
    assert shown["Final accuracy"] == "-"
    assert "unfinished" in report.text("p")


def test_totals_take_the_first_best_round():
    rows = [row(1, accuracy=0.5), row(2, accuracy=0.75), row(3, accuracy=0.75), row(4)]
    assert totals(rows) == {
        "rounds": 4,
        "accuracy_final": 0.75,
        "accuracy_best": 0.75,
        "best_round": 2,
        "seconds": 2.0,
        "bytes_down": 4_000_000,
        "bytes_up": 8_000_000,
    }


def test_failed_run_says_why(run):
    finish(run, status="failed", reason=f"client 2 {EVIL}")
    report = read(run)
    assert f"failed: client 2 {EVIL}" in report.text("p")
    assert "status failed" in [attrs.get("class") for attrs in report.all("p")]


def test_unknown_status_text_does_not_become_a_class_name(run):
    finish(run, status='odd" onclick="x')
    assert "status unfinished" in [attrs.get("class") for attrs in read(run).all("p")]


def test_everything_is_escaped_and_nothing_is_loaded_from_elsewhere(run):
    finish(run, status="failed", reason=EVIL, command=EVIL, device=EVIL)
    html = write_report(run.path).read_text(encoding="utf-8")
    report = Page(html)
    assert not report.all("script")
    assert html.count("&lt;script&gt;") >= 6
    assert not re.search(r"https?:", html)
    for tag, attrs in report.seen:
        assert tag not in {"link", "iframe", "object", "embed", "base"}
        assert not [name for name in attrs if name.startswith("on")]
        for name in ("src", "href", "xlink:href", "srcset", "action"):
            assert attrs.get(name, "#").startswith(("#", "data:"))
    policy = [meta["content"] for meta in report.all("meta") if "http-equiv" in meta]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]


def test_plots_are_named_for_who_cannot_see_them_and_ids_are_unique(run):
    report = read(run)
    names = [attrs["aria-label"] for attrs in report.all("svg") if attrs.get("role") == "img"]
    assert names == [
        "Test accuracy by round: from 75.1 % in round 13 to 75.1 % in round 13.",
        "Test loss by round: from 0.5000 in round 13 to 0.5000 in round 13.",
        f"Accuracy of each class. After round 13: lowest 60.0 % (class {EVIL}), "
        "highest 90.0 % (class cat).",
        "Label distribution: 3 clients; each has 3 to 5 training images (median 4) "
        "of 1 to 2 classes.",
        "Clients without an update by round: 1 in 1 of 13 rounds; 0 were too late.",
        "Forgetting by round: from 0.0010 in round 1 to 0.0120 in round 12.",
    ]
    assert len(report.all("svg")) == 6
    ids = [attrs["id"] for _, attrs in report.seen if "id" in attrs]
    assert len(ids) == len(set(ids)) > 0


def test_rounds_table_shows_the_last_ones_and_folds_all_away(run):
    report = read(run)
    keys = f"All {len(run.config())} keys"
    assert report.text("summary") == ["Reasons", "All 13 rounds", keys]
    last = report.text("td")[1 : 1 + 10 * 11]  # after the failure's reason
    assert last[:11] == [
        "4", "-", "-", "0.2500", "3", "0", "0.50", "1.0 MB", "2.0 MB", "0.0040", "4,000",
    ]  # fmt: skip
    assert last[-11:] == [
        "13", "75.1 %", "0.5000", "0.0769", "3", "0", "0.50", "1.0 MB", "2.0 MB", "-", "-",
    ]  # fmt: skip
    heads = report.text("th")[1:12]
    assert heads[0] == "Round"
    assert heads[-2:] == ["Forgetting", "Images"]
    assert f"client 2: {EVIL}" in report.text("td")
    regions = [attrs for attrs in report.all("div") if attrs.get("role") == "region"]
    assert all(attrs["tabindex"] == "0" and attrs["aria-label"] for attrs in regions)
    assert len(regions) == len(report.all("table"))


def test_configuration_is_shown_in_full(run):
    report = read(run)
    start = report.text("th").index("method")
    names = report.text("th")[start:]
    values = report.text("td")[-len(names) :]
    assert dict(zip(names, values, strict=True)) == {
        "method": "feddr+",
        "dataset": "digits",
        "num-rounds": "12",
        "resume": "false",
        "data-dir": '""',
        "run-name": EVIL,
    }


def test_many_classes_are_folded_away(run):
    run.log_round(row(14, accuracy=0.5, class_accuracy=[0.5] * 99 + [None]))
    report = read(run)
    assert "All 100 classes" in report.text("summary")
    assert "After round 14: lowest 50.0 % (class 0), highest 50.0 % (class 98)." in report.text("p")


def test_a_run_that_did_nothing_yet_still_has_a_report(tmp_path):
    report = read(RunDirectory.create(tmp_path, "fresh", {"method": "fedavg"}))
    assert report.text("h1") == ["fedavg"]
    assert report.text("h2") == ["Results", "Accuracy and loss", "Configuration", "Reproduce"]
    assert "No round has finished." in report.text("p")


def test_a_report_made_again_is_equal_to_the_byte(run):
    first = write_report(run.path).read_bytes()
    assert write_report(str(run.path)).read_bytes() == first


def test_what_is_no_run_directory_gets_no_report(tmp_path):
    with pytest.raises(UserError, match="not a run directory"):
        write_report(tmp_path)
    assert not list(tmp_path.iterdir())


def luminance(color):
    parts = [int(color[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, two):
    """Contrast ratio of two colours as WCAG 2 defines it."""
    low, high = sorted((luminance(one), luminance(two)))
    return (high + 0.05) / (low + 0.05)


def palettes():
    light, dark = page.STYLE_SHEET.split("@media (prefers-color-scheme: dark)")
    return [dict(re.findall(r"--(\w+): (#\w{6})", part)) for part in (light, dark)]


@pytest.mark.parametrize("colors", palettes(), ids=["light", "dark"])
def test_text_has_aa_contrast_in_both_schemes_and_curves_are_visible(colors):
    assert len(colors) == 8
    texts = ("ink", "faint", "good", "bad", "busy")
    for ground in (colors["paper"], colors["card"]):
        assert all(contrast(colors[text], ground) >= 4.5 for text in texts)
        assert all(contrast(curve, ground) >= 3 for curve in ("#0072b2", "#d55e00"))


def test_what_was_chosen_comes_before_the_whole_configuration(tmp_path):
    config = {"method": "fedavg", "dataset": "digits", "seed": 0, "num-rounds": 7, "lr": 0.1}
    config |= {"num-clients": 20, "run-name": "a", "fedsol-rho": 1.0, "ditto-lambda": 0.75}
    marks = {"lr": "auto", "num-clients": "default", "ditto-lambda": "default"}
    heads = read(RunDirectory.create(tmp_path, "chosen", config, origins=marks)).text("th")
    assert heads == ["method", "dataset", "seed", "num-rounds", "fedsol-rho", *config]
    heads = read(RunDirectory.create(tmp_path, "asked", config)).text("th")
    assert heads == ["method", "dataset", "seed", "num-rounds", "lr", *config]
