from __future__ import annotations

import json
import shutil
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
from run_tree import iteration_line, take_snapshot

from airflow_megatron.results.readings.progress import (
    ProgressGrid,
    StageState,
    StageStatus,
    changed_lines,
    progress_grid,
    progress_lines,
)
from airflow_megatron.results.readings.sweep_jobs import read_jobs
from airflow_megatron.slurm.states.job_states import parse_state
from airflow_megatron.slurm.states.observation import QueueRow

if TYPE_CHECKING:
    from run_tree import RunTree

    from airflow_megatron.results.readings.snapshot import SweepSnapshot

NOW = datetime(2026, 11, 21, 9, 0)


def status_of(tree: RunTree, *, queue_states: dict[str, str] | None = None, **job: Any) -> StageStatus:
    run_dir = str(tree.root / "p")
    jobs = read_jobs(
        [
            {
                "name": "s.p.pretrain",
                "point": "p",
                "stage": "pretrain",
                "kind": "train",
                "run_dir": run_dir,
                **job,
            }
        ]
    )
    queue = queue_states and {
        job_id: QueueRow(job_id, "s.p.pretrain", parse_state(state), reason)
        for job_id, (state, _, reason) in ((key, text.partition(" ")) for key, text in queue_states.items())
    }
    grid = progress_grid(take_snapshot([run_dir]), jobs, queue=queue)
    return grid.cells["p", "pretrain"]


def test_waiting(tree: RunTree) -> None:
    assert status_of(tree).text == "waiting"


def test_queued_behind_another_stage(tree: RunTree) -> None:
    attempt = tree.root / "p" / ".jobs" / "pretrain" / "1"
    tree.write(attempt / "job.json", '{"behind": "prepare", "behind_jobs": ["6"]}')
    tree.write(attempt / "jobid", "7\n")
    waits = status_of(tree, queue_states={"7": "PENDING"})
    assert (waits.state, waits.text) == (StageState.PENDING, "queued behind prepare")
    assert status_of(tree, queue_states={"7": "RUNNING"}).text == "running"
    for reason in (
        "Dependency",
        "DependencyNeverSatisfied",
    ):  # the next stage is queued again by its own task
        waits = status_of(tree, queue_states={"7": f"PENDING {reason}"})
        assert (waits.text, waits.reason) == ("queued behind prepare", "")
    due = status_of(tree, queue_states={"7": "PENDING Priority"})
    assert (due.text, due.reason) == ("pending", "Priority")


def test_a_refused_submission(tree: RunTree) -> None:
    """The newest claim counts: a user may have cleared the task after a refusal."""
    attempt = tree.root / "p" / ".jobs" / "pretrain" / "1"
    refusal = "sbatch (exit status 1): sbatch: error: invalid partition specified: nowhere"
    tree.write(attempt / "claim.9" / "released", "token\nwaits_for limit 4\nstatus deferred\nmessage full\n")
    deferred = status_of(tree)
    assert (deferred.state, deferred.attempts) == (StageState.WAITING, 0)
    tree.write(attempt / "job.json", '{"job": "s.p.pretrain"}')
    assert status_of(tree).state is StageState.WAITING
    tree.write(attempt / "claim.10" / "released", f"token\nstatus refused\nmessage {refusal}\n")
    refused = status_of(tree, queue_states={})
    assert (refused.text, refused.reason) == (
        "failed",
        f"Slurm refuses the job: {refusal}; check slurm.partition; `sinfo -s` lists the partitions",
    )
    tree.write(attempt / "claim.11" / "released", "token\n")
    assert status_of(tree).state is StageState.WAITING
    tree.write(attempt / "claim.12" / "released", f"token\nstatus refused\nmessage {refusal}\n")
    tree.write(attempt / "jobid", "7\n")
    assert status_of(tree, queue_states={"7": "RUNNING"}).text == "running"


def test_a_refused_attempt_after_one_that_is_retried(tree: RunTree) -> None:
    stage_dir = tree.root / "p" / ".jobs" / "pretrain"
    verdict = '{"attempt": 1, "outcome": "retryable", "reason": "a node failed", "job_id": "7"}'
    tree.write(stage_dir / "1" / "jobid", "7\n")
    tree.write(stage_dir / "verdict.json", verdict)
    tree.write(
        stage_dir / "2" / "claim.1" / "released",
        "token\nstatus refused\nmessage sbatch (exit status 1): no such account\n",
    )
    refused = status_of(tree, queue_states={})
    assert (refused.text, refused.reason) == (
        "failed (attempt 2)",
        "Slurm refuses the job: sbatch (exit status 1): no such account",
    )


def test_a_stage_that_could_not_be_queued_ahead_is_not_due(tree: RunTree) -> None:
    attempt = tree.root / "p" / ".jobs" / "pretrain" / "1"
    tree.write(attempt / "job.json", '{"behind": "prepare", "behind_jobs": ["6"]}')
    tree.write(attempt / "claim.1" / "released", "token\nstatus refused\nmessage no dependencies here\n")
    assert status_of(tree, queue_states={}).text == "waiting"


@pytest.mark.parametrize(
    ("queued", "state", "reason"),
    [
        ("PENDING", StageState.PENDING, ""),
        ("PENDING Resources", StageState.PENDING, "Resources"),
        (
            "PENDING JobHeldUser",
            StageState.PENDING,
            "it does not start by itself: release it: scontrol release",
        ),
        ("REQUEUE_HOLD", StageState.PENDING, "it waits for 'scontrol release'"),
        ("SPECIAL_EXIT", StageState.PENDING, "it waits for 'scontrol release'"),
        ("SUSPENDED", StageState.RUNNING, "it does not run: Slurm has it as SUSPENDED"),
        ("STOPPED", StageState.RUNNING, "it does not run: Slurm has it as STOPPED"),
        ("STAGE_OUT", StageState.RUNNING, ""),
        ("of_a_later_release", StageState.RUNNING, ""),
    ],
)
def test_why_a_job_does_not_run(tree: RunTree, queued: str, state: StageState, reason: str) -> None:
    attempt = tree.root / "p" / ".jobs" / "pretrain" / "1"
    tree.write(attempt / "jobid", "7\n")
    tree.write(attempt / "run" / "job_id", "7")
    status = status_of(tree, queue_states={"7": queued})
    assert (status.state, status.reason) == (state, reason)


@pytest.mark.slow
def test_from_submission_to_the_end(tree: RunTree) -> None:
    run_dir = tree.root / "p"
    attempt = run_dir / ".jobs" / "pretrain" / "1"
    tree.write(attempt / "job.json", "{}")
    assert status_of(tree).state is StageState.WAITING
    tree.write(attempt / "jobid", "7\n")
    pending = status_of(tree)
    assert (pending.state, pending.job_id, pending.attempts) == (StageState.PENDING, "7", 1)
    assert status_of(tree, queue_states={"7": "RUNNING"}).state is StageState.RUNNING
    tree.write(attempt / "run" / "job_id", "7")
    assert status_of(tree).text == "running"
    tree.write(run_dir / "logs" / "pretrain-1.out", iteration_line(40, 100, 3.21, 1e-3, NOW))
    assert status_of(tree).text == "running 40/100 loss 3.210"
    for number in (2, 3):  # queued behind it
        following = run_dir / ".jobs" / "pretrain" / str(number)
        tree.write(following / "jobid", f"{number + 6}\n")
        tree.write(following / "chained", f"s.p.pretrain.a{number}\n")
    assert status_of(tree).text == "running 40/100 loss 3.210"
    for number in (2, 3):
        shutil.rmtree(run_dir / ".jobs" / "pretrain" / str(number))
    tree.attempt(run_dir, "pretrain", 1)
    assert status_of(tree).state is StageState.ENDED
    tree.verdict(run_dir, "pretrain", "finished", "iteration 100 reached")
    assert status_of(tree).text == "finished loss 3.210"


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        ("finished", StageState.FINISHED),
        ("failed", StageState.FAILED),
        ("out_of_memory", StageState.FAILED),
        ("cancelled", StageState.CANCELLED),
        ("rolled_over", StageState.RESTARTING),
        ("retryable", StageState.RESTARTING),
        ("no such outcome", StageState.ENDED),
    ],
)
def test_verdicts(tree: RunTree, outcome: str, state: StageState) -> None:
    tree.attempt(tree.root / "p", "pretrain", 1)
    tree.verdict(tree.root / "p", "pretrain", outcome, "because")
    status = status_of(tree)
    assert status.state is state
    assert status.reason == ("" if state in (StageState.FINISHED, StageState.ENDED) else "because")
    assert state.is_final == (state in (StageState.FINISHED, StageState.FAILED, StageState.CANCELLED))


def test_a_verdict_on_an_earlier_job_is_past(tree: RunTree) -> None:
    run_dir = tree.root / "p"
    tree.attempt(run_dir, "pretrain", 1)
    tree.attempt(run_dir, "pretrain", 2, exit_code=None)
    tree.write(
        run_dir / ".jobs" / "pretrain" / "verdict.json",
        '{"outcome": "failed", "reason": "x", "job_id": "101"}',
    )
    assert status_of(tree).text == "running (attempt 2)"
    tree.write(
        run_dir / ".jobs" / "pretrain" / "verdict.json",
        '{"outcome": "failed", "reason": "x", "job_id": "102"}',
    )
    assert status_of(tree).state is StageState.FAILED


@pytest.mark.parametrize(
    ("outcome", "text"),
    [("retryable", "restarting"), ("failed", "restarting"), ("finished", "ended, verdict pending")],
)
def test_a_pause_before_the_next_attempt_is_no_missing_verdict(
    outcome: str, text: str, tree: RunTree
) -> None:
    run_dir = tree.root / "p"
    tree.attempt(run_dir, "pretrain", 1)
    tree.write(
        run_dir / ".jobs" / "pretrain" / "1" / "verdict.json",
        f'{{"outcome": "{outcome}", "reason": "a node was lost", "job_id": "101"}}',
    )
    status = status_of(tree)
    assert status.text == text
    assert status.reason == ("a node was lost" if text == "restarting" else "")


def test_divergence_shows(tree: RunTree) -> None:
    tree.attempt(tree.root / "p", "pretrain", 1, exit_code=None)
    tree.write(tree.root / "p" / "logs" / "pretrain-1.out", iteration_line(40, 100, float("nan"), 1e-3, NOW))
    assert status_of(tree).text == "running 40/100 loss nan"


@pytest.mark.slow
def test_grid_of_a_sweep(sweep: tuple[RunTree, SweepSnapshot]) -> None:
    tree, snapshot = sweep
    grid = progress_grid(snapshot, read_jobs(tree.jobs))
    assert len(grid.points) == 6
    assert grid.stages[:3] == ("pretrain", "pretrain.convert", "pretrain.evaluate")
    assert len(grid.cells) == len(tree.jobs) == 4 * 9 + 2 * 3
    assert grid.summary() == "42 jobs: 39 finished, 2 blocked, 1 failed"
    assert grid.is_final
    failed = grid.cells["h128_lr0.01", "pretrain"]
    assert failed.reason == "exit code 1: the loss is not a number"
    lines = progress_lines(grid)
    assert len(lines) == 43
    assert "h128_lr0.01 pretrain: failed 400/400 loss nan: exit code 1: the loss is not a number" in lines


@pytest.mark.slow
def test_plain_data_of_a_grid(sweep: tuple[RunTree, SweepSnapshot]) -> None:
    tree, snapshot = sweep
    data = progress_grid(snapshot, read_jobs(tree.jobs)).to_json()
    assert data["counts"] == {"finished": 39, "blocked": 2, "failed": 1}
    assert len(data["jobs"]) == 42
    failed = next(job for job in data["jobs"] if job["state"] == "failed")
    assert (failed["point"], failed["stage"], failed["loss"]) == ("h128_lr0.01", "pretrain", None)
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_time_left_of_a_running_training(tree: RunTree) -> None:
    run_dir = tree.root / "p"
    tree.attempt(run_dir, "pretrain", 1, exit_code=None)
    tree.write(run_dir / "logs" / "pretrain-1.out", iteration_line(40, 100, 3.21, 1e-3, NOW))
    running = status_of(tree)
    assert running.seconds_left == pytest.approx(60 * 0.125)
    tree.attempt(run_dir, "pretrain", 1)
    assert status_of(tree).text == "ended, verdict pending 40/100 loss 3.210"
    assert status_of(tree).seconds_left is None


@pytest.mark.slow
def test_only_changes_are_reported(sweep: tuple[RunTree, SweepSnapshot]) -> None:
    tree, snapshot = sweep
    grid = progress_grid(snapshot, read_jobs(tree.jobs))
    assert len(changed_lines(None, grid)) == 42  # also the two that are blocked
    assert changed_lines(grid, grid) == []
    key = ("h64_lr0.001", "pretrain")
    earlier = replace(
        grid, cells={**grid.cells, key: replace(grid.cells[key], state=StageState.RUNNING, iteration=10)}
    )
    assert changed_lines(earlier, grid) == [progress_lines(grid)[0]]


def test_jobs_need_a_run_directory() -> None:
    with pytest.raises(ValueError, match=r"job s\.p of the plan has no stage and no run_dir"):
        read_jobs([{"name": "s.p"}])


@pytest.mark.parametrize(
    ("queue", "state"),
    [
        ({"7": "RUNNING"}, StageState.RUNNING),
        ({"7": "COMPLETING"}, StageState.RUNNING),
        ({"7": "PENDING"}, StageState.PENDING),
        ({"7": "CANCELLED"}, StageState.CANCELLED),
        ({"7": "TIMEOUT"}, StageState.ENDED),
        ({"8": "RUNNING"}, StageState.ENDED),
        ({}, StageState.ENDED),
        (None, StageState.RUNNING),
    ],
)
def test_slurm_takes_precedence_over_files(
    tree: RunTree, queue: dict[str, str] | None, state: StageState
) -> None:
    attempt = tree.root / "p" / ".jobs" / "pretrain" / "1"
    tree.write(attempt / "jobid", "7\n")
    tree.write(attempt / "run" / "job_id", "7")
    status = status_of(tree, queue_states=queue)
    assert status.state is state
    assert status.reason == (
        "cancelled in Slurm; there is no verdict yet" if state is StageState.CANCELLED else ""
    )


def test_a_warning_stands_beside_what_has_finished(tree: RunTree) -> None:
    tree.attempt(tree.root / "p", "pretrain", 1)
    verdict = {"outcome": "finished", "reason": "done", "warning": "exit code 1 after its last checkpoint"}
    tree.write(tree.root / "p" / ".jobs" / "pretrain" / "verdict.json", json.dumps(verdict))
    status = status_of(tree)
    assert (status.state, status.reason) == (
        StageState.FINISHED,
        "warning: exit code 1 after its last checkpoint",
    )


CHAIN = [
    {"stage": "pretrain", "kind": "train"},
    {"stage": "convert", "kind": "convert", "depends_on": [{"job": "s.p.pretrain", "until": "finished"}]},
    {"stage": "evaluate", "kind": "evaluate", "depends_on": [{"job": "s.p.convert", "until": "finished"}]},
    {"stage": "cooldown", "kind": "train", "depends_on": [{"job": "s.p.pretrain", "until": "checkpoint 40"}]},
    {"stage": "reached", "kind": "train", "depends_on": [{"job": "s.p.pretrain", "until": "checkpoint 20"}]},
    {"stage": "cleanup", "kind": "command", "depends_on": [{"job": "s.p.pretrain", "until": "condition"}]},
]


def chain_grid(tree: RunTree, verdict: str | None) -> ProgressGrid:
    run_dir = tree.root / "p"
    tree.write(run_dir / ".jobs" / "pretrain" / "1" / "jobid", "7\n")
    if verdict:
        tree.write(run_dir / ".jobs" / "pretrain" / "verdict.json", verdict)
    tree.write(run_dir / "checkpoints" / "iter_0000020" / "common.pt", "")
    rows = [{"name": f"s.p.{job['stage']}", "point": "p", "run_dir": str(run_dir), **job} for job in CHAIN]
    return progress_grid(take_snapshot([str(run_dir)]), read_jobs(rows), queue={})


def test_jobs_after_a_failed_one_are_blocked(tree: RunTree) -> None:
    verdict = '{"attempt": 1, "outcome": "failed", "reason": "ImportError", "job_id": "7"}'
    grid = chain_grid(tree, verdict)
    texts = {status.stage: (status.text, status.reason) for status in grid.cells.values()}
    assert texts == {
        "pretrain": ("failed", "ImportError"),
        "convert": ("blocked", "pretrain has failed"),
        "evaluate": ("blocked", "convert is blocked"),
        "cooldown": ("blocked", "pretrain has failed without checkpoint 40"),
        "reached": ("waiting", ""),  # its checkpoint exists
        "cleanup": ("waiting", ""),  # the condition may be the end of the training
    }
    assert grid.counts() == {"waiting": 2, "blocked": 3, "failed": 1}
    assert grid.to_json()["jobs"][1]["state"] == "blocked"
    assert all(grid.cells["p", stage].state.is_final for stage in ("convert", "evaluate", "cooldown"))


def test_jobs_after_one_that_its_condition_cancelled_are_not_missed(tree: RunTree) -> None:
    verdict = '{"attempt": 1, "outcome": "cancelled", "reason": "loss > 9", "job_id": "7", "intended": true}'
    grid = chain_grid(tree, verdict)
    assert (grid.cells["p", "convert"].reason, grid.cells["p", "convert"].intended) == (
        "pretrain was cancelled",
        True,
    )


@pytest.mark.parametrize(
    "verdict", [None, '{"attempt": 1, "outcome": "retryable", "reason": "a node failed", "job_id": "7"}']
)
def test_jobs_after_one_that_is_repeated_wait(tree: RunTree, verdict: str | None) -> None:
    assert chain_grid(tree, verdict).cells["p", "convert"].text == "waiting"
