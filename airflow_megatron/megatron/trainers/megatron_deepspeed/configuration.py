"""DeepSpeed's JSON configuration of a training, made from its Megatron-DeepSpeed arguments.

Settings of both DeepSpeed and Megatron (batch sizes, precision, ZeRO stage, clipping) are written once, under
``megatron:``; all other settings of DeepSpeed are under ``deepspeed_config`` in DeepSpeed's own format. The defaults
are those of ``ALCF/helpers.sh`` (``generateDSconfig``) of argonne-lcf/Megatron-DeepSpeed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.megatron.arguments.tables import ArgumentError
from airflow_megatron.spec.documents.errors import near_names, suggestion

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

TRAINER: Final = "megatron_deepspeed"
CONFIG: Final = "deepspeed_config"
_MODEL_SIZES: Final = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "ds_sequence_parallel_size",
)
_FP16: Final = {
    "enabled": True,
    "loss_scale": 0,
    "loss_scale_window": 1000,
    "hysteresis": 2,
    "min_loss_scale": 1,
}
_KEYS_TEXT: Final = """
    activation_checkpointing aio amp autotuning bf16 checkpoint comms_logger communication_data_type compile
    compression_training csv_monitor curriculum_learning data_efficiency data_types dataloader_drop_last
    disable_allgather dump_state eigenvalue elasticity flops_profiler fp16 gradient_accumulation_steps
    gradient_clipping gradient_predivide_factor graph_harvesting hybrid_engine memory_breakdown nebula optimizer
    pipeline prescale_gradients progressive_layer_drop quantize_training scheduler
    seq_parallel_communication_data_type sparse_attention sparse_gradients steps_per_print tensor_parallel
    tensorboard timers torch_autocast train_batch_size train_micro_batch_size_per_gpu
    use_data_before_expert_parallelism wandb wall_clock_breakdown weight_quantization
    zero_allow_untested_optimizer zero_force_ds_cpu_optimizer zero_optimization
"""
_KEYS: Final = frozenset(_KEYS_TEXT.split())
"""Keys of DeepSpeed 0.17 (``runtime/config.py``), which silently ignores unknown keys."""

_ZERO_KEYS_TEXT: Final = """
    allgather_bucket_size allgather_partitions contiguous_gradients elastic_checkpoint enable_sanity_checks
    ignore_unused_parameters legacy_stage1 load_from_fp32_weights log_trace_cache_warnings
    memory_efficient_linear mics_hierarchical_params_gather mics_shard_size offload_optimizer offload_param
    overlap_comm override_module_apply pipeline_loading_checkpoint reduce_bucket_size reduce_scatter
    round_robin_gradients stage stage3_gather_16bit_weights_on_model_save stage3_max_live_parameters
    stage3_max_reuse_distance stage3_model_persistence_threshold stage3_module_granularity_threshold
    stage3_param_persistence_threshold stage3_prefetch_bucket_size stage3_use_all_reduce_for_fetch_params
    sub_group_size use_multi_rank_bucket_allreduce zenflow zero_hpz_partition_size zero_quantized_gradients
    zero_quantized_nontrainable_weights zero_quantized_weights zeropp_loco_param
"""
_ZERO_KEYS: Final = frozenset(_ZERO_KEYS_TEXT.split())
"""Keys of DeepSpeed 0.17 (``runtime/zero/config.py``)."""


def deepspeed_config(
    arguments: Mapping[str, Any], given: Mapping[str, Any], world_size: int
) -> dict[str, Any]:
    """Return DeepSpeed's configuration.

    DeepSpeed computes ``gradient_accumulation_steps`` from the batch and the number of ranks.

    :param arguments: ``dest`` → value of the given arguments; the others have the trainer's defaults.
    :param given: the part in the spec, in DeepSpeed's format.
    :param world_size: number of processes.
    :raises ArgumentError: for inconsistent arguments, and for a part that contradicts them.
    """
    steps = accumulation_steps(arguments, world_size)
    stage = _zero_stage(arguments)
    _check_keys(given, _KEYS, "")
    zero = given.get("zero_optimization", {})
    if not isinstance(zero, dict):
        raise _problem(CONFIG, "zero_optimization must be a mapping")
    _check_keys(zero, _ZERO_KEYS, "zero_optimization.")
    decided: dict[str, Any] = {
        "train_batch_size": _count(arguments, "global_batch_size"),
        "train_micro_batch_size_per_gpu": _count(arguments, "micro_batch_size"),
        "gradient_clipping": float(arguments.get("clip_grad", 1.0)),
        "zero_optimization": {"stage": stage},
        "bf16": {"enabled": bool(arguments.get("bf16"))},
        "fp16": _FP16 if arguments.get("fp16") else {"enabled": False},
    }
    if arguments.get("bf16") and arguments.get("fp16"):
        raise _problem("fp16", "bf16 and fp16 exclude each other; keep one")
    _check_agreement({**decided, "gradient_accumulation_steps": steps}, given, "")
    _check_offload(zero, stage)
    own: dict[str, Any] = {
        "steps_per_print": int(arguments.get("log_interval", 100)),
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    if int(arguments.get("pipeline_model_parallel_size", 1)) > 1:
        own["data_types"] = {"grad_accum_dtype": "fp32"}
    merged = _merged(_merged(decided, own), given)
    merged.pop("gradient_accumulation_steps", None)
    return merged


def accumulation_steps(arguments: Mapping[str, Any], world_size: int) -> int:
    """Return the micro-batches of an iteration on each data-parallel rank.

    :param arguments: as for :func:`deepspeed_config`.
    :param world_size: number of processes.
    :raises ArgumentError: if the number of processes does not fit the model parallelism, or the batch does not fit the
        processes.
    """
    sizes = {name: _count(arguments, name, 1) for name in _MODEL_SIZES}
    model = 1
    for size in sizes.values():
        model *= size
    if world_size % model:
        given = " × ".join(f"{name} ({size})" for name, size in sizes.items() if size > 1)
        raise _problem(
            next(name for name in sizes if sizes[name] > 1), f"{given} does not divide {world_size} GPUs"
        )
    data = world_size // model
    batch, micro = _count(arguments, "global_batch_size"), _count(arguments, "micro_batch_size")
    step = micro * data
    if batch % step:
        below = batch // step * step
        near = " or ".join(str(size) for size in (below, below + step) if size)
        raise _problem(
            "global_batch_size",
            f"{batch} is not a multiple of micro_batch_size ({micro}) × data-parallel size ({data}); use {near}",
        )
    return batch // step


def _zero_stage(arguments: Mapping[str, Any]) -> int:
    stage = _count(arguments, "zero_stage", 1, least=0)
    if stage > 3:
        raise _problem("zero_stage", f"{stage} is none of 0, 1, 2, 3")
    pipeline = _count(arguments, "pipeline_model_parallel_size", 1)
    if pipeline > 1 and stage > 1:
        raise _problem("zero_stage", f"DeepSpeed's pipelines take ZeRO stages 0 and 1 only, not {stage}")
    if pipeline > 1 and arguments.get("no_pipeline_parallel"):
        raise _problem(
            "no_pipeline_parallel", f"contradicts pipeline_model_parallel_size {pipeline}; drop one of them"
        )
    return stage


def _check_keys(given: Mapping[str, Any], known: Collection[str], place: str) -> None:
    for key in given:
        if key not in known:
            near = suggestion(place + name for name in near_names(key, known, limit=1))
            hint = near or "see DeepSpeed's configuration JSON"
            raise _problem(CONFIG, f"DeepSpeed has no setting {place}{key}; {hint}")


_SAID_AS: Final = {
    "train_batch_size": "global_batch_size",
    "train_micro_batch_size_per_gpu": "micro_batch_size",
    "gradient_accumulation_steps": "global_batch_size / micro_batch_size / data-parallel size",
    "gradient_clipping": "clip_grad",
    "zero_optimization.stage": "zero_stage",
    "bf16.enabled": "bf16",
    "fp16.enabled": "fp16",
}


def _check_agreement(decided: Mapping[str, Any], given: Mapping[str, Any], place: str) -> None:
    for key, value in given.items():
        own, where = decided.get(key), f"{place}{key}"
        if isinstance(own, dict) and not isinstance(value, dict):
            raise _problem(CONFIG, f"{where} must be a mapping")
        if isinstance(own, dict):
            _check_agreement(own, value, f"{where}.")
        elif where in _SAID_AS and value != own:
            raise _problem(
                CONFIG, f"{where} is {value!r}, but {_SAID_AS[where]} is {own!r}; leave it out here"
            )


def _check_offload(zero: Mapping[str, Any], stage: int) -> None:
    for what, least in (("offload_optimizer", 1), ("offload_param", 3)):
        section = zero.get(what) or {}
        device = section.get("device", "none") if isinstance(section, dict) else section
        if device not in ("none", "cpu", "nvme"):
            raise _problem(
                CONFIG, f"zero_optimization.{what}.device must be none, cpu or nvme, not {device!r}"
            )
        if device != "none" and stage < least:
            raise _problem(
                CONFIG, f"{what} needs zero_stage {least}{'' if least == 3 else ' or more'}, not {stage}"
            )


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    both = {
        key: _merged(below[key], value)
        if isinstance(below.get(key), dict) and isinstance(value, dict)
        else value
        for key, value in above.items()
    }
    return {**below, **both}


def _count(arguments: Mapping[str, Any], name: str, default: int | None = None, *, least: int = 1) -> int:
    value = arguments.get(name, default)
    if value is None:
        raise _problem(name, f"is needed: add megatron: {{{name}: …}}")
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = least - 1
    if number < least or number != float(value):
        raise _problem(name, f"must be a whole number of at least {least}, not {value!r}")
    return number


def _problem(name: str, reason: str) -> ArgumentError:
    return ArgumentError(name, TRAINER, reason)
