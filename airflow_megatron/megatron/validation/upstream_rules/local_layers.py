"""Rules of layers built without Transformer Engine: the norms, kernels and packages they need.

Each rule was observed in ``pretrain_gpt.py``; ``tests/studies/iterations/first_iterations.py`` checks a checkout. Apex
and the other ``packages`` are assumed to be installed if Transformer Engine is, as in NVIDIA's containers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_megatron.megatron.rules.nearest import divisors
from airflow_megatron.megatron.rules.rule import Rule
from airflow_megatron.megatron.validation.upstream_rules.experts import has_dense_layers, has_expert_layers

if TYPE_CHECKING:
    from airflow_megatron.megatron.rules.rule import Topic
    from airflow_megatron.megatron.rules.settings import Settings

NORM: Final = "megatron/core/transformer/torch_norm.py WrappedTorchNorm"
LINEAR: Final = "megatron/core/tensor_parallel/layers.py ColumnParallelLinear"
BLOCK: Final = "megatron/core/transformer/transformer_block.py TransformerBlock"
LAYER_SPECS: Final = "megatron.core.models.gpt.gpt_layer_specs"
DISPATCHER: Final = "megatron/core/transformer/moe/token_dispatcher.py"


def is_gpt(s: Settings) -> bool:
    """Return whether all layers are the default layers of GPT models, without a specification file."""
    return (
        s.hybrid_layer_pattern is None
        and s.hybrid_override_pattern is None
        and not s.is_hybrid_model
        and s.heterogeneous_layers_config_path is None
        and s.heterogeneous_layers_config_encoded_json is None
        and s.spec is None
    )


def is_local(s: Settings) -> bool:
    """Return whether they are built from parts of PyTorch and Megatron."""
    return (
        is_gpt(s)
        and s.transformer_impl == "local"
        and not s.use_kitchen_attention
        and not s.use_legacy_models
    )


def lacks(s: Settings, package: str) -> bool:
    """Return whether a package is not installed; with Transformer Engine all unnamed ones are assumed to be."""
    machine = s.machine
    assumed = machine.transformer_engine is not None and package not in machine.missing
    return not assumed and package not in machine.packages


def _exceeds_pytorch_norm(s: Settings) -> bool:
    return bool(
        s.apply_layernorm_1p
        or s.layernorm_zero_centered_gamma
        or (s.sequence_parallel and s.machine.device != "cpu")
        or not s.no_persist_layer_norm
    )


def _has_pytorch_norms(s: Settings) -> bool:
    return is_local(s) and (
        s.normalization == "RMSNorm" or (s.normalization == "LayerNorm" and lacks(s, "apex"))
    )


def _has_embedding_before_layers(s: Settings) -> bool:
    """Return whether the pipeline stage with the embedding has layers in any case."""
    return bool(
        s.pipeline_model_parallel_size == 1
        or (
            s.pipeline_layout is None
            and s.decoder_first_pipeline_num_layers is None
            and s.decoder_last_pipeline_num_layers is None
            and not s.account_for_embedding_in_pipeline_split
        )
    )


def _fuses_masked_softmax(s: Settings) -> bool:
    """Return whether the local attention uses the fused kernel: in half precision, for certain sizes."""
    heads_at_once = s.micro_batch_size * (s.num_attention_heads // s.tensor_model_parallel_size)
    return bool(
        s.masked_softmax_fusion
        and (s.fp16 or s.bf16)
        and 16 < s.seq_length <= 4096
        and s.seq_length % 4 == 0
        and heads_at_once % 4 == 0
    )


MODEL: Topic = (
    Rule(
        "model.transformer-engine",
        lambda s: (
            is_gpt(s)
            and s.transformer_impl == "transformer_engine"
            and s.machine.is_complete
            and s.machine.transformer_engine is None
        ),
        "--transformer-impl transformer_engine (the default) needs Transformer Engine, and the profile says that "
        "there is none",
        "--transformer-impl local; or transformer_engine: VERSION in the trainer's section of the cluster profile",
        "megatron/core/models/gpt/gpt_layer_specs.py get_gpt_layer_with_transformer_engine_spec",
        final=True,
    ),
    Rule(
        "model.local-rms-norm",
        lambda s: is_local(s) and s.normalization == "RMSNorm" and _exceeds_pytorch_norm(s),
        "--transformer-impl local has an RMSNorm without sequence parallelism, zero-centred gamma and persistent "
        "kernels",
        "--transformer-impl transformer_engine; or add --no-persist-layer-norm and drop the others",
        NORM,
    ),
    Rule(
        "model.local-layer-norm",
        lambda s: (
            is_local(s) and s.normalization == "LayerNorm" and lacks(s, "apex") and _exceeds_pytorch_norm(s)
        ),
        "without Apex, --transformer-impl local has a LayerNorm without sequence parallelism, zero-centred gamma and "
        "persistent kernels",
        "add --no-persist-layer-norm and drop --sequence-parallel and --apply-layernorm-1p; or name apex among the "
        "packages, where it is installed",
        NORM,
    ),
    Rule(
        "model.gradient-accumulation-fusion",
        # the output layer is megatron-core's own, also with Transformer Engine's layers
        lambda s: (
            s.gradient_accumulation_fusion
            and lacks(s, "apex")
            and (is_local(s) or s.machine.transformer_engine is not None)
        ),
        "gradient accumulation fusion, which is on by default, needs Apex's CUDA extensions",
        "--no-gradient-accumulation-fusion; or name apex among the packages, where it is installed",
        LINEAR,
    ),
    Rule(
        "model.local-latent-attention",
        lambda s: is_local(s) and s.multi_latent_attention,
        "--transformer-impl local has no attention for --multi-latent-attention",
        "--transformer-impl transformer_engine, or drop --multi-latent-attention",
        "megatron/core/transformer/multi_latent_attention.py MultiLatentAttention",
        since=(0, 16),
    ),
    Rule(
        "model.latent-experts",
        lambda s: (
            is_gpt(s)
            and has_expert_layers(s)
            and s.moe_latent_size
            and s.machine.is_complete
            and s.machine.transformer_engine is None
        ),
        "--moe-latent-size {moe_latent_size} needs Transformer Engine, and the profile says that there is none",
        "drop it; or transformer_engine: VERSION in the trainer's section of the cluster profile",
        "megatron/core/transformer/moe/moe_layer.py MoELayer",
        since=(0, 16),
    ),
    Rule(
        "model.local-grouped-gemm",
        lambda s: is_local(s) and has_expert_layers(s) and s.moe_grouped_gemm and lacks(s, "grouped_gemm"),
        "--moe-grouped-gemm under --transformer-impl local needs the package grouped_gemm",
        "drop --moe-grouped-gemm; or name grouped_gemm among the packages, where it is installed",
        "megatron/core/transformer/moe/experts.py GroupedMLP",
        until=(0, 17),
    ),
    Rule(
        "model.flexible-dispatcher",
        lambda s: (
            is_gpt(s)
            and has_expert_layers(s)
            and s.moe_token_dispatcher_type == "flex"
            and s.moe_flex_dispatcher_backend in ("deepep", "hybridep")
            and lacks(s, "deep_ep")
        ),
        "--moe-token-dispatcher-type flex with --moe-flex-dispatcher-backend {moe_flex_dispatcher_backend} needs the "
        "package deep_ep",
        "--moe-token-dispatcher-type alltoall; or name deep_ep among the packages, where it is installed",
        DISPATCHER,
        since=(0, 16),
    ),
    Rule(
        "model.cpu-offloading",
        lambda s: is_gpt(s) and s.cpu_offloading and s.machine.transformer_engine is None,
        "--cpu-offloading-num-layers needs Transformer Engine",
        "drop it, or use --recompute-granularity",
        BLOCK,
        since=(0, 16),
    ),
    Rule(
        "model.communication-overlap",
        lambda s: s.tp_comm_overlap and s.machine.transformer_engine is None,
        "--tp-comm-overlap needs Transformer Engine",
        "drop --tp-comm-overlap",
        "megatron/training/initialize.py _initialize_tp_communicators",
    ),
    Rule(
        "model.batch-invariant",
        lambda s: s.batch_invariant_mode and s.machine.is_complete and s.machine.transformer_engine is None,
        "--batch-invariant-mode needs Transformer Engine, and the profile says that there is none",
        "drop it; or transformer_engine: VERSION in the trainer's section of the cluster profile",
        "megatron/core/transformer/custom_layers/batch_invariant_kernels.py",
        since=(0, 16),
    ),
    Rule(
        "model.precision-aware-optimizer",
        lambda s: s.use_precision_aware_optimizer and s.machine.transformer_engine is None,
        "--use-precision-aware-optimizer needs Transformer Engine",
        "drop --use-precision-aware-optimizer",
        "megatron/core/optimizer/optimizer_config.py OptimizerConfig",
        since=(0, 16),
    ),
    Rule(
        "model.muon",
        lambda s: "muon" in str(s.optimizer) and lacks(s, "emerging_optimizers"),
        "--optimizer {optimizer} needs the package emerging_optimizers",
        "another --optimizer; or name emerging_optimizers among the packages, where it is installed",
        "megatron/core/optimizer/",
        since=(0, 16),
    ),
)

FIRST_ITERATION: Topic = (
    Rule(
        "iteration.layer-spec",
        # upstream uses the object of this name in the module without calling it
        lambda s: bool(s.spec) and s.spec[0] == LAYER_SPECS and s.spec[-1].startswith("get_"),
        "--spec names a function of {spec[0]}, and pretrain_gpt.py wants a ModuleSpec",
        "drop --spec: --transformer-impl, --num-experts and --qk-layernorm choose among these functions; or name a "
        "ModuleSpec of a module of your own",
        "gpt_builders.py gpt_builder, megatron/core/transformer/transformer_block.py _get_block_submodules",
        since=(0, 16),
    ),
    Rule(
        "iteration.einops",
        lambda s: (
            s.machine.is_complete
            and lacks(s, "einops")
            and ((s.num_distributed_optimizer_instances or 1) > 1 or s.hierarchical_context_parallel_sizes)
        ),
        "groups of groups of processes (--num-distributed-optimizer-instances, --hierarchical-context-parallel-sizes) "
        "need the package einops, which the profile does not name",
        "drop it; or name einops among the packages, where it is installed",
        "megatron/core/parallel_state.py create_hierarchical_groups",
        since=(0, 16),
    ),
    Rule(
        "iteration.odd-rotary",
        # positions are pairs: the channel of the last one is missing
        lambda s: (
            is_local(s)
            and s.position_embedding_type == "rope"
            and not s.multi_latent_attention
            and s.rotary_percent == 1
            and s.kv_channels % 2 == 1
        ),
        "rotary positions turn pairs of channels, and --kv-channels is {kv_channels}",
        "an even --kv-channels",
        "megatron/core/models/common/embeddings/rope_utils.py _apply_rotary_pos_emb_bshd",
        since=(0, 16),
    ),
    Rule(
        "iteration.fp32-residual",
        # the first norm either refuses fp32 states with weights in half precision, or returns them to a layer in it
        lambda s: s.fp32_residual_connection and _has_pytorch_norms(s) and _has_embedding_before_layers(s),
        "--fp32-residual-connection does not work with PyTorch's norms, which --transformer-impl local has without "
        "Apex (and for RMSNorm)",
        "--transformer-impl transformer_engine, or drop --fp32-residual-connection",
        "megatron/core/transformer/transformer_layer.py TransformerLayer._forward_attention, "
        "megatron/core/tensor_parallel/layers.py ColumnParallelLinear",
        since=(0, 16),
    ),
    Rule(
        "iteration.multimodal-positions",
        # three positions for each token, where GPT's batches have one
        lambda s: is_gpt(s) and s.position_embedding_type == "mrope",
        "pretrain_gpt.py trains no --position-embedding-type mrope: its batches have one position for each token",
        "--position-embedding-type rope",
        "megatron/core/models/common/embeddings/rotary_pos_embedding.py MultimodalRotaryEmbedding.forward",
        since=(0, 16),
    ),
    Rule(
        "iteration.experts-without-transformer-engine",
        # "name 'te_general_gemm' is not defined": the complete import fails, without a replacement
        lambda s: (
            is_gpt(s)
            and has_expert_layers(s)
            and s.machine.is_complete
            and s.machine.transformer_engine is None
            and s.machine.device != "cpu"
        ),
        "the router of experts needs Transformer Engine, and the profile says that there is none",
        "a release from core_v0.17 on; or transformer_engine: VERSION in the trainer's section of the cluster profile",
        "megatron/core/transformer/moe/moe_utils.py RouterGatingLinearFunction",
        since=(0, 16),
        until=(0, 17),
    ),
    Rule(
        "iteration.query-groups",
        # the queries of a group become one dimension of the heads
        lambda s: (
            is_gpt(s)
            and s.group_query_attention
            and s.num_query_groups
            and s.num_attention_heads % s.num_query_groups != 0
        ),
        "--num-attention-heads {num_attention_heads} is not a multiple of --num-query-groups {num_query_groups}",
        lambda s: f"--num-query-groups {divisors(s.num_attention_heads, s.num_query_groups)}",
        "megatron/core/transformer/attention.py SelfAttention.get_query_key_value_tensors",
    ),
    Rule(
        "iteration.masked-softmax-fusion",
        # FusedScaleMaskSoftmax.is_kernel_available imports the kernels by name to check shapes
        lambda s: is_local(s) and lacks(s, "apex") and _fuses_masked_softmax(s),
        "masked softmax fusion, which is on by default, needs Apex's CUDA extensions for heads and sequences of these "
        "sizes",
        "--no-masked-softmax-fusion; or name apex among the packages, where it is installed",
        "megatron/core/fusions/fused_softmax.py FusedScaleMaskSoftmax.get_batch_per_block",
        since=(0, 16),
    ),
    Rule(
        "iteration.router-fusion",
        lambda s: (
            is_gpt(s)
            and has_expert_layers(s)
            and s.moe_router_fusion
            and not s.machine.has_transformer_engine(2, 6)
        ),
        "--moe-router-fusion needs Transformer Engine 2.6",
        "drop --moe-router-fusion",
        "megatron/core/transformer/moe/moe_utils.py topk_routing_with_score_function",
        since=(0, 16),
    ),
    Rule(
        "iteration.cross-entropy-fusion",
        lambda s: (
            is_gpt(s)
            and s.cross_entropy_loss_fusion
            and s.cross_entropy_fusion_impl == "te"
            and s.machine.transformer_engine is None
        ),
        "--cross-entropy-fusion-impl te needs Transformer Engine",
        "--cross-entropy-fusion-impl native",
        "megatron/core/models/common/language_module/language_module.py compute_language_model_loss",
        since=(0, 16),
    ),
    Rule(
        "iteration.recomputed-mlp-bias",
        # the bias that the function returns becomes its own result, so its gradient recurses forever
        lambda s: (
            is_gpt(s)
            and s.recompute_granularity == "selective"
            and "mlp" in (s.recompute_modules or ())
            and s.add_bias_linear
            and has_dense_layers(s)
        ),
        "--recompute-modules mlp recomputes for ever where the layers have biases",
        "--disable-bias-linear; or --recompute-granularity full",
        "megatron/core/tensor_parallel/random.py CheckpointFunction.backward, "
        "megatron/core/transformer/transformer_layer.py TransformerLayer._forward_mlp",
        since=(0, 16),
    ),
    Rule(
        "iteration.recomputed-norms",
        # the recomputation queries Transformer Engine for its 8-bit state
        lambda s: (
            is_local(s)
            and s.recompute_granularity == "selective"
            and "layernorm" in (s.recompute_modules or ())
            and s.machine.transformer_engine is None
        ),
        "--recompute-modules layernorm needs Transformer Engine",
        "--recompute-modules core_attn mlp moe, or --recompute-granularity full",
        "megatron/core/tensor_parallel/random.py CheckpointWithoutOutputFunction",
        since=(0, 16),
    ),
)
