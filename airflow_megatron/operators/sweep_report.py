"""Operator that writes a sweep's tables and plots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_megatron.hooks.slurm import SlurmHook
from airflow_megatron.links.sweep_results import SweepResultsLink
from airflow_megatron.notices.notice import edge_notice
from airflow_megatron.notifications.notices import send
from airflow_megatron.results.fits.edges import edge_texts
from airflow_megatron.results.readings.progress import StageState
from airflow_megatron.results.report.atomic_files import write_atomically
from airflow_megatron.slurm.remote.transport import LoginExpiredError
from airflow_megatron.spec.documents.quantities import counted
from airflow_megatron.supervision.attempts import slurm_commands
from airflow_megatron.task_runtime.stopping import EndsTestRun
from airflow_megatron.task_runtime.stored_plan import stored_plan
from airflow_megatron.triggers.pause import wait_for_login

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from airflow.sdk import Context

    from airflow_megatron.results.fits.sweep_fits import SweepFits
    from airflow_megatron.results.readings.progress import StageStatus
    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.spec.model.schema import NotifySection

EDGES_NOTED: Final = ".edge_notice.txt"
"""File beside a report with the last notice of optima at the edge."""


class SweepReportOperator(EndsTestRun, BaseOperator):
    """Fetch the results of the points from the cluster and write result tables and plots.

    After it has written all files, the task fails if a job of the sweep has not finished; jobs that were cancelled by
    their conditions, and jobs that depend on them, may be missing.

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

        pinned = stored_plan(self.pinned, context)
        plan = pinned.placed_plan()
        used = {job.cluster for job in plan.jobs}
        profiles = {
            name: one.plan_environment.cluster for name, one in pinned.by_cluster.items() if name in used
        }
        try:
            report = write_results(
                plan,
                {name: SlurmHook(one.ssh_conn_id, slurm_commands(one)).run for name, one in profiles.items()},
                ReportedRun.of(pinned, context["ti"].run_id, passed_over=len(self.passed_over or ())),
                digest=pinned.digest,
            )
        except LoginExpiredError as error:
            wait_for_login(self, error, "execute_again")
        self.log.info("\n%s", report.text)
        for path in report.paths:
            self.log.info("wrote %s", path)
        if report.fits is not None:
            report_edges(report.fits, plan.sweep, report.page, pinned.outline.settings.notify)
        unfinished = unfinished_jobs(plan.jobs, report.grid.cells.values())
        if unfinished:
            listed = "\n".join(
                f"  {status.job}: {status.state.value} {status.reason}" for status in unfinished[:20]
            )
            raise AirflowFailException(
                f"{counted(len(unfinished), 'job has', 'jobs have')} not finished:\n{listed}\nReport: {report.page}"
            )
        return [str(path) for path in report.paths]

    def execute_again(self, context: Context, event: Any = None) -> list[str]:
        """Continue after a wait for the login."""
        return self.execute(context)


def report_edges(fits: SweepFits, sweep: str, page: Path, sections: Sequence[NotifySection]) -> None:
    """Send a notice of optima at the edge of the tested values, unless the last report found the same ones.

    :param page: page of the run's report; the sent notice is recorded beside it
    :param sections: the spec's ``notify``
    """
    edges = edge_texts(fits)
    noted = page.parent / EDGES_NOTED
    if not edges or (noted.is_file() and noted.read_text(encoding="utf-8") == "\n".join(edges)):
        return
    send(sections, edge_notice(sweep, edges, str(page)))
    write_atomically(noted, "\n".join(edges))


def unfinished_jobs(jobs: Iterable[Job], statuses: Iterable[StageStatus]) -> list[StageStatus]:
    """Return the jobs that should have finished but have not, blocked ones last.

    :param jobs: all jobs, parents first
    :param statuses: states of the jobs
    """
    of_job = {status.job: status for status in statuses}
    needless = {name for name, status in of_job.items() if status.intended}
    for job in jobs:
        waits = job.name in of_job and of_job[job.name].state in (StageState.WAITING, StageState.BLOCKED)
        if waits and any(dependency.job in needless for dependency in job.depends_on):
            needless.add(job.name)
    unfinished = [
        status
        for name, status in of_job.items()
        if status.state is not StageState.FINISHED and name not in needless
    ]
    return sorted(unfinished, key=lambda status: status.state is StageState.BLOCKED)
