"""Sweep specs as text, for tests."""

from __future__ import annotations

import textwrap
from typing import Any, Final

STAGES = """\
stages:
  pretrain:
    kind: train
    megatron: {train_iters: 100}
"""
MODEL: Final[dict[str, Any]] = {
    "num_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 2,
    "seq_length": 64,
    "max_position_embeddings": 64,
    "micro_batch_size": 1,
    "mock_data": True,
    "tokenizer_type": "NullTokenizer",
    "vocab_size": 100,
    "lr": 1e-3,
}
"""The arguments without which a training does not start."""


def spec_text(sweep: str = "", *, point: str, stages: str = STAGES, more: str = "") -> str:
    """Return a complete spec with a ``sweep:`` block.

    :param sweep: the content of ``sweep:``, indented or not; no block if empty
    :param point: the point's name
    :param stages: the ``stages:`` section
    :param more: additional top-level lines
    """
    text = f"name: example\npoint: {point!r}\n"
    if more:
        text += textwrap.dedent(more).strip("\n") + "\n"
    if sweep:
        text += "sweep:\n" + textwrap.indent(textwrap.dedent(sweep).strip("\n"), "  ") + "\n"
    return text + textwrap.dedent(stages)


CHAIN = """\
name: chain
point: "lr{{ lr }}"
params: {tokenizer: /data/tokenizer, tasks_dir: /data/tasks, tasks: [heldout]}
megatron: {seq_length: 128, global_batch_size: 16, micro_batch_size: 8, lr_decay_style: constant,
  num_layers: 2, hidden_size: 64, num_attention_heads: 4, max_position_embeddings: 128,
  mock_data: true, tokenizer_type: NullTokenizer, vocab_size: 100, override_opt_param_scheduler: true}
sweep:
  lr: [1e-3, 4e-3]
stages:
  prepare:
    kind: command
    scope: sweep
    command: ["{{ python }}", prepare.py, --output, "{{ run_dir }}/data"]
    outputs: [data/manifest.json]
  pretrain:
    kind: train
    parent: prepare
    megatron: {train_iters: 300, save_interval: 10}
  cooldown:
    kind: train
    parent: pretrain
    for_each:
      budget: [300k, 600k]
    run_dir: "cooldown_s{{ budget }}"
    start: {checkpoint: "{{ train_iters - 20 }}"}
    megatron:
      train_iters: "{{ round_up(iterations(budget, seq_length, global_batch_size), 10) }}"
      save_interval: 20
  convert:
    kind: convert
    parent: [pretrain, cooldown]
  evaluate:
    kind: evaluate
    parent: convert
"""
"""Data preparation, a pretraining run, two cooldowns, conversion and evaluation of each, at two learning rates."""
