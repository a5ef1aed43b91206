"""Rules of what upstream makes of the arguments before its model: process groups, optimizer, gradient buckets, data.

Each was observed in ``pretrain_gpt.py`` of core_v0.16.1; ``tests/studies/iterations/first_iterations.py`` checks a
checkout.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

from airflow_megatron.megatron.rules.nearest import divisors, multiples
from airflow_megatron.megatron.rules.rule import MICROBATCHES, Rule
from airflow_megatron.megatron.validation.upstream_rules.batches import samples_at_once
from airflow_megatron.megatron.validation.upstream_rules.local_layers import is_gpt
from airflow_megatron.megatron.validation.upstream_rules.parallelism import PARALLEL_STATE
from airflow_megatron.megatron.validation.upstream_rules.schedule import trains

if TYPE_CHECKING:
    from airflow_megatron.megatron.rules.rule import Topic
    from airflow_megatron.megatron.rules.settings import Settings

OPTIMIZER: Final = "megatron/core/optimizer/optimizer_config.py OptimizerConfig"
BUCKETS: Final = "megatron/core/distributed/ DistributedDataParallelConfig, DistributedDataParallel"
TRANSFORMER_BLOCK: Final = "megatron/core/transformer/transformer_block.py get_num_layers_to_build"
DATA_SETS: Final = "megatron/core/datasets/blended_megatron_dataset_config.py BlendedMegatronDatasetConfig"

_OPTIMIZER_FORMATS: Final = ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
_SPLIT_SHARE: Final = re.compile(r"[.0-9]+")
_SPLITS: Final = 3
_MOST_SIZES: Final = 10_000


def _other_formats(s: Settings) -> list[str]:
    return [name for name in _OPTIMIZER_FORMATS if vars(s)[name] not in (None, "fp32")]


def _configures_optimizer(s: Settings) -> bool:
    """Return whether the optimizer and its gradient buckets are configured; from 0.18 on also without training."""
    return not s.skip_train or s.release >= (0, 18)


def _has_gradient_buckets(s: Settings) -> bool:
    return _configures_optimizer(s) and not s.use_torch_fsdp2


def _instances_do_not_fit(s: Settings) -> bool:
    instances = s.num_distributed_optimizer_instances
    if instances is None:
        return False
    return bool(instances <= 0 or s.data_parallel_size * s.context_parallel_size % instances != 0)


def _has_equal_stages(s: Settings) -> bool:
    """Return whether no argument gives stages other numbers of layers."""
    ends = (s.decoder_first_pipeline_num_layers, s.decoder_last_pipeline_num_layers)
    counted = s.account_for_embedding_in_pipeline_split or s.account_for_loss_in_pipeline_split
    return s.pipeline_layout is None and ends == (None, None) and not counted


def _layers_of_a_stage(s: Settings) -> int:
    stages: int = s.pipeline_model_parallel_size * (s.virtual_pipeline_model_parallel_size or 1)
    layers: int = s.num_layers // stages
    return layers


def _virtual_stages_do_not_fit(s: Settings) -> bool:
    virtual, stages = s.num_virtual_stages_per_pipeline_rank, s.pipeline_model_parallel_size
    if virtual is None or stages == 1:
        return False
    return bool(virtual < 1 or (_has_equal_stages(s) and s.num_layers // stages % virtual != 0))


def _evaluates_mock_data(s: Settings) -> bool:
    """Return whether a job without training evaluates mock data; a split may leave none."""
    return bool(
        s.skip_train
        and s.eval_iters
        and s.mock_data
        and not s.sft
        and s.split is None
        and not _per_split(s)
        and not s.full_validation
    )


def _per_split(s: Settings) -> bool:
    paths = (s.train_data_path, s.valid_data_path, s.test_data_path, s.per_split_data_args_path)
    return any(path is not None for path in paths)


def _is_split(text: str) -> bool:
    """Return whether upstream reads shares of three sets in a text."""
    try:
        shares = [float(word) for word in _SPLIT_SHARE.findall(text)]
    except ValueError:
        return False
    return len(shares) <= _SPLITS and sum(shares) > 0


def _ramps_unevenly(s: Settings) -> bool:
    """Return whether the training reaches a batch size of the ramp-up that cannot be divided into microbatches."""
    start, step, samples = (int(word) for word in s.rampup_batch_size)
    unit, steps = samples_at_once(s), (s.global_batch_size - start) // step
    if start % unit == 0 and step % unit == 0:
        return False
    each, consumed = samples / steps, 0
    for _ in range(_MOST_SIZES):
        count = steps if consumed > samples else int(consumed / each)
        size = start + count * step
        if size % unit != 0:
            return True
        consumed += math.ceil(((count + 1) * each - consumed) / size) * size
        if count == steps or consumed >= s.train_samples:
            return False
    return False


def _ramp_up_hint(s: Settings) -> str:
    unit = samples_at_once(s)
    return (
        f"a start of {multiples(int(s.rampup_batch_size[0]), unit)}, and steps that are multiples of {unit}"
    )


GROUPS: Topic = (
    Rule(
        "setup.sharp-group",
        lambda s: s.sharp_enabled_group is not None and not s.use_sharp,
        "--sharp-enabled-group {sharp_enabled_group} needs --use-sharp",
        "add --use-sharp, or drop it",
        PARALLEL_STATE,
        since=(0, 16),
    ),
    Rule(
        "setup.sharp-replicas",
        lambda s: (
            s.use_sharp
            and s.sharp_enabled_group == "dp_replica"
            and s.num_distributed_optimizer_instances <= 1
        ),
        "--sharp-enabled-group dp_replica needs --num-distributed-optimizer-instances of 2 or more",
        "--sharp-enabled-group dp",
        PARALLEL_STATE,
        since=(0, 16),
    ),
    Rule(
        "setup.optimizer-instances",
        _instances_do_not_fit,
        "--num-distributed-optimizer-instances {num_distributed_optimizer_instances} does not divide the data parallel "
        "size {data_parallel_size} x --context-parallel-size {context_parallel_size}",
        lambda s: (
            "--num-distributed-optimizer-instances "
            + divisors(
                s.data_parallel_size * s.context_parallel_size, max(s.num_distributed_optimizer_instances, 1)
            )
        ),
        PARALLEL_STATE,
        since=(0, 16),
    ),
    Rule(
        "setup.odd-hybrid-context",
        lambda s: (
            s.hybrid_context_parallel
            and s.data_parallel_size * s.context_parallel_size % 2 == 1
            and (s.weight_remat_size or 1) == 1  # multiplies the group
        ),
        "--hybrid-context-parallel needs an even number of data parallel x context parallel GPUs, not "
        "{data_parallel_size} x {context_parallel_size}",
        "an even number of nodes or GPUs, or drop --hybrid-context-parallel",
        PARALLEL_STATE,
        since=(0, 16),
    ),
    Rule(
        "setup.pipeline-ucc",
        lambda s: (
            s.pipeline_model_parallel_comm_backend == "ucc"
            and s.machine.environment.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1"
        ),
        "--pipeline-model-parallel-comm-backend ucc needs CUDA_DEVICE_MAX_CONNECTIONS other than 1",
        "--pipeline-model-parallel-comm-backend nccl; or set CUDA_DEVICE_MAX_CONNECTIONS in the cluster profile",
        PARALLEL_STATE,
        since=(0, 16),
    ),
    Rule(
        "setup.rerun-mode",
        # the program's own name of the mode is report_determinism_stats, which its parser does not accept
        lambda s: s.rerun_mode == "report_stats",
        "--rerun-mode report_stats ends the job in every known release: it is not a valid RerunMode",
        "--rerun-mode validate_results",
        "megatron/training/initialize.py initialize_megatron",
    ),
    Rule(
        "setup.conversion",
        # from 0.18 on validate_args has this assertion
        lambda s: s.ckpt_convert_format is not None and (s.ckpt_convert_save is None or s.load is None),
        "--ckpt-convert-format needs --ckpt-convert-save and --load",
        "give both",
        "megatron/training/initialize.py initialize_megatron",
        until=(0, 18),
    ),
    Rule(
        "setup.checkpoint-arguments",
        lambda s: (
            s.use_checkpoint_args
            and s.load is None
            and (s.pretrained_checkpoint is None or s.release < (0, 16))
        ),
        "--use-checkpoint-args needs --load",
        "give --load, or drop --use-checkpoint-args",
        "megatron/training/initialize.py initialize_megatron",
    ),
    Rule(
        "setup.profiler-folder",
        lambda s: (
            s.profile
            and s.use_pytorch_profiler
            and any(rank < s.world_size for rank in s.profile_ranks or ())
            and s.tensorboard_dir is None
            and not s.skip_train
            and (s.train_iters or 0) >= s.profile_step_end
        ),
        "--use-pytorch-profiler writes to the folder of --tensorboard-dir, and none is given",
        "give --tensorboard-dir, or drop --use-pytorch-profiler",
        "megatron/training/training.py train",
        since=(0, 16),
        until=(0, 17),
    ),
    Rule(
        "setup.late-groups",
        # initialize_megatron returns a function that would create the process groups, and nothing calls it
        lambda s: s.lazy_mpu_init,
        "--lazy-mpu-init ends the job: no process groups are created",
        "drop --lazy-mpu-init",
        "megatron/training/initialize.py initialize_megatron",
        since=(0, 16),
    ),
)

OPTIMIZERS: Topic = (
    Rule(
        "setup.optimizer-formats",
        lambda s: _configures_optimizer(s) and not s.use_precision_aware_optimizer and _other_formats(s),
        "--main-grads-dtype, --main-params-dtype, --exp-avg-dtype and --exp-avg-sq-dtype other than fp32 need "
        "--use-precision-aware-optimizer",
        lambda s: (
            "add --use-precision-aware-optimizer (and --use-distributed-optimizer), or drop "
            + ", ".join(f"--{name.replace('_', '-')} {vars(s)[name]}" for name in _other_formats(s))
        ),
        OPTIMIZER,
    ),
    Rule(
        "setup.precision-aware-optimizer",
        lambda s: (
            _configures_optimizer(s)
            and s.use_precision_aware_optimizer
            and not (s.optimizer == "adam" and s.use_distributed_optimizer)
        ),
        "--use-precision-aware-optimizer needs --optimizer adam, not {optimizer}, and --use-distributed-optimizer",
        "--optimizer adam --use-distributed-optimizer, or drop --use-precision-aware-optimizer",
        OPTIMIZER,
    ),
    Rule(
        "setup.distributed-sgd",
        # from 0.18 on --use-megatron-fsdp implies it; with --optimizer-cpu-offload it takes any optimizer
        lambda s: (
            not s.skip_train
            and s.optimizer == "sgd"
            and s.use_distributed_optimizer
            and not s.optimizer_cpu_offload
            and not s.use_precision_aware_optimizer  # refused above
        ),
        "the distributed optimizer works with --optimizer adam, not sgd",
        lambda s: (
            f"--optimizer adam, or drop --use-{'megatron-fsdp' if s.use_megatron_fsdp else 'distributed-optimizer'}"
        ),
        "megatron/core/optimizer/distrib_optimizer.py DistributedOptimizer",
    ),
    Rule(
        "setup.gradient-buffer",
        lambda s: (
            _has_gradient_buckets(s)
            and s.reuse_grad_buf_for_mxfp8_param_ag
            and not s.fp8_param_gather
            and not (s.use_megatron_fsdp and s.fsdp_manual_registration)
        ),
        "--reuse-grad-buf-for-mxfp8-param-ag needs --fp8-param-gather",
        "add --fp8-param-gather, or drop it",
        BUCKETS,
        since=(0, 13),
    ),
    Rule(
        "setup.gradient-buckets",
        lambda s: (
            _has_gradient_buckets(s)
            and s.ddp_num_buckets is not None
            and (s.ddp_num_buckets <= 0 or s.ddp_bucket_size is not None)
        ),
        "--ddp-num-buckets {ddp_num_buckets} must be positive, and excludes --ddp-bucket-size",
        "--ddp-num-buckets of 1 or more, or --ddp-bucket-size alone",
        BUCKETS,
    ),
    Rule(
        "setup.averaged-gradients",
        lambda s: (
            _has_gradient_buckets(s)
            and not s.skip_train
            and not s.use_megatron_fsdp
            and s.ddp_average_in_collective
            and s.calculate_per_token_loss
        ),
        "--ddp-average-in-collective does not work with --calculate-per-token-loss",
        "drop one of them",
        BUCKETS,
    ),
    Rule(
        "setup.loss-scale",
        lambda s: (
            s.fp16 and not s.loss_scale and not s.skip_train and 0 < s.initial_loss_scale < s.min_loss_scale
        ),
        "--initial-loss-scale {initial_loss_scale} is below --min-loss-scale {min_loss_scale}",
        "--initial-loss-scale {min_loss_scale} or more",
        "megatron/core/optimizer/grad_scaler.py DynamicGradScaler",
    ),
    Rule(
        "setup.ramp-up",
        lambda s: (
            s.rampup_batch_size is not None
            and s.train_samples
            and not s.decrease_batch_size_if_needed
            and _ramps_unevenly(s)
        ),
        "--rampup-batch-size {rampup_batch_size} reaches batch sizes that are not divisible by --micro-batch-size "
        "{micro_batch_size} x data parallel size {data_parallel_size}",
        _ramp_up_hint,
        f"{MICROBATCHES} RampupBatchsizeNumMicroBatchesCalculator",
        since=(0, 16),
        until=(0, 18),
    ),
    Rule(
        "setup.ramp-up-start",
        # rounded down to 0 samples, so that the ramp-up never goes on
        lambda s: (
            s.rampup_batch_size is not None
            and s.decrease_batch_size_if_needed
            and int(s.rampup_batch_size[0]) < samples_at_once(s)
        ),
        "--rampup-batch-size {rampup_batch_size} starts below --micro-batch-size {micro_batch_size} x data parallel "
        "size {data_parallel_size}, which --decrease-batch-size-if-needed makes a batch without samples",
        _ramp_up_hint,
        f"{MICROBATCHES} RampupBatchsizeNumMicroBatchesCalculator",
        since=(0, 16),
        until=(0, 18),
    ),
)

DATA: Topic = (
    Rule(
        "setup.data-cache",
        lambda s: (
            (s.dataloader_fast_cache_load or s.dataloader_defer_npy_index_mmap) and s.data_cache_path is None
        ),
        "--dataloader-fast-cache-load and --dataloader-defer-npy-index-mmap need --data-cache-path",
        "give --data-cache-path",
        DATA_SETS,
        since=(0, 16),
    ),
    Rule(
        "setup.data-cache-of-one-path",
        lambda s: s.dataloader_fast_cache_load and (s.data_path is not None or s.data_args_path is not None),
        "--dataloader-fast-cache-load does not work with --data-path and --data-args-path",
        "--train-data-path, --valid-data-path and --test-data-path; or --per-split-data-args-path",
        DATA_SETS,
        since=(0, 16),
    ),
    Rule(
        "setup.split-of-paths",
        lambda s: s.split is not None and _per_split(s) and s.data_path is None and s.data_args_path is None,
        "--split {split} does not go with data sets for each split: split and blend_per_split are incompatible",
        "drop --split",
        DATA_SETS,
    ),
    Rule(
        "setup.split",
        lambda s: (
            s.split is not None
            and (s.data_path is not None or s.data_args_path is not None)
            and not _is_split(s.split)
        ),
        "--split {split!r} does not have the shares of up to three sets, with a sum above 0",
        "write 99,1,0",
        f"{DATA_SETS} parse_and_normalize_split",
    ),
    Rule(
        "setup.mock-conversations",
        lambda s: s.sft and s.mock_data and not s.perform_rl_step,
        "--sft reads conversations, and there are none with --mock-data",
        "--data-path PREFIX instead of --mock-data, or drop --sft",
        "megatron/training/datasets/sft_dataset.py SFTDataset",
        since=(0, 16),
    ),
    Rule(
        "setup.external-data",
        lambda s: s.dataloader_type == "external" and not s.perform_rl_step and not s.has_other_arguments,
        "--dataloader-type external needs data sets that are iterators, and those of pretrain_gpt.py are not",
        "--dataloader-type single or cyclic",
        "megatron/training/training.py build_train_valid_test_data_iterators",
        since=(0, 16),
    ),
    Rule(
        "setup.hybrid-context-reruns",
        # the iterator of packed sequences is not one that can be rerun, whatever its data are
        lambda s: (
            s.hybrid_context_parallel and trains(s) and s.rerun_mode != "disabled" and not s.perform_rl_step
        ),
        "--hybrid-context-parallel trains with --rerun-mode disabled only, not {rerun_mode}",
        "--rerun-mode disabled",
        "megatron/core/rerun_state_machine.py RerunStateMachine._sanitize_data_iterators",
        since=(0, 16),
    ),
    Rule(
        "setup.hybrid-context-data",
        # from 0.19 on the samples of a GPTDataset may have cu_seqlens
        lambda s: (
            s.hybrid_context_parallel
            and trains(s)
            and not s.sft
            and not s.perform_rl_step
            and not s.has_other_arguments
        ),
        "--hybrid-context-parallel needs packed sequences, which the data sets of pretrain_gpt.py have with --sft only",
        "add --sft, or drop --hybrid-context-parallel",
        "megatron/core/datasets/data_schedule.py HybridCPDataLoaderWrapper",
        since=(0, 16),
        until=(0, 19),
    ),
    Rule(
        "setup.hybrid-context-evaluation",
        lambda s: s.hybrid_context_parallel and _evaluates_mock_data(s) and not s.has_other_arguments,
        "--hybrid-context-parallel does not evaluate mock data: its samples are not scheduled",
        "drop --hybrid-context-parallel",
        "megatron/core/pipeline_parallel/hybrid_cp_schedule.py hybrid_context_parallel_forward_backward",
        since=(0, 16),
        until=(0, 17),
    ),
    Rule(
        "setup.phases",
        lambda s: s.phase_transition_iterations and s.train_samples is None,
        "--phase-transition-iterations needs --train-samples: the end of the last phase is computed with it",
        "--train-samples N instead of --train-iters",
        "megatron/training/training.py get_train_valid_test_num_samples",
        since=(0, 16),
    ),
)

LAYERS: Topic = (
    Rule(
        "setup.config-logger",
        # its encoder copies the dataclass of the model's process groups, and these cannot be copied
        lambda s: s.config_logger_dir and is_gpt(s),
        "--config-logger-dir ends the job where the model is built: cannot pickle ProcessGroup",
        "drop --config-logger-dir",
        "megatron/core/config_logger.py log_config_to_disk",
        since=(0, 16),
    ),
    Rule(
        "setup.window",
        lambda s: s.window_size is not None and len(s.window_size) < 2,
        "--window-size {window_size} must have two numbers, to the left and to the right",
        "write 128,0",
        "megatron/core/transformer/utils.py get_sliding_window_causal_mask",
        since=(0, 16),
    ),
    Rule(
        "setup.window-layers",
        lambda s: (
            s.window_size is not None
            and isinstance(s.window_attn_skip_freq, list)
            and len(s.window_attn_skip_freq) < s.num_layers
        ),
        "--window-attn-skip-freq {window_attn_skip_freq} has fewer than {num_layers} items, one for each layer",
        "a list of {num_layers} items, or a number",
        "megatron/core/transformer/utils.py is_layer_window_attention",
        since=(0, 16),
    ),
    Rule(
        "setup.virtual-stages",
        _virtual_stages_do_not_fit,
        "the layers of a pipeline stage cannot be split into virtual stages: --num-virtual-stages-per-pipeline-rank "
        "{num_virtual_stages_per_pipeline_rank}",
        lambda s: (
            "--num-virtual-stages-per-pipeline-rank "
            + divisors(s.num_layers // s.pipeline_model_parallel_size, s.num_virtual_stages_per_pipeline_rank)
        ),
        TRANSFORMER_BLOCK,
        since=(0, 16),
    ),
    Rule(
        "setup.layers-per-virtual-stage",
        lambda s: (
            s.num_layers_per_virtual_pipeline_stage is not None
            and s.num_layers_per_virtual_pipeline_stage < 1
        ),
        "--num-layers-per-virtual-pipeline-stage {num_layers_per_virtual_pipeline_stage} must be positive",
        "1 or more",
        TRANSFORMER_BLOCK,
        since=(0, 16),
    ),
    Rule(
        "setup.query-groups",
        lambda s: s.group_query_attention and s.num_query_groups is not None and s.num_query_groups <= 0,
        "--num-query-groups {num_query_groups} must be positive",
        "1 or more",
        "megatron/core/transformer/attention.py Attention",
        since=(0, 16),
    ),
    Rule(
        "setup.recomputed-layers",
        # with 0 layers at once it never gets to the last one; before 0.17 the last group had to be complete
        lambda s: (
            s.recompute_granularity == "full"
            and s.recompute_method == "uniform"
            and is_gpt(s)
            and (
                s.recompute_num_layers <= 0
                or (
                    s.release < (0, 17)
                    and _has_equal_stages(s)
                    and _layers_of_a_stage(s) % s.recompute_num_layers != 0
                )
            )
        ),
        "--recompute-method uniform with --recompute-num-layers {recompute_num_layers} does not divide the layers of a "
        "(virtual) pipeline stage into groups",
        lambda s: (
            f"--recompute-num-layers {divisors(_layers_of_a_stage(s), max(s.recompute_num_layers, 1))}, or "
            "--recompute-method block"
        ),
        "megatron/core/transformer/transformer_block.py TransformerBlock._checkpointed_forward",
        since=(0, 16),
    ),
    Rule(
        "setup.recomputed-predictions",
        lambda s: (
            s.mtp_num_layers
            and is_gpt(s)
            and s.recompute_granularity == "full"
            and s.recompute_method == "uniform"
            and s.recompute_num_layers != 1
        ),
        "--mtp-num-layers with --recompute-method uniform needs --recompute-num-layers 1, not {recompute_num_layers}",
        "--recompute-num-layers 1, or --recompute-method block",
        "megatron/core/transformer/multi_token_prediction.py MultiTokenPredictionLayer._checkpointed_forward",
        since=(0, 16),
    ),
    Rule(
        "setup.legacy-models",
        # they read args.apply_layernorm_1p, which has another name
        lambda s: s.use_legacy_models,
        "--use-legacy-models ends the job: they read an argument that this release has under another name",
        "drop --use-legacy-models",
        "megatron/legacy/model/utils.py get_norm",
        since=(0, 16),
    ),
    Rule(
        "setup.spec",
        lambda s: s.spec is not None and len(s.spec) != 2,
        "--spec names a module and an object in it, and {spec} are not two words",
        "--spec package.module name; or drop --spec (and --attention-backend local)",
        "megatron/core/transformer/spec_utils.py import_module",
        since=(0, 16),
    ),
)
