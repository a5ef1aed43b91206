"""Activation recomputation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_megatron.megatron.rules.rule import CONFIG, Derive, Rule

if TYPE_CHECKING:
    from airflow_megatron.megatron.rules.rule import Topic
    from airflow_megatron.megatron.rules.settings import Settings

_MODULES: Final = {"core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"}


def _shorthand(s: Settings) -> None:
    if s.recompute_activations:
        s.recompute_granularity = "selective"


def _modules(s: Settings) -> None:
    if s.recompute_modules is None:
        s.recompute_modules = ["core_attn"]


def _allowed_modules(s: Settings) -> set[str]:
    return _MODULES | {"gdn_norm_out"} if s.release >= (0, 19) else _MODULES


def _module_needs(s: Settings) -> bool:
    modules = s.recompute_modules
    return (
        ("moe_act" in modules and not s.moe_grouped_gemm)
        or ("mla_up_proj" in modules and not s.multi_latent_attention)
        or ("gdn_norm_out" in modules and s.experimental_attention_variant != "gated_delta_net")
        or (
            "shared_experts" in modules
            and s.moe_shared_expert_intermediate_size is not None
            and s.moe_shared_expert_overlap
        )
        or (
            bool(s.fp8)
            and ("moe_act" in modules or "layernorm" in modules)
            and (s.fp8_recipe == "delayed" or not s.machine.has_transformer_engine(2, 6))
        )
    )


def _whole_moe_layer(s: Settings) -> None:
    if s.moe_layer_recompute:
        s.recompute_granularity = "selective"
        if "moe" not in s.recompute_modules:
            s.recompute_modules = [*s.recompute_modules, "moe"]


SHORTHANDS: Topic = (
    Rule(
        "recompute.old-flag",
        lambda s: s.checkpoint_activations,
        "--checkpoint-activations is no longer valid",
        "--recompute-activations",
    ),
    Derive(_shorthand),
)

RECOMPUTATION: Topic = (
    Rule(
        "recompute.distributed-activations",
        lambda s: (
            s.distribute_saved_activations
            and not (
                s.tensor_model_parallel_size > 1
                and s.recompute_granularity == "full"
                and s.recompute_method is not None
            )
        ),
        "--distribute-saved-activations needs tensor parallelism and --recompute-granularity full with a method",
        "add them, or drop it",
    ),
    Rule(
        "recompute.selective-method",
        lambda s: s.recompute_granularity == "selective" and s.recompute_method is not None,
        "selective recomputation has no --recompute-method {recompute_method}",
        "drop --recompute-method (and --recompute-num-layers), or --recompute-granularity full",
    ),
)

CONFIGURATION: Topic = (
    Rule(
        "recompute.full-method",
        lambda s: s.recompute_granularity == "full" and s.recompute_method is None,
        "--recompute-granularity full needs --recompute-method",
        "--recompute-method block or uniform",
        CONFIG,
    ),
    Rule(
        "recompute.full-layers",
        lambda s: s.recompute_granularity == "full" and s.recompute_num_layers is None,
        "--recompute-granularity full needs --recompute-num-layers",
        lambda s: f"--recompute-num-layers between 1 and {s.num_layers // s.pipeline_model_parallel_size}",
        CONFIG,
    ),
    Rule(
        "recompute.selective-layers",
        lambda s: s.recompute_granularity == "selective" and s.recompute_num_layers is not None,
        "selective recomputation takes no --recompute-num-layers {recompute_num_layers}",
        "drop --recompute-num-layers, or --recompute-granularity full",
        CONFIG,
    ),
    Rule(
        "recompute.distributed-and-sequence-parallel",
        lambda s: (
            s.recompute_granularity is not None and s.distribute_saved_activations and s.sequence_parallel
        ),
        "--distribute-saved-activations and --sequence-parallel exclude each other",
        "drop one of them",
        CONFIG,
    ),
    Derive(_modules),
    Rule(
        "recompute.modules",
        lambda s: (
            s.recompute_granularity == "selective" and not set(s.recompute_modules) <= _allowed_modules(s)
        ),
        "--recompute-modules {recompute_modules} names unknown modules",
        lambda s: "of " + ", ".join(sorted(_allowed_modules(s))),
        CONFIG,
    ),
    Rule(
        "recompute.module-needs",
        lambda s: s.recompute_granularity == "selective" and _module_needs(s),
        "--recompute-modules {recompute_modules} names a module that this model does not have or cannot recompute",
        "moe_act needs --moe-grouped-gemm, mla_up_proj --multi-latent-attention, shared_experts no overlap",
        CONFIG,
    ),
    Rule(
        "recompute.moe-layer-and-full",
        lambda s: s.moe_layer_recompute and s.recompute_granularity == "full",
        "--moe-layer-recompute excludes full recomputation",
        "--recompute-granularity selective",
        CONFIG,
    ),
    Derive(_whole_moe_layer),
)
