"""The plots show the numbers they are given, with titles, units and a legend."""

import io
import re
import subprocess
import sys

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex

from fedapp.results.plots import client_plots, measure_plots, rendering
from fedapp.results.plots import curves as plots

ROWS = [
    {"round": 1, "accuracy": None, "loss": None, "train_loss": 0.9},
    {"round": 2, "accuracy": 0.5, "loss": 0.8, "train_loss": 0.7},
    {"round": 3, "accuracy": 0.75, "loss": float("nan"), "train_loss": 0.6},
    {"round": 4, "accuracy": 0.625, "loss": 0.4, "train_loss": None},
]


def labels(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_curves_show_measured_rounds_in_percent_and_mark_the_best():
    figure = plots.curves(ROWS, "fedavg on $digits")
    accuracy, loss = figure.axes
    line, star = accuracy.lines
    assert list(line.get_xdata()) == [2, 3, 4]
    assert list(line.get_ydata()) == [50, 75, 62.5]
    assert (list(star.get_xdata()), list(star.get_ydata())) == ([3], [75])
    assert labels(accuracy) == ["global model", "best: 75.0 % in round 3"]
    assert accuracy.get_ylabel() == "Accuracy (%)"
    assert loss.get_xlabel() == "Round"
    test, train = loss.lines
    assert (list(test.get_xdata()), list(test.get_ydata())) == ([2, 4], [0.8, 0.4])
    assert (list(train.get_xdata()), list(train.get_ydata())) == ([1, 2, 3], [0.9, 0.7, 0.6])
    assert test.get_linestyle() != train.get_linestyle()
    assert labels(loss) == ["test, global model", "training, mean of clients"]
    assert figure.get_suptitle() == "fedavg on $digits"


@pytest.mark.parametrize(
    ("losses", "scale"),
    [([1.0, 0.5], "linear"), ([1.0, 0.01], "log"), ([1.0, 0.0], "linear"), ([], "linear")],
)
def test_loss_is_logarithmic_only_when_it_spans_decades(losses, scale):
    rows = [{"round": number, "loss": loss} for number, loss in enumerate(losses, 1)]
    axes = plots.loss_curve(rows).axes[0]
    assert axes.get_yscale() == scale
    assert axes.get_ylabel() == ("Loss (log scale)" if scale == "log" else "Loss")


@pytest.mark.parametrize(
    ("losses", "numbers"),
    [
        ([3.0, 0.06], ["0.05", "0.1", "0.2", "0.5", "1", "2"]),
        ([20.0, 0.005], ["0.01", "0.1", "1", "10"]),
    ],
)
def test_a_logarithmic_axis_has_plain_numbers(losses, numbers):
    rows = [{"round": number, "loss": loss} for number, loss in enumerate(losses, 1)]
    figure = plots.loss_curve(rows)
    rendering.png(figure)
    axes = figure.axes[0]
    low, high = axes.get_ylim()
    ticks = zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
    assert [label.get_text() for tick, label in ticks if low <= tick <= high] == numbers
    assert not any(label.get_text() for label in axes.get_yticklabels(minor=True))


def test_empty_plots_say_so():
    untested = plots.compare_curves([("untested", [])])
    for figure in (plots.accuracy_curve([]), plots.loss_curve([]), untested):
        assert figure.axes[0].texts[0].get_text() == "not measured in this run"
        assert rendering.png(figure).startswith(b"\x89PNG")


def test_accuracy_axis_starts_at_zero_and_holds_the_curve():
    low, high = plots.accuracy_curve(ROWS).axes[0].get_ylim()
    assert low == 0
    assert 75 < high < 100
    perfect = plots.accuracy_curve([{"round": 1, "accuracy": 1.0}])
    assert 100 < perfect.axes[0].get_ylim()[1] < 105


def test_single_points_are_visible_and_curves_say_whose_accuracy_it_is():
    row = {"round": 9, "accuracy": 0.5, "loss": 1.0}
    assert plots.compare_curves([("a", [row])]).axes[0].lines[0].get_marker() == "o"
    accuracy, loss = plots.curves([row], "x", "personal models").axes
    assert labels(accuracy)[0] == "personal models"
    assert labels(loss) == ["test, personal models"]


def test_a_round_without_all_clients_is_not_marked_as_the_best():
    rows = [{"round": 1, "accuracy": 0.5}, {"round": 2, "accuracy": 0.9, "unevaluated": [3]}]
    assert list(plots.accuracy_curve(rows).axes[0].lines[1].get_xdata()) == [1]


def test_compared_runs_differ_in_colour_or_dash_and_are_all_named():
    runs = [(f"run {number}", ROWS) for number in range(24)]
    figure = plots.compare_curves(runs)
    looks = {(line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines}
    assert len(looks) == 24
    assert {to_hex(color) for color, _ in looks} == set(rendering.OKABE_ITO)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [run for run, _ in runs]
    assert figure.axes[0].get_title(loc="left") == "Test accuracy"


def test_class_accuracy_has_one_bar_and_one_number_per_class():
    axes = client_plots.class_accuracy([0.5, None, 1.0], ["cat", "$dog", "owl"]).axes[0]
    assert [bar.get_width() for bar in axes.patches] == [50, 0, 100]
    assert [text.get_text() for text in axes.texts] == ["50.0 %", "-", "100.0 %"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cat", "$dog", "owl"]


def test_label_distribution_colours_the_counts_and_leaves_zero_blank():
    counts = np.array([[3, 0], [1, 2], [0, 5]])
    axes, scale = client_plots.label_distribution(counts, ["cat", "dog"]).axes
    drawn = axes.collections[0].get_array()
    assert drawn.shape == (2, 3)
    np.testing.assert_array_equal(drawn.filled(0), counts.T)
    np.testing.assert_array_equal(drawn.mask, counts.T == 0)
    assert axes.collections[0].get_clim() == (0, 5)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("Client", "Class")
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cat", "dog"]
    assert scale.get_ylabel() == "Training images"


def test_label_distribution_of_many_clients_and_classes_stays_readable():
    counts = np.ones((1000, 100), dtype=int)
    axes = client_plots.label_distribution(counts, [str(name) for name in range(100)]).axes[0]
    assert "first 200 of 1,000" in axes.get_title(loc="left")
    assert axes.collections[0].get_array().shape == (100, 200)
    assert axes.collections[0].get_rasterized()
    assert len(axes.get_yticklabels()) == 25
    assert len(axes.get_xticklabels()) == 10


def test_confusions_are_shares_of_each_classs_images():
    matrix = [[3, 1, 0], [0, 0, 0], [1, 0, 999]]
    names = ["cat", "a name of many more letters", "$dog"]
    figure = client_plots.confusion(matrix, names, "title")
    axes = figure.axes[0]
    shares = axes.collections[0].get_array().filled(0)
    np.testing.assert_allclose(shares, [[75, 25, 0], [0, 0, 0], [0.1, 0, 99.9]])
    assert axes.collections[0].get_clim() == (0, 100)
    assert [text.get_text() for text in axes.texts] == ["75", "25", "<1", "100"]
    shown = [label.get_text() for label in axes.get_yticklabels()]
    assert shown == ["cat", "a name of many more let…", "$dog"]


@pytest.mark.parametrize(("count", "labels"), [(100, 100), (150, 75)])
def test_confusions_of_up_to_a_hundred_classes_have_all_names(count, labels):
    matrix = np.eye(count, dtype=int)
    axes = client_plots.confusion(matrix, [str(name) for name in range(count)], "title").axes[0]
    assert len(axes.get_yticklabels()) == len(axes.get_xticklabels()) == labels
    assert not axes.texts


def test_client_accuracies_are_counted_in_bins_of_five_points():
    axes = client_plots.client_accuracy([0.0, 0.52, 0.54, 1.0]).axes[0]
    heights = [bar.get_height() for bar in axes.patches]
    assert (len(heights), sum(heights)) == (20, 4)
    assert (heights[0], heights[10], heights[19]) == (1, 2, 1)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["mean: 51.5 %"]
    assert list(axes.lines[0].get_xdata()) == [51.5, 51.5]


def test_late_clients_stand_on_the_failed_ones():
    rows = [{"round": 1, "failed": 0}, {"round": 2, "failed": 3, "late": 2}]
    axes = client_plots.failed_clients(rows).axes[0]
    bars = [(bar.get_y(), bar.get_height()) for bar in axes.patches]
    assert bars == [(0, 0), (0, 1), (0, 0), (1, 2)]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["failed", "too late"]


def test_png_is_white_and_large_enough():
    content = rendering.png(plots.curves(ROWS, "x"))
    pixels = matplotlib.image.imread(io.BytesIO(content))
    assert pixels.shape[:2] == (990, 900)
    assert pixels[0, 0, :3].tolist() == [1, 1, 1]


def test_svg_is_a_labelled_self_contained_element_in_the_page_colour():
    text = rendering.svg(plots.loss_curve(ROWS), 'Loss <of> "a" & b')
    assert text.startswith(
        '<svg role="img" aria-label="Loss &lt;of&gt; &quot;a&quot; &amp; b" viewBox="0 0 '
    )
    assert text.endswith("</svg>")
    assert "http" not in text
    assert "<style" not in text
    assert rendering.INK not in text
    assert "currentColor" in text
    assert ">Loss</text>" in text


def test_svg_is_equal_for_equal_figures_and_has_ids_of_its_own():
    one, two, other = (
        rendering.svg(plots.loss_curve(ROWS), label) for label in ("same", "same", "other")
    )
    assert one == two
    ids = [set(re.findall(r' id="([^"]+)"', text)) for text in (one, other)]
    assert ids[0]
    assert not ids[0] & ids[1]


def test_settings_of_matplotlib_are_left_alone():
    before = dict(matplotlib.rcParams)
    rendering.svg(plots.curves(ROWS, "x"), "x")
    assert dict(matplotlib.rcParams) == before


def test_importing_the_results_loads_neither_matplotlib_nor_rich_nor_torch():
    script = (
        "import sys; from fedapp.results import plots, progress, run_directory;"
        "from fedapp.results.report import page, report;"
        "print([m for m in ('matplotlib', 'rich', 'torch', 'PIL') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "[]"


def test_weight_divergence_is_drawn_in_l1_norms_and_not_from_figures_without_one():
    old = {"client": 0, "weight_divergence": 9.0, "distribution_distance": 9.0}
    rows = [{f"weight_divergence_{n}": k * x for n, k in (("l1", 1.0), ("l2", 0.1))}
            | {f"distribution_distance_{n}": k * x / 2 for n, k in (("l1", 1.0), ("l2", 0.1))}
            for x in (2.0, 4.0)]  # fmt: skip
    measure = {"clients": [old, *rows], "model": {"pearson_l1": 1.0, "pearson_l2": 0.5}}
    figure = measure_plots.divergence([("fedavg", [{"measures": {"divergence": measure}}])])
    (points,) = figure.axes[0].lines
    np.testing.assert_array_equal(points.get_xdata(), [np.nan, 1.0, 2.0])
    np.testing.assert_array_equal(points.get_ydata(), [np.nan, 2.0, 4.0])
    assert points.get_label() == "fedavg: Pearson +1.00"
    assert figure.axes[0].get_ylabel() == "L1 distance of weights: local, received"


def test_groups_are_a_mean_and_a_band_over_common_rounds():
    rows = [
        [{"round": r, "accuracy": (base + r) / 100} for r in rounds]
        for base, rounds in ((40, (1, 2, 3)), (60, (1, 2)))
    ]
    figure = plots.group_curves([("fedavg", rows), ("fedntd", rows[:1])])
    axes = figure.axes[0]
    mean, single = axes.lines
    assert list(mean.get_xdata()) == [1, 2]
    assert list(mean.get_ydata()) == pytest.approx([51, 52])
    assert list(single.get_xdata()) == [1, 2, 3]
    (band,) = axes.collections
    low, high = band.get_paths()[0].vertices[:, 1].min(), band.get_paths()[0].vertices[:, 1].max()
    assert (low, high) == pytest.approx((51 - 200**0.5, 52 + 200**0.5))
    assert axes.get_ylim()[0] == 40
    assert (mean.get_label(), single.get_label()) == ("fedavg, 2 runs", "fedntd")
    assert axes.get_title(loc="left") == "Mean test accuracy, ± one standard deviation"
    alone = plots.group_curves([("fedntd", rows[:1])]).axes[0]
    assert alone.get_title(loc="left") == "Test accuracy"
    assert not plots.group_curves([]).axes[0].lines
