"""Access of a task to the pinned plan of its run."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import get_current_context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from jinja2 import pass_context

from airflow_megatron.plan.pinned import PinnedSweep, pinned_plan_environment, plan_environment_of
from airflow_megatron.plan.pins.pin_store import PinError, PinStore
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.layout.run_layout import checkpoint_dir_of, log_pattern_of, stage_dir_of
from airflow_megatron.spec.model.dag_names import sweep_of
from airflow_megatron.task_runtime.run_configuration import is_from_before_pins
from airflow_megatron.task_runtime.task_tries import just_cleared

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from airflow.sdk import Context

    from airflow_megatron.plan.plan_environment import PlanEnvironment
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.spec.model.outline import SweepOutline


_NO_STAGE: Final = "this point has no such stage"
CHANGED: Final = "changed since this run was planned"


def stored_plan(reference: Mapping[str, Any] | str | None, context: Context) -> PinnedSweep:
    """Return the plan to which the result of ``plan`` refers.

    Whoever may write XComs of the DAG cannot name the plan of another sweep or run.

    :raises AirflowFailException: if it cannot be read, or is not of this run
    """
    if not isinstance(reference, dict):
        raise AirflowFailException("`plan` has stored nothing in this run; clear `plan`")
    store = PinStore()
    if "text" in reference:
        is_own = predates_pins(context, store)
    else:
        is_own = reference.get("pin") in store.pins_of(*_pinned_by(context))
    if not is_own:
        raise AirflowFailException("the result of `plan` is not a plan of this run; clear `plan`")
    try:
        plan = PinnedSweep.from_json(reference, store)
    except (PinError, SpecError) as error:
        raise AirflowFailException(str(error)) from None
    if plan.sweep != sweep_of(context["ti"].dag_id):
        raise AirflowFailException(f"the result of `plan` is a plan of {plan.sweep}; clear `plan`")
    return plan


def own_job(context: Context, source: str, stage: str) -> dict[str, Any] | None:
    """Return the job of a stage that a task has pushed, as it was planned for this run.

    The XCom only refers to it, so that whoever may write XComs of the DAG can run no other command, and with no other
    connection.

    :param source: id of the task that pushed it
    :param stage: name of the stage
    :return: None if the run has no such stage
    :raises AirflowFailException: if the XCom does not refer to a plan of this run
    """
    pushed: Any = context["ti"].xcom_pull(task_ids=source, key=stage)
    if pushed is None:
        return None
    conf: Mapping[str, Any] = context["dag_run"].conf or {}
    try:
        if isinstance(pushed, dict):
            if pushed.get("pin"):
                return _pinned_job(context, conf, str(pushed["pin"]), stage)
            if is_from_before_pins(conf, context["dag_run"]):
                return dict(conf["jobs"][stage])
            if predates_pins(context, PinStore()):
                return pushed
    except (PinError, KeyError, TypeError, ValueError) as error:
        reason = str(error) if isinstance(error, PinError) else "it is not in the run's configuration"
        raise AirflowFailException(f"the job of {stage} cannot be read: {reason}; clear `{source}`") from None
    raise AirflowFailException(f"the job of {stage} that `{source}` pushed has no plan; clear `{source}`")


def _pinned_job(context: Context, conf: Mapping[str, Any], pin: str, stage: str) -> dict[str, Any] | None:
    dag_id = context["ti"].dag_id
    point = ""
    if dag_id != sweep_of(dag_id):
        point = str(conf.get("point") or context["params"].get("point") or "")
    return _jobs_of_run(PinStore().root, *_pinned_by(context), pin, point).get(stage)


@functools.lru_cache(maxsize=4)
def _jobs_of_run(root: Path, dag_id: str, run_id: str, pin: str, point: str) -> Mapping[str, dict[str, Any]]:
    """Return stage → job of a point, or of the sweep, in a plan that a run has stored.

    :raises PinError: if the run has not stored this plan, or it cannot be read
    """
    store = PinStore(root)
    known = store.pins_of(dag_id, run_id)
    # each plan of a sweep on several clusters names those for the other clusters
    if pin not in known and not any(pin in PinnedSweep.read(one, store).others.values() for one in known):
        raise PinError(f"run {run_id!r} of {dag_id} has not stored the plan {pin[:16]!r}")
    plan = PinnedSweep.read(pin, store)
    if plan.sweep != sweep_of(dag_id):
        raise PinError(f"the plan {pin[:16]!r} is of {plan.sweep}, not of {sweep_of(dag_id)}")
    return {job.stage: job.to_json() for job in (plan.jobs_of(point) if point else plan.shared_jobs())}


def predates_pins(context: Context, store: PinStore) -> bool:
    """Return whether a run was started by a version of this package that stored no plans."""
    began, started = store.began(), getattr(context["dag_run"], "start_date", None)
    return began is None or (started is not None and started.timestamp() < began)


def job_plan_environment(job: Job) -> PlanEnvironment:
    """Return the pinned cluster profile and files of a job's run.

    :raises AirflowFailException: if they cannot be read
    """
    try:
        return plan_environment_of(job)
    except (PinError, SpecError) as error:
        raise AirflowFailException(str(error)) from None


def cluster_profile(cluster: str, pin: str) -> ClusterProfile:
    """Return the cluster profile in a stored plan; without a plan, the current profile.

    :raises AirflowFailException: if it cannot be read
    """
    try:
        return pinned_plan_environment(pin, cluster).cluster
    except (PinError, SpecError) as error:
        raise AirflowFailException(str(error)) from None


def newest_plan(sweep: str, run_id: str, store: PinStore | None = None) -> PinnedSweep:
    """Return the newest pinned plan of a sweep's run.

    :raises PinError: if the run has no plan, or it cannot be read
    """
    store = store or PinStore()
    digest = store.newest(sweep, run_id)
    if digest is None:
        raise PinError(f"run {run_id!r} of {sweep} has stored no plan in {store.root}; trigger {sweep} again")
    plan = PinnedSweep.read(digest, store)
    if plan.sweep != sweep:
        raise PinError(f"the plan {digest[:16]} is of {plan.sweep}, not of {sweep}")
    return plan


@pass_context
def planned_job(context: Context, source: str, stage: str) -> dict[str, Any] | None:
    """Return a stage's job for the templates of a task.

    This is the job with which the run started. In a task that a user has cleared, it is the job in the newest plan of
    the sweep's run, because a user who has cleared ``plan`` after a correction expects the new plan.

    :param source: id of the task that pushed it
    :param stage: name of the stage
    """
    job = own_job(context, source, stage)
    if job is None or not job.get("pin") or not just_cleared(context):
        return job
    conf: dict[str, Any] = context["dag_run"].conf or {}
    run_id = conf.get("run")
    if not run_id:
        return job
    try:
        newest = newest_plan(job["sweep"], str(run_id)).on(job["cluster"])
        if newest.pin == job["pin"]:
            return job
        jobs = newest.jobs_of(str(conf["point"]))
    except PinError:
        return job  # the stages that it pushed still exist
    return next((found.to_json() for found in jobs if found.stage == stage), None)


def job_paths(job: Mapping[str, Any] | None, stage: str) -> dict[str, str | None]:
    """Return the paths of a job for the templates of a task: ``stage_dir``, ``checkpoint_dir``, ``log_pattern``.

    :param job: result of :func:`planned_job`; for None there are no paths
    :param stage: name of its stage
    """
    if not job:
        return dict.fromkeys(("stage_dir", "checkpoint_dir", "log_pattern"))
    run_dir = str(job["run_dir"])
    return {
        "stage_dir": stage_dir_of(run_dir, stage),
        "checkpoint_dir": checkpoint_dir_of(run_dir),
        "log_pattern": job.get("log") or log_pattern_of(run_dir, stage),
    }


MACROS: Final = {"planned_job": planned_job, "job_paths": job_paths}
"""The functions that the templates of a sweep's tasks call."""


def pinned_by(dag_id: str, run_id: str, conf: Mapping[str, Any]) -> tuple[str, str]:
    """Return DAG and run with the pin that a run uses: those of the launching run of the sweep, or its own."""
    launched_by = conf.get("run")
    return (sweep_of(dag_id), str(launched_by)) if launched_by else (dag_id, run_id)


def _pinned_by(context: Context) -> tuple[str, str]:
    """Return DAG and run with the pin that the run of a task uses."""
    task_instance, run = context["ti"], context.get("dag_run")
    return pinned_by(task_instance.dag_id, task_instance.run_id, (run and run.conf) or {})


def pinned_outline(context: Context) -> SweepOutline | None:
    """Return the newest outline that a task's run has pinned; None if there is no readable one."""
    store = PinStore()
    digest = store.newest(*_pinned_by(context))
    try:
        return PinnedSweep.read(digest, store).outline if digest else None
    except (PinError, ValueError):
        return None


def without_job() -> AirflowSkipException:
    """Return why the running task has no job: a dry run, a point without the stage, or a plan without it."""
    try:
        context = get_current_context()
    except RuntimeError:
        return AirflowSkipException(_NO_STAGE)
    if (context.get("params") or {}).get("dry_run"):
        return AirflowSkipException("dry run: this stage is not started")
    pinned, task_instance = pinned_outline(context), context["ti"]
    stage = task_instance.task_id.rpartition(".")[0]
    if pinned is None or any(instance.name == stage for instance in pinned.tree):
        return AirflowSkipException(_NO_STAGE)
    launched_by = (context["dag_run"].conf or {}).get("run")
    clear = _clear_hint(pinned.name, task_instance.dag_id, launched_by)
    return AirflowSkipException(
        f"this run was planned before the spec had a stage {stage!r}; to run it, {clear}"
    )


def report_changes(context: Context, job: Job, log: Any) -> None:
    """Warn in the log of a cleared task if the spec has changed since the run was planned."""
    if not job.pin:
        return
    try:
        changed = PinnedSweep.read(job.pin).changes()
    except PinError as error:
        raise AirflowFailException(str(error)) from None
    if changed:
        conf = context["dag_run"].conf or {}
        log.warning("%s", changed_message(changed, job.sweep, context["ti"].dag_id, conf.get("run")))


def changed_message(changed: list[str], sweep: str, dag_id: str, launched_by: str | None) -> str:
    """Return a message: what has changed since a run was planned, and what to clear to use the changes.

    :param changed: names of the changed sources
    :param dag_id: the DAG of the run
    :param launched_by: the sweep's run that launched it, None for a run that a user started
    """
    clear = _clear_hint(sweep, dag_id, launched_by)
    return f"{CHANGED}: {', '.join(changed)}. Its tasks execute what was planned; to take the change, {clear}"


def _clear_hint(sweep: str, dag_id: str, launched_by: str | None) -> str:
    if dag_id == sweep:
        return "clear `plan` of this run, with what follows it"
    if launched_by:
        return f"clear `plan` of run {launched_by} of {sweep}, then the failed tasks of this run"
    return "clear `resolve` of this run, with what follows it"
