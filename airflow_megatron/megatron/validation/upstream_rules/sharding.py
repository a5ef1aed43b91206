"""Distributed optimizer, FSDP, and the optimizers that need more than data parallelism."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.megatron.rules.rule import Derive, Rule

if TYPE_CHECKING:
    from airflow_megatron.megatron.rules.rule import Topic
    from airflow_megatron.megatron.rules.settings import Settings


def _megatron_fsdp(s: Settings) -> None:
    if s.use_megatron_fsdp and s.release >= (0, 18):
        s.use_distributed_optimizer = True
        s.reuse_grad_buf_for_mxfp8_param_ag = False
        if s.nccl_ub:
            s.fsdp_manual_registration = True


def _emerging_optimizer(s: Settings) -> None:
    if s.optimizer not in ("sgd", "adam"):
        s.use_distributed_optimizer = False


def _one_connection(s: Settings) -> bool:
    return bool(s.machine.environment.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1")


GATHERING: Topic = (
    Rule(
        "optimizer.overlap-gather",
        lambda s: (
            s.overlap_param_gather
            and not (
                s.use_distributed_optimizer
                or s.use_megatron_fsdp
                or (s.optimizer == "dist_muon" and s.release >= (0, 17))
            )
        ),
        "--overlap-param-gather needs the distributed optimizer (or Megatron FSDP)",
        "add --use-distributed-optimizer, or drop --overlap-param-gather",
    ),
    Rule(
        "optimizer.overlap-gather-and-reduce",
        lambda s: s.overlap_param_gather and not s.overlap_grad_reduce,
        "--overlap-param-gather needs --overlap-grad-reduce",
        "add --overlap-grad-reduce, or drop --overlap-param-gather",
    ),
    *(
        Rule(
            f"fsdp2.{name}",
            lambda s, broken=broken: s.use_torch_fsdp2 and broken(s),  # type: ignore[misc]
            f"--use-torch-fsdp2 {what}",
            hint,
        )
        for name, broken, what, hint in (
            (
                "pipeline",
                lambda s: s.pipeline_model_parallel_size != 1,
                "does not work with pipeline parallelism",
                "--pipeline-model-parallel-size 1",
            ),
            (
                "experts",
                lambda s: s.expert_model_parallel_size != 1,
                "does not work with expert parallelism",
                "--expert-model-parallel-size 1",
            ),
            (
                "distributed-optimizer",
                lambda s: s.use_distributed_optimizer,
                "excludes --use-distributed-optimizer",
                "drop --use-distributed-optimizer",
            ),
            (
                "gradient-accumulation-fusion",
                lambda s: s.gradient_accumulation_fusion,
                "does not work with fused gradient accumulation",
                "add --no-gradient-accumulation-fusion",
            ),
            (
                "checkpoint",
                lambda s: s.ckpt_format not in ("torch_dist", "torch_dcp"),
                "needs --ckpt-format torch_dist or torch_dcp",
                "--ckpt-format torch_dist",
            ),
            (
                "tied-embeddings",
                lambda s: not s.untie_embeddings_and_output_weights,
                "needs untied embeddings",
                "add --untie-embeddings-and-output-weights",
            ),
            ("fp16", lambda s: s.fp16, "does not work with --fp16", "--bf16"),
            (
                "connections",
                _one_connection,
                "needs CUDA_DEVICE_MAX_CONNECTIONS other than 1",
                "set CUDA_DEVICE_MAX_CONNECTIONS in the cluster profile to 8",
            ),
        )
    ),
    Rule(
        "optimizer.gather-with-step",
        lambda s: (
            s.overlap_param_gather_with_optimizer_step
            and not (
                s.use_distributed_optimizer
                and s.overlap_param_gather
                and s.virtual_pipeline_model_parallel_size is not None
                and s.ckpt_format == "torch"
            )
        ),
        "--overlap-param-gather-with-optimizer-step needs the distributed optimizer, --overlap-param-gather, "
        "virtual pipeline stages and --ckpt-format torch",
        "add them, or drop the flag",
    ),
)

FULLY_SHARDED: Topic = (
    Rule(
        "fsdp.weight-hash",
        lambda s: (
            s.use_megatron_fsdp
            and s.data_parallel_sharding_strategy == "optim_grads_params"
            and s.check_weight_hash_across_dp_replicas_interval is not None
        ),
        "sharded parameters cannot be compared across replicas",
        "drop --check-weight-hash-across-dp-replicas-interval",
    ),
    Rule(
        "fsdp.connections",
        lambda s: s.use_megatron_fsdp and _one_connection(s),
        "--use-megatron-fsdp needs CUDA_DEVICE_MAX_CONNECTIONS other than 1",
        "set CUDA_DEVICE_MAX_CONNECTIONS in the cluster profile to 8",
    ),
    Rule(
        "fsdp.checkpoint",
        lambda s: s.use_megatron_fsdp and s.ckpt_format != "fsdp_dtensor",
        "--use-megatron-fsdp needs --ckpt-format fsdp_dtensor, not {ckpt_format}",
        "--ckpt-format fsdp_dtensor",
    ),
    Rule(
        "fsdp.optimizer",
        lambda s: s.use_megatron_fsdp and s.optimizer not in ("sgd", "adam"),
        "--use-megatron-fsdp knows the optimizers adam and sgd, not {optimizer}",
        "--optimizer adam",
        since=(0, 18),
    ),
    Rule(
        "fsdp.grouped-experts",
        lambda s: s.use_megatron_fsdp and (s.moe_single_grouped_weight or s.moe_single_grouped_bias),
        "--use-megatron-fsdp does not shard single grouped expert parameters",
        "drop --moe-single-grouped-weight and --moe-single-grouped-bias",
        since=(0, 18),
    ),
    Rule(
        "fsdp.meta-device",
        lambda s: (
            s.use_megatron_fsdp
            and s.init_model_with_meta_device
            and s.data_parallel_sharding_strategy == "no_shard"
        ),
        "--init-model-with-meta-device needs a sharding strategy",
        "--data-parallel-sharding-strategy optim_grads_params",
        since=(0, 18),
    ),
    Derive(_megatron_fsdp),
    Rule(
        "fsdp.manual-registration",
        lambda s: s.fsdp_manual_registration and not (s.use_megatron_fsdp and s.nccl_ub),
        "--fsdp-manual-registration needs --use-megatron-fsdp and --nccl-ub",
        "add them, or drop it",
    ),
)

OPTIMIZERS: Topic = (
    Rule(
        "optimizer.muon",
        lambda s: (
            "muon" in (s.optimizer or "")
            and (
                s.overlap_grad_reduce
                or s.overlap_param_gather
                or s.use_distributed_optimizer
                or s.use_torch_fsdp2
                or s.use_megatron_fsdp
                or s.ckpt_format not in ("torch", "torch_dist")
            )
        ),
        "--optimizer {optimizer} works without overlapped communication, distributed optimizer and FSDP, and "
        "with --ckpt-format torch or torch_dist only",
        "drop those flags",
        since=(0, 16),
        until=(0, 18),
    ),
    Rule(
        "optimizer.emerging",
        lambda s: (
            s.optimizer not in ("sgd", "adam")
            and (s.use_torch_fsdp2 or s.use_megatron_fsdp or s.ckpt_format not in ("torch", "torch_dist"))
        ),
        "--optimizer {optimizer} works without FSDP, and with --ckpt-format torch or torch_dist only",
        "--ckpt-format torch_dist, no FSDP",
        since=(0, 18),
    ),
    Derive(_emerging_optimizer, since=(0, 18)),
    Rule(
        "optimizer.cpu-offload",
        lambda s: (
            s.optimizer_cpu_offload
            and (not s.use_precision_aware_optimizer or (s.fp8_param_gather and s.fp8_recipe != "delayed"))
        ),
        "--optimizer-cpu-offload needs --use-precision-aware-optimizer (and --fp8-recipe delayed with fp8 "
        "parameters)",
        "add --use-precision-aware-optimizer",
    ),
)
