"""Figures in the project's style, as pictures whose bytes depend only on the drawn data."""

from __future__ import annotations

import importlib.util
import io
import logging
import textwrap
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.spec.trust.plain_text import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from airflow_megatron.results.plots.charts import Chart

log = logging.getLogger(__name__)

PANELS_PER_ROW: Final = 3
MOST_PANELS: Final = 60
"""Maximum number of panels; more are unreadable, and a few thousand pixels more cannot be drawn."""
_LONGEST_LABEL: Final = 300
GREY: Final = "#5a5a5a"
_STYLE: Final[dict[Any, Any]] = {
    "figure.dpi": 150,
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#d9d9d9",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "svg.fonttype": "none",
    # Without a salt the ids in an SVG are random.
    "svg.hashsalt": "airflow-megatron",
    # fonts as outlines of TrueType: journals refuse those of type 3
    "pdf.fonttype": 42,
}


@dataclass(frozen=True, slots=True)
class Plot:
    """One drawn plot.

    :param name: file name without suffix
    :param title: a short description
    :param note: how to read it
    :param png: the picture as PNG
    :param svg: the picture as SVG
    :param pdf: the picture as PDF
    :param chart: its data, None if a page shows the picture
    """

    name: str
    title: str
    note: str
    png: bytes
    svg: bytes
    pdf: bytes
    chart: Chart | None = None

    @property
    def files(self) -> dict[str, bytes]:
        """The files to write: name → content."""
        return {f"{self.name}.png": self.png, f"{self.name}.svg": self.svg, f"{self.name}.pdf": self.pdf}


def missing_for_plots() -> str:
    """Return what to install to draw plots, empty if nothing is missing."""
    if importlib.util.find_spec("matplotlib") is not None:
        return ""
    return "plots need matplotlib: pip install 'airflow-megatron[plots]'"


class FigureMaker:
    """Factory of figures with a given number of panels; it records them, so that the caller can free them."""

    def __init__(self) -> None:
        self.made: list[Figure] = []

    def __call__(self, panels: int) -> tuple[Figure, list[Axes]]:
        """Return a new figure and its panels."""
        from matplotlib.figure import Figure

        if panels > MOST_PANELS:
            raise ValueError(f"{panels} panels are too many for a figure; see the tables")
        columns = min(panels, PANELS_PER_ROW)
        rows = -(-panels // columns)
        figure = Figure(figsize=(2.4 + 3.6 * columns, 0.8 + 3.0 * rows), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False)
        axes = list(grid.flat)
        for unused in axes[panels:]:
            unused.set_axis_off()
        self.made.append(figure)
        return figure, axes[:panels]


def plain(text: str) -> str:
    """Return a label that matplotlib draws literally, without formulas between two ``$``."""
    return shown(text[:_LONGEST_LABEL]).replace("$", r"\$")


@contextmanager
def figures() -> Iterator[FigureMaker]:
    """Draw with the project's style regardless of the user's matplotlibrc, and free the figures."""
    import matplotlib as mpl

    maker = FigureMaker()
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        yield maker
        for figure in maker.made:
            figure.clear()


@contextmanager
def attempted(name: str) -> Iterator[None]:
    """Skip a figure or fit that cannot be made; the tables contain the data and are written anyway."""
    try:
        yield
    except Exception as error:
        log.warning("%s is left out: %s", name, shown(str(error))[:_LONGEST_LABEL])


def rendered(figure: Figure) -> tuple[bytes, bytes, bytes]:
    """Return the figure as PNG, as SVG and as PDF.

    The layout is computed once; ``savefig`` would compute it again for each format.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_pdf import FigureCanvasPdf
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    # describes each step of each font at the level INFO, from which Airflow logs
    logging.getLogger("fontTools").setLevel(logging.WARNING)
    png, svg, pdf = io.BytesIO(), io.BytesIO(), io.BytesIO()
    agg: Any = FigureCanvasAgg(figure)
    agg.print_png(png, metadata={"Software": None})
    figure.set_layout_engine("none")
    vector: Any = FigureCanvasSVG(figure)
    vector.print_svg(svg, metadata={"Date": None, "Creator": None})
    paper: Any = FigureCanvasPdf(figure)
    paper.print_pdf(pdf, metadata={"CreationDate": None, "Creator": None, "Producer": None})
    return png.getvalue(), svg.getvalue(), pdf.getvalue()


def palette(count: int) -> list[str]:
    """Return a number of colours, even in lightness and safe for the colour-blind."""
    import matplotlib as mpl
    from matplotlib.colors import to_hex

    # The upper end of viridis is too light for lines on white.
    viridis = mpl.colormaps["viridis"]
    return [to_hex(viridis(0.86 * index / max(1, count - 1))) for index in range(count)]


def outer_labels(axes: Sequence[Axes], x_label: str, y_label: str) -> None:
    """Label the axes of the panels at a grid's left and lower edge."""
    for index, axis in enumerate(axes):
        if index % PANELS_PER_ROW == 0:
            axis.set_ylabel(y_label)
        if index + PANELS_PER_ROW >= len(axes):
            axis.set_xlabel(x_label)


def line_entry(
    style: Any, label: str, *, marker: str = "", colour: str = GREY, hollow: bool = False
) -> Line2D:
    """Return a legend entry without a line in the figure."""
    from matplotlib.lines import Line2D

    return Line2D(
        [],
        [],
        ls=style,
        marker=marker,
        ms=5,
        color=colour,
        mfc="white" if hollow else colour,
        label=textwrap.fill(plain(label), 32),
    )


def legend(figure: Figure, entries: Sequence[Line2D]) -> Figure:
    """Put a legend beside the panels; return the figure."""
    if entries:
        figure.legend(handles=list(entries), loc="outside right upper", ncols=1 + len(entries) // 30)
    return figure
