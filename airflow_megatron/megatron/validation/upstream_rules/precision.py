"""Number formats: fp16, bf16, fp8, fp4, and the optimizer's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.megatron.rules.rule import CONFIG, Derive, Rule

if TYPE_CHECKING:
    from airflow_megatron.megatron.rules.rule import Topic
    from airflow_megatron.megatron.rules.settings import Settings


def _half_precision(s: Settings) -> None:
    if s.fp16 and not s.loss_scale:  # dynamic loss scaling checks the gradients itself
        s.check_for_nan_in_loss_and_grad = False


def _fp4_parameters(s: Settings) -> bool:
    return bool(s.fp4_param_gather or s.fp4_param)


def _fsdp2_fallback(s: Settings) -> None:
    if s.use_torch_fsdp2 and s.machine.has_transformer_engine(2, 0):
        s.fp8_param_gather = False  # FSDP2 then gathers parameters in bf16
    if s.use_torch_fsdp2 and s.release >= (0, 17) and not s.machine.has_transformer_engine(2, 7):
        s.fp4_param_gather = False


def _reduced_layers_do_not_fit(s: Settings) -> bool:
    most = s.num_layers // s.pipeline_model_parallel_size
    return s.fp8_recipe == "delayed" or not (
        0 <= s.num_layers_at_start_in_bf16 <= most and 0 <= s.num_layers_at_end_in_bf16 <= most
    )


FORMATS: Topic = (
    Derive(_fsdp2_fallback, since=(0, 14)),
    Rule(
        "precision.fp8-parameters",
        lambda s: (
            s.fp8_param_gather
            and not (s.use_distributed_optimizer or s.use_torch_fsdp2 or s.use_megatron_fsdp)
        ),
        "--fp8-param-gather needs the distributed optimizer or FSDP",
        "add --use-distributed-optimizer",
    ),
    Rule(
        "precision.fp4-and-fp8",
        lambda s: s.fp4 and s.fp8,
        "--fp4-format and --fp8-format exclude each other",
        "keep one of them",
    ),
    Rule(
        "precision.fp4-parameters",
        lambda s: _fp4_parameters(s) and not s.fp4,
        "--fp4-param-gather needs --fp4-format",
        "add --fp4-format",
    ),
    Rule(
        "precision.fp4-engine",
        lambda s: s.fp4 and not s.machine.has_transformer_engine(2, 7),
        "--fp4-format needs Transformer Engine 2.7",
        "drop --fp4-format",
    ),
    Rule(
        "precision.fp16-and-bf16",
        lambda s: s.fp16 and s.bf16,
        "--fp16 and --bf16 exclude each other",
        "keep one of them",
    ),
    Derive(_half_precision),
    Rule(
        "precision.gradients-in-fp32",
        lambda s: (
            s.bf16 and s.accumulate_allreduce_grads_in_fp32 and s.main_grads_dtype not in (None, "fp32")
        ),
        "--accumulate-allreduce-grads-in-fp32 needs --main-grads-dtype fp32, not {main_grads_dtype}",
        "--main-grads-dtype fp32",
    ),
    Rule(
        "precision.fp16-cross-entropy",
        lambda s: s.fp16_lm_cross_entropy and not s.fp16,
        "--fp16-lm-cross-entropy needs --fp16",
        "add --fp16, or drop it",
    ),
    Rule(
        "precision.fp32-residual",
        lambda s: s.fp32_residual_connection and not (s.fp16 or s.bf16),
        "--fp32-residual-connection needs --fp16 or --bf16",
        "add --bf16, or drop it",
    ),
    Rule(
        "precision.mxfp8-inference",
        lambda s: (
            s.fp8_recipe == "mxfp8"
            and s.transformer_impl == "inference_optimized"
            and "flashinfer" not in s.machine.packages
        ),
        "mxfp8 with --transformer-impl inference_optimized needs FlashInfer 0.6.4",
        "another --fp8-recipe",
        since=(0, 18),
    ),
    Rule(
        "precision.cross-entropy-fusion",
        lambda s: s.cross_entropy_loss_fusion and s.cross_entropy_fusion_impl == "te",
        "Transformer Engine's fused cross entropy is switched off upstream",
        "--cross-entropy-fusion-impl native, or no --cross-entropy-loss-fusion",
        since=(0, 18),
    ),
)

CONFIGURATION: Topic = (
    Rule(
        "precision.reduced-layers",
        lambda s: s.fp8 and s.first_last_layers_bf16 and _reduced_layers_do_not_fit(s),
        "--first-last-layers-bf16 needs a recipe other than delayed, and no more layers than a stage has",
        "--fp8-recipe tensorwise; fewer layers at start and end",
        CONFIG,
    ),
    Rule(
        "precision.custom-recipe",
        lambda s: (
            (s.fp8 and s.fp8_recipe == "custom" and not s.fp8_quantizer_factory)
            or (s.fp4 and s.fp4_recipe == "custom" and not s.fp4_quantizer_factory)
        ),
        "a custom recipe needs its quantizer factory",
        "give --fp8-quantizer-factory (or --fp4-quantizer-factory)",
        CONFIG,
    ),
    Rule(
        "precision.fp8-parameters-without-fp8",
        lambda s: s.fp8_param_gather and not s.fp8,
        "--fp8-param-gather needs --fp8-format",
        "add --fp8-format",
        CONFIG,
    ),
    Rule(
        "precision.fp8-output",
        lambda s: s.fp8_output_proj and not (s.fp8 and s.fp8_recipe == "mxfp8"),
        "--fp8-output-proj needs --fp8-format with --fp8-recipe mxfp8",
        "--fp8-recipe mxfp8",
        CONFIG,
        since=(0, 18),
    ),
)
