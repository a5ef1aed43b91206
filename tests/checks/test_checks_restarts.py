"""Changes that a restart policy makes to later attempts are checked before submission."""

from __future__ import annotations

import pytest
from checked_chain import TRUNK, changed, checked, errors_of, line_of


def with_restart(content: str, text: str = TRUNK) -> str:
    return changed(("sweep:\n", f"restart: {{{content}}}\nsweep:\n"), text=text)


@pytest.mark.slow
def test_smaller_numbers_of_nodes() -> None:
    four = changed(("nodes: 2", "nodes: 4"), ("micro_batch_size: 8", "micro_batch_size: 1"))
    assert errors_of(with_restart("nodes: [2, 1]", four)) == []
    text = with_restart("nodes: [3, 1]", four)
    problems = errors_of(text)  # a batch of 16 cannot be spread over 12 GPUs
    assert {problem.line for problem in problems} == {line_of(text, "restart:")}
    assert "on 3 nodes the data parallel size is 12: times micro_batch_size (1)" in problems[0].message
    wide = changed(("micro_batch_size: 1", "micro_batch_size: 1\n  tensor_model_parallel_size: 8"), text=four)
    assert errors_of(with_restart("nodes: [2]", wide)) == []
    (problem, *_) = errors_of(with_restart("nodes: [3, 2]", wide))
    assert "3 nodes have 12 GPUs" in problem.message


@pytest.mark.parametrize("sizes", ["2", "1, 1", "3, 1"])
def test_numbers_of_nodes_that_are_not_smaller(sizes: str) -> None:
    problems = errors_of(with_restart(f"nodes: [{sizes}]"))
    assert problems
    assert problems[0].hint == "numbers below slurm.nodes (2), the largest first"


@pytest.mark.slow
def test_arguments_after_a_rollback() -> None:
    plan = checked(with_restart('after_rollback: {lr: "{{ lr / 2 }}", override_opt_param_scheduler: true}'))
    after = [job.restart.after_rollback for job in plan.jobs if job.stage == "pretrain"]
    assert [changes["lr"] for changes in after] == [0.0005, 0.002]
    (problem, *_) = errors_of(with_restart("after_rollback: {learning_rat: 1}"))
    assert "no such argument" in problem.message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ("kv_channels: 16, swiglu: true", "kv_channels 16 instead of 8, swiglu True instead of False"),
        ("qk_layernorm: true", "qk_layernorm True instead of False"),
        ("ffn_hidden_size: 128", "ffn_hidden_size 128 instead of 256"),
        ("group_query_attention: true, num_query_groups: 4", "num_query_groups 4 instead of 8"),
        (
            "untie_embeddings_and_output_weights: true",
            "untie_embeddings_and_output_weights True instead of False",
        ),
        ("seq_length: 64, seed: 5, ffn_hidden_size: 256, kv_channels: 8", None),
        ("add_bias_linear: false", None),
    ],
)
def test_a_model_that_cannot_load_the_checkpoint(changes: str, told: str | None) -> None:
    """Of a branch, and of a training after a rollback."""
    one = TRUNK.replace("lr: [1e-3, 4e-3]", "lr: [1e-3]")
    branch = "      override_opt_param_scheduler: true\n"
    added = "".join(f"      {line}\n" for line in changes.split(", "))
    for text in (
        changed((branch, branch + added), text=one),
        changed(
            (
                "    kind: train\n    megatron",
                f"    kind: train\n    restart: {{after_rollback: {{{changes}}}}}\n    megatron",
            ),
            text=one,
        ),
    ):
        problems = errors_of(text)
        found = [(f"that it loads ({told})" in problem.message, problem.line) for problem in problems]
        assert found == ([(True, line_of(text, told.split()[0]))] if told else [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            "micro_batch_size: 3",
            "after a rollback, the trainer refuses it (world size 8): --global-batch-size (64) must",
        ),
        ("lr: -1, override_opt_param_scheduler: true", "after a rollback, the trainer refuses it"),
        ("save: /x", "with save its checkpoints would be elsewhere"),
        ("seed: 5, clip_grad: 0.5", None),
    ],
)
def test_a_command_after_a_rollback_is_checked(changes: str, told: str | None) -> None:
    text = with_restart(f"after_rollback: {{{changes}}}", TRUNK.replace("lr: [1e-3, 4e-3]", "lr: [1e-3]"))
    problems = errors_of(text)
    assert bool(problems) == bool(told)
    assert all((told or "") in problem.message for problem in problems)
    assert {problem.line for problem in problems} <= {line_of(text, "restart:")}


def test_only_training_can_go_back() -> None:
    stage = "    events: [{log: bad, do: rollback}]\n"
    text = changed(("    parent: [pretrain, cooldown]\n", f"    parent: [pretrain, cooldown]\n{stage}"))
    (problem, *_) = errors_of(text)
    assert "do: rollback is for stages of kind train" in problem.message
    assert errors_of(changed(("    parent: pretrain\n", f"    parent: pretrain\n{stage}"))) == []
