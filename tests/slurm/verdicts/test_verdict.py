from __future__ import annotations

import json
from dataclasses import replace

import pytest

from airflow_megatron.slurm.remote.records import ExitRecord
from airflow_megatron.slurm.states.exit_codes import DUPLICATE_EXIT_CODE, UNWRITABLE_EXIT_CODE
from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.states.observation import (
    AccountingRow,
    ControllerRow,
    Observation,
    QueueRow,
    Unreachable,
)
from airflow_megatron.slurm.verdicts.verdict import Expectation, Outcome, Verdict, judge

NOW = 10_000.0
TRAIN = Expectation("train", train_iters=100, complete=lambda files: "metadata.json" in files)
COMMAND = Expectation("command", required_files=("/r/results.json",))
DONE = {"tracker": "100", "checkpoint_files": {"iter_0000100": {"metadata.json": 9}}}
HALF = {"tracker": "50", "checkpoint_files": {"iter_0000050": {"metadata.json": 9}}}


def queued(state: JobState, **changes) -> QueueRow:
    return replace(QueueRow("7", "x", state, started=NOW - 500, ended=NOW - 100, node_list="n1"), **changes)


def accounted(state: JobState, code: int = 0, signal: int = 0, **changes) -> AccountingRow:
    row = AccountingRow("7", "x", state, state.value, code, signal, "n1", 1, ended=NOW - 100, elapsed=400)
    return replace(row, **changes)


def seen(**changes) -> Observation:
    return replace(Observation(time=NOW, queue_ok=True, accounting_ok=True), **changes)


def exit_record(code: int = 0, **changes) -> ExitRecord | None:
    value = {"exit_code": code, "started": NOW - 500, "ended": NOW - 100, "job_id": "7", **changes}
    return ExitRecord.from_json(value)


@pytest.mark.parametrize("state", [state for state in JobState if state.active])
def test_active_states(state):
    verdict = judge(seen(queue=queued(state, reason="Resources")), TRAIN)
    assert verdict.outcome is Outcome.ACTIVE
    assert state.value in verdict.reason
    assert verdict.job_id == "7"
    assert ("scontrol release" in verdict.reason) == (
        state in {"REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
    )


@pytest.mark.parametrize(
    "observation",
    [
        Observation(time=NOW, unreachable=Unreachable(NOW - 60, "connection refused", 3)),
        Observation(time=NOW, queue_ok=False, errors=("squeue: Socket timed out",)),
        seen(queue=queued(JobState.UNKNOWN)),
        seen(),  # in neither
        seen(
            accounting_ok=False, exit=exit_record()
        ),  # slurmdbd down: the record may be of a job since requeued
        seen(accounting=accounted(JobState.RUNNING)),  # accounting lags, no exit.json
        seen(accounting=accounted(JobState.RUNNING), exit=exit_record(ended=NOW - 5)),
        seen(accounting_ok=False, accounting_enabled=False),
        seen(queue=queued(JobState.FAILED, ended=NOW - 5)),  # its exit code is not available yet
    ],
)
@pytest.mark.parametrize("files", [{}, DONE])
def test_observations_without_a_verdict(observation, files):
    verdict = judge(replace(observation, **files), TRAIN)
    assert verdict.outcome is Outcome.UNKNOWN
    assert not verdict.outcome.is_verdict
    assert verdict.reason


@pytest.mark.parametrize(
    "state", [state for state in JobState if state.ended and state is not JobState.REVOKED]
)
@pytest.mark.parametrize("source", ["queue", "accounting"])
def test_training_that_is_done_is_finished_however_the_job_ended(state, source):
    row = queued(state) if source == "queue" else accounted(state, 1)
    verdict = judge(seen(**{source: row}, **DONE), TRAIN)
    assert verdict.outcome is Outcome.FINISHED
    assert verdict.iteration == 100


@pytest.mark.parametrize(
    ("row", "outcome"),
    [
        (accounted(JobState.COMPLETED), Outcome.ROLLED_OVER),
        (accounted(JobState.TIMEOUT), Outcome.ROLLED_OVER),
        (accounted(JobState.FAILED, 143), Outcome.ROLLED_OVER),
        (accounted(JobState.FAILED, 0, 15), Outcome.ROLLED_OVER),
        (accounted(JobState.NODE_FAIL), Outcome.RETRYABLE),
        (accounted(JobState.PREEMPTED), Outcome.RETRYABLE),
        (accounted(JobState.BOOT_FAIL), Outcome.RETRYABLE),
        (accounted(JobState.FAILED, 16), Outcome.RETRYABLE),
        (accounted(JobState.OUT_OF_MEMORY, 0, 125), Outcome.OUT_OF_MEMORY),
        (accounted(JobState.CANCELLED, state_text="CANCELLED by 1000"), Outcome.CANCELLED),
        (accounted(JobState.DEADLINE), Outcome.FAILED),
        (accounted(JobState.FAILED, 1), Outcome.FAILED),
        (accounted(JobState.FAILED, 17), Outcome.FAILED),
        (accounted(JobState.FAILED, DUPLICATE_EXIT_CODE), Outcome.DUPLICATE),
    ],
)
def test_training_that_is_not_done(row, outcome):
    verdict = judge(seen(accounting=row, **HALF), TRAIN)
    assert verdict.outcome is outcome
    assert row.state.value in verdict.reason
    assert "[sacct]" in verdict.reason
    assert verdict.iteration == 50
    assert verdict.elapsed == 400
    if outcome is Outcome.CANCELLED:
        assert "1000" in verdict.reason


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"tracker": "release"},
        {"tracker": "100"},
        {"tracker": "100", "checkpoint_files": {"iter_0000100": {}}},
        {"tracker": "50", "checkpoint_files": {"iter_0000100": {"metadata.json": 9}}},
    ],
)
def test_completed_does_not_mean_finished(files):
    assert (
        judge(seen(accounting=accounted(JobState.COMPLETED), **files), TRAIN).outcome is Outcome.ROLLED_OVER
    )


@pytest.mark.parametrize(
    "line", [b"KeyError: 'lm loss'", b"[after training is done] datetime: 2026-11-21 10:00:00 "]
)
@pytest.mark.parametrize(("state", "code"), [(JobState.COMPLETED, 0), (JobState.FAILED, 1)])
def test_no_log_line_finishes_a_training(line, state, code):
    verdict = judge(seen(accounting=accounted(state, code), **HALF), TRAIN, log_tail=line + b"\n")
    assert verdict.outcome in {Outcome.ROLLED_OVER, Outcome.FAILED}
    assert "iteration 50 of 100" in verdict.reason


def test_files_may_become_visible_after_the_end():
    row = accounted(JobState.COMPLETED, ended=NOW - 2)
    assert judge(seen(accounting=row, **HALF), TRAIN).outcome is Outcome.UNKNOWN
    assert judge(seen(accounting=row, **DONE), TRAIN).outcome is Outcome.FINISHED
    assert judge(seen(accounting=row), COMMAND).outcome is Outcome.UNKNOWN
    assert judge(seen(accounting=accounted(JobState.FAILED, 1, ended=NOW)), COMMAND).outcome is Outcome.FAILED


@pytest.mark.parametrize(
    "row", [{"queue": queued(JobState.REVOKED)}, {"accounting": accounted(JobState.REVOKED)}]
)
def test_a_job_that_another_cluster_of_the_federation_took_is_not_submitted_again(row):
    assert judge(seen(**row, **HALF), TRAIN).outcome is Outcome.UNKNOWN
    assert judge(seen(**row, **HALF, exit=exit_record(0)), TRAIN).outcome is Outcome.ROLLED_OVER
    assert judge(seen(**row, **DONE, exit=exit_record(0)), TRAIN).outcome is Outcome.FINISHED


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("Resources", None),
        ("Priority", None),
        ("AssocMaxJobsLimit", None),
        ("QOSMaxJobsPerUserLimit", None),
        ("ReqNodeNotAvail, UnavailableNodes:n[1-4]", None),
        ("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions", None),
        ("BeginTime", None),
        ("Dependency", None),
        ("DependencyNeverSatisfied", "cancel it"),
        ("JobHeldUser", "scontrol release"),
        ("(launch failed requeued held)", "could not be started"),
        ("launch_failed_requeued_held", "could not be started"),
        ("InvalidAccount", "account is not valid"),
        ("PartitionTimeLimit", "more time"),
    ],
)
def test_reasons_of_waiting(reason, expected):
    verdict = judge(seen(queue=queued(JobState.PENDING, reason=reason)), TRAIN)
    assert verdict.outcome is Outcome.ACTIVE
    assert ("does not start by itself" in verdict.reason) == (expected is not None)
    assert expected is None or expected in verdict.reason


def test_a_requeued_job_is_active_despite_its_accounting_record():
    for state in (JobState.PREEMPTED, JobState.NODE_FAIL):
        observation = seen(queue=queued(JobState.PENDING, reason="BeginTime"), accounting=accounted(state))
        assert judge(observation, TRAIN).outcome is Outcome.ACTIVE


def test_final_accounting_beats_the_queue_which_beats_the_exit_record():
    both = seen(
        queue=queued(JobState.FAILED), accounting=accounted(JobState.OUT_OF_MEMORY), exit=exit_record(0)
    )
    assert judge(both, TRAIN).outcome is Outcome.OUT_OF_MEMORY
    no_accounting = replace(both, accounting=accounted(JobState.RUNNING))
    verdict = judge(no_accounting, TRAIN)
    assert verdict.outcome is Outcome.FAILED
    assert "[squeue]" in verdict.reason


def test_accounting_without_an_end_is_not_final():
    """slurmdbd returns after the job's end: it first gets the start, with the present state and exit code 0."""
    started = accounted(JobState.FAILED, ended=None)
    controller_record = remembered(JobState.FAILED, 4)
    seen_by_all = seen(accounting=started, queue=queued(JobState.FAILED), controller=controller_record)
    assert judge(seen_by_all, COMMAND).exit_code == 4
    left = seen(accounting=started, exit=exit_record(4))
    assert (judge(left, COMMAND).exit_code, judge(left, COMMAND).outcome) == (4, Outcome.FAILED)
    assert judge(replace(left, time=NOW - 90), COMMAND).outcome is Outcome.UNKNOWN


@pytest.mark.parametrize(
    ("code", "outcome"), [(0, Outcome.ROLLED_OVER), (1, Outcome.FAILED), (143, Outcome.ROLLED_OVER)]
)
def test_exit_record_decides_without_accounting(code, outcome):
    without_accounting = seen(accounting_ok=False, accounting_enabled=False, exit=exit_record(code), **HALF)
    assert judge(without_accounting, TRAIN).outcome is outcome
    lagging = seen(accounting=accounted(JobState.RUNNING), exit=exit_record(code), **HALF)
    assert judge(lagging, TRAIN).outcome is outcome
    assert "[exit.json]" in judge(without_accounting, TRAIN).reason


def test_controller_that_cancels_a_relaunch_of_a_job_that_had_ended():
    phantom = accounted(JobState.CANCELLED, state_text="CANCELLED by 0", elapsed=0)
    for code, outcome in ((0, Outcome.FINISHED), (1, Outcome.FAILED)):
        done = {"existing": {"/r/results.json": True}, "exit": exit_record(code)}
        assert judge(seen(accounting=phantom, **done), COMMAND).outcome is outcome
        row = queued(JobState.CANCELLED, started=NOW - 100)
        assert judge(seen(queue=row, **done), COMMAND).outcome is outcome
    stopped = seen(accounting=phantom, exit=exit_record(143, signal="TERM"))
    assert judge(stopped, COMMAND).outcome is Outcome.CANCELLED
    ran = accounted(JobState.CANCELLED, elapsed=5)
    assert judge(seen(accounting=ran, exit=exit_record(0)), COMMAND).outcome is Outcome.CANCELLED


@pytest.mark.parametrize("signal", [None, "TERM"])
def test_controller_that_takes_seconds_to_cancel_a_relaunch(signal):
    """The job started before the start time in Slurm; the end in its own record counts."""
    phantom = {"started": NOW - 103, "ended": NOW - 100}
    done = {"existing": {"/r/results.json": True}, "exit": exit_record(0, signal=signal)}
    row = accounted(JobState.CANCELLED, state_text="CANCELLED by 0", elapsed=3, **phantom)
    assert judge(seen(accounting=row, **done), COMMAND).outcome is Outcome.FINISHED
    assert (
        judge(seen(queue=queued(JobState.CANCELLED, **phantom), **done), COMMAND).outcome is Outcome.FINISHED
    )
    waited = replace(row, started=NOW - 100, elapsed=0)
    assert (
        judge(seen(accounting=waited, exit=exit_record(143, signal="TERM")), COMMAND).outcome
        is Outcome.CANCELLED
    )
    rolled_over = seen(accounting=row, exit=exit_record(143, signal="TERM"), **HALF)
    assert judge(rolled_over, TRAIN).outcome is Outcome.ROLLED_OVER


def test_a_job_that_continues_after_its_relaunch_was_cancelled():
    phantom = {"started": NOW - 12, "ended": NOW - 10}
    row = accounted(JobState.CANCELLED, state_text="CANCELLED by 0", elapsed=2, **phantom)
    for observation in (seen(accounting=row), seen(queue=queued(JobState.CANCELLED, **phantom))):
        assert judge(replace(observation, owner_job_id="7"), COMMAND).outcome is Outcome.UNKNOWN
    writes = seen(accounting=row, owner_job_id="7", time=NOW + 60, log_chunk=b"iteration 7", **HALF)
    assert judge(writes, TRAIN).outcome is Outcome.UNKNOWN
    cancelled = replace(row, started=NOW - 500, elapsed=490)
    assert judge(seen(accounting=cancelled, owner_job_id="7"), COMMAND).outcome is Outcome.CANCELLED


def test_a_suspended_job_that_was_cancelled():
    """Accounting does not count the time of a suspension, and a stopped script cannot record its end."""
    row = accounted(
        JobState.CANCELLED, state_text="CANCELLED by 0", elapsed=1, started=NOW - 500, ended=NOW - 10
    )
    verdict = judge(seen(accounting=row, owner_job_id="7"), COMMAND)
    assert verdict.outcome is Outcome.CANCELLED
    assert verdict.reason == "the job ended as CANCELLED (user id 0) [sacct]"


def test_a_job_whose_relaunch_was_cancelled_after_it_had_lost_its_record():
    """slurmctld and slurmd were killed while the job started, and the disk was full when it ended."""
    phantom = {"started": NOW - 12, "ended": NOW - 10}
    row = accounted(JobState.CANCELLED, state_text="CANCELLED by 0", elapsed=2, **phantom)
    observation = seen(accounting=row, owner_job_id="7", time=NOW + 60, **HALF)
    verdict = judge(observation, TRAIN)
    assert verdict.outcome is Outcome.RETRYABLE
    assert verdict.reason == "the job ended as CANCELLED by Slurm, which launched it twice [sacct]"
    person = replace(observation, accounting=replace(row, state_text="CANCELLED by 1000"))
    assert judge(person, TRAIN).outcome is Outcome.CANCELLED
    nobody_knows = seen(queue=queued(JobState.CANCELLED, **phantom), owner_job_id="7", time=NOW + 60)
    assert judge(nobody_knows, COMMAND).outcome is Outcome.CANCELLED
    again = ControllerRow("7", "x", JobState.CANCELLED, "", 0, 15, requeue=True, restarts=1, node_list="n1")
    assert judge(replace(observation, controller=again), TRAIN).outcome is Outcome.CANCELLED


def test_a_person_cancels_a_job_soon_after_its_requeue():
    """Without accounting the queue still shows the nodes of the previous run; the job is not submitted again."""
    at_once = {"started": NOW - 11, "ended": NOW - 10}
    row = queued(JobState.CANCELLED, **at_once)
    again = ControllerRow("7", "x", JobState.CANCELLED, "", 0, 15, requeue=True, restarts=1, node_list="n1")
    for controller, outcome in ((again, Outcome.CANCELLED), (replace(again, restarts=0), Outcome.RETRYABLE)):
        observation = seen(queue=row, controller=controller, accounting_enabled=False, accounting_ok=False)
        assert judge(replace(observation, time=NOW + 60), COMMAND).outcome is outcome


def test_job_that_slurm_could_not_launch():
    """Its script has not started, so the attempt has no owner, even if there was enough time."""
    at_once = {"started": NOW - 11, "ended": NOW - 10}
    row = accounted(JobState.CANCELLED, state_text="CANCELLED by 0", elapsed=1, **at_once)
    for observation in (seen(accounting=row), seen(queue=queued(JobState.CANCELLED, **at_once))):
        assert judge(observation, COMMAND).outcome is Outcome.UNKNOWN
        verdict = judge(replace(observation, time=NOW + 60), COMMAND)
        assert verdict.outcome is Outcome.RETRYABLE
        assert "could not launch it on n" in verdict.reason


def test_job_that_slurmd_took_seconds_to_give_up():
    """After several killed daemons, slurmd needed 12 s to find that it could not launch the job."""
    row = accounted(JobState.CANCELLED, state_text="CANCELLED by 0", elapsed=12)
    verdict = judge(seen(accounting=row, time=NOW + 60), COMMAND)
    assert verdict.outcome is Outcome.RETRYABLE
    assert "could not launch it on n" in verdict.reason
    person = replace(row, state_text="CANCELLED by 1000")
    for changed in ({"accounting": person}, {"owner_job_id": "7"}, {"attempt_watched": False}):
        observation = replace(seen(accounting=row, time=NOW + 60), **changed)
        assert judge(observation, COMMAND).outcome is Outcome.CANCELLED


def test_job_whose_end_slurm_took_for_that_of_a_waiting_job():
    """Its controller was killed before it saved the start (Slurm 22.05), and the full disk took its record."""
    row = accounted(JobState.CANCELLED, state_text="CANCELLED", elapsed=0, started=NOW - 10, ended=NOW - 10)
    observation = seen(accounting=row, owner_job_id="7")
    assert judge(observation, COMMAND).outcome is Outcome.UNKNOWN
    verdict = judge(replace(observation, time=NOW + 60), COMMAND)
    assert verdict.outcome is Outcome.RETRYABLE
    assert verdict.reason == "the job ended as CANCELLED by Slurm, which had no record of its start [sacct]"
    again = ControllerRow("7", "x", JobState.CANCELLED, "", 0, 15, requeue=True, restarts=1, node_list="n1")
    requeued = replace(observation, time=NOW + 60, controller=again)
    assert judge(requeued, COMMAND).outcome is Outcome.CANCELLED


def test_waiting_job_that_was_not_cancelled():
    """Accounting records who cancels a job: it was Slurm, which confused it with another job of the same id."""
    row = accounted(JobState.CANCELLED, state_text="CANCELLED", elapsed=0, node_list="")
    verdict = judge(seen(accounting=row, time=NOW + 60), COMMAND)
    assert verdict.outcome is Outcome.RETRYABLE
    assert verdict.reason == "the job ended as CANCELLED by Slurm, which did not launch it [sacct]"
    queue = queued(JobState.CANCELLED, node_list="")
    assert judge(seen(queue=queue, time=NOW + 60), COMMAND).outcome is Outcome.CANCELLED


@pytest.mark.parametrize(
    "changes",
    [{"state_text": "CANCELLED by 1000"}, {"node_list": ""}, {"elapsed": 60}],
    ids=["person", "waiting", "running"],
)
def test_job_that_a_person_cancelled_before_it_began(changes):
    row = replace(accounted(JobState.CANCELLED, state_text="CANCELLED by 0", elapsed=1), **changes)
    assert judge(seen(accounting=row, time=NOW + 60), COMMAND).outcome is Outcome.CANCELLED


def test_command_that_was_done_when_its_node_was_lost():
    row, outputs = accounted(JobState.NODE_FAIL), {"existing": {"/r/results.json": True}}
    verdict = judge(seen(accounting=row, exit=exit_record(0), **outputs), COMMAND)
    assert (verdict.outcome, verdict.reason) == (Outcome.FINISHED, "the job ended as COMPLETED [exit.json]")
    for record in (exit_record(1), exit_record(0, signal="TERM"), None):
        assert judge(seen(accounting=row, exit=record, **outputs), COMMAND).outcome is Outcome.RETRYABLE
    assert judge(seen(accounting=row, exit=exit_record(0)), COMMAND).outcome is Outcome.RETRYABLE


def test_a_damaged_exit_record_is_ignored():
    without_accounting = seen(accounting_ok=False, accounting_enabled=False, exit=exit_record("x"))
    assert judge(without_accounting, TRAIN).outcome is Outcome.UNKNOWN


def test_command():
    done = {"existing": {"/r/results.json": True}}
    assert judge(seen(accounting=accounted(JobState.COMPLETED), **done), COMMAND).outcome is Outcome.FINISHED
    missing = judge(seen(accounting=accounted(JobState.COMPLETED)), COMMAND)
    assert missing.outcome is Outcome.FAILED
    assert "/r/results.json is missing" in missing.reason
    assert judge(seen(accounting=accounted(JobState.FAILED, 1), **done), COMMAND).outcome is Outcome.FAILED
    assert judge(seen(accounting=accounted(JobState.TIMEOUT)), COMMAND).outcome is Outcome.FAILED
    assert judge(seen(accounting=accounted(JobState.NODE_FAIL)), COMMAND).outcome is Outcome.RETRYABLE
    assert judge(seen(queue=queued(JobState.COMPLETED), **done), COMMAND).outcome is Outcome.FINISHED
    assert judge(seen(accounting=accounted(JobState.COMPLETED), **done), COMMAND).iteration is None


@pytest.mark.parametrize(
    "line",
    [
        "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total …",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB",
        "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.batch",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.batch",
    ],
)
def test_out_of_memory_from_the_log(line):
    tail = f"iteration 5\n{line}\nTraceback …\n".encode() + b"\xff\n"
    verdict = judge(seen(accounting=accounted(JobState.FAILED, 1), **HALF), TRAIN, log_tail=tail)
    assert verdict.outcome is Outcome.OUT_OF_MEMORY
    assert verdict.line == line
    assert line in verdict.reason


def test_failed_nodes():
    alone = judge(seen(accounting=accounted(JobState.NODE_FAIL)), TRAIN)
    assert alone.failed_nodes == ("n1",)
    several = accounted(JobState.NODE_FAIL, node_list="n[1-4]")
    assert judge(seen(accounting=several), TRAIN).failed_nodes == ()
    tail = (
        b"slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-08-30T22:59:07 DUE TO NODE FAILURE ***\n"
        b"srun: error: Node failure on n3\n"
    )
    assert judge(seen(accounting=several), TRAIN, log_tail=tail).failed_nodes == ("n3",)
    assert judge(seen(accounting=accounted(JobState.FAILED, 1)), TRAIN).failed_nodes == ()


def test_duplicate_names_the_owner():
    observation = seen(accounting=accounted(JobState.FAILED, DUPLICATE_EXIT_CODE), owner_job_id="8")
    assert judge(observation, TRAIN).job_id == "8"


def test_verdicts_survive_json():
    verdict = judge(seen(accounting=accounted(JobState.NODE_FAIL), **HALF), TRAIN)
    assert Verdict.from_json(json.loads(json.dumps(verdict.to_json()))) == verdict


def test_expectation_must_be_decidable():
    with pytest.raises(ValueError, match="train_iters"):
        Expectation("train")


def remembered(state: JobState, code: int = 0, **changes) -> ControllerRow:
    return replace(ControllerRow("7", "x", state, "", code, 0), **changes)


def test_the_exit_code_comes_from_the_controller_if_sacct_does_not_answer():
    failed = seen(queue=queued(JobState.FAILED, ended=NOW - 5), accounting_ok=False)
    assert judge(failed, TRAIN).outcome is Outcome.UNKNOWN
    for code, outcome in (
        (16, Outcome.RETRYABLE),
        (DUPLICATE_EXIT_CODE, Outcome.DUPLICATE),
        (143, Outcome.ROLLED_OVER),
        (UNWRITABLE_EXIT_CODE, Outcome.RETRYABLE),
    ):
        controller_record = replace(
            failed, controller=remembered(JobState.FAILED, code), **HALF, time=NOW + 60
        )
        verdict = judge(controller_record, TRAIN)
        assert (verdict.outcome, verdict.exit_code) == (outcome, code)
        assert "[scontrol]" in verdict.reason


def test_job_requeued_between_the_two_queries_gets_no_verdict():
    observation = seen(
        queue=queued(JobState.FAILED), accounting_ok=False, controller=remembered(JobState.PENDING)
    )
    verdict = judge(observation, TRAIN)
    assert verdict.outcome is Outcome.UNKNOWN
    assert "PENDING again" in verdict.reason


def test_exit_record_of_the_run_before_a_requeue_does_not_count():
    stale = exit_record(0, restart_count=0)
    ended = seen(
        queue=queued(JobState.FAILED),
        accounting_ok=False,
        controller=remembered(JobState.FAILED, 9, restarts=1),
        exit=stale,
    )
    assert judge(ended, COMMAND).exit_code == 9
    requeued = seen(accounting=accounted(JobState.RUNNING, started=NOW - 90), exit=stale)
    verdict = judge(requeued, COMMAND)
    assert verdict.outcome is Outcome.UNKNOWN
    assert "earlier run" in verdict.reason
    # two minutes after its requeue, the job is launched in vain; slurmctld has not been asked for its exit code
    again = seen(
        queue=queued(JobState.FAILED, started=NOW - 1, ended=NOW), exit=exit_record(143, ended=NOW - 121)
    )
    verdict = judge(again, TRAIN)
    assert verdict.outcome is Outcome.UNKNOWN
    assert "exit code is not known" in verdict.reason
    # the clock of the node may be behind
    just_now = seen(
        queue=queued(JobState.FAILED, started=NOW - 1, ended=NOW), exit=exit_record(3, ended=NOW - 30)
    )
    assert judge(just_now, COMMAND).exit_code == 3


def test_node_that_slurm_reports_as_failed():
    observation = seen(
        queue=queued(JobState.NODE_FAIL, node_list="n[1-8]"),
        accounting_ok=False,
        controller=remembered(JobState.NODE_FAIL, failed_node="n5"),
    )
    assert judge(observation, TRAIN).failed_nodes == ("n5",)


def test_a_script_that_could_not_record_its_end_is_started_again_on_another_node():
    killed = accounted(JobState.FAILED, 0, 9, node_list="n3")
    traceback = b"Traceback (most recent call last):\nRuntimeError: x\n"
    for expectation in TRAIN, COMMAND:
        verdict = judge(seen(accounting=killed), expectation)
        assert verdict.outcome is Outcome.RETRYABLE
        assert "could not write exit.json: it was killed on its node [sacct]" in verdict.reason
        assert verdict.failed_nodes == ("n3",)
    assert judge(seen(accounting=replace(killed, node_list="n[1-4]")), TRAIN).failed_nodes == ()
    # the command was killed, and the script has seen it
    seen_by_script = seen(accounting=killed, exit=exit_record(137))
    assert judge(seen_by_script, TRAIN, log_tail=traceback).outcome is Outcome.FAILED
    assert judge(seen_by_script, TRAIN).failed_nodes == ()


@pytest.mark.parametrize("behind", [120, 3600])
def test_clock_behind_the_controllers(behind):
    """By the login node's clock the end lies in the future; the verdict does not wait for that time."""
    ended = NOW + behind
    clean = queued(JobState.COMPLETED, ended=ended)
    assert judge(seen(queue=clean), COMMAND).outcome is Outcome.FAILED
    left = seen(accounting=accounted(JobState.RUNNING), exit=exit_record(3, ended=ended))
    assert judge(left, COMMAND).outcome is Outcome.FAILED
    assert judge(seen(queue=queued(JobState.COMPLETED, ended=NOW + 5)), COMMAND).outcome is Outcome.UNKNOWN


def test_waiting_task_of_an_array_that_was_cancelled_leaves_no_trace():
    verdict = judge(seen(siblings_queued=True), TRAIN)
    assert verdict.outcome is Outcome.CANCELLED
    for other in (
        seen(siblings_queued=True, owner_job_id="7_3"),  # it has run, so accounting will record its end
        seen(siblings_queued=True, accounting_ok=False),
        replace(seen(siblings_queued=True), queue_ok=False),
    ):
        assert judge(other, TRAIN).outcome is Outcome.UNKNOWN


@pytest.mark.parametrize("siblings_queued", [False, True])
def test_a_job_whose_name_and_comment_were_changed(siblings_queued):
    verdict = judge(seen(siblings_queued=siblings_queued, other_name="mine"), TRAIN)
    assert verdict.outcome is Outcome.UNKNOWN
    assert verdict.reason == (
        "squeue lists its id under the name 'mine', without the comment of this attempt: "
        "it is another job, or a user has changed both; then restore the name with scontrol update JobName="
    )


@pytest.mark.parametrize(
    ("state", "code", "warns"),
    [
        (JobState.COMPLETED, 0, None),
        (
            JobState.FAILED,
            1,
            "the job ended as FAILED with exit code 1 after its last checkpoint: TypeError: no len",
        ),
        (JobState.TIMEOUT, 0, "the job ended as TIMEOUT after its last checkpoint"),
        (
            JobState.OUT_OF_MEMORY,
            1,
            "the job ended as OUT_OF_MEMORY with exit code 1 after its last checkpoint",
        ),
    ],
)
def test_a_bad_end_after_the_last_checkpoint_is_a_warning(
    state: JobState, code: int, warns: str | None
) -> None:
    observation = seen(accounting=accounted(state, code), time=NOW + 60, **DONE)
    verdict = judge(observation, TRAIN, log_tail=b"TypeError: no len\n")
    assert verdict.outcome is Outcome.FINISHED
    assert (verdict.warning is None) == (warns is None)
    assert (verdict.warning or "").startswith(warns or "")
    assert Verdict.from_json(verdict.to_json()) == verdict
