"""Inference and reinforcement learning arguments, and features of Transformer Engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.megatron.rules.rule import CONFIG, Rule

if TYPE_CHECKING:
    from airflow_megatron.megatron.rules.rule import Topic
    from airflow_megatron.megatron.rules.settings import Settings


def _old_reinforcement_problem(s: Settings) -> bool:
    offloads, removes = s.rl_offload_kv_cache_during_training, s.rl_remove_kv_cache_during_training
    other_experts = s.rl_inference_expert_model_parallel_size
    return bool(
        (removes and (offloads or s.rl_partial_rollouts))
        or (s.rl_offload_inference_model_weights_when_idle and s.rl_inference_model_unified_memory_level != 1)
        or (
            other_experts is not None
            and other_experts != s.expert_model_parallel_size
            and s.moe_use_legacy_grouped_gemm
        )
    )


def _new_reinforcement_problem(s: Settings) -> bool:
    saver = "torch_memory_saver" in s.machine.packages
    unified = s.inference_dynamic_batching_unified_memory_level > 0
    mode, persists = s.rl_kv_cache_management_mode, s.rl_persist_cuda_graphs
    graphs = s.cuda_graph_impl != "none"
    if not graphs and (persists or s.rl_training_cuda_graphs):
        return True
    if persists and mode != "persist" and not saver and not unified:
        return True
    if mode == "offload" and (not persists or unified):
        return True
    if (
        s.rl_offload_inference_model_weights_when_idle
        and s.rl_inference_model_unified_memory_level != 1
        and not saver
    ):
        return True
    if s.release < (0, 19):
        return False
    single = s.rl_submission_granularity == "R"
    return bool(
        (not s.rl_partial_rollouts and ((s.rl_generation_lag or 0) > 0 or single))
        or s.rl_consumption_granularity == "R"
        or (s.rl_submission_granularity == "B" and s.rl_consumption_granularity == "G")
    )


def _parallel_generations_problem(s: Settings) -> bool:
    generations, batches = s.rl_num_parallel_generations, s.rl_num_parallel_generation_batches
    tasks, group = s.rl_parallel_generation_tasks, s.grpo_group_size
    if (generations is None) + (batches is None) + (tasks is None) < 2:
        return True
    if (generations, batches, tasks) == (None, None, None):
        return False
    # tasks are groups
    whole = tasks is not None if generations is None else group != 0 and generations % group == 0
    return not s.rl_partial_rollouts or not (whole or batches is not None)


def _generated_samples_problem(s: Settings) -> bool:
    generated = s.grpo_prompts_per_step * s.grpo_group_size * s.grpo_iterations
    if generated % s.global_batch_size != 0:
        return True
    steps = generated // s.global_batch_size
    return any(
        interval is not None and (steps == 0 or interval % steps != 0)
        for interval in (s.exit_interval, s.save_interval)
    )


def _optimized_model_problem(s: Settings) -> bool:
    zero_centred = (
        s.apply_layernorm_1p or s.layernorm_zero_centered_gamma
    )  # its name up to core_v0.15, and since
    if s.normalization != "RMSNorm" or zero_centred or s.add_bias_linear or s.add_qkv_bias:
        return True
    if s.num_experts is None or s.release < (0, 18):
        return False
    return bool(
        s.expert_tensor_parallel_size > 1
        or s.moe_expert_capacity_factor is not None
        or s.moe_router_padding_for_quantization
        or s.moe_router_dtype != "fp32"
        or s.gated_linear_unit
    )


REINFORCEMENT: Topic = (
    Rule(
        "rl.offload-kv-cache",
        lambda s: (
            s.rl_offload_kv_cache_during_training
            and (
                "torch_memory_saver" not in s.machine.packages
                or s.inference_dynamic_batching_unified_memory_level
            )
        ),
        "--rl-offload-kv-cache-during-training needs the package torch_memory_saver and no unified memory",
        "install it, or drop the flag",
        until=(0, 17),
    ),
    Rule(
        "rl.caches",
        lambda s: s.perform_rl_step and s.release < (0, 17) and _old_reinforcement_problem(s),
        "the --rl-… flags for caches, weights and expert sizes contradict each other",
        "keep one of offloading, removing and partial rollouts",
        since=(0, 16),
    ),
    Rule(
        "rl.cuda-graphs-and-caches",
        lambda s: s.perform_rl_step and s.release >= (0, 17) and _new_reinforcement_problem(s),
        "the --rl-… flags for CUDA graphs, caches and rollouts contradict each other",
        "--rl-kv-cache-management-mode persist, CUDA graphs on",
    ),
    Rule(
        "rl.packing",
        lambda s: s.perform_rl_step and s.rl_use_sequence_packing and s.micro_batch_size != 1,
        "--rl-use-sequence-packing needs --micro-batch-size 1, not {micro_batch_size}",
        "--micro-batch-size 1",
    ),
    Rule(
        "rl.parallel-generations",
        lambda s: s.perform_rl_step and _parallel_generations_problem(s),
        "--rl-num-parallel-generations, --rl-num-parallel-generation-batches and --rl-parallel-generation-tasks "
        "exclude each other, need --rl-partial-rollouts, and generate whole groups of --grpo-group-size",
        "keep one of them and add --rl-partial-rollouts",
        since=(0, 17),
        until=(0, 19),
    ),
    Rule(
        "rl.frozen-optimizer",
        lambda s: (
            s.perform_rl_step and s.skip_train and s.no_load_optim and s.rl_offload_optimizer_during_inference
        ),
        "without an optimizer there is none to offload",
        "drop --rl-offload-optimizer-during-inference",
        since=(0, 18),
    ),
)

GENERATED_SAMPLES: Topic = (
    Rule(
        "rl.samples",
        # from 0.17 on upstream looks at it after it has filled in the batch size
        lambda s: (
            s.perform_rl_step
            and ((s.release < (0, 17) and not s.global_batch_size_given) or _generated_samples_problem(s))
        ),
        "the samples that --grpo-… generate are not a multiple of the batch size (or the intervals of its steps)",
        "--global-batch-size that divides prompts x group size x iterations",
        since=(0, 14),
    ),
)

INFERENCE: Topic = (
    Rule(
        "inference.sampling",
        lambda s: (
            s.inference_dynamic_batching_sampling_backend == "flashinfer"
            and "flashinfer" not in s.machine.packages
        ),
        "--inference-dynamic-batching-sampling-backend flashinfer needs the package flashinfer",
        "--inference-dynamic-batching-sampling-backend torch; or name flashinfer among the packages, where it is "
        "installed",
        since=(0, 18),
        until=(0, 19),
    ),
    Rule(
        "inference.pipelined-batches",
        lambda s: (
            s.inference_batch_times_seqlen_threshold > -1
            and (s.pipeline_model_parallel_size <= 1 or s.cuda_graph_impl not in (None, "none"))
        ),
        "--inference-batch-times-seqlen-threshold needs pipeline parallelism and no CUDA graphs",
        "-1",
    ),
    Rule(
        "inference.dynamic-batching",
        lambda s: (
            s.inference_dynamic_batching
            and (
                s.inference_dynamic_batching_buffer_size_gb is None
                or s.inference_dynamic_batching_block_size % 256 != 0
            )
        ),
        "--inference-dynamic-batching needs a buffer size and a block size that is a multiple of 256",
        "--inference-dynamic-batching-block-size 256",
        since=(0, 15),
        until=(0, 18),
    ),
    Rule(
        "engine.delayed-weight-gradients",
        lambda s: (
            s.delay_wgrad_compute
            and (
                s.transformer_impl != "transformer_engine"
                or (s.overlap_grad_reduce and not s.machine.has_transformer_engine(2, 8))
                or (not s.gradient_accumulation_fusion and not s.machine.has_transformer_engine(2, 7))
            )
        ),
        "--delay-wgrad-compute needs --transformer-impl transformer_engine (2.8 with --overlap-grad-reduce)",
        "drop it",
    ),
    Rule(
        "engine.activation-offloading",
        lambda s: s.fine_grained_activation_offloading and s.transformer_impl != "transformer_engine",
        "--fine-grained-activation-offloading needs --transformer-impl transformer_engine",
        "--transformer-impl transformer_engine",
    ),
    Rule(
        "engine.activation-offloading-installed",
        lambda s: s.fine_grained_activation_offloading and not s.machine.has_transformer_engine(),
        "--fine-grained-activation-offloading needs Transformer Engine, which is not installed",
        "install it, or drop the flag",
        since=(0, 16),
        until=(0, 17),
    ),
    Rule(
        "engine.activation-offloading-version",
        lambda s: (
            s.fine_grained_activation_offloading
            and s.machine.has_transformer_engine(2, 10)
            and s.machine.environment.get("NVTE_CPU_OFFLOAD_V1", "0") != "1"
        ),
        "--fine-grained-activation-offloading needs the environment variable NVTE_CPU_OFFLOAD_V1=1",
        "set it in the cluster profile",
        since=(0, 16),
    ),
)

CONFIGURATION: Topic = (
    Rule(
        "inference.optimized-model",
        lambda s: s.transformer_impl == "inference_optimized" and _optimized_model_problem(s),
        "--transformer-impl inference_optimized needs RMSNorm without zero-centred gamma, no biases, and plain "
        "experts routed in fp32",
        "--normalization RMSNorm --disable-bias-linear; another --transformer-impl for training",
        CONFIG,
        since=(0, 16),
    ),
    Rule(
        "inference.fused-communication",
        lambda s: (
            s.inference_fuse_tp_communication
            and (
                s.transformer_impl != "inference_optimized"
                or (s.num_experts is not None and s.release >= (0, 18))
            )
        ),
        "--inference-fuse-tp-communication needs --transformer-impl inference_optimized without experts",
        "drop it",
        CONFIG,
    ),
    Rule(
        "inference.triton-kernels",
        lambda s: s.inference_disable_triton_nvls_kernels and s.transformer_impl != "inference_optimized",
        "--inference-disable-triton-nvls-kernels needs --transformer-impl inference_optimized",
        "drop it",
        CONFIG,
    ),
)
