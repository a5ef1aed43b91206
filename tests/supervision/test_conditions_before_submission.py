"""Conditions use only outputs of the present run, and are evaluated before a submission."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from example_specs import spec_text

from airflow_megatron.plan.sweep_plan import plan_sweep
from airflow_megatron.slurm.polling.poll import parse_poll, poll_script
from airflow_megatron.slurm.remote.transport import CommandResult
from airflow_megatron.spec.model.conditions import Condition
from airflow_megatron.spec.spec_files import load_sweep_text
from airflow_megatron.supervision.attempts import JobAttempts
from airflow_megatron.supervision.condition_watch import ConditionResult, ConditionWatch, OwnAttempt
from airflow_megatron.supervision.conditions_before_submission import holds, runs_of_others
from airflow_megatron.supervision.job_reference import JobHandle

if TYPE_CHECKING:
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job

STAGES = """\
stages:
  make: {kind: command, command: [x]}
  use:
    kind: command
    parent: make
    start: {file: "{{ stages.make.run_dir }}/made*"}
    cancel: {any: [{log: "DIV.RGED", of: make}, {file: "{{ stages.make.run_dir }}/stop"}, {file: /elsewhere/stop}]}
    finish: {file: done}
    command: [y]
"""


def shell(script: str) -> CommandResult:
    done = subprocess.run(["/bin/sh", "-s"], input=script, capture_output=True, text=True, check=False)
    return CommandResult(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def jobs(cluster: ClusterProfile, tmp_path: Path) -> dict[str, Job]:
    cluster = cluster.model_copy(update={"run_root": str(tmp_path)})
    plan = plan_sweep(load_sweep_text(spec_text(point="p", stages=STAGES), "s.yaml"), cluster)
    return {job.stage: job for job in plan.jobs}


def attempts_of(job: Job, cluster: ClusterProfile) -> JobAttempts:
    return JobAttempts(job, cluster, shell)


def write(path: str | Path, text: str = "", *, age: float = 0.0) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)
    if age:
        os.utime(path, (time.time() - age,) * 2)


def submitted(job: Job, number: int, first: int | None = None) -> None:
    """Write the records of a submission."""
    record: dict[str, Any] = {"attempt": number} | ({"first": first} if first else {})
    write(f"{job.stage_dir}/{number}/created", "1 x\n")
    write(f"{job.stage_dir}/{number}/job.json", json.dumps(record))
    write(f"{job.stage_dir}/{number}/jobid", f"{number}\n")
    time.sleep(0.02)  # the job writes later


def truth(condition: Condition, runs: dict[str, int], own: OwnAttempt | None = None) -> ConditionResult:
    watch = ConditionWatch(condition, runs, own=own)
    offset, log = watch.watches()[0].log_offset, watch.watches()[0].log_file
    found = ConditionResult.NO
    for _ in range(6):
        (question,) = watch.watches()
        offset = 0 if question.log_file != log else offset
        log = question.log_file
        watch_list = [dataclasses.replace(question, log_offset=offset)]
        seen = parse_poll(watch_list, shell(poll_script(watch_list)))[question.key]
        offset += len(seen.log_chunk)
        found = watch.read([seen])
    return found


def test_files_in_a_run_directory_belong_to_its_job(jobs: dict[str, Job]) -> None:
    make, use = jobs["make"], jobs["use"]
    assert use.start is not None
    assert use.cancel is not None
    assert use.finish is not None
    assert use.start.producer == make.stage_dir
    assert [leaf.producer for leaf in use.cancel.leaves()] == [make.stage_dir, make.stage_dir, ""]
    assert use.finish.producer == use.stage_dir


@pytest.mark.slow
def test_a_file_of_an_earlier_run_does_not_count(jobs: dict[str, Job]) -> None:
    make, start = jobs["make"], jobs["use"].start
    assert start is not None
    submitted(make, 1)
    write(f"{make.run_dir}/made by hand")
    assert truth(start, {make.stage_dir: 1}) is ConditionResult.YES
    submitted(make, 2)
    assert truth(start, {make.stage_dir: 1}) is ConditionResult.YES  # the second attempt of one run
    assert truth(start, {make.stage_dir: 2}) is ConditionResult.NO
    # a copy with an old time stamp counts as new
    write(f"{make.run_dir}/made again", age=86_400)
    assert truth(start, {make.stage_dir: 2}) is ConditionResult.YES
    assert truth(start, {make.stage_dir: 3}) is ConditionResult.NO  # not submitted yet


@pytest.mark.slow
def test_a_pattern_in_the_log_of_any_attempt_of_the_run(jobs: dict[str, Job]) -> None:
    make = jobs["make"]
    condition = Condition("log", path=make.log_pattern, pattern="DIV.RGED", producer=make.stage_dir)
    write(make.log_file(1), "DIVERGED\n")
    write(make.log_file(2), "fine\n")
    assert truth(condition, {make.stage_dir: 1}) is ConditionResult.YES
    assert truth(condition, {make.stage_dir: 2}) is ConditionResult.NO
    write(make.log_file(3), "fine\nDIVERGED\n")
    assert truth(condition, {make.stage_dir: 2}) is ConditionResult.YES
    # among its own logs, that of the attempt
    assert truth(condition, {make.stage_dir: 1}, own=OwnAttempt(make.stage_dir, 2)) is ConditionResult.NO


@pytest.mark.slow
def test_attempts_that_share_a_log(jobs: dict[str, Job]) -> None:
    make = jobs["make"]
    log = f"{make.run_dir}/log"
    condition = Condition("log", path=log, pattern="DIV.RGED", producer=make.stage_dir)
    write(log, "DIVERGED\nanew\n")
    assert truth(condition, {}, own=OwnAttempt(make.stage_dir, 2, 9)) is ConditionResult.NO
    assert truth(condition, {}, own=OwnAttempt(make.stage_dir, 1)) is ConditionResult.YES


@pytest.mark.slow
def test_it_is_checked_before_a_submission(jobs: dict[str, Job], cluster: ClusterProfile) -> None:
    make, use = jobs["make"], jobs["use"]
    attempts = attempts_of(use, cluster)
    submitted(make, 1)
    write(make.log_file(1), "x" * 200_000 + "\nfine\n")
    assert not holds(use.cancel, attempts, 1, 1)
    assert not holds(use.finish, attempts, 1, 1)
    write(make.log_file(1), "x" * 200_000 + "\nDIVERGED\n")
    assert holds(use.cancel, attempts, 1, 1)
    submitted(make, 2)  # restarts the count
    assert not holds(use.cancel, attempts, 1, 1)
    submitted(make, 3, first=2)
    write(make.log_file(2), "DIVERGED\n")
    write(make.log_file(3), "fine\n")
    assert holds(use.cancel, attempts, 1, 1)


@pytest.mark.slow
def test_what_finishes_a_job_is_its_own(jobs: dict[str, Job], cluster: ClusterProfile) -> None:
    use = jobs["use"]
    attempts = attempts_of(use, cluster)
    write(f"{use.run_dir}/done")
    assert holds(use.finish, attempts, 1, 1)
    submitted(use, 1)
    submitted(use, 2, first=2)
    assert not holds(use.finish, attempts, 3, 2)
    write(f"{use.run_dir}/done")
    assert holds(use.finish, attempts, 3, 2)


@pytest.mark.slow
def test_runs_of_others(jobs: dict[str, Job], cluster: ClusterProfile) -> None:
    make, use = jobs["make"], jobs["use"]
    assert use.cancel is not None
    assert runs_of_others(attempts_of(use, cluster), [use.cancel]) == {}
    submitted(make, 1)
    submitted(make, 2, first=2)
    submitted(make, 3, first=2)
    assert runs_of_others(attempts_of(use, cluster), [use.cancel]) == {make.stage_dir: 2}


@pytest.mark.parametrize(
    ("handle", "began"),
    [
        (JobHandle("j", 3, "7", first=2), 2),
        (JobHandle("j", 3, "7"), 3),
        (JobHandle("j", 3, "7", finished=True), 1),  # of an earlier release of this project
        (JobHandle("j", 3, "7", finished=True, first=3), 3),
    ],
)
def test_a_handle_has_the_start_of_the_run(handle: JobHandle, began: int) -> None:
    assert handle.run_began == began
