"""DeepSpeed's configuration from Megatron-DeepSpeed's arguments, and its errors."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_megatron.megatron.arguments.tables import ArgumentError
from airflow_megatron.megatron.trainers.megatron_deepspeed.configuration import (
    accumulation_steps,
    deepspeed_config,
)

ARGUMENTS: dict[str, Any] = {"global_batch_size": 64, "micro_batch_size": 2, "bf16": True, "log_interval": 10}


def test_values_needed_on_both_sides_are_written_once() -> None:
    offload = {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}, "wall_clock_breakdown": True}
    assert deepspeed_config({**ARGUMENTS, "zero_stage": 2, "clip_grad": 0.5}, offload, 8) == {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_clipping": 0.5,
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
        "bf16": {"enabled": True},
        "fp16": {"enabled": False},
        "steps_per_print": 10,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "wall_clock_breakdown": True,
    }


def test_equal_values_on_both_sides_are_accepted() -> None:
    twice = {"train_batch_size": 64, "gradient_accumulation_steps": 4, "zero_optimization": {"stage": 1}}
    assert deepspeed_config(ARGUMENTS, twice, 8) == deepspeed_config(ARGUMENTS, {}, 8)


def test_batch_over_the_ranks_that_hold_a_model() -> None:
    assert accumulation_steps(ARGUMENTS, 8) == 4
    assert (
        accumulation_steps({**ARGUMENTS, "tensor_model_parallel_size": 2, "ds_sequence_parallel_size": 2}, 8)
        == 16
    )


@pytest.mark.parametrize(
    ("arguments", "given", "told"),
    [
        ({"global_batch_size": None}, {}, "global_batch_size: is needed"),
        ({"micro_batch_size": 3}, {}, r"micro_batch_size \(3\) × data-parallel size \(8\); use 48 or 72"),
        ({"tensor_model_parallel_size": 3}, {}, r"tensor_model_parallel_size \(3\) does not divide 8 GPUs"),
        ({"fp16": True}, {}, "bf16 and fp16 exclude each other"),
        ({"zero_stage": 4}, {}, "zero_stage: 4 is none of"),
        ({"zero_stage": 2, "pipeline_model_parallel_size": 2}, {}, "pipelines take ZeRO stages 0 and 1"),
        ({"no_pipeline_parallel": True, "pipeline_model_parallel_size": 2}, {}, "contradicts"),
        ({}, {"train_batch_size": 32}, "train_batch_size is 32, but global_batch_size is 64"),
        ({}, {"gradient_accumulation_steps": 8}, "gradient_accumulation_steps is 8, but .* is 4"),
        ({}, {"zero_optimization": {"stage": 3}}, "zero_optimization.stage is 3, but zero_stage is 1"),
        ({}, {"fp16": {"enabled": True}}, "fp16.enabled is True, but fp16 is False"),
        ({}, {"gradient_cliping": 1.0}, "no setting gradient_cliping; did you mean gradient_clipping"),
        ({}, {"zero_optimization": {"overlap_com": True}}, "did you mean zero_optimization.overlap_comm"),
        (
            {},
            {"zero_optimization": {"offload_param": {"device": "cpu"}}},
            "offload_param needs zero_stage 3, not 1",
        ),
        ({}, {"zero_optimization": {"offload_optimizer": {"device": "gpu"}}}, "none, cpu or nvme, not 'gpu'"),
        ({}, {"zero_optimization": 1}, "zero_optimization must be a mapping"),
        ({}, {"bf16": True}, "bf16 must be a mapping"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    arguments: dict[str, Any], given: dict[str, Any], told: str
) -> None:
    with pytest.raises(ArgumentError, match=told):
        deepspeed_config({**ARGUMENTS, **arguments}, given, 8)
