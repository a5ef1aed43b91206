"""Trainings with reserve nodes for Megatron's in-process restart."""

from __future__ import annotations

import pytest

from airflow_megatron.plan.job_scripts import job_script
from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.model.schema import TrainerSection
from airflow_megatron.spec.spec_files import load_sweep_text

TEXT = """\
trainer: megatron_lm
point: p
megatron: {num_layers: 2, hidden_size: 64, num_attention_heads: 2, seq_length: 128, max_position_embeddings: 128,
  micro_batch_size: 1, global_batch_size: 8, lr: 1e-3, train_iters: 10, save_interval: 5, eval_interval: 5,
  tokenizer_type: NullTokenizer, vocab_size: 128, mock_data: true,
  inprocess_restart: true, inprocess_active_world_size: 8}
stages: {train: {kind: train, slurm: {nodes: 3, gpus_per_node: 4, time: 1h}}}
"""


def test_the_batch_is_divided_among_the_processes_that_train() -> None:
    trainers = {"megatron_lm": TrainerSection(checkout="/m", packages=["nvidia_resiliency_ext"])}
    cluster = load_cluster("example-slurm").model_copy(update={"trainers": trainers})
    (job,) = check_sweep(load_sweep_text(TEXT, "s.yaml"), cluster).jobs
    assert (job.world_size, job.active_processes) == (12, 8)
    assert "#SBATCH --nodes=3" in job_script(job, cluster, 1)
    with pytest.raises(SpecError, match="data parallel size 12"):
        check_sweep(load_sweep_text(TEXT.replace("inprocess_restart: true, ", ""), "s.yaml"), cluster)
