"""A sweep from YAML to result table through scheduler, triggerer, SSH and Slurm."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from airflow_megatron.cli.app import main
from airflow_megatron.results import load

if TYPE_CHECKING:
    from pathlib import Path

    from sweep_site import SiteAirflow, SweepSite

pytestmark = pytest.mark.integration

POINTS = ("lr0.001", "lr0.004")
TRUNKS = (10, 20)
ITERATION = re.compile(r"iteration +(\d+)/ +\d+ \|.*? lm loss: (\S+) \|")
VALIDATION = re.compile(r"validation loss at iteration \d+ on (\w+) set \| lm loss value: (\S+)")


@pytest.fixture(scope="module")
def finished(site: SweepSite, airflow: SiteAirflow) -> str:
    """The successful run of the whole sweep."""
    for dag_id in ("chain.point", "chain"):
        airflow.wait_for_dag(dag_id)
    run_id = airflow.trigger("chain")
    state = airflow.ended("chain", run_id, timeout=400)
    assert state == "success", airflow.task_log("chain", run_id, "report")
    return run_id


def branches(site: SweepSite) -> dict[tuple[str, str], tuple[Path, int]]:
    """Return point and branch → run directory and last iteration."""
    found = {}
    for point in POINTS:
        point_dir = site.runs / "chain" / point
        found[point, "pretrain"] = (point_dir, 20)
        for trunk in TRUNKS:
            found[point, f"cooldown_{trunk}"] = (point_dir / f"cooldown_{trunk}", trunk + 10)
    return found


def jobs(site: SweepSite) -> dict[str, tuple[Path, str]]:
    """Return the job's name → run directory and stage, of every job of the sweep."""
    found = {"chain.prepare_data": (site.runs / "chain" / "_shared" / "prepare_data", "prepare_data")}
    for (point, branch), (run_dir, _) in branches(site).items():
        stages = [branch] if branch == "pretrain" else [branch, f"{branch}.convert", f"{branch}.evaluate"]
        found |= {f"chain.{point}.{stage}": (run_dir, stage) for stage in stages}
    return found


def test_every_job_was_submitted_once_and_completed(site: SweepSite, finished: str) -> None:
    site.expect_states("chain.", {f"{name}.a1": ["COMPLETED"] for name in jobs(site)})


def test_the_run_directories_are_complete(site: SweepSite, finished: str) -> None:
    for name, (run_dir, stage) in jobs(site).items():
        attempt = run_dir / ".jobs" / stage / "1"
        assert (attempt / "jobid").read_text().strip() == site.submission(f"{name}.a1").job_id
        assert (attempt / "job.sbatch").read_text().startswith("#!/bin/bash\n")
        assert json.loads((attempt / "job.json").read_text())["job"] == name
        assert json.loads((attempt / "exit.json").read_text())["exit_code"] == 0
        assert (run_dir / "logs" / f"{stage}-1.out").stat().st_size > 0
        verdict = site.verdict(run_dir, stage)
        assert (verdict["outcome"], verdict["attempt"]) == ("finished", 1)
    for (_, branch), (run_dir, last) in branches(site).items():
        checkpoints = run_dir / "checkpoints"
        assert (checkpoints / "latest_checkpointed_iteration.txt").read_text() == str(last)
        assert (checkpoints / f"iter_{last:07d}" / "metadata.json").exists()
        assert list((run_dir / "tensorboard").iterdir())
        if branch != "pretrain":
            assert (run_dir / "converted_hf" / f"iter_{last}" / "config.json").exists()
            assert (run_dir / "converted_checkpoints" / f"iter_{last}.done").exists()
            results = json.loads((run_dir / "eval_results" / f"iter_{last}" / "results.json").read_text())
            assert set(results["results"]) == {"heldout", "next_line"}


def test_a_cooldown_continues_from_its_trunk(site: SweepSite, finished: str) -> None:
    for (_, branch), (run_dir, last) in branches(site).items():
        logged = [int(number) for number, _ in ITERATION.findall(log_text(run_dir, branch))]
        first = 1 if branch == "pretrain" else last - 9
        assert logged == list(range(first, last + 1)), (run_dir, branch)


def log_text(run_dir: Path, stage: str) -> str:
    return (run_dir / "logs" / f"{stage}-1.out").read_text()


def test_the_report_holds_the_losses_of_the_logs(site: SweepSite, finished: str) -> None:
    folder = site.local / "results" / "chain"
    rows: list[dict[str, Any]] = json.loads((folder / "results.json").read_text())
    expected = branches(site)
    assert {(row["point"], row["branch"]) for row in rows} == set(expected)
    for row in rows:
        run_dir, last = expected[row["point"], row["branch"]]
        text = log_text(run_dir, row["branch"])
        iteration, loss = ITERATION.findall(text)[-1]
        held_out = dict(VALIDATION.findall(text))
        assert int(iteration) == last
        assert row["train_loss"] == pytest.approx(float(loss))
        assert row["validation_loss"] == pytest.approx(float(held_out["validation"]))
        assert row["test_loss"] == pytest.approx(float(held_out["test"]))
        assert row["attempts"] == 1
    page = (folder / "report.html").read_text()
    assert all(point in page for point in POINTS)
    assert (folder / "results.csv").exists()
    assert list(folder.glob("*.png"))


def test_the_store_holds_the_lines_of_the_logs(
    site: SweepSite, finished: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(site.local / "results")
    live = load("chain", finished, root=root)
    for (point, branch), (run_dir, last) in branches(site).items():
        rows = live.iterations.filter(pl.col("point") == point, pl.col("stage") == branch)
        logged = [(int(number), float(loss)) for number, loss in ITERATION.findall(log_text(run_dir, branch))]
        assert list(rows.select("iteration", "loss").iter_rows()) == logged
        assert not rows["superseded"].any()
        of_point = live.evaluations.filter(pl.col("point") == point, pl.col("stage") == branch)
        assert set(of_point["task"]) == ({"heldout", "next_line"} if branch != "pretrain" else set())
        log = (run_dir / "logs" / f"{branch}-1.out").read_bytes()
        assert all(b" iteration " in log[at:].split(b"\n", 1)[0] for at in rows["offset"])
        assert last == logged[-1][0]
    assert set(live.attempts["outcome"]) == {"finished"}
    assert live.attempts.height == len(jobs(site))
    assert {"RUNNING"} <= set(live.states["state"])
    assert live.gaps.height == 0
    for name, value in site.airflow.environment().items():
        monkeypatch.setenv(name, value)
    names = ("iterations", "validations", "checkpoints", "points", "attempts")
    stored = {name: getattr(live, name) for name in names}
    with pytest.raises(SystemExit) as ended:
        main(["results", "rebuild", "chain"])
    assert not ended.value.code, capsys.readouterr().err
    assert "rows of iterations" in capsys.readouterr().out
    rebuilt = load("chain", finished, root=root)
    for name in names:
        before, after = stored[name], getattr(rebuilt, name)
        if name == "attempts":
            # accounting has some more data than the run directories
            before, after = (
                frame.select("point", "stage", "outcome", "exit_code") for frame in (before, after)
            )
        assert before.drop("time", strict=False).equals(after.drop("time", strict=False)), name


@pytest.mark.long
def test_checkpoints_of_another_sweep_are_trained_on_converted_and_evaluated(
    site: SweepSite, airflow: SiteAirflow, finished: str
) -> None:
    airflow.wait_for_dag("existing.point")
    airflow.wait_for_dag("existing")
    assert airflow.ended("existing", airflow.trigger("existing"), timeout=400) == "success"
    point, source = site.runs / "existing" / "p", site.runs / "chain" / "lr0.001"
    logged = {
        (stage, attempt): [
            int(number)
            for number, _ in ITERATION.findall((run / "logs" / f"{stage}-{attempt}.out").read_text())
        ]
        for stage, run in (("further", point), ("tuned", point / "tuned"))
        for attempt in (1, 2)
    }
    # the second attempts continue from the checkpoints of the first
    assert logged == {
        ("further", 1): list(range(11, 16)),
        ("further", 2): list(range(16, 21)),
        ("tuned", 1): list(range(1, 6)),
        ("tuned", 2): list(range(6, 11)),
    }
    trained = ITERATION.findall(log_text(source, "pretrain"))
    before, after = dict(trained), dict(ITERATION.findall(log_text(point, "further")))
    assert {number: before[number] for number in after} == after
    evaluated = json.loads((source / "cooldown_10" / "eval_results" / "iter_20" / "results.json").read_text())
    for run in (point / "one", point / "model"):
        results = json.loads((run / "eval_results" / "iter_20" / "results.json").read_text())
        assert results["results"] == evaluated["results"]
    assert sorted(path.name for path in (point / "all" / "eval_results").iterdir()) == ["iter_10", "iter_20"]
    rows = json.loads((site.local / "results" / "existing" / "evaluations.json").read_text())
    # for each run that the pattern matches
    matched = {
        (path.parts[-3], int(path.name.removeprefix("iter_")))
        for path in source.glob("cooldown_*/checkpoints/iter_*")
    }
    assert len({name for name, _ in matched}) > 1
    assert {(row["branch"], row["iteration"]) for row in rows} == {
        *(("one", 20), ("model", 20), ("all", 10), ("all", 20)),
        *matched,
    }


def test_a_second_run_submits_nothing(site: SweepSite, airflow: SiteAirflow, finished: str) -> None:
    before = site.submissions("chain.")
    run_id = airflow.trigger("chain")
    assert airflow.ended("chain", run_id) == "success"
    assert site.submissions("chain.") == before
