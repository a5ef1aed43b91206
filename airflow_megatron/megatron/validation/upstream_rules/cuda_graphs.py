"""CUDA graphs: implementations and the captured parts of the model.

Up to 0.17, ``--cuda-graph-scope`` also selects the capture of the whole iteration. From 0.18 on, ``--cuda-graph-impl
full_iteration`` selects it, ``--cuda-graph-modules`` names the parts, and the old spellings are translated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_megatron.megatron.rules.rule import CONFIG, Derive, Rule

if TYPE_CHECKING:
    from airflow_megatron.megatron.rules.rule import Topic
    from airflow_megatron.megatron.rules.settings import Settings

NEW_STYLE: Final = (0, 18)
NORMALIZE: Final = "megatron/core/transformer/cuda_graph_config.py"
_INFERENCE_SCOPES: Final = {
    "none": {"none"},
    "local": {"layer", "block"},
    "transformer_engine": {"none"},
    "full_iteration": {"none"},
}
_EXPERT_ACTIVATIONS: Final = {"expert_fc1", "moe_act", "fused_group_mlp"}


def _old_flags(s: Settings) -> None:
    if s.enable_cuda_graph:
        s.cuda_graph_impl = "local"
    if s.external_cuda_graph:
        s.cuda_graph_impl = "transformer_engine"


def _named_parts(s: Settings) -> list[str]:
    parts = (
        s.cuda_graph_scope if s.release < NEW_STYLE else s.cuda_graph_modules or s.cuda_graph_scope_deprecated
    )
    if isinstance(parts, str):
        parts = [parts]
    return list(parts or ())


def _regions(s: Settings) -> None:
    parts = _named_parts(s)
    if parts == ["full"]:
        parts = []
    if s.release >= NEW_STYLE:
        if "full_iteration" in parts:
            s.cuda_graph_impl = "full_iteration"
        if "full_iteration_inference" in parts and s.cuda_graph_impl != "none":
            s.inference_cuda_graph_scope = "block"
        parts = [part for part in parts if not part.startswith("full_iteration")]
        if s.inference_cuda_graph_scope is None:
            s.inference_cuda_graph_scope = "layer" if s.cuda_graph_impl == "local" else "none"
        s.cuda_graph_whole_iteration = s.cuda_graph_impl == "full_iteration"
    else:
        s.cuda_graph_whole_iteration = "full_iteration" in parts
    if s.cuda_graph_impl == "local" and ("moe_router" in parts or "moe_preprocess" in parts):
        parts = [*parts, "moe_router", "moe_preprocess"]
    s.cuda_graph_regions = frozenset(parts)


def _ambiguous(s: Settings) -> bool:
    """Old spellings together with new ones that contradict them."""
    old = {part for part in _named_parts(s) if part.startswith("full_iteration")}
    if len(old) > 1:
        return True
    if "full_iteration" in old:
        return s.cuda_graph_impl == "transformer_engine" or s.inference_cuda_graph_scope not in (None, "none")
    if "full_iteration_inference" in old:
        return s.cuda_graph_impl not in ("none", "local") or s.inference_cuda_graph_scope not in (
            None,
            "block",
        )
    return False


def _region_problem(s: Settings) -> bool:
    """Upstream's checks of the captured regions against the model."""
    regions = s.cuda_graph_regions
    if s.cuda_graph_impl == "transformer_engine" and "full_iteration" in regions:
        return True
    if {"moe", "moe_router"} <= regions or ("moe_preprocess" in regions and "moe_router" not in regions):
        return True
    if s.num_experts is None or s.num_experts <= 1:
        return bool({"moe", "moe_router"} & regions)
    every_layer = s.moe_layer_freq == 1 or (isinstance(s.moe_layer_freq, list) and 0 not in s.moe_layer_freq)
    if every_layer and "mlp" in regions:
        return True
    if s.moe_expert_capacity_factor is not None and s.moe_pad_expert_input_to_capacity:
        return False
    synchronizes = s.moe_token_dispatcher_type == "alltoall" and (
        s.moe_expert_capacity_factor is not None or s.moe_router_padding_for_fp8
    )
    return "moe" in regions or (synchronizes and "moe_preprocess" in regions)


def _recomputation_problem(s: Settings) -> bool:
    """Upstream's checks of recomputation inside captured regions."""
    regions, modules = s.cuda_graph_regions, s.recompute_modules or ()
    if s.recompute_granularity == "full":
        return not s.cuda_graph_whole_iteration or (s.release < NEW_STYLE and regions != {"full_iteration"})
    if s.cuda_graph_impl == "transformer_engine" and "moe" in modules and "moe_router" in regions:
        return True
    whole = s.cuda_graph_whole_iteration or not regions
    if s.attention_dropout != 0.0 and "core_attn" in modules and (whole or "attn" in regions):
        return True
    if s.hidden_dropout != 0.0:
        for part in ("mlp", "moe"):
            if part in modules and (whole or part in regions):
                return True
    return bool(s.moe_input_jitter_eps is not None and "moe" in modules and (whole or "moe" in regions))


def _recomputes_outside_attention(s: Settings) -> bool:
    """Return whether core 0.15 can recompute beside its graphs."""
    return (
        s.recompute_granularity == "selective"
        and s.cuda_graph_impl == "transformer_engine"
        and s.cuda_graph_scope == "attn"
        and not {"core_attn", "mla_up_proj"} & set(s.recompute_modules)
    )


def _offloading_problem(s: Settings) -> bool:
    """Upstream's checks of fine-grained activation offloading inside captured regions."""
    regions, modules = s.cuda_graph_regions, set(s.offload_modules or ())
    if s.cuda_graph_impl == "local" and (not modules or not modules <= _EXPERT_ACTIVATIONS or not regions):
        return True
    if "moe" in regions or s.cuda_graph_warmup_steps <= 0:
        return True
    inflight = s.fine_grained_offloading_max_inflight_offloads
    return bool(s.cuda_graph_impl == "full_iteration" and (inflight is None or inflight < 0))


FLAGS: Topic = (
    Rule(
        "cuda-graph.old-and-new-flags",
        lambda s: (
            (s.enable_cuda_graph or s.external_cuda_graph)
            and (s.cuda_graph_impl != "none" or (s.enable_cuda_graph and s.external_cuda_graph))
        ),
        "--enable-cuda-graph and --external-cuda-graph exclude each other and --cuda-graph-impl",
        "--cuda-graph-impl local or transformer_engine alone",
        since=(0, 15),
    ),
    Derive(_old_flags, since=(0, 15)),
    Rule(
        "cuda-graph.two-scopes",
        lambda s: s.cuda_graph_scope_deprecated is not None and s.cuda_graph_modules,
        "--cuda-graph-scope and --cuda-graph-modules are the same setting",
        "keep --cuda-graph-modules",
        since=NEW_STYLE,
    ),
    Rule(
        "cuda-graph.full-scope",
        lambda s: "full" in _named_parts(s) and len(_named_parts(s)) > 1,
        "the CUDA graph scope 'full' cannot be combined with others",
        "leave the scope out to capture whole layers",
        NORMALIZE,
        since=(0, 16),
    ),
    Rule(
        "cuda-graph.ambiguous-scope",
        _ambiguous,
        "an old CUDA graph scope contradicts --cuda-graph-impl {cuda_graph_impl} or --inference-cuda-graph-scope",
        "--cuda-graph-impl full_iteration, or --inference-cuda-graph-scope block",
        NORMALIZE,
        since=NEW_STYLE,
    ),
    Derive(_regions, since=(0, 15)),
    Rule(
        "cuda-graph.inference-scope",
        lambda s: s.inference_cuda_graph_scope not in _INFERENCE_SCOPES[s.cuda_graph_impl],
        "--inference-cuda-graph-scope {inference_cuda_graph_scope} does not go with --cuda-graph-impl "
        "{cuda_graph_impl}",
        lambda s: " or ".join(sorted(_INFERENCE_SCOPES[s.cuda_graph_impl])),
        since=NEW_STYLE,
    ),
)

GRAPHS: Topic = (
    Rule(
        "cuda-graph.nan-check",
        lambda s: (
            s.check_for_nan_in_loss_and_grad
            and s.cuda_graph_whole_iteration
            and (
                s.release >= NEW_STYLE or (s.cuda_graph_impl == "local" and not s.inference_dynamic_batching)
            )
        ),
        "a CUDA graph of the whole iteration cannot look for NaN",
        "add --no-check-for-nan-in-loss-and-grad",
        since=(0, 16),
    ),
    Rule(
        "cuda-graph.inference-fp8",
        lambda s: (
            s.release < NEW_STYLE
            and s.cuda_graph_impl == "local"
            and s.cuda_graph_whole_iteration
            and s.inference_dynamic_batching
            and s.fp8 is not None
        ),
        "fp8 does not work with dynamic inference batching in a CUDA graph of the whole iteration",
        "drop --fp8-format",
        since=(0, 16),
    ),
    Rule(
        "cuda-graph.block-fp8",
        lambda s: (
            s.inference_cuda_graph_scope == "block"
            and s.fp8 is not None
            and (s.transformer_impl != "inference_optimized" or s.fp8_recipe != "mxfp8")
        ),
        "fp8 with --inference-cuda-graph-scope block needs --transformer-impl inference_optimized and mxfp8",
        "--inference-cuda-graph-scope layer",
        since=NEW_STYLE,
    ),
    Rule(
        "cuda-graph.inference-count",
        lambda s: (
            s.cuda_graph_impl == "local"
            and s.inference_dynamic_batching_num_cuda_graphs <= 0
            and s.inference_dynamic_batching_num_cuda_graphs != -1
        ),
        "--inference-dynamic-batching-num-cuda-graphs {inference_dynamic_batching_num_cuda_graphs} must be "
        "positive or -1",
        "-1, or 1 or more",
        since=NEW_STYLE,
    ),
    Rule(
        "cuda-graph.expandable-segments",
        lambda s: (
            s.cuda_graph_impl == "transformer_engine"
            and "expandable_segments:True" in s.machine.environment.get("PYTORCH_CUDA_ALLOC_CONF", "")
            and s.machine.environment.get("NCCL_GRAPH_REGISTER", "") != "0"
        ),
        "CUDA graphs with expandable segments need NCCL_GRAPH_REGISTER=0",
        "set NCCL_GRAPH_REGISTER=0 in the cluster profile",
    ),
    Rule(
        "cuda-graph.expert-padding",
        lambda s: (
            s.cuda_graph_impl == "local"
            and s.expert_model_parallel_size > 1
            and not s.moe_pad_experts_for_cuda_graph_inference
        ),
        "local CUDA graphs with expert parallelism need --moe-pad-experts-for-cuda-graph-inference",
        "add it",
        since=(0, 16),
        until=NEW_STYLE,
    ),
    Rule(
        "cuda-graph.modules-and-full-iteration",
        lambda s: s.cuda_graph_impl == "full_iteration" and s.cuda_graph_regions,
        "--cuda-graph-impl full_iteration takes no --cuda-graph-modules",
        "leave --cuda-graph-modules out",
        since=NEW_STYLE,
    ),
)

CONFIGURATION: Topic = (
    Rule(
        "cuda-graph.any-recomputation",
        lambda s: s.enable_cuda_graph and s.recompute_granularity is not None,
        "--enable-cuda-graph does not work with recomputed activations",
        "drop one of them",
        CONFIG,
        until=(0, 15),
    ),
    Rule(
        "cuda-graph.recomputation-outside-attention",
        lambda s: (
            s.cuda_graph_impl != "none"
            and s.recompute_granularity is not None
            and not _recomputes_outside_attention(s)
        ),
        "CUDA graphs do not work with recomputed activations, except graphs of the attention beside selective "
        "recomputation of other modules",
        "drop one of them; or --cuda-graph-impl transformer_engine --cuda-graph-scope attn --recompute-granularity "
        "selective, with --recompute-modules other than core_attn and mla_up_proj",
        CONFIG,
        since=(0, 15),
        until=(0, 16),
    ),
    Rule(
        "cuda-graph.cpu-offloading",
        lambda s: s.cpu_offloading and s.cuda_graph_impl not in (None, "none", "full_iteration"),
        "CUDA graphs do not work with CPU offloading",
        "drop one of them",
        CONFIG,
    ),
    Rule(
        "cuda-graph.regions",
        lambda s: s.cuda_graph_impl in ("local", "transformer_engine") and _region_problem(s),
        "the CUDA graph scope names regions that this model does not have or cannot capture",
        "moe and moe_router exclude each other and need experts; moe needs capacity and padding; mlp dense layers",
        CONFIG,
        since=(0, 16),
    ),
    Rule(
        "cuda-graph.recomputation",
        lambda s: (
            s.cuda_graph_impl not in (None, "none") and s.recompute_granularity and _recomputation_problem(s)
        ),
        "recomputation does not work inside the captured regions (full recomputation, or modules with dropout)",
        "--attention-dropout 0 --hidden-dropout 0, or no recomputation",
        CONFIG,
        since=(0, 16),
    ),
    Rule(
        "cuda-graph.offloading",
        lambda s: (
            s.cuda_graph_impl != "none" and s.fine_grained_activation_offloading and _offloading_problem(s)
        ),
        "activation offloading does not work inside the captured regions",
        "--cuda-graph-impl transformer_engine, or offload expert activations outside them",
        CONFIG,
        since=(0, 19),
    ),
    Rule(
        "cuda-graph.expert-overlap",
        lambda s: (
            s.cuda_graph_impl != "none"
            and s.overlap_moe_expert_parallel_comm
            and (
                (s.cuda_graph_impl == "transformer_engine" and {"moe", "mlp"} & s.cuda_graph_regions)
                or (s.cuda_graph_impl != "transformer_engine" and s.release < NEW_STYLE)
            )
        ),
        "--overlap-moe-expert-parallel-comm does not work with graphs of experts and dense layers",
        "--cuda-graph-impl transformer_engine without moe and mlp",
        CONFIG,
        since=(0, 16),
    ),
)
