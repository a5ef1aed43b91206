"""Operator that writes a sweep's tables and plots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_megatron.hooks.slurm import SlurmHook
from airflow_megatron.links.sweep_results import SweepResultsLink
from airflow_megatron.results.readings.progress import StageState
from airflow_megatron.supervision.attempts import slurm_commands
from airflow_megatron.task_runtime.stopping import EndsTestRun
from airflow_megatron.task_runtime.stored_plan import stored_plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow.sdk import Context

    from airflow_megatron.results.readings.progress import StageStatus
    from airflow_megatron.spec.model.jobs import Job


class SweepReportOperator(EndsTestRun, BaseOperator):
    """Fetch what the points left on the cluster and write result tables and plots.

    The task fails, after having written everything, when a job of the sweep has not finished; jobs that a condition of
    their own cancelled, and those that wait for them, are meant to be missing.

    :param pinned: the pinned sweep (templated)
    :param passed_over: names of the points that had finished before this run (templated)
    """

    template_fields: Sequence[str] = ("pinned", "passed_over")
    template_fields_renderers = {"pinned": "json"}  # noqa: RUF012
    ui_color = "#f3ecd9"
    operator_extra_links = (SweepResultsLink(),)

    def __init__(
        self,
        *,
        pinned: Mapping[str, Any] | str,
        passed_over: Sequence[str] | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.pinned = pinned
        self.passed_over = passed_over

    def execute(self, context: Context) -> list[str]:
        """Write the report; return its files."""
        from airflow_megatron.plan.run_results import ReportedRun, write_results  # only this task draws plots

        pinned = stored_plan(self.pinned)
        cluster = pinned.surroundings.cluster
        plan = pinned.plan()
        report = write_results(
            plan,
            SlurmHook(cluster.ssh_conn_id, slurm_commands(cluster)).run,
            ReportedRun.of(pinned, context["ti"].run_id, passed_over=len(self.passed_over or ())),
            digest=pinned.digest,
        )
        self.log.info("\n%s", report.text)
        for path in report.paths:
            self.log.info("wrote %s", path)
        unfinished = unfinished_jobs(plan.jobs, report.grid.cells.values())
        if unfinished:
            listed = "\n".join(
                f"  {status.job}: {status.state.value} {status.reason}" for status in unfinished[:20]
            )
            raise AirflowFailException(
                f"{len(unfinished)} jobs have not finished:\n{listed}\nReport: {report.page}"
            )
        return [str(path) for path in report.paths]


def unfinished_jobs(jobs: Iterable[Job], statuses: Iterable[StageStatus]) -> list[StageStatus]:
    """Return the jobs that should have finished and have not.

    :param jobs: all jobs, parents first
    :param statuses: their states
    """
    of_job = {status.job: status for status in statuses}
    needless = {name for name, status in of_job.items() if status.intended}
    for job in jobs:
        waits = job.name in of_job and of_job[job.name].state is StageState.WAITING
        if waits and any(dependency.job in needless for dependency in job.depends_on):
            needless.add(job.name)
    return [
        status
        for name, status in of_job.items()
        if status.state is not StageState.FINISHED and name not in needless
    ]
