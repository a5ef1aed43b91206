"""Damaged or forged records and results of a job affect only the output about that job."""

from __future__ import annotations

import csv
import json
import math
import re
from typing import TYPE_CHECKING

import polars as pl
import pytest
from run_tree import RunTree, take_snapshot

from airflow_megatron.megatron.logs.log_lines import LogParser
from airflow_megatron.megatron.logs.training_run import TrainingRun
from airflow_megatron.results.plots import figures, plots
from airflow_megatron.results.readings.sweep_jobs import read_jobs, run_directories
from airflow_megatron.results.report import report as report_module
from airflow_megatron.results.report.report import write_report
from airflow_megatron.results.report.table_files import parquet
from airflow_megatron.results.store.batches import Batch, Source
from airflow_megatron.results.store.frames import frame_of
from airflow_megatron.results.store.job_rows import attempt_row
from airflow_megatron.results.tables.text import csv_cell
from airflow_megatron.results.tables.trainings import to_csv
from airflow_megatron.slurm.remote.records import ExitRecord, read_object
from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.states.observation import AccountingRow, Observation
from airflow_megatron.slurm.submission.gpu_samples import read_summary
from airflow_megatron.slurm.verdicts.recorded import RecordedVerdict
from airflow_megatron.slurm.verdicts.verdict import Expectation, Outcome, Verdict, judge
from airflow_megatron.spec.layout.tracker import tracked_iteration
from airflow_megatron.spec.model.conditions import Condition
from airflow_megatron.supervision.condition_watch import ConditionWatch
from airflow_megatron.ui.live.result_folders import ResultFolders

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

VALUES = (
    "Infinity",
    "-Infinity",
    "NaN",
    "1e999",
    "9" * 400,
    "9" * 5000,
    "-1",
    "true",
    "null",
    '"x"',
    '""',
    "{}",
    "[]",
    '{"a": {}}',
    "[1, [2]]",
    '"\\u0000"',
    '"\\ud800"',
    '"' + "$" * 9 + '"',
    '"\\u001b[2J\\n@run /other"',
    "[" * 100_000,
    '{"a":' * 100_000,
)
EXIT_KEYS = ("exit_code", "signal", "host", "nodes", "started", "ended", "job_id", "restart_count")
VERDICT_KEYS = (
    "outcome",
    "reason",
    "state",
    "exit_code",
    "iteration",
    "job_id",
    "failed_nodes",
    "line",
    "attempt",
    "elapsed",
)
EXIT = {"exit_code": 1, "signal": None, "host": "n1", "nodes": "n1", "started": 1, "ended": 5, "job_id": "7"}
VERDICT = {"outcome": "failed", "reason": "because", "attempt": 1}


def with_value(record: dict[str, object], key: str, value: str) -> str:
    return json.dumps({**record, key: "@"}).replace('"@"', value)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: value[:12])
def test_exit_records(value: str) -> None:
    for key in EXIT_KEYS:
        record = read_object(with_value(EXIT, key, value))
        left = ExitRecord.from_json(record)
        row = AccountingRow("7", "x", JobState.FAILED, "FAILED", 1, 0, "n1", 1, ended=1.0, elapsed=4)
        for accounting in (row, None):
            seen = Observation(
                1000.0, queue_ok=True, accounting_ok=True, accounting=accounting, exit=left, tracker=value
            )
            judge(seen, Expectation("train", train_iters=100, complete=lambda files: True))
    assert ExitRecord.from_json(read_object(value)) is None
    assert tracked_iteration(value) is None or value.isdigit()


@pytest.mark.parametrize(
    "value", [*VALUES, "1e300", "1e18", "1e14", "253402300800", "-1e9"], ids=lambda value: value[:12]
)
def test_times_of_an_exit_record_that_no_calendar_has(value: str) -> None:
    verdict, source = Verdict(Outcome.FAILED, "because"), Source("s", "r", "p", "train", 1, "7", "/log")
    for key in ("started", "ended"):
        left = ExitRecord.from_json(read_object(with_value(EXIT, key, value)))
        times = (left.started, left.ended) if left else (None, None)
        for started, ended in (times, (float(10**18), math.inf)):
            rows = [attempt_row(verdict, started, ended, 2), attempt_row(verdict, 1.0, 5.0, 2)]
            frame = frame_of("attempts", [Batch("attempts", source, 9.0, rows)])
            frame.to_dicts()
            assert frame["ended"].to_list()[1] is not None


@pytest.mark.parametrize("values", [("1.7E+308", "1.7E+308"), ("1.7E+308", "-1.7E+308"), ("9" * 60, "1.0")])
def test_losses_that_no_training_has(values: tuple[str, str]) -> None:
    """The sum of two such numbers is not finite."""
    log = "".join(
        f" [2026-11-21 09:00:01] iteration {number:8}/ 400 | consumed samples: {16 * number} | "
        f"elapsed time per iteration (ms): 500.0 | lm loss: {values[number % 2]} |\n"
        for number in range(1, 101)
    )
    training = TrainingRun.of(LogParser().feed(log.encode()))
    assert len(training.iterations) == 100
    assert all(record.is_nan == (record.loss != 1.0) for record in training.iterations)
    assert training.train_loss in (None, 1.0)


def test_gpu_samples_that_no_gpu_has() -> None:
    text = "0,5,1.7e308,50,300\n1,5,100,1.7e308,300\n2,5,100,50,1.7e308\n3,5,100,50,300\n4,5,-1,50,300\n"
    assert [use.index for use in read_summary("n1", text)] == [3]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: value[:12])
def test_verdicts(value: str) -> None:
    for key in VERDICT_KEYS:
        text = with_value(VERDICT, key, value)
        RecordedVerdict.read(text)
        leaf = Condition("finished", path="/r/.jobs/train")
        watch = ConditionWatch(leaf, {"/r/.jobs/train": 1})
        watch.read([Observation(1.0, files={"/r/.jobs/train/verdict.json": text})])
        watch.missing()


def made_tree(place: Path) -> RunTree:
    made = RunTree(place)
    for rate in (1e-3, 3e-3):
        made.add_point({"num_layers": 2, "hidden_size": 64}, 1000, rate, train_iters=40)
    for usual in made.root.rglob("eval_results/*/results.json"):
        usual.unlink()  # a panel of a figure for each of its tasks
    return made


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> RunTree:
    """Two trainings of which one has an evaluation, which each test writes anew."""
    return made_tree(tmp_path_factory.mktemp("sweep"))


@pytest.fixture(scope="module")
def spoilt_tree(tmp_path_factory: pytest.TempPathFactory) -> RunTree:
    """Two trainings, everything of one of which each test spoils; its records come to be long to read."""
    return made_tree(tmp_path_factory.mktemp("spoilt"))


def report(tree: RunTree, out: Path):
    jobs = read_jobs(tree.jobs)
    return write_report(take_snapshot(run_directories(jobs)), tree.jobs, out)


def spoil(tree: RunTree, path: str, text: str) -> None:
    file = next(iter(sorted(tree.root.rglob("logs")))).parent / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, errors="surrogatepass")


@pytest.fixture(autouse=True)
def _few_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "_PLOTS", [plot for plot in plots._PLOTS if plot[0] == "evaluations"])
    monkeypatch.setattr(report_module, "study_charts", lambda *_: [])


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_module, "_plots", lambda *_: [])


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("value", VALUES, ids=lambda value: value[:12])
def test_a_report_survives_every_record(spoilt_tree: RunTree, tmp_path: Path, value: str) -> None:
    stage = read_jobs(spoilt_tree.jobs)[0].stage
    spoil(spoilt_tree, f".jobs/{stage}/1/exit.json", with_value(EXIT, "exit_code", value))
    spoil(spoilt_tree, f".jobs/{stage}/1/job.json", value)
    spoil(spoilt_tree, f".jobs/{stage}/verdict.json", with_value(VERDICT, "line", value))
    spoil(spoilt_tree, "checkpoints/latest_checkpointed_iteration.txt", value)
    spoil(spoilt_tree, "lr_finder/lr_finder.json", with_value({"suggested": 1}, "lowest", value))
    spoil(spoilt_tree, "lr_finder/lr_finder_data.csv", f"learning_rate,loss\n{value},{value}\n\0,\n")
    results = {"results": {"a": {"acc,none": 0.5}}, "n-shot": {"a": 0}}
    spoil(spoilt_tree, "eval_results/iter_40/results.json", with_value(results, "versions", value))
    spoil(spoilt_tree, "eval_results/iter_0000039/results.json", with_value({}, "results", value))
    figure = json.dumps({"results": {"b": {"acc,none": "@", "acc_stderr,none": "@"}}}).replace('"@"', value)
    spoil(spoilt_tree, "eval_results/iter_0000038/results.json", figure)
    spoil(spoilt_tree, f"eval_results/iter_{'9' * 200}/results.json", "{}")
    made = report(spoilt_tree, tmp_path)
    assert len(made.table.rows) == 2
    assert "\x1b" not in made.text
    assert (tmp_path / "results.csv").exists()
    assert made.page.exists()


NUMBERS = ("9" * 18, "9" * 25, "9" * 60, "1e400", "-inf", "nan", "-5", "1e30")
LINE = (
    " iteration       41/     100 | consumed samples: 656 | elapsed time per iteration (ms): 500.0 |"
    " throughput per GPU (TFLOP/s/GPU): 100.0 | learning rate: 1.0E-03 | global batch size:    16 |"
    " lm loss: 2.0E+00 | loss scale: 1.0 | grad norm: 1.0 | number of skipped iterations:   0 |"
    " number of nan iterations:   0 |\n"
)


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("value", NUMBERS, ids=lambda value: value[:12])
def test_a_report_survives_every_number_in_a_log(spoilt_tree: RunTree, tmp_path: Path, value: str) -> None:
    log = min(spoilt_tree.root.rglob("logs/*"))
    before = log.read_text()
    fields = re.findall(r"([a-z][^|:]+): +([\d.E+-]+) ", LINE)
    assert len(fields) == 10
    for name, number in fields:
        line = re.sub(rf"({re.escape(name)}: +){re.escape(number)} ", rf"\g<1>{value} ", LINE)
        log.write_text(before + line)
        made = report(spoilt_tree, tmp_path)
        assert len(made.table.rows) == 2
        assert (tmp_path / "results.parquet").exists()
        assert (tmp_path / "curves.parquet").exists()
    log.write_text(before)


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("value", ["nan", "1e400", "-inf", "1e300"])
def test_times_of_a_killed_job(tmp_path: Path, value: str) -> None:
    """Without an exit record, the times of its iterations are summed."""
    tree = made_tree(tmp_path / "sweep")
    log = min(tree.root.rglob("logs/*"))
    for record in log.parent.parent.rglob("exit.json"):
        record.unlink()
    spoilt = re.sub(r"(elapsed time per iteration \(ms\): +)[\d.]+ ", rf"\g<1>{value} ", LINE)
    log.write_text(log.read_text() + spoilt)
    times = [row.wall_seconds for row in report(tree, tmp_path / "report").table.rows]
    assert len(times) == 2
    assert all(time is not None and math.isfinite(time) for time in times)


@pytest.mark.usefixtures("no_figures")
def test_a_parameter_too_large_for_parquet(tree: RunTree, tmp_path: Path) -> None:
    table = report(tree, tmp_path).table
    csv = re.sub(r"\b0\.00[13]\b", "9" * 60, to_csv(table))
    assert pl.read_parquet(parquet(csv)).height == len(table.rows)


TASKS = [
    "$$",
    "$",
    "a$b$c",
    r"\$x$",
    "$\\frac{1}{$",
    "a\nb",
    "\x1b[31mred",
    "x" * 5000,
    "{}",
    "%s",
    "<b>",
    "\u202eabc",
    "\x00",
    "_^",
    "|",
]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: repr(task[:20]))
def test_names_of_tasks_are_drawn_as_they_are(tree: RunTree, tmp_path: Path, task: str) -> None:
    results = {"results": {task: {"acc,none": 0.5}}}
    spoil(tree, "eval_results/iter_40/results.json", json.dumps(results))
    made = report(tree, tmp_path)
    assert [plot.name for plot in made.plots if plot.suffix == ".svg"] == ["evaluations.svg"]
    assert task.replace("\x1b", "") == task or "\x1b" not in (tmp_path / "evaluations.md").read_text()


def test_thousands_of_tasks(tree: RunTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (plots, figures):
        monkeypatch.setattr(module, "MOST_PANELS", 6)  # 60 in reports
    results = {"results": {f"task{number}": {"acc,none": 0.5} for number in range(3000)}}
    spoil(tree, "eval_results/iter_40/results.json", json.dumps(results))
    made = report(tree, tmp_path)
    assert sum(row.measurement.task.startswith("task") for row in made.evaluations) == 3000
    assert made.page.exists()


def test_the_tables_are_written_when_no_figure_can_be(
    tree: RunTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no figure")

    with monkeypatch.context() as patched:
        patched.setattr(figures.FigureMaker, "__call__", broken)
        made = report(tree, tmp_path)
    assert made.plots == ()
    assert made.page.exists()
    with pytest.raises(ValueError, match="too many"), figures.figures() as make:
        make(5000)


ROWS = [
    '[{"point": {}, "branch": "b"}]',
    '[{"point": "p", "branch": []}]',
    '[{"point": 1, "branch": 2}]',
    '[{"point": "p", "branch": "b", "validation_loss": Infinity}]',
    '[{"point": "p", "branch": "b", "validation_loss": true}]',
    '[{"point": "p", "branch": "b", "validation_loss": {}}]',
    '[{"point": "p", "branch": "b", "state": {}}]',
    "[" * 100_000,
    "{}",
    "[null, 5, []]",
    "9" * 5000,
    "\x00",
    "",
]


@pytest.mark.parametrize("text", ROWS, ids=lambda text: text[:30])
def test_the_list_of_sweeps_survives_every_table(tmp_path: Path, text: str) -> None:
    for name, content in (("good", '[{"point": "p", "branch": "b", "state": "finished"}]'), ("bad", text)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.html").write_text("x")
        (tmp_path / name / "results.json").write_text(content)
    found = {sweep.name: sweep for sweep in ResultFolders(tmp_path).sweeps()}
    assert set(found) == {"good", "bad"}
    assert found["good"].finished == 1


@pytest.mark.parametrize("target", ["/etc/passwd", "/dev/zero", "../outside", "absent"])
@pytest.mark.parametrize("file", ["report.html", "results.json", "table.csv"])
def test_links_are_not_followed(tmp_path: Path, target: str, file: str) -> None:
    root = tmp_path / "root"
    (root / "bad").mkdir(parents=True)
    (root / "bad" / "report.html").write_text("x")
    (root / "outside").write_text('[{"point": "p", "branch": "b"}]')
    (root / "bad" / file).unlink(missing_ok=True)
    (root / "bad" / file).symlink_to(target)
    folders = ResultFolders(root)
    assert all(sweep.branches == 0 for sweep in folders.sweeps())
    assert (folders.report("bad") is None) == (file == "report.html")
    assert file not in folders.downloads("bad")


FORMULAS = [
    *("=1+1", "+1+cmd|' /C x'!A0", "@SUM(1)", "-2+3", "-cmd", "\t=1", "\r=1", '=HYPERLINK("http://x")'),
    *("=", "+", "@", "-1-1", "--1", "-@x", "=\n", "-=1", "+=", "@@", "-x", "+1"),
]


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("text", FORMULAS, ids=repr)
def test_no_cell_is_a_formula(tree: RunTree, tmp_path: Path, text: str) -> None:
    assert csv_cell(text) == f"'{text}"
    results = {"results": {text: {"acc,none": 0.5}}}
    spoil(tree, "eval_results/iter_40/results.json", json.dumps(results))
    report(tree, tmp_path)
    for path in tmp_path.rglob("*.csv"):
        for row in csv.reader(path.open(newline="")):
            assert not [cell for cell in row if cell != csv_cell(cell)]


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("text", ["x;=cmd|' /C x'!A0", "x; +1+1", "x;@SUM(1)", "a;-2+3;=1"], ids=repr)
def test_no_part_of_a_cell_is_a_formula(tree: RunTree, tmp_path: Path, text: str) -> None:
    """A spreadsheet that separates at semicolons splits the lines there."""
    results = {"results": {text: {"acc,none": 0.5}}}
    spoil(tree, "eval_results/iter_40/results.json", json.dumps(results))
    report(tree, tmp_path)
    files = list(tmp_path.rglob("*.csv"))
    assert any(text[:1] in path.read_text() for path in files)
    for path in files:
        for part in path.read_text().split(";")[1:]:
            assert not part.lstrip().startswith(("=", "+", "@", "-")), (path, part)


@pytest.mark.parametrize("text", ["＝1+1", "＋1", "－1＋1", "＠SUM(1)"])
def test_wide_signs_begin_formulas_too(text: str) -> None:
    assert csv_cell(text) == f"'{text}"


@pytest.mark.parametrize(
    "cell", ["a;b", "a;b=c", "-1", "-1e-3", "-.5", "-1_000", "a=b", "lr-1", "1", -1, -0.5, "a@b"]
)
def test_numbers_and_names_stay_as_they_are(cell: object) -> None:
    assert csv_cell(cell) == cell
