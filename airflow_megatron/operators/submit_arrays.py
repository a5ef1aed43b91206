"""Operator that submits the first jobs of all points as Slurm job arrays."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_megatron.hooks.job_secrets import secret_values
from airflow_megatron.hooks.slurm import SlurmHook
from airflow_megatron.operators.slurm_submit import task_origin
from airflow_megatron.slurm.remote.transport import LoginRefusedError, TransportError
from airflow_megatron.supervision.array_attempts import ArrayDeferredError, JobArrays, attempts_to_submit
from airflow_megatron.supervision.attempts import SubmissionRefusedError, slurm_commands
from airflow_megatron.task_runtime.deferring_trigger import DeferringTask
from airflow_megatron.task_runtime.stopping import EndsTestRun
from airflow_megatron.task_runtime.stored_plan import stored_plan
from airflow_megatron.triggers.pause import PauseTrigger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context

CHOSEN_ATTEMPTS = "attempts"
CONTROLLER_AWAY_PAUSE_S = 60


class SubmitArraysOperator(EndsTestRun, DeferringTask):
    """Submit the jobs of stages with ``array: true`` of all chosen points, before the points' runs start.

    Each point's run then watches its task of the array. Jobs that ran before or were submitted before are left out. A
    task that was killed at any time continues with the arrays that it submitted.

    :param pinned: the pinned sweep (templated)
    :param plan_only: submit nothing (templated)
    """

    template_fields: Sequence[str] = ("pinned", "plan_only")
    template_fields_renderers = {"pinned": "json"}  # noqa: RUF012
    ui_color = "#dbe9f6"

    def __init__(
        self,
        *,
        pinned: Mapping[str, Any] | str,
        plan_only: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.pinned = pinned
        self.plan_only = plan_only

    def execute(self, context: Context) -> dict[str, dict[str, int]]:
        """Submit; return point → stage → number of the attempt that is submitted."""
        if self.plan_only:
            return {}
        pinned = stored_plan(self.pinned, context)
        jobs = [job for job in pinned.plan().jobs if job.array]
        cluster = pinned.plan_environment.cluster
        run = SlurmHook(cluster.ssh_conn_id, slurm_commands(cluster)).run
        arrays = JobArrays(cluster, run, self.log, pinned.plan_environment.templates, secret_values)
        memory = context["task_state_store"]
        try:
            # The attempts are chosen once: a new choice would leave out those that an earlier try has submitted.
            chosen: Any = memory.get(CHOSEN_ATTEMPTS)
            if chosen is None:
                chosen = attempts_to_submit(jobs, arrays.states(jobs))
                memory.set(CHOSEN_ATTEMPTS, chosen)
            submitted = arrays.submit(jobs, chosen, origin=task_origin(context))
        except (LoginRefusedError, SubmissionRefusedError) as error:
            raise AirflowFailException(str(error)) from None
        except (ArrayDeferredError, TransportError) as error:
            self.log.warning("the jobs cannot be submitted now: %s", error)
            until = time.time() + CONTROLLER_AWAY_PAUSE_S * random.uniform(0.75, 1.25)
            self.defer(trigger=PauseTrigger(until=until), method_name="submit_again")
        self.log.info("%d of %d jobs are submitted as tasks of arrays", len(submitted), len(jobs))
        points: dict[str, dict[str, int]] = {}
        for job in jobs:
            if job.name in submitted:
                points.setdefault(job.point, {})[job.stage] = submitted[job.name]
        return points

    def submit_again(self, context: Context, event: Any = None) -> dict[str, dict[str, int]]:
        """Continue after the controller or the login node was not available."""
        return self.execute(context)
