"""Which jobs make the report of a sweep fail."""

from __future__ import annotations

import dataclasses

from example_specs import CHAIN

from airflow_megatron.operators.sweep_report import unfinished_jobs
from airflow_megatron.plan.sweep_plan import plan_sweep
from airflow_megatron.results.readings.progress import StageState, StageStatus
from airflow_megatron.spec.spec_files import load_sweep_text


def test_what_a_condition_cancelled_and_what_waits_for_it_is_meant_to_be_missing(cluster) -> None:
    jobs = plan_sweep(load_sweep_text(CHAIN, "s.yaml"), cluster).jobs
    statuses = {job.name: StageStatus(job.point, job.stage, job.name, StageState.FINISHED) for job in jobs}

    def unfinished(**states: StageState | bool) -> set[str]:
        changed = dict(statuses)
        for stage, state in states.items():
            name = f"chain.lr0.001.{stage.replace('__', '.')}"
            intended = state is True
            changed[name] = dataclasses.replace(
                changed[name], state=StageState.CANCELLED if intended else state, intended=intended
            )
        return {status.stage for status in unfinished_jobs(jobs, changed.values())}

    branch = next(job.stage for job in jobs if job.stage.startswith("cooldown") and "." not in job.stage)
    below = {f"{branch}__convert": StageState.WAITING, f"{branch}__evaluate": StageState.WAITING}
    assert unfinished() == set()
    assert unfinished(**{branch: True}, **below) == set()
    assert unfinished(**{branch: StageState.CANCELLED}, **below) == {
        branch,
        f"{branch}.convert",
        f"{branch}.evaluate",
    }
    assert unfinished(**{branch: True, f"{branch}__convert": StageState.FAILED}) == {f"{branch}.convert"}
