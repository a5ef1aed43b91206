"""Jobs that commit 7332a23 submitted are recognised, watched and finished; none is submitted twice."""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk._shared.module_loading import import_string
from driven_job import Store, TaskInstance, driven, environment, first_event
from patience import patient

from airflow_megatron.operators.slurm_submit import SlurmSubmitOperator
from airflow_megatron.operators.slurm_watch import SlurmWatchOperator
from airflow_megatron.slurm.submission.job_script import attempt_of
from airflow_megatron.spec.model.jobs import Job

sys.path.insert(0, str(Path(__file__).parents[2] / "upgrade"))

from recorded import Recording

if TYPE_CHECKING:
    from slurm_cluster import SlurmCluster

pytestmark = pytest.mark.integration
PROJECT = Path(__file__).resolve().parents[3]


@pytest.fixture
def recording(cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recording:
    found = Recording(tmp_path)
    found.plant_project(PROJECT)
    found.plant_runs()
    for name, value in {**environment(tmp_path, cluster), **found.environment}.items():
        monkeypatch.setenv(name, value)
    return found


def in_slurm(recording: Recording, cluster: SlurmCluster, job: Job) -> str:
    """Queue the recorded script as the attempt's recorded job; return its id."""
    attempt = attempt_of(job, 1)
    directory = Path(attempt.directory)
    shutil.rmtree(directory / "run")  # the job creates it
    words = ("--parsable", f"--job-name={attempt.job_name}", str(directory / "job.sbatch"))
    job_id = cluster.slurm("sbatch", *words)
    (directory / "jobid").write_text(f"{job_id}\n")
    return job_id


def test_a_deferred_task_continues(recording: Recording, cluster: SlurmCluster) -> None:
    row = recording.task("carried.point", "waits", "work.watch")
    planned = recording.xcom("carried.point", "waits", "resolve", "work")
    job = Job.from_json(planned)
    job_id = in_slurm(recording, cluster, job)
    name = attempt_of(job, 1).job_name
    task = SlurmWatchOperator(task_id="watch", job=planned, handle=None, poll_interval=1.0)
    stored: dict[str, Any] = row["trigger"]["kwargs"]
    handle = {**stored["carry"]["handle"], "job_id": job_id}
    trigger = import_string(row["trigger"]["classpath"])(
        **{**stored, "job_id": job_id, "job_name": name, "poll_interval": 1.0, "carry": {"handle": handle}}
    )
    # after a worker died during the submission, the next try takes the submitted job over
    again = SlurmSubmitOperator(task_id="submit", job=planned)
    store = Store({"attempt": {"number": 1, "fresh": False, "phase": "submitting"}})
    taken_up = again.execute({"ti": TaskInstance(), "task": again, "task_state_store": store})  # type: ignore[typeddict-item]
    assert taken_up["job_id"] == job_id
    (recording.runs_dir / "carried" / "go").touch()
    event = asyncio.run(asyncio.wait_for(first_event(trigger), patient(90)))
    context: Any = {"ti": TaskInstance(), "task": task, "task_state_store": Store()}
    result = getattr(task, row["next_method"])(context, event=event, **row["next_kwargs"])
    assert (result["outcome"], result["attempt"], result["job_id"]) == ("finished", 1, job_id)
    assert cluster.jobs_named(name) == {job_id}


def test_a_failed_attempt_is_followed_by_the_next(recording: Recording, cluster: SlurmCluster) -> None:
    """The task was in its backoff; files of the first attempt let the second one succeed."""
    row = recording.task("carried.point", "fails", "work.watch")
    planned = recording.xcom("carried.point", "fails", "resolve", "work")
    task = SlurmWatchOperator(task_id="watch", job=planned, handle=None, poll_interval=1.0)
    event = row["trigger"]["kwargs"]["carry"]
    (recording.runs_dir / "carried" / "fails" / "work" / "made").touch()
    result = driven(task, getattr(task, row["next_method"]), event=event)
    assert (result["outcome"], result["attempt"]) == ("finished", 2)
    assert cluster.jobs_named(attempt_of(Job.from_json(planned), 1).job_name) == set()
    assert len(cluster.jobs_named(attempt_of(Job.from_json(planned), 2).job_name)) == 1
