"""A job for every training that a sweep finishes: scheduled on the sweep's assets."""

from __future__ import annotations

import shlex

from airflow.sdk import DAG, task

from airflow_megatron.assets.sweep_assets import stage_alias

TRAINED = stage_alias("quickstart", "pretrain")

with DAG("example_after_sweep", schedule=TRAINED, catchup=False, tags=["example", "slurm"]) as dag:

    @task
    def finished(triggering_asset_events=None) -> list[str]:  # type: ignore[no-untyped-def]
        """Return the directories of the points that have finished since the last run."""
        # each event occurs twice: under the alias, and under the asset of its point
        return [event.extra["run_dir"] for event in triggering_asset_events[TRAINED]]

    @task.slurm(slurm_conn_id="slurm_local", shell=True, time="10m", poll_interval=5)
    def size(run_dir: str) -> str:
        """Return the command of the job."""
        return f"du -sh {shlex.quote(run_dir)}/checkpoints"

    size.expand(run_dir=finished())
