"""Jobs that ended without a verdict, from the output of commands on a login node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from airflow_megatron.slurm.polling.jobs_without_verdict import stages_without_verdict
from airflow_megatron.slurm.remote.profile import SlurmCommands
from airflow_megatron.slurm.remote.transport import TransportError
from airflow_megatron.slurm.verdicts.recorded import RecordedVerdict
from airflow_megatron.slurm.verdicts.stage_records import write_verdict_script
from airflow_megatron.slurm.verdicts.verdict import Outcome, Verdict

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def stage(slurm: Any, request_for: Any) -> str:
    """A stage whose second attempt waits in the queue; the first has a verdict."""
    stage_dir = str(request_for().attempt.stage_dir)
    slurm.submit(request_for(1))
    slurm.run("scancel 1001")
    slurm.run(write_verdict_script(stage_dir, RecordedVerdict.of(Verdict(Outcome.FAILED, "x"), 1)))
    slurm.submit(request_for(2))
    return stage_dir


@pytest.mark.slow
def test_a_job_in_the_queue_is_waited_for(slurm: Any, stage: str) -> None:
    assert stages_without_verdict([stage], SlurmCommands(), slurm.run) == []


@pytest.mark.slow
def test_a_job_that_left_the_queue_needs_a_verdict(slurm: Any, stage: str, tmp_path: Path) -> None:
    slurm.run("scancel 1002")
    never_ran = str(tmp_path / "other")
    assert stages_without_verdict([never_ran, stage], SlurmCommands(), slurm.run) == [stage]
    slurm.run(write_verdict_script(stage, RecordedVerdict.of(Verdict(Outcome.FAILED, "x"), 2)))
    assert stages_without_verdict([never_ran, stage], SlurmCommands(), slurm.run) == []


@pytest.mark.slow
def test_a_queue_that_does_not_answer_changes_no_verdict(slurm: Any, stage: str) -> None:
    slurm.run("scancel 1002")
    slurm.behave("squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    assert stages_without_verdict([stage], SlurmCommands(), slurm.run) == []
    with pytest.raises(TransportError):
        stages_without_verdict([stage], SlurmCommands(), lambda script: slurm.run("echo cut"))
