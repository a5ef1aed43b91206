"""Operator that checks, expands and pins a sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_megatron.plan.pinned import PinnedSweep
from airflow_megatron.plan.pins.pin_pruning import prune_when_due
from airflow_megatron.plan.pins.pin_store import PinStore
from airflow_megatron.plan.plan_environment import PlanEnvironment
from airflow_megatron.plan.sweep_cluster import sweep_clusters
from airflow_megatron.plan.sweep_owners import record_owner
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.named_files import NamedFileError, read_spec_file
from airflow_megatron.spec.model.dag_names import point_dag_id
from airflow_megatron.spec.model.outline import SweepOutline
from airflow_megatron.task_runtime.active_runs import is_known, refuse_rewired, refuse_too_many_stages
from airflow_megatron.task_runtime.run_configuration import SWEEP_KEYS, refuse_unknown_keys
from airflow_megatron.task_runtime.stopping import EndsTestRun

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

LOGGED_JOBS = 200
"""Number of jobs that the log names; each line is a message to the process that supervises the task."""


class PlanSweepOperator(EndsTestRun, BaseOperator):
    """Expand a sweep spec, check it, and store what the run executes.

    Returns a reference to the stored plan (:class:`airflow_megatron.plan.pinned.PinnedSweep`), which everything
    after it reads; pushes the jobs that run once for the sweep under their stages' names.

    :param spec_file: the sweep spec
    :param points: selection of points, see :func:`airflow_megatron.plan.point_choice.choose_points` (templated)
    :param limit: maximum number of points (templated)
    :param cluster: cluster profile that replaces those of the spec (templated)
    :param plan_only: push no jobs, so that the tasks after it submit none (templated)
    """

    template_fields: Sequence[str] = ("points", "limit", "cluster", "plan_only")
    ui_color = "#f3ecd9"

    def __init__(
        self,
        *,
        spec_file: str,
        points: str = "",
        limit: int | str | None = None,
        cluster: str | None = None,
        plan_only: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.spec_file = spec_file
        self.points = points
        self.limit = limit
        self.cluster = cluster
        self.plan_only = plan_only

    def execute(self, context: Context) -> dict[str, Any]:
        """Check and store the plan of the chosen points."""
        # every task of the DAG imports this module, and only this one plans
        from airflow_megatron.plan.point_choice import choose_points
        from airflow_megatron.plan.sweep_plan import check_on_clusters
        from airflow_megatron.spec.spec_files import load_sweep_text

        refuse_unknown_keys(context["dag_run"].conf, SWEEP_KEYS)
        store = PinStore()
        choice, limit = str(self.points or ""), int(self.limit or 0) or None
        try:
            text = read_spec_file(self.spec_file)
            sweep = load_sweep_text(text, self.spec_file)
            around = [PlanEnvironment.now(one) for one in sweep_clusters(sweep, str(self.cluster or ""))]
            chosen = choose_points(sweep, choice, limit)
            plans = check_on_clusters(sweep, [one.cluster for one in around], chosen)
        except SpecError as error:
            raise AirflowFailException(str(error)) from None
        except (OSError, NamedFileError) as error:
            raise AirflowFailException(f"{self.spec_file} cannot be read: {error}") from None
        for warning in dict.fromkeys(warning for plan in plans for warning in plan.warnings):
            self.log.warning("%s", warning)
        run_id, outline = context["ti"].run_id, SweepOutline.of(sweep)
        refuse_rewired(outline, run_id, store)
        refuse_too_many_stages(outline, store)
        with store.writing():
            pinned = PinnedSweep.stored_on_clusters(
                sweep, text, list(zip(plans, around, strict=True)), store, choice=choice, limit=limit
            )
            pinned.use(sweep.name, run_id)
        for job in () if self.plan_only else pinned.shared_jobs():
            context["ti"].xcom_push(key=job.stage, value=job.to_json())
        plan = plans[0]
        names = " or ".join(pinned.by_cluster)
        self.log.info("%s on %s: %d points, %d jobs", sweep.name, names, len(plan.points), len(plan.jobs))
        for job in plan.jobs[:LOGGED_JOBS]:
            waits = ", ".join(f"{item.job} {item.to_plan()['until']}" for item in job.depends_on)
            self.log.info("  %s%s", job.name, f"  after {waits}" if waits else "")
        if len(plan.jobs) > LOGGED_JOBS:
            more = len(plan.jobs) - LOGGED_JOBS
            self.log.info("  and %d more; all of them: airflow-megatron plan %s", more, sweep.name)
        record_owner(sweep.name, self.spec_file, store)
        self.log.info("stored as %s", pinned.pin[:16])
        prune_when_due(store, (sweep.name, point_dag_id(sweep.name)), is_known)
        return pinned.to_json()
