"""Stages that wait in Slurm's queue for the previous one: a chain finishes without a watching process."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from airflow.sdk.execution_time.context import set_current_context
from driven_job import context_of, driven, environment
from patience import wait_until

from airflow_megatron.cli.runs.cancel import cancel_jobs
from airflow_megatron.operators.slurm_submit import SlurmSubmitOperator
from airflow_megatron.operators.slurm_watch import SlurmWatchOperator
from airflow_megatron.plan.pinned import PinnedSweep
from airflow_megatron.plan.pins.pin_store import PinStore
from airflow_megatron.plan.plan_environment import PlanEnvironment
from airflow_megatron.plan.sweep_plan import plan_sweep
from airflow_megatron.spec.documents import project
from airflow_megatron.spec.documents.project import local_dir
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from slurm_cluster import SlurmCluster

    from airflow_megatron.spec.model.jobs import Job

pytestmark = pytest.mark.integration

SPEC = """\
name: ahead
point: "{{ case }}"
ahead: 2
params: {case: ""}
sweep: {params: {case: [alone, rolls, fails, marked, chained, cancelled]}}
megatron: {train_iters: 8, num_layers: 1, hidden_size: 8, num_attention_heads: 1, seq_length: 8,
  max_position_embeddings: 8, micro_batch_size: 1, global_batch_size: 1, mock_data: true, lr: 1e-3,
  lr_decay_style: constant, save_interval: 8, tokenizer_type: NullTokenizer, vocab_size: 8, eval_iters: 0}
slurm: {time: 10m, signal_before: 1m, mem: 50M}
restart: {backoff: 0}
stages:
  pretrain:
    kind: train
    command: [bash, PLACE/training.sh, "{{ case }}", "PLACE/{{ case }}.go"]
  convert:
    kind: command
    parent: pretrain
    command: [bash, -c, "cat checkpoints/latest_checkpointed_iteration.txt >> converted"]
    outputs: [converted]
  evaluate:
    kind: command
    parent: convert
    command: [bash, -c, "cat converted >> evaluated"]
    outputs: [evaluated]
"""
TRAINING = """\
# Waits until the test lets it go on, so that a slow submission does not find it ended. Then trains to iteration 8;
# the first attempt of "rolls" and "chained" gets a stop signal at 4; "fails" crashes.
tracker=checkpoints/latest_checkpointed_iteration.txt
iteration=0
case $1 in rolls | chained) trap 'stop=1' TERM ;; esac
[ ! -e $tracker ] || iteration=$(cat $tracker)
until [ -e "$2" ]; do sleep 0.2; done
case $1-$iteration in
  rolls-0 | chained-0)
    iteration=4
    touch "$2.begun"
    while [ -z "${stop-}" ]; do sleep 1; done
    ;;
  fails-*) exit 9 ;;
  *) iteration=8 ;;
esac
folder=$(printf 'checkpoints/iter_%07d/mp_rank_00' "$iteration")
mkdir -p "$folder"
echo weights >"$folder/model_optim_rng.pt"
echo "$iteration" >$tracker
"""


class Runs:
    """The points of the sweep, and a stored plan of it.

    :param chain: attempts of a training that are in the queue at the same time
    """

    def __init__(self, place: Path, cluster: SlurmCluster, chain: int = 1) -> None:
        self.cluster, self.place = cluster, place / "runs"
        (place / "training.sh").write_text(TRAINING)
        spec = SPEC.replace("PLACE", str(place)).replace("{backoff: 0}", f"{{backoff: 0, chain: {chain}}}")
        sweep = load_sweep_text(spec, "ahead.yaml")
        plan = plan_sweep(sweep, load_cluster("local"))
        self.pinned = PinnedSweep.stored(sweep, spec, plan, PlanEnvironment.now("local"), PinStore())

    def job(self, case: str, stage: str) -> Job:
        jobs = self.pinned.jobs_of(case)
        return next(job for job in jobs if job.stage.rpartition(".")[2] == stage)

    def may_train(self, case: str) -> Path:
        """Return the file whose existence lets the training of a point go on."""
        return self.place.parent / f"{case}.go"

    def reach_walltime(self, case: str, handle: dict[str, Any]) -> None:
        """Reduce the walltime of a training that has begun, so that Slurm sends it the stop signal."""
        wait_until((self.place.parent / f"{case}.go.begun").exists, 60, "the training to begin")
        # Slurm checks walltimes every 30 s and sends the signal a minute (signal_before) before the end
        self.cluster.slurm("scontrol", "update", f"JobId={handle['job_id']}", "EndTime=now+80")

    def submit(self, case: str, stage: str) -> dict[str, Any]:
        return driven(SlurmSubmitOperator(task_id="submit", job=self.job(case, stage).to_json()))

    def watch(self, case: str, stage: str, handle: dict[str, Any]) -> dict[str, Any]:
        job = self.job(case, stage).to_json()
        return driven(SlurmWatchOperator(task_id="watch", job=job, handle=handle, poll_interval=1.0))

    def queue(self, case: str) -> dict[str, str]:
        """Return stage → state of the jobs in the queue."""
        rows = self.cluster.slurm("squeue", "-h", "-o", "%j|%T")
        found = re.findall(rf"^ahead\.{case}\.([\w.]+)\.a\d+\.\w+\|(\w+)$", rows, re.MULTILINE)
        return {stage.rpartition(".")[2]: state for stage, state in found}

    def submissions(self, case: str) -> list[str]:
        rows = self.cluster.slurm("sacct", "-X", "-D", "-n", "-P", "-S", "now-1day", "-o", "JobName")
        names = [row.rpartition(".")[0] for row in rows.split() if row.startswith(f"ahead.{case}.")]
        return sorted(re.sub(r".*\.(\w+\.a\d+)$", r"\1", name) for name in names)

    def made(self, case: str, name: str) -> list[str]:
        found = list((self.place / "ahead" / case).rglob(name))
        return found[0].read_text().split() if found else []


@pytest.fixture(scope="module")
def runs(cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    place = tmp_path_factory.mktemp("ahead")
    (place / "venv-trainer").symlink_to(local_dir() / "venv-trainer")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(place, cluster).items():
            patch.setenv(name, value)
        patch.setenv(project.PINS_VARIABLE, str(place / "pins"))
        yield Runs(place, cluster)


def test_a_chain_reaches_its_end_without_its_follower(runs: Runs) -> None:
    handle = runs.submit("alone", "pretrain")
    assert set(runs.queue("alone")) == {"pretrain", "convert", "evaluate"}
    runs.may_train("alone").touch()
    wait_until(lambda: not runs.queue("alone"), 120, "the whole chain to end")
    assert (runs.made("alone", "converted"), runs.made("alone", "evaluated")) == (["8"], ["8"])
    assert runs.watch("alone", "pretrain", handle)["outcome"] == "finished"
    for stage in ("convert", "evaluate"):
        handle = runs.submit("alone", stage)
        assert handle["attempt"] == 1
        assert runs.watch("alone", stage, handle)["outcome"] == "finished"
    once = ["convert.a1", "evaluate.a1", "pretrain.a1"]
    wait_until(lambda: runs.submissions("alone") == once, 30, "one job of each stage")
    assert (runs.made("alone", "converted"), runs.made("alone", "evaluated")) == (["8"], ["8"])


def test_stage_that_rolls_over_takes_the_others_with_it(runs: Runs) -> None:
    runs.may_train("rolls").touch()
    handle = runs.submit("rolls", "pretrain")
    runs.reach_walltime("rolls", handle)
    verdict = runs.watch("rolls", "pretrain", handle)
    assert (verdict["outcome"], verdict["attempt"]) == ("finished", 2)
    for stage in ("convert", "evaluate"):
        handle = runs.submit("rolls", stage)
        assert handle["attempt"] == 1
        assert runs.watch("rolls", stage, handle)["outcome"] == "finished"
    assert (runs.made("rolls", "converted"), runs.made("rolls", "evaluated")) == (["8"], ["8"])


def test_nothing_runs_behind_a_stage_that_fails(runs: Runs) -> None:
    handle = runs.submit("fails", "pretrain")
    runs.may_train("fails").touch()
    wait_until(lambda: "pretrain" not in runs.queue("fails"), 60, "the training to crash")
    with pytest.raises(AirflowFailException, match="exit code 9"):
        runs.watch("fails", "pretrain", handle)
    wait_until(lambda: not runs.queue("fails"), 30, "the others to leave the queue")
    assert runs.made("fails", "converted") == runs.made("fails", "evaluated") == []
    assert [path.name for path in (runs.place / "ahead" / "fails").rglob("*.convert/1")] == []
    runs.may_train("fails").unlink()
    # a user clears the task, so the earlier attempts no longer count
    assert runs.submit("fails", "pretrain")["attempt"] == 2
    assert set(runs.queue("fails")) == {"pretrain", "convert", "evaluate"}
    assert cancel_jobs(runs.pinned.jobs_of("fails"))
    wait_until(lambda: not runs.queue("fails"), 60, "all jobs to be cancelled")


def test_stages_wait_for_all_attempts_of_a_chain(runs: Runs) -> None:
    chained = Runs(runs.place.parent, runs.cluster, chain=2)
    case = "chained"
    handle = chained.submit(case, "pretrain")
    assert set(chained.queue(case)) == {"pretrain", "convert", "evaluate"}
    chained.may_train(case).touch()
    chained.reach_walltime(case, handle)
    # no process watches: the first attempt rolls over, and the second one finishes the training
    wait_until(lambda: not chained.queue(case), 180, "the whole chain to end")
    assert (chained.made(case, "converted"), chained.made(case, "evaluated")) == (["8"], ["8"])
    assert chained.watch(case, "pretrain", handle)["outcome"] == "finished"
    for stage in ("convert", "evaluate"):
        assert chained.watch(case, stage, chained.submit(case, stage))["outcome"] == "finished"
    once = ["convert.a1", "evaluate.a1", "pretrain.a1", "pretrain.a2"]
    wait_until(lambda: chained.submissions(case) == once, 30, "one job of each attempt")


def test_cancelling_a_point_takes_what_is_queued_ahead(runs: Runs) -> None:
    handle = runs.submit("cancelled", "pretrain")
    assert set(runs.queue("cancelled")) == {"pretrain", "convert", "evaluate"}
    assert cancel_jobs(runs.pinned.jobs_of("cancelled"))
    wait_until(lambda: not runs.queue("cancelled"), 60, "all jobs to be cancelled")
    assert runs.made("cancelled", "converted") == []
    with pytest.raises(AirflowFailException, match="cancelled"):
        runs.watch("cancelled", "pretrain", handle)


def test_marking_a_stage_cancels_what_is_queued_behind_it(runs: Runs) -> None:
    handle = runs.submit("marked", "pretrain")
    wait_until(lambda: runs.queue("marked").get("pretrain") == "RUNNING", 60, "the training to run")
    task = SlurmWatchOperator(task_id="watch", job=runs.job("marked", "pretrain").to_json(), handle=handle)
    context = context_of(task)
    with set_current_context(context), pytest.raises(TaskDeferred) as deferred:
        task.execute(context)
    asyncio.run(deferred.value.trigger.on_kill())
    wait_until(lambda: not runs.queue("marked"), 60, "all jobs to be cancelled")
    assert runs.made("marked", "converted") == []
