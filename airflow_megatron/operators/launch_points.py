"""Operator that starts one run of the point DAG for every point."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_megatron.airflow_commands.forked_command import ForkedCommand
from airflow_megatron.hooks.slurm import SlurmHook
from airflow_megatron.operators.resolve_point import login_node
from airflow_megatron.plan.job_scripts import job_digest
from airflow_megatron.plan.pinned import point_digest
from airflow_megatron.slurm.remote.finished_stages import finished_stages_script
from airflow_megatron.slurm.remote.transport import TransportError
from airflow_megatron.slurm.verdicts.stage_records import parse_stage_states
from airflow_megatron.spec.documents.quantities import counted
from airflow_megatron.supervision.attempts import next_attempt, slurm_commands
from airflow_megatron.supervision.submission.point_placement import points_with_files, record_earlier_places
from airflow_megatron.task_runtime.point_runs import (
    has_point_run,
    point_run,
    point_run_id,
    runs_without_scheduler,
    trigger_point_run,
)
from airflow_megatron.task_runtime.stopping import EXIT_STATUS, EndsTestRun
from airflow_megatron.task_runtime.stored_plan import stored_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from airflow.sdk import Context

    from airflow_megatron.plan.pinned import PinnedSweep
    from airflow_megatron.slurm.remote.transport import CommandResult
    from airflow_megatron.spec.model.jobs import Job

TEST_WORKERS = 3
HELPER_END_S = 15
PASSED_OVER = "passed_over"
"""Key of the XCom with the names of the points that were skipped."""
_STARTING = threading.Lock()
"""Held while a process is started, so that no process starts after the others have been ended; operators are copied,
so it is not an attribute.
"""


class LaunchPointsOperator(EndsTestRun, BaseOperator):
    """Start a run of the point DAG for every point; its configuration refers to the stored plan.

    The run id is the point's name, see :func:`~airflow_megatron.task_runtime.point_runs.point_run_id`. A point whose
    run is in progress or has succeeded with the same jobs is not started again; after a failure, with different jobs,
    or if the run directories of a succeeded run are gone, ``<point>~2`` is started, which skips the finished jobs. A
    point that would submit no job is skipped without a run. One remote command finds these points; their names are in
    the XCom ``passed_over``. Under ``airflow dags test``, without a scheduler, this task executes the runs, a few at a
    time.

    :param point_dag_id: the point DAG
    :param pinned: the pinned sweep (templated)
    :param plan_only: start no runs (templated)
    :param fresh_start: run all jobs again (templated)
    :param submitted: attempts that were submitted before: point → stage → number (templated)
    :param most_at_once: maximum number of concurrent runs; with a scheduler, the point DAG limits them
    """

    template_fields: Sequence[str] = ("pinned", "plan_only", "fresh_start", "submitted")
    template_fields_renderers = {"pinned": "json"}  # noqa: RUF012
    ui_color = "#f3ecd9"

    def __init__(
        self,
        *,
        point_dag_id: str,
        pinned: Mapping[str, Any] | str,
        plan_only: bool | str = False,
        fresh_start: bool | str = False,
        submitted: Mapping[str, Mapping[str, int]] | str | None = None,
        most_at_once: int = TEST_WORKERS,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.point_dag_id = point_dag_id
        self.pinned = pinned
        self.plan_only = plan_only
        self.fresh_start = fresh_start
        self.submitted = submitted
        self.workers = min(most_at_once, TEST_WORKERS)
        self._helpers: list[ForkedCommand] = []
        self._is_ending = False

    def execute(self, context: Context) -> dict[str, str]:
        """Start the runs; return point → run id of the runs that are started or in progress."""
        pinned = stored_plan(self.pinned, context)
        if self.plan_only:
            raise AirflowSkipException(
                f"dry run: {counted(len(pinned.points), 'point is', 'points are')} not started"
            )
        if pinned.others:
            record_earlier_places(pinned, login_node, self.log)
        finished = set() if self.fresh_start else self._finished_points(pinned)
        confs = self.configurations(pinned, context["ti"].run_id)
        if runs_without_scheduler():
            runs = self._execute_runs({point: conf for point, conf in confs.items() if point not in finished})
        else:
            with_files = lru_cache(partial(self._points_with_files, pinned))
            launched = {
                point: self._launch(point, conf, finished=point in finished, with_files=with_files)
                for point, conf in confs.items()
            }
            runs = {point: run_id for point, run_id in launched.items() if run_id is not None}
        passed_over = [point for point in confs if point not in runs]
        if passed_over:
            names = ", ".join(passed_over)
            self.log.info(
                "%d of %d points have finished and are not started again: %s",
                len(passed_over),
                len(confs),
                names,
            )
        context["ti"].xcom_push(key=PASSED_OVER, value=passed_over)
        return runs

    def _finished_points(self, pinned: PinnedSweep) -> set[str]:
        if not pinned.others:
            return self._finished_on(pinned, pinned.jobs_by_point)
        placed = pinned.placements.read()
        found: set[str] = set()
        for name, plan in pinned.by_cluster.items():
            points = [point for point in plan.points if point in placed and placed[point].cluster == name]
            if points:
                found |= self._finished_on(
                    plan, {point: plan.jobs_by_point.get(point, ()) for point in ("", *points)}
                )
        return found

    def _finished_on(self, plan: PinnedSweep, jobs: Mapping[str, Sequence[Job]]) -> set[str]:
        cluster = plan.plan_environment.cluster
        try:
            return finished_points(jobs, SlurmHook(cluster.ssh_conn_id, slurm_commands(cluster)).run)
        except TransportError as error:
            self.log.warning("%s; which points have finished is seen in their runs", error)
            return set()

    def _points_with_files(self, pinned: PinnedSweep) -> Collection[str]:
        found: set[str] = set()
        for plan in pinned.by_cluster.values():
            cluster = plan.plan_environment.cluster
            jobs = {point: plan.jobs_by_point.get(point, ()) for point in plan.points}
            try:
                found |= points_with_files(jobs, SlurmHook(cluster.ssh_conn_id, slurm_commands(cluster)).run)
            except TransportError as error:
                self.log.warning("%s; runs that have succeeded are not started again", error)
                return pinned.points
        return found

    def configurations(self, pinned: PinnedSweep, run_id: str) -> dict[str, dict[str, Any]]:
        """Return point → configuration of its run, which is small because ``airflow dags test`` takes it as one
        argument.

        :param run_id: id of the sweep's run
        """
        submitted: Mapping[str, Mapping[str, int]] = self.submitted or {}  # type: ignore[assignment]
        jobs = [plan.jobs_by_point for plan in pinned.by_cluster.values()]
        return {
            point: {
                "point": point,
                "pin": pinned.pin,
                "run": run_id,
                "digest": point_digest(
                    [job for its in jobs for job in (*its.get("", ()), *its.get(point, ()))]
                ),
                # for several clusters, the run of the point chooses one
                **({} if pinned.others else {"cluster": pinned.cluster}),
                "fresh_start": bool(self.fresh_start),
                "submitted": dict(submitted.get(point, {})),
            }
            for point in pinned.points
        }

    def _launch(
        self,
        point: str,
        conf: Mapping[str, Any],
        *,
        finished: bool,
        with_files: Callable[[], Collection[str]],
    ) -> str | None:
        """Start a point's run, or return the run that is in progress or has succeeded; None for a finished point.

        :param with_files: returns the points that have run directories; called only if a run has succeeded although
            jobs of its point have not finished, for example because a user has marked them
        """
        number = 1
        while True:
            run_id = point_run_id(point, number)
            if finished:
                if not has_point_run(self.point_dag_id, run_id):
                    return None
            elif trigger_point_run(self.point_dag_id, run_id, conf):
                self.log.info("started %s", run_id)
                return run_id
            state, known = point_run(self.point_dag_id, run_id)
            same = known.get("digest") == conf["digest"] and not conf["fresh_start"]
            later = point_run_id(point, number + 1)
            if same and state == "success" and not finished and has_point_run(self.point_dag_id, later):
                self.log.info("%s has succeeded, and %s was started after it", run_id, later)
            elif same and state == "success" and not finished and point not in with_files():
                self.log.warning("%s has succeeded, but its run directories are gone", run_id)
            elif same and state != "failed":
                self.log.info("%s is %s", run_id, state)
                return run_id
            number += 1

    def end_helpers(self) -> None:
        """End the runs of points that this task executes, with a SIGTERM for each, and start no others."""
        with _STARTING:
            self._is_ending = True
        for command in self._helpers:
            command.terminate()
        for command in self._helpers:
            command.wait(HELPER_END_S)

    def _execute_runs(self, confs: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
        self.log.info("without a scheduler (`airflow dags test`), this task runs %d points", len(confs))
        with ThreadPoolExecutor(self.workers) as pool:
            codes = dict(zip(confs, pool.map(self._work, confs.values()), strict=True))
        failed = [point for point, code in codes.items() if code]
        if failed and len(failed) == len(confs):
            raise AirflowFailException(f"every point failed: {', '.join(failed)}")
        if failed:
            self.log.error("%d of %d points failed: %s", len(failed), len(confs), ", ".join(failed))
        return dict.fromkeys(confs, "")

    def _work(self, conf: Mapping[str, Any]) -> int:
        with _STARTING:
            if self._is_ending:
                return EXIT_STATUS
            command = ForkedCommand("dags", "test", self.point_dag_id, "--conf", json.dumps(conf))
            self._helpers.append(command)
        for line in command.lines():
            self.log.info("[%s] %s", conf["point"], line.rstrip())
        return command.exit_status()


def finished_points(jobs: Mapping[str, Sequence[Job]], run: Callable[[str], CommandResult]) -> set[str]:
    """Return the points that would submit no job: each job has finished, or was cancelled by its condition.

    :param jobs: point → its jobs; those of the whole sweep, which every point uses, under the empty name
    :param run: runs a script on the login node; called once
    :raises TransportError: if the login node does not answer
    """
    directories = {point: [job.stage_dir for job in its] for point, its in jobs.items()}
    every = [directory for its in directories.values() for directory in its]
    states = parse_stage_states(every, run(finished_stages_script(directories.values())))

    def nothing_to_submit(job: Job) -> bool:
        chosen = next_attempt(states[job.stage_dir], rerun=False, digest=job_digest(job))
        return chosen.finished or chosen.cancelled

    done = {point for point, its in jobs.items() if all(map(nothing_to_submit, its))}
    return done - {""} if done >= {""} & jobs.keys() else set()
