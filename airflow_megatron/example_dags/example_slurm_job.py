"""One job on Slurm, submitted exactly once, and a task that uses its output."""

from __future__ import annotations

from airflow.sdk import DAG, task

from airflow_megatron.operators.slurm_job import SlurmJobOperator

with DAG("example_slurm_job", schedule=None, tags=["example", "slurm"]):
    simulate = SlurmJobOperator(
        task_id="simulate",
        slurm_conn_id="slurm_local",
        command="srun hostname > hosts.txt; wc -l < hosts.txt > count.txt",
        nodes=2,
        time="10m",
        outputs=["count.txt"],
        # a node failure or preemption is followed by another attempt, an error by one
        restart={"retryable": 10, "failed": 1, "backoff": 5},
        poll_interval=5,
    )

    @task
    def report(job: dict[str, str]) -> str:
        """Print the path of the job's output."""
        return f"job {job['job_id']} is {job['state']}: see {job['outputs'][0]}"

    report(simulate.output)  # type: ignore[arg-type]
