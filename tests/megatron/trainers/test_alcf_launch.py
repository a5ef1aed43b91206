"""``train_alcf.sh``: what it is told, and the argument list that the real script made of it.

The recorded list is what the script of argonne-lcf/Megatron-DeepSpeed, commit ffa3456d, handed to its launcher.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_megatron.megatron.arguments.argv import to_argv
from airflow_megatron.megatron.arguments.tables import ArgumentError, ArgumentTable, read_table
from airflow_megatron.megatron.rules.command_line import reader
from airflow_megatron.megatron.trainers.megatron_deepspeed.alcf_launch import alcf_command, own_arguments
from airflow_megatron.megatron.trainers.trainer_table import TRAINERS_DIR

RECORDED = json.loads(
    (Path(__file__).parents[2] / "fixtures" / "megatron_commands" / "train_alcf.json").read_text()
)
SAVE = "/scratch/runs/alcf/p/checkpoints"
GIVEN: dict[str, Any] = {
    "num_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "ffn_hidden_size": 128,
    "seq_length": 128,
    "max_position_embeddings": 2048,
    "micro_batch_size": 1,
    "global_batch_size": 16,
    "bf16": True,
    "zero_stage": 1,
    "optimizer": "muon",
    "lr": 2e-4,
    "lr_decay_style": "constant",
    "lr_warmup_fraction": 0.01,
    "lr_constant_plus_cooldown": True,
    "lr_constant_plus_cooldown_frac": 0.01,
    "swiglu": True,
    "hidden_dropout": 0,
    "attention_dropout": 0,
    "normalization": "rmsnorm",
    "add_bias_linear": False,
    "no_query_key_layer_scaling": True,
    "use_rotary_position_embeddings": True,
    "untie_embeddings_and_output_weights": True,
    "accumulate_allreduce_grads_in_fp32": True,
    "adjust_word_embedding_init": True,
    "init_method_std": (2 / (5 * 64)) ** 0.5,
    "word_embedding_init_std": 0.632,
    "no_bias_gelu_fusion": True,
    "no_bias_dropout_fusion": True,
    "no_masked_softmax_fusion": True,
    "no_gradient_accumulation_fusion": True,
    "shuffle_sample_in_corpus": True,
    "split": "990,10,0",
    "rope_theta": 50000,
    "data_file_list": "/data/books.txt",
    "tokenizer_type": "HFTokenizer",
    "tokenizer_model": "google/gemma-7b",
    "train_iters": 100,
    "save_interval": 50,
    "save": SAVE,
    "load": SAVE,
    "tensorboard_dir": "/scratch/runs/alcf/p/tensorboard",
    "exit_signal_handler": True,
    "num_workers": 0,
    "deepspeed": True,
    "no_pipeline_parallel": True,
}


@pytest.fixture(scope="module")
def table() -> ArgumentTable:
    return read_table(TRAINERS_DIR / "megatron_deepspeed" / "arguments.json")


def values(table: ArgumentTable, **more: Any) -> dict[str, Any]:
    given, problems = reader(table).read(to_argv({**GIVEN, **more}, table))
    assert problems == []
    return {argument.dest: argument.default for argument in table} | given


def command(table: ArgumentTable, **more: Any) -> tuple[str, ...]:
    extra = {
        name: value
        for name, value in {**GIVEN, **more}.items()
        if (argument := table.get(name)) and argument.dest not in own_arguments()
    }
    return alcf_command(values(table, **more), to_argv(extra, table), "/opt/Megatron-DeepSpeed", 2, 2)


def test_the_script_gets_the_recorded_variables(table: ArgumentTable) -> None:
    assert list(command(table)) == RECORDED["command"]


def test_the_script_made_the_same_experiment_of_it(table: ArgumentTable) -> None:
    made, problems = reader(table).read(RECORDED["argv"])
    assert problems == []
    made = {argument.dest: argument.default for argument in table} | made
    wanted = values(table)
    differing = {dest for dest, value in wanted.items() if made[dest] != value}
    assert differing == {
        "data_cache_path",
        "deepspeed_config",
        "init_method_std",  # rounded
        "word_embedding_init_std",
    }
    assert made["init_method_std"] == pytest.approx(wanted["init_method_std"], rel=1e-4)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"swiglu": None}, "swiglu: is False, but train_alcf.sh always writes true: write this value"),
        ({"init_method_std": 0.02}, "init_method_std: is 0.02, but train_alcf.sh always writes 0.0790569"),
        ({"clip_grad": 0.5}, "clip_grad: is 0.5, but train_alcf.sh always writes 1"),
        ({"max_position_embeddings": 128}, "always writes 2048"),
        ({"lr_warmup_fraction": None}, "lr_warmup_fraction: train_alcf.sh would use its own value"),
        ({"bf16": None}, "with bf16 or fp16"),
        ({"data_cache_path": "/cache"}, "data_cache_path: train_alcf.sh keeps it below the checkpoints"),
        ({"micro_batch_size": 3}, "not a multiple of"),
    ],
)
def test_what_it_would_do_otherwise_is_refused(
    change: dict[str, Any], told: str, table: ArgumentTable
) -> None:
    with pytest.raises(ArgumentError, match=told):
        command(table, **change)
