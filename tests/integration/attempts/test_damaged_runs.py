"""Trainings with damaged checkpoints or diverged losses, with the real trainer: the start of the next attempt."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from driven_job import DrivenJob, environment
from patience import wait_until
from sweep_site import HELD

from airflow_megatron.spec.documents.project import local_dir

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from slurm_cluster import SlurmCluster

pytestmark = pytest.mark.integration

SPEC = """\
name: damaged
point: "{{ case }}"
params: {case: ""}
sweep: {params: {case: [base, truncated, spike, scratch]}}
megatron:
  num_layers: 1
  hidden_size: 32
  num_attention_heads: 4
  seq_length: 64
  max_position_embeddings: 64
  position_embedding_type: rope
  mock_data: true
  tokenizer_type: NullTokenizer
  vocab_size: 255
  micro_batch_size: 4
  global_batch_size: 8
  lr: 1e-3
  min_lr: 0.0
  lr_decay_style: constant
  override_opt_param_scheduler: true
  eval_iters: 1
  eval_interval: 100000
  log_interval: 1
  num_workers: 0
  train_iters: TRAIN_ITERS
  save_interval: SAVE_INTERVAL
slurm: {time: 5m, options: ["--begin=now+BEGIN"]}
restart: {backoff: 0, after_rollback: {lr: "{{ lr / 2 }}"}}
wrapper: [bash, HELD, logs/pretrain-1.out, "iteration *130/"]
stages:
  pretrain:
    kind: train
    events:
      - {name: spike, log: 'iteration +(?P<iteration>12\\d)/.* learning rate: 1\\.0', do: rollback}
"""
ITERATION = re.compile(r"^ \[.*\] iteration +(\d+)/ +\d+ \|.* learning rate: (\S+) \|", re.MULTILINE)


class Runs:
    """The points of the sweep; all start with copies of the checkpoints of one training."""

    def __init__(self, place: Path) -> None:
        self.place = place / "runs" / "damaged"

    def job(self, case: str, train_iters: int, save_interval: int = 10, begin: int = 0) -> DrivenJob:
        values = {"TRAIN_ITERS": train_iters, "SAVE_INTERVAL": save_interval, "BEGIN": begin, "HELD": HELD}
        text = SPEC
        for name, value in values.items():
            text = text.replace(name, str(value))
        return DrivenJob(text, f"damaged.{case}.pretrain")

    def checkpoints(self, case: str) -> Path:
        return self.place / case / "checkpoints"

    def begun(self, case: str) -> Path:
        shutil.copytree(self.checkpoints("base"), self.checkpoints(case))
        return self.checkpoints(case)

    def names(self, case: str) -> set[str]:
        return {path.name for path in self.checkpoints(case).glob("*iter_0*")}

    def log(self, case: str, attempt: int) -> str:
        return (self.place / case / "logs" / f"pretrain-{attempt}.out").read_text()

    def iterations(self, case: str, attempt: int) -> dict[int, float]:
        """Return iteration → learning rate of an attempt."""
        return {int(number): float(rate) for number, rate in ITERATION.findall(self.log(case, attempt))}

    def record(self, case: str, attempt: int, name: str) -> dict[str, Any]:
        path = self.place / case / ".jobs" / "pretrain" / str(attempt) / f"{name}.json"
        return json.loads(path.read_text())


@pytest.fixture(scope="module")
def runs(cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    place = tmp_path_factory.mktemp("damaged")
    (place / "venv-trainer").symlink_to(local_dir() / "venv-trainer")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(place, cluster).items():
            patch.setenv(name, value)
        runs = Runs(place)
        verdict = runs.job("base", 20).run()
        assert (verdict["outcome"], verdict["iteration"]) == ("finished", 20)
        yield runs


@pytest.mark.long
def test_a_truncated_newest_checkpoint(runs: Runs) -> None:
    newest = runs.begun("truncated") / "iter_0000020"
    for path in newest.glob("*.distcp"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    verdict = runs.job("truncated", 30).run()
    assert (verdict["outcome"], verdict["attempt"], verdict["iteration"]) == ("finished", 2, 30)
    assert runs.names("truncated") == {
        "iter_0000010",
        "failed_iter_0000020",
        "iter_0000020",
        "iter_0000030",
    }
    first = runs.record("truncated", 1, "verdict")
    assert (first["damaged_iteration"], first["outcome"]) == (20, "retryable")
    assert min(runs.iterations("truncated", 2)) == 11
    assert runs.record("truncated", 2, "job")["resumes_from"] == 10


def test_a_loss_spike(runs: Runs) -> None:
    (runs.begun("spike").parent / "hold").touch()  # after iteration 130, until the job is cancelled
    verdict = runs.job("spike", 350, save_interval=50).run()
    assert (verdict["outcome"], verdict["attempt"], verdict["iteration"]) == ("finished", 2, 350)
    before, after = runs.iterations("spike", 1), runs.iterations("spike", 2)
    assert min(before) == 21
    assert max(before) >= 120
    assert (min(after), max(after)) == (101, 350)
    assert set(before.values()) == {1e-3}
    assert set(after.values()) == {5e-4}
    assert {"iter_0000100", "iter_0000350"} <= runs.names("spike")
    newer = [number for number in before if number % 50 == 0 and number > 100]
    assert {f"rolled_back_iter_{number:07d}" for number in newer} <= runs.names("spike")
    loaded_verdict = runs.record("spike", 1, "verdict")
    assert (loaded_verdict["rollback"], loaded_verdict["outcome"]) == (True, "failed")
    assert loaded_verdict["iteration"] >= 100
    assert 120 <= loaded_verdict["before_iteration"] < 130


def test_a_training_that_begins_from_scratch(runs: Runs, cluster: SlurmCluster) -> None:
    checkpoints = runs.begun("scratch")
    (checkpoints.parent / "hold").touch()
    job = runs.job("scratch", 50_000, save_interval=10_000, begin=3600)
    handle = job.submit()
    assert handle["resumes_from"] == 20
    (checkpoints / "latest_checkpointed_iteration.txt").unlink()  # like a file system that loses a file
    cluster.slurm("scontrol", "update", f"JobId={handle['job_id']}", "StartTime=now")
    with pytest.raises(AirflowFailException) as caught:
        job.watch(handle)
    assert "it began from scratch although iteration 20 has a complete checkpoint" in str(caught.value)
    name = runs.record("scratch", 1, "job")["job_name"]
    wait_until(lambda: not cluster.slurm("squeue", "-h", "-n", name), 60, "the job to be cancelled")
    assert {"iter_0000010", "iter_0000020"} <= runs.names("scratch")
    assert not runs.names("scratch") & {"iter_0010000", "iter_0050000"}
