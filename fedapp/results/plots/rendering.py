"""The style of figures and their conversion to a PNG file or a part of an HTML page.

Figures do not use pyplot, so that no global state changes and no display is needed. Colours are
those of Okabe and Ito (2008), which are distinguishable with any colour vision. matplotlib writes
SVG files for stand-alone use. `svg` adapts one to an HTML page: no fixed size, the page's fonts and
text colour (also in dark mode), a label for screen readers, and no web address.
"""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

P = ParamSpec("P")
T = TypeVar("T")

BLUE, ORANGE, GREEN, RED = "#0072b2", "#e69f00", "#009e73", "#d55e00"
OKABE_ITO = (BLUE, RED, GREEN, "#cc79a7", ORANGE, "#56b4e9")
_DASHES = ("-", "--", "-.", ":")
PAPER = "#ffffff"
INK = "#24292f"  # of text and axes; used for nothing else, so that `svg` can replace it
STYLE: dict[Any, Any] = {
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": INK,
    "grid.alpha": 0.15,
    "legend.frameon": False,
    "lines.linewidth": 2,
    "svg.fonttype": "none",
    "text.parse_math": False,  # class names may contain dollar signs
    **dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK
    ),
}


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """Run `draw` with STYLE, without a change of matplotlib's global settings."""

    @functools.wraps(draw)
    def run_styled(*args: P.args, **kwargs: P.kwargs) -> T:
        import matplotlib

        with matplotlib.rc_context(STYLE):
            return draw(*args, **kwargs)

    return run_styled


def color_of(index: int) -> str:
    """Return the colour of the curve or bar of this index; the colours repeat in a cycle."""
    return OKABE_ITO[index % len(OKABE_ITO)]


def line_style(index: int) -> tuple[str, str]:
    """Return colour and dash of the curve of this index; 24 combinations are different."""
    cycle = index // len(OKABE_ITO)  # each cycle of colours starts one dash later
    return color_of(index), _DASHES[(index + cycle) % len(_DASHES)]


def class_colors(count: int) -> np.ndarray:
    """Return a colour for each of `count` classes: [count, 4], red, green, blue and opacity."""
    import matplotlib

    if count <= 10:
        return np.asarray(matplotlib.colormaps["tab10"](np.arange(count)))
    return np.asarray(matplotlib.colormaps["turbo"](np.linspace(0, 1, count)))


def class_scale(count: int) -> dict[str, Any]:
    """Return the colours of a scatter plot of class numbers: its arguments cmap, vmin and vmax."""
    cmap = "tab10" if count <= 10 else "turbo"
    return {"cmap": cmap, "vmin": -0.5, "vmax": max(count, 10) - 0.5}


def number_scale(colors: np.ndarray) -> ScalarMappable:
    """Return what a colour bar needs for the numbers 0, 1, ... in these colours [n, 4]."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    return ScalarMappable(Normalize(-0.5, len(colors) - 0.5), ListedColormap(colors))


def whole_numbers(*axis: Axis) -> None:
    """Label axes with few whole numbers, such as rounds or clients."""
    from matplotlib.ticker import MaxNLocator

    for each in axis:
        each.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=True))


def plain_log_ticks(axis: Axis) -> None:
    """Label a logarithmic axis with numbers, because STYLE disables formulas.

    Labels are powers of ten; in less than two decades, twice and five times these too.
    """
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    if high < 100 * low:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches, with constrained layout."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


@styled
def png(figure: Figure, dpi: int = 150) -> bytes:
    """Render a figure as PNG on white, `dpi` dots per inch."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, facecolor=PAPER)
    return buffer.getvalue()


@styled
def svg(figure: Figure, label: str) -> str:
    """Render a figure as an SVG element for an HTML page, with `label` for screen readers.

    Equal figures with equal labels give equal text. Different labels give different ids, for
    several figures on one page.
    """
    import matplotlib

    matplotlib.rcParams["svg.hashsalt"] = label
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", facecolor="none", dpi=150)
    return _for_html(buffer.getvalue(), label)


def _for_html(text: str, label: str) -> str:
    """Return the drawing of an SVG file without prologue, namespaces, metadata and unused ids."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text, flags=re.S)
    text = text.replace("xlink:href", "href")
    used = set(re.findall(r'(?:url\(|href=")#(\w+)', text))
    text = re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in used else "", text)
    text = re.sub(r"'DejaVu Sans'[^;\"]*", "system-ui, sans-serif", text)
    text = text.replace(INK, "currentColor")
    view_box = re.findall(r'viewBox="[^"]*"', text)[0]
    body = text[text.index(">") + 1 :].strip()
    return f'<svg role="img" aria-label="{escape(label)}" {view_box}>{body}'
