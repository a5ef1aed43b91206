"""Job arrays on a real Slurm: one submission for many points, with a separate job for each point."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
import time
from typing import TYPE_CHECKING

import pytest
from patience import deadline_in

from airflow_megatron.plan.sweep_plan import plan_sweep
from airflow_megatron.slurm.polling.poll import parse_poll, poll_script
from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.states.observation import Watch
from airflow_megatron.slurm.submission.cancellation import cancel_script, parse_cancel
from airflow_megatron.slurm.submission.job_script import attempt_of
from airflow_megatron.slurm.verdicts.verdict import Expectation, Outcome, Verdict, judge
from airflow_megatron.spec.model.cluster_profile import ClusterProfile, load_cluster
from airflow_megatron.spec.model.schema import LimitsSection
from airflow_megatron.spec.spec_files import load_sweep_text
from airflow_megatron.supervision.array_attempts import JobArrays, attempts_to_submit
from airflow_megatron.supervision.attempts import JobAttempts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from slurm_cluster import SlurmCluster

    from airflow_megatron.slurm.remote.transport import CommandResult
    from airflow_megatron.spec.model.jobs import Job

pytestmark = pytest.mark.integration

LOG = logging.getLogger(__name__)
SPEC = """
name: many
point: "p{{{{ number }}}}"
params: {{number: 0}}
sweep: {{params: {{number: {numbers}}}}}
slurm: {{time: 5m, mem: 20M, {more}}}
stages:
  work:
    kind: command
    array: {at_once}
    command: [bash, -c, "{command}"]
"""


class WorkerKilledError(Exception):
    """The submitting process died, together with its login shell."""


class Sweep:
    """The jobs of a sweep with one stage, and their state on the cluster."""

    def __init__(
        self,
        cluster: SlurmCluster,
        place: Path,
        points: int,
        at_once: int,
        command: str,
        more: str = "",
    ) -> None:
        self.cluster = cluster
        text = SPEC.format(numbers=list(range(points)), at_once=at_once, command=command, more=more)
        runs = place / "runs"
        runs.mkdir()
        self.profile: ClusterProfile = load_cluster("local").model_copy(
            update={"run_root": str(runs), "visibility_window": 8}
        )
        sweep = load_sweep_text(text, str(place / "many.yaml"))
        self.jobs: list[Job] = list(plan_sweep(sweep, self.profile).jobs)
        self.runs = runs

    def submit(self, run: Callable[[str], CommandResult] | None = None) -> dict[str, int]:
        arrays = JobArrays(self.profile, run or self.cluster.run, LOG)
        chosen = attempts_to_submit(self.jobs, arrays.states(self.jobs))
        return arrays.submit(self.jobs, chosen)

    def submit_alone(self, job: Job, number: int) -> str:
        job_id = JobAttempts(job, self.profile, self.cluster.run, LOG).submit(number).job_id
        assert job_id is not None
        return job_id

    def watch(self, job: Job, number: int = 1) -> Watch:
        """Return the watch of an attempt from its record."""
        attempt = attempt_of(job, number)
        job_id, _, rest = (self.runs.parent / attempt.directory / "jobid").read_text().strip().partition(";")
        name = rest.partition(";")[2] or attempt.job_name
        return Watch(
            key=job.point,
            job_id=job_id,
            job_name=name,
            attempt_dir=attempt.directory,
            log_file=job.log_file(number),
        )

    def verdicts(self, watches: list[Watch], timeout: float = 90) -> dict[str, Verdict]:
        """Wait until every watched attempt has a verdict, with one command per poll."""
        deadline = deadline_in(timeout)
        while True:
            found = parse_poll(watches, self.cluster.run(poll_script(watches)))
            verdicts = {key: judge(seen, Expectation("command")) for key, seen in found.items()}
            if all(verdict.outcome.is_verdict for verdict in verdicts.values()):
                return verdicts
            assert time.monotonic() < deadline, {key: str(one) for key, one in verdicts.items()}
            time.sleep(0.5)

    def submissions(self) -> dict[str, set[str]]:
        """Return the runs of each point's script: point → ids in its log."""
        return {
            job.point: {line.split()[1] for line in self.log(job) if line.startswith("begin ")}
            for job in self.jobs
        }

    def log(self, job: Job, number: int = 1) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return (self.runs.parent / job.log_file(number)).read_text().splitlines()
        return []

    def arrays(self) -> set[str]:
        """Return the ids of all arrays ever submitted for this sweep."""
        names = ",".join(path.parent.name for path in (self.runs / "many" / ".arrays").glob("*/1"))
        assert names
        queue = self.cluster.slurm("squeue", "-h", "-t", "all", "-o", "%F|%j")
        accounting = self.cluster.slurm(
            "sacct", "-X", "-D", "-n", "-P", "-S", "now-1day", "-o", "JobID,JobName"
        )
        tokens = {name.rpartition(".")[2] for name in names.split(",")}
        return {
            row.split("|")[0].partition("_")[0]
            for row in (*queue.splitlines(), *accounting.splitlines())
            if row.rpartition(".array.")[2] in tokens
        }


def test_one_array_for_many_points(cluster: SlurmCluster, tmp_path: Path) -> None:
    """Of 24 points, two fail and are submitted again, one is cancelled while it waits, and one while it runs."""
    body = (
        "echo begin $AIRFLOW_MEGATRON_ARRAY_TASK point {{ number }}; "
        "case {{ number }} in 5|11) test -e {{ run_dir }}/again || { touch {{ run_dir }}/again; exit 3; } ;; "
        "2) sleep 600 ;; 1[6-9]) until [ -e {{ sweep_dir }}/go ]; do sleep 0.1; done ;; esac; sleep 0.2"
    )
    sweep = Sweep(cluster, tmp_path, 24, 4, body)
    submitted = sweep.submit()
    assert len(submitted) == 24
    (array,) = sweep.arrays()
    jobs = {job.point: job for job in sweep.jobs}
    watches = {job.point: sweep.watch(job) for job in sweep.jobs}
    assert {watch.job_id for watch in watches.values()} == {f"{array}_{index}" for index in range(24)}

    waiting = [(str(watches["p23"].job_id), str(watches["p23"].job_name))]
    assert parse_cancel(waiting, cluster.run(cancel_script(waiting))).cancelled == (waiting[0][0],)
    (sweep.runs / "many" / "go").touch()
    running = [(str(watches["p2"].job_id), str(watches["p2"].job_name))]
    while not any(line.startswith("begin ") for line in sweep.log(jobs["p2"])):
        time.sleep(0.2)
    assert parse_cancel(running, cluster.run(cancel_script(running))).cancelled == (running[0][0],)

    verdicts = sweep.verdicts(list(watches.values()))
    outcomes = {point: verdict.outcome for point, verdict in verdicts.items()}
    odd = {"p5": Outcome.FAILED, "p11": Outcome.FAILED, "p2": Outcome.CANCELLED, "p23": Outcome.CANCELLED}
    assert outcomes == {**dict.fromkeys(jobs, Outcome.FINISHED), **odd}
    assert verdicts["p5"].exit_code == 3
    for point, job in jobs.items():
        assert [line.split()[-1] for line in sweep.log(job) if line.startswith("begin ")] == (
            [] if point == "p23" else [point.removeprefix("p")]
        )

    again = {point: sweep.submit_alone(jobs[point], 2) for point in ("p5", "p11")}
    assert all(job_id.isdecimal() for job_id in again.values())
    repeated = sweep.verdicts([sweep.watch(jobs[point], 2) for point in again])
    assert {verdict.outcome for verdict in repeated.values()} == {Outcome.FINISHED}
    assert sweep.submit() == {}
    assert sweep.arrays() == {array}


def test_a_task_whose_script_is_killed_touches_no_other(cluster: SlurmCluster, tmp_path: Path) -> None:
    body = "echo begin $AIRFLOW_MEGATRON_ARRAY_TASK; test {{ number }} = 1 && kill -9 $PPID; sleep 1"
    sweep = Sweep(cluster, tmp_path, 3, 3, body)
    sweep.submit()
    verdicts = sweep.verdicts([sweep.watch(job) for job in sweep.jobs])
    outcomes = [verdict.outcome for verdict in verdicts.values()]
    assert outcomes == [Outcome.FINISHED, Outcome.RETRYABLE, Outcome.FINISHED]
    assert verdicts["p1"].state is JobState.FAILED


def test_more_points_than_an_array_may_have(cluster: SlurmCluster, tmp_path: Path) -> None:
    """Slurm's MaxArraySize is 1001, which is not in the profile."""
    sweep = Sweep(cluster, tmp_path, 1002, 1, "true", more="options: [--begin=now+1hour]")
    sweep.profile = sweep.profile.model_copy(update={"limits": LimitsSection(max_array_size=5000)})
    assert len(sweep.submit()) == 1002
    ids = {sweep.watch(job).job_id for job in sweep.jobs}
    first, second = sorted(sweep.arrays())
    cluster.slurm("scancel", first, second)
    assert ids == {f"{array}_{index}" for array in (first, second) for index in range(501)}


@pytest.mark.parametrize("seed", range(4))
def test_submitter_killed_at_any_instant(cluster: SlurmCluster, tmp_path: Path, seed: int) -> None:
    """The second call completes the submission of the first: one job for each point."""
    chance = random.Random(seed)
    sweep = Sweep(cluster, tmp_path, 12, 6, "echo begin $SLURM_JOB_ID; sleep 0.5")

    def run_and_die(script: str) -> CommandResult:
        if "am_each_task" not in script:
            return cluster.run(script)
        process = cluster.start(script)
        while not (owners := list(sweep.runs.glob("many/.arrays/*/1/claim.1/owner"))):
            assert process.poll() is None
            time.sleep(0.002)
        time.sleep(chance.uniform(0.0, 0.25))
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(owners[0].read_text().split()[1]), signal.SIGKILL)
        process.communicate()
        raise WorkerKilledError

    with pytest.raises(WorkerKilledError):
        sweep.submit(run_and_die)
    sweep.submit()
    watches = [sweep.watch(job) for job in sweep.jobs]
    assert {verdict.outcome for verdict in sweep.verdicts(watches).values()} == {Outcome.FINISHED}
    assert len(sweep.arrays()) == 1
    assert all(len(ids) == 1 for ids in sweep.submissions().values()), sweep.submissions()


def test_a_point_alone_finds_its_task_of_a_killed_submission(cluster: SlurmCluster, tmp_path: Path) -> None:
    sweep = Sweep(cluster, tmp_path, 3, 3, "echo begin $SLURM_JOB_ID; sleep 0.5")

    def lose_the_records(script: str) -> CommandResult:
        if "am_each_task" not in script:
            return cluster.run(script)
        cluster.run(script.replace("\nam_record_tasks\n", "\n"))
        raise WorkerKilledError

    with pytest.raises(WorkerKilledError):
        sweep.submit(lose_the_records)
    (array,) = sweep.arrays()
    ids = [sweep.submit_alone(job, 1) for job in sweep.jobs]
    assert ids == [f"{array}_{index}" for index in range(3)]
    verdicts = sweep.verdicts([sweep.watch(job) for job in sweep.jobs])
    assert {verdict.outcome for verdict in verdicts.values()} == {Outcome.FINISHED}


def test_two_submitters_at_once(cluster: SlurmCluster, tmp_path: Path) -> None:
    sweep = Sweep(cluster, tmp_path, 10, 5, "echo begin $SLURM_JOB_ID")
    arrays = JobArrays(sweep.profile, cluster.run, LOG)
    chosen = attempts_to_submit(sweep.jobs, arrays.states(sweep.jobs))
    alone = sweep.submit_alone(sweep.jobs[4], 1)
    assert arrays.submit(sweep.jobs, chosen).keys() == {job.name for job in sweep.jobs}
    assert sweep.watch(sweep.jobs[4]).job_id == alone
    sweep.verdicts([sweep.watch(job) for job in sweep.jobs])
    assert all(len(ids) == 1 for ids in sweep.submissions().values())
