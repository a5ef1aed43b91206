"""Recorded output of real clusters, parsed as in a poll; tests/fixtures/slurm/README.md lists the sources."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_megatron.slurm.polling.poll import parse_poll, poll_script
from airflow_megatron.slurm.states.controller_rows import parse_controller_row
from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.states.observation import Watch
from airflow_megatron.slurm.verdicts.verdict import Expectation, Outcome, judge

RECORDED = Path(__file__).parents[2] / "fixtures" / "slurm"
TRAIN = Expectation("train", train_iters=100, complete=lambda files: True)
A, F = Outcome.ACTIVE, Outcome.FAILED

# The jobs of tests/fixtures/slurm/22.05: id → the expected outcome and, if known, the exit code.
ENDS = {
    "1": (Outcome.ROLLED_OVER, 0),
    "2": (F, 3),
    "3": (Outcome.RETRYABLE, 0),  # killed by SIGKILL before it could record its end
    "4": (Outcome.ROLLED_OVER, 0),
    "5": (Outcome.CANCELLED, 0),
    "6": (Outcome.CANCELLED, None),  # cancelled while it was held, so sacct never lists it
    "8": (F, 1),
    "9": (Outcome.RETRYABLE, 0),
    "12_1": (Outcome.ROLLED_OVER, 0),
    "12_4": (F, 3),
    "13": (Outcome.ROLLED_OVER, 0),
    "15": (F, 4),
    "26_1": (Outcome.RETRYABLE, 0),
    "26_2": (Outcome.CANCELLED, 0),
    "26_9": (Outcome.CANCELLED, None),
    "37": (Outcome.RETRYABLE, 0),
    "38": (F, 7),
}
WAITING = ["7", "10", "11", "17", "18", "20", "32", "34", "35", "36", "39"]


def poll(slurm, job_ids, *, accounting: str = "", controller: bool = True, comment: str = ""):
    """Return what a poll sees.

    :param comment: further lines of scontrol, which a job has put into its comment
    """
    folder = RECORDED / "22.05"
    rows = slurm.root / "scontrol.txt"
    rows.write_text((folder / "scontrol.txt").read_text() + comment)
    slurm.behave("squeue", f"cat {folder / 'squeue.txt'}")
    slurm.behave("sacct", accounting or f"cat {folder / 'sacct.txt'}")
    # as the real program: it repeats each id, and does not know ids that slurmctld has forgotten
    show = (
        f'grep -E "^JobId=$id |^JobId=[0-9]+ HetJobId=$id " {rows}'
        f' || grep "ArrayJobId=${{id%%_*}} ArrayTaskId=${{id##*_}} " {rows}'
        ' || echo "slurm_load_jobs error: Invalid job id specified" >&2'
    )
    scontrol_script = (
        f'while read -r word job id; do echo "scontrol: $word $job $id"; {show}; done; echo "scontrol: "'
    )
    slurm.behave(
        "scontrol", scontrol_script if controller else "echo 'Unable to contact slurm controller' >&2; exit 1"
    )
    watches = [Watch(key=job_id, job_id=job_id) for job_id in job_ids]
    return parse_poll(watches, slurm.run(poll_script(watches)))


@pytest.mark.parametrize("job_id", ENDS)
def test_ended_job(slurm, job_id: str) -> None:
    verdict = judge(poll(slurm, [job_id])[job_id], TRAIN)
    assert (verdict.outcome, verdict.exit_code) == ENDS[job_id]


def test_waiting_jobs_despite_older_accounting_records(slurm) -> None:
    """Jobs 32, 34 and 35 are REQUEUED by sacct, with an end; the queue has them pending again."""
    seen = poll(slurm, WAITING)
    assert {judge(one, TRAIN).outcome for one in seen.values()} == {A}
    assert slurm.calls("sacct") == []
    assert slurm.calls("scontrol") == []
    reasons = {job_id: judge(one, TRAIN).reason for job_id, one in seen.items()}
    for job_id, message in {
        "7": "scontrol release",
        "17": "has failed: cancel it",
        "18": "more nodes than the partition allows",
        "34": "scontrol release",
        "35": "scontrol release",
    }.items():
        assert message in reasons[job_id]


@pytest.mark.parametrize(
    "accounting",
    [
        "echo 'Slurm accounting storage is disabled' >&2; exit 1",
        "echo 'Slurm accounting storage is disabled'",
        "echo 'sacct: error: slurm_persist_conn_open_without_init: failed to open persistent connection' >&2; exit 1",
        "exit 127",
    ],
)
def test_without_accounting_the_exit_code_comes_from_the_controller(slurm, accounting: str) -> None:
    seen = poll(slurm, [*ENDS, *WAITING], accounting=accounting)
    for job_id, (outcome, _) in ENDS.items():
        verdict = judge(seen[job_id], TRAIN)
        assert (job_id, verdict.outcome) == (job_id, outcome)
    for job_id in ("2", "12_4", "15", "38"):
        verdict = judge(seen[job_id], TRAIN)
        assert verdict.exit_code == ENDS[job_id][1]
        assert "[scontrol]" in verdict.reason
    assert {judge(seen[job_id], TRAIN).outcome for job_id in WAITING} == {A}
    assert len(slurm.calls("squeue")) == len(slurm.calls("sacct")) == len(slurm.calls("scontrol")) == 1


@pytest.mark.parametrize("changes", [{}, {"JobId=2": "JobId=99 HetJobId=2 HetJobOffset=1"}])
def test_a_comment_that_looks_like_the_row_of_another_job_does_not_change_it(slurm, changes) -> None:
    """A job may set its comment, and Slurm prints the line breaks in it."""
    rows = (RECORDED / "22.05" / "scontrol.txt").read_text().splitlines()
    own = next(row for row in rows if row.startswith("JobId=2 "))
    imitated = own.replace("JobState=FAILED", "JobState=COMPLETED").replace("ExitCode=3:0", "ExitCode=0:0")
    assert imitated != own
    for old, new in changes.items():
        imitated = imitated.replace(old, new, 1)
    seen = poll(slurm, ["2"], accounting="exit 127", comment=f"{imitated}\n")["2"]
    assert seen.controller is None
    assert judge(seen, TRAIN).outcome is F


def test_a_failed_scontrol_adds_nothing(slurm) -> None:
    seen = poll(slurm, ["2", "9"], accounting="exit 127", controller=False)["2"]
    assert seen.controller is None
    assert judge(seen, TRAIN).exit_code is None


def test_job_unknown_to_slurm_gets_no_verdict(slurm) -> None:
    verdict = judge(poll(slurm, ["4711"])["4711"], TRAIN)
    assert verdict.outcome is Outcome.UNKNOWN
    assert "purged" in verdict.reason
    without = judge(poll(slurm, ["4711"], accounting="exit 127")["4711"], TRAIN)
    assert without.outcome is Outcome.UNKNOWN


def test_every_recorded_line_is_read() -> None:
    lines = (RECORDED / "22.05" / "scontrol.txt").read_text().splitlines()
    rows = [parse_controller_row(line) for line in lines]
    assert None not in rows
    by_id = {row.job_id: row for row in rows if row}
    assert {row.state for row in rows if row} >= {
        JobState.COMPLETED,
        JobState.FAILED,
        JobState.TIMEOUT,
        JobState.CANCELLED,
        JobState.PENDING,
        JobState.DEADLINE,
        JobState.NODE_FAIL,
        JobState.RUNNING,
        JobState.SPECIAL_EXIT,
        JobState.SUSPENDED,
        JobState.PREEMPTED,
    }
    assert (by_id["10"].restarts, by_id["10"].requeue) == (1, True)
    assert by_id["26_[3-20%1]"].state is JobState.CANCELLED
    assert (by_id["29"].node_list, by_id["29"].batch_host) == ("n[1-2]", "n1")
    assert (by_id["31"].node_list, by_id["31"].batch_host) == ("", "")


def test_name_directory_and_comment_that_look_like_fields() -> None:
    """Job 2 is called ``fail ExitCode=0:0 x|y``, in a folder with JobState=RUNNING, commented JobState=COMPLETED."""
    line = next(
        line
        for line in (RECORDED / "22.05" / "scontrol.txt").read_text().splitlines()
        if line.startswith("JobId=2 ")
    )
    row = parse_controller_row(line)
    assert row is not None
    assert (row.name, row.state, row.exit_code) == ("fail ExitCode=0:0 x|y", JobState.FAILED, 3)


def _expected(text: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+)=(\S*)", text))


@pytest.mark.parametrize(
    "path", sorted(RECORDED.glob("*/show-job-*.txt")), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_other_releases(path: Path) -> None:
    """The first line of each file describes its other lines."""
    head, *lines = path.read_text().splitlines()
    row = parse_controller_row(" ".join(line.strip() for line in lines if line.strip()))
    assert row is not None
    assert _expected(head) == {
        "job_id": row.job_id,
        "name": row.name,
        "state": row.state.value,
        "code": f"{row.exit_code}:{row.exit_signal}",
        "restarts": str(row.restarts),
        "nodes": row.node_list,
        "batch_host": row.batch_host,
        "failed_node": row.failed_node,
    }
