"""Submit a script, do something while it runs, and wait for its end."""

from __future__ import annotations

from airflow.sdk import DAG, chain

from airflow_megatron.operators.slurm_submit import SlurmSubmitOperator
from airflow_megatron.sensors.log import LogSensor
from airflow_megatron.sensors.slurm_job import SlurmJobSensor

SCRIPT = """#!/bin/bash
#SBATCH --time=00:10:00
echo "listening on $(hostname):8080"
sleep 20
"""

with DAG("example_slurm_submit", schedule=None, tags=["example", "slurm"]):
    submit = SlurmSubmitOperator(task_id="submit", slurm_conn_id="slurm_local", script=SCRIPT)
    listening = LogSensor(
        task_id="listening",
        slurm_conn_id="slurm_local",
        path="{{ ti.xcom_pull('submit')['log_file'] }}",
        pattern=r"listening on (\S+)",
        poll_interval=5,
    )
    end = SlurmJobSensor(task_id="end", submission=submit.output, poll_interval=5)  # type: ignore[arg-type]
    chain(submit, listening, end)
