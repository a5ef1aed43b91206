from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from airflow_megatron.slurm.remote.attempt import Attempt
from airflow_megatron.slurm.remote.profile import SlurmCommands
from airflow_megatron.slurm.remote.quoting import QuotingError
from airflow_megatron.slurm.remote.transport import CommandResult, TransportError
from airflow_megatron.slurm.submission.single_job import parse_submission, submission_script
from airflow_megatron.slurm.verdicts.recorded import RecordedVerdict
from airflow_megatron.slurm.verdicts.stage_records import (
    parse_stage_states,
    stage_state_script,
    write_verdict_script,
)
from airflow_megatron.slurm.verdicts.verdict import Outcome, Verdict

POLICY = (
    "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy "
    "(job submit limit, user's size and/or time limits)"
)


def attempt_dir(request) -> Path:
    return Path(request.attempt.directory)


def age_claims(request, seconds: int) -> None:
    """Move the times in the claims into the past."""
    then = int(time.time()) - seconds
    for claim in attempt_dir(request).glob("claim.*"):
        if (claim / "sbatch.started").exists():
            (claim / "sbatch.started").write_text(f"{then}\n")
        owner = claim / "owner"
        if owner.exists():
            owner.write_text(" ".join([*owner.read_text().split()[:3], str(then)]) + "\n")
        os.utime(claim, (then, then))


@pytest.mark.slow
def test_submits_once_and_records(slurm, request_for):
    request = request_for(log_dir=str(Path(request_for().attempt.stage_dir) / "logs dir"))
    first = slurm.submit(request)
    assert (first.status, first.job_id) == ("submitted", "1001")
    second = slurm.submit(request_for())
    assert (second.status, second.job_id) == ("recorded", "1001")
    assert slurm.jobs == ["1001"]
    directory = attempt_dir(request)
    assert (directory / "jobid").read_text() == "1001\n"
    assert (directory / "job.sbatch").read_text() == request.script
    assert json.loads((directory / "job.json").read_text()) == request.job_json
    assert Path(request.log_dir).is_dir()
    assert slurm.accepted("1001", "script") == request.script
    arguments = slurm.accepted("1001", "argv").splitlines()
    assert "--job-name=sweep.point.train.a1" in arguments
    assert "--dependency=singleton" in arguments
    assert any(
        a.startswith("--comment=airflow-megatron:") and a.endswith(":sweep.point.train.a1") for a in arguments
    )
    assert not list(directory.glob("*.caller-*"))


@pytest.mark.slow
def test_attempts_do_not_share_a_job(slurm, request_for):
    assert slurm.submit(request_for(1)).job_id == "1001"
    assert slurm.submit(request_for(2)).job_id == "1002"


def test_hostile_text_arrives_unharmed(slurm, request_for, tmp_path):
    script = "#!/bin/bash\necho $(touch /nonexistent/x) `id` 'q' \"d\" \\ é ☃\nAM_x\nam_main\n"
    request = request_for(
        attempt=Attempt("a.b-c_1=2", str(tmp_path / 'it\'s; $(echo a) "dir" é' / "train"), 1),
        script=script,
        sbatch_options=("--account=a b;'c'", "--constraint=x&y", "--exclude=n[1-2]"),
        job_json={"params": {"note": "'; rm -rf /; \n é"}},
    )
    assert slurm.submit(request).status == "submitted"
    assert slurm.accepted("1001", "script") == script
    arguments = slurm.accepted("1001", "argv").splitlines()
    assert set(request.sbatch_options) <= set(arguments)
    assert json.loads((attempt_dir(request) / "job.json").read_text()) == request.job_json


def test_site_environment_does_not_reach_sbatch(slurm, request_for, monkeypatch):
    monkeypatch.setenv("SBATCH_ACCOUNT", "wrong")
    monkeypatch.setenv("SBATCH_TIMELIMIT", "1")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    monkeypatch.setenv("SQUEUE_FORMAT", "%i")
    monkeypatch.setenv("SLURM_CONF", "/etc/site/slurm.conf")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    assert slurm.submit(request_for()).status == "submitted"
    environment = dict(
        line.split("=", 1) for line in slurm.accepted("1001", "env").splitlines() if "=" in line
    )
    assert not {"SBATCH_ACCOUNT", "SBATCH_TIMELIMIT", "SLURM_TIME_FORMAT", "SQUEUE_FORMAT"} & set(environment)
    assert environment["SLURM_CONF"] == "/etc/site/slurm.conf"
    assert environment["LC_ALL"] == "C.UTF-8"


@pytest.mark.parametrize(
    ("printed", "job_id", "cluster"),
    [
        ("echo $id", "1001", None),
        ('echo "$id;mpp2"', "1001", "mpp2"),
        ('echo "Submitted batch job $id"', "1001", None),
        ('echo "Submitted batch job $id on cluster mpp2"', "1001", "mpp2"),
        ('echo "plugin: 3 rules checked"; echo "welcome 2026"; echo $id', "1001", None),
        ('printf "\\n  %s  \\n\\n" $id', "1001", None),
        ('echo $id; echo "charged to project 77"', "1001", None),
    ],
)
def test_every_shape_of_an_id(slurm, request_for, printed, job_id, cluster):
    slurm.behave("sbatch", f'accept "$@"; {printed}')
    outcome = slurm.submit(request_for())
    assert (outcome.status, outcome.job_id, outcome.cluster) == ("submitted", job_id, cluster)
    again = slurm.submit(request_for())
    assert (again.status, again.job_id, again.cluster) == ("recorded", job_id, cluster)


def test_a_warning_is_not_a_failure(slurm, request_for):
    slurm.behave("sbatch", 'accept "$@"; echo "sbatch: warning: be nice" >&2; echo $id')
    outcome = slurm.submit(request_for())
    assert outcome.status == "submitted"
    assert outcome.warnings == ("sbatch: warning: be nice",)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{POLICY}",
        "sbatch: error: AssocMaxSubmitJobLimit",
        "sbatch: error: AssocGrpSubmitJobsLimit",
        "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying",
        "sbatch: error: Batch job submission failed: Resource temporarily unavailable",
        "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
        POLICY,
        # a full queue (20.11, 26.05), nodes that are powered up, a partition that is drained for maintenance
        "sbatch: error: Slurm job queue full, sleeping and retrying",
        "sbatch: error: Batch job submission failed: Unable to create job record, try again",
        "sbatch: error: Batch job submission failed: MaxJobCount limit reached",
        "sbatch: error: Batch job submission failed: Requested nodes are busy",
        "sbatch: error: Batch job submission failed: Required partition not available (inactive or drain)",
        "sbatch: error: Batch job submission failed: System submissions disabled",
        # the controller's disk is full; too many requests; the controller is away and also serves the configuration
        "sbatch: error: Batch job submission failed: I/O error writing script/environment to file",
        "sbatch: error: Batch job submission failed: Rate limit exceeded, please retry later",
        "sbatch: fatal: Could not establish a configuration source",
    ],
)
def test_limits_defer_and_release_the_claim(slurm, request_for, text):
    slurm.behave("sbatch", f"cat >&2 <<'E'\n{text}\nE\nexit 1")
    request = request_for()
    for _ in range(4):
        outcome = slurm.submit(request_for())
        assert outcome.status == "deferred"
        assert text.splitlines()[0] in outcome.message
        limit = "Limit" in text or "job submit limit" in text
        assert (outcome.waits_for, outcome.queued) == (("limit", 0) if limit else ("recovery", None))
    assert len(list(attempt_dir(request).glob("claim.*"))) <= 2
    slurm.behave_normally("sbatch")
    assert slurm.submit(request_for()).status == "submitted"


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified",
        "sbatch: error: invalid partition specified: gpuu",
        "sbatch: unrecognized option '--bogus'",
        f"sbatch: error: QOSMaxWallDurationPerJobLimit\n{POLICY}",
        # limits on the size of one job, which waiting does not solve, although the second line mentions submit limits
        f"sbatch: error: QOSMaxGRESPerUser\n{POLICY}",
        f"sbatch: error: QOSMinGRES\n{POLICY}",
        f"sbatch: error: QOSMinCpuNotSatisfied\n{POLICY}",
        f"sbatch: error: AssocMaxNodeMinutesPerJob\n{POLICY}",
        "sbatch: error: Batch script is empty!",
    ],
)
def test_refusals_come_with_sbatchs_text_and_the_next_try_works(slurm, request_for, text):
    slurm.behave("sbatch", f"cat >&2 <<'E'\n{text}\nE\nexit 1")
    outcome = slurm.submit(request_for())
    assert outcome.status == "refused"
    assert text.splitlines()[0] in outcome.message
    assert (attempt_dir(request_for()) / "job.sbatch").exists()  # to look at
    assert not (attempt_dir(request_for()) / "jobid").exists()
    slurm.behave_normally("sbatch")
    assert slurm.submit(request_for()).status == "submitted"


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",  # as sbatch 22.05 prints them
    [
        "sbatch: unrecognized option '--bogus'\nTry \"sbatch --help\" for more information",
        "/opt/slurm/bin/sbatch: option '--time' requires an argument\nTry \"sbatch --help\" for more information",
        "sbatch: error: Invalid directive found in batch script: b",
        "sbatch: error: Invalid --time specification",
        'sbatch: error: "x" is not a valid node count',
    ],
)
def test_an_option_that_sbatch_does_not_know_is_refused_at_once(slurm, request_for, text):
    slurm.behave("sbatch", f"cat >&2 <<'E'\n{text}\nE\nexit 255")
    outcome = slurm.submit(request_for())
    assert outcome.status == "refused"
    assert text.splitlines()[0] in outcome.message


def test_sbatch_not_installed(slurm, request_for):
    script = submission_script(request_for(), SlurmCommands(slurm_bin="/opt/no such/bin"))
    outcome = parse_submission(slurm.run(script))
    assert outcome.status == "refused"
    assert "/opt/no such/bin/sbatch: not found" in outcome.message


AMBIGUOUS = [
    'echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2; exit 1',
    'echo "sbatch: error: Batch job submission failed: Unable to contact slurm controller" >&2; exit 1',
    'echo "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received" >&2; exit 1',
    'echo "sbatch: error: Batch job submission failed: Protocol authentication error" >&2; exit 1',
    'echo "sbatch: error: Batch job submission failed: Invalid authentication credential" >&2; exit 1',
    'echo "sbatch: error: Batch job submission failed: Header lengths are longer than data received" >&2; exit 1',
    'echo "sbatch: error: Batch job submission failed: Process is shutting down" >&2; exit 1',
    'echo "sbatch: error: Batch job submission failed: Incompatible versions of client and server code" >&2; exit 1',
    # sbatch behind ssh: the connection was cut after the controller had answered
    'echo "Connection to login2 closed by remote host." >&2; exit 255',
    '{ echo "sbatch: error: odd"; echo "client_loop: send disconnect: Broken pipe"; } >&2; exit 255',
    '{ echo "sbatch: error: odd"; echo "Connection to login2 closed."; } >&2; exit 255',
    'echo "sbatch: lua: your job will be charged" >&2; exit 255',
    "kill -9 $$",
    "exit 1",  # its output did not fit on a full disk
    "exit 0",
    'echo "no id here"; exit 0',
    'echo $id; echo "sbatch: error: odd" >&2; exit 1',
]


@pytest.mark.slow
@pytest.mark.parametrize("ending", AMBIGUOUS)
def test_accepted_despite_an_error_message(slurm, request_for, ending):
    slurm.behave("sbatch", f'accept "$@"; {ending}')
    outcome = slurm.submit(request_for())
    assert (outcome.status, outcome.job_id) == ("adopted", "1001")
    assert slurm.submit(request_for()).status == "recorded"
    assert len(slurm.calls("sbatch")) == 1


@pytest.mark.slow
@pytest.mark.parametrize("ending", AMBIGUOUS[:5])
def test_unknown_outcome_is_looked_up_until_the_window_ends(slurm, request_for, ending):
    slurm.behave("sbatch", ending)
    assert slurm.submit(request_for()).status == "pending"
    assert slurm.submit(request_for()).status == "pending"
    assert len(slurm.calls("sbatch")) == 1
    slurm.behave_normally("sbatch")
    age_claims(request_for(), 240)
    assert slurm.submit(request_for()).status == "pending"
    age_claims(request_for(), 301)
    outcome = slurm.submit(request_for())
    assert (outcome.status, outcome.job_id) == ("submitted", "1001")
    assert len(slurm.calls("sbatch")) == 2


@pytest.mark.slow
def test_job_that_becomes_visible_late_is_adopted(slurm, request_for):
    slurm.behave("sbatch", 'accept "$@"; mv "$FAKE_SLURM/jobs/$id" "$FAKE_SLURM/late"; exit 141')
    assert slurm.submit(request_for()).status == "pending"
    (slurm.root / "late").rename(slurm.root / "jobs" / "1001")
    outcome = slurm.submit(request_for())
    assert (outcome.status, outcome.job_id) == ("adopted", "1001")


@pytest.mark.slow
def test_job_that_ended_meanwhile_is_found_in_accounting(slurm, request_for):
    slurm.behave("sbatch", 'accept "$@"; mv "$FAKE_SLURM/jobs/$id" "$FAKE_SLURM/ended"; exit 141')
    slurm.behave("sacct", 'cat "$FAKE_SLURM/ended"')
    outcome = slurm.submit(request_for())
    assert (outcome.status, outcome.job_id) == ("adopted", "1001")
    call = slurm.calls("sacct")[0]
    assert "-S 2" in call
    assert "--name sweep.point.train.a1" in call


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["squeue", "sacct"])
def test_no_takeover_while_slurm_does_not_answer(slurm, request_for, broken):
    slurm.behave("sbatch", "kill -9 $$")
    slurm.behave(broken, 'echo "slurm_load_jobs error: Socket timed out" >&2; exit 1')
    assert slurm.submit(request_for()).status == "pending"
    age_claims(request_for(), 10_000)
    outcome = slurm.submit(request_for())
    assert outcome.status == "pending"
    assert "Socket timed out" in outcome.message
    assert len(slurm.calls("sbatch")) == 1


@pytest.mark.slow
def test_without_accounting_the_queue_decides(slurm, request_for):
    slurm.behave("sbatch", "kill -9 $$")
    slurm.behave("sacct", 'echo "Slurm accounting storage is disabled" >&2; exit 1')
    assert slurm.submit(request_for()).status == "pending"
    age_claims(request_for(), 301)
    slurm.behave_normally("sbatch")
    assert slurm.submit(request_for()).status == "submitted"


@pytest.mark.slow
def test_a_job_that_started_is_known_from_its_own_mark(slurm, request_for):
    slurm.behave("sbatch", 'accept "$@"; rm "$FAKE_SLURM/jobs/$id"; kill -9 $$')
    slurm.behave("sacct", 'echo "Slurm accounting storage is disabled" >&2; exit 1')
    assert slurm.submit(request_for()).status == "pending"
    run = attempt_dir(request_for()) / "run"
    run.mkdir()
    (run / "job_id").write_text("1001\n")
    age_claims(request_for(), 10_000)
    outcome = slurm.submit(request_for())
    assert (outcome.status, outcome.job_id) == ("adopted", "1001")


@pytest.mark.slow
def test_oldest_of_several_is_kept_and_the_rest_cancelled(slurm, request_for):
    slurm.behave("sbatch", 'accept "$@"; sleep 1.1; accept "$@"; kill -9 $$')
    outcome = slurm.submit(request_for())
    assert (outcome.status, outcome.job_id) == ("adopted", "1001")
    assert slurm.calls("scancel") == ["--state=PENDING 1002"]


@pytest.mark.slow
def test_job_of_a_former_sweep_of_the_same_name_is_not_adopted(slurm, request_for):
    now = int(time.time())
    (slurm.root / "jobs" / "7").write_text(
        f"7|RUNNING|{now}|airflow-megatron:older:sweep.point.train.a1|sweep.point.train.a1\n"
    )
    (slurm.root / "jobs" / "8").write_text(f"8|RUNNING|{now - 9999}|(null)|sweep.point.train.a1\n")
    (slurm.root / "jobs" / "9").write_text(
        f"9|RUNNING|{now}|a|airflow-megatron:older:sweep.point.train.a1|sweep.point.train.a1\n"
    )
    # Accounting does not have the comment of a running job.
    slurm.behave("sacct", f"echo '7|RUNNING|{now}||sweep.point.train.a1'")
    slurm.behave("sbatch", "kill -9 $$")
    assert slurm.submit(request_for()).status == "pending"


@pytest.mark.slow
@pytest.mark.parametrize("comment", ["billed: a|b", "x|$comment", "$comment|", "$comment, billed", "||"])
def test_job_is_found_whatever_a_plug_in_of_the_site_writes_into_its_comment(slurm, request_for, comment):
    slurm.behave("sbatch", f'comment="{comment}"; accept "$@"; kill -9 $$')
    outcome = slurm.submit(request_for())
    assert (outcome.status, outcome.job_id) == ("adopted", "1001")


def test_accounting_is_asked_from_early_enough_when_an_hour_occurs_twice(slurm, request_for, monkeypatch):
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    created = int(datetime(2026, 10, 25, 0, 50, tzinfo=UTC).timestamp())  # 2:50, for the first time
    directory = attempt_dir(request_for())
    directory.mkdir(parents=True)
    (directory / "created").write_text(f"{created} caller-0\n")
    slurm.behave("sbatch", "kill -9 $$")
    slurm.submit(request_for())
    words = slurm.calls("sacct")[0].split()
    asked = datetime.fromisoformat(words[words.index("-S") + 1])
    winter = asked.replace(tzinfo=timezone(timedelta(hours=1)))  # Slurm may take it for the second time
    assert winter.timestamp() < created


def test_withdrawn_job_of_the_same_attempt_is_not_adopted(slurm, request_for):
    withdrawn = Path(f"{attempt_dir(request_for())}.withdrawn.17.1")
    withdrawn.mkdir(parents=True)
    (withdrawn / "jobid").write_text("7\n")
    # the queue has forgotten it, and accounting has no comments
    slurm.behave("sacct", f"echo '7|CANCELLED|{int(time.time())}||sweep.point.train.a1'")
    slurm.behave("sbatch", "kill -9 $$")
    assert slurm.submit(request_for()).status == "pending"


def test_takeover_before_sbatch_is_at_once(slurm, request_for):
    request = request_for()
    claim = attempt_dir(request) / "claim.1"
    claim.mkdir(parents=True)
    (claim / "owner").write_text(f"{os.uname().nodename} 999999999 12345 {int(time.time())}\n")
    outcome = slurm.submit(request)
    assert (outcome.status, outcome.job_id) == ("submitted", "1001")


def test_reused_process_number_is_not_the_owner(slurm, request_for):
    request = request_for()
    claim = attempt_dir(request) / "claim.1"
    claim.mkdir(parents=True)
    (claim / "owner").write_text(f"{os.uname().nodename} {os.getpid()} 1 {int(time.time())}\n")
    assert slurm.submit(request).status == "submitted"


@pytest.mark.slow
def test_owner_on_another_login_node_gets_time(slurm, request_for):
    request = request_for()
    claim = attempt_dir(request) / "claim.1"
    claim.mkdir(parents=True)
    (claim / "owner").write_text(f"elsewhere 5 1 {int(time.time())}\n")
    outcome = slurm.submit(request)
    assert outcome.status == "pending"
    assert "elsewhere" in outcome.message
    age_claims(request, 31)
    assert slurm.submit(request_for()).status == "submitted"


@pytest.mark.slow
def test_unsigned_claim_is_taken_over_after_a_moment(slurm, request_for):
    request = request_for()
    (attempt_dir(request) / "claim.1").mkdir(parents=True)
    assert slurm.submit(request).status == "pending"
    age_claims(request, 5)
    assert slurm.submit(request_for()).status == "submitted"


@pytest.mark.slow
def test_the_answer_of_a_lost_call_is_given_to_the_same_caller_once_more(slurm, request_for):
    """sbatch itself waits up to two minutes when the controller has too many jobs, longer than the connection."""
    text = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying"
    slurm.behave("sbatch", f'until [ -e "$FAKE_SLURM/go" ]; do sleep 0.05; done; echo "{text}" >&2; exit 1')
    request = request_for()
    lost = slurm.start(submission_script(request))
    while not slurm.calls("sbatch"):
        time.sleep(0.02)
    lost.stdout.close()
    assert slurm.submit(request).status == "pending"
    (slurm.root / "go").touch()
    lost.wait(timeout=60)
    again = slurm.submit(request)
    assert (again.status, again.waits_for) == ("deferred", "recovery")
    assert text in again.message
    assert len(slurm.calls("sbatch")) == 1
    slurm.behave_normally("sbatch")
    assert slurm.submit(request_for()).status == "submitted"


@pytest.mark.slow
def test_a_caller_in_progress_is_waited_for(slurm, request_for):
    slurm.behave("sbatch", 'accept "$@"; until [ -e "$FAKE_SLURM/go" ]; do sleep 0.05; done; echo $id')
    first = slurm.start(submission_script(request_for()))
    while not slurm.calls("sbatch"):
        time.sleep(0.02)
    assert slurm.submit(request_for(busy_wait_s=0)).status == "pending"
    threading.Timer(0.5, (slurm.root / "go").touch).start()
    patient = slurm.submit(request_for(busy_wait_s=60))
    assert (patient.status, patient.job_id) == ("recorded", "1001")
    first.communicate(timeout=60)


@pytest.mark.slow
def test_twenty_callers_at_once(slurm, request_for):
    slurm.behave("sbatch", 'accept "$@"; sleep 0.2; echo $id')
    requests = [request_for(busy_wait_s=90) for _ in range(20)]
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        outcomes = list(pool.map(slurm.submit, requests))
    assert {outcome.job_id for outcome in outcomes} == {"1001"}
    assert sorted(outcome.status for outcome in outcomes).count("submitted") == 1
    assert len(slurm.calls("sbatch")) == 1


@pytest.mark.slow
def test_twenty_callers_after_a_deferral(slurm, request_for):
    slurm.behave("sbatch", "echo AssocMaxSubmitJobLimit >&2; exit 1")
    for _ in range(3):
        assert slurm.submit(request_for()).status == "deferred"
    slurm.behave_normally("sbatch")
    requests = [request_for(busy_wait_s=90) for _ in range(20)]
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        outcomes = list(pool.map(slurm.submit, requests))
    assert {outcome.job_id for outcome in outcomes} == {"1001"}
    assert slurm.jobs == ["1001"]


def wait_for_session(leader: int) -> None:
    """Wait until no process of a session lives: an sbatch that outlived its shell may still submit."""

    def alive() -> bool:
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
                if int(session) == leader and state != "Z":
                    return True
        return False

    deadline = time.monotonic() + 60
    # twice: a process that ends while /proc is read may have begun another one
    while alive() or alive():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_killed_at_any_instant_never_doubles(slurm, request_for, seed):
    """SIGKILL of the whole remote process group at a random instant, again and again, then one undisturbed call."""
    chance = random.Random(seed)
    slurm.behave("sbatch", 'sleep 0.05; accept "$@"; sleep 0.05; echo $id')
    sessions: list[int] = []
    for _ in range(3):
        process = slurm.start(submission_script(request_for()))
        time.sleep(chance.uniform(0.0, 0.25))
        if chance.random() < 0.5:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()  # only the shell: a running sbatch continues
        process.wait()
        process.communicate()
        sessions.append(process.pid)
    for session in sessions:
        wait_for_session(session)
    outcome = slurm.submit(request_for())
    if outcome.status == "pending":
        assert len(slurm.jobs) == 0
        age_claims(request_for(), 301)
        outcome = slurm.submit(request_for())
    assert outcome.status in {"submitted", "recorded", "adopted"}
    assert slurm.jobs == [outcome.job_id]


@pytest.mark.slow
def test_cut_connection_does_not_stop_the_submission(slurm, request_for):
    slurm.behave("sbatch", 'sleep 0.3; accept "$@"; sleep 0.3; echo $id')
    process = slurm.start(submission_script(request_for()))
    while not slurm.calls("sbatch"):
        time.sleep(0.02)
    assert process.stdout is not None
    process.stdout.close()
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGPIPE):
        os.killpg(process.pid, number)
    process.wait(60)
    assert (attempt_dir(request_for()) / "jobid").read_text() == "1001\n"


@pytest.mark.slow
def test_script_cut_off_in_transmission_does_nothing(slurm, request_for):
    script = submission_script(request_for())
    for length in range(0, len(script) - 1, 97):
        result = slurm.run(script[:length])
        with pytest.raises(TransportError):
            parse_submission(result)
    assert slurm.jobs == []
    assert not attempt_dir(request_for()).exists()


@pytest.mark.slow
def test_file_that_cannot_be_written_whole_is_refused_and_leaves_nothing(slurm, request_for):
    request = request_for(script="#!/bin/sh\n" + "# pad\n" * 5000)
    outcome = parse_submission(slurm.run(f"ulimit -f 16\n{submission_script(request)}"))
    assert outcome.status == "refused"
    assert "cannot write" in outcome.message
    assert slurm.jobs == []
    assert not (attempt_dir(request) / "job.sbatch").exists()
    assert slurm.submit(replace(request, claim_token="later")).status == "submitted"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["mkdir", "mv"])
def test_a_killed_command_is_not_reported_as_a_full_disk(slurm, request_for, command):
    victim = slurm.root / "bin" / command
    victim.write_text("#!/bin/sh\nkill -9 $$\n")
    victim.chmod(0o755)
    request = request_for()
    outcome = slurm.submit(request)
    assert (outcome.status, outcome.waits_for, slurm.jobs) == ("deferred", "recovery", [])
    assert "Killed" in outcome.message
    victim.unlink()
    assert slurm.submit(replace(request, claim_token="later")).status == "submitted"


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_full_disk_defers_and_leaves_no_files(slurm, request_for, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small], check=False).returncode:
        pytest.skip("this machine allows no mounts")
    try:
        (small / "filler").write_bytes(b"x" * 60 * 1024)
        request = request_for(
            attempt=Attempt("s.p.train.a1", str(small / "train"), 1), script="#!/bin/sh\n" + "# pad\n" * 5000
        )
        outcome = slurm.submit(request)
        assert (outcome.status, outcome.waits_for) == ("deferred", "recovery")
        assert "No space left on device" in outcome.message
        assert slurm.jobs == []
        (small / "filler").unlink()
        assert slurm.submit(replace(request, claim_token="later")).status == "submitted"
    finally:
        subprocess.run(["umount", small], check=True)


def test_directory_that_cannot_be_made(slurm, request_for, tmp_path):
    (tmp_path / "file").write_text("")
    outcome = slurm.submit(request_for(attempt=Attempt("x", str(tmp_path / "file" / "train"), 1)))
    assert outcome.status == "refused"
    assert "Not a directory" in outcome.message


@pytest.mark.parametrize(
    "option",
    [
        "--job-name=x",
        "--job-name",
        "-Jx",
        "-J",
        "--dependency=afterok:1",
        "-d1",
        "--wrap=ls",
        "--parsable",
        "-H",
    ],
)
def test_reserved_options_are_refused(request_for, option):
    with pytest.raises(ValueError, match="belongs to the submission protocol"):
        request_for(sbatch_options=(option,))


def test_dependencies_join_singleton(slurm, request_for):
    slurm.submit(request_for(dependencies=("afterok:12", "afterany:13:14")))
    assert "--dependency=singleton,afterok:12,afterany:13:14" in slurm.accepted("1001", "argv").splitlines()
    with pytest.raises(ValueError, match="afterok"):
        request_for(dependencies=("afterok:1,after:2",))


@pytest.mark.parametrize("name", ["", "a b", "a,b", "a|b", "a\nb", "-a", "a" * 201, "é"])
def test_unusable_job_names(name):
    with pytest.raises(QuotingError):
        Attempt(name, "/x", 1)


def test_other_text_around_the_answer():
    inside = "status submitted\nmessage ok\njob_id 7;c\n"
    text = (
        "Welcome!\nstatus refused"
        f"\n=== airflow-megatron answer begins ===\n{inside}\n=== airflow-megatron answer ends ===\nbye\n"
    )
    outcome = parse_submission(CommandResult(0, text, ""))
    assert (outcome.status, outcome.job_id, outcome.cluster) == ("submitted", "7", "c")
    for cut in range(len(text) - len("ends ===\nbye\n")):
        with pytest.raises(TransportError):
            parse_submission(CommandResult(0, text[:cut], ""))


DAMAGE = pytest.mark.parametrize("content", [b"", b"\0" * 64, b"garbage \xff {\n", b"\n"])


@pytest.mark.slow
@DAMAGE
def test_damaged_record_of_the_id(slurm, request_for, content):
    slurm.submit(request_for())
    record = attempt_dir(request_for()) / "jobid"
    record.write_bytes(content)
    outcome = slurm.submit(request_for())
    assert (outcome.status, outcome.job_id) == ("adopted", "1001")
    assert record.read_text() == "1001\n"
    assert len(slurm.calls("sbatch")) == 1


@pytest.mark.slow
@DAMAGE
def test_all_records_damaged(slurm, request_for, content):
    """After a file system lost its last writes, only the queue has the job."""
    slurm.submit(request_for())
    claim = attempt_dir(request_for()) / "claim.1"
    for file in (claim.parent / "jobid", claim.parent / "created", *claim.iterdir()):
        file.write_bytes(content)
    outcome = slurm.submit(request_for())
    assert (outcome.status, outcome.job_id) == ("adopted", "1001")
    assert len(slurm.calls("sbatch")) == 1


@pytest.mark.slow
@DAMAGE
def test_all_records_damaged_and_no_job(slurm, request_for, content):
    slurm.behave("sbatch", "kill -9 $$")
    assert slurm.submit(request_for()).status == "pending"
    claim = attempt_dir(request_for()) / "claim.1"
    for file in (claim.parent / "created", *claim.iterdir()):
        file.write_bytes(content)
        os.utime(file, (time.time() - 301,) * 2)
    os.utime(claim, (time.time() - 301,) * 2)
    slurm.behave_normally("sbatch")
    assert slurm.submit(request_for()).status == "submitted"
    assert slurm.accepted("1001", "argv").count("--comment=airflow-megatron:caller") == 1


@pytest.mark.slow
@pytest.mark.parametrize("hours", [1, -1])
def test_window_uses_elapsed_time(slurm, request_for, hours):
    """The login node's clock was set after sbatch was called."""
    slurm.behave("sbatch", "kill -9 $$")
    assert slurm.submit(request_for()).status == "pending"
    started = attempt_dir(request_for()) / "claim.1" / "sbatch.started"
    clock, uptime, boot = started.read_text().split()
    started.write_text(f"{int(clock) - hours * 3600} {uptime} {boot}\n")
    assert slurm.submit(request_for()).status == "pending"
    started.write_text(f"{int(clock) - hours * 3600} {int(uptime) - 301} {boot}\n")
    slurm.behave_normally("sbatch")
    assert slurm.submit(request_for()).status == "submitted"


@pytest.mark.slow
def test_window_after_a_reboot_uses_the_wall_clock(slurm, request_for):
    slurm.behave("sbatch", "kill -9 $$")
    assert slurm.submit(request_for()).status == "pending"
    started = attempt_dir(request_for()) / "claim.1" / "sbatch.started"
    clock = int(started.read_text().split()[0])
    slurm.behave_normally("sbatch")
    started.write_text(f"{clock - 240} 7 another-boot\n")
    assert slurm.submit(request_for()).status == "pending"
    started.write_text(f"{clock - 301} 7 another-boot\n")
    assert slurm.submit(request_for()).status == "submitted"


def changes_in(directory: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in directory.rglob("*")}


def run_without_privileges(slurm, script: str) -> CommandResult:
    """Run a script with the permissions of a file's mode, which root otherwise ignores."""
    limit = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    done = subprocess.run(
        [*limit, "sh"], input=script, env=slurm.environment, capture_output=True, text=True, check=False
    )
    return CommandResult(done.returncode, done.stdout, done.stderr)


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="needs setpriv")
@pytest.mark.parametrize("record", ["jobid", "created", "claim.1/owner"])
def test_the_attempt_of_another_account_is_left_alone(slurm, request_for, record):
    request = request_for()
    slurm.submit(request)
    directory = attempt_dir(request)
    (directory / record).chmod(0)  # as a record of another account
    if record != "jobid":  # the other account is submitting it now
        (directory / "jobid").unlink()
    before = changes_in(directory)
    outcome = parse_submission(run_without_privileges(slurm, submission_script(request_for())))
    assert outcome.status == "refused"
    assert "has submitted sweep.point.train.a1" in outcome.message
    assert slurm.jobs == ["1001"]
    assert changes_in(directory) == before
    stage_dir = request.attempt.stage_dir
    answer = run_without_privileges(slurm, stage_state_script([stage_dir]))
    assert parse_stage_states([stage_dir], answer)[stage_dir].other_account == directory.owner()
    judged = RecordedVerdict.of(Verdict(Outcome.FINISHED, ""), 1)
    slurm.run(write_verdict_script(stage_dir, judged))
    answer = run_without_privileges(slurm, stage_state_script([stage_dir]))
    assert parse_stage_states([stage_dir], answer)[stage_dir].other_account == "", "another one may follow"
