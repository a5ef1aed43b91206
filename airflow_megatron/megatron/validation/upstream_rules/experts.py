"""Mixture of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.megatron.rules.nearest import divisors, multiples
from airflow_megatron.megatron.rules.rule import CONFIG, Derive, Rule

if TYPE_CHECKING:
    from airflow_megatron.megatron.rules.rule import Topic
    from airflow_megatron.megatron.rules.settings import Settings

_BALANCED_BY_LOSS = {"aux_loss", "seq_aux_loss", "global_aux_loss", "none"}


def _normalize(s: Settings) -> None:
    if s.num_experts == 0:
        s.num_experts = None
    if s.num_experts is not None and s.moe_ffn_hidden_size is None:
        s.moe_ffn_hidden_size = s.ffn_hidden_size
    for name in ("moe_router_load_balancing_type", "moe_aux_loss_coeff"):
        value = vars(s)[name]
        if isinstance(value, list) and len(value) == 1:
            setattr(s, name, value[0])


def _balancing(s: Settings) -> set[str]:
    kinds = s.moe_router_load_balancing_type
    return set(kinds) if isinstance(kinds, list) else {kinds}


def has_dense_layers(s: Settings) -> bool:
    """Return whether some layers have no experts."""
    pattern = s.moe_layer_freq
    if s.num_experts is None:
        return True
    return 0 in pattern if isinstance(pattern, list) else s.num_layers > 1 and abs(pattern) != 1


def has_expert_layers(s: Settings) -> bool:
    """Return whether some layers have experts; a number means that the first one has."""
    pattern = s.moe_layer_freq
    return s.num_experts is not None and not (isinstance(pattern, list) and 1 not in pattern)


def _is_mixed(s: Settings) -> bool:
    """Return whether the pattern alone says that only some layers have experts, in upstream's words."""
    pattern = s.moe_layer_freq
    return 0 in pattern if isinstance(pattern, list) else isinstance(pattern, int) and pattern > 1


def _capacity(s: Settings) -> None:
    if s.moe_expert_capacity_factor is not None and s.moe_expert_capacity_factor < 0:
        s.moe_expert_capacity_factor = None


def _group_routing_problem(s: Settings) -> bool:
    groups = s.moe_router_num_groups
    if not groups or s.num_experts is None:
        return True
    return bool(s.num_experts % groups != 0 or s.moe_router_group_topk > groups)


def _padding(s: Settings) -> None:
    if s.moe_router_padding_for_fp8:
        s.moe_router_padding_for_quantization = True


def _overlap_problem(s: Settings) -> bool:
    """Upstream's checks of ``overlap_moe_expert_parallel_comm``."""
    predicted = s.mtp_num_layers
    if s.pipeline_model_parallel_size > 1 and s.virtual_pipeline_model_parallel_size is None:
        return True
    if s.expert_model_parallel_size <= 1 or s.moe_token_dispatcher_type not in ("alltoall", "flex"):
        return True
    if s.recompute_granularity == "full" or s.recompute_method is not None:
        return True
    if s.recompute_num_layers is not None or not (s.bf16 or s.fp16) or s.moe_shared_expert_overlap:
        return True
    if s.release >= (0, 17) and (s.moe_layer_recompute or "moe" in (s.recompute_modules or ())):
        return True
    if s.release >= (0, 19):
        return predicted not in (None, 0, 1)
    alone = predicted == 1 and s.pipeline_model_parallel_size == 1 and s.release < (0, 18)
    return predicted not in (None, 1) or alone


EXPERTS: Topic = (
    Derive(_normalize),
    Rule(
        "moe.specification",
        lambda s: s.num_experts is not None and s.spec is not None,
        "--spec does not work with --num-experts",
        "drop one of them",
        until=(0, 16),
    ),
    Rule(
        "moe.experts-missing",
        lambda s: s.expert_model_parallel_size > 1 and s.num_experts is None,
        "--expert-model-parallel-size {expert_model_parallel_size} needs --num-experts",
        "give --num-experts, or --expert-model-parallel-size 1",
    ),
    Rule(
        "moe.expert-parallel",
        lambda s: (
            s.expert_model_parallel_size > 1
            and s.num_experts is not None
            and s.num_experts % s.expert_model_parallel_size != 0
        ),
        "--num-experts {num_experts} is not a multiple of --expert-model-parallel-size {expert_model_parallel_size}",
        lambda s: (
            f"--num-experts {multiples(s.num_experts, s.expert_model_parallel_size)}, or "
            f"--expert-model-parallel-size {divisors(s.num_experts, s.expert_model_parallel_size)}"
        ),
    ),
    Rule(
        "moe.expert-parallel-fp16",
        lambda s: s.expert_model_parallel_size > 1 and s.fp16,
        "expert parallelism does not work with --fp16",
        "--bf16",
        until=(0, 16),
    ),
    Rule(
        "moe.grouped-gemm-format",
        lambda s: s.moe_grouped_gemm and not s.bf16,
        "--moe-grouped-gemm needs --bf16",
        "--bf16",
        until=(0, 16),
    ),
    Rule(
        "moe.grouped-gemm",
        lambda s: s.moe_grouped_gemm and s.machine.compute_capability < 8,
        "--moe-grouped-gemm needs GPUs of compute capability 8 or newer",
        "drop --moe-grouped-gemm",
    ),
    Rule(
        "moe.upcycling",
        lambda s: s.moe_use_upcycling and s.save is None,
        "--moe-use-upcycling needs --save",
        "give --save and --save-interval",
    ),
    Rule(
        "moe.latent-size",
        lambda s: (
            s.moe_latent_size is not None
            and (s.moe_latent_size <= 0 or s.num_experts is None or s.moe_use_legacy_grouped_gemm)
        ),
        "--moe-latent-size {moe_latent_size} must be positive, with --num-experts and without legacy grouped GEMM",
        "give --num-experts, or drop --moe-latent-size",
    ),
    Rule(
        "moe.fake-process-group",
        lambda s: s.fake_process_group and s.moe_token_dispatcher_type == "flex",
        "--fake-process-group does not work with --moe-token-dispatcher-type flex",
        "--moe-token-dispatcher-type alltoall",
    ),
)

CONFIGURATION: Topic = (
    Rule(
        "moe.experts-positive",
        lambda s: s.num_experts is not None and s.num_experts <= 0,
        "--num-experts {num_experts} must be positive",
        "1 or more",
        CONFIG,
    ),
    Rule(
        "moe.ffn-without-experts",
        lambda s: (
            s.num_experts is None
            and s.moe_ffn_hidden_size is not None
            and not (s.release >= (0, 18) and _is_mixed(s))
        ),
        "--moe-ffn-hidden-size {moe_ffn_hidden_size} needs --num-experts",
        "give --num-experts, or drop --moe-ffn-hidden-size",
        CONFIG,
        since=(0, 13),
    ),
    Rule(
        "moe.single-grouped",
        lambda s: (
            (s.moe_single_grouped_weight or s.moe_single_grouped_bias)
            and not (s.moe_grouped_gemm and s.machine.has_transformer_engine(2, 14))
        ),
        "single grouped expert parameters need --moe-grouped-gemm and Transformer Engine 2.14",
        "drop --moe-single-grouped-weight and --moe-single-grouped-bias",
        CONFIG,
    ),
    Rule(
        "moe.single-grouped-format",
        lambda s: (
            (
                s.moe_single_grouped_weight
                and (
                    (s.fp8 and s.fp8_recipe != "mxfp8")
                    or (s.fp4 and s.fp4_recipe != "nvfp4")
                    or not s.use_transformer_engine_op_fuser
                )
            )
            or (s.moe_single_grouped_bias and not s.add_bias_linear)
        ),
        "a single grouped weight needs --use-transformer-engine-op-fuser and mxfp8 or nvfp4 if quantized; a single "
        "grouped bias needs linear biases",
        "correct the flags, or drop them",
        CONFIG,
    ),
    Rule(
        "moe.deepep",
        lambda s: (
            s.moe_enable_deepep
            and (s.moe_token_dispatcher_type != "flex" or s.moe_flex_dispatcher_backend == "hybridep")
        ),
        "--moe-enable-deepep needs --moe-token-dispatcher-type flex, and no other backend",
        "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep",
        CONFIG,
    ),
    Rule(
        "moe.flex-padding",
        lambda s: (
            s.moe_token_dispatcher_type == "flex"
            and s.moe_pad_expert_input_to_capacity
            and (s.moe_enable_deepep or s.moe_flex_dispatcher_backend == "deepep")
        ),
        "the deepep dispatcher does not pad expert inputs to capacity",
        "drop --moe-pad-expert-input-to-capacity",
        CONFIG,
    ),
    Rule(
        "moe.ncclep",
        lambda s: s.moe_flex_dispatcher_backend == "ncclep" and s.moe_token_dispatcher_type != "flex",
        "--moe-flex-dispatcher-backend ncclep needs --moe-token-dispatcher-type flex",
        "--moe-token-dispatcher-type flex",
        CONFIG,
    ),
    Rule(
        "moe.dispatcher-sms",
        lambda s: (
            s.moe_flex_dispatcher_num_sms is None
            and s.moe_deepep_num_sms is not None
            and s.moe_hybridep_num_sms is not None
            and s.moe_deepep_num_sms != s.moe_hybridep_num_sms
        ),
        "--moe-deepep-num-sms and --moe-hybridep-num-sms differ",
        "--moe-flex-dispatcher-num-sms instead of both",
        CONFIG,
        since=(0, 19),
    ),
    Rule(
        "moe.shared-expert-size",
        lambda s: (
            s.moe_shared_expert_intermediate_size is not None
            and (
                s.moe_shared_expert_intermediate_size <= 0
                or (
                    s.moe_shared_expert_overlap
                    and s.moe_token_dispatcher_type
                    not in (("alltoall", "flex") if s.release >= (0, 18) else ("alltoall",))
                )
            )
        ),
        "--moe-shared-expert-intermediate-size {moe_shared_expert_intermediate_size} must be positive; overlap "
        "needs --moe-token-dispatcher-type alltoall",
        "a positive size; --moe-token-dispatcher-type alltoall",
        CONFIG,
    ),
    Rule(
        "moe.loss-coefficients",
        lambda s: (
            isinstance(s.moe_router_load_balancing_type, list)
            and not (
                isinstance(s.moe_aux_loss_coeff, list)
                and len(s.moe_aux_loss_coeff) == len(s.moe_router_load_balancing_type)
            )
        ),
        "several --moe-router-load-balancing-type need as many --moe-aux-loss-coeff",
        "one coefficient per type",
        CONFIG,
        since=(0, 14),
    ),
    Rule(
        "moe.capacity-balancing",
        lambda s: s.moe_expert_capacity_factor is not None and not _balancing(s) <= _BALANCED_BY_LOSS,
        "--moe-expert-capacity-factor needs load balancing by aux_loss, seq_aux_loss, global_aux_loss or none",
        "--moe-router-load-balancing-type aux_loss",
        CONFIG,
    ),
    Derive(_capacity),
    Rule(
        "moe.padding-without-capacity",
        lambda s: s.moe_pad_expert_input_to_capacity and s.moe_expert_capacity_factor is None,
        "--moe-pad-expert-input-to-capacity needs --moe-expert-capacity-factor",
        "give --moe-expert-capacity-factor",
        CONFIG,
    ),
    Rule(
        "moe.rank-capacity",
        lambda s: (
            s.moe_expert_rank_capacity_factor is not None
            and (
                s.moe_flex_dispatcher_backend not in ("hybridep", "ncclep")
                or (s.moe_flex_dispatcher_backend == "hybridep" and not s.use_transformer_engine_op_fuser)
            )
        ),
        "--moe-expert-rank-capacity-factor needs the hybridep (with --use-transformer-engine-op-fuser) or ncclep "
        "dispatcher",
        "--moe-flex-dispatcher-backend hybridep",
        CONFIG,
    ),
    Rule(
        "moe.bias",
        lambda s: (
            s.num_experts is not None
            and s.add_bias_linear
            and (s.expert_tensor_parallel_size != 1 or s.release < (0, 15))
        ),
        "experts with linear biases need --expert-tensor-parallel-size 1, not {expert_tensor_parallel_size}",
        "add --disable-bias-linear, or --expert-tensor-parallel-size 1",
        CONFIG,
        since=(0, 13),
    ),
    Rule(
        "moe.expert-bias",
        lambda s: (
            s.moe_router_enable_expert_bias
            and s.moe_router_score_function
            not in (("sigmoid", "sqrtsoftplus") if s.release >= (0, 18) else ("sigmoid",))
        ),
        "--moe-router-enable-expert-bias needs --moe-router-score-function sigmoid, not "
        "{moe_router_score_function}",
        "--moe-router-score-function sigmoid",
        CONFIG,
    ),
    Rule(
        "moe.fp8",
        lambda s: (
            s.num_experts
            and s.fp8
            and not s.machine.has_transformer_engine(1, 11 if s.moe_grouped_gemm else 7)
        ),
        "experts in fp8 need Transformer Engine 1.7 (1.11 with grouped GEMM)",
        "drop --fp8-format",
        CONFIG,
    ),
    Derive(_padding),
    Rule(
        "moe.router-padding",
        lambda s: (
            s.moe_router_padding_for_quantization
            and (
                (s.fp8 is None and s.fp4 is None)
                or s.moe_token_dispatcher_type in ("allgather", "alltoall_seq")
            )
        ),
        "padding the router for quantization needs fp8 or fp4 and the alltoall dispatcher",
        "add --fp8-format; --moe-token-dispatcher-type alltoall",
        CONFIG,
    ),
    Rule(
        "moe.top-one",
        lambda s: (
            s.moe_router_topk == 1
            and s.moe_router_score_function == "softmax"
            and not s.moe_router_pre_softmax
            and s.moe_router_load_balancing_type != "sinkhorn"
        ),
        "--moe-router-topk 1 needs the softmax before the choice: over one value it has no gradient",
        "add --moe-router-pre-softmax, or --moe-router-topk 2",
        CONFIG,
    ),
    Rule(
        "moe.group-routing",
        lambda s: s.moe_router_group_topk and _group_routing_problem(s),
        "--moe-router-group-topk {moe_router_group_topk} needs --moe-router-num-groups that divides --num-experts "
        "{num_experts} and is not smaller",
        lambda s: "--moe-router-num-groups " + divisors(s.num_experts or 1, s.moe_router_num_groups or 1),
        CONFIG,
    ),
    Rule(
        "moe.permute-fusion",
        lambda s: s.moe_permute_fusion and not s.machine.has_transformer_engine(2, 1),
        "--moe-permute-fusion needs Transformer Engine 2.1",
        "drop it",
        CONFIG,
    ),
    Rule(
        "moe.overlap",
        lambda s: s.overlap_moe_expert_parallel_comm and _overlap_problem(s),
        "--overlap-moe-expert-parallel-comm needs expert parallelism with the alltoall or flex dispatcher, fp16 or "
        "bf16, virtual stages with pipeline parallelism, no full recomputation, no shared-expert overlap",
        "correct those, or drop it",
        CONFIG,
    ),
    Rule(
        "moe.delayed-weight-gradients",
        lambda s: (
            s.delay_wgrad_compute
            and (not s.overlap_moe_expert_parallel_comm or s.moe_use_legacy_grouped_gemm)
        ),
        "--delay-wgrad-compute needs --overlap-moe-expert-parallel-comm",
        "add it, or drop --delay-wgrad-compute",
        CONFIG,
    ),
    Rule(
        "moe.delayed-weight-gradients-in-graphs",
        lambda s: (
            s.delay_wgrad_compute
            and s.cuda_graph_impl == "transformer_engine"
            and not s.machine.has_transformer_engine(2, 10)
        ),
        "--delay-wgrad-compute with --cuda-graph-impl transformer_engine needs Transformer Engine 2.10",
        "drop one of them",
        CONFIG,
        since=(0, 16),
    ),
    Rule(
        "moe.early-release",
        lambda s: s.ep_overlap_early_attn_memory_release and not s.overlap_moe_expert_parallel_comm,
        "--ep-overlap-early-attn-memory-release needs --overlap-moe-expert-parallel-comm",
        "add it, or drop the flag",
        CONFIG,
    ),
    Rule(
        "moe.dispatch-overlap",
        lambda s: (
            s.overlap_dispatch_backward_with_experts_wgrad
            and (
                s.overlap_moe_expert_parallel_comm
                or s.delay_wgrad_compute
                or not s.machine.has_transformer_engine(2, 3)
            )
        ),
        "--overlap-dispatch-backward-with-experts-wgrad needs Transformer Engine 2.3 and excludes the other overlaps",
        "drop the flag",
        CONFIG,
    ),
    Rule(
        "moe.paged-stash",
        lambda s: (
            s.moe_paged_stash
            and (
                s.cpu_offloading
                or s.moe_expert_rank_capacity_factor is None
                or {"expert_fc1", "moe_act", "fused_group_mlp"} & set(s.offload_modules or ())
            )
        ),
        "--moe-paged-stash needs --moe-expert-rank-capacity-factor and no offloading of expert activations",
        "correct those, or drop it",
        CONFIG,
    ),
)
