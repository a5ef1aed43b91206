"""Arrays with a file-backed Slurm: their attempts, and the state after an interrupted submission."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_megatron.slurm.remote.attempt import Attempt
from airflow_megatron.slurm.remote.transport import TransportError
from airflow_megatron.slurm.submission.job_array import (
    ArrayOutcome,
    ArrayRequest,
    ArrayTask,
    array_decision_script,
    array_script,
    parse_array,
)
from airflow_megatron.slurm.submission.single_job import SubmissionRequest
from airflow_megatron.slurm.verdicts.stage_records import parse_stage_states, stage_state_script

STOPS = {
    "before its tasks are claimed": ("am_take_tasks() {", "am_take_tasks() { kill -9 $$"),
    "while it claims": ("am_tasks=${am_tasks:+$am_tasks,}$1", "am_tasks=$1; kill -9 $$"),
    "before sbatch": ("am_leave_other_tasks() {", "am_leave_other_tasks() { kill -9 $$"),
    "after sbatch": ("am_sbatch_outcome() {", "am_sbatch_outcome() { kill -9 $$"),
    "before the tasks' records": ("am_record_tasks() {", "am_record_tasks() { kill -9 $$"),
    "between the tasks' records": ("    printf 'task %s", "    kill -9 $$; printf 'task %s"),
}
"""Where a submitter is killed: text of its script, and what stands there instead."""
SUBMITTED = {"after sbatch", "before the tasks' records", "between the tasks' records"}


@pytest.fixture
def tasks(tmp_path: Path) -> list[ArrayTask]:
    """Three points; their directories have a blank and a quote in them."""
    found = []
    for point in "abc":
        run_dir = tmp_path / "it's here" / point
        found.append(
            ArrayTask(
                attempt=Attempt(f"s.{point}.work.a1", str(run_dir / ".jobs" / "work"), 1),
                script=f"#!/bin/bash\n#SBATCH --time=5\necho {point} '\\n' 100%\n",
                job_json={"job": f"s.{point}.work"},
                log_file=str(run_dir / "logs" / "work-1.out"),
                work_dir=str(run_dir),
            )
        )
    return found


@pytest.fixture
def request_of(tmp_path: Path, tasks: list[ArrayTask]):
    """Return a function that creates the request of a new array of all tasks."""
    numbers = iter(range(1, 100))

    def make() -> ArrayRequest:
        token = f"t{next(numbers)}"
        array = Attempt(f"s.work.array.{token}", str(tmp_path / "it's here" / ".arrays" / f"work.{token}"), 1)
        return ArrayRequest(array, tasks, ("--time=5",), 2, token)

    return make


def submit(slurm, request: ArrayRequest) -> ArrayOutcome:
    return parse_array(slurm.run(array_script(request)))


def decide(slurm, array: Attempt, window: float = 300.0) -> ArrayOutcome:
    return parse_array(slurm.run(array_decision_script(array, "later", visibility_window_s=window)))


def alone(task: ArrayTask, token: str = "single") -> SubmissionRequest:
    return SubmissionRequest(task.attempt, task.script, task.job_json, token, busy_wait_s=0)


def record(task: ArrayTask) -> str:
    return (Path(task.attempt.directory) / "jobid").read_text().strip()


@pytest.mark.slow
def test_one_sbatch_for_all(slurm, request_of, tasks):
    request = request_of()
    outcome = submit(slurm, request)
    assert (outcome.submission.status, outcome.submission.job_id) == ("submitted", "1001")
    assert outcome.indices == {0, 1, 2}
    assert slurm.calls("sbatch") == ["call"]
    assert "--array=0,1,2%2" in slurm.accepted("1001", "argv").splitlines()
    assert [record(task) for task in tasks] == [f"1001_{i};;{request.array.job_name}" for i in range(3)]
    for index, task in enumerate(tasks):
        attempt_dir = Path(task.attempt.directory)
        assert (attempt_dir / "job.sbatch").read_text() == task.script
        assert json.loads((attempt_dir / "job.json").read_text()) == task.job_json
        log = Path(request.array.directory) / "tasks" / str(index) / "log"
        log.write_text("a line")  # as Slurm does: through the link, into the point's own log
        assert Path(task.log_file).read_text() == "a line"


@pytest.mark.slow
def test_repeating_the_call_changes_nothing(slurm, request_of):
    request = request_of()
    submit(slurm, request)
    again = submit(slurm, request)
    assert (again.submission.status, again.indices) == ("recorded", {0, 1, 2})
    assert slurm.calls("sbatch") == ["call"]


@pytest.mark.slow
def test_array_script_becomes_the_script_of_its_task(slurm, request_of, tasks):
    request = request_of()
    submit(slurm, request)
    script = slurm.accepted("1001", "script")
    head = [line for line in script.splitlines() if line.startswith("#SBATCH")]
    assert head[0] == "#SBATCH --time=5"
    assert head[1].endswith("/tasks/%a/log'")
    (Path(slurm.root) / "array.sh").write_text(script)
    command = f"SLURM_ARRAY_JOB_ID=1001 SLURM_ARRAY_TASK_ID=1 bash {slurm.root}/array.sh"
    assert slurm.run(command).stdout == "b \\n 100%\n"
    lost = slurm.run(command.replace("TASK_ID=1 ", "TASK_ID=8 "))
    assert lost.exit_status == 73
    assert "cannot begin" in lost.stderr


@pytest.mark.slow
def test_an_attempt_of_another_submitter_is_left_out(slurm, request_of, tasks):
    assert slurm.submit(alone(tasks[1])).job_id == "1001"
    request = request_of()
    outcome = submit(slurm, request)
    assert outcome.indices == {0, 2}
    assert "--array=0,2%2" in slurm.accepted("1002", "argv").splitlines()
    assert record(tasks[1]) == "1001"
    assert submit(slurm, request_of()).indices == frozenset()
    assert len(slurm.calls("sbatch")) == 2


@pytest.mark.slow
@pytest.mark.parametrize("stop", STOPS)
def test_killed_submission_is_taken_over(slurm, request_of, tasks, stop):
    request = request_of()
    old, new = STOPS[stop]
    script = array_script(request)
    assert old in script
    with pytest.raises(TransportError):
        parse_array(slurm.run(script.replace(old, new)))
    directories = [task.attempt.stage_dir for task in tasks]
    states = parse_stage_states(directories, slurm.run(stage_state_script(directories)))
    cut = {attempt.array for state in states.values() for attempt in state.attempts if attempt.array}
    assert cut == (set() if stop == "before its tasks are claimed" else {request.array})
    for array in cut:
        outcome = decide(slurm, array, window=0)
        assert (outcome.submission.job_id is not None) == (stop in SUBMITTED)
    if stop in SUBMITTED:
        assert [record(task) for task in tasks] == [f"1001_{i};;{request.array.job_name}" for i in range(3)]
    following = submit(slurm, request_of())
    assert following.indices == (frozenset() if stop in SUBMITTED else {0, 1, 2})
    assert len(slurm.calls("sbatch")) == 1


@pytest.mark.slow
@pytest.mark.parametrize("stop", STOPS)
def test_a_single_point_takes_over_its_task(slurm, request_of, tasks, stop):
    request = request_of()
    slurm.run(array_script(request).replace(*STOPS[stop]))
    outcomes = [slurm.submit(replace(alone(task), visibility_window_s=0)) for task in tasks]
    if stop in SUBMITTED:
        assert [outcome.job_id for outcome in outcomes] == [f"1001_{index}" for index in range(3)]
        assert {outcome.job_name for outcome in outcomes} == {request.array.job_name}
        assert slurm.calls("sbatch") == ["call"]
    else:
        assert [outcome.job_id for outcome in outcomes] == ["1001", "1002", "1003"]
        assert decide(slurm, request.array).indices == frozenset()
        assert submit(slurm, request_of()).indices == frozenset()
        assert len(slurm.calls("sbatch")) == 3


@pytest.mark.slow
def test_sbatch_of_unknown_outcome(slurm, request_of, tasks):
    """Neither the array nor one of its attempts is submitted while its job may still show."""
    slurm.behave("sbatch", "echo 'sbatch: error: Socket timed out' >&2; exit 1")
    request = request_of()
    assert submit(slurm, request).submission.status == "pending"
    slurm.behave_normally("sbatch")
    assert decide(slurm, request.array).submission.status == "pending"
    assert slurm.submit(alone(tasks[0])).status == "pending"
    assert decide(slurm, request.array, window=0).submission.status == "deferred"
    assert slurm.submit(alone(tasks[0])).status == "submitted"


@pytest.mark.slow
def test_accepted_although_sbatch_failed(slurm, request_of):
    slurm.behave("sbatch", "accept \"$@\"; echo 'sbatch: error: Socket timed out' >&2; exit 1")
    request = request_of()
    outcome = submit(slurm, request)
    assert (outcome.submission.status, outcome.submission.job_id) == ("adopted", "1001")


@pytest.mark.slow
def test_tasks_in_accounting_are_one_array(slurm, request_of):
    request = request_of()
    slurm.behave("sbatch", "echo 'sbatch: error: Socket timed out' >&2; exit 1")
    slurm.behave(
        "sacct",
        f'for i in 0 1 2; do echo "77_$i|COMPLETED|$(date +%s)||{request.array.job_name}"; done',
    )
    outcome = submit(slurm, request)
    assert (outcome.submission.job_id, outcome.indices) == ("77", {0, 1, 2})


@pytest.mark.slow
def test_refused_array_gives_its_attempts_back(slurm, request_of, tasks):
    slurm.behave("sbatch", "echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2; exit 1")
    request = request_of()
    assert submit(slurm, request).submission.status == "deferred"
    slurm.behave_normally("sbatch")
    assert decide(slurm, request.array).submission.status == "deferred"
    smaller = replace(request_of(), tasks=tasks[:2])
    assert submit(slurm, smaller).indices == {0, 1}
    assert slurm.submit(alone(tasks[2])).status == "submitted"


@pytest.mark.slow
def test_live_submitter_is_waited_for(slurm, request_of, tasks):
    slurm.behave("sbatch", 'until [ -e "$FAKE_SLURM/go" ]; do sleep 0.05; done; accept "$@"; echo $id')
    request = request_of()
    process = slurm.start(array_script(request))
    while not (Path(request.array.directory) / "claim.1" / "sbatch.started").exists():
        assert process.poll() is None
    assert slurm.submit(alone(tasks[0])).status == "pending"
    threading.Timer(0.5, (slurm.root / "go").touch).start()
    assert slurm.submit(replace(alone(tasks[0]), busy_wait_s=60)).job_id == "1001_0"
    process.communicate()


def test_unwritable_run_directory(slurm, request_of, tasks):
    Path(tasks[0].work_dir).mkdir(parents=True)
    (Path(tasks[0].work_dir) / "logs").write_text("in the way")
    outcome = submit(slurm, request_of())
    assert outcome.submission.status == "refused"
    assert "cannot write" in outcome.submission.message
    assert slurm.calls("sbatch") == []
