"""A sweep that was deferred or unfinished under commit 7332a23 continues: rows, records and printed JSON are read."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk._shared.module_loading import import_string
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from airflow.sdk.execution_time.context import set_current_context
from recorded import SWEEPS, Recording

from airflow_megatron.dag_factory.building import build_dags
from airflow_megatron.hooks.slurm import SlurmHook
from airflow_megatron.plan.job_scripts import job_digest
from airflow_megatron.plan.pinned import PinnedSweep, point_digest
from airflow_megatron.plan.run_results import fetch_snapshot
from airflow_megatron.plan.sweep_plan import plan_sweep
from airflow_megatron.results.readings.plan_rows import plan_row
from airflow_megatron.results.readings.progress import progress_grid, progress_lines
from airflow_megatron.results.readings.sweep_jobs import read_jobs
from airflow_megatron.slurm.remote.transport import CommandResult, TransportError
from airflow_megatron.slurm.verdicts.stage_records import parse_stage_states, stage_state_script
from airflow_megatron.spec.documents import project
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.model.jobs import Job
from airflow_megatron.spec.model.outline import SweepOutline
from airflow_megatron.spec.spec_files import load_sweep
from airflow_megatron.supervision.attempts import next_attempt

if TYPE_CHECKING:
    from airflow.sdk import DAG, BaseOperator

    from airflow_megatron.plan.sweep_plan import Plan

ROWS = Recording(Path("/site")).deferred()
CLASSES = ("checkpoint", "condition", "log_pattern", "pause", "point_runs", "queue_room", "slurm_job")


def name_of(row: dict[str, Any]) -> str:
    return f"{row['dag_id']} {row['run_id']} {row['task_id']}"


class Store(dict[str, Any]):
    """A stub of a task's state store."""

    set = dict.__setitem__

    def delete(self, key: str) -> None:
        self.pop(key, None)


class Answers:
    """A stub of the login node: a local shell without Slurm, which records its scripts."""

    def __init__(self) -> None:
        self.scripts: list[str] = []

    def __call__(self, script: str, **_: Any) -> CommandResult:
        self.scripts.append(script)
        if "sbatch" in script:
            raise TransportError("no Slurm here")
        done = subprocess.run(["bash", "-s"], input=script, capture_output=True, text=True, check=False)
        return CommandResult(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recording:
    """The recording in a separate folder: present programs and templates, recorded profiles and specs."""
    found = Recording(tmp_path)
    found.plant_project(project.project_root())
    found.plant_runs()
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(project.PINS_VARIABLE, str(tmp_path / "pins"))
    return found


@pytest.fixture
def login(monkeypatch: pytest.MonkeyPatch) -> Answers:
    answers = Answers()
    monkeypatch.setattr(SlurmHook, "run", lambda _, script, **options: answers(script, **options))
    monkeypatch.setattr("airflow_megatron.supervision.attempts.TROUBLE_WINDOW_S", 0)
    return answers


def dag_of(recording: Recording, dag_id: str) -> DAG:
    sweep = load_sweep(recording.spec(dag_id.removesuffix(".point")))
    return next(dag for dag in build_dags(SweepOutline.of(sweep)) if dag.dag_id == dag_id)


def planned(recording: Recording, sweep: str) -> Plan:
    loaded = load_sweep(recording.spec(sweep))
    return plan_sweep(loaded, load_cluster(loaded.settings.cluster))


def resumed_task(recording: Recording, row: dict[str, Any]) -> tuple[BaseOperator, Any]:
    """Return a task of the current DAG, with its templates rendered from the recorded XComs, and its context."""
    dag_id, run_id, task_id = row["dag_id"], row["run_id"], row["task_id"]
    task = dag_of(recording, dag_id).get_task(task_id)
    conf = recording.runs(dag_id)[run_id]["conf"] or {}

    def xcom_pull(task_ids: str, key: str = "return_value", **_: Any) -> Any:
        return recording.xcom(dag_id, run_id, task_ids, key)

    instance = SimpleNamespace(
        dag_id=dag_id,
        run_id=run_id,
        task_id=task_id,
        try_number=row["try_number"],
        max_tries=row["max_tries"],
        xcom_pull=xcom_pull,
    )
    store = Store(
        {
            item["key"]: item["value"]
            for item in recording.json("task_state_store.json")
            if (item["dag_id"], item["run_id"], item["task_id"]) == (dag_id, run_id, task_id)
        }
    )
    run = SimpleNamespace(conf=conf, run_type=recording.runs(dag_id)[run_id]["run_type"])
    params = {"dry_run": False, "fresh_start": False}
    context: Any = {
        "ti": instance,
        "dag_run": run,
        "params": params,
        "task": task,
        "task_state_store": store,
    }
    task.render_template_fields(context)
    return task, context


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_a_trigger_is_made_from_its_row(row: dict[str, Any]) -> None:
    stored = row["trigger"]
    trigger = import_string(stored["classpath"])(**stored["kwargs"])
    path, arguments = trigger.serialize()
    assert path == stored["classpath"]
    assert {name: arguments[name] for name in stored["kwargs"]} == stored["kwargs"]


def test_every_trigger_of_the_old_version_is_recorded() -> None:
    paths = {row["trigger"]["classpath"].rsplit(".", 1)[0] for row in ROWS}
    assert paths == {f"airflow_megatron.triggers.{name}" for name in CLASSES}


@pytest.mark.parametrize("sweep", SWEEPS)
def test_tasks_keep_their_names_and_what_resumes_them(sweep: str, recording: Recording) -> None:
    for dag_id in (sweep, f"{sweep}.point"):
        dag = dag_of(recording, dag_id)
        rows = [row for row in recording.json("task_instances.json") if row["dag_id"] == dag_id]
        assert {row["task_id"] for row in rows} <= set(dag.task_ids)
        for row in rows:
            if "next_method" in row:
                assert callable(getattr(dag.get_task(row["task_id"]), row["next_method"]))


FINISHED = {"outcome": "finished", "reason": "the job ended as COMPLETED [sacct]", "state": "COMPLETED"}
WATCHED = [row for row in ROWS if row["trigger"]["classpath"].endswith("SlurmJobTrigger")]


@pytest.mark.slow
@pytest.mark.parametrize("row", WATCHED, ids=name_of)
def test_a_job_that_ends_is_judged(row: dict[str, Any], recording: Recording, login: Answers) -> None:
    row = recording.task(row["dag_id"], row["run_id"], row["task_id"])
    task, context = resumed_task(recording, row)
    carry = row["trigger"]["kwargs"]["carry"]
    event = {"verdict": FINISHED, "log_tail": [], "carry": carry}
    result = getattr(task, row["next_method"])(context, event=event, **row["next_kwargs"])
    handle = carry["handle"]
    assert (result["job"], result["attempt"], result["outcome"]) == (handle["job"], 1, "finished")
    job = Job.from_json(task.job)
    states = parse_stage_states([job.stage_dir], login(stage_state_script([job.stage_dir])))
    state = states[job.stage_dir]
    assert state.job_id == handle["job_id"]
    assert next_attempt(state, rerun=False, digest=job_digest(job)).finished


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dag_id", "run_id", "task_id", "stage_dir", "then"),
    [
        ("carried.point", "fails", "work.watch", "carried/fails/work/.jobs/work", "PauseTrigger"),
        ("crowd.point", "b", "work.submit", "crowd/b/work/.jobs/work", "QueueRoomTrigger"),
    ],
)
def test_a_waiting_submission_is_submitted(
    dag_id: str, run_id: str, task_id: str, stage_dir: str, then: str, recording: Recording, login: Answers
) -> None:
    """One in backoff after a failure, and one for which the queue had no room; here Slurm does not answer."""
    row = recording.task(dag_id, run_id, task_id)
    task, context = resumed_task(recording, row)
    event = row["trigger"]["kwargs"]["carry"]
    with set_current_context(context), pytest.raises(TaskDeferred) as deferred:
        getattr(task, row["next_method"])(context, event=event, **row["next_kwargs"])
    assert type(deferred.value.trigger).__name__ == then
    assert any(str(recording.runs_dir / stage_dir) in script for script in login.scripts)


@pytest.mark.parametrize(
    ("task_id", "event", "result"),
    [
        ("cooldown.await_checkpoint", {"status": "complete", "path": "/x/iter_0000100"}, "/x/iter_0000100"),
        ("pretrain.read.await_log", {"status": "found", "line": "iteration 110/"}, "iteration 110/"),
        ("pretrain.beside.await_start", {"status": "holds"}, None),
    ],
)
def test_a_stage_that_waited_to_start_does(
    task_id: str, event: dict[str, Any], result: Any, recording: Recording, login: Answers
) -> None:
    row = recording.task("trained.point", "lr0.001", task_id)
    task, context = resumed_task(recording, row)
    assert getattr(task, row["next_method"])(context, event=event, **row["next_kwargs"]) == result
    with pytest.raises(AirflowFailException, match="gone"):
        getattr(task, row["next_method"])(context, event={"status": "missed", "reason": "gone"})
    assert task_id != "pretrain.beside.await_start" or login.scripts == []


@pytest.mark.slow
def test_a_restarted_wait_waits_for_the_same_job(recording: Recording, login: Answers) -> None:
    """As after a worker's death: present templates and recorded XComs give the recorded triggers."""
    for row in recording.deferred():
        if row["task_id"].endswith(("submit", "wait")) or row["next_method"] != "execute_complete":
            continue
        task, context = resumed_task(recording, row)
        with pytest.raises(TaskDeferred) as deferred:
            task.execute(context)
        path, arguments = deferred.value.trigger.serialize()
        stored = row["trigger"]
        assert path == stored["classpath"]
        # a name in Slurm ends in a digest of a path; the rest is written in more detail now
        other = {"deadline", "memory", "carry", "conditions", "signatures", "attempts", "log_file"}
        other |= {"job_name", "checkpoint_dir"} if row["task_id"].endswith("watch") else set()
        same = stored["kwargs"].keys() - other
        assert {name: arguments[name] for name in same} == {name: stored["kwargs"][name] for name in same}
    assert not any("sbatch" in script for script in login.scripts)


def test_a_queued_point_uses_the_jobs_of_its_launch(recording: Recording) -> None:
    run = recording.runs("carried.point")["queued"]
    pushed: dict[str, Any] = {}
    instance = SimpleNamespace(xcom_push=lambda key, value: pushed.update({key: value}))
    task = dag_of(recording, "carried.point").get_task("resolve")
    context: Any = {"ti": instance, "dag_run": SimpleNamespace(**run), "params": {}}
    recording.spec("carried").write_text("stages: {}\n")  # only launched runs count
    assert task.execute(context) == "queued"
    assert pushed == run["conf"]["jobs"]
    assert [Job.from_json(pushed[stage]).name for stage in ("work", "next")] == [
        "carried.queued.work",
        "carried.queued.next",
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"run_type": "manual"},
        {"run_type": None},
        {"run_type": "scheduled"},
        {"conf": {"pin": "0" * 64}},
        {"conf": {"run": "main"}},
        {"conf": {"script": "x"}},
        {"conf": {"jobs": [1]}},
        {"conf": {"jobs": None}},
    ],
)
def test_other_runs_cannot_bring_their_own_jobs(changes: dict[str, Any], recording: Recording) -> None:
    run = recording.runs("carried.point")["queued"]
    run |= {**changes, "conf": {**run["conf"], **changes.get("conf", {})}}
    task = dag_of(recording, "carried.point").get_task("resolve")
    context: Any = {"ti": SimpleNamespace(), "dag_run": SimpleNamespace(**run), "params": {}}
    with pytest.raises(AirflowFailException, match="jobs come from a plan"):
        task.execute(context)


@pytest.mark.parametrize("sweep", SWEEPS)
def test_plans_of_the_old_version_stay_valid(sweep: str, recording: Recording) -> None:
    """The report of the sweep's run, its launch and its arrays read the XCom of ``plan``."""
    pinned = PinnedSweep.from_json(recording.xcom(sweep, "main", "plan"))
    plan = pinned.plan()
    jobs = {job.name: job for job in plan.jobs}
    stored = [
        Job.from_json(job)
        for run in recording.runs(f"{sweep}.point").values()
        for job in run["conf"]["jobs"].values()
    ]
    assert {job.name for job in stored} == set(jobs)
    for job in stored:
        now = jobs[job.name]
        assert (now.command, now.run_dir, now.outputs) == (job.command, job.run_dir, job.outputs)


@pytest.mark.parametrize("sweep", SWEEPS)
def test_a_new_run_finds_running_and_finished_jobs(sweep: str, recording: Recording, login: Answers) -> None:
    plan = planned(recording, sweep)
    for run_id, run in recording.runs(f"{sweep}.point").items():
        jobs = [recording.as_recorded(job) for job in plan.jobs_of(run["conf"]["point"])]
        assert point_digest(jobs) == run["conf"]["digest"], run_id
    dirs = [job.stage_dir for job in plan.jobs]
    states = parse_stage_states(dirs, login(stage_state_script(dirs)))
    for job in plan.jobs:
        verdict = states[job.stage_dir].verdict
        digest = job_digest(recording.as_recorded(job))
        step = next_attempt(states[job.stage_dir], rerun=False, digest=digest)
        assert step.finished == (verdict is not None), job.name


def status_then(recording: Recording, sweep: str) -> list[str]:
    """Return the lines that ``status`` printed; a job that paused before its next attempt was shown as ended."""
    return recording.text(f"cli/status_{sweep}.txt").replace("ended", "restarting").splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("sweep", SWEEPS)
def test_status_prints_what_it_printed(sweep: str, recording: Recording, login: Answers) -> None:
    plan = planned(recording, sweep)
    grid = progress_grid(fetch_snapshot(plan.jobs, login), read_jobs(plan_row(job) for job in plan.jobs))

    def states(lines: list[str]) -> list[list[str]]:
        return [line.replace(",", "").replace("restarting:", "restarting").split()[:3] for line in lines[:-1]]

    assert states(progress_lines(grid)) == states(status_then(recording, sweep))


@pytest.mark.slow
@pytest.mark.parametrize("sweep", SWEEPS)
def test_a_plan_of_the_old_version_describes_the_same_jobs(
    sweep: str, recording: Recording, login: Answers
) -> None:
    then = recording.json(f"cli/plan_{sweep}.json")
    now = [plan_row(job) for job in planned(recording, sweep).jobs]
    names = ("name", "point", "stage", "run_dir", "command")
    assert [[row[name] for name in names] for row in now] == [
        [row[name] for name in names] for row in then["jobs"]
    ]
    grid = progress_grid(fetch_snapshot(planned(recording, sweep).jobs, login), read_jobs(then["jobs"]))
    assert progress_lines(grid)[-1] == status_then(recording, sweep)[-1]


def test_the_runs_of_points_are_still_waited_for(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = recording.task("carried", "main", "wait")
    trigger = import_string(row["trigger"]["classpath"])(**row["trigger"]["kwargs"])
    queried: list[str] = []

    def count(dag_id: str, run_ids: list[str]) -> int:
        queried.extend(run_ids)
        return len(run_ids)

    monkeypatch.setattr("airflow_megatron.triggers.point_runs.count_ended_runs", count)

    async def first() -> Any:
        return (await anext(trigger.wait())).payload

    event = asyncio.run(first())
    assert (event, queried) == ({"ended": 5}, ["done", "half", "waits", "fails", "queued"])
