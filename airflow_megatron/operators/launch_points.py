"""Operator that starts one run of the point DAG for every point."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_megatron.plan.pinned import jobs_by_point, point_digest
from airflow_megatron.task_runtime.point_runs import (
    point_run,
    point_run_id,
    runs_without_scheduler,
    trigger_point_run,
)
from airflow_megatron.task_runtime.stopping import EndsTestRun
from airflow_megatron.task_runtime.stored_plan import stored_plan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context

    from airflow_megatron.plan.pinned import PinnedSweep

TEST_WORKERS = 3
HELPER_END_S = 15


class LaunchPointsOperator(EndsTestRun, BaseOperator):
    """Start a run of the point DAG for every point; its configuration refers to the stored plan.

    The run id is the point's name, see :func:`~airflow_megatron.task_runtime.point_runs.point_run_id`. A point
    whose run
    is going on or has succeeded with the same jobs is not started again; after a failure, or with other jobs,
    ``<point>~2`` is started, which passes over the jobs that finished.
    Under ``airflow dags test``, where no scheduler would pick the runs up, the points are worked here, a few at a time.

    :param point_dag_id: the point DAG
    :param pinned: the pinned sweep (templated)
    :param plan_only: start nothing (templated)
    :param fresh_start: run everything again (templated)
    :param submitted: attempts that are submitted already: point → stage → number (templated)
    :param most_at_once: points in flight; where a scheduler works, the point DAG keeps to it
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
        self._helpers: list[subprocess.Popen[str]] = []

    def execute(self, context: Context) -> dict[str, str]:
        """Start the runs; return point → run id."""
        pinned = stored_plan(self.pinned)
        if self.plan_only:
            raise AirflowSkipException(f"dry run: {len(pinned.points)} points are not started")
        confs = self.configurations(pinned, context["ti"].run_id)
        if runs_without_scheduler():
            return self._work_here(confs)
        return {point: self._launch(point, conf) for point, conf in confs.items()}

    def configurations(self, pinned: PinnedSweep, run_id: str) -> dict[str, dict[str, Any]]:
        """Return point → configuration of its run: small, as it travels as one argument to ``airflow dags test``.

        :param run_id: of the sweep's run
        """
        submitted: Mapping[str, Mapping[str, int]] = self.submitted or {}  # type: ignore[assignment]
        jobs = jobs_by_point(pinned.plan().jobs)
        return {
            point: {
                "point": point,
                "pin": pinned.pin,
                "run": run_id,
                "digest": point_digest([*jobs.get("", ()), *jobs.get(point, ())]),
                "cluster": pinned.cluster,
                "fresh_start": bool(self.fresh_start),
                "submitted": dict(submitted.get(point, {})),
            }
            for point in pinned.points
        }

    def _launch(self, point: str, conf: Mapping[str, Any]) -> str:
        number = 1
        while True:
            run_id = point_run_id(point, number)
            if trigger_point_run(self.point_dag_id, run_id, conf):
                self.log.info("started %s", run_id)
                return run_id
            state, known = point_run(self.point_dag_id, run_id)
            same = known.get("digest") == conf["digest"] and not conf["fresh_start"]
            if same and state != "failed":
                self.log.info("%s is %s", run_id, state)
                return run_id
            number += 1

    def end_helpers(self) -> None:
        """End the runs of points that are worked here, each by its own SIGTERM."""
        for process in self._helpers:
            process.terminate()
        for process in self._helpers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(HELPER_END_S)

    def _work_here(self, confs: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
        self.log.info("no scheduler runs under `airflow dags test`: working %d points here", len(confs))
        with ThreadPoolExecutor(self.workers) as pool:
            codes = dict(zip(confs, pool.map(self._work, confs.values()), strict=True))
        failed = [point for point, code in codes.items() if code]
        if len(failed) == len(confs):
            raise AirflowFailException(f"every point failed: {', '.join(failed)}")
        if failed:
            self.log.error("%d of %d points failed: %s", len(failed), len(confs), ", ".join(failed))
        return dict.fromkeys(confs, "")

    def _work(self, conf: Mapping[str, Any]) -> int:
        command = [
            sys.executable,
            "-m",
            "airflow",
            "dags",
            "test",
            self.point_dag_id,
            "--conf",
            json.dumps(conf),
        ]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            self._helpers.append(process)
            assert process.stdout is not None
            for line in process.stdout:
                self.log.info("[%s] %s", conf["point"], line.rstrip())
            return process.wait()
