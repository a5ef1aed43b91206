"""Evaluate a checkpoint as soon as it is complete, while the training continues."""

from __future__ import annotations

from airflow.sdk import DAG, chain

from airflow_megatron.operators.slurm_job import SlurmJobOperator
from airflow_megatron.operators.slurm_submit import SlurmSubmitOperator
from airflow_megatron.sensors.checkpoint import CheckpointSensor
from airflow_megatron.sensors.slurm_job import SlurmJobSensor

SAVE = "save=checkpoints/iter_0000010/mp_rank_00; mkdir -p $save; head -c 1000 /dev/zero > $save/model_optim_rng.pt"
TRAIN = f"{SAVE}; echo 10 > checkpoints/latest_checkpointed_iteration.txt; sleep 20"
LIST = ["ls", "-lR", "{{ ti.xcom_pull('saved') }}"]

with DAG(
    "example_checkpoint", schedule=None, default_args={"slurm_conn_id": "slurm_local"}, tags=["example"]
):
    train = SlurmSubmitOperator(task_id="train", command=TRAIN)
    saved = CheckpointSensor(
        task_id="saved",
        path="{{ ti.xcom_pull('train')['run_dir'] }}/checkpoints",
        iteration=10,
        poll_interval=5,
    )
    evaluate = SlurmJobOperator(task_id="evaluate", command=LIST, deferrable=False, poll_interval=5)
    chain(train, saved, evaluate)
    chain(train, SlurmJobSensor(task_id="trained", submission=train.output, poll_interval=5))  # type: ignore[arg-type]
