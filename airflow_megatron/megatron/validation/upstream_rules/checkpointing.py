"""Checkpoint formats, saving and loading."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.megatron.rules.rule import Derive, Rule

if TYPE_CHECKING:
    from airflow_megatron.megatron.rules.rule import Topic
    from airflow_megatron.megatron.rules.settings import Settings


def _format(s: Settings) -> None:
    s.is_distributed_checkpoint = s.ckpt_format != "torch"


def _no_asynchronous_save(s: Settings) -> None:
    if s.is_distributed_checkpoint and s.async_save and not s.use_persistent_ckpt_worker:
        s.async_save = False


def _process_groups(s: Settings) -> bool:
    """Return whether gloo process groups are created (the argument has two names, by release)."""
    return s.enable_gloo_process_groups is not False and s.use_gloo_process_groups is not False


FORMATS: Topic = (
    Rule(
        "checkpoint.conversion",
        lambda s: s.ckpt_convert_format is not None and (s.ckpt_convert_save is None or s.load is None),
        "--ckpt-convert-format needs --ckpt-convert-save and --load",
        "give both",
        since=(0, 18),
    ),
    Rule(
        "checkpoint.non-persistent-type",
        lambda s: s.non_persistent_ckpt_type not in ("global", "local", None),
        "--non-persistent-ckpt-type {non_persistent_ckpt_type} is not implemented upstream",
        "global or local",
    ),
    Rule(
        "checkpoint.local",
        lambda s: (
            s.non_persistent_ckpt_type == "local"
            and ("nvidia_resiliency_ext" not in s.machine.packages or s.non_persistent_local_ckpt_dir is None)
        ),
        "--non-persistent-ckpt-type local needs the package nvidia_resiliency_ext and "
        "--non-persistent-local-ckpt-dir",
        "install it and give the folder, or --non-persistent-ckpt-type global",
    ),
    Derive(_format),
)

CHECKPOINTS: Topic = (
    Rule(
        "checkpoint.torch-dcp",
        lambda s: (
            s.ckpt_format == "torch_dcp"
            and not (
                s.use_torch_fsdp2
                and s.tensor_model_parallel_size <= 1
                and s.pipeline_model_parallel_size <= 1
            )
        ),
        "--ckpt-format torch_dcp needs --use-torch-fsdp2 without tensor and pipeline parallelism",
        "--ckpt-format torch_dist",
    ),
    Rule(
        "checkpoint.fsdp-dtensor",
        lambda s: s.ckpt_format == "fsdp_dtensor" and not s.use_megatron_fsdp,
        "--ckpt-format fsdp_dtensor needs --use-megatron-fsdp",
        "--ckpt-format torch_dist",
    ),
    Rule(
        "checkpoint.without-gloo",
        lambda s: (
            not _process_groups(s)
            and s.use_distributed_optimizer
            and (
                not s.is_distributed_checkpoint
                or (s.dist_ckpt_optim_fully_reshardable and s.distrib_optim_fully_reshardable_mem_efficient)
            )
        ),
        "without gloo process groups the distributed optimizer saves in a distributed format only",
        "--ckpt-format torch_dist, or gloo process groups",
    ),
    Rule(
        "checkpoint.main-parameters",
        lambda s: s.load_main_params_from_ckpt and not s.no_load_optim,
        "--load-main-params-from-ckpt needs --no-load-optim",
        "add --no-load-optim",
    ),
    Derive(_no_asynchronous_save, since=(0, 16)),
    Rule(
        "checkpoint.logits",
        lambda s: s.logits_save_dir is not None and (s.logits_save_top_k is None or not s.async_save),
        "--logits-save-dir needs --logits-save-top-k and --async-save with --use-persistent-ckpt-worker",
        "give them",
        since=(0, 19),
    ),
    Rule(
        "checkpoint.iteration-and-finetune",
        lambda s: s.override_ckpt_iteration is not None and s.finetune,
        "--override-ckpt-iteration and --finetune exclude each other",
        "drop one of them",
    ),
    Rule(
        "checkpoint.replication",
        lambda s: s.replication and (s.replication_jump is None or s.non_persistent_ckpt_type != "local"),
        "--replication needs --replication-jump and --non-persistent-ckpt-type local",
        "give them, or drop --replication",
    ),
)
