"""The store has the results of an evaluation when its task ends."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.results import load
from airflow_megatron.results.store.segments import default_root
from airflow_megatron.results.store.writer import ResultWriter
from airflow_megatron.slurm.remote.transport import CommandResult, TransportError
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.spec_files import load_sweep_text
from airflow_megatron.supervision.evaluation_results import store_evaluations

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_megatron.spec.model.jobs import Job

SPEC = """\
name: judged
point: only
params: {data: /data, tasks: [arc], tokenizer: /data/tokenizer, tasks_dir: /data/tasks}
megatron: {num_layers: 1, hidden_size: 32, num_attention_heads: 4, seq_length: 64, max_position_embeddings: 64,
  micro_batch_size: 1, global_batch_size: 1, train_iters: 10, save_interval: 10, eval_interval: 10, eval_iters: 1,
  lr: 1e-3, lr_decay_style: constant, tokenizer_type: HuggingFaceTokenizer, tokenizer_model: "{{ tokenizer }}",
  train_data_path: [/data/a], position_embedding_type: rope, normalization: RMSNorm, swiglu: true,
  disable_bias_linear: true}
stages:
  pretrain: {kind: train}
  convert: {kind: convert, parent: pretrain}
  evaluate: {kind: evaluate, parent: convert}
"""
RESULTS = {"results": {"arc": {"acc,none": 0.5, "acc_stderr,none": 0.02}}}


def run(script: str) -> CommandResult:
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    return CommandResult(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Job]:
    monkeypatch.setenv("AIRFLOW_MEGATRON_LOCAL", str(tmp_path / "local"))
    cluster = load_cluster("local").model_copy(update={"run_root": str(tmp_path / "runs")})
    plan = check_sweep(load_sweep_text(SPEC, "judged.yaml"), cluster)
    return {job.kind: job for job in plan.jobs}


@pytest.mark.slow
def test_the_results_of_an_evaluation_are_stored(jobs: dict[str, Job], tmp_path: Path) -> None:
    path = tmp_path / "runs" / "judged" / "only" / "eval_results" / "iter_10" / "results.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(RESULTS))
    for kind, count in (("convert", 0), ("evaluate", 1), ("evaluate", 1)):
        store_evaluations(jobs[kind], run, "manual__1")
        assert load("judged").evaluations.height == count, default_root()
    (row,) = load("judged").evaluations.iter_rows(named=True)
    assert (row["point"], row["stage"], row["run"]) == ("only", "pretrain", "manual__1")
    assert (row["iteration"], row["task"], row["value"], row["stderr"]) == (10, "arc", 0.5, 0.02)


@pytest.mark.slow
def test_errors_are_only_logged(
    jobs: dict[str, Job],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def away(script: str) -> CommandResult:
        raise TransportError("the login node does not answer")

    store_evaluations(jobs["evaluate"], away, "manual__1")
    assert "are not stored before the report: the login node does not answer" in caplog.text
    caplog.clear()
    store_evaluations(jobs["evaluate"], lambda script: CommandResult(0, "@run /r\n", ""), "manual__1")
    assert "the cluster's answer is cut off" in caplog.text
    path = tmp_path / "runs" / "judged" / "only" / "eval_results" / "iter_10" / "results.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(RESULTS))
    monkeypatch.setattr(ResultWriter, "drain", lambda self, timeout: False)
    caplog.clear()
    store_evaluations(jobs["evaluate"], run, "manual__1")
    assert "are not stored before the report: the store is slow" in caplog.text
