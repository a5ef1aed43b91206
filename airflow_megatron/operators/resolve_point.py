"""Operator that pins the jobs of one point for the tasks of its run."""

from __future__ import annotations

import functools
import json
import random
import time
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.exceptions import AirflowFailException

from airflow_megatron.hooks.slurm import SlurmHook
from airflow_megatron.plan.pinned import PinnedSweep
from airflow_megatron.plan.pins.pin_store import PinError, PinStore
from airflow_megatron.plan.plan_environment import PlanEnvironment
from airflow_megatron.plan.sweep_cluster import sweep_clusters
from airflow_megatron.plan.sweep_owners import record_owner
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.named_files import NamedFileError, read_spec_file
from airflow_megatron.spec.model.dag_names import LAUNCH
from airflow_megatron.spec.model.outline import SweepOutline
from airflow_megatron.supervision.attempts import slurm_commands
from airflow_megatron.supervision.submission.point_placement import (
    Candidate,
    NoRoomError,
    place_point,
    record_earlier_places,
)
from airflow_megatron.task_runtime.active_runs import refuse_rewired, refuse_too_many_stages
from airflow_megatron.task_runtime.deferring_trigger import DeferringTask
from airflow_megatron.task_runtime.run_configuration import (
    LAUNCHED_POINT_KEYS,
    POINT_KEYS,
    is_from_before_pins,
    refuse_unknown_keys,
)
from airflow_megatron.task_runtime.stopping import EndsTestRun
from airflow_megatron.task_runtime.stored_plan import newest_plan
from airflow_megatron.task_runtime.task_tries import just_cleared
from airflow_megatron.triggers.pause import PauseTrigger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow.sdk import Context

    from airflow_megatron.slurm.remote.transport import CommandResult
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile

NO_ROOM_PAUSE_S: Final = 60.0
"""Seconds until a point for which no cluster has room checks the clusters again."""
ASK_S: Final = 60.0
"""Time limit in seconds for the answer of a cluster; other clusters may have room."""
ASK_CONNECTS: Final = 2


class ResolvePointOperator(EndsTestRun, DeferringTask):
    """Push each stage's job of a point as an XCom, keyed by the stage's name; None for stages that the point lacks.

    A run that the sweep's DAG launched reads the jobs from the newest pinned plan of the sweep's run. A run that a user
    started for one point plans it from the current spec, and pins that plan. In both cases, later edits do not change
    the run. Jobs are never read from the configuration of a run that a user started.

    If the sweep names several clusters, the jobs are those on the point's cluster. A point without a cluster gets one
    that has room (:mod:`airflow_megatron.supervision.submission.point_placement`), for this run and all later ones.

    :param spec_file: the sweep spec
    :param sweep: name of the sweep
    :param stages: names of all stages of the DAG
    """

    ui_color = "#f3ecd9"

    def __init__(self, *, spec_file: str, sweep: str, stages: Sequence[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.spec_file = spec_file
        self.sweep = sweep
        self.stages = list(stages)

    def execute(self, context: Context) -> str:
        """Push the jobs and return the point's name."""
        conf: dict[str, Any] = dict(context["dag_run"].conf or {})
        params = context["params"]
        point = conf.get("point") or params.get("point") or ""
        if not isinstance(point, str) or not point:
            raise AirflowFailException('which point? give the run a configuration: {"point": "<name>"}')
        if is_from_before_pins(conf, context["dag_run"]):
            return self._push(context, point, conf["jobs"])
        if "jobs" in conf:
            raise AirflowFailException(
                "jobs come from a plan, not from a run's configuration; trigger the sweep again, or this DAG with "
                f'{{"point": "{point}"}} alone'
            )
        try:
            if "pin" in conf:
                pinned = self._launched(context, conf)
            else:
                refuse_unknown_keys(conf, POINT_KEYS)
                cluster = conf.get("cluster") or params.get("cluster")
                pinned = self._planned(context["ti"], point, cluster)
                if pinned.others:
                    record_earlier_places(pinned, login_node, self.log)
            if pinned.others:
                pinned = self._placed(pinned, point)
            jobs = {job.stage: job.to_json() for job in pinned.jobs_of(point)}
        except NoRoomError as error:
            if error.is_final:
                raise AirflowFailException(str(error)) from None
            self.log.warning("%s; waiting", error)
            until = time.time() + NO_ROOM_PAUSE_S * random.uniform(0.75, 1.25)
            self.defer(trigger=PauseTrigger(until=until), method_name="resolve_again")
        except (PinError, SpecError) as error:
            raise AirflowFailException(str(error)) from None
        self.log.info("point %s of plan %s", point, pinned.pin[:16])
        return self._push(context, point, jobs)

    def resolve_again(self, context: Context, event: Any = None) -> str:
        """Check the clusters for room again."""
        return self.execute(context)

    def _placed(self, pinned: PinnedSweep, point: str) -> PinnedSweep:
        """Return the plan for the cluster of a point, which is chosen now if the point has none."""
        candidates: dict[str, Candidate] = {}
        for name, plan in pinned.by_cluster.items():
            jobs = plan.jobs_of(point)
            around = plan.plan_environment
            first = next((job for job in jobs if job.point), jobs[0])
            candidates[name] = Candidate(first, around, login_node(around.cluster))
        its = place_point(
            point, candidates, pinned.placements, self.log, fresh_s=pinned.outline.settings.poll_interval
        )
        if its.cluster not in pinned.by_cluster:
            raise PinError(
                f"point {point} runs on {its.cluster}, where its files are, and this plan is for "
                f"{' and '.join(pinned.by_cluster)}: add {its.cluster} to cluster: of {self.spec_file}, or delete "
                f"the point there (airflow-megatron delete {self.sweep} --select {point})"
            )
        self.log.info("point %s runs on %s: %s", point, its.cluster, its.why)
        return pinned.on(its.cluster)

    def _push(self, context: Context, point: str, jobs: Mapping[str, Any]) -> str:
        missing = [stage for stage in jobs if stage not in self.stages]
        if missing:
            raise AirflowFailException(
                f"the plan has a stage {missing[0]!r} that this DAG no longer has: {self.spec_file} was edited. "
                f"Trigger {self.sweep} again, or clear `plan` of its run"
            )
        for stage in self.stages:
            context["ti"].xcom_push(key=stage, value=jobs.get(stage))
        self.log.info("point %s: %s", point, ", ".join(jobs))
        return point

    def _launched(self, context: Context, conf: Mapping[str, Any]) -> PinnedSweep:
        """Return the newest pinned plan of the sweep's run that launched this run."""
        refuse_unknown_keys(conf, LAUNCHED_POINT_KEYS)
        if conf["pin"] is None or conf.get("run") is None:
            raise AirflowFailException(
                "a run with a stored plan needs both pin and run, the run of "
                f"{self.sweep} that stored it; to run the point by itself, write "
                f"{json.dumps({'point': conf.get('point')})} alone"
            )
        run_id = str(conf["run"])
        states: Any = context["ti"].get_task_states(dag_id=self.sweep, task_ids=[LAUNCH], run_ids=[run_id])
        if states.get(run_id, {}).get(LAUNCH) == "failed" and not just_cleared(context):
            raise AirflowFailException(
                f"run {run_id} of {self.sweep} was stopped while it launched its points"
            )
        pinned = newest_plan(self.sweep, run_id)
        if pinned.pin != conf["pin"]:
            self.log.info(
                "run %s of %s was planned again since it launched this one", conf["run"], self.sweep
            )
        return pinned

    def _planned(self, task_instance: Any, point: str, cluster: str | None) -> PinnedSweep:
        """Plan the point from the current spec, and store the plan for this run."""
        from airflow_megatron.plan.sweep_plan import (  # imported here, because few runs plan
            check_document,
            plan_sweep,
        )
        from airflow_megatron.spec.spec_files import load_sweep_text

        try:
            text = read_spec_file(self.spec_file)
        except (OSError, NamedFileError) as error:
            raise AirflowFailException(f"{self.spec_file} cannot be read: {error}") from None
        sweep = load_sweep_text(text, self.spec_file)
        around = [PlanEnvironment.now(one) for one in sweep_clusters(sweep, cluster)]
        plans = []
        for one in around:
            check_document(sweep, one.cluster)
            plans.append((plan_sweep(sweep, one.cluster, [sweep.point(point)]), one))
        store, outline = PinStore(), SweepOutline.of(sweep)
        refuse_rewired(outline, task_instance.run_id, store)
        refuse_too_many_stages(outline, store)
        with store.writing():
            pinned = PinnedSweep.stored_on_clusters(sweep, text, plans, store, choice=point)
            pinned.use(task_instance.dag_id, task_instance.run_id)
        if store.owner(sweep.name) is None:
            record_owner(sweep.name, self.spec_file, store)
        return pinned


def login_node(cluster: ClusterProfile) -> Callable[[str], CommandResult]:
    """Return a function that runs scripts on the login node of one of several clusters, with a short time limit."""
    hook = SlurmHook(cluster.ssh_conn_id, slurm_commands(cluster), ASK_CONNECTS, kept=True)
    return functools.partial(hook.run, timeout=ASK_S)
