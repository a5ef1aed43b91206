"""Folders of the reports of runs."""

from __future__ import annotations

import subprocess
from datetime import datetime
from pathlib import Path

import pytest
from run_tree import iteration_line

from airflow_megatron.plan.run_results import FEWER, fetch_snapshot, run_results_dir
from airflow_megatron.plan.sweep_plan import plan_sweep
from airflow_megatron.results.readings.plan_rows import plan_rows
from airflow_megatron.results.report.report import write_report
from airflow_megatron.slurm.remote.transport import CommandResult
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.spec_files import load_sweep


def test_a_long_id_of_a_run_has_a_folder_of_its_own() -> None:
    """Airflow's ids have 250 characters, and some of them are quoted."""
    ids = ["a" * 250, f"{'a' * 249}b", "é" * 250, f"{'é' * 249}x"]
    names = [run_results_dir("x", run_id).name for run_id in ids]
    assert len(set(names)) == len(ids)
    assert max(len(name.encode()) for name in names) + len(FEWER) <= 255


def test_usual_ids_keep_their_names() -> None:
    usual = "manual__2026-11-22T08:20:13.939576+00:00"
    assert run_results_dir("x", usual).name == usual


SCRIPT_STUDY = """\
cmd: "sbatch {sbatch_script}"
lr: [1e-3, 2e-3]
template: train.sbatch
train_iters: 20
seq_length: 128
output_file: "logs/lr{lr}.out"
sbatch_script: "scripts/{name}.sbatch"
name: "lr{lr}"
"""


@pytest.mark.slow
def test_own_scripts_that_log_iterations_are_reported_as_trainings(tmp_path: Path) -> None:
    """The logs of an AutoExperiment file are where its ``output_file`` says, and all attempts write to the same one."""
    (tmp_path / "train.sbatch").write_text("#!/bin/bash\n#SBATCH --output={output_file}\ntrue\n")
    (tmp_path / "study.yaml").write_text(SCRIPT_STUDY)
    local = load_cluster("local")
    sweep = load_sweep(tmp_path / "study.yaml")
    plan = plan_sweep(sweep, local.model_copy(update={"run_root": str(tmp_path / "runs")}))
    first, second = plan.jobs
    when = datetime(2026, 11, 21, 9, 0)
    assert first.shared_log is not None
    log = Path(first.shared_log)
    log.parent.mkdir(parents=True)
    log.write_text("".join(iteration_line(at, 20, 5 - at / 10, 1e-3, when) for at in range(1, 21)))
    (Path(first.run_dir) / ".jobs" / first.stage / "1").mkdir(parents=True)
    (Path(first.run_dir) / ".jobs" / first.stage / "1" / "jobid").write_text("7\n")

    def run(script: str) -> CommandResult:
        done = subprocess.run(["sh", "-s"], input=script, capture_output=True, text=True, check=True)
        return CommandResult(0, done.stdout, done.stderr)

    snapshot = fetch_snapshot(plan.jobs, run)
    report = write_report(snapshot, plan_rows(plan.jobs), tmp_path / "report")
    (row,) = report.table.rows
    assert (row.point, row.iteration, row.train_loss) == (first.point, 20, pytest.approx(3.0))
    assert row.tokens == 20 * 16 * 128
    assert [table.name for table in report.point_tables] == ["jobs"]
    assert (tmp_path / "report" / "results.csv").is_file()
    status = report.grid.cells[first.point, first.stage]
    assert "20/20 loss 3.000" in status.text
    assert report.grid.cells[second.point, second.stage].text == "waiting"
