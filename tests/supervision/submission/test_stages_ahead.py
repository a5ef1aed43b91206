"""The stages that are queued behind a job; each is submitted once, also with concurrent calls."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from fake_slurm import FakeSlurm, fake_slurm

from airflow_megatron.plan.pinned import PinnedSweep
from airflow_megatron.plan.pins.pin_store import PinStore
from airflow_megatron.plan.plan_environment import PlanEnvironment
from airflow_megatron.plan.sweep_plan import plan_sweep
from airflow_megatron.requirements.queue_order import followers
from airflow_megatron.slurm.remote.transport import TransportError
from airflow_megatron.slurm.verdicts.verdict import Outcome, Verdict
from airflow_megatron.spec.documents import project
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.spec_files import load_sweep_text
from airflow_megatron.supervision.attempts import JobAttempts
from airflow_megatron.supervision.submission.attempt_submission import submit_attempt
from airflow_megatron.supervision.submission.stages_ahead import (
    queue_ahead,
    stages_behind,
    take_up,
    withdraw_ahead,
)

if TYPE_CHECKING:
    from airflow_megatron.slurm.remote.transport import CommandResult
    from airflow_megatron.spec.model.jobs import Job

LOG = logging.getLogger(__name__)
CHAIN = """
name: s
point: p
ahead: 2
stages:
  prepare: {kind: command, command: ["true"], outputs: [a.txt]}
  pretrain: {kind: train, parent: prepare, command: ["true"], megatron: {train_iters: 10}}
  convert: {kind: command, parent: pretrain, command: ["true"]}
  evaluate: {kind: command, parent: convert, command: ["true"]}
  copy: {kind: command, parent: pretrain, command: ["true"]}
"""


def jobs_of(spec: str, root: Path) -> list[Job]:
    cluster = load_cluster("local").model_copy(update={"run_root": str(root)})
    return list(plan_sweep(load_sweep_text(spec, "s.yaml"), cluster).jobs)


def queued_behind_first(spec: str, place: Path) -> list[str]:
    jobs = jobs_of(spec, place)
    return [own_name(job.stage) for job, _ in followers(jobs[0], jobs, jobs[0].ahead)]


def own_name(stage: str) -> str:
    """Return the name of a stage without those that it descends from."""
    return stage.rpartition(".")[2]


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("ahead: 2", "ahead: 0", []),
        ("ahead: 2", "ahead: 1", ["pretrain"]),
        ("ahead: 2", "ahead: 2", ["pretrain", "convert", "copy"]),
        ("ahead: 2", "ahead: 9", ["pretrain", "convert", "evaluate", "copy"]),
        ("parent: prepare,", "parent: prepare, ahead: 0,", ["pretrain"]),
        ("outputs: [a.txt]", "outputs: [a.txt], ahead: 1", ["pretrain"]),
    ],
)
def test_the_depth_is_that_of_the_spec(tmp_path: Path, key: str, value: str, expected: list[str]) -> None:
    assert queued_behind_first(CHAIN.replace(key, value), tmp_path) == expected


TWO = """
name: s
point: p
ahead: 1
stages:
  first: {kind: train, command: ["true"], megatron: {train_iters: 10}}
  second: {kind: command, parent: first, command: ["true"]}
"""


@pytest.mark.parametrize(
    "addition",
    [
        "first: cancel: {file: stop}",
        "first: finish: {file: done}",
        "first: events: [{log: nan, do: fail}]",
        "first: expect: oom",
        "first: array: true",
        "first: scope: sweep",
        "second: cancel: {file: stop}",
        "second: finish: {file: done}",
        "second: start: {checkpoint: 5}",
        "second: start: {log: saved}",
        "second: start: {finished: first}",
    ],
)
def test_stages_that_are_not_queued_ahead(tmp_path: Path, addition: str) -> None:
    stage, _, more = addition.partition(": ")
    lines = [
        line.removesuffix("}") + f", {more}}}" if line.startswith(f"  {stage}:") else line
        for line in TWO.splitlines()
    ]
    assert queued_behind_first(TWO, tmp_path) == ["second"]
    assert queued_behind_first("\n".join(lines), tmp_path) == []


def test_jobs_of_older_plans_queue_nothing_ahead(tmp_path: Path) -> None:
    job = jobs_of(CHAIN, tmp_path)[0]
    data = {key: value for key, value in job.to_json().items() if key != "ahead"}
    assert type(job).from_json(data).ahead == 0
    assert "ahead" not in jobs_of(CHAIN.replace("ahead: 2", "ahead: 0"), tmp_path)[0].to_json()


class Site:
    """A cluster of files, and a stored plan."""

    def __init__(self, place: Path, spec: str = CHAIN) -> None:
        self.slurm: FakeSlurm = fake_slurm(place / "slurm")
        cluster = load_cluster("local").model_copy(update={"run_root": str(place / "runs")})
        sweep = load_sweep_text(spec, "s.yaml")
        plan, store = plan_sweep(sweep, cluster), PinStore()
        plan_environment = PlanEnvironment.now("local")
        pinned = PinnedSweep.stored(sweep, spec, plan, plan_environment, store)
        self.cluster = cluster
        self.jobs = {own_name(job.stage): job for job in pinned.jobs_of("p")}
        self.away = False

    def run(self, script: str) -> CommandResult:
        if self.away:
            raise TransportError("login1 is away")
        return self.slurm.run(script)

    def attempts(self, stage: str, **changes: Any) -> JobAttempts:
        job = msgspec.structs.replace(self.jobs[stage], **changes)
        return JobAttempts(job, self.cluster, self.run, LOG, window_s=0)

    def submit(self, stage: str, number: int = 1) -> str:
        handle: Any = submit_attempt(self.attempts(stage), number, lambda _: None)
        return str(handle.job_id)

    @property
    def queue(self) -> dict[str, str]:
        """Stage → id of its job in the queue."""
        rows = [(self.slurm.root / "jobs" / name).read_text().strip().split("|") for name in self.slurm.jobs]
        return {own_name(re.sub(r"\.a\d+\.\w+$", "", row[4])): row[0] for row in rows}

    def dependency(self, job_id: str) -> str:
        (found,) = re.findall(r"--dependency=(.*)", self.slurm.accepted(job_id, "argv"))
        return str(found)

    def decide(self, stage: str, word: str) -> None:
        (self.folder(stage) / "ahead_decision").symlink_to(f"decided.{word}")

    def folder(self, stage: str, number: int = 1) -> Path:
        return Path(self.jobs[stage].stage_dir) / str(number)

    def leaves(self, job_id: str) -> None:
        (self.slurm.root / "jobs" / job_id).unlink()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv(project.PINS_VARIABLE, str(tmp_path / "pins"))
    return Site(tmp_path)


@pytest.mark.slow
def test_each_stage_is_submitted_once_behind_the_previous_stage(site: Site) -> None:
    site.submit("prepare")
    assert site.queue == {"prepare": "1001", "pretrain": "1002", "convert": "1003", "copy": "1004"}
    dependencies = [site.dependency(job_id) for job_id in ("1002", "1003", "1004")]
    assert dependencies == ["singleton,afterok:1001", "singleton,afterany:1002", "singleton,afterany:1002"]
    record = json.loads((site.folder("convert") / "job.json").read_text())
    assert (record["behind"], record["behind_jobs"]) == ("pretrain", ["1002"])
    site.submit("prepare")
    queue_ahead(site.attempts("prepare"), 1)
    assert len(site.slurm.calls("sbatch")) == 4


@pytest.mark.slow
@pytest.mark.parametrize("own_limit", [pytest.param(True, marks=pytest.mark.long), False])
def test_job_that_is_due_gets_the_place_of_one_queued_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_limit: bool
) -> None:
    monkeypatch.setenv(project.PINS_VARIABLE, str(tmp_path / "pins"))
    others = [f"other{number}" for number in range(3)]
    stages = "".join(f"  {name}: {{kind: command, command: ['true']}}\n" for name in others)
    limit = "\nmax_jobs: 4" if own_limit else ""
    site = Site(tmp_path, CHAIN.replace("ahead: 2", f"ahead: 1{limit}") + stages)
    for stage in ("prepare", *others[:2]):
        site.submit(stage)
    assert site.queue == {"prepare": "1001", "pretrain": "1002", "other0": "1003", "other1": "1004"}
    if not own_limit:
        full = "QOSMaxSubmitJobPerUserLimit"
        site.slurm.behave(
            "sbatch", f'[ ! -e "$FAKE_SLURM/jobs/1002" ] || {{ echo {full} >&2; exit 1; }}; accept "$@"'
        )
    refused: Any = submit_attempt(site.attempts("other2"), 1, lambda _: None)
    assert refused.status == "deferred", "nothing waits for another job as far as Slurm says"
    row = site.slurm.root / "jobs" / "1002"
    row.write_text(re.sub(r"\|airflow-megatron:[^|]*\|", "|Dependency|", row.read_text()))
    site.submit("other2")
    assert set(site.queue) == {"prepare", *others}
    assert not site.folder("pretrain").exists()
    if own_limit:
        site.submit("prepare")
        assert set(site.queue) == {"prepare", *others}, "it does not take the place back"


@pytest.mark.slow
def test_the_next_stage_takes_over_its_job_and_queues_the_following_one(site: Site) -> None:
    site.submit("prepare")
    site.leaves("1001")
    attempts = site.attempts("pretrain")
    taken, state = take_up(attempts, attempts.state())
    assert taken
    assert state.latest_attempt == 1
    assert site.submit("pretrain") == "1002"
    assert site.queue == {"pretrain": "1002", "convert": "1003", "copy": "1004", "evaluate": "1005"}
    assert not take_up(attempts, attempts.state())[0], "an earlier try has done so"


@pytest.mark.slow
def test_job_that_stepped_back_frees_its_number_and_what_waits_for_it(site: Site) -> None:
    site.submit("prepare")
    site.decide("pretrain", "back")
    for job_id in ("1001", "1002"):
        site.leaves(job_id)
    attempts = site.attempts("pretrain")
    taken, state = take_up(attempts, attempts.state())
    assert not taken
    assert state.latest_attempt == 0
    assert site.queue == {}
    assert site.submit("pretrain") == "1005"
    assert site.dependency("1005") == "singleton"
    assert set(site.queue) == {"pretrain", "convert", "copy", "evaluate"}


@pytest.mark.slow
def test_job_of_another_plan_is_not_taken_over(site: Site) -> None:
    site.submit("prepare")
    site.leaves("1001")
    attempts = site.attempts("pretrain", command=("false",))
    assert not take_up(attempts, attempts.state())[0]
    assert site.queue == {}


@pytest.mark.slow
def test_next_attempt_of_a_stage_has_the_others_behind_it(site: Site) -> None:
    site.submit("prepare")
    attempts = site.attempts("prepare")
    attempts.record_verdict(1, Verdict(Outcome.RETRYABLE, "node failure"))
    withdraw_ahead(attempts)
    assert site.queue == {"prepare": "1001"}
    site.leaves("1001")
    assert site.submit("prepare", 2) == "1005"
    assert site.dependency(site.queue["pretrain"]) == "singleton,afterok:1005"


@pytest.mark.slow
def test_what_is_queued_behind_an_older_attempt_is_replaced(site: Site) -> None:
    """The worker died before it had withdrawn it."""
    site.submit("prepare")
    site.attempts("prepare").record_verdict(1, Verdict(Outcome.RETRYABLE, "node failure"))
    site.leaves("1001")
    site.submit("prepare", 2)
    assert site.queue == {"prepare": "1005", "pretrain": "1006", "convert": "1007", "copy": "1008"}
    assert site.dependency("1006") == "singleton,afterok:1005"
    assert site.dependency("1007") == "singleton,afterany:1006"


@pytest.mark.slow
def test_job_that_has_started_behind_a_stage_that_runs_again_does_not_count(site: Site) -> None:
    site.submit("prepare")
    site.decide("pretrain", "start")
    withdraw_ahead(site.attempts("prepare"))
    assert site.queue == {"prepare": "1001"}
    state = site.attempts("pretrain").state()
    assert state.latest_attempt == 1
    assert state.verdict is not None
    assert state.verdict.outcome == "cancelled"


@pytest.mark.slow
def test_a_job_that_its_own_task_waits_for_is_kept(site: Site) -> None:
    site.submit("prepare")
    site.decide("pretrain", "due")
    withdraw_ahead(site.attempts("prepare"))
    assert site.queue["pretrain"] == "1002"


@pytest.mark.slow
def test_stage_that_has_run_before_is_submitted_when_it_is_due(site: Site) -> None:
    site.submit("pretrain")
    site.attempts("pretrain").record_end(1, Verdict(Outcome.FINISHED, "x"))
    before = len(site.slurm.calls("sbatch"))
    site.submit("prepare")
    assert len(site.slurm.calls("sbatch")) == before + 1


@pytest.mark.slow
def test_checkpoints_of_an_earlier_sweep_are_checked_when_it_is_due(site: Site) -> None:
    tracker = Path(site.jobs["pretrain"].checkpoint_dir) / "latest_checkpointed_iteration.txt"
    tracker.parent.mkdir(parents=True)
    tracker.write_text("5")
    site.submit("prepare")
    assert set(site.queue) == {"prepare"}


@pytest.mark.slow
@pytest.mark.parametrize(("most", "queued"), [(1, 1), (2, 1), (4, 2), (9, 4)])
def test_jobs_that_are_due_keep_half_of_the_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, queued: int
) -> None:
    monkeypatch.setenv(project.PINS_VARIABLE, str(tmp_path / "pins"))
    site = Site(tmp_path, CHAIN.replace("ahead: 2", f"ahead: 2\nmax_jobs: {most}"))
    site.submit("prepare")
    assert len(site.queue) == queued


@pytest.mark.slow
def test_refused_stage_does_not_stop_the_previous_stage(site: Site) -> None:
    refusing = "case $name in *.pretrain.*) echo 'sbatch: error: invalid partition' >&2; exit 1 ;; esac"
    site.slurm.behave("sbatch", f'{refusing}; accept "$@"; echo "$id"')
    assert site.submit("prepare") == "1001"
    assert site.queue == {"prepare": "1001"}


@pytest.mark.slow
def test_unreachable_login_node_does_not_stop_the_previous_stage(site: Site) -> None:
    attempts = site.attempts("prepare")
    attempts.submit(1)
    site.away = True
    queue_ahead(attempts, 1)
    site.away = False
    assert set(site.queue) == {"prepare"}


def test_directories_of_what_may_be_queued_deepest_first(site: Site) -> None:
    stages = [own_name(Path(path).name) for path in stages_behind(site.jobs["prepare"], LOG)]
    assert stages == ["copy", "evaluate", "convert", "pretrain"]
    assert stages_behind(msgspec.structs.replace(site.jobs["prepare"], pin=""), LOG) == []
