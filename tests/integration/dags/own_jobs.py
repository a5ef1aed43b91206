"""DAGs like those of users, for tests of the operators in a running Airflow."""

from __future__ import annotations

from airflow.sdk import DAG, task

from airflow_megatron.operators.slurm_job import SlurmJobOperator
from airflow_megatron.operators.slurm_submit import SlurmSubmitOperator
from airflow_megatron.sensors.slurm_job import SlurmJobSensor

CLUSTER = {"slurm_conn_id": "slurm_local"}
UNTIL_GO = "echo begun >> times; until [ -e go ]; do sleep 0.2; done"

with DAG("own_deferred", schedule=None, default_args=CLUSTER):
    SlurmJobOperator(task_id="work", command=UNTIL_GO, poll_interval=1)

with DAG("own_in_worker", schedule=None, default_args=CLUSTER):
    SlurmJobOperator(
        task_id="work", command=UNTIL_GO, deferrable=False, poll_interval=1, retries=1, retry_delay=1
    )

with DAG("own_sensor", schedule=None, default_args=CLUSTER):
    submit = SlurmSubmitOperator(task_id="submit", command=UNTIL_GO)
    SlurmJobSensor(task_id="wait", submission=submit.output, poll_interval=1)  # type: ignore[arg-type]

with DAG("own_functions", schedule=None, default_args=CLUSTER):

    @task.slurm(poll_interval=1)
    def double(value: int) -> int:
        """Run on the cluster."""
        return 2 * value

    @task.slurm(shell=True, poll_interval=1)
    def write(values: list[int]) -> str:
        """Return the command of the job."""
        return f"echo {sum(values)} > sum.txt"

    write(double.expand(value=[1, 2]))  # type: ignore[arg-type]
