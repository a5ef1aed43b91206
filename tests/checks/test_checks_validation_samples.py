"""A branch continues with the validation samples of its trunk, which must be enough for both."""

from __future__ import annotations

import msgspec
import pytest

from airflow_megatron.checks.trainings.validation_samples import validation_sample_findings
from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.requirements.training_arguments import JobArguments, training_arguments
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.spec_files import load_sweep_text

SPEC = """\
name: s
point: p
megatron:
  num_layers: 2
  hidden_size: 64
  num_attention_heads: 4
  seq_length: 64
  max_position_embeddings: 64
  micro_batch_size: 4
  global_batch_size: 16
  mock_data: true
  tokenizer_type: NullTokenizer
  vocab_size: 100
  lr: 1e-3
  lr_decay_style: constant
  train_iters: 300
  save_interval: 20
  eval_interval: 150
  eval_iters: 29
stages:
  trunk: {kind: train}
  branch:
    kind: train
    parent: trunk
    start: {checkpoint: 240}
    megatron: {override_opt_param_scheduler: true, %s}
"""


def warnings_of(branch: str, spec: str = SPEC) -> list[str]:
    plan = check_sweep(load_sweep_text(spec % branch, "s.yaml"), load_cluster("local"))
    return [str(warning) for warning in plan.warnings if "validations need" in str(warning)]


@pytest.mark.slow
@pytest.mark.parametrize("interval", [300, 1000])
def test_a_longer_interval_than_the_trunks(interval: int) -> None:
    (warning,) = warnings_of(f"eval_interval: {interval}")
    assert "464 of which trunk has read before checkpoint 240" in warning
    assert "eval_interval: 150, as for trunk" in warning


@pytest.mark.slow
@pytest.mark.parametrize(
    "branch",
    [
        *("eval_interval: 150", "eval_interval: 200", "eval_interval: 50", "train_iters: 600"),
        *("eval_interval: 300, eval_iters: 0", "eval_interval: 300, full_validation: true"),
    ],
)
def test_enough_samples_or_none(branch: str) -> None:
    assert warnings_of(branch) == []


def test_before_the_trunks_first_validation() -> None:
    assert warnings_of("eval_interval: 300", SPEC.replace("checkpoint: 240", "checkpoint: 140")) == []


@pytest.mark.slow
def test_a_branch_of_a_branch_counts_what_both_have_read() -> None:
    spec = SPEC.replace("start: {checkpoint: 240}", "start: {checkpoint: 160}")
    spec += "  last:\n    kind: train\n    parent: branch\n    start: {checkpoint: 280}\n"
    spec += "    megatron: {override_opt_param_scheduler: true, eval_interval: 300}\n"
    assert "1392 samples, 464 of which branch" in " ".join(warnings_of("eval_interval: 150", spec))


@pytest.mark.slow
def test_trainings_in_one_directory_end_the_count() -> None:
    """Such jobs are refused for their directory, and each seems to be its own parent."""
    cluster = load_cluster("local")
    plan = check_sweep(load_sweep_text(SPEC % "eval_interval: 150", "s.yaml"), cluster)
    trunk, branch = plan.jobs
    shared = msgspec.structs.replace(branch, run_dir=trunk.run_dir)
    trainings = training_arguments([shared], JobArguments(cluster))
    assert shared.parent_dir == shared.run_dir
    assert list(validation_sample_findings(trainings)) == []
