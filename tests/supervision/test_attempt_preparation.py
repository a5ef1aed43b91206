"""Preparation of checkpoints and resources between two attempts, in real shells on real directories."""

from __future__ import annotations

import json
import logging
import os
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from checked_chain import TRUNK
from msgspec.structs import replace

from airflow_megatron import __version__
from airflow_megatron.plan.job_scripts import job_digest
from airflow_megatron.plan.sweep_plan import plan_sweep
from airflow_megatron.slurm.remote.records import JobRecord, TaskOrigin
from airflow_megatron.slurm.remote.transport import CommandResult
from airflow_megatron.slurm.submission.job_script import attempt_of
from airflow_megatron.slurm.verdicts.verdict import Outcome, Verdict
from airflow_megatron.spec.model.cluster_profile import ClusterProfile
from airflow_megatron.spec.spec_files import load_sweep_text
from airflow_megatron.supervision.attempt_changes import AttemptChanges
from airflow_megatron.supervision.attempt_preparation import RunNotFitError, StillWriting, prepare_attempt
from airflow_megatron.supervision.attempts import JobAttempts

if TYPE_CHECKING:
    from airflow_megatron.spec.model.jobs import Job

COMPLETE = (".metadata", "metadata.json", "common.pt", "__0_0.distcp")
OVER = Verdict(Outcome.ROLLED_OVER, "over", iteration=100)


class Run:
    """A run directory and a login node whose queue is a file.

    :param restart: the spec's ``restart:``, as YAML in braces
    """

    def __init__(self, place: Path, restart: str, stage: str) -> None:
        self.place = place
        cluster = ClusterProfile(
            name="alps",
            ssh_conn_id="ssh",
            run_root=str(place / "runs"),
            python="python",
            megatron_lm_dir="/opt/Megatron-LM",
        )
        text = TRUNK.replace("sweep:\n", f"restart: {restart}\nsweep:\n")
        plan = plan_sweep(load_sweep_text(text, "s.yaml"), cluster)
        self.job: Job = plan.job(f"trunk.lr0.001.{stage}")
        self.checkpoints = Path(self.job.checkpoint_dir)
        self.tracker = self.checkpoints / "latest_checkpointed_iteration.txt"
        bin_dir = place / "bin"
        bin_dir.mkdir()
        for name in ("squeue", "sinfo"):
            (bin_dir / name).write_text(f"#!/bin/sh\ncat {place / name}\n")
            (bin_dir / name).chmod(0o755)
            (place / name).touch()
        self.environment = {**os.environ, "PATH": f"{bin_dir}:{os.environ['PATH']}"}
        self.attempts = JobAttempts(self.job, cluster, self.shell, logging.getLogger("test"))
        self.commands = 0

    def shell(self, script: str) -> CommandResult:
        self.commands += 1
        done = subprocess.run(
            ["/bin/sh", "-s"], input=script, env=self.environment, capture_output=True, text=True, check=False
        )
        return CommandResult(done.returncode, done.stdout, done.stderr)

    def attempt(
        self, number: int, verdict: Verdict | None = OVER, *, given_up: str | None = None, **record: Any
    ) -> None:
        """Write the records of an attempt."""
        folder = Path(self.job.stage_dir) / str(number)
        folder.mkdir(parents=True)
        (folder / "jobid").write_text(f"{number}\n")
        name = attempt_of(self.job, number).job_name
        record_data = JobRecord(
            self.job.name, number, name, job_digest(self.job), self.job.command, "x", {}
        ).to_json()
        (folder / "job.json").write_text(json.dumps({**record_data, **record}))
        if verdict is not None:
            (folder / "verdict.json").write_text(json.dumps({**verdict.to_json(), "given_up": given_up}))

    def checkpoint(self, iteration: int, files: tuple[str, ...] = COMPLETE, *, tracked: bool = True) -> Path:
        folder = self.checkpoints / f"iter_{iteration:07d}"
        folder.mkdir(parents=True)
        for name in files:
            (folder / name).write_text("x")
        if tracked:
            self.tracker.write_text(str(iteration))
        return folder

    def queued(self, number: int, state: str = "COMPLETING") -> None:
        name = attempt_of(self.job, number).job_name
        (self.place / "squeue").write_text(f"{number}|{state}|1|2|N/A|1|n1|None|{name}\n")

    def prepared(self, number: int, *, fresh_start: bool = False) -> AttemptChanges:
        changes = prepare_attempt(self.attempts, number, fresh_start=fresh_start)
        assert isinstance(changes, AttemptChanges)
        return changes

    def names(self) -> set[str]:
        return {path.name for path in self.checkpoints.iterdir()} - {self.tracker.name}


@pytest.fixture
def run(tmp_path: Path, request: pytest.FixtureRequest) -> Run:
    return Run(tmp_path, getattr(request, "param", "{}"), "pretrain")


@pytest.mark.slow
def test_first_attempt(run: Run) -> None:
    assert run.prepared(1) == AttemptChanges()
    assert run.commands == 1
    state = run.attempts.state()
    assert prepare_attempt(run.attempts, 1, state) == AttemptChanges()
    assert run.commands == 2  # a thousand submissions need no further commands
    run.checkpoint(100)  # left by another tool
    assert run.prepared(1).resumes_from == 100


@pytest.mark.slow
def test_which_attempts_make_up_a_run_of_the_job(run: Run) -> None:
    assert run.prepared(1).first == 1
    run.attempt(1, first=1)
    assert run.prepared(2).first == 1
    assert run.prepared(2, fresh_start=True).first == 2
    run.attempt(2, given_up="no more", first=1)
    assert run.prepared(3).first == 3
    run.attempt(3, Verdict(Outcome.CANCELLED, "its task was cleared"), first=3)
    assert run.prepared(4).first == 4
    run.attempt(4, first=4)
    assert run.prepared(5).first == 4
    run.attempt(5, None, first=4)
    assert run.prepared(5).first == 4  # a task that died begins again


@pytest.mark.slow
def test_where_an_attempt_begins_in_a_log_that_all_share(run: Run) -> None:
    log = Path(run.job.run_dir) / "all.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("of another tool\n")
    run.attempts.job = run.job = msgspec.structs.replace(run.job, log=str(log))
    assert run.prepared(1).log_from == 16
    run.attempt(1, log_from=16)
    log.write_text("of another tool\nof attempt 1\n")
    assert run.prepared(2).log_from == 29
    run.attempt(2, None, log_from=29)
    log.write_text("of another tool\nof attempt 1\nof attempt 2\n")
    assert run.prepared(2).log_from == 29


def test_an_attempt_continues_from_a_complete_checkpoint(run: Run) -> None:
    run.attempt(1)
    run.checkpoint(100)
    assert run.prepared(2) == AttemptChanges(resumes_from=100)
    assert run.names() == {"iter_0000100"}


@pytest.mark.parametrize(
    ("began_at", "started", "resumes_from"),
    [(None, False, 100), (None, True, 0), ("0", True, 0), ("80", True, 80)],
)
def test_a_queued_attempt_begins_with_what_it_found(
    run: Run, began_at: str | None, started: bool, resumes_from: int
) -> None:
    """Before its start, the checkpoint of the previous attempt counts; later it may have saved a newer one."""
    run.attempt(1)
    run.checkpoint(100)
    run.attempt(2, None)
    folder = Path(run.job.stage_dir) / "2"
    (folder / "chained").write_text("name\n")
    if started:
        (folder / "run").mkdir()
        (folder / "run" / "job_id").write_text("2\n")
    if began_at is not None:
        (folder / "began_at").write_text(f"{began_at}\n")
    assert run.prepared(2).resumes_from == resumes_from


@pytest.mark.slow
@pytest.mark.parametrize("run", ["{from_scratch: allow}"], indirect=True)
def test_an_attempt_that_may_start_from_scratch(run: Run) -> None:
    run.attempt(1)
    run.checkpoint(100)
    assert run.prepared(2).resumes_from == 0


def test_a_branch_begins_at_its_parents_checkpoint(tmp_path: Path) -> None:
    run = Run(tmp_path, "{}", "cooldown")
    assert run.prepared(1).resumes_from == 240


@pytest.mark.slow
@pytest.mark.parametrize("left", [None, "", "\0\0\0\n", "metadata"])
def test_a_tracker_that_names_a_missing_checkpoint(
    run: Run, left: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it the training would begin from scratch and overwrite its checkpoints."""
    run.attempt(1)
    run.checkpoint(100)
    run.checkpoint(200)
    run.checkpoint(300, ("__0_0.distcp",), tracked=False)
    run.tracker.unlink()
    if left is not None:
        run.tracker.write_text(left)
    assert run.prepared(2).resumes_from == 200
    assert run.tracker.read_text() == "200"
    assert run.names() == {"iter_0000100", "iter_0000200", "iter_0000300"}
    assert "continues from the newest complete checkpoint, of iteration 200" in caplog.text
    assert run.prepared(2).resumes_from == 200  # a task that died here begins again


@pytest.mark.slow
def test_legacy_checkpoints_whose_tracker_is_lost(run: Run) -> None:
    """They have no last file: those count that the tracker named when the attempt before ended."""
    run.attempt(1, OVER)
    for iteration in (50, 100, 150):
        folder = run.checkpoint(iteration, (), tracked=False) / "mp_rank_00"
        folder.mkdir()
        (folder / "model_optim_rng.pt").write_text("x")
    assert run.prepared(2).resumes_from == 100


@pytest.mark.slow
def test_a_lost_tracker_without_a_checkpoint(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    run.attempt(1, OVER)
    assert run.prepared(2) == AttemptChanges()
    assert "the checkpoints up to iteration 100 are gone" in caplog.text
    run.checkpoint(100, ("__0_0.distcp",), tracked=False)
    with pytest.raises(RunNotFitError, match="the tracker is lost, which named iteration 100"):
        run.prepared(2)
    assert not run.tracker.exists()


def test_no_tracker_before_the_first_save(run: Run) -> None:
    run.attempt(1, Verdict(Outcome.RETRYABLE, "killed while it saved", iteration=0))
    run.checkpoint(10, ("__0_0.distcp",), tracked=False)
    assert run.prepared(2) == AttemptChanges()
    assert not run.tracker.exists()


@pytest.mark.slow
def test_a_branch_before_its_first_save(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(tmp_path, "{}", "cooldown")
    run.attempt(1, Verdict(Outcome.RETRYABLE, "killed while it saved", iteration=0), resumes_from=240)
    assert run.prepared(2).resumes_from == 240
    run.checkpoint(260, ("__0_0.distcp",), tracked=False)
    assert run.prepared(2).resumes_from == 240
    assert not caplog.records
    run.checkpoint(250, tracked=False)
    assert run.prepared(2).resumes_from == 250


@pytest.mark.slow
def test_a_tracker_that_names_a_release_is_left_alone(run: Run) -> None:
    run.attempt(1, Verdict(Outcome.RETRYABLE, "lost", iteration=0))
    run.checkpoint(10, tracked=False)
    run.tracker.write_text("release")
    assert run.prepared(2) == AttemptChanges()
    assert run.tracker.read_text() == "release"


@pytest.mark.parametrize("run", ["{from_scratch: allow}"], indirect=True)
def test_a_lost_tracker_of_an_attempt_that_may_start_from_scratch(run: Run) -> None:
    run.attempt(1)
    run.checkpoint(100, tracked=False)
    assert run.prepared(2).resumes_from == 0
    assert not run.tracker.exists()


@pytest.mark.slow
def test_a_damaged_newest_checkpoint_is_moved_aside(run: Run) -> None:
    run.attempt(1)
    run.checkpoint(100)
    run.checkpoint(200, ("__0_0.distcp",))
    assert run.prepared(2).resumes_from == 100
    assert run.names() == {"iter_0000100", "failed_iter_0000200"}
    assert run.tracker.read_text() == "100"
    assert run.prepared(2).resumes_from == 100  # a task that died here begins again


def test_a_half_deleted_checkpoint_is_not_used(run: Run) -> None:
    run.attempt(1)
    run.checkpoint(100)
    run.checkpoint(150, (".metadata", "__0_0.distcp"))  # its deletion was interrupted
    run.checkpoint(200, ("__0_0.distcp",))
    assert run.prepared(2).resumes_from == 100


@pytest.mark.slow
def test_a_checkpoint_that_the_log_reports_as_damaged_is_moved_aside(run: Run) -> None:
    run.attempt(1, Verdict(Outcome.RETRYABLE, "unreadable", damaged_iteration=200))
    run.checkpoint(100)
    run.checkpoint(200)
    assert run.prepared(2).resumes_from == 100


@pytest.mark.slow
def test_nothing_is_touched_while_a_job_may_write(run: Run) -> None:
    run.attempt(1)
    run.checkpoint(100)
    run.checkpoint(200, ("__0_0.distcp",))
    for state in ("COMPLETING", "RUNNING", "PENDING", "SUSPENDED"):
        run.queued(1, state)
        waits = prepare_attempt(run.attempts, 2)
        assert isinstance(waits, StillWriting)
        assert state in waits.reason
    (run.place / "bin" / "squeue").write_text("#!/bin/sh\necho 'Socket timed out' >&2; exit 1\n")
    assert isinstance(prepare_attempt(run.attempts, 2), StillWriting)
    assert run.names() == {"iter_0000100", "iter_0000200"}


@pytest.mark.slow
def test_jobs_under_other_names_may_write_too(run: Run) -> None:
    run.attempt(1)
    run.checkpoint(100)
    (Path(run.job.stage_dir) / "1" / "jobid").write_text("40_3;;s.pretrain.array.t1\n")
    (run.place / "squeue").write_text("40_3|COMPLETING|1|2|N/A|1|n1|None|s.pretrain.array.t1\n")
    waits = prepare_attempt(run.attempts, 2)
    assert isinstance(waits, StillWriting)
    assert "job 40_3" in waits.reason
    run.queued(2)  # an attempt of this number that was queued ahead and withdrawn
    assert isinstance(prepare_attempt(run.attempts, 2), StillWriting)


def test_an_attempt_that_was_submitted_is_left_alone(run: Run) -> None:
    run.attempt(1)
    run.attempt(2, None, resumes_from=100)
    run.checkpoint(100)
    run.checkpoint(200, ("__0_0.distcp",))  # it is being written
    assert run.prepared(2) == AttemptChanges(resumes_from=100)
    assert run.names() == {"iter_0000100", "iter_0000200"}


@pytest.mark.slow
def test_hopeless(run: Run) -> None:
    run.attempt(1)
    run.checkpoint(200, ("__0_0.distcp",))
    with pytest.raises(
        RunNotFitError, match="there is no complete checkpoint before it: every attempt would end"
    ):
        run.prepared(2)
    assert run.names() == {"iter_0000200"}


@pytest.mark.slow
@pytest.mark.parametrize("run", ["{quarantine: 1}"], indirect=True)
def test_the_number_of_quarantined_checkpoints_is_limited(run: Run) -> None:
    run.attempt(1)
    run.checkpoint(100)
    run.checkpoint(200, ()).joinpath(".metadata").touch()
    (run.checkpoints / "failed_iter_0000300").mkdir()
    with pytest.raises(RunNotFitError, match="1 checkpoint was set aside already"):
        run.prepared(2)


@pytest.mark.slow
@pytest.mark.parametrize("run", ["{rollbacks: 3, after_rollback: {lr: 1e-5}}"], indirect=True)
def test_rollback(run: Run) -> None:
    bad = Verdict(Outcome.FAILED, "loss spike", rollback=True, before_iteration=250, iteration=300)
    run.attempt(1, bad)
    for iteration in (100, 200, 300):
        run.checkpoint(iteration)
    expected = AttemptChanges(arguments=("--lr", "1e-05"), resumes_from=200)
    assert run.prepared(2) == expected
    assert run.names() == {"iter_0000100", "iter_0000200", "rolled_back_iter_0000300"}
    assert run.prepared(2) == expected
    run.attempt(2, bad, resumes_from=200)
    assert run.prepared(3).resumes_from == 100  # the same failure again
    assert run.prepared(3).resumes_from == 100
    run.attempt(3, OVER, resumes_from=100)
    assert run.prepared(4).arguments == ("--lr", "1e-05")
    run.attempt(4, bad, resumes_from=100)
    run.attempt(5, bad, resumes_from=100)
    with pytest.raises(RunNotFitError, match="besides that of iteration 100, which led here"):
        run.prepared(6)


@pytest.mark.slow
def test_clearing_a_job_repairs_neither_checkpoints_nor_nodes(run: Run) -> None:
    bad = Verdict(Outcome.FAILED, "NaN", rollback=True, before_iteration=150, failed_nodes=("n2",))
    run.attempt(1, bad, given_up="no budget")
    for iteration in (100, 200):
        run.checkpoint(iteration)
    assert run.prepared(2) == AttemptChanges(("n2",), resumes_from=100)
    assert run.names() == {"iter_0000100", "rolled_back_iter_0000200"}


@pytest.mark.slow
def test_bad_numbers_before_the_first_checkpoint(tmp_path: Path) -> None:
    for place, restart in (("same", "{}"), ("other", "{after_rollback: {lr: 1e-5}}")):
        (tmp_path / place).mkdir()
        run = Run(tmp_path / place, restart, "pretrain")
        run.attempt(1, Verdict(Outcome.FAILED, "NaN at 7", rollback=True))
        if restart == "{}":
            with pytest.raises(
                RunNotFitError, match=r"no earlier checkpoint to load.*; the last attempt: NaN at 7"
            ):
                run.prepared(2)
        else:
            assert run.prepared(2) == AttemptChanges(arguments=("--lr", "1e-05"))


@pytest.mark.slow
def test_another_experiment_under_the_same_name(run: Run) -> None:
    old = [*run.job.command, "--seed", "4321", "--train-iters", "10"]
    run.attempt(1, digest="before", command=old)
    assert run.prepared(2) == AttemptChanges()  # nothing was saved, so no checkpoints are mixed
    run.checkpoint(100)
    with pytest.raises(RunNotFitError) as caught:
        run.prepared(2)
    assert "seed was 4321, is None" in str(caught.value)
    assert "train_iters" not in str(caught.value)
    assert "changed: continue" in str(caught.value)
    converted = run.checkpoints.with_name("converted_checkpoints") / "iter_100.done"
    converted.parent.mkdir()
    converted.touch()
    assert run.prepared(2, fresh_start=True) == AttemptChanges()
    assert not run.checkpoints.exists()
    assert (run.checkpoints.with_name("checkpoints.before_2") / "iter_0000100").is_dir()
    assert not converted.parent.exists()
    assert converted.parent.with_name("converted_checkpoints.before_2").is_dir()
    run.checkpoint(10)  # by the attempt whose submission was not answered
    run.attempt(2, None)
    assert run.prepared(2, fresh_start=True).resumes_from == 0
    assert run.names() == {"iter_0000010"}


def test_the_job_of_another_experiment(run: Run) -> None:
    run.attempt(1, None, digest="before", command=[*run.job.command, "--seed", "4321", "--train-iters", "10"])
    with pytest.raises(RunNotFitError) as caught:
        run.prepared(1)
    assert "job 1 runs another command under the same name (seed was 4321, is None)" in str(caught.value)


def test_a_chain_of_another_experiment(run: Run) -> None:
    old = [*run.job.command, "--seed", "4321"]
    for number in (1, 2, 3):  # the later ones are queued behind the first
        run.attempt(number, None, digest="before", command=old)
    with pytest.raises(RunNotFitError, match="job 1 runs another command under the same name"):
        run.prepared(1)


def test_the_end_of_a_run_leaves_the_job_of_another_experiment(run: Run) -> None:
    own, other = TaskOrigin("s.point", "p", "ours"), TaskOrigin("s.point", "p", "theirs")
    run.attempt(1, None, digest="before", origin=asdict(other))
    assert run.attempts.is_of_another_run(own)
    assert not run.attempts.is_of_another_run(other), "its spec has changed since"
    run.attempt(2, None, origin=asdict(other))
    assert not run.attempts.is_of_another_run(own), "both wait for it"


def test_the_job_of_a_shorter_training_is_awaited(run: Run) -> None:
    run.attempt(1, None, digest="before", command=[*run.job.command, "--train-iters", "10"])
    assert run.prepared(1) == AttemptChanges()


@pytest.mark.parametrize(
    ("record", "told"),
    [
        ({"command": ["echo", "alice"]}, "'alice' is now 'bob'"),
        ({"command": ["echo", "bob"], "package": __version__}, "other inputs"),
        ({"command": ["echo", "bob"], "package": "0.0.1"}, ""),  # its digest may be computed in another way
    ],
)
def test_the_job_of_another_command(run: Run, record: dict[str, Any], told: str) -> None:
    run.job = run.attempts.job = replace(
        run.job, kind="command", command=("echo", "bob"), outputs=("out",), env={}
    )
    run.attempt(1, None, **{"digest": "before", **record})
    if told:
        with pytest.raises(RunNotFitError, match=told):
            run.prepared(1)
        run.prepared(2)
    else:
        run.prepared(1)


@pytest.mark.slow
@pytest.mark.parametrize("run", ["{changed: continue}"], indirect=True)
def test_another_experiment_that_may_continue(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    run.attempt(1, digest="before", command=[*run.job.command, "--seed", "4321"])
    run.checkpoint(100)
    assert run.prepared(2).resumes_from == 100
    assert "seed was 4321" in caplog.text


def test_a_changed_environment_is_reported(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    run.attempt(1, digest="before", command=["python3.12", *run.job.command[1:]])
    run.checkpoint(100)
    assert run.prepared(2).resumes_from == 100
    assert "continues from its checkpoints with another environment" in caplog.text


@pytest.mark.slow
def test_arguments_of_no_known_trainer(run: Run) -> None:
    run.attempt(1, digest="before", command=["python", "train.py", "--wide"])
    run.checkpoint(100)
    with pytest.raises(RunNotFitError, match="of another command"):
        run.prepared(2)


def test_a_longer_training_is_the_same_experiment(run: Run) -> None:
    run.attempt(1, digest="before", command=[*run.job.command, "--train-iters", "10", "--log-interval", "7"])
    run.checkpoint(100)
    assert run.prepared(2).resumes_from == 100


@pytest.mark.slow
@pytest.mark.parametrize("run", ["{nodes: [1], shrink_after: 1}"], indirect=True)
def test_nodes_that_failed(run: Run) -> None:
    run.attempt(1, Verdict(Outcome.RETRYABLE, "lost", failed_nodes=("n2",)))
    (run.place / "sinfo").write_text("main* n1 idle\nmain* n2 idle\nmain* n3 idle\n")
    assert run.prepared(2) == AttemptChanges(("n2",), 1)
    run.attempt(2, OVER)  # it succeeded with fewer nodes: request all of them again
    assert run.prepared(3) == AttemptChanges(("n2",))
    (run.place / "sinfo").write_text("main* n1 idle\nmain* n2 idle\n")
    assert run.prepared(3) == AttemptChanges(("n2",), 1)
    assert AttemptChanges(nodes=1).applied(run.job).slurm.nodes == 1
