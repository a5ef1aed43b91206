"""A sweep with a trunk and cooldowns that passes every check; tests modify it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_megatron.plan.sweep_plan import Plan, check_sweep
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.model.cluster_profile import ClusterProfile
from airflow_megatron.spec.model.schema import LimitsSection
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from airflow_megatron.spec.documents.errors import Problem

TRUNK = """\
name: trunk
point: "lr{{ lr }}"
params: {tokenizer: /data/tokenizer}
megatron:
  seq_length: 128
  global_batch_size: 64
  micro_batch_size: 8
  num_layers: 2
  hidden_size: 64
  num_attention_heads: 8
  max_position_embeddings: 128
  mock_data: true
  tokenizer_type: NullTokenizer
  vocab_size: 100
  lr_decay_style: WSD
  lr_warmup_iters: 10
slurm: {nodes: 2, gpus_per_node: 4, time: 6h}
sweep:
  lr: [1e-3, 4e-3]
stages:
  pretrain:
    kind: train
    megatron:
      train_iters: 300
      lr_decay_iters: 360
      lr_wsd_decay_iters: 60
      save_interval: 60
  cooldown:
    kind: train
    parent: pretrain
    start: {checkpoint: 240}
    megatron:
      train_iters: 300
      lr_decay_iters: 300
      lr_wsd_decay_iters: 60
      override_opt_param_scheduler: true
      save_interval: 60
  convert:
    kind: convert
    parent: [pretrain, cooldown]
    slurm: {nodes: 1, gpus_per_node: 1, time: 30m}
"""
"""Two points of five jobs."""


def changed(*pairs: tuple[str, str], text: str = TRUNK) -> str:
    """Return the sweep with replaced texts; each text must exist."""
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text


def alps(**limits: Any) -> ClusterProfile:
    """Return a cluster profile with limits."""
    return ClusterProfile(
        name="alps",
        ssh_conn_id="slurm_alps",
        run_root="/scratch/runs",
        python="/opt/venv/bin/python",
        megatron_lm_dir="/opt/Megatron-LM",
        limits=LimitsSection(**limits),
    )


def checked(text: str, cluster: ClusterProfile | None = None) -> Plan:
    return check_sweep(load_sweep_text(text, "s.yaml"), cluster or alps())


def errors_of(text: str, cluster: ClusterProfile | None = None) -> list[Problem]:
    """Return the errors of the checks."""
    try:
        checked(text, cluster)
    except SpecError as error:
        return list(error.problems)
    return []


def line_of(text: str, part: str) -> int:
    """Return the first line that contains a text."""
    return text[: text.index(part)].count("\n") + 1
