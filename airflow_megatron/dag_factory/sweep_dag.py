"""The DAG of a whole sweep, the one a person triggers: plan, launch the points, wait, report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import DAG, Param

from airflow_megatron.dag_factory.point_dag import StageTasks, point_dag_id
from airflow_megatron.operators.launch_points import LaunchPointsOperator
from airflow_megatron.operators.plan_sweep import PlanSweepOperator
from airflow_megatron.operators.sweep_report import SweepReportOperator
from airflow_megatron.sensors.point_runs import PointRunsSensor
from airflow_megatron.spec.cluster_profile import cluster_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.spec.sweep import Sweep


def build_sweep_dag(sweep: Sweep, defaults: Mapping[str, object]) -> DAG:
    """Build the DAG of a sweep.

    Stages that run once for the sweep (data preparation) run between ``plan`` and ``launch``.

    :param sweep: the loaded sweep; its points are not expanded
    :param defaults: ``default_args``
    """
    with DAG(
        dag_id=sweep.name,
        description=sweep.settings.description,
        doc_md=_doc(sweep),
        schedule=None,
        catchup=False,
        default_args=dict(defaults),
        render_template_as_native_obj=True,
        tags=["megatron", "sweep", *sweep.settings.tags],
        params={
            "points": Param(
                "",
                type="string",
                title="Points",
                description="All when empty; name patterns (S_*,M_lr0.001) or an expression ({{ lr < 1e-2 }})",
            ),
            "limit": Param(
                0, type="integer", minimum=0, title="Limit", description="At most this many; 0: all"
            ),
            "cluster": Param(
                sweep.settings.cluster,
                type="string",
                enum=sorted({sweep.settings.cluster, *cluster_names()}),
                title="Cluster",
            ),
            "dry_run": Param(False, type="boolean", title="Dry run", description="Plan, but start nothing"),
            "fresh_start": Param(
                False, type="boolean", title="Fresh start", description="Run finished jobs again"
            ),
        },
    ) as dag:
        plan = PlanSweepOperator(
            task_id="plan",
            spec_file=sweep.document.file,
            # raw: the choice may be an expression on the points' values
            points="{{ params.points | tojson }}",
            limit="{{ params.limit }}",
            cluster="{{ params.cluster }}",
        )
        pinned = "{{ ti.xcom_pull(task_ids='plan') }}"
        launch = LaunchPointsOperator(
            task_id="launch",
            point_dag_id=point_dag_id(sweep.name),
            pinned=pinned,
            plan_only="{{ params.dry_run }}",
            fresh_start="{{ params.fresh_start }}",
        )
        wait = PointRunsSensor(
            task_id="wait",
            point_dag_id=point_dag_id(sweep.name),
            runs="{{ ti.xcom_pull(task_ids='launch') }}",
            poll_interval=sweep.settings.poll_interval,
        )
        report = SweepReportOperator(task_id="report", pinned=pinned)
        shared = StageTasks(sweep, plan, fresh_start="{{ params.fresh_start }}")
        for instance in sweep.shared_stages:
            shared.add(instance) >> launch
        plan >> launch >> wait >> report
    return dag


def _doc(sweep: Sweep) -> str:
    return (
        f"{sweep.settings.description}\n\n`launch` starts one run of `{point_dag_id(sweep.name)}` for every point; "
        "its grid is the sweep: stages down, points across. A second run of this DAG goes on: what has finished "
        "is passed over.\n"
    )
