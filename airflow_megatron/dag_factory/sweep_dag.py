"""The DAG of a whole sweep, which users trigger: plan, launch the points, wait, report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import DAG, Param

from airflow_megatron.assets.sweep_assets import announce_report, report_alias
from airflow_megatron.dag_factory.callbacks import callbacks
from airflow_megatron.dag_factory.point_dag import StageTasks, cluster_param, set_params
from airflow_megatron.links.sweep_results import PAGE_ROUTE, URL_PREFIX
from airflow_megatron.operators.launch_points import LaunchPointsOperator
from airflow_megatron.operators.plan_sweep import PlanSweepOperator
from airflow_megatron.operators.push_records import PushRecordsOperator
from airflow_megatron.operators.submit_arrays import SubmitArraysOperator
from airflow_megatron.operators.sweep_report import SweepReportOperator
from airflow_megatron.sensors.point_runs import PointRunsSensor
from airflow_megatron.spec.model.dag_names import ARRAYS, LAUNCH, PLAN, REPORT, TRACKERS, WAIT, point_dag_id
from airflow_megatron.spec.trust.plain_text import without_images
from airflow_megatron.task_runtime.run_configuration import MOST_POINTS
from airflow_megatron.task_runtime.stored_plan import MACROS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.spec.model.outline import SweepOutline


def build_sweep_dag(sweep: SweepOutline, defaults: Mapping[str, object]) -> DAG:
    """Build the DAG of a sweep.

    Stages that run once for the sweep (data preparation) run between ``plan`` and ``launch``, and so does the
    submission of job arrays, if the sweep has any.

    :param sweep: outline of the sweep
    :param defaults: ``default_args``
    """
    with DAG(
        dag_id=sweep.name,
        description=sweep.settings.description,
        doc_md=_doc(sweep),
        schedule=None,
        catchup=False,
        is_paused_upon_creation=False,
        default_args=dict(defaults),
        render_template_as_native_obj=True,
        tags=["megatron", "sweep", *sweep.settings.tags],
        user_defined_macros=MACROS,
    ) as dag:
        plan = PlanSweepOperator(
            task_id=PLAN,
            spec_file=sweep.file,
            # raw, because the choice may be an expression of the points' values
            points="{{ '%r' | format(params.points or '') }}",
            limit="{{ params.limit or 0 }}",
            cluster="{{ params.cluster }}",
            plan_only="{{ params.dry_run }}",
        )
        pinned = "{{ ti.xcom_pull(task_ids='plan') }}"
        arrays = None
        if any(instance.array for instance in sweep.tree):
            arrays = SubmitArraysOperator(
                task_id=ARRAYS,
                pinned=pinned,
                plan_only="{{ params.dry_run }}",
            )
        launch = LaunchPointsOperator(
            task_id=LAUNCH,
            point_dag_id=point_dag_id(sweep.name),
            pinned=pinned,
            plan_only="{{ params.dry_run }}",
            fresh_start="{{ params.fresh_start }}",
            submitted="{{ ti.xcom_pull(task_ids='arrays') }}" if arrays else None,
            most_at_once=sweep.settings.max_active_points,
        )
        wait = PointRunsSensor(
            task_id=WAIT,
            point_dag_id=point_dag_id(sweep.name),
            runs="{{ ti.xcom_pull(task_ids='launch') }}",
            poll_interval=sweep.settings.poll_interval,
        )
        report = SweepReportOperator(
            task_id=REPORT,
            pinned=pinned,
            passed_over="{{ ti.xcom_pull(task_ids='launch', key='passed_over') }}",
            on_success_callback=callbacks(sweep, "report", always=True),
            outlets=[report_alias(sweep.name)],
            post_execute=announce_report,
        )
        shared = StageTasks(sweep, plan, fresh_start="{{ params.fresh_start }}")
        # with several clusters, they run once on each cluster that a point uses, in the runs of the points
        for instance in () if sweep.settings.clusters else sweep.shared_stages:
            shared.add(instance) >> (arrays or launch)
        shared.add_teardown()
        if arrays:
            plan >> arrays >> launch
        plan >> launch >> wait >> report
        if sweep.settings.trackers:
            launch >> PushRecordsOperator(
                task_id=TRACKERS,
                pinned=pinned,
                point_dag_id=point_dag_id(sweep.name),
                runs="{{ ti.xcom_pull(task_ids='launch') }}",
                plan_only="{{ params.dry_run }}",
            )
    set_params(
        dag,
        # null: the trigger form insists on a value otherwise
        points=Param(
            None,
            type=["null", "string"],
            title="Points",
            description="All when empty; name patterns (S_*,M_lr0.001) or an expression ({{ lr < 1e-2 }})",
        ),
        limit=Param(
            None,
            type=["null", "integer"],
            minimum=1,
            maximum=MOST_POINTS,
            title="Limit",
            description="At most this many points; all when empty",
        ),
        cluster=cluster_param(sweep),
        dry_run=Param(False, type="boolean", title="Dry run", description="Plan, but start nothing"),
        fresh_start=Param(False, type="boolean", title="Fresh start", description="Run finished jobs again"),
    )
    return dag


def _doc(sweep: SweepOutline) -> str:
    point_dag = point_dag_id(sweep.name)
    # Airflow's page sets a base address, so these links are correct for any prefix
    grid, results = f"dags/{point_dag}", f"plugin/{PAGE_ROUTE}{URL_PREFIX}/sweeps/{sweep.name}"
    return (
        f"{without_images(sweep.settings.description)}\n\n"
        f"`launch` starts one run of [{point_dag}]({grid}) for every point; "
        f"its grid is the sweep: stages down, points across. `report` writes the [results]({results}).\n\n"
        "A second run of this DAG continues the sweep: it skips what has finished.\n"
    )
