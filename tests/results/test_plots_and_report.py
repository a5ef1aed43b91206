from __future__ import annotations

import html.parser
import logging
import re
import struct
import zlib
from typing import TYPE_CHECKING

import pytest
from run_tree import RunTree, take_snapshot

from airflow_megatron.results.plots import plots as plots_module
from airflow_megatron.results.plots.charts import colour_of
from airflow_megatron.results.plots.figures import figures, rendered
from airflow_megatron.results.plots.plots import draw_plots, loss_at, loss_curve
from airflow_megatron.results.readings.sweep_jobs import read_jobs, run_directories
from airflow_megatron.results.report import report as report_module
from airflow_megatron.results.report.report import write_report
from airflow_megatron.results.tables.trainings import result_table

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_megatron.results.plots.figures import Plot
    from airflow_megatron.results.readings.snapshot import SweepSnapshot
    from airflow_megatron.results.readings.sweep_jobs import SweepJob
    from airflow_megatron.results.report.report import Report

pytestmark = pytest.mark.slow

DRAWN = ("loss_curves", "loss_by_learning_rate", "cooldown_gain", "evaluations")
CHARTS = ("loss_over_compute", "evaluations_over_compute", "evaluations_over_loss", "divergence")
TABLES = ("results", "stability", "throughput", "cost", "attempts", "evaluations")
NOWHERE = {"name": "n", "point": "p", "stage": "pretrain", "kind": "train", "run_dir": "/nowhere"}
"""A job of which there is nothing yet."""


def png_pixels(png: bytes) -> tuple[int, int, bytes]:
    """Width, height and raw scanlines of a PNG."""
    width, height = struct.unpack(">II", png[16:24])
    data, at = b"", 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        if png[at + 4 : at + 8] == b"IDAT":
            data += png[at + 8 : at + 8 + length]
        at += length + 12
    return width, height, zlib.decompress(data)


def only_plot(name: str, jobs: list[SweepJob], monkeypatch: pytest.MonkeyPatch) -> Plot:
    """Draw one of the plots, because each other plot takes as long again."""
    monkeypatch.setattr(plots_module, "_PLOTS", [plot for plot in plots_module._PLOTS if plot[0] == name])
    (plot,) = draw_plots(result_table(take_snapshot(run_directories(jobs)), jobs))
    return plot


@pytest.fixture(scope="module")
def report(sweep: tuple[RunTree, SweepSnapshot], tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The report of the sweep, created once, because drawing takes two seconds."""
    tree, snapshot = sweep
    return write_report(snapshot, tree.jobs, tmp_path_factory.mktemp("report") / "out", title="<toy> & co")


def test_every_plot_of_a_full_sweep(report: Report) -> None:
    assert [path.name for path in report.plots] == [
        f"{name}.{suffix}" for name in (*DRAWN, *CHARTS) for suffix in ("png", "svg", "pdf")
    ]
    for path in report.plots[2::3]:
        assert path.read_bytes().startswith(b"%PDF-")
        assert b"/Type3" not in path.read_bytes()
    for path in report.plots[::3]:
        width, height, pixels = png_pixels(path.read_bytes())
        assert width > 800
        assert height > 300
        assert len(set(pixels)) > 20
    # Text stays text in an SVG, so that the test can read it.
    texts = {
        path.stem: " ".join(re.findall(r"<text[^>]*>([^<]*)<", path.read_text()))
        for path in report.plots[1::3]
    }
    for name in ("loss_curves", "cooldown_gain"):
        assert "hidden_size=64, num_layers=2" in texts[name]
        assert "120k parameters" in texts[name]
        assert "training loss (nats per token)" in texts[name]
        for rate in ("lr 0.001", "lr 0.003", "lr 0.01"):
            assert rate in texts[name]
    assert "tokens" in texts["loss_curves"]
    assert "failed or diverged" in texts["loss_curves"]
    assert "validation loss (nats per token)" in texts["loss_by_learning_rate"]
    assert "cooldown_1.6M (1.64M tokens)" in texts["loss_by_learning_rate"]
    assert "1.02M" in texts["cooldown_gain"]
    assert "next_line/acc" in texts["evaluations"]


def test_no_two_curves_have_the_same_colour_and_no_two_groups_the_same_mark() -> None:
    colours = [colour_of(number) for number in range(100)]
    assert len(set(colours)) == 100
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in colours)
    assert len(set(plots_module._MARKERS)) == len(plots_module._MARKERS) > 30


def test_fonts_of_a_pdf_are_embedded_without_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Airflow logs from the level INFO, at which fontTools describes each step of each font."""
    from matplotlib.figure import Figure

    with figures(), caplog.at_level(logging.INFO):
        figure = Figure()
        figure.text(0.5, 0.5, "loss")
        assert rendered(figure)[2].startswith(b"%PDF")
    assert [record.getMessage() for record in caplog.records if record.levelno < logging.WARNING] == []


def test_nothing_to_draw() -> None:
    assert draw_plots(result_table(take_snapshot(["/nowhere"]), read_jobs([NOWHERE]))) == []


def test_many_learning_rates_get_a_colour_bar(tree: RunTree, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(15):
        tree.add_point({"num_layers": 2, "hidden_size": 64}, 120_000, 1e-4 * 1.4**step)
    curves = only_plot("loss_curves", read_jobs(tree.jobs), monkeypatch).svg.decode()
    assert "peak learning rate" in curves
    assert "lr 0.0001" not in curves


def test_a_sweep_without_learning_rates(tree: RunTree) -> None:
    for hidden in (64, 128):
        tree.add_point({"num_layers": 2, "hidden_size": hidden}, hidden * 1000, 1e-3, budgets={"1M": 250})
    jobs = read_jobs(tree.jobs)
    plots = {
        plot.name: plot.svg.decode()
        for plot in draw_plots(result_table(take_snapshot(run_directories(jobs)), jobs))
    }
    assert list(plots) == ["loss_curves", "cooldown_gain", "evaluations"]
    assert "hidden_size=128" in plots["loss_curves"]


def test_curves_are_smoothed_and_read_between_points(sweep: tuple[RunTree, SweepSnapshot]) -> None:
    tree, snapshot = sweep
    branch = result_table(snapshot, read_jobs(tree.jobs)).branches[0]
    curve = loss_curve(branch)
    assert len(curve) == 40
    assert curve[-1][0] == branch.row.tokens
    assert loss_at([(0.0, 4.0), (10.0, 2.0), (20.0, 1.0)], 5.0) == 3.0
    assert loss_at([(0.0, 4.0), (10.0, 2.0)], 10.0) == 2.0
    assert loss_at([(0.0, 4.0), (10.0, 2.0)], 11.0) is None
    assert loss_at([], 1.0) is None


def test_a_branch_begins_with_means_as_wide_as_its_trunks(tmp_path: Path) -> None:
    """Its first point is not the loss of a single iteration, which would show a jump that the training did not have."""
    tree = RunTree(tmp_path)
    size = {"num_layers": 2, "hidden_size": 64}
    tree.add_point(size, 120_000, 1e-3, train_iters=2000, budgets={"1M": 2000})
    jobs = read_jobs(tree.jobs)
    table = result_table(take_snapshot(run_directories(jobs)), jobs)
    (cooldown,) = (branch for branch in table.branches if branch.row.parent_branch)
    trunk = table.parent_of(cooldown)
    assert trunk is not None
    raw = [record.loss for record in cooldown.training.iterations]
    before = [
        record.loss
        for record in trunk.training.iterations
        if record.iteration < cooldown.training.iterations[0].iteration
    ]
    window = len(trunk.training.iterations) // 30
    assert window > 1
    alone, joined = loss_curve(cooldown), loss_curve(cooldown, trunk)
    assert alone[0][1] == pytest.approx(raw[0])
    assert joined[0][1] == pytest.approx((sum(before[1 - window :]) + raw[0]) / window)
    assert [tokens for tokens, _ in joined] == [tokens for tokens, _ in alone]


class _Page(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows = self.pictures = 0
        self.foreign: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.rows += tag == "tr"
        for name, value in attrs:
            if name in ("src", "href"):
                self.pictures += (value or "").startswith("data:image/png;base64,")
                self.foreign += [value or ""] if not (value or "").startswith("data:") else []


def test_report(report: Report) -> None:
    assert sorted(report.paths) == sorted(report.page.parent.iterdir())
    assert {path.name for path in report.tables} == {
        "branches.json",
        *(f"{table}.{kind}" for table in ("results", "evaluations") for kind in ("csv", "json", "md")),
    }
    assert {path.name for path in (*report.tables, *report.exports)} == {
        "branches.json",
        "branches.tex",
        "curves.parquet",
        *(f"{table}.{kind}" for table in TABLES for kind in ("csv", "json", "md", "tex", "parquet")),
    }
    assert len(report.plots) == 24
    text = report.page.read_text()
    page = _Page(text)
    evaluated = {(row.point, row.branch, row.iteration) for row in report.evaluations}
    study = sum(1 + len(table.rows) for table in report.study_tables)
    assert page.rows == 3 + len(report.table.rows) + len(report.branches) + len(evaluated) + study
    assert page.pictures == 8
    assert page.foreign == []
    assert "&lt;toy&gt; &amp; co" in text
    assert "exit code 1: the loss is not a number" in text
    assert all(point.problems == () for point in report.branches)
    assert report.shared
    assert report.shared.text in text
    assert report.shared.text in report.text


def test_equal_results_give_equal_files_and_a_failed_write_leaves_the_old(
    sweep: tuple[RunTree, SweepSnapshot], report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, snapshot = sweep
    again = write_report(snapshot, tree.jobs, tmp_path, title="<toy> & co")
    for one, other in zip(report.paths, again.paths, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name
    before = {path: path.read_bytes() for path in again.paths}

    def full_disk(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_report(take_snapshot(["/nowhere"]), [NOWHERE], tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_cooldowns_compare_validations_of_the_same_samples(
    tree: RunTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = tree.add_point({"num_layers": 2, "hidden_size": 64}, 120_000, 1e-3, budgets={"1M": 250})
    jobs = read_jobs(tree.jobs)

    def axis_label() -> str:
        plot = only_plot("cooldown_gain", jobs, monkeypatch)
        return " ".join(re.findall(r"<text[^>]*>([^<]*)<", plot.svg.decode()))

    line = " validation loss at iteration 250 | lm loss value: 3.000000E+00 | lm loss PPL: 2.000000E+01 | \n"
    assert "training loss" in axis_label()
    trunk = tree.root / "toy" / point / "logs" / "pretrain-1.out"
    tree.write(trunk, trunk.read_text() + line)
    # The final validation after a cooldown is on other samples than one during training: still no pair.
    assert "training loss" in axis_label()
    cooled = tree.root / "toy" / point / "cooldown_s1M" / "logs" / "cooldown_1M-1.out"
    tree.write(cooled, cooled.read_text() + line)
    assert "validation loss" in axis_label()


def test_what_a_report_is_about_stands_under_its_title(tmp_path: Path) -> None:
    about = ["a <b> sweep", "2 points on alps"]
    report = write_report(take_snapshot(["/nowhere"]), [NOWHERE], tmp_path, title="toy", about=about)
    page, text = report.page.read_text(), (tmp_path / "results.md").read_text()
    assert '<p class="about">a &lt;b&gt; sweep</p>\n<p class="about">2 points on alps</p>' in page
    assert text.startswith("# toy\n\na <b> sweep\n\n2 points on alps\n\n|")


def test_long_texts_of_tables_are_wrapped(tree: RunTree, monkeypatch: pytest.MonkeyPatch) -> None:
    point = tree.add_point({"num_layers": 2, "hidden_size": 64}, 120_000, 1e-2, diverges_at=200)
    reason = "the job ended with exit code 1: the loss is not a number " * 3
    tree.verdict(tree.root / "toy" / point, "pretrain", "failed", reason)
    monkeypatch.setattr(report_module, "draw_plots", lambda _: [])
    snapshot = take_snapshot(run_directories(read_jobs(tree.jobs)))
    text = write_report(snapshot, tree.jobs, tree.root / "out").page.read_text()
    assert '<th class="long">reason</th>' in text
    assert f'<td class="long">{reason.strip()}' in text
    assert '<th class="long">point</th>' not in text
