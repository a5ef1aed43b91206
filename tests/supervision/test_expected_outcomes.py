"""Lines that the log of a training must have at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from example_specs import spec_text

from airflow_megatron.plan.sweep_plan import plan_sweep
from airflow_megatron.spec.spec_files import load_sweep_text
from airflow_megatron.supervision.expected_outcomes import ends_with_evaluation

if TYPE_CHECKING:
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.schema import Trainer

MODEL = "megatron: {num_layers: 2, hidden_size: 64, num_attention_heads: 4, max_position_embeddings: 128,\
 seq_length: 128, global_batch_size: 8, micro_batch_size: 8, lr: 1e-3, train_iters: 10, mock_data: true,\
 tokenizer_type: NullTokenizer, vocab_size: 100, save_interval: 5, eval_interval: 5, eval_iters: EVALUATIONS}"


@pytest.mark.parametrize("trainer", ["megatron_core", "megatron_lm"])
@pytest.mark.parametrize("evaluations", [1, 0])
def test_a_planned_training_with_a_test_set_is_evaluated_at_its_end(
    cluster: ClusterProfile, trainer: Trainer, evaluations: int
) -> None:
    section = cluster.trainer(trainer).model_copy(update={"checkout": "/upstream"})
    cluster = cluster.model_copy(update={"trainers": {trainer: section}})
    more = f"{MODEL.replace('EVALUATIONS', str(evaluations))}\ntrainer: {trainer}"
    text = spec_text(point="p", stages="stages: {train: {kind: train}}", more=more)
    (job,) = plan_sweep(load_sweep_text(text, "s.yaml"), cluster).jobs
    assert job.command  # as the run has it
    assert ends_with_evaluation(job, cluster) is bool(evaluations)
    assert not ends_with_evaluation(msgspec.structs.replace(job, command=("python", "own.py")), cluster)
