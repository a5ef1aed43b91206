"""World size, and its division into parallel sizes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from airflow_megatron.megatron.rules.nearest import divisors, multiples
from airflow_megatron.megatron.rules.rule import (
    CONFIG,
    FROM_ARGS,
    PARALLEL_CONFIG,
    VALIDATE,
    Derive,
    Rule,
)

if TYPE_CHECKING:
    from airflow_megatron.megatron.rules.rule import Topic
    from airflow_megatron.megatron.rules.settings import Settings

WEIGHT_SHARDS = "megatron/core/model_parallel_config.py resolve_tensor_parallel_weight_shards"
PARALLEL_STATE = "megatron/core/parallel_state.py initialize_model_parallel"
_SIZES = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")


def model_size(s: Settings) -> int:
    """Return the number of GPUs of one copy of the model."""
    size: int = s.tensor_model_parallel_size * s.pipeline_model_parallel_size * s.context_parallel_size
    shards: int = s.weight_remat_size
    return size * shards


def _weight_shards(s: Settings) -> None:
    shards, tensor = s.tensor_parallel_num_weight_shards, s.tensor_model_parallel_size
    s.weight_remat_size = 1 if shards is None else shards // tensor


def _data_parallel(s: Settings) -> None:
    s.data_parallel_size = s.world_size // model_size(s)
    if s.expert_tensor_parallel_size is None:
        s.expert_tensor_parallel_size = s.tensor_model_parallel_size


def _expert_weight_shards(s: Settings) -> None:
    shards, tensor = s.expert_tensor_parallel_num_weight_shards, s.expert_tensor_parallel_size
    s.expert_weight_remat_size = 1 if shards is None or not tensor else shards // tensor


def _world_hint(s: Settings) -> str:
    size = model_size(s)
    return f"a world size of {multiples(s.world_size, size)}, or smaller parallel sizes (their product is {size})"


def _expert_model_size(s: Settings) -> int:
    """Return the number of GPUs of one copy of the experts; 0 if a size is 0, by which upstream divides, or less."""
    if min(s.expert_tensor_parallel_size, s.expert_model_parallel_size) < 1:
        return 0
    size: int = s.expert_tensor_parallel_size * s.expert_model_parallel_size * s.pipeline_model_parallel_size
    return size


def _expert_groups_hint(s: Settings) -> str:
    size = _expert_model_size(s)
    if not size:
        return "parallel sizes of at least 1"
    return f"a world size of {multiples(s.world_size, size)}"


def _shards_do_not_fit(shards: int | None, tensor: int) -> bool:
    return shards is not None and (shards < tensor or shards % tensor != 0)


def _has_weight_remat(s: Settings) -> bool:
    return bool(s.weight_remat_size > 1 or s.expert_weight_remat_size > 1)


WORLD: Topic = (
    Rule(
        "parallel.positive-sizes",
        lambda s: any(vars(s)[name] <= 0 for name in _SIZES),
        "the parallel sizes must be 1 or more (tensor {tensor_model_parallel_size}, pipeline "
        "{pipeline_model_parallel_size}, context {context_parallel_size})",
        "1 or more",
        final=True,
    ),
    Rule(
        "parallel.weight-shards",
        lambda s: _shards_do_not_fit(s.tensor_parallel_num_weight_shards, s.tensor_model_parallel_size),
        "--tensor-parallel-num-weight-shards {tensor_parallel_num_weight_shards} is not a multiple of "
        "--tensor-model-parallel-size {tensor_model_parallel_size}",
        lambda s: multiples(s.tensor_parallel_num_weight_shards, s.tensor_model_parallel_size),
        WEIGHT_SHARDS,
        since=(0, 19),
        final=True,
    ),
    Derive(_weight_shards),
    Rule(
        "parallel.world-size",
        lambda s: s.world_size % model_size(s) != 0,
        "world size {world_size} is not divisible by tensor {tensor_model_parallel_size} x pipeline "
        "{pipeline_model_parallel_size} x context {context_parallel_size} parallel sizes",
        _world_hint,
        final=True,
    ),
    Derive(_data_parallel),
    Rule(
        "parallel.hierarchical-context",
        lambda s: (
            s.hierarchical_context_parallel_sizes
            and math.prod(s.hierarchical_context_parallel_sizes) != s.context_parallel_size
        ),
        "--hierarchical-context-parallel-sizes {hierarchical_context_parallel_sizes} do not multiply to "
        "--context-parallel-size {context_parallel_size}",
        lambda s: f"--context-parallel-size {math.prod(s.hierarchical_context_parallel_sizes)}",
    ),
    Rule(
        "parallel.context-a2a-p2p",
        lambda s: "a2a+p2p" in (s.cp_comm_type or ()) and s.hierarchical_context_parallel_sizes is None,
        "--cp-comm-type a2a+p2p needs --hierarchical-context-parallel-sizes",
        "give the two sizes, or another --cp-comm-type",
    ),
)

COMMUNICATION: Topic = (
    Rule(
        "parallel.tp-overlap-needs-sequence-parallel",
        lambda s: s.tp_comm_overlap and not (s.sequence_parallel and s.tensor_model_parallel_size > 1),
        "--tp-comm-overlap needs --sequence-parallel (and tensor parallelism)",
        "add --sequence-parallel with --tensor-model-parallel-size 2 or more, or drop --tp-comm-overlap",
    ),
    *(
        Rule(
            f"parallel.hybrid-context-{name}",
            lambda s, broken=broken: s.hybrid_context_parallel and broken(s),  # type: ignore[misc]
            f"--hybrid-context-parallel does not work with {what}",
            hint,
        )
        for name, broken, what, hint in (
            (
                "pipeline",
                lambda s: s.pipeline_model_parallel_size > 1,
                "pipeline parallelism",
                "--pipeline-model-parallel-size 1",
            ),
            (
                "cuda-graph",
                # upstream deletes this flag before it reads it, and does not look at the other ones
                lambda s: s.enable_cuda_graph,
                "--enable-cuda-graph",
                "--cuda-graph-impl local",
            ),
            ("fsdp", lambda s: s.use_megatron_fsdp, "Megatron FSDP", "drop --use-megatron-fsdp"),
            (
                "dataloader",
                lambda s: s.dataloader_type not in (None, "single"),
                "this --dataloader-type",
                "--dataloader-type single",
            ),
            (
                "per-token-loss",
                lambda s: not s.calculate_per_token_loss,
                "a loss averaged per sequence",
                "add --calculate-per-token-loss",
            ),
        )
    ),
    Rule(
        "parallel.cuda-device-max-connections",
        lambda s: (
            (s.tensor_model_parallel_size > 1 or s.context_parallel_size > 1)
            and s.machine.compute_capability < 10
            and not (s.use_torch_fsdp2 or s.use_megatron_fsdp or s.overlap_moe_expert_parallel_comm)
            and s.machine.environment.get("CUDA_DEVICE_MAX_CONNECTIONS") != "1"
        ),
        "tensor and context parallelism need the environment variable CUDA_DEVICE_MAX_CONNECTIONS=1",
        "set CUDA_DEVICE_MAX_CONNECTIONS=1 in the cluster profile",
    ),
    Rule(
        "parallel.expert-weight-shards",
        lambda s: (
            s.expert_tensor_parallel_size == 0
            or _shards_do_not_fit(s.expert_tensor_parallel_num_weight_shards, s.expert_tensor_parallel_size)
        ),
        "--expert-tensor-parallel-num-weight-shards {expert_tensor_parallel_num_weight_shards} is not a multiple "
        "of --expert-tensor-parallel-size {expert_tensor_parallel_size}",
        lambda s: (
            "--expert-tensor-parallel-num-weight-shards "
            + multiples(s.expert_tensor_parallel_num_weight_shards or 1, s.expert_tensor_parallel_size)
        ),
        WEIGHT_SHARDS,
        since=(0, 19),
    ),
    Derive(_expert_weight_shards),
    *(
        Rule(
            f"parallel.weight-remat-{name}",
            lambda s, broken=broken: _has_weight_remat(s) and broken(s),  # type: ignore[misc]
            f"weight shards beyond the tensor parallel size need {what}",
            hint,
        )
        for name, broken, what, hint in (
            (
                "fp4",
                lambda s: s.fp4 and not s.fp4_param_gather,
                "--fp4-param-gather with --fp4-format",
                "add --fp4-param-gather",
            ),
            (
                "graph-priority",
                lambda s: (
                    s.machine.compute_capability >= 10
                    and s.cuda_graph_impl != "none"
                    and s.machine.environment.get("CUDA_GRAPHS_USE_NODE_PRIORITY") != "1"
                ),
                "CUDA_GRAPHS_USE_NODE_PRIORITY=1 with CUDA graphs",
                "set CUDA_GRAPHS_USE_NODE_PRIORITY=1",
            ),
            (
                "average",
                lambda s: s.ddp_average_in_collective,
                "--ddp-average-in-collective off",
                "drop --ddp-average-in-collective",
            ),
            (
                "checkpoint",
                lambda s: s.ckpt_format not in ("torch", "torch_dist"),
                "--ckpt-format torch or torch_dist",
                "--ckpt-format torch_dist",
            ),
            (
                "reshardable",
                lambda s: (
                    s.dist_ckpt_optim_fully_reshardable and s.distrib_optim_fully_reshardable_mem_efficient
                ),
                "the plain fully reshardable optimizer checkpoint",
                "drop --distrib-optim-fully-reshardable-mem-efficient",
            ),
            (
                "mxfp8",
                lambda s: (
                    s.fp8_recipe == "mxfp8"
                    and not (s.fp8_param_gather and s.reuse_grad_buf_for_mxfp8_param_ag)
                ),
                "--fp8-param-gather and --reuse-grad-buf-for-mxfp8-param-ag with mxfp8",
                "add both flags",
            ),
        )
    ),
)

CONFIGURATION: Topic = (
    Rule(
        "parallel.defer-embedding-pipeline",
        lambda s: s.defer_embedding_wgrad_compute and s.pipeline_model_parallel_size == 1,
        "--defer-embedding-wgrad-compute needs pipeline parallelism",
        "--pipeline-model-parallel-size 2 or more, or drop the flag",
        PARALLEL_CONFIG,
    ),
    Rule(
        "parallel.defer-embedding-fusion",
        lambda s: s.defer_embedding_wgrad_compute and not s.gradient_accumulation_fusion,
        "--defer-embedding-wgrad-compute needs gradient accumulation fusion",
        "drop --no-gradient-accumulation-fusion",
        PARALLEL_CONFIG,
    ),
    Rule(
        "parallel.defer-embedding-limit",
        lambda s: s.defer_embedding_wgrad_compute and s.wgrad_deferral_limit < 0,
        "--wgrad-deferral-limit {wgrad_deferral_limit} is negative",
        "0 or more",
        PARALLEL_CONFIG,
    ),
    Rule(
        "parallel.warmup-flush-overlap",
        lambda s: s.overlap_p2p_comm_warmup_flush and not s.overlap_p2p_comm,
        "--overlap-p2p-communication-warmup-flush needs the interleaved schedule with overlapping "
        "point-to-point communication",
        "use virtual pipeline stages and drop --no-overlap-p2p-communication",
        PARALLEL_CONFIG,
    ),
    Rule(
        "parallel.heads",
        lambda s: s.num_attention_heads % s.tensor_model_parallel_size != 0,
        "--num-attention-heads {num_attention_heads} is not a multiple of --tensor-model-parallel-size "
        "{tensor_model_parallel_size}",
        lambda s: (
            "--tensor-model-parallel-size "
            + divisors(s.num_attention_heads, s.tensor_model_parallel_size)
            + ", or --num-attention-heads "
            + multiples(s.num_attention_heads, s.tensor_model_parallel_size)
        ),
        CONFIG,
    ),
    Rule(
        "parallel.query-groups",
        lambda s: (
            s.group_query_attention
            and s.num_query_groups % s.tensor_model_parallel_size != 0
            and s.tensor_model_parallel_size % s.num_query_groups != 0
        ),
        "--num-query-groups {num_query_groups} is neither a multiple nor a divisor of "
        "--tensor-model-parallel-size {tensor_model_parallel_size}",
        lambda s: (
            "--num-query-groups "
            + " or ".join(
                dict.fromkeys(
                    divisors(s.tensor_model_parallel_size, s.num_query_groups).split(" or ")
                    + multiples(s.num_query_groups, s.tensor_model_parallel_size).split(" or ")
                )
            )
        ),
        CONFIG,
    ),
    Rule(
        "parallel.query-groups-multiple",
        lambda s: s.group_query_attention and s.num_query_groups % s.tensor_model_parallel_size != 0,
        "--num-query-groups {num_query_groups} is not a multiple of --tensor-model-parallel-size "
        "{tensor_model_parallel_size}",
        lambda s: f"--num-query-groups {multiples(s.num_query_groups, s.tensor_model_parallel_size)}",
        CONFIG,
        until=(0, 16),
    ),
    Rule(
        "parallel.experts-and-tensors",
        lambda s: (
            s.expert_model_parallel_size > 1 and s.tensor_model_parallel_size > 1 and not s.sequence_parallel
        ),
        "expert parallelism with tensor parallelism needs --sequence-parallel",
        "add --sequence-parallel",
        PARALLEL_CONFIG,
        until=(0, 16),
    ),
    Rule(
        "parallel.context-communication-per-layer",
        lambda s: (
            s.context_parallel_size > 1
            and len(s.cp_comm_type or ("",)) != 1
            and len(s.cp_comm_type) != s.num_layers
        ),
        "--cp-comm-type lists a type per layer, but not {num_layers} of them",
        "one type, or one for each of the {num_layers} layers",
        CONFIG,
    ),
    Rule(
        "parallel.rope-type",
        lambda s: s.rope_type is not None and not (s.multi_latent_attention or s.rope_type == "rope"),
        "--rope-type {rope_type} needs --multi-latent-attention",
        "--rope-type rope",
        FROM_ARGS,
    ),
)

GROUPS: Topic = (
    Rule(
        "parallel.expert-groups",
        lambda s: not _expert_model_size(s) or s.world_size % _expert_model_size(s) != 0,
        "world size {world_size} is not divisible by expert tensor {expert_tensor_parallel_size} x expert "
        "{expert_model_parallel_size} x pipeline {pipeline_model_parallel_size} parallel sizes",
        _expert_groups_hint,
        PARALLEL_STATE,
    ),
)

__all__ = ["COMMUNICATION", "CONFIGURATION", "GROUPS", "VALIDATE", "WORLD", "model_size"]
