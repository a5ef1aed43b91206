"""The network: sizes, sequence, positions, activation, attention variants."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow_megatron.megatron.rules.nearest import divisors, multiples
from airflow_megatron.megatron.rules.rule import CONFIG, FROM_ARGS, VALIDATE, Derive, Rule

if TYPE_CHECKING:
    from airflow_megatron.megatron.rules.rule import Topic
    from airflow_megatron.megatron.rules.settings import Settings

LAYERS = "megatron/training/arguments.py validate_model_config_args_from_heterogeneous_config"
_OF_HETEROGENEOUS: dict[str, Any] = {
    "swiglu": True,
    "normalization": "RMSNorm",
    "group_query_attention": True,
    "position_embedding_type": "rope",
    "rotary_percent": 1.0,
    "use_rope_scaling": True,
    "use_rotary_position_embeddings": True,
}
_REQUIRED = ("hidden_size", "num_attention_heads", "max_position_embeddings")
#: Value of --dsa-kernel-backend → packages with its kernels.
_DSA_PACKAGES = {"none": set[str](), "tilelang": {"tilelang"}, "cudnn": {"cudnn", "flash_mla"}}
_OFFLOADABLE = {"core_attn", "attn_proj", "expert_fc1", "moe_act", "attn_norm", "mlp_norm", "qkv_linear"}


def _layers(s: Settings) -> None:
    if s.num_layers is None:
        s.num_layers = s.encoder_num_layers


def _sizes(s: Settings) -> None:
    if s.ffn_hidden_size is None:
        # With a gated unit two matrices share the input: two thirds of the width, in multiples of 64.
        s.ffn_hidden_size = int((4 * s.hidden_size * 2 / 3) / 64) * 64 if s.swiglu else 4 * s.hidden_size
    if s.kv_channels is None:
        s.kv_channels = s.hidden_size // s.num_attention_heads
    if s.seq_length is None:
        s.seq_length = s.encoder_seq_length


def _wanted_by_layers(text: str) -> dict[str, Any] | None:
    """Return the sizes by ``dest`` that a configuration of heterogeneous layers requires; None if it is not one."""
    try:
        found = json.loads(text)
        heads, factor = found["num_attention_heads"], found["rope_scaling"]["factor"]
        attentions = [block["attention"]["n_heads_in_group"] for block in found["block_configs"]]
        groups = {size for size in attentions if size is not None}
        if found["hidden_act"] != "silu" or len(groups) != 1:
            return None
        return {
            "num_layers": found["num_hidden_layers"],
            "hidden_size": found["hidden_size"],
            "num_attention_heads": heads,
            "untie_embeddings_and_output_weights": not found["tie_word_embeddings"],
            "rotary_base": found["rope_theta"],
            "rope_scaling_factor": factor,
            "num_query_groups": heads // groups.pop(),
        }
    except (ValueError, LookupError, TypeError, ArithmeticError):
        return None


def _names_layers(s: Settings) -> bool:
    """Return whether a configuration of heterogeneous layers is given, as a file or as a valid text."""
    text = s.heterogeneous_layers_config_encoded_json
    if text is None:
        return s.heterogeneous_layers_config_path is not None
    return _wanted_by_layers(text) is not None


def _layers_sizes(s: Settings) -> dict[str, Any]:
    """Return the sizes that differ from the given configuration of heterogeneous layers, with the required values."""
    text = s.heterogeneous_layers_config_encoded_json
    wanted = (_wanted_by_layers(text) or {}) if text is not None else {}
    return {name: value for name, value in wanted.items() if vars(s)[name] != value}


def _layers_flags(s: Settings) -> dict[str, Any]:
    """Return the settings with which no heterogeneous layers are built, with the required values."""
    return {name: value for name, value in _OF_HETEROGENEOUS.items() if vars(s)[name] != value}


def _write(values: dict[str, Any]) -> str:
    flags = ((f"--{name.replace('_', '-')}", value) for name, value in values.items())
    return ", ".join(
        flag if value is True else f"no {flag}" if value is False else f"{flag} {value}"
        for flag, value in flags
    )


def _sequence_parallel(s: Settings) -> None:
    if s.tensor_model_parallel_size == 1:
        s.sequence_parallel = False


def _biases_and_positions(s: Settings) -> None:
    if s.add_bias_linear:
        s.add_qkv_bias = True
    else:
        s.bias_gelu_fusion = False
    if s.use_rotary_position_embeddings:
        s.position_embedding_type = "rope"
    if s.position_embedding_type != "rope":
        s.apply_rope_fusion = False


def _activation(s: Settings) -> None:
    s.activation, s.gated_linear_unit = "gelu", False
    s.bias_activation_fusion = s.bias_gelu_fusion
    if s.swiglu:
        s.activation, s.gated_linear_unit = "silu", True
        s.bias_activation_fusion = s.bias_swiglu_fusion
    if s.squared_relu:
        s.activation = "squared_relu"
    elif s.quick_geglu:
        s.activation, s.gated_linear_unit = "quick_gelu", True


def _offloading(s: Settings) -> None:
    s.cpu_offloading = (s.cpu_offloading_num_layers or 0) > 0


def _sequence_hint(s: Settings) -> str:
    unit = 2 * s.context_parallel_size
    return f"--seq-length {multiples(s.seq_length, unit)}, or a smaller --context-parallel-size"


def _delta_net_problem(s: Settings) -> bool:
    keys, values = s.linear_num_key_heads, s.linear_num_value_heads
    needed = (s.linear_conv_kernel_dim, s.linear_key_head_dim, s.linear_value_head_dim, keys, values)
    if s.linear_attention_freq is None or any(value is None for value in needed):
        return True
    if s.release < (0, 18) and s.context_parallel_size != 1:
        return True
    unit = s.tensor_model_parallel_size * (s.context_parallel_size if s.release >= (0, 18) else 1)
    return not keys or values % keys != 0 or keys % unit != 0 or values % unit != 0


def _rope_skip_problem(s: Settings) -> bool:
    pattern = s.no_rope_freq
    if not pattern:
        return False
    if s.flash_decode:
        return True
    return bool(s.num_layers % pattern if isinstance(pattern, int) else len(pattern) != s.num_layers)


def _offload_problem(s: Settings) -> bool:
    """Upstream's checks of fine-grained activation offloading in the configuration."""
    modules = set(s.offload_modules or ())
    allowed = _OFFLOADABLE | ({"fused_group_mlp"} if s.release >= (0, 19) else set())
    return (
        s.cpu_offloading
        or not modules
        or not modules <= allowed
        or ("attn_proj" in modules and "core_attn" not in modules)
    )


HETEROGENEOUS: Topic = (
    Rule(
        "network.heterogeneous-layers",
        lambda s: (
            s.heterogeneous_layers_config_encoded_json is not None
            and _wanted_by_layers(s.heterogeneous_layers_config_encoded_json) is None
        ),
        "--heterogeneous-layers-config-encoded-json is not a JSON object with hidden_act silu, the sizes of the model, "
        "and block_configs whose attentions have one size of groups",
        "write the text of a Hugging Face configuration of such a model",
        LAYERS,
    ),
    Rule(
        "network.heterogeneous-flags",
        lambda s: _names_layers(s) and _layers_flags(s),
        "--heterogeneous-layers-config-path and --heterogeneous-layers-config-encoded-json need flags of Llama models",
        lambda s: _write(_layers_flags(s)),
        LAYERS,
    ),
    Rule(
        "network.heterogeneous-sizes",
        _layers_sizes,
        "arguments differ from --heterogeneous-layers-config-encoded-json",
        lambda s: _write(_layers_sizes(s)),
        LAYERS,
    ),
)

SIZES: Topic = (
    Rule(
        "network.two-layer-counts",
        lambda s: s.num_layers is not None and s.encoder_num_layers is not None,
        "--num-layers and --encoder-num-layers are the same setting",
        "keep --num-layers",
    ),
    Rule(
        "network.layers-missing",
        lambda s: s.num_layers is None and s.encoder_num_layers is None,
        "--num-layers must be given",
        "give --num-layers",
        final=True,
    ),
    Derive(_layers),
    Rule(
        "network.size-missing",
        lambda s: any(vars(s)[name] is None for name in _REQUIRED),
        "--hidden-size, --num-attention-heads and --max-position-embeddings must be given",
        lambda s: (
            "give " + ", ".join("--" + name.replace("_", "-") for name in _REQUIRED if vars(s)[name] is None)
        ),
        final=True,
    ),
    Rule(
        "network.heads-positive",
        lambda s: s.num_attention_heads == 0 and s.kv_channels is None,
        "--num-attention-heads 0 must be positive",
        "1 or more",
        final=True,
    ),
    Rule(
        "network.head-size",
        lambda s: s.kv_channels is None and s.hidden_size % s.num_attention_heads != 0,
        "--hidden-size {hidden_size} is not a multiple of --num-attention-heads {num_attention_heads}",
        lambda s: (
            f"--hidden-size {multiples(s.hidden_size, s.num_attention_heads)}, --num-attention-heads "
            f"{divisors(s.hidden_size, s.num_attention_heads)}, or --kv-channels"
        ),
    ),
    Rule(
        "network.two-sequence-lengths",
        lambda s: s.seq_length is not None and s.encoder_seq_length is not None,
        "--seq-length and --encoder-seq-length are the same setting",
        "keep --seq-length",
    ),
    Rule(
        "network.sequence-missing",
        lambda s: s.seq_length is None and s.encoder_seq_length is None,
        "--seq-length must be given",
        "give --seq-length",
        final=True,
    ),
    Rule(
        "network.sequence-and-context",
        lambda s: (
            s.context_parallel_size > 1
            and s.seq_length is not None
            and s.seq_length % (2 * s.context_parallel_size) != 0
        ),
        "--seq-length {seq_length} is not a multiple of 2 x --context-parallel-size {context_parallel_size}",
        _sequence_hint,
    ),
    Derive(_sizes),
    Rule(
        "network.positions",
        lambda s: s.max_position_embeddings < s.seq_length,
        "--max-position-embeddings {max_position_embeddings} is less than --seq-length {seq_length}",
        "--max-position-embeddings {seq_length} or more, or --seq-length {max_position_embeddings}",
    ),
    Rule(
        "network.decoder-positions",
        lambda s: s.decoder_seq_length is not None and s.max_position_embeddings < s.decoder_seq_length,
        "--max-position-embeddings {max_position_embeddings} is less than --decoder-seq-length "
        "{decoder_seq_length}",
        "--max-position-embeddings {decoder_seq_length} or more",
    ),
)

FEATURES: Topic = (
    Derive(_sequence_parallel),
    Derive(_biases_and_positions),
    Rule(
        "network.local-attention-spec",
        lambda s: s.attention_backend == "local" and (not s.spec or s.spec[0] != "local"),
        "--attention-backend local needs --spec local",
        "add --spec local, or another --attention-backend",
    ),
    Rule(
        "network.legacy-checkpoint",
        lambda s: s.use_legacy_models and s.ckpt_format != "torch",
        "--use-legacy-models needs --ckpt-format torch",
        "--ckpt-format torch",
    ),
    Rule(
        "network.legacy-features",
        lambda s: (
            s.use_legacy_models
            and (
                s.context_parallel_size > 1
                or s.decoupled_lr is not None
                or s.decoupled_min_lr is not None
                or s.rotary_interleaved
                or s.mtp_num_layers
                or s.moe_latent_size is not None
                or s.overlap_param_gather
            )
        ),
        "legacy models know neither context parallelism, decoupled learning rates, interleaved rotary "
        "embeddings, multi-token prediction, latent experts nor --overlap-param-gather",
        "drop --use-legacy-models, or that feature",
    ),
    Rule(
        "network.position-flag",
        lambda s: s.add_position_embedding is False and s.position_embedding_type != "rope",
        "--no-position-embedding is no longer valid with --position-embedding-type {position_embedding_type}",
        "--position-embedding-type rope or none",
    ),
    Rule(
        "network.relative-positions",
        lambda s: s.position_embedding_type == "relative" and s.transformer_impl != "transformer_engine",
        "--position-embedding-type relative needs --transformer-impl transformer_engine",
        "--transformer-impl transformer_engine",
    ),
    Rule(
        "network.mrope-section",
        lambda s: s.position_embedding_type == "mrope" and s.mrope_section is None,
        "--position-embedding-type mrope needs --mrope-section",
        "give --mrope-section",
    ),
    Rule(
        "network.qk-clip",
        lambda s: (
            s.qk_clip
            and not (
                s.machine.has_transformer_engine(2, 9)
                and 0.0 < s.qk_clip_alpha < 1.0
                and s.qk_clip_threshold > 0
            )
        ),
        "--qk-clip needs Transformer Engine 2.9 and 0 < --qk-clip-alpha < 1, --qk-clip-threshold > 0",
        "correct the values, or drop --qk-clip",
    ),
    Rule(
        "network.log-max-attention-logit",
        lambda s: s.log_max_attention_logit and not s.machine.has_transformer_engine(2, 9),
        "--log-max-attention-logit needs Transformer Engine 2.9",
        "drop it",
    ),
    Rule(
        "network.mtp-positions",
        lambda s: (
            s.mtp_num_layers
            and s.position_embedding_type
            not in (
                ("learned_absolute", "rope", "mrope", "none") if s.release >= (0, 17) else ("rope", "none")
            )
        ),
        "multi-token prediction does not work with --position-embedding-type {position_embedding_type}",
        "--position-embedding-type rope or none",
    ),
    Rule(
        "network.interleaved-fusion",
        lambda s: s.rotary_interleaved and s.apply_rope_fusion,
        "--rotary-interleaved does not work with fused rotary embeddings",
        "add --no-rope-fusion",
        until=(0, 14),
    ),
    Rule(
        "network.retrieval",
        lambda s: (
            s.retro_add_retriever
            and (s.train_samples is None or s.sequence_parallel or s.pipeline_model_parallel_size > 1)
        ),
        "--retro-add-retriever needs --train-samples, and works neither with sequence nor with pipeline parallelism",
        "drop it; pretrain_gpt.py builds no retriever",
        until=(0, 16),
    ),
    Rule(
        "network.latent-attention-groups",
        lambda s: s.multi_latent_attention and s.group_query_attention,
        "--multi-latent-attention and --group-query-attention exclude each other",
        "drop one of them",
        since=(0, 16),
    ),
    Rule(
        "network.latent-attention-fusion",
        lambda s: s.mla_down_proj_fusion and not s.multi_latent_attention,
        "--mla-down-proj-fusion needs --multi-latent-attention",
        "add --multi-latent-attention",
        since=(0, 17),
    ),
    Derive(_offloading),
)

CONFIGURATION: Topic = (
    Derive(_activation),
    Rule(
        "network.two-activations",
        lambda s: s.swiglu and (s.squared_relu or s.quick_geglu),
        "--swiglu excludes --squared-relu and --quick-geglu",
        "keep one of them",
        FROM_ARGS,
    ),
    Rule(
        "network.xavier",
        lambda s: s.init_method_xavier_uniform,
        "--init-method-xavier-uniform fails in every known release: its configuration has no scaled_init_method",
        "drop it",
        FROM_ARGS,
    ),
    Rule(
        "network.layers-positive",
        lambda s: s.num_layers <= 0,
        "--num-layers {num_layers} must be positive: the initial weights scale with 1/sqrt(2 x layers)",
        "1 or more",
        "megatron/core/utils.py scaled_init_method_normal",
        final=True,
    ),
    Rule(
        "network.latent-and-heterogeneous",
        lambda s: s.multi_latent_attention and s.heterogeneous_layers_config_path is not None,
        "heterogeneous layers do not work with --multi-latent-attention",
        "drop one of them",
        FROM_ARGS,
    ),
    Rule(
        "network.gated-delta-net",
        lambda s: s.experimental_attention_variant == "gated_delta_net" and _delta_net_problem(s),
        "gated delta net needs --linear-attention-freq and linear head sizes that divide by the tensor parallel "
        "size",
        "give the --linear-… sizes; value heads a multiple of key heads, both of the parallel size",
        CONFIG,
    ),
    Rule(
        "network.sparse-attention",
        lambda s: (
            s.experimental_attention_variant == "dsa"
            and (
                s.apply_rope_fusion
                or (s.context_parallel_size != 1 and s.release < (0, 19))
                or (
                    s.context_parallel_size > 1
                    and any(word.replace("_", "").lower() != "allgather" for word in s.cp_comm_type)
                )
            )
        ),
        "sparse attention (dsa) works neither with rotary fusion nor with this context parallelism",
        "--no-rope-fusion, --context-parallel-size 1",
        CONFIG,
    ),
    Rule(
        "network.sparse-attention-indexer",
        lambda s: (
            s.experimental_attention_variant == "dsa"
            and (s.add_bias_linear or s.dsa_indexer_topk_freq < 1 or s.dsa_indexer_skip_topk_offset < 0)
        ),
        "sparse attention (dsa) needs no linear bias and a positive indexer frequency",
        "--disable-bias-linear, --dsa-indexer-topk-freq 1 or more",
        CONFIG,
        since=(0, 19),
    ),
    Rule(
        "network.sparse-attention-kernels",
        lambda s: (
            s.experimental_attention_variant == "dsa"
            and not _DSA_PACKAGES[s.dsa_kernel_backend] <= s.machine.packages
        ),
        "--dsa-kernel-backend {dsa_kernel_backend} needs packages with its kernels",
        lambda s: (
            "--dsa-kernel-backend none; or name the packages where they are installed: "
            + ", ".join(sorted(_DSA_PACKAGES[s.dsa_kernel_backend]))
        ),
        CONFIG,
        since=(0, 19),
    ),
    Rule(
        "network.cpu-offloading",
        lambda s: (
            s.cpu_offloading
            and (
                s.cpu_offloading_num_layers >= s.num_layers
                or s.pipeline_model_parallel_size > 1
                or s.recompute_granularity is not None
            )
        ),
        "offloading {cpu_offloading_num_layers} layers to the CPU needs fewer than {num_layers} of them, no "
        "pipeline parallelism and no recomputation",
        "--cpu-offloading-num-layers below {num_layers}, --pipeline-model-parallel-size 1, no recomputation",
        CONFIG,
    ),
    Rule(
        "network.offload-modules",
        lambda s: s.fine_grained_activation_offloading and _offload_problem(s),
        "--fine-grained-activation-offloading cannot offload {offload_modules}",
        "core_attn, attn_proj (with core_attn), expert_fc1, moe_act, attn_norm, mlp_norm, qkv_linear",
        CONFIG,
        since=(0, 16),
    ),
    Rule(
        "network.activation-fusion",
        lambda s: s.bias_activation_fusion and s.activation == "squared_relu",
        "the fused bias and activation do not know squared ReLU",
        "add --no-bias-gelu-fusion (or --no-bias-swiglu-fusion)",
        CONFIG,
    ),
    Rule(
        "network.glu-offset",
        lambda s: s.bias_activation_fusion and s.glu_linear_offset and s.activation != "quick_gelu",
        "--glu-linear-offset {glu_linear_offset} needs --quick-geglu with fused bias and activation",
        "drop the offset, or add --no-bias-gelu-fusion",
        CONFIG,
    ),
    Rule(
        "network.two-activation-implementations",
        lambda s: s.bias_activation_fusion and s.use_te_activation_func,
        "--use-te-activation-func excludes the fused bias and activation",
        "add --no-bias-gelu-fusion (or --no-bias-swiglu-fusion)",
        CONFIG,
    ),
    Rule(
        "network.te-activation",
        lambda s: s.use_te_activation_func and s.activation not in ("gelu", "silu"),
        "Transformer Engine has no {activation} activation",
        "drop --use-te-activation-func",
        CONFIG,
    ),
    Rule(
        "network.residual-norm",
        lambda s: s.fused_residual_rmsnorm and s.normalization != "RMSNorm",
        "--fused-residual-rmsnorm needs --normalization RMSNorm",
        "--normalization RMSNorm",
        CONFIG,
        since=(0, 17),
    ),
    Rule(
        "network.rope-fusion",
        lambda s: (
            s.apply_rope_fusion
            and not s.multi_latent_attention
            and not s.machine.has_transformer_engine(*((2, 3) if s.rotary_interleaved else (1, 4)))
        ),
        "fused rotary embeddings need Transformer Engine",
        "add --no-rope-fusion",
        CONFIG,
    ),
    Rule(
        "network.latent-rope-fusion",
        lambda s: s.multi_latent_attention and s.apply_rope_fusion and s.rope_type not in (None, "yarn"),
        "fused rotary embeddings of multi-latent attention need --rope-type yarn",
        "--rope-type yarn, or --no-rope-fusion",
        "megatron/core/transformer/transformer_config.py MLATransformerConfig.__post_init__",
    ),
    Rule(
        "network.latent-gate-and-cache",
        lambda s: (
            s.multi_latent_attention
            and (s.attention_output_gate or (s.cache_mla_latents and s.apply_rope_fusion))
        ),
        "multi-latent attention has no output gate, and caches latents only without fused rotary embeddings",
        "drop --attention-output-gate; --no-rope-fusion with --cache-mla-latents",
        "megatron/core/transformer/transformer_config.py MLATransformerConfig.__post_init__",
    ),
    Rule(
        "network.latent-any-fusion",
        lambda s: s.multi_latent_attention and s.apply_rope_fusion,
        "--multi-latent-attention does not work with fused rotary embeddings",
        "add --no-rope-fusion",
        CONFIG,
        until=(0, 13),
    ),
    Rule(
        "network.latent-rotation",
        lambda s: s.multi_latent_attention and s.rotary_interleaved,
        "--rotary-interleaved does not work with --multi-latent-attention",
        "drop one of them",
        CONFIG,
    ),
    Rule(
        "network.layers-without-rope",
        _rope_skip_problem,
        "--no-rope-freq {no_rope_freq} does not fit {num_layers} layers (or --flash-decode)",
        "a divisor of {num_layers}, or a list of {num_layers} items",
        CONFIG,
    ),
    Rule(
        "network.symmetric-all-reduce",
        lambda s: s.symmetric_ar_type is not None and not s.machine.has_transformer_engine(2, 3),
        "--symmetric-ar-type needs Transformer Engine 2.3",
        "drop it",
        CONFIG,
    ),
    Rule(
        "network.mup-base",
        lambda s: (
            s.use_mup and (s.hidden_size if s.mup_base_hidden_size is None else s.mup_base_hidden_size) <= 0
        ),
        "--mup-base-hidden-size (without it, --hidden-size {hidden_size}) must be positive",
        "1 or more",
        CONFIG,
    ),
    Rule(
        "network.mup-head-size",
        lambda s: s.use_mup and s.kv_channels == 0 and s.mup_attn_scale_power,
        "muP divides the attention scores by --kv-channels, which is 0",
        "1 or more",
        CONFIG,
    ),
    Rule(
        "network.flash-attention-version",
        lambda s: s.flash_attention_version not in (None, 2, 3, 4),
        "--flash-attention-version cannot be {flash_attention_version}",
        "2, 3 or 4",
        CONFIG,
        since=(0, 19),
    ),
    Rule(
        "network.batch-invariant",
        lambda s: (
            s.batch_invariant_mode
            and (
                s.attention_backend != "flash"
                or (
                    s.release >= (0, 19)
                    and (
                        s.flash_attention_version not in (3, 4)
                        or s.context_parallel_size != 1
                        or s.attention_dropout != 0.0
                    )
                )
            )
        ),
        "--batch-invariant-mode needs --attention-backend flash (from 0.19 on --flash-attention-version 3 or 4, no "
        "context parallelism and no attention dropout)",
        "add those flags, or drop --batch-invariant-mode",
        CONFIG,
    ),
)

__all__ = ["CONFIGURATION", "FEATURES", "SIZES", "VALIDATE"]
