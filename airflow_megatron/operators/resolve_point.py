"""Operator that pins the jobs of one point for the tasks of its run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_megatron.planning.plan import check_document, plan_point
from airflow_megatron.spec.cluster_profile import load_cluster
from airflow_megatron.spec.errors import SpecError
from airflow_megatron.spec.spec_files import load_sweep

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context


class ResolvePointOperator(BaseOperator):
    """Push each stage's job of a point as an XCom, keyed by the stage's name; None for stages that the point lacks.

    The jobs come with the run when the sweep's DAG launched it. A run that a person started for one point has them
    expanded from the spec as it is now; either way later edits of the spec do not change the run.

    :param spec_file: the sweep spec
    :param stages: names of all stages of the DAG
    """

    ui_color = "#f3ecd9"

    def __init__(self, *, spec_file: str, stages: Sequence[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.spec_file = spec_file
        self.stages = list(stages)

    def execute(self, context: Context) -> str:
        """Push the jobs and return the point's name."""
        conf: dict[str, Any] = dict(context["dag_run"].conf or {})
        params = context["params"]
        point = str(conf.get("point") or params.get("point") or "")
        if not point:
            raise AirflowFailException('which point? give the run a configuration: {"point": "<name>"}')
        jobs: dict[str, Any] = conf.get("jobs") or self._expand(
            point, conf.get("cluster") or params.get("cluster")
        )
        for stage in self.stages:
            context["ti"].xcom_push(key=stage, value=jobs.get(stage))
        self.log.info("point %s: %s", point, ", ".join(stage for stage in self.stages if jobs.get(stage)))
        return point

    def _expand(self, point: str, cluster: str | None) -> dict[str, Any]:
        try:
            sweep = load_sweep(self.spec_file)
            profile = load_cluster(cluster or sweep.settings.cluster)
            check_document(sweep, profile)
            return {job.stage: job.to_json() for job in plan_point(sweep, sweep.point(point), profile)}
        except SpecError as error:
            raise AirflowFailException(str(error)) from None
