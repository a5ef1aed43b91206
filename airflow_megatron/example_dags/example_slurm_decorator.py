"""Functions as jobs: one job for each value, the results added up by another."""

from __future__ import annotations

from airflow.sdk import DAG, task

with DAG("example_slurm_decorator", schedule=None, tags=["example", "slurm"]):

    @task.slurm(slurm_conn_id="slurm_local", time="10m", poll_interval=5)
    def square(value: int) -> dict[str, int]:
        """Run in a separate job; the function must import what it needs."""
        import os

        return {"square": value**2, "job": int(os.environ["SLURM_JOB_ID"])}

    @task.slurm(slurm_conn_id="slurm_local", shell=True, time="10m", poll_interval=5)
    def add(results: list[dict[str, int]]) -> str:
        """Return the command of the job."""
        return f"echo $(({' + '.join(str(result['square']) for result in results)})) | tee sum.txt"

    add(square.expand(value=[1, 2, 3]))  # type: ignore[arg-type]
