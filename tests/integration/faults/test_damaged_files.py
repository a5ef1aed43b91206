"""The small files of the submission protocol lose their content, as after lost writes or on a bad disk."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from faults import GARBAGE
from watched_jobs import observe, verdict_of, watch_for

from airflow_megatron.slurm.verdicts.stage_records import parse_stage_states, stage_state_script
from airflow_megatron.slurm.verdicts.verdict import Outcome

if TYPE_CHECKING:
    from slurm_cluster import SlurmCluster

pytestmark = pytest.mark.integration

DAMAGE = pytest.mark.parametrize("content", GARBAGE, ids=["empty", "zeros", "garbage"])


@DAMAGE
@pytest.mark.parametrize("ended", [False, True], ids=["pending", "ended"])
def test_recorded_job_id(cluster: SlurmCluster, tmp_path: Path, content: bytes, ended: bool) -> None:
    """The id is recovered from the output of sbatch or by the job's name; nothing is submitted."""
    options = () if ended else ("--begin=now+1hour",)
    request = cluster.request(tmp_path, f"id{GARBAGE.index(content)}{ended}", sbatch_options=options)
    first = cluster.submit(request)
    watch = watch_for(request, first.job_id)
    if ended:
        assert verdict_of(cluster, watch).outcome is Outcome.FINISHED
    directory = Path(request.attempt.directory)
    (directory / "jobid").write_bytes(content)
    if not ended:  # the job starts despite the damaged record, which does not name another job
        cluster.slurm("scontrol", "update", f"JobId={first.job_id}", "StartTime=now")
        assert verdict_of(cluster, watch).outcome is Outcome.FINISHED
    (state,) = parse_stage_states(
        [request.attempt.stage_dir], cluster.run(stage_state_script([request.attempt.stage_dir]))
    ).values()
    assert (state.latest_attempt, state.job_id) == (1, None)
    again = cluster.submit(replace(request, claim_token="second"))
    assert (again.status, again.job_id) == ("adopted", first.job_id)
    assert (directory / "jobid").read_text().strip() == first.job_id
    assert cluster.jobs_named(request.attempt.job_name) == {first.job_id}


@DAMAGE
def test_first_claim(cluster: SlurmCluster, tmp_path: Path, content: bytes) -> None:
    """The owner and time of the claim cannot be read, but the job is found by its name."""
    request = cluster.request(
        tmp_path, f"claim{GARBAGE.index(content)}", "am_run sleep 3", visibility_window_s=8
    )
    first = cluster.submit(request)
    directory = Path(request.attempt.directory)
    for name in ("jobid", "created", "claim.1/owner", "claim.1/sbatch.out", "claim.1/sbatch.started"):
        (directory / name).write_bytes(content)
    again = cluster.submit_patiently(replace(request, claim_token="second"))
    assert again.job_id == first.job_id
    assert cluster.jobs_named(request.attempt.job_name) == {first.job_id}


@DAMAGE
@pytest.mark.parametrize("status", [0, 5])
def test_exit_record(cluster: SlurmCluster, tmp_path: Path, content: bytes, status: int) -> None:
    """The copy in the attempt's run folder is read; without it the verdict uses accounting."""
    request = cluster.request(tmp_path, f"exit{GARBAGE.index(content)}{status}", f"exit {status}")
    watch = watch_for(request, cluster.submit(request).job_id)
    expected = Outcome.FAILED if status else Outcome.FINISHED
    assert verdict_of(cluster, watch).outcome is expected
    directory = Path(request.attempt.directory)
    (directory / "exit.json").write_bytes(content)
    copied = observe(cluster, watch).exit
    assert copied is not None
    assert copied.exit_code == status
    for copy in (directory / "run").glob("exit.*.json"):
        copy.write_bytes(content)
    assert observe(cluster, watch).exit is None
    verdict = verdict_of(cluster, watch, timeout=90)
    assert (verdict.outcome, verdict.exit_code) == (expected, status)


@DAMAGE
def test_verdict_and_job_description(cluster: SlurmCluster, tmp_path: Path, content: bytes) -> None:
    """Without a readable verdict the job is judged again, but not submitted again."""
    request = cluster.request(tmp_path, f"verdict{GARBAGE.index(content)}")
    first = cluster.submit(request)
    stage_dir = Path(request.attempt.stage_dir)
    for name in ("verdict.json", "1/verdict.json", "1/job.json"):
        (stage_dir / name).write_bytes(content)
    (state,) = parse_stage_states(
        [str(stage_dir)], cluster.run(stage_state_script([str(stage_dir)]))
    ).values()
    assert state.verdict is None
    assert (state.latest_attempt, state.job_id) == (1, first.job_id)


def test_half_a_verdict(cluster: SlurmCluster, tmp_path: Path) -> None:
    request = cluster.request(tmp_path, "half")
    first = cluster.submit(request)
    stage_dir = Path(request.attempt.stage_dir)
    text = json.dumps({"outcome": "finished", "reason": "x", "attempt": 1})
    for length in (1, len(text) // 2, len(text) - 1):
        (stage_dir / "verdict.json").write_text(text[:length])
        result = cluster.run(stage_state_script([str(stage_dir)]))
        (state,) = parse_stage_states([str(stage_dir)], result).values()
        assert (state.verdict, state.job_id) == (None, first.job_id)
