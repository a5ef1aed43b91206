"""Start Megatron-DeepSpeed through ``train_alcf.sh``, which reads environment variables.

The script (argonne-lcf/Megatron-DeepSpeed, ``train_alcf.sh`` and ``ALCF/helpers.sh``, commit ffa3456d) creates the
DeepSpeed configuration, the argument list and the launcher's command by itself. Given arguments precede its own, so
arguments that it writes itself can be changed only by its variables; some have fixed values.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.megatron.arguments.tables import ArgumentError
from airflow_megatron.megatron.trainers.megatron_deepspeed.configuration import TRAINER, accumulation_steps

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_VARIABLES: Final = {
    "tensor_model_parallel_size": "TP",
    "pipeline_model_parallel_size": "PP",
    "ds_sequence_parallel_size": "SP",
    "zero_stage": "ZERO_STAGE",
    "micro_batch_size": "MICRO_BATCH",
    "global_batch_size": "GLOBAL_BATCH",
    "num_layers": "NLAYERS",
    "hidden_size": "HIDDEN",
    "num_attention_heads": "HEADS",
    "num_key_value_heads": "NUM_KV_HEAD",
    "ffn_hidden_size": "FFN_HIDDEN_SIZE",
    "seq_length": "SEQ",
    "rope_theta": "ROPE_THETA",
    "optimizer": "OPT",
    "lr": "LR",
    "lr_decay_style": "LR_DECAY_STYLE",
    "lr_warmup_fraction": "LR_WARMUP_FRAC",
    "lr_decay_iters": "LR_DECAY_ITERS",
    "weight_decay": "WEIGHT_DECAY",
    "adam_beta1": "ADAM_BETA1",
    "adam_beta2": "ADAM_BETA2",
    "adam_eps": "ADAM_EPS",
    "train_iters": "TRAIN_ITERS",
    "save_interval": "SAVE_INTERVAL",
    "eval_interval": "EVAL_INTERVAL",
    "eval_iters": "EVAL_ITERS",
    "log_interval": "LOG_INTERVAL",
    "timing_log_level": "TIMING_LOG_LEVEL",
    "data_file_list": "DATA_FILE_LIST",
    "tokenizer_type": "TOKENIZER_TYPE",
    "tokenizer_model": "TOKENIZER_MODEL",
    "distributed_backend": "BE",
}
"""``dest`` of an argument → the variable from which the script reads it."""

_NEEDED: Final = (
    "num_key_value_heads",
    "ffn_hidden_size",
    "lr_warmup_fraction",
    "save_interval",
    "data_file_list",
)
"""Arguments without a default in the trainer, for which the script would use its own value."""

_ALWAYS: Final = {
    "swiglu": True,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "normalization": "rmsnorm",
    "add_bias_linear": False,
    "apply_query_key_layer_scaling": False,
    "use_rotary_position_embeddings": True,
    "untie_embeddings_and_output_weights": True,
    "accumulate_allreduce_grads_in_fp32": True,
    "adjust_word_embedding_init": True,
    "word_embedding_init_std": 0.632455532,
    "bias_gelu_fusion": False,
    "bias_dropout_fusion": False,
    "masked_softmax_fusion": False,
    "gradient_accumulation_fusion": False,
    "shuffle_sample_in_corpus": True,
    "clip_grad": 1.0,
    "split": "990,10,0",
}
_BY_SIZE: Final = ("init_method_std", "max_position_embeddings")
_PLACED: Final = "data_cache_path"
_SAID_OTHERWISE: Final = (
    "deepspeed",
    "deepspeed_config",
    "no_pipeline_parallel",
    "bf16",
    "fp16",
    "save",
    "load",
)
_ROUNDING: Final = 1e-3
"""The script rounds its constants, and so do the commands in its documentation."""


def own_arguments() -> frozenset[str]:
    """Return the ``dest`` of the arguments that the script writes."""
    return frozenset((*_VARIABLES, *_ALWAYS, *_BY_SIZE, *_SAID_OTHERWISE))


def alcf_command(
    values: Mapping[str, Any], extra: Sequence[str], checkout: str, world_size: int, gpus_per_node: int
) -> tuple[str, ...]:
    """Return the words of the command, which runs once for all processes.

    :param values: ``dest`` → value of all arguments, including the parser's defaults; the script's own values must not
        differ.
    :param extra: argv of the arguments that the script does not write.
    :param checkout: folder of Megatron-DeepSpeed, in which the script must start.
    :param world_size: number of processes.
    :param gpus_per_node: number of processes on each node.
    :raises ArgumentError: for arguments that the script would not respect.
    """
    for dest in _NEEDED:
        if values.get(dest) is None:
            raise ArgumentError(dest, TRAINER, "train_alcf.sh would use its own value; set one")
    size = {
        "init_method_std": math.sqrt(2 / (5 * values["hidden_size"])),
        "max_position_embeddings": 16 * values["seq_length"],
    }
    for dest, fixed in {**_ALWAYS, **size}.items():
        given = values.get(dest)
        numbers = isinstance(fixed, float) and isinstance(given, int | float)
        if not (math.isclose(given or 0.0, fixed, rel_tol=_ROUNDING) if numbers else given == fixed):
            shown = format(fixed, ".6g") if isinstance(fixed, float) else str(fixed).lower()
            raise ArgumentError(
                dest, TRAINER, f"is {given!r}, but train_alcf.sh always writes {shown}: write this value"
            )
    if values.get(_PLACED) is not None:
        raise ArgumentError(_PLACED, TRAINER, "train_alcf.sh keeps it below the checkpoints; leave it out")
    if not (values.get("bf16") or values.get("fp16")):
        raise ArgumentError("bf16", TRAINER, "train_alcf.sh trains with bf16 or fp16; set one")
    variables = {
        "PBS_O_WORKDIR": checkout,
        "WORLD_SIZE": world_size,
        "NGPU_PER_HOST": gpus_per_node,
        "GRAD_ACC_STEPS": accumulation_steps(values, world_size),
        "DTYPE": "bf16" if values.get("bf16") else "fp16",
        "CKPT_DIR": values["save"],
        "SAVE": values["save"],
        "OVERRIDE_CKPT_OPT_PARAM": 1,  # whose schedule counts, and where TensorBoard's files go, stand among extra
        "NO_TENSORBOARD": 1,
        **{variable: values.get(dest) for dest, variable in _VARIABLES.items()},
    }
    words = [f"{name}={value}" for name, value in sorted(variables.items()) if value is not None]
    return ("env", "-C", checkout, *words, "bash", "train_alcf.sh", *extra)
