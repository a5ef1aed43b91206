"""Conditions under which an attempt that is queued behind another may follow it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from airflow_megatron.plan.job_scripts import job_script
from airflow_megatron.plan.sweep_plan import plan_sweep
from airflow_megatron.slurm.remote.records import ExitRecord, TaskOrigin
from airflow_megatron.slurm.submission.single_job import SubmissionOutcome
from airflow_megatron.slurm.verdicts.stage_records import AttemptState, StageRecord
from airflow_megatron.slurm.verdicts.verdict import Outcome, Verdict
from airflow_megatron.spec.spec_files import load_sweep_text
from airflow_megatron.supervision.attempt_changes import AttemptChanges
from airflow_megatron.supervision.attempts import JobAttempts
from airflow_megatron.supervision.submission.attempt_chain import extend_chain, follows_by_itself, is_chained

if TYPE_CHECKING:
    from airflow_megatron.slurm.remote.transport import CommandResult
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job

SPEC = """
name: s
point: p
restart: {chain: 3}
stages:
  pretrain: {kind: train, megatron: {train_iters: 10}}
  after: {kind: command, parent: pretrain, command: ["true"]}
"""


class Recorded(JobAttempts):
    """Attempts of which the first is chained to a second, as far as the cluster has recorded."""

    second: AttemptState | None = AttemptState(2, "8", None, True, None, chained=True)

    exit: ExitRecord | None = None

    def state(self) -> StageRecord:
        first = AttemptState(1, "7", "7", True, self.exit)
        return StageRecord((first, self.second) if self.second else (first,), None)


def never(script: str) -> CommandResult:
    raise AssertionError(script)


@pytest.fixture
def job(cluster: ClusterProfile) -> Job:
    return plan_sweep(load_sweep_text(SPEC, "s.yaml"), cluster).jobs[0]


@pytest.mark.parametrize(
    ("outcome", "changes", "follows"),
    [
        (Outcome.ROLLED_OVER, {}, True),
        (Outcome.RETRYABLE, {}, True),
        (Outcome.FAILED, {}, False),
        (Outcome.OUT_OF_MEMORY, {}, False),
        (Outcome.RETRYABLE, {"damaged_iteration": 5}, False),
        (Outcome.ROLLED_OVER, {"rollback": True}, False),
    ],
)
def test_queued_attempts_that_follow(
    job: Job, cluster: ClusterProfile, outcome: Outcome, changes: dict[str, Any], follows: bool
) -> None:
    attempts = Recorded(job, cluster, never)
    verdict = Verdict(outcome, "x", **changes)
    assert follows_by_itself(attempts, 1, verdict) is follows
    for second in (
        None,
        AttemptState(2, "8", None, True, None),
        AttemptState(2, None, None, True, None, chained=True),
    ):
        attempts.second = second
        assert not follows_by_itself(attempts, 1, verdict)


@pytest.mark.parametrize(
    ("code", "signal", "follows"), [(1, None, False), (1, "TERM", True), (143, None, True)]
)
def test_after_a_retryable_crash_no_queued_attempt_follows(
    job: Job, cluster: ClusterProfile, code: int, signal: str | None, follows: bool
) -> None:
    """After an NCCL error, for example, the queued attempt would fail immediately and use up the limit of failures."""
    attempts = Recorded(job, cluster, never)
    attempts.exit = ExitRecord(code, signal, "n1", "n1", 1.0, 2.0, "7", 0)
    assert follows_by_itself(attempts, 1, Verdict(Outcome.RETRYABLE, "NCCL", exit_code=code)) is follows


def test_attempts_of_a_chain_name_the_task_that_queued_them(
    job: Job, cluster: ClusterProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it, the end of another run would take them for its own, and cancel them."""
    queued: list[tuple[int, TaskOrigin | None]] = []

    def submit(
        _: JobAttempts, number: int, changes: AttemptChanges, *, origin: TaskOrigin | None = None
    ) -> SubmissionOutcome:
        queued.append((number, origin))
        return SubmissionOutcome("submitted", str(number), "")

    monkeypatch.setattr(JobAttempts, "submit", submit)
    attempts = Recorded(job, cluster, never)
    attempts.second = None
    origin = TaskOrigin("s.point", "p")
    extend_chain(attempts, 1, "7", AttemptChanges(), origin)
    assert queued == [(2, origin), (3, origin)]


def test_only_trainings_are_chained(job: Job, cluster: ClusterProfile) -> None:
    after = plan_sweep(load_sweep_text(SPEC, "s.yaml"), cluster).jobs[1]
    alone = msgspec.structs.replace(job, restart=job.restart.model_copy(update={"chain": 1}))
    waiting = msgspec.structs.replace(job, start_every_attempt=True)
    assert [is_chained(one) for one in (job, after, alone, waiting)] == [True, False, False, False]


def test_script_of_a_chained_attempt_checks_for_remaining_iterations(
    job: Job, cluster: ClusterProfile
) -> None:
    script = job_script(job, cluster, 2, chained=True)
    assert f"am_previous_dir={job.stage_dir}/1\n" in script
    assert "am_train_iters=10\n" in script
    assert script.index("am_own_attempt\n") < script.index("am_previous_dir=") < script.rindex("am_run ")
    assert "am_previous_dir" not in job_script(job, cluster, 2)
