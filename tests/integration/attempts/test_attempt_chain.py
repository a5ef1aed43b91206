"""Attempts of a training that wait in Slurm's queue for the previous one, with real walltimes and no watcher."""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from driven_job import DrivenJob, Store, TaskInstance, environment
from patience import wait_until

from airflow_megatron.cli.runs.cancel import cancel_jobs
from airflow_megatron.megatron.logs.log_lines import IterationRecord, LogParser
from airflow_megatron.operators.slurm_watch import SlurmWatchOperator
from airflow_megatron.spec.documents.project import local_dir

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from slurm_cluster import SlurmCluster

pytestmark = pytest.mark.integration

SPEC = """\
name: chained
point: "{{ case }}"
params: {case: ""}
sweep: {params: {case: [rolls, crashes, cancelled, steps]}}
megatron: {train_iters: 60, num_layers: 1, hidden_size: 8, num_attention_heads: 1, seq_length: 8,
  max_position_embeddings: 8, micro_batch_size: 1, global_batch_size: 1, mock_data: true, lr: 1e-3,
  lr_decay_style: constant, save_interval: 60, tokenizer_type: NullTokenizer, vocab_size: 8, eval_iters: 0}
slurm: {time: 10m, signal_before: 1m, mem: 50M}
restart: {chain: 3, backoff: 0}
stages:
  pretrain:
    kind: train
    command: [bash, TRAINING, "{{ case }}"]
"""
TRAINING = """\
# An iteration a second; SIGTERM makes it save and end in good order; the one that rolls, once the file "go" is there.
# The one that is cancelled does not end by itself. The one in steps saves and ends after each ten iterations, quickly.
tracker=checkpoints/latest_checkpointed_iteration.txt
iteration=0
[ ! -e $tracker ] || iteration=$(cat $tracker)
echo "begins after $iteration"
save() {
  folder=$(printf 'checkpoints/iter_%07d/mp_rank_00' "$iteration")
  mkdir -p "$folder"
  echo weights >"$folder/model_optim_rng.pt"
  echo "$iteration" >$tracker
}
trap 'save; until [ "$1" != rolls -o -e go ]; do sleep 0.2; done; exit 0' TERM
while [ "$1" = cancelled ] || [ "$iteration" -lt 60 ]; do
  [ "$1" = steps ] || sleep 1
  iteration=$((iteration + 1))
  touch begun
  if [ "$1" = steps ] && [ $((iteration % 10)) = 0 ]; then break; fi
  if [ "$1" = crashes ] && [ "$iteration" = 2 ]; then exit 9; fi
done
save
"""


TRAINED = """\
name: trained
point: only
megatron: {train_iters: 4, exit_interval: 2, save_interval: 100, num_layers: 1, hidden_size: 32,
  num_attention_heads: 4, seq_length: 64, max_position_embeddings: 64, position_embedding_type: rope,
  micro_batch_size: 4, global_batch_size: 8, mock_data: true, num_workers: 0, tokenizer_type: NullTokenizer,
  vocab_size: 127, lr: 1e-3, lr_decay_style: constant, log_interval: 1, eval_iters: 0}
slurm: {time: 5m}
restart: {chain: 3}
stages:
  pretrain: {kind: train}
"""


class Runs:
    """The points of the sweep."""

    def __init__(self, place: Path, cluster: SlurmCluster) -> None:
        self.cluster, self.place = cluster, place / "runs"
        self.sweep_dir = self.place / "chained"
        self.spec = SPEC.replace("TRAINING", str(place / "training.sh"))
        (place / "training.sh").write_text(TRAINING)

    def job(self, case: str) -> DrivenJob:
        return DrivenJob(self.spec, f"chained.{case}.pretrain")

    def queue(self, case: str, sweep: str = "chained") -> dict[int, str]:
        """Return attempt → state of the jobs in the queue."""
        rows = self.cluster.slurm("squeue", "-h", "-o", "%j|%T")
        found = re.findall(rf"^{sweep}\.{case}\.pretrain\.a(\d+)\.\w+\|(\w+)$", rows, re.MULTILINE)
        return {int(number): state for number, state in found}

    def wait_for_ends(self, case: str, sweep: str) -> None:
        """Wait until no attempt is in the queue."""
        wait_until(lambda: not self.queue(case, sweep), 120, "all attempts to end")

    def watched_late(self, job: DrivenJob) -> dict[str, Any]:
        """Submit a job, watch it only after all its attempts have ended, and return the verdict."""
        handle = job.submit()
        self.wait_for_ends(job.job.point, job.job.sweep)
        return job.watch(handle)

    def log(self, case: str, attempt: int) -> str:
        path = self.sweep_dir / case / "logs" / f"pretrain-{attempt}.out"
        return path.read_text() if path.exists() else ""

    def attempts(self, case: str) -> list[str]:
        """Return the names of the attempts' directories; withdrawn ones without their time."""
        folders = (self.sweep_dir / case / ".jobs" / "pretrain").iterdir()
        return sorted(path.name.rpartition(".")[0] or path.name for path in folders if path.is_dir())

    def judged(self, case: str, sweep: str = "chained") -> list[tuple[str, int]]:
        """Return outcome and iteration of the verdicts on the attempts."""
        records = (self.place / sweep / case / ".jobs" / "pretrain").glob("[0-9]*/verdict.json")
        verdicts = [json.loads(path.read_text()) for path in sorted(records)]
        return [(verdict["outcome"], verdict["iteration"]) for verdict in verdicts]

    def submissions(self, prefix: str) -> list[str]:
        rows = self.cluster.slurm("sacct", "-X", "-D", "-n", "-P", "-S", "now-1day", "-o", "JobName")
        return sorted(row.rpartition(".")[0] for row in rows.split() if row.startswith(prefix))


@pytest.fixture(scope="module")
def runs(cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    place = tmp_path_factory.mktemp("chained")
    (place / "venv-trainer").symlink_to(local_dir() / "venv-trainer")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(place, cluster).items():
            patch.setenv(name, value)
        yield Runs(place, cluster)


@pytest.mark.long
def test_rolls_over_without_a_watching_process(runs: Runs) -> None:
    job = runs.job("rolls")
    handle = job.submit()
    assert handle["attempt"] == 1
    assert job.submit() == handle
    wait_until((runs.sweep_dir / "rolls" / "begun").exists, 60, "the first iteration")
    # Slurm checks walltimes every 30 s and sends the signal a minute (signal_before) before the end
    runs.cluster.slurm("scontrol", "update", f"JobId={handle['job_id']}", "EndTime=now+80")
    assert {number: state for number, state in runs.queue("rolls").items() if number > 1} == {
        2: "PENDING",
        3: "PENDING",
    }
    (runs.sweep_dir / "rolls" / "go").touch()
    wait_until(lambda: runs.queue("rolls").get(2) == "RUNNING", 120, "the second attempt to run")
    verdict = job.watch(handle)
    last = verdict["attempt"]
    assert (verdict["outcome"], verdict["iteration"]) == ("finished", 60)
    assert last in (2, 3)
    began = [int(runs.log("rolls", number).partition("begins after ")[2].split()[0]) for number in (1, 2)]
    assert 0 == began[0] < began[1]
    assert runs.queue("rolls") == {}
    assert runs.attempts("rolls") == [
        *(str(number) for number in range(1, last + 1)),
        *(f"{number}.withdrawn" for number in range(last + 1, last + 3)),
    ]
    names = [f"chained.rolls.pretrain.a{number}" for number in range(1, last + 3)]
    wait_until(lambda: runs.submissions("chained.rolls.") == names, 60, "one submission for each attempt")


def test_crash_stops_the_chain(runs: Runs) -> None:
    job = runs.job("crashes")
    handle = job.submit()
    wait_until(lambda: not runs.queue("crashes"), 90, "all attempts to end")
    for attempt in (2, 3):
        assert "the previous attempt ended with exit code 9; this one does not run" in runs.log(
            "crashes", attempt
        )
        assert "begins after" not in runs.log("crashes", attempt)
    with pytest.raises(AirflowFailException, match="exit code 9"):
        job.watch(handle)
    assert runs.attempts("crashes") == ["1", "2.withdrawn", "3.withdrawn"]
    assert job.submit()["attempt"] == 2
    assert runs.attempts("crashes") == ["1", "2", "2.withdrawn", "3", "3.withdrawn", "4"]
    wait_until(lambda: not runs.queue("crashes"), 90, "all attempts to end")


def test_cancelling_cancels_what_is_queued(runs: Runs) -> None:
    job = runs.job("cancelled")
    handle = job.submit()
    wait_until(lambda: runs.queue("cancelled").get(1) == "RUNNING", 60, "the first attempt to run")
    task = SlurmWatchOperator(task_id="watch", job=job.job.to_json(), handle=handle)
    context: Any = {"ti": TaskInstance(), "task": task, "task_state_store": Store()}
    with pytest.raises(TaskDeferred) as deferred:
        task.execute(context)
    asyncio.run(deferred.value.trigger.on_kill())  # a user marks the task
    wait_until(lambda: not runs.queue("cancelled"), 60, "all attempts to be cancelled")
    assert runs.attempts("cancelled") == ["1", "2.withdrawn", "3.withdrawn"]
    assert not runs.log("cancelled", 2)
    assert (runs.sweep_dir / "cancelled" / ".jobs" / "pretrain" / "verdict.json").exists()


def test_no_attempt_runs_beside_another_one_if_one_between_them_is_cancelled(runs: Runs) -> None:
    spec = runs.spec.replace("name: chained", "name: beside", 1)
    job = DrivenJob(spec, "beside.cancelled.pretrain")
    handle = job.submit()
    try:
        wait_until(
            lambda: runs.queue("cancelled", "beside").get(1) == "RUNNING", 60, "the first attempt to run"
        )
        runs.cluster.slurm("scancel", str(int(handle["job_id"]) + 1))
        wait_until(
            lambda: 2 not in runs.queue("cancelled", "beside"), 30, "the second attempt to be cancelled"
        )
        for _ in range(20):
            assert runs.queue("cancelled", "beside") == {1: "RUNNING", 3: "PENDING"}
            time.sleep(0.5)
        runs.cluster.slurm("scancel", handle["job_id"])
        wait_until(
            lambda: runs.queue("cancelled", "beside").get(3) == "RUNNING", 60, "the third attempt to run"
        )
    finally:
        cancel_jobs([job.job])
    wait_until(lambda: not runs.queue("cancelled", "beside"), 60, "all attempts to be cancelled")


def test_an_attempt_without_its_dependency_waits_for_the_earlier_one(runs: Runs) -> None:
    """A user removes the dependency, so that Slurm starts the attempt while the earlier one runs."""
    spec = runs.spec.replace("name: chained", "name: freed", 1)
    job = DrivenJob(spec, "freed.cancelled.pretrain")
    handle = job.submit()
    logs = {number: runs.place / f"freed/cancelled/logs/pretrain-{number}.out" for number in (1, 2)}

    def begins(number: int) -> bool:
        return logs[number].exists() and "begins after" in logs[number].read_text()

    try:
        wait_until(lambda: begins(1), 60, "the first attempt to train")
        runs.cluster.slurm("scontrol", "update", f"JobId={int(handle['job_id']) + 1}", "Dependency=")
        wait_until(
            lambda: logs[2].exists() and logs[2].read_text(), 60, "the second attempt to write into its log"
        )
        time.sleep(3)
        assert "attempt 1 still runs, as job" in logs[2].read_text()
        assert not begins(2)
        runs.cluster.slurm("scancel", handle["job_id"])
        wait_until(lambda: begins(2), 60, "the second attempt to train")
    finally:
        cancel_jobs([job.job])
    wait_until(lambda: not runs.queue("cancelled", "freed"), 60, "all attempts to be cancelled")


def test_attempts_that_ended_without_a_follower_are_judged_one_by_one(runs: Runs) -> None:
    """Each saves ten iterations more, and none is watched until the last one of the queue has ended."""
    job = DrivenJob(runs.spec.replace("chain: 3", "chain: 5"), "chained.steps.pretrain")
    handle = job.submit()
    wait_until(lambda: not runs.queue("steps"), 90, "all attempts to end")
    assert runs.attempts("steps") == ["1", "2", "3", "4", "5"]
    verdict = job.watch(handle)
    assert (verdict["outcome"], verdict["iteration"], verdict["attempt"]) == ("finished", 60, 6)
    wait_until(lambda: not runs.queue("steps"), 30, "the queue to be empty")
    assert [name for name in runs.attempts("steps") if name.isdigit()] == ["1", "2", "3", "4", "5", "6"]
    assert runs.judged("steps") == [
        *(("rolled_over", iteration) for iteration in (10, 20, 30, 40, 50)),
        ("finished", 60),
    ]


def test_the_chain_of_a_training_with_its_last_checkpoint_is_not_extended(runs: Runs) -> None:
    """All attempts ended before any was watched: the last ones had nothing left to do."""
    spec = runs.spec.replace("chain: 3", "chain: 8").replace("name: chained", "name: enough", 1)
    verdict = runs.watched_late(DrivenJob(spec, "enough.steps.pretrain"))
    assert (verdict["outcome"], verdict["iteration"], verdict["attempt"]) == ("finished", 60, 6)
    assert runs.judged("steps", "enough") == [
        *(("rolled_over", iteration) for iteration in (10, 20, 30, 40, 50)),
        ("finished", 60),
    ]
    names = [f"enough.steps.pretrain.a{number}" for number in range(1, 9)]
    wait_until(lambda: runs.submissions("enough.") == names, 60, "one submission for each attempt")


def test_an_attempt_behind_a_cancelled_one_is_judged_too(runs: Runs) -> None:
    spec = runs.spec.replace("chain: 3", "chain: 8").replace("name: chained", "name: gap", 1)
    job = DrivenJob(spec.replace("mem: 50M", "mem: 50M, options: [--begin=now+10]"), "gap.steps.pretrain")
    handle = job.submit()
    runs.cluster.slurm("scancel", str(int(handle["job_id"]) + 2))
    runs.wait_for_ends("steps", "gap")
    verdict = job.watch(handle)
    assert (verdict["outcome"], verdict["iteration"], verdict["attempt"]) == ("finished", 60, 7)
    assert runs.judged("steps", "gap") == [
        *(("rolled_over", iteration) for iteration in (10, 20, 20, 30, 40, 50)),
        ("finished", 60),
    ]


def test_a_budget_does_not_fail_a_training_that_its_chain_has_finished(runs: Runs) -> None:
    spec = runs.spec.replace("chain: 3", "chain: 6, rolled_over: 1").replace("name: chained", "name: few", 1)
    verdict = runs.watched_late(DrivenJob(spec, "few.steps.pretrain"))
    assert (verdict["outcome"], verdict["iteration"]) == ("finished", 60)
    assert runs.judged("steps", "few") == [("rolled_over", 10), ("finished", 60)]


@pytest.mark.trainer
def test_a_training_continues_without_its_follower(runs: Runs) -> None:
    """Each attempt trains two iterations and exits with 0; the third has nothing left to do."""
    job = DrivenJob(TRAINED, "trained.only.pretrain")
    handle = job.submit()
    runs.wait_for_ends("only", "trained")
    logs = [
        (runs.place / "trained" / "only" / "logs" / f"pretrain-{number}.out").read_bytes()
        for number in (1, 2, 3)
    ]
    records = [[*parser.feed(log), *parser.finish()] for log in logs for parser in [LogParser()]]
    iterations = [[one.iteration for one in found if isinstance(one, IterationRecord)] for found in records]
    assert iterations == [[1, 2], [3, 4], []]
    assert b"iteration 4 is the last one; this attempt does not run" in logs[2]
    verdict = job.watch(handle)
    assert (verdict["outcome"], verdict["iteration"], verdict["attempt"]) == ("finished", 4, 2)
    names = [f"trained.only.pretrain.a{number}" for number in (1, 2, 3)]
    wait_until(lambda: runs.submissions("trained.") == names, 60, "one submission for each attempt")
